"""Peak memory of a run's ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipes.reports.wording import size

_KINDS = {"resident_bytes": "resident set", "gpu_pool_bytes": "on the GPU"}


def memory_words(*lines: Mapping[str, Any]) -> str:
    """A sentence on the peaks in the last lines of a run's sessions; empty if they have none.

    >>> memory_words({"resident_bytes": [210_000_000, 250_000_000]})
    'peak memory of a rank: resident set 250 MB (rank 1)'
    >>> memory_words({"resident_bytes": [210_000_000, 250_000_000]}, {"resident_bytes": [90_000_000]})
    'peak memory of a rank: resident set 250 MB (rank 1)'
    >>> memory_words({"resident_bytes": [1_500_000_000], "gpu_pool_bytes": [30_000_000_000]})
    'peak memory of a rank: resident set 1.5 GB, on the GPU 30 GB'
    """
    texts = []
    for key, words in _KINDS.items():
        sessions = [line[key] for line in lines if _are_peaks(line.get(key))]
        if sessions:
            peaks = max(sessions, key=max)
            peak = max(peaks)
            texts.append(f"{words} {size(peak)}" + (f" (rank {peaks.index(peak)})" if len(peaks) > 1 else ""))
    return f"peak memory of a rank: {', '.join(texts)}" if texts else ""


def _are_peaks(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(peak, int) for peak in value)
