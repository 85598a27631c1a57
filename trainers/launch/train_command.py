"""`kilobatch train` as the command of a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path


def train_words(
    recipe: str | Path, *, overrides: Iterable[str] = (), data: Path | None = None, allow_code: bool = False
) -> list[str]:
    """The words of a quiet `kilobatch train` without a report; more options may follow them."""
    words = [sys.executable, "-P", "-m", "kilobatch", "train", str(recipe), "--no-report", "-q"]
    words += [word for change in overrides for word in ("--set", change)]
    words += ["--data", str(data)] if data else []
    return [*words, *(["--allow-code"] if allow_code else [])]
