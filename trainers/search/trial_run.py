"""The run of a trial: what its ranks are asked for."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path
from typing import Any

from recipes.comparable import slow_until
from recipes.compress import compressed
from recipes.open import open_recipe
from recipes.open_search import OpenedSearch, assignments
from recipes.schema import Search
from trainers.request import Prepared, TrainRequest
from trainers.vocabulary import vocabulary


def trial_request(
    opened: OpenedSearch,
    number: int,
    values: dict[str, Any],
    folder: Path,
    *,
    run: int = 0,
    share: Fraction = Fraction(1),
    resume: bool = False,
    data: Path | None = None,
    allow_code: bool = False,
    cluster: str | None = None,
    device: str | None = None,
) -> TrainRequest:
    """What the ranks of a trial are asked for.

    Args:
        opened: the search.
        number: of the trial.
        values: of its recipe, by their paths.
        folder: of the run.
        run: which of the trial's runs, from 0: its seed is so much higher than the recipe's.
        share: of the epochs; a shorter run has its whole schedule compressed, and is evaluated at its end.
        resume: go on with the run in the folder.
        data, allow_code, cluster, device: as of `train`.
    Raises:
        InputRefused: a shorter run would be too short, or its recipe does not open.
    """
    search, report = opened.search, f"{1 / opened.search.reports!r}run"
    seed = values.get("seed", opened.base.recipe.seed)
    given = {
        **search.fixed,
        **values,
        **({"seed": seed + run} if run else {}),
        "name": f"{search.name}-trial-{number}",
        "title": f"Trial {number} of the search {search.name} over {search.recipe}",
        "evaluation.every": report if share == 1 else "1run",
        "claims": [],
        "card": None,
    }
    if share < 1:
        options = {"allow_code": allow_code, "data_root": data}
        words = vocabulary(allow_code=allow_code)
        whole = open_recipe(opened.base.path, vocabulary=words, overrides=assignments(given), **options)
        given |= compressed(whole, share)
    return TrainRequest(
        recipe=os.fspath(opened.base.path),
        overrides=tuple(assignments(given)),
        overrides_from=f"search {search.name} trial {number}",
        out=folder,
        resume=resume,
        checkpoint_every=report,
        data=data,
        allow_code=allow_code,
        cluster=cluster,
        device=device,
    )


def run_folders(search: Search, folder: Path) -> list[Path]:
    """Of all runs of a trial: its own folder, or one in it for each seed where there are several."""
    several = search.seeds_per_trial > 1
    return [folder / f"run-{run}" for run in range(search.seeds_per_trial)] if several else [folder]


def warmup_end(prepared: Prepared) -> float:
    """The epoch until which a trial is slow on purpose, before which it is not compared."""
    return slow_until(prepared.opened.recipe)
