"""`metrics.jsonl`: one JSON object a line, an update or an evaluation, with MLPerf's key names."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from chainer.training import Extension, Trainer

from recipes.planning.phase_times import PHASES, split_exchange
from recipes.reports.json_text import parse_json
from recipes.reports.metrics import OWN_KEYS
from trainers.runs.phase_clock import RankSeconds, UpdateSeconds

_OPTIONAL = ("image_size", "gradient_norm", "gain", "loss_scale", "overflows")


def plain(value: Any, what: str, *, text_keys: bool = False) -> Any:
    """A value as JSON gives it back; numbers and arrays of NumPy or CuPy become Python's, and the keys of dicts texts.

    Args:
        what: begins the message.
        text_keys: keys must be texts; else numbers may be keys too.
    Raises:
        ValueError: JSON cannot hold it; a key is neither a text nor a number, or no text.
    """

    def of_arrays(part: Any) -> Any:
        if not hasattr(part, "tolist"):
            what_it_takes = "numbers, texts, lists and dicts of these"
            raise ValueError(f"{what} holds a {type(part).__name__}; a run's files take {what_it_takes}")
        return part.tolist()

    def with_plain_keys(part: Any) -> Any:
        if isinstance(part, list | tuple):
            return [with_plain_keys(each) for each in part]
        if not isinstance(part, dict):
            return part
        keys = [key.item() if isinstance(key, np.generic) else key for key in part]
        for key in keys:
            if not isinstance(key, str) and (text_keys or not isinstance(key, int | float | None)):
                way_out = "write texts, which a checkpoint gives back as they were" if text_keys else "write texts"
                raise ValueError(f"{what} holds a dict with the key {key!r}, a {type(key).__name__}; {way_out}")
        if len({*map(str, keys)}) < len(keys):
            raise ValueError(f"{what} holds a dict in which two keys are one text; write different ones")
        return {key: with_plain_keys(each) for key, each in zip(keys, part.values(), strict=True)}

    return json.loads(json.dumps(with_plain_keys(value), default=of_arrays))


class JsonLines:
    """A file of JSON lines, written by one rank, a whole line at a time."""

    def __init__(self, path: Path, *, writes: bool) -> None:
        self._path = path
        self._file = open(path, "a", encoding="utf-8") if writes else None  # noqa: SIM115

    def write(self, line: dict[str, Any]) -> None:
        """Append one line and flush it."""
        if self._file is not None:
            text = json.dumps(line, separators=(",", ":")) + "\n"
            try:
                self._file.write(text)
                self._file.flush()
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self._path)) from error  # the system leaves out which

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class Metrics(Extension):
    """Writes a line an update; other extensions write theirs through `write`.

    The times of a session's lines are the wall clock's at its start and the seconds since: a clock that is set while
    the run trains changes no duration.

    Bytes on the wire: those of `ranks` and, after each epoch, of `memory`.

    Args:
        path: the run's `metrics.jsonl`.
        writes: whether this rank writes.
        ranks: gathers the seconds of all workers, all of which have this extension.
        memory: gathers the peak memory of all workers; they call it together after each epoch.
        observe: called with each line, on the rank that writes.
    Attributes:
        writes: see above.
        observers: `observe`, and what other extensions add.
    """

    priority = 250
    trigger = (1, "iteration")

    def __init__(
        self,
        path: Path,
        *,
        writes: bool,
        ranks: RankSeconds,
        memory: Callable[[], dict[str, list[int]]],
        observe: Callable[[dict[str, Any]], None],
    ) -> None:
        self._lines, self.writes, self.observers = JsonLines(path, writes=writes), writes, [observe]
        self._ranks, self._memory = ranks, memory
        self._updater: Any = None
        self._unwritten: list[UpdateSeconds] = []
        self._reached: dict[str, Any] = {}
        self._last = time.perf_counter()
        self._zero = time.time() - self._last  # wall time at 0 of `perf_counter`

    def initialize(self, trainer: Trainer) -> None:
        """Start the clock of the first update."""
        self._updater = trainer.updater
        self.restart_clock()

    def __call__(self, trainer: Trainer) -> None:
        updater = trainer.updater
        record = updater.record
        seconds = self._ranks.gather(record.exchanged)
        now = time.perf_counter()
        for ran_out in record.ran_out:
            note = f"update {record.update}: {ran_out}"
            self.record("micro_batch_size", ran_out.next_size, update=updater.iteration, rank=ran_out.rank, note=note)
        self.record(
            "train_loss",
            record.loss,
            update=record.update,
            epoch=record.epoch,
            samples=record.samples,
            learning_rate=record.learning_rate,
            momentum=record.momentum,
            global_batch_size=record.global_batch_size,
            update_seconds=round(now - self._last, 6),
            **_optional_figures(record),
            **(seconds.as_line() if seconds else {}),
        )
        self._last = now
        if seconds:
            self._unwritten.append(seconds)
            self._reached = {"update": updater.iteration, "epoch": updater.epoch_detail}
        if updater.is_new_epoch:
            self._write_rank_seconds(**self._memory())

    def write(self, key: str, value: Any, **more: Any) -> None:
        """Append a line of an extension, with the updates and epochs done if `more` has none.

        Args:
            key: none of kilobatch's own.
            value, more: plain data, or numbers and arrays of NumPy.
        Raises:
            ValueError: the key is one of kilobatch's own; a value is no such data, or holds a whole number of more than
                64 bits, which no reader of the file takes.
        """
        if key in OWN_KEYS or "time_ms" in more:
            word = key if key in OWN_KEYS else "time_ms"
            raise ValueError(f"{word} is a name of kilobatch's own in the metrics; write under another")
        if self._updater is not None:
            more = {"update": self._updater.iteration, "epoch": self._updater.epoch_detail} | more
        line = {"value": value, **more}
        line = {name: plain(each, f"the metric {key} has a {name}, which") for name, each in line.items()}
        try:
            parse_json(json.dumps(line))
        except ValueError as error:
            raise ValueError(f"the metric {key}: {error}; write a float or a text") from None
        self.record(key, **line)

    def record(self, key: str, value: Any, **more: Any) -> None:
        """Append a line of kilobatch's own; `value` and `more` are plain data."""
        now = self._zero + time.perf_counter()
        line = {"key": key, "value": value, "time_ms": round(now * 1000), **more}
        self._lines.write(line)
        for observe in self.observers if self.writes else ():
            observe(line)

    def restart_clock(self) -> None:
        """Exclude what happened since the last update (an evaluation, a checkpoint) from the next update's time."""
        self._last = time.perf_counter()
        self._ranks.restart()

    def finalize(self) -> None:
        """Write the last times; Chainer calls this when the loop ends. The file stays open for the run's last line."""
        self._write_rank_seconds()

    def _write_rank_seconds(self, **memory: list[int]) -> None:
        """Write a line with the mean seconds of each worker since the last such line."""
        if self._unwritten:
            means = np.mean([split_exchange(seconds.seconds) for seconds in self._unwritten], axis=0)
            rows = [[round(value, 6) for value in row] for row in means.tolist()]
            self.record("rank_seconds", len(self._unwritten), phases=PHASES, seconds=rows, **self._reached, **memory)
            self._unwritten = []

    def close(self) -> None:
        """Close the file."""
        self._lines.close()


def _optional_figures(record: Any) -> dict[str, float]:
    """The figures of an update that only some runs have."""
    figures = {name: getattr(record, name) for name in _OPTIONAL}
    if record.norms is not None:
        figures |= {"gradient_noise": record.norms.noise, "gradient_signal": record.norms.signal}
    return {name: value for name, value in figures.items() if value is not None}
