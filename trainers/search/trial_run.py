"""The run of a trial: what its ranks are asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from recipes.open_search import OpenedSearch, assignments
from trainers.request import Prepared, TrainRequest


def trial_request(
    opened: OpenedSearch,
    number: int,
    values: dict[str, Any],
    folder: Path,
    *,
    resume: bool = False,
    data: Path | None = None,
    allow_code: bool = False,
) -> TrainRequest:
    """What the ranks of a trial are asked for."""
    search, share = opened.search, f"{1 / opened.search.reports!r}run"
    given = {
        **search.fixed,
        **values,
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


def warmup_end(prepared: Prepared) -> float:
    """The epoch until which a trial's rate still rises, before which it is not compared."""
    warmup = prepared.opened.recipe.learning_rate.warmup
    return 0.0 if warmup is None else warmup.shape.epochs
