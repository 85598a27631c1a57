"""What a model takes: its parameters in the order of backward, and the bytes of a forward and a backward, measured.

A micro-batch is computed at two sizes and, as two norm groups, once more. `tracemalloc` counts the bytes of NumPy's
arrays before and after each operator. At each of these moments they grow by so many bytes a sample. So the fullest
moment of any micro-batch is known: in VGG-16 that of the first convolution for many samples, of the first linear layer
for few.

The kernels are those called `numpy`. Those of PyTorch and cuDNN work on the same graph and have other workspaces.
"""

from __future__ import annotations

import functools
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from recipes.planning.division import divide
from recipes.planning.memory import Bytes, ModelCosts
from recipes.schema import Evaluation
from trainers import kernels
from trainers.gradients.flat_gradients import GradientHooks, backward_order
from trainers.gradients.sample_by_sample import MixesSamples, require_sample_by_sample
from trainers.kernels import by_group, chainer_hooks
from trainers.kernels.cpu.convolution import free_workspace
from trainers.kernels.threads import one_thread
from trainers.models.batch_norm import NormGroups
from trainers.models.keyed_random import KeyedDropout

_PIXELS = 1 << 14  # of all images of a micro-batch, at least: from there on kernels' blocks are at their full size
_FEWEST = 2  # samples: of one alone an operator may take views where it copies the arrays of several
_SAMPLES, _GROUPS = 2 ** np.arange(21), 2 ** np.arange(11)  # micro-batches whose fullest moment is kept


def measure(model: chainer.Chain, image_CHW: tuple[int, int, int], evaluation: Evaluation) -> ModelCosts:
    """Run a model, which is changed, on the CPU and count what it takes.

    Args:
        model: built; lazy layers get their shapes here.
        image_CHW: shape of an image.
        evaluation: of the recipe.
    Raises:
        Exception: whatever the model raises.
    """
    before = kernels.in_use()
    kernels.use("numpy")
    try:
        with chainer.using_config("train", True), np.errstate(all="ignore"), one_thread():
            return _measured(model, image_CHW, evaluation)
    finally:
        kernels.use(before if before in kernels.KINDS else None)


