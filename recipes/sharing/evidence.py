"""The evidence of a rerun, which a stranger may have written: its verdict, its instant, and its share of a run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from recipes.sharing.canonical import mapping_in

GOOD = ("the same bits", "the same run", "statistically as good")
VERDICTS = (*GOOD, "worse", "undecided")


def evidence_in(data: bytes) -> dict[str, Any]:
    """The evidence that JSON holds.

    Raises:
        ValueError: it is none of a rerun.
    """
    tree = mapping_in(data)
    require_evidence(tree)
    return tree


def require_evidence(tree: Mapping[str, Any]) -> None:
    """Refuse what is no evidence of a rerun.

    Raises:
        ValueError: it has no verdict of a rerun, no date, or no share of a run.

    >>> require_evidence({"verdict": "perfect"})
    Traceback (most recent call last):
    ValueError: it has no verdict of a rerun
    """
    if tree.get("verdict") not in VERDICTS:
        raise ValueError("it has no verdict of a rerun")
    try:
        instant_of(tree)
    except (ValueError, OverflowError):
        raise ValueError("it has no date") from None
    part = tree.get("part", 1)
    if isinstance(part, bool) or not isinstance(part, int | float) or not 0 < part <= 1:
        raise ValueError("its part is no share of a run")


def instant_of(evidence: Mapping[str, Any]) -> datetime:
    """When a rerun ended, in UTC.

    >>> instant_of({"date": "2026-11-25T01:00:00+0200"}).isoformat()
    '2026-11-24T23:00:00+00:00'
    """
    date = datetime.fromisoformat(str(evidence.get("date")))
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).astimezone(UTC)


def others_text(differs: object) -> str:
    """Whether a rerun was with other code or other data than the pack's, by the lines of what differed.

    >>> others_text(["code: 1a2b in the pack, 3c4d here", "libc: 2.35 in the pack, 2.39 here"])
    ', with other code'
    """
    lines = differs if isinstance(differs, list) else []
    found = [what for what in ("code", "data") if any(str(line).startswith(f"{what}: ") for line in lines)]
    return f", with other {' and '.join(found)}" if found else ""


def verdict_text(evidence: Mapping[str, Any]) -> str:
    """The verdict, with what limits it: the share of each run that was trained, and other code or data.

    >>> verdict_text({"verdict": "the same bits", "part": 0.05})
    'the same bits, after 5 % of it'
    """
    part = evidence.get("part", 1)
    so_far = "" if part == 1 else f", after {100 * part:.3g} % of it"
    return f"{evidence['verdict']}{so_far}{others_text(evidence.get('differs'))}"
