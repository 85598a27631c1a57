"""Numbers, durations and sizes as text, and two lines of a run's metrics: exchange and peak memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MEMORY = {"resident_bytes": "resident set", "gpu_pool_bytes": "on the GPU"}


def percent(fraction: float | None, *, digits: int = 2) -> str:
    """A fraction in percent, with so many digits after the point.

    >>> percent(0.98611), percent(0.98611, digits=0), percent(None)
    ('98.61 %', '99 %', '–')
    """
    return "–" if fraction is None or math.isnan(fraction) else f"{100 * fraction:.{digits}f} %"


def duration(seconds: float) -> str:
    """Seconds in their two largest units; a dash for what is not finite.

    >>> duration(4.21), duration(59.99), duration(112.4), duration(7384), duration(200000), duration(1e300)
    ('4.2 s', '1 min 00 s', '1 min 52 s', '2 h 03 min', '2 d 08 h', '1.16e+295 d')
    """
    if not math.isfinite(seconds):
        return "–"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    if seconds >= 1e11:
        return f"{seconds / 86400:.3g} d"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"


def number(value: object, *, digits: int = 4) -> str:
    """A number to a few digits, with separated thousands and without rounding these; anything else as its text.

    >>> number(1281167), number(0.123456), number(3.0), number(54321.5), number(1e-05), number(None)
    ('1,281,167', '0.1235', '3', '54,322', '1e-05', '–')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if 10 ** (digits - 1) <= abs(value) < 1e15 else f"{value:.{digits}g}"


def size(num_bytes: object) -> str:
    """Bytes in the unit that fits.

    >>> size(102_228_128), size(512), size(None)
    ('102 MB', '512 B', 'not known')
    """
    if isinstance(num_bytes, bool) or not isinstance(num_bytes, (int, float)):
        return "not known"
    value = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"


def counted(count: object, noun: str) -> str:
    """A number of things.

    >>> counted(1, "update"), counted(14_076, "update")
    ('1 update', '14,076 updates')
    """
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def exchange_words(exchange: Mapping[str, Any]) -> str:
    """A `gradient_exchange` line of the metrics, in words.

    >>> exchange_words({"value": "Ring", "num_buckets": 2, "wire": "float16", "overlap": True, "choices": [],
    ...                 "gradient_bytes": 4000, "sent_bytes": 2000})
    'Ring, 2 buckets of 4 kB in all, float16, while backward goes on; the busiest worker sends 2 kB an update'
    """
    when = "while backward goes on" if exchange.get("overlap") else "after backward"
    buckets = f"{counted(exchange.get('num_buckets'), 'bucket')} of {size(exchange.get('gradient_bytes'))} in all"
    sent = exchange.get("sent_bytes")
    sends = "the library decides how much a worker sends"
    if isinstance(sent, (int, float)):
        sends = f"the busiest worker sends {size(sent)} an update" if sent else "nothing is sent"
    choices = exchange.get("choices")
    chosen = f" ({'; '.join(map(str, choices))})" if isinstance(choices, list) and choices else ""
    waits = f"; waiting {exchange['waiting']}" if exchange.get("waiting") else ""
    return f"{exchange.get('value')}{chosen}, {buckets}, {exchange.get('wire')}, {when}; {sends}{waits}"


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
    for key, words in MEMORY.items():
        sessions = [line[key] for line in lines if are_peaks(line.get(key))]
        if sessions:
            peaks = max(sessions, key=max)
            peak = max(peaks)
            texts.append(f"{words} {size(peak)}" + (f" (rank {peaks.index(peak)})" if len(peaks) > 1 else ""))
    return f"peak memory of a rank: {', '.join(texts)}" if texts else ""


def are_peaks(value: object) -> bool:
    """Whether a field of a line is the peak memory of each rank."""
    return isinstance(value, list) and bool(value) and all(isinstance(peak, int) for peak in value)
