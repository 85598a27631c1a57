"""A transfer: a search at a small batch, its best recipe scaled up, and a search of what does not scale by rule.

In the search's folder:

    from-256.yaml, from-256/     the first search: all of the space at the small batch
    scaled.yaml                  its best recipe at the large batch, as `kilobatch recipes scale` derives it
    to-8192.yaml, to-8192/       the second search: warmup, rate and momentum around what was derived
    best.yaml                    its best recipe, complete, with the origin of every value

Each of the two is a search like any other, with its own file, folder and study, and is resumed like any other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from recipes.errors import Problem, RecipeError
from recipes.reading.load import resolved_text
from recipes.reading.open import open_recipe
from recipes.reading.read import value_at
from recipes.reading.registry import shown
from recipes.reading.yaml import block_text
from recipes.scale import scale_recipe
from recipes.scale.request import rounded
from recipes.search_space import ranges
from recipes.search_space.open_search import OpenedSearch, open_search
from trainers.search.best import BEST, absolute_dataset, absolute_recipe
from trainers.search.search_folder import write_whole

SCALED = "scaled.yaml"
_RATE, _WARMUP = "learning_rate.reference", "learning_rate.warmup.epochs"
_MOMENTUM = ("optimizer.momentum", "optimizer.mu1", "optimizer.beta1")
_FACTOR = 4  # range of rate and warmup: from 1/4 of the derived value to 4 times it
_LONGEST_WARMUP = 0.5  # as a share of the run


@dataclass(frozen=True, kw_only=True)
class Stages:
    """The two searches of a transfer."""

    opened: OpenedSearch
    folder: Path

    @property
    def names(self) -> tuple[str, str]:
        """Names of the two searches' files and folders."""
        transfer = self.opened.search.transfer
        return f"from-{transfer.from_batch}", f"to-{transfer.to_batch}"

    def write_small(self) -> Path:
        """Write the file of the first search; returns its path."""
        return self._write(0, recipe=absolute_recipe(self.opened), space=self.opened.tree["space"])

    def write_large(self) -> Path:
        """Write the file of the second search, around the best recipe of the first one scaled up; returns its path.

        The scaled recipe is written too; repeating this gives the same files.

        Raises:
            InputRefused: no rule leads to the large batch.
        """
        partial = self.folder / f"partial-{SCALED}"
        partial.unlink(missing_ok=True)
        best, batch = self.folder / self.names[0] / BEST, self.opened.search.transfer.to_batch
        scale_recipe(best, batch=batch, out=partial, **self.opened.options)
        partial.replace(self.folder / SCALED)
        recipe = open_recipe(self.folder / SCALED, **self.opened.options).tree
        space = self._space_around(recipe)
        derived = {path: value_at(recipe, path) for path in space}
        first = {path: value for path, value in derived.items() if _holds(space[path], value)}
        return self._write(1, recipe=SCALED, space=space, fixed={}, enqueue=[first])

    def _space_around(self, recipe: Mapping[str, Any]) -> dict[str, Any]:
        """The space of the second search; except for the rate, a range in the user's space takes precedence.

        rate        within a factor of 4 of the derived one
        warmup      likewise, and at most half of the run; left out where the recipe has none
        momentum m  1 - m from half to twice the derived one; left out where the optimizer has none
        """
        given = {path: {**range_, "when": {}} for path, range_ in self.opened.tree["space"].items()}
        rate, epochs = recipe["learning_rate"]["reference"], recipe["epochs"]
        space = {_RATE: _log(rate / _FACTOR, rate * _FACTOR)}
        warmup = recipe["learning_rate"]["warmup"]
        if warmup is not None:
            longest = min(warmup["epochs"] * _FACTOR, epochs * _LONGEST_WARMUP)
            space[_WARMUP] = given.get(_WARMUP) or _log(min(warmup["epochs"], longest) / _FACTOR, longest)
        for path in _MOMENTUM:
            momentum = recipe["optimizer"].get(path.rpartition(".")[2])
            if momentum:
                left = 1 - momentum
                ends = {"low": rounded(max(0.0, 1 - 2 * left)), "high": rounded(1 - left / 2)}
                space[path] = given.get(path) or {"kind": "Float", **ends}
        return space

    def best_text(self) -> str:
        """The best recipe of the second search as text, each value's origin followed through the transfer's files."""
        path = self.folder / self.names[1] / BEST
        best = open_recipe(path, **self.opened.options)
        head = path.read_text(encoding="utf-8").partition("\n")[0]
        origins = {key: self._first_origin(origin) for key, origin in best.origins.items()}
        return f"{head}\n{resolved_text(best.tree, origins)}"

    def _first_origin(self, origin: str) -> str:
        """The origin noted in the file and line that `origin` names, if it is in this folder; else `origin` itself."""
        file, _, line = origin.rpartition(":")
        path = Path(file)
        if not line.isdigit() or not path.is_file() or not path.resolve().is_relative_to(self.folder.resolve()):
            return origin
        noted = path.read_text(encoding="utf-8").splitlines()[int(line) - 1].rpartition("  # ")[2]
        if path.name == SCALED:
            return f"scaled to batch {self.opened.search.transfer.to_batch}: {noted}"
        return self._first_origin(noted)

    def open(self, path: Path) -> OpenedSearch:
        """Open the file of one of the two searches."""
        return open_search(path, **self.opened.options)

    def _write(self, stage: int, **changed: Any) -> Path:
        """Write a stage's file: the user's search with `changed`, and its share of time limits by number of trials."""
        tree, search = dict(self.opened.tree), self.opened.search
        trials = search.transfer.trials[stage]
        part = trials / sum(search.transfer.trials)
        limits = {key: value for key, value in tree["budget"].items() if key != "trials" and value is not None}
        tree |= {
            "name": f"{search.name}-{self.names[stage]}",
            "budget": {"trials": trials, **{key: value * part for key, value in limits.items()}},
            "transfer": None,
            **changed,
        }
        path = self.folder / f"{self.names[stage]}.yaml"
        path.write_text(block_text(tree), encoding="utf-8")
        return path


