"""Memory of one device: weights, gradients and optimizer state by counting, activations and workspace by a measurement.

    total = weights + gradients + optimizer state + averaged weights + exact mode's sums + activations + workspace

With PyTorch's kernels on a CPU the weights of convolutions are there once more, in the order that these kernels read.
Activations are what forward keeps for backward, the images among them. Workspace is what is beside them at the fullest
moment: gradients of activations, arrays of single operators, and gaps between arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from recipes.planning.division import Division
from recipes.schema import Recipe

_BYTES, _HALF_BYTES = 4, 2  # float32, 16 bits
_HALVES = {"mixed16": "float16", "bfloat16": "bfloat16"}
# Of a device's memory a plan uses so much. The rest is for code, libraries and gaps between arrays. Assumed; measured
# peaks on a CPU: docs/experiments/memory.md.
USABLE = 0.9
# Gaps between arrays, where no freed place has the size of the next one: a share of the most that one operator
# allocates, up to a limit, and one of all that a micro-batch takes. glibc passes over freed places of the very size for
# PyTorch's arrays, since these begin at multiples of 64 bytes. Fitted: NumPy's on seven models and checked on seven
# others, PyTorch's on 21 models and micro-batches (docs/experiments/memory.md).
_GAPS, _TORCH_GAPS = (0.5, 32 * 2**20, 0.0), (0.75, 64 * 2**20, 0.2)
# Between predicted and measured peaks; all but one case of fourteen models lie within, with PyTorch's kernels all 21.
SPREAD, TORCH_SPREAD = 1.15, 1.2


@dataclass(frozen=True, kw_only=True)
class Bytes:
    """Bytes of a micro-batch: per_sample * samples + per_group * (norm groups computed apart - 1) + fixed.

    >>> Bytes(per_sample=100, fixed=10).of(8)
    810
    """

    per_sample: int
    per_group: int = 0
    fixed: int = 0

    def of(self, samples: int, groups: int = 1) -> int:
        """Bytes of so many samples, of which exact mode computes so many norm groups apart."""
        return self.per_sample * samples + self.per_group * (groups - 1) + self.fixed


@dataclass(frozen=True, kw_only=True)
class ModelCosts:
    """What a model takes with images of one size, in float32; `trainers.training.model_costs` measures it.

    Args:
        parameter_sizes: numbers in each parameter, in the order in which backward finishes their gradients.
        activations: what forward keeps for backward; None where it was not measured.
        moments: all that is live at those moments of forward and backward of which one is the fullest, whatever the
            micro-batch; empty where they were not measured.
        largest_growth: the most that one operator allocates.
        mixes_samples: exact mode computes the norm groups of a micro-batch one by one, after one forward of all.
        ordered_weights: numbers in the weights of convolutions that PyTorch's kernels copy into an order of their own.
        norm_channels: of each batch normalisation.
    """

    parameter_sizes: tuple[int, ...]
    activations: Bytes | None = None
    moments: tuple[Bytes, ...] = ()
    largest_growth: Bytes = field(default_factory=lambda: Bytes(per_sample=0))
    mixes_samples: bool = False
    ordered_weights: int = 0
    norm_channels: tuple[int, ...] = ()

    @property
    def num_parameters(self) -> int:
        """Trained numbers."""
        return sum(self.parameter_sizes)

    def as_tree(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""

        def row(each: Bytes) -> list[int]:
            return [each.per_sample, each.per_group, each.fixed]

        return {
            "parameter_sizes": list(self.parameter_sizes),
            "activations": self.activations and row(self.activations),
            "moments": [row(each) for each in self.moments],
            "largest_growth": row(self.largest_growth),
            "mixes_samples": self.mixes_samples,
            "ordered_weights": self.ordered_weights,
            "norm_channels": list(self.norm_channels),
        }

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> ModelCosts:
        """Of `as_tree`.

        Raises:
            KeyError, TypeError, ValueError: the tree is damaged.
        """

        def bytes_of(row: list[int]) -> Bytes:
            per_sample, per_group, fixed = map(int, row)
            return Bytes(per_sample=per_sample, per_group=per_group, fixed=fixed)

        return cls(
            parameter_sizes=tuple(map(int, tree["parameter_sizes"])),
            activations=tree["activations"] and bytes_of(tree["activations"]),
            moments=tuple(map(bytes_of, tree["moments"])),
            largest_growth=bytes_of(tree["largest_growth"]),
            mixes_samples=bool(tree["mixes_samples"]),
            ordered_weights=int(tree["ordered_weights"]),
            norm_channels=tuple(map(int, tree["norm_channels"])),
        )


@dataclass(frozen=True, kw_only=True)
class Model:
    """What the planner needs of a model and its optimizer.

    Args:
        num_parameters: trained numbers.
        num_state_values: numbers the optimizer keeps for each of them (momentum SGD 1, Adam 2).
        num_gradients: arrays of gradients; two with double buffering, three with PowerSGD, two of them of errors.
        num_averages: weights that are evaluated in place of those that are trained.
        costs: by the image size of a segment; without one that was not measured.
        cpu_kernels: by which a run on CPUs computes: numpy, torch or chainer. What Chainer's take beside NumPy's is not
            counted.
    """

    num_parameters: int
    num_state_values: int
    num_gradients: int = 1
    num_averages: int = 0
    costs: Mapping[int | None, ModelCosts] = field(default_factory=dict)
    cpu_kernels: str = "numpy"

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        num_parameters: int,
        costs: Mapping[int | None, ModelCosts] | None = None,
        *,
        cpu_kernels: str = "numpy",
    ) -> Model:
        """A recipe's model, of so many trained numbers."""
        num_states = len(getattr(recipe.optimizer, "states", ()))
        return cls(
            num_parameters=num_parameters,
            num_state_values=getattr(recipe.optimizer, "num_state_values", num_states),
            num_gradients=1 + recipe.updater.double_buffering + 2 * (recipe.updater.power_sgd_rank is not None),
            num_averages=int(
                recipe.weight_average is not None
                or recipe.updater.local_steps is not None
                or hasattr(recipe.optimizer, "evaluated")
            ),
            costs=costs or {},
            cpu_kernels=cpu_kernels,
        )

    @property
    def norm_channels(self) -> tuple[int, ...] | None:
        """Of each batch normalisation; None where the model was not measured."""
        return next((each.norm_channels for each in self.costs.values()), None)

    def memory(self, compute: str = "float32") -> dict[str, int]:
        """Bytes that a device holds all the time, by what they are.

        Args:
            compute: the recipe's `precision.compute`; with 16 bits, copies of the weights in them are counted, of all
                weights, though those of normalisation have none.
        """
        half = _HALVES.get(compute)
        weights = _BYTES * self.num_parameters
        return {
            "weights_bytes": weights,
            **({f"{half}_weights_bytes": _HALF_BYTES * self.num_parameters} if half else {}),
            "gradients_bytes": weights * self.num_gradients,
            "optimizer_state_bytes": weights * self.num_state_values,
            **({"averaged_weights_bytes": weights * self.num_averages} if self.num_averages else {}),
        }

    def memory_with(
        self,
        division: Division,
        *,
        image_size: int | None = None,
        compute: str = "float32",
        exact: bool = False,
        on_gpu: bool = False,
    ) -> dict[str, int | None]:
        """Bytes of a device at the fullest moment of an update, by what they are.

        Exact mode keeps sums of gradients: `Division.most_sums` arrays.
        With 16 bits activations and workspace are half as large.
        PyTorch's kernels on a CPU keep ordered weights from forward to backward, and leave larger gaps.

        Returns:
            those of `memory`, then `sums_bytes` in exact mode, `ordered_weights_bytes` with PyTorch's kernels where
            there are any, `activations_bytes`, `workspace_bytes` and `total_bytes`; the last three None where the
            model was not measured at this image size.
        """
        held: dict[str, int | None] = {**self.memory(compute)}
        costs, samples, groups = self.costs.get(image_size), division.largest, 1
        one_by_one = exact and costs is not None and costs.mixes_samples
        if exact:
            held["sums_bytes"] = _BYTES * self.num_parameters * division.most_sums(by_group=one_by_one)
            groups = max(1, samples // division.norm_span)
        if costs is None or costs.activations is None:
            return held | {"activations_bytes": None, "workspace_bytes": None, "total_bytes": None}
        part, by_torch = 2 if compute in _HALVES else 1, self.cpu_kernels == "torch" and not on_gpu
        if by_torch and costs.ordered_weights:
            held["ordered_weights_bytes"] = _BYTES * costs.ordered_weights // part
        computed, apart = (samples // groups, 1) if one_by_one else (samples, groups)
        fullest = max(moment.of(computed, apart) for moment in costs.moments) // part
        of_largest, limit, of_all = _TORCH_GAPS if by_torch else _GAPS
        fullest += min(int(of_largest * costs.largest_growth.of(computed)) // part, limit) + int(of_all * fullest)
        always = sum(size or 0 for size in held.values())
        first = 0  # one forward of all groups, before there are states and sums
        if one_by_one:
            first = held["weights_bytes"] + held["gradients_bytes"] + costs.activations.of(samples) // part
            first += held.get("ordered_weights_bytes", 0)
        activations, total = costs.activations.of(computed) // part, max(always + fullest, first)
        return held | {
            "activations_bytes": activations,
            "workspace_bytes": total - always - activations,
            "total_bytes": total,
        }


def largest_that_fits(division: Division, total_of: Callable[[Division], int], room: int) -> int:
    """The most samples of one micro-batch that fit, at most those that the division allows; 0: not even one.

    It is a whole number of norm groups or, where not even one fits, a part of one, for teams of workers.

    Args:
        division: of an update, with the largest micro-batches that are considered.
        total_of: bytes of a device in an update divided so; more for larger micro-batches.
        room: bytes that they may take.
    """

    def fits(**changed: int) -> bool:
        return total_of(replace(division, **changed)) <= room

    if division.team_size == 1:
        limit = min(division.groups_per_micro_batch, division.num_groups)
        if groups := _most(limit, lambda number: fits(groups_per_micro_batch=number)):
            return replace(division, groups_per_micro_batch=groups).largest
    # A part of a group: the span in even parts for a team, of which the first worker has the largest.
    span, limit = division.norm_span, division.largest if division.team_size > 1 else division.norm_span - 1
    part = _most(
        limit,
        lambda part: fits(groups_per_micro_batch=1, workers=span, aligned=False, team_size=-(-span // part)),
    )
    return -(-span // -(-span // part)) if part else 0


def _most(limit: int, holds: Callable[[int], bool]) -> int:
    """The largest number from 1 to `limit` for which `holds` is true, which it is up to that one; 0 where for none."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
