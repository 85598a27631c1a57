"""The run of a trial: what its ranks are asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from recipes.open_search import OpenedSearch, assignments
from recipes.schema import Search
from trainers.request import Prepared, TrainRequest


def trial_request(
    opened: OpenedSearch,
    number: int,
    values: dict[str, Any],
    folder: Path,
    *,
    run: int = 0,
    resume: bool = False,
    data: Path | None = None,
    allow_code: bool = False,
) -> TrainRequest:
    """What the ranks of a trial are asked for.

    Args:
        opened: the search.
        number: of the trial.
        values: of its recipe, by their paths.
        folder: of the run.
        run: which of the trial's runs, from 0: its seed is so much higher than the recipe's.
        resume: go on with the run in the folder.
        data, allow_code: as of `train`.
    """
    search, share = opened.search, f"{1 / opened.search.reports!r}run"
    seed = values.get("seed", opened.base.recipe.seed)
    given = {
        **search.fixed,
        **values,
        **({"seed": seed + run} if run else {}),
        "name": f"{search.name}-trial-{number}",
        "title": f"Trial {number} of the search {search.name} over {search.recipe}",
        "evaluation.every": share,
        "claims": [],
        "card": None,
    }
    return TrainRequest(
        recipe=os.fspath(opened.base.path),
        overrides=tuple(assignments(given)),
        overrides_from=f"search {search.name} trial {number}",
        out=folder,
        resume=resume,
        checkpoint_every=share,
        data=data,
        allow_code=allow_code,
    )


def run_folders(search: Search, folder: Path) -> list[Path]:
    """Of all runs of a trial: its own folder, or one in it for each seed where there are several."""
    several = search.seeds_per_trial > 1
    return [folder / f"run-{run}" for run in range(search.seeds_per_trial)] if several else [folder]


def warmup_end(prepared: Prepared) -> float:
    """The epoch until which a trial's rate still rises, before which it is not compared."""
    warmup = prepared.opened.recipe.learning_rate.warmup
    return 0.0 if warmup is None else warmup.shape.epochs
