"""Messages between a supervisor and the ranks of a group: lines of JSON in files on a shared file system."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ORDERS, ANSWERS = "orders.jsonl", "answers.jsonl"
SIGN_SECONDS = 10.0  # how often a supervisor touches each group's orders, its heartbeat
_GONE_SECONDS = 120.0  # without a heartbeat the writer is taken for dead


def post(path: Path, message: Mapping[str, Any]) -> None:
    """Append a message to a file, which is made if there is none."""
    with open(path, "ab") as file:
        file.write(json.dumps(message).encode() + b"\n")


class Inbox:
    """Reads the messages of a file, each once, in order.

    The file is reopened for every read: over NFS that is the only way to see what another host has written.

    Args:
        path: of the file, which need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0
        self._sign: float | None = None
        self._seen = time.monotonic()

    def new(self) -> list[dict[str, Any]]:
        """The messages since the last call."""
        try:
            with open(self._path, "rb") as file:
                self._notice(os.fstat(file.fileno()).st_mtime)
                file.seek(self._read)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    @property
    def silent(self) -> bool:
        """Whether the writer is taken for dead: the file existed, and was not written or touched for two minutes."""
        return self._sign is not None and time.monotonic() - self._seen > _GONE_SECONDS

    def _notice(self, sign: float) -> None:
        if sign != self._sign:  # its age is measured by this process's clock: clocks of hosts differ
            self._sign, self._seen = sign, time.monotonic()
