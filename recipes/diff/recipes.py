"""Opens and compares recipes, given by name, by file, or by the folder of a run, and the quantities that follow."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from recipes.cards.card import peak_rate, ramp_text
from recipes.errors import Problem, RecipeError, refuse_unreachable
from recipes.planning.rates import full_rate_at, learning_rate_at, weight_decay_at
from recipes.planning.timeline import Timeline, timeline_of
from recipes.reading.open import OpenedRecipe, open_recipe
from recipes.reading.registry import names, shown
from recipes.reading.tree_diff import MISSING, Difference, comparable_tree, compare
from recipes.reports.metrics import RunError
from recipes.reports.record import read_head
from recipes.reports.wording import number
from recipes.schema import Recipe
from recipes.schema.vocabulary import Vocabulary, kind_of, rate_rule

_RECIPE, _RUN, _IDENTITY = "recipe.yaml", "run.yaml", "identity.json"

_DIGITS = 6
_SHORT = 12  # digits of a digest
_MOST_UPDATES = 500_000  # comparing so many takes seconds, and a stranger's recipe may have any number
_ROUNDING = 1e-9  # relative; two ways to write a rate, such as 0.1 per 256 and 0.2 per 512, are rounded apart


def effects(opened: OpenedRecipe) -> dict[str, str]:
    """The derived quantities of a recipe in words; those that it does not have are left out."""
    return dict(_effects(opened))


def _effects(opened: OpenedRecipe) -> Iterator[tuple[str, str]]:
    recipe, updates = opened.recipe, timeline_of(opened.recipe, opened.dataset)
    yield "can be trained", "; ".join(opened.obstacles) or "yes"
    yield "global batch", ramp_text(recipe.batch.global_)
    yield "norm span", ramp_text(recipe.batch.norm_span)
    yield "epochs", number(recipe.epochs, digits=_DIGITS)
    yield "updates", number(updates.num_updates)
    yield from _warmup(recipe, updates)
    yield "full rate", _full_rates(recipe)
    yield "rate, first update", _rate(learning_rate_at(recipe, 0.0))
    yield "rate, largest", _rate(peak_rate(recipe))
    yield "rate, last update", _rate(learning_rate_at(recipe, updates.epoch_at(updates.num_updates - 1)))
    yield from _decay(opened)


def same_schedule(one: OpenedRecipe, other: OpenedRecipe) -> bool | None:
    """Whether every update has the same batch and, up to rounding, learning rate; None if there are too many.

    Another rate is also one of single parameters (`factors`), and with AdaScale that of another `per`: its gain lies
    between 1 and batch / per.
    """
    rates, kinds = [each.recipe.learning_rate for each in (one, other)], {kind_of(one.recipe.optimizer)}
    kinds.add(kind_of(other.recipe.optimizer))
    if rates[0].factors != rates[1].factors or ("AdaScale" in kinds and rates[0].per != rates[1].per):
        return False
    first, second = timeline_of(one.recipe, one.dataset), timeline_of(other.recipe, other.dataset)
    if (first.num_train, first.num_updates) != (second.num_train, second.num_updates):
        return False
    if first.num_updates > _MOST_UPDATES:
        return None
    return all(
        first.samples_at(update + 1) == second.samples_at(update + 1)
        and math.isclose(
            learning_rate_at(one.recipe, first.epoch_at(update)),
            learning_rate_at(other.recipe, second.epoch_at(update)),
            rel_tol=_ROUNDING,
        )
        for update in range(first.num_updates)
    )


def _warmup(recipe: Recipe, updates: Timeline) -> Iterator[tuple[str, str]]:
    warmup = recipe.learning_rate.warmup
    end = 0 if warmup is None else updates.first_update_at(warmup.shape.epochs)
    yield "warmup, samples", number(updates.samples_at(end)) if end else "none"
    yield "warmup, updates", number(end) if end else "none"


def _decay(opened: OpenedRecipe) -> Iterator[tuple[str, str]]:
    """The share of a weight that decay removes for each sample at the first full rate, before momentum.

    Linear scaling keeps it. Left out without decay, if the decay does not follow the rate, or if a step is not
    proportional to it.
    """
    tree, recipe = opened.tree["optimizer"], opened.recipe
    coupled = rate_rule(recipe.optimizer) == "linear" and tree.get("decay", "coupled") == "coupled"
    if (decay := weight_decay_at(recipe, 0.0)) and (coupled or tree.get("decay") == "times_rate"):
        rate = full_rate_at(recipe, 0.0)
        yield "rate x decay / batch", _rate(rate * decay / recipe.batch.global_.sizes[0])


def _full_rates(recipe: Recipe) -> str:
    """The full rate at the start, and at each step of the batch that changes it."""
    parts: list[str] = []
    before = None
    for start in recipe.batch.global_.boundaries:
        rate = full_rate_at(recipe, start)
        if rate != before:
            parts.append(f"from epoch {start:g} {_rate(rate)}" if parts else _rate(rate))
        before = rate
    return ", ".join(parts)


def _rate(rate: float) -> str:
    return f"{rate:.{_DIGITS}g}"


def differing(rows: Sequence[dict[str, str]]) -> dict[str, tuple[str, ...]]:
    """The quantities that differ, with the text of each recipe; `-` if a recipe does not have it."""
    names = dict.fromkeys(name for row in rows for name in row)
    texts = {name: tuple(row.get(name, "-") for row in rows) for name in names}
    return {name: row for name, row in texts.items() if len(set(row)) > 1}


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One of the recipes, with a label: a letter, or a number with more than 26 recipes.

    Args:
        name: as the user gave it.
        origins: dotted path -> origin of the value; of a run as recorded when it began.
    """

    label: str
    name: str
    opened: OpenedRecipe
    origins: Mapping[str, str]

    def origin(self, path: str | None, value: Any) -> str:
        """The origin of a value: each file that gives a part of it, or else the origin of what contains it.

        `path` is None if the recipe does not have it; of a value that is a mapping only the keys are used.
        """
        if path is None:
            return ""
        if path.startswith("dataset."):
            path = "dataset"  # where the recipe names the file with all its facts
        inside = [f"{path}.{key}" for key in value] if isinstance(value, Mapping) and value else [path]
        origins = [
            text for recorded, text in self.origins.items() if any(f"{recorded}.".startswith(f"{p}.") for p in inside)
        ]
        written: dict[str, str] = {}
        for text in origins:
            if text != "default" and not text.startswith("rule: "):
                written.setdefault(text.rpartition(":")[0] or text, text)
        return ", ".join(written.values()) or next(iter(origins), "")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The differences between recipes.

    Args:
        differences: of values that training reads.
        words: differences of values that only name or document.
        effects: derived quantity -> its text for each recipe; only quantities that differ.
        same_schedule: whether every update has the same batch and rate in all; None if there are too many updates.
        unseen: modules of own code of which no file was found, so that it was not compared.
    """

    recipes: tuple[Compared, ...]
    differences: tuple[Difference, ...]
    words: tuple[Difference, ...]
    effects: Mapping[str, tuple[str, ...]]
    same_schedule: bool | None
    unseen: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether all values that training reads are equal, and own code too."""
        return not self.differences and not self.unseen

    def as_tree(self) -> dict[str, Any]:
        """Plain data, for JSON; a missing value and its path are null."""
        files = [shown(recipe.opened.path) for recipe in self.recipes]
        return {
            "recipes": [{"name": one.name, "file": file} for one, file in zip(self.recipes, files, strict=True)],
            "same": self.same,
            "same_schedule": self.same_schedule,
            "unseen": list(self.unseen),
            "differences": [self._tree(difference) for difference in self.differences],
            "words": [self._tree(difference) for difference in self.words],
            "effects": {name: list(texts) for name, texts in self.effects.items()},
        }

    def _tree(self, difference: Difference) -> dict[str, Any]:
        triples = zip(self.recipes, difference.tree_paths, difference.values, strict=True)
        return {
            "path": ".".join(difference.path),
            "values": [None if value is MISSING else value for value in difference.values],
            "paths": list(difference.tree_paths),
            "origins": [recipe.origin(path, value) or None for recipe, path, value in triples],
            "moves_schedule": difference.moves_schedule,
        }


