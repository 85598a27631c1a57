"""`metrics.jsonl`: one JSON object a line, an update or an evaluation, with MLPerf's key names."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from chainer.training import Extension, Trainer


class JsonLines:
    """A file of JSON lines that one rank writes, a whole line at a time, and the others do not.

    Args:
        path: the file, appended to.
        writes: whether this rank writes.
    """

    def __init__(self, path: Path, *, writes: bool) -> None:
        self._file = open(path, "a", encoding="utf-8") if writes else None  # noqa: SIM115

    def write(self, line: dict[str, Any]) -> None:
        """Append one line and hand it to the system."""
        if self._file is not None:
            self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
            self._file.flush()

    def close(self) -> None:
        """No more lines."""
        if self._file is not None:
            self._file.close()


class Metrics(Extension):
    """Writes a line an update; other extensions write theirs through `write`.

    Args:
        path: the run's `metrics.jsonl`.
        writes: whether this rank writes.
    """

    priority = 250
    trigger = (1, "iteration")

    def __init__(self, path: Path, *, writes: bool) -> None:
        self._lines = JsonLines(path, writes=writes)
        self._last = time.perf_counter()

    def initialize(self, trainer: Trainer) -> None:
        """The clock of the first update starts here."""
        self._last = time.perf_counter()

    def __call__(self, trainer: Trainer) -> None:
        record = trainer.updater.record
        now = time.perf_counter()
        self.write(
            "train_loss",
            record.loss,
            update=record.update,
            epoch=record.epoch,
            samples=record.samples,
            learning_rate=record.learning_rate,
            momentum=record.momentum,
            global_batch_size=record.global_batch_size,
            update_seconds=round(now - self._last, 6),
            **_measured(record),
        )
        self._last = now

    def write(self, key: str, value: Any, **more: Any) -> None:
        """Append a line; `value` and `more` are plain data."""
        self._lines.write({"key": key, "value": value, "time_ms": round(time.time() * 1000), **more})

    def restart_clock(self) -> None:
        """Leave what happened since the last update (an evaluation, a checkpoint) out of the next one's time."""
        self._last = time.perf_counter()

    def finalize(self) -> None:
        """Chainer calls this when the loop ends; the file stays open for the run's last line."""

    def close(self) -> None:
        """No more lines."""
        self._lines.close()


def _measured(record: Any) -> dict[str, float]:
    """What only some runs have of an update."""
    found = {name: getattr(record, name) for name in ("image_size", "gradient_norm", "gain", "loss_scale", "overflows")}
    if record.norms is not None:
        found |= {"gradient_noise": record.norms.noise, "gradient_signal": record.norms.signal}
    return {name: value for name, value in found.items() if value is not None}
