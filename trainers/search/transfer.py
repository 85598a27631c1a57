"""Small to large: a search at a small batch, its best recipe scaled, and a search of what does not scale by rule.

In the search's folder:

    from-256.yaml, from-256/     the first search: all of the space at the small batch
    scaled.yaml                  its best recipe at the large batch, as `kilobatch recipes scale` derives it
    to-8192.yaml, to-8192/       the second search: warmup, rate and momentum around what was derived
    best.yaml                    its best recipe, complete, with the origin of every value

Each of the two is a search like any other, with a file, a folder and a study of its own, and goes on where it was.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from recipes import ranges
from recipes.errors import Problem, RecipeError
from recipes.open import OpenedRecipe, open_recipe
from recipes.open_search import OpenedSearch, open_search
from recipes.provenance import resolved_text
from recipes.registry import shown
from recipes.scale import scale_recipe
from recipes.scale.request import rounded
from recipes.search_checks import value_at
from recipes.yaml_text import block_text
from trainers.search.best import BEST, from_anywhere, recipe_from_anywhere
from trainers.search.home import study_of
from trainers.search.page import write_transfer_page
from trainers.vocabulary import search_vocabulary

SCALED = "scaled.yaml"
_RATE, _WARMUP = "learning_rate.reference", "learning_rate.warmup.epochs"
_MOMENTUM = ("optimizer.momentum", "optimizer.mu1", "optimizer.beta1")
_FACTOR = 4  # of rate and warmup, to either side of what was derived
_LONGEST_WARMUP = 0.5  # of the run


@dataclass(frozen=True, kw_only=True)
class Stages:
    """The two searches of a transfer.

    Args:
        opened: the search as a user wrote it.
        folder: where everything is.
        data, allow_code: as of `open_search`.
    """

    opened: OpenedSearch
    folder: Path
    data: Path | None = None
    allow_code: bool = False

    @property
    def names(self) -> tuple[str, str]:
        """Of their files and folders."""
        transfer = self.opened.search.transfer
        return f"from-{transfer.from_batch}", f"to-{transfer.to_batch}"

    def write_small(self) -> Path:
        """The file of the first search."""
        return self._write(0, recipe=recipe_from_anywhere(self.opened), space=self.opened.tree["space"])

    def write_large(self) -> Path:
        """The file of the second search; the first one has a best recipe.

        Raises:
            InputRefused: no rule leads to the large batch.
        """
        self.scale()
        space, recipe = self.space(), self.scaled().tree
        derived = {path: value_at(recipe, path) for path in space}
        first = {path: value for path, value in derived.items() if _holds(space[path], value)}
        return self._write(1, recipe=SCALED, space=space, fixed={}, enqueue=[first])

    def scale(self) -> None:
        """Derive the recipe at the large batch; anew it is the same."""
        best = self.folder / self.names[0] / BEST
        batch = self.opened.search.transfer.to_batch
        partial = self.folder / f"partial-{SCALED}"
        partial.unlink(missing_ok=True)
        options = {"vocabulary": search_vocabulary(allow_code=self.allow_code), "allow_code": self.allow_code}
        scale_recipe(best, batch=batch, out=partial, data_root=self.data, **options)
        partial.replace(self.folder / SCALED)

    def scaled(self) -> OpenedRecipe:
        """The recipe at the large batch."""
        words = search_vocabulary(allow_code=self.allow_code)
        path = self.folder / SCALED
        return open_recipe(path, vocabulary=words, allow_code=self.allow_code, data_root=self.data)

    def space(self) -> dict[str, Any]:
        """What is searched at the large batch: a user's own range where the space has one, but for the rate.

        rate        within a factor of 4 of the derived one
        warmup      likewise, and at most half of the run; left out where the recipe has none
        momentum m  1 - m from half to twice the derived one; left out where the optimizer has none
        """
        recipe = self.scaled().tree
        given = {path: {**range_, "when": {}} for path, range_ in self.opened.tree["space"].items()}
        rate, epochs = recipe["learning_rate"]["reference"], recipe["epochs"]
        found = {_RATE: _log(rate / _FACTOR, rate * _FACTOR)}
        warmup = recipe["learning_rate"]["warmup"]
        if warmup is not None:
            longest = min(warmup["epochs"] * _FACTOR, epochs * _LONGEST_WARMUP)
            found[_WARMUP] = given.get(_WARMUP) or _log(min(warmup["epochs"], longest) / _FACTOR, longest)
        for path in _MOMENTUM:
            momentum = recipe["optimizer"].get(path.rpartition(".")[2])
            if momentum:
                left = 1 - momentum
                ends = {"low": rounded(max(0.0, 1 - 2 * left)), "high": rounded(1 - left / 2)}
                found[path] = given.get(path) or {"kind": "Float", **ends}
        return found

    def best_text(self) -> str:
        """The best recipe of all, each value with where it came from, followed from file to file."""
        path = self.folder / self.names[1] / BEST
        words = search_vocabulary(allow_code=self.allow_code)
        found = open_recipe(path, vocabulary=words, allow_code=self.allow_code, data_root=self.data)
        head = path.read_text(encoding="utf-8").partition("\n")[0]
        origins = {key: self._followed(origin) for key, origin in found.origins.items()}
        return f"{head}\n{resolved_text(found.tree, origins)}"

    def _followed(self, origin: str) -> str:
        """Of a value in a file of this folder: what its line says of it; else the origin itself."""
        file, _, line = origin.rpartition(":")
        path = Path(file)
        if not line.isdigit() or not path.is_file() or not path.resolve().is_relative_to(self.folder.resolve()):
            return origin
        said = path.read_text(encoding="utf-8").splitlines()[int(line) - 1].rpartition("  # ")[2]
        if path.name == SCALED:
            return f"scaled to batch {self.opened.search.transfer.to_batch}: {said}"
        return self._followed(said)

    def write_page(self) -> Path:
        """The page of both searches; returns where it is."""
        folders = [self.folder / name for name in self.names]
        with ExitStack() as stack:
            opened = [study_of(folder, self.open(folder.with_suffix(".yaml"))) for folder in folders]
            parts = list(zip(map(stack.enter_context, opened), folders, strict=True))
            return write_transfer_page(self.folder, self.opened.search, parts)

    def open(self, path: Path) -> OpenedSearch:
        """One of the two searches."""
        words = search_vocabulary(allow_code=self.allow_code)
        return open_search(path, vocabulary=words, allow_code=self.allow_code, data_root=self.data)

    def _write(self, stage: int, **changed: Any) -> Path:
        """A stage's file: the user's search with what is its own; limits of time in proportion to its trials."""
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


def check_transfer(opened: OpenedSearch, *, data: Path | None = None, allow_code: bool = False) -> OpenedSearch:
    """Refuse a transfer whose second search could not begin.

    Returns:
        The second search, had the recipe itself been the best of the first one.
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
        stages = Stages(opened=opened, folder=Path(name), data=data, allow_code=allow_code)
        trial = stages.folder / stages.names[0]
        trial.mkdir()
        tree = {**opened.base.tree, "claims": [], "card": None, **from_anywhere(opened)}
        (trial / BEST).write_text(block_text(tree), encoding="utf-8")
        large = stages.write_large()
        try:
            return stages.open(large)
        except RecipeError as error:  # of a file that is gone in a moment
            found = [_refused(opened, f"the second search: {p.path} {p.what}", p.way_out) for p in error.problems]
            raise RecipeError(found) from None


