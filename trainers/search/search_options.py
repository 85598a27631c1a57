"""The options of `kilobatch search` that are not in the search's file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How a search is executed; what is searched is in its file.

    Args:
        folder: of the search.
        stop_file: when this file appears, the search stops.
        hang_seconds: a trial without an update for this long is ended.
        data: folder of the data set's files.
        allow_code, cluster, device: as for `train`.
    """

    folder: Path
    stop_file: Path
    hang_seconds: float = 600.0
    data: Path | None = None
    allow_code: bool = False
    cluster: str | None = None
    device: str | None = None
