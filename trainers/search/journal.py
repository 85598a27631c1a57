"""A study in a journal, a file that only grows: what Optuna's needs besides, so that nothing of it is lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optuna.exceptions import StorageInternalError
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock


class Journal(JournalFileBackend):
    """A journal, whose last line is dropped if a crash has cut it off.

    A symbolic link is its lock: every shared file system makes one atomically, and it is handed on fairly. It is broken
    when its holder has kept it for 30 seconds; with a relative path it never would be.

    Args:
        path: absolute; the file is made if there is none. One that goes away later is not begun anew.
    Raises:
        OSError: it cannot be read and written.
        StorageInternalError: the same, later; or a line of it is none of a journal.
    """

    def __init__(self, path: Path) -> None:
        assert path.is_absolute()
        lock = JournalFileSymlinkLock(os.fspath(path))
        super().__init__(os.fspath(path), lock_obj=lock)
        with open(path, "rb+") as file:
            file.seek(max(0, path.stat().st_size - 1))
            if file.read() not in (b"", b"\n"):
                _mend(path, lock)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """As of Optuna's."""
        try:
            yield from super().read_logs(log_number_from)
        except (OSError, ValueError) as error:
            raise StorageInternalError(f"{self._file_path} cannot be read: {error}") from error

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """As of Optuna's."""
        try:
            os.stat(self._file_path)
            super().append_logs(logs)
        except (OSError, RuntimeError) as error:  # RuntimeError: the lock went away with the folder, while it was held
            raise StorageInternalError(f"{self._file_path} cannot be written: {error}") from error


def _mend(path: Path, lock: JournalFileSymlinkLock) -> None:
    lock.acquire()
    try:
        written = path.read_bytes()
        os.truncate(path, written.rfind(b"\n") + 1)
    finally:
        lock.release()