def transfer(stages: Stages, begin: Callable[[Path, Path], int]) -> int:
    """Do both searches, one after the other, or go on with them.

    Args:
        stages: of the search.
        begin: does a search, given its file and its folder, and returns its exit code.
    """
    small, large = stages.names
    code = begin(stages.write_small(), stages.folder / small)
    if code:
        return code
    code = begin(stages.write_large(), stages.folder / large)
    if (stages.folder / large / BEST).is_file():
        partial = stages.folder / f".{BEST}.partial"
        partial.write_text(stages.best_text(), encoding="utf-8")
        partial.rename(stages.folder / BEST)
        print(f"the best of both searches: kilobatch train {quote(str(stages.folder / BEST))}")
    print(f"report of both: {stages.write_page()}")
    return code


def _refused(opened: OpenedSearch, what: str, way_out: str) -> Problem:
    return Problem(file=shown(opened.path), line=1, column=1, path="transfer", what=what, way_out=way_out)


def _log(low: float, high: float) -> dict[str, Any]:
    return {"kind": "Float", "low": rounded(low), "high": rounded(high), "log": True}


def _holds(range_: Mapping[str, Any], value: object) -> bool:
    kind = getattr(ranges, range_["kind"])
    return kind(**{key: each for key, each in range_.items() if key != "kind"}).holds(value)
