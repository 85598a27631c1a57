"""The execution plans that measurements chose, kept on disk: tuning costs seconds at the start of a run."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from pathlib import Path

FOLDER = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kilobatch" / "cudnn"


class TunedPlans:
    """Numbers of plans by a text that names the operation, for one kind of GPU and version of cuDNN.

    A line for each plan: the last one counts, and lines that cannot be read are passed over. Ranks append to one file.

    Args:
        name: of the GPU and the versions.
        folder: for the files.
    """

    def __init__(self, name: str, folder: Path = FOLDER) -> None:
        self._path = folder / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', name)}.txt"

    def find(self, operation: str) -> int | None:
        """The number of the plan chosen for an operation; None where none was."""
        return self._known.get(operation)

    def keep(self, operation: str, number: int) -> None:
        """Remember the plan chosen for an operation; without a file where none can be written."""
        self._known[operation] = number
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(f"{operation}\t{number}\n")

    @functools.cached_property
    def _known(self) -> dict[str, int]:
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return {}
        return {match[1]: int(match[2]) for match in re.finditer(r"^([^\t\n]+)\t(\d+)$", text, re.MULTILINE)}
