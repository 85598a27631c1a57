"""What a supervisor and the ranks of a group tell each other: lines of JSON in files that both see."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ORDERS, ANSWERS = "orders.jsonl", "answers.jsonl"
SIGN_SECONDS = 10.0  # a supervisor touches the orders of each group so often
_GONE_SECONDS = 120.0  # without that


def post(path: Path, message: Mapping[str, Any]) -> None:
    """Add a message to a file, which is made if there is none."""
    with open(path, "ab") as file:
        file.write(json.dumps(message).encode() + b"\n")


class Inbox:
    """The messages of a file, each once, in order.

    The file is opened anew for every look: over NFS nothing else shows what another host has written.

    Args:
        path: of the file, which need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0
        self._sign: float | None = None
        self._seen = time.monotonic()

    def new(self) -> list[dict[str, Any]]:
        """What has come since the last call."""
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
        """Whether the file was there once, and whoever writes it has neither written nor touched it for two minutes."""
        return self._sign is not None and time.monotonic() - self._seen > _GONE_SECONDS

    def _notice(self, sign: float) -> None:
        if sign != self._sign:  # by this process's clock: hosts need not agree on the time
            self._sign, self._seen = sign, time.monotonic()
