"""The folder of this machine for what can be got again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where kilobatch keeps what it can get again: `kilobatch` in XDG_CACHE_HOME, else in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kilobatch"