def check_transfer(opened: OpenedSearch) -> OpenedSearch:
    """Refuse a transfer whose second search could not begin.

    Returns:
        The second search, as it would be if the recipe itself were the best of the first one.
    Raises:
        RecipeError: the recipe's batch is not the small one.
        InputRefused: no rule leads to the large batch.
    """
    transfer, first = opened.search.transfer, opened.base.recipe.batch.global_.sizes[0]
    if first != transfer.from_batch:
        what = f"from_batch is {transfer.from_batch}, and the recipe begins with a batch of {first}"
        way_out = f"write `fixed: {{batch.global: {transfer.from_batch}}}`, or from_batch: {first}"
        raise RecipeError([_refused(opened, what, way_out)])
    with tempfile.TemporaryDirectory() as name:
        stages = Stages(opened=opened, folder=Path(name))
        trial = stages.folder / stages.names[0]
        trial.mkdir()
        tree = {**opened.base.tree, "claims": [], "card": None, **absolute_dataset(opened)}
        (trial / BEST).write_text(block_text(tree), encoding="utf-8")
        large = stages.write_large()
        try:
            return stages.open(large)
        except RecipeError as error:  # it names a file in the temporary folder
            problems = [_refused(opened, f"the second search: {p.path} {p.what}", p.way_out) for p in error.problems]
            raise RecipeError(problems) from None


def transfer(stages: Stages, begin: Callable[[Path, Path], int]) -> int:
    """Run or resume both searches, one after the other; returns the exit code.

    Args:
        stages: of the search.
        begin: runs the search of a file in a folder, and returns its exit code.
    """
    small, large = stages.names
    code = begin(stages.write_small(), stages.folder / small)
    if code:
        return code
    code = begin(stages.write_large(), stages.folder / large)
    if (stages.folder / large / BEST).is_file():
        write_whole(stages.folder / BEST, stages.best_text())
        print(f"the best of both searches: kilobatch train {quote(str(stages.folder / BEST))}")
    return code


def _refused(opened: OpenedSearch, what: str, way_out: str) -> Problem:
    return Problem(file=shown(opened.path), line=1, column=1, path="transfer", what=what, way_out=way_out)


def _log(low: float, high: float) -> dict[str, Any]:
    return {"kind": "Float", "low": rounded(low), "high": rounded(high), "log": True}


def _holds(range_: Mapping[str, Any], value: object) -> bool:
    kind = getattr(ranges, range_["kind"])
    return kind(**{key: each for key, each in range_.items() if key != "kind"}).holds(value)