def compare_recipes(
    names_or_paths: Sequence[str],
    *,
    vocabulary: Vocabulary,
    allow_code: bool | None = False,
    data_root: Path | None = None,
    code_of: Callable[[OpenedRecipe], Mapping[str, str | None]] = lambda opened: {},
) -> Comparison:
    """Opens recipes and compares their resolved values, and their own code.

    Args:
        names_or_paths: at least two; names of the library, paths, or folders of runs.
        vocabulary, allow_code, data_root: as for `recipes.open_recipe`.
        code_of: SHA-256 of each file of a recipe's own code; None at a module of which there is no file. Of a run the
            recorded ones are taken.
    Raises:
        RecipeError: with all that is wrong with any of them.
    """
    problems: list[Problem] = []
    recipes = []
    labels = (
        ascii_uppercase
        if len(names_or_paths) <= len(ascii_uppercase)
        else [str(n) for n in range(1, len(names_or_paths) + 1)]
    )
    for label, name in zip(labels, names_or_paths, strict=False):
        try:
            file = _file_of(name)
            opened = open_recipe(file, vocabulary=vocabulary, allow_code=allow_code, data_root=data_root, of_run=None)
        except RecipeError as error:
            problems += error.problems
        else:
            recipes.append(Compared(label=label, name=name, opened=opened, origins=_origins(opened.path, opened)))
    if problems:
        raise RecipeError(problems)
    trees = [comparable_tree(one.opened.tree, one.opened.dataset_tree) for one in recipes]
    made_of = [_identity(one.opened.path) for one in recipes]
    if all(made_of):  # runs, which know their code and their data
        trees = [{**tree, **each} for tree, each in zip(trees, made_of, strict=True)]
    codes = [each["code"] if each else code_of(one.opened) for one, each in zip(recipes, made_of, strict=True)]
    unseen = sorted({name for code in codes for name, digest in code.items() if digest is None and not allow_code})
    found = [{name: digest[:_SHORT] for name, digest in code.items() if digest is not None} for code in codes]
    trees = [{**tree, "code": code} for tree, code in zip(trees, found, strict=True)]
    differences = compare(trees)
    moves = any(difference.moves_schedule for difference in differences)
    same = {same_schedule(recipes[0].opened, other.opened) for other in recipes[1:]} if moves else ()
    return Comparison(
        recipes=tuple(recipes),
        differences=tuple(difference for difference in differences if not difference.is_words),
        words=tuple(difference for difference in differences if difference.is_words),
        effects=differing([effects(one.opened) for one in recipes]),
        same_schedule=False if False in same else None if None in same else True,
        unseen=tuple(unseen),
    )


