"""The run of a trial: the request that its ranks are given."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path
from typing import Any

from recipes.reading.open import open_recipe
from recipes.schema import Search
from recipes.search_space.comparable import slow_until
from recipes.search_space.open_search import OpenedSearch, assignments
from recipes.search_space.shorter_runs import compressed
from trainers.launch.request import Prepared, TrainRequest
from trainers.launch.vocabulary import vocabulary


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
    """The training request of one of a trial's runs.

    Args:
        opened: the search.
        number: of the trial.
        values: path -> the trial's value.
        folder: of the run.
        run: index of the run within its trial; it is added to the recipe's seed.
        share: of the epochs; a shorter run has its whole schedule compressed, and is evaluated only at its end.
        resume: go on with the run in the folder.
        data, allow_code, cluster, device: as for `train`.
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
    """The folders of a trial's runs: the trial's own, or with several seeds one for each in it."""
    several = search.seeds_per_trial > 1
    return [folder / f"run-{run}" for run in range(search.seeds_per_trial)] if several else [folder]


def warmup_end(prepared: Prepared) -> float:
    """The epoch at which a trial's slow start ends; it is not compared with others before."""
    return slow_until(prepared.opened.recipe)