def _measured(model: chainer.Chain, image_CHW: tuple[int, int, int], evaluation: Evaluation) -> ModelCosts:
    image_NCHW, groups = np.zeros((1, *image_CHW), np.float32), NormGroups(evaluation)
    if any(parameter.array is None for parameter in model.params()):
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            model(image_NCHW)  # lazy layers get their shapes
    groups.install(model)
    order = backward_order(model, image_NCHW)
    sizes = tuple(parameter.size for _, parameter, _ in order)
    few = max(_FEWEST, -(-_PIXELS // (image_CHW[1] * image_CHW[2])))
    runs = [_run(model, groups, image_CHW, samples) for samples in (few, 2 * few)]
    mixes = False
    if getattr(chainer_hooks.operators, "COMPUTES_GROUPS", False):
        try:
            runs.append(_run(model, groups, image_CHW, 2 * few, num_groups=2))
        except MixesSamples:
            mixes = True
    if len({len(live) for _, live, _ in runs}) > 1:  # other operators for another size: only the most of each
        runs = [(held, [max(live)], [max(grown)]) for held, live, grown in runs]
    held, live, grown = (_fitted(np.array([run[part] for run in runs]), few) for part in range(3))
    return ModelCosts(
        parameter_sizes=sizes,
        activations=_bytes(held),
        moments=_fullest(live),
        largest_growth=Bytes(per_sample=int(grown[0].max())),
        mixes_samples=mixes,
        ordered_weights=sum(parameter.size for _, parameter, _ in order if _is_ordered(parameter.shape)),
        norm_channels=tuple(
            link.avg_mean.size for _, link in sorted(model.namedlinks()) if isinstance(link, L.BatchNormalization)
        ),
    )


def _is_ordered(shape: tuple[int, ...]) -> bool:
    """Whether a parameter has another order with channels last, as the weights of convolutions larger than 1x1 have."""
    return len(shape) == 4 and shape[2:] != (1, 1)


def _run(
    model: chainer.Chain, groups: NormGroups, image_CHW: tuple[int, int, int], samples: int, *, num_groups: int = 1
) -> tuple[int, list[int], list[int]]:
    """One forward and backward, as `trainers.training.mean_gradient` does them.

    Returns:
        live bytes at the end of forward; the most between any two moments, and by how much they grew there.
    Raises:
        MixesSamples: a run would compute several groups one by one.
    """
    span = samples // num_groups
    division = divide(global_batch_size=samples, norm_span=span, workers=1, micro_batch_size=samples)
    groups.begin_update(division)
    groups.begin_micro_batch(division.micro_batches(0)[0])
    numbers = np.zeros(samples, np.int64)
    keyed = KeyedDropout(model, seed=0, epochs=numbers, indices=numbers)
    of_parameters = {id(parameter): number for number, parameter in enumerate(model.params())}
    delivered = GradientHooks(lambda variable: of_parameters.get(id(variable)), lambda number, array: None)
    free_workspace()
    with _watched() as watch:
        images, labels = np.zeros((samples, *image_CHW), np.float32), np.zeros(samples, np.int32)
        with by_group.apart(num_groups), delivered:
            with keyed:
                logits = model(images)
                if num_groups > 1:
                    require_sample_by_sample(logits, images)
                of_groups = F.split_axis(logits, num_groups, axis=0, force_tuple=True)
                starts = range(0, samples, span)
                losses = [
                    F.softmax_cross_entropy(part, labels[start : start + span])
                    for part, start in zip(of_groups, starts, strict=True)
                ]
            held = watch.note()
            (F.sum(F.stack(losses)) * float(span)).backward()  # for one group as many operators as for two
        watch.note()
    model.cleargrads()
    return held, watch.most, watch.grown


class _Watch:
    """The operators of the kernels, and the bytes that were live between any two of their calls."""

    def __init__(self, operators: Any) -> None:
        self._operators, self.most, self.grown = operators, [], []
        self._start = self._last = tracemalloc.get_traced_memory()[0]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._operators, name)
        return self._noting(found) if callable(found) else found

    def _noting(self, call: Any) -> Any:
        @functools.wraps(call)
        def noting(*arguments: Any, **named: Any) -> Any:
            self.note()
            result = call(*arguments, **named)
            self.note()
            return result

        return noting

    def note(self) -> int:
        """A moment; returns the bytes that are live now."""
        now, most = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        self.most.append(most - self._start)
        self.grown.append(most - self._last)
        self._last = now
        return now - self._start


@contextmanager
def _watched() -> Iterator[_Watch]:
    traced, operators = tracemalloc.is_tracing(), chainer_hooks.operators
    if not traced:
        tracemalloc.start()
    try:
        chainer_hooks.operators = watch = _Watch(operators)
        yield watch
    finally:
        chainer_hooks.operators = operators
        if not traced:
            tracemalloc.stop()


def _fitted(live: np.ndarray, few: int) -> np.ndarray:
    """Bytes a sample, a norm group and fixed, (3, moments), from those of `few` and twice as many samples and, where it
    was measured, of these as two groups."""
    per_sample = (live[1] - live[0]) // few
    per_group = np.maximum(live[2] - live[1], 0) if len(live) > 2 else np.zeros_like(per_sample)
    return np.stack([per_sample, per_group, live[0] - per_sample * few])


def _fullest(fitted: np.ndarray) -> tuple[Bytes, ...]:
    """Those moments that are the fullest of some micro-batch."""
    samples, groups = (each.ravel() for each in np.meshgrid(_SAMPLES, _GROUPS))
    samples, groups = samples[groups <= samples], groups[groups <= samples]
    rows = np.stack([samples, groups - 1, np.ones_like(samples)], axis=1) @ fitted
    return tuple(_bytes(fitted[:, moment]) for moment in sorted({*rows.argmax(axis=1).tolist()}))


def _bytes(row: np.ndarray) -> Bytes:
    per_sample, per_group, fixed = row.tolist()
    return Bytes(per_sample=per_sample, per_group=per_group, fixed=fixed)
