"""What `kilobatch plan --target` asks for."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from recipes.errors import InputRefused

_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a run is to reach.

    Args:
        seconds: within which time; None for any.
        top1: to which accuracy, in (0, 1]; None for the recipe's own epochs.
    """

    seconds: float | None = None
    top1: float | None = None


def parse_targets(texts: Sequence[str]) -> Target | None:
    """The targets of the command line; None where there are none.

    Raises:
        InputRefused: not a time such as 15min, nor an accuracy such as top1=0.759; a second time or accuracy.

    >>> parse_targets(["15min", "top1=0.759"])
    Target(seconds=900.0, top1=0.759)
    """
    made = Target()
    for text in texts:
        time = re.fullmatch(r"([0-9]+\.?[0-9]*)\s*(s|min|h|d)", text.strip())
        accuracy = re.fullmatch(r"top1\s*=\s*(0?\.[0-9]+|1(?:\.0*)?)", text.strip())
        if time and 0 < (seconds := float(time[1]) * _SECONDS[time[2]]) < math.inf:
            found = {"seconds": seconds}
        elif accuracy and float(accuracy[1]) > 0:
            found = {"top1": float(accuracy[1])}
        else:
            way_out = "write a time, 90s, 15min, 2h or 1d, or an accuracy, top1=0.759"
            raise InputRefused(f"--target {text}: neither a time nor an accuracy; {way_out}")
        if any(getattr(made, name) is not None for name in found):
            raise InputRefused(f"--target {text}: a second {'time' if time else 'accuracy'}; give one of each at most")
        made = replace(made, **found)
    return made if texts else None
