"""Whether a pack opens, and whether its head says what its files do."""

from __future__ import annotations

import math
from typing import Any

from recipes.errors import InputRefused, RecipeError
from recipes.packs.make import facts_of
from recipes.reading.open import OpenedRecipe, open_recipe
from recipes.reading.registry import PACKED, shown
from recipes.reports.record import Run, open_run
from recipes.schema.vocabulary import Vocabulary
from recipes.sharing.pack_file import Pack, runs_of
from recipes.sharing.registries import FACTS


class HeadRefused(InputRefused):
    """The head of a pack says what its files do not."""


def open_packed(pack: Pack, vocabulary: Vocabulary) -> tuple[OpenedRecipe, list[Run]]:
    """The recipe of a pack and its runs, by seed; no code of it is run.

    Raises:
        HeadRefused: the head names runs or facts that its files do not have.
        InputRefused: the recipe or a run does not open, or the recipe needs code of its own for that.
    """
    runs = _runs_in(pack)
    opened = open_recipe(pack.folder / PACKED, vocabulary=vocabulary, allow_code=None, of_run=None)
    said, has = pack.head.get("facts"), facts_of(opened, runs)
    for key in FACTS:
        if isinstance(said, dict) and key in said and not _equal(said[key], has[key]):
            what = f"pack {pack.digest[:12]} says {key} {said[key]!r}, and its recipe and runs have {has[key]!r}"
            raise HeadRefused(f"{what}; do not use it, and ask for another one")
    return opened, runs


def _runs_in(pack: Pack) -> list[Run]:
    """The runs of a pack, by seed.

    Raises:
        HeadRefused: the head names one that is not there.
        InputRefused: one does not open, or has no accuracy.
    """
    folders = sorted((pack.folder / "runs").glob("*"), key=lambda path: int(path.name))
    for run in runs_of(pack.head):
        if str(run.get("seed")) not in [folder.name for folder in folders]:
            what = f"pack {pack.digest[:12]} names a run of seed {run.get('seed')!r}, and does not have it"
            raise HeadRefused(f"{what}; do not use it, and ask for another one")
    found = [open_run(folder) for folder in folders]
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