def _identity(file: Path) -> dict[str, Any]:
    """SHA-256 of a run's own code and of its data, by file and part, shortened; empty where the file is no run's."""
    try:
        tree = json.loads((file.parent / _IDENTITY).read_text(encoding="utf-8"))
        kept = {what: tree[what] for what in ("code", "data")}
        return {what: {name: str(digest)[:_SHORT] for name, digest in kept[what].items()} for what in kept}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


@refuse_unreachable()
def _file_of(name: str) -> str:
    """The recipe's file for a run's folder; any other name unchanged. A name of the library is never a folder."""
    folder = Path(os.path.expanduser(name))
    if not folder.is_dir() or name in names("recipes"):
        return name
    if (folder / _RECIPE).is_file():
        return str(folder / _RECIPE)
    if Path(f"{name}.yaml").is_file() or Path(f"{name}.yml").is_file():
        return name
    what = f"is a folder without {_RECIPE}, so no run's"
    way_out = "name the folder of a run (runs/NAME), a recipe's file, or a name of `kilobatch recipes list`"
    raise RecipeError([Problem(file=name, what=what, way_out=way_out)])


def _origins(file: Path, opened: OpenedRecipe) -> Mapping[str, str]:
    """The origins of values; for a run's recipe, which was generated, those recorded when the run began.

    A recorded origin counts only if the recorded value still equals the recipe's, which may have been edited since.
    """
    head = file.parent / _RUN
    if file.name != _RECIPE or not head.is_file():
        return opened.origins
    try:
        tree = read_head(head)
    except RunError:  # nothing of it is compared
        return opened.origins
    recipe, recorded = tree.get("recipe"), tree.get("origins")
    if not isinstance(recipe, Mapping) or not isinstance(recorded, Mapping):
        return opened.origins
    # The run keeps the facts of its data set beside the recipe, under another name.
    trees = [{key: value for key, value in tree.items() if key != "dataset"} for tree in (opened.tree, recipe)]
    changed = [f"{path}." for difference in compare(trees) for path in difference.tree_paths if path]
    known = {
        path: recorded[path]
        for path in opened.origins
        if path in recorded and not f"{path}.".startswith(tuple(changed))
    }
    return {**opened.origins, **{path: _printable(text) for path, text in known.items()}}


def _printable(text: object) -> str:
    """An unchecked text without control characters, which are commands to a terminal."""
    return "".join(character if character.isprintable() else "?" for character in str(text))
