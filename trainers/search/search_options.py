"""How a search is done, as opposed to what is searched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How a search is done, as opposed to what is searched.

    Args:
        folder: of the search.
        stop_file: asks it to stop, once it is there.
        hang_seconds: a trial that reports no update for so long is ended.
        data: folder of the data set's files.
        allow_code, cluster, device: as of `train`.
    """

    folder: Path
    stop_file: Path
    hang_seconds: float = 600.0
    data: Path | None = None
    allow_code: bool = False
    cluster: str | None = None
    device: str | None = None
