"""A study in a journal, an append-only file: Optuna's backend, hardened against crashes and lost file systems."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optuna.exceptions import StorageInternalError
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock


class Journal(JournalFileBackend):
    """A journal file, whose last line is dropped if a crash has cut it off.

    Its lock is a symbolic link, which every shared file system creates atomically. A lock that was held for 30 seconds
    is broken; with a relative path it never would be.

    Args:
        path: absolute; the file is made if there is none. If it disappears later it is not made again.
    Raises:
        OSError: the file cannot be read and written.
        StorageInternalError: the same, later; or a line is not one of a journal.
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
        """See Optuna's backend."""
        try:
            yield from super().read_logs(log_number_from)
        except (OSError, ValueError) as error:
            raise StorageInternalError(f"{self._file_path} cannot be read: {error}") from error

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """See Optuna's backend."""
        try:
            os.stat(self._file_path)
            super().append_logs(logs)
        except (OSError, RuntimeError) as error:  # RuntimeError: the folder, and the lock in it, was removed meanwhile
            raise StorageInternalError(f"{self._file_path} cannot be written: {error}") from error


def _mend(path: Path, lock: JournalFileSymlinkLock) -> None:
    lock.acquire()
    try:
        written = path.read_bytes()
        os.truncate(path, written.rfind(b"\n") + 1)
    finally:
        lock.release()
