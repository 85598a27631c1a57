"""Whether a pack opens, and whether its head says what its files do."""

from __future__ import annotations

import json
import math
from typing import Any

from recipes.errors import InputRefused, RecipeError
from recipes.packs.make import claims_from, facts_of
from recipes.reading.open import OpenedRecipe, open_recipe
from recipes.reading.registry import PACKED, shown
from recipes.reports.record import Run, open_run
from recipes.schema.vocabulary import Vocabulary
from recipes.sharing.pack_file import Pack, claims_of, runs_of
from recipes.sharing.registries import FACTS


class HeadRefused(InputRefused):
    """The head of a pack says what its files do not."""


def open_packed(pack: Pack, vocabulary: Vocabulary) -> tuple[OpenedRecipe, list[Run]]:
    """The recipe of a pack and its runs, by seed; no code of it is run.

    Raises:
        HeadRefused: the head names runs, facts or claims that its files do not have.
        InputRefused: the recipe or a run does not open, or the recipe needs code of its own for that.
    """
    runs = _runs_in(pack)
    opened = open_recipe(pack.folder / PACKED, vocabulary=vocabulary, allow_code=None, of_run=None)
    said, has = pack.head.get("facts", {}), facts_of(opened, runs)
    if not isinstance(said, dict):
        raise _refused(pack, "facts", said, has)
    for key in FACTS:
        if key in said and not _equal(said[key], has[key]):
            raise _refused(pack, key, said[key], has[key])
    accuracies = {run.folder.name: run.final_accuracy for run in runs}
    for run in runs_of(pack.head):
        seed = str(run["seed"])
        if "accuracy" in run and not _equal(run["accuracy"], accuracies[seed]):
            raise _refused(pack, f"the accuracy of seed {seed}", run["accuracy"], accuracies[seed])
    made = {"deviation": None, **claims_from(opened, runs)[0]} if runs else {}
    for claim in claims_of(pack.head) if runs else ():
        for key in ("kind", "value", "runs", "deviation"):
            if not _equal(getattr(claim, key), made[key]):
                raise _refused(pack, f"the {key} of a claim", getattr(claim, key), made[key])
    return opened, runs


def _refused(pack: Pack, what: str, said: Any, has: Any) -> HeadRefused:
    said, has = (json.dumps(value)[:80] for value in (said, has))
    says = f"pack {pack.digest[:12]} says {what}: {said}, and its recipe and runs have {has}"
    return HeadRefused(f"{says}; do not use it, and ask for another one")


def _runs_in(pack: Pack) -> list[Run]:
    """The runs of a pack, by seed.

    Raises:
        HeadRefused: the head names others.
        InputRefused: one does not open, or has no accuracy.
    """
    folders = sorted((pack.folder / "runs").glob("*"), key=lambda path: int(path.name))
    seeds, there = [str(run.get("seed")) for run in runs_of(pack.head)], [folder.name for folder in folders]
    if sorted(seeds) != sorted(there):
        raise _refused(pack, "runs of seeds", seeds, there)
    try:
        found = [open_run(folder) for folder in folders]
    except InputRefused as error:
        raise InputRefused(str(error).replace(str(pack.folder), shown(pack.folder))) from None
    for run in found:
        if run.final_accuracy is None:
            raise InputRefused(
                f"{shown(run.folder)} has no accuracy of an evaluation; ask for another copy of the pack"
            )
    return found


def needs_own_code(error: InputRefused) -> bool:
    """Whether a recipe was refused for no other reason than that its own code may not be run."""
    return isinstance(error, RecipeError) and all(
        problem.way_out.startswith("pass --allow-code") for problem in error.problems
    )


def _equal(said: Any, has: Any) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (said, has))
    return math.isclose(said, has, rel_tol=1e-9) if numbers else said == has
