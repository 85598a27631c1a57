"""The progress of a run as lines of text: for a log, and where there is no terminal."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from recipes.reports.metrics import is_score
from recipes.reports.wording import duration, memory_words, number, percent

if TYPE_CHECKING:
    from recipes.planning.timeline import Timeline

_RECENT = 16  # updates over which the displayed loss and samples per second are averaged
EVERY_SECONDS = {-2: math.inf, -1: math.inf, 0: 30.0, 1: 0.0}  # by verbosity: silent, --quiet, nothing, --verbose


class RunState:
    """The state of the run according to the lines so far.

    Args:
        total_updates: of the whole run.
        total_samples: up to where it ends or stops, for the time left.
        num_train: samples of the training set.
    """

    def __init__(self, *, total_updates: int, total_samples: int, num_train: int) -> None:
        self.total_updates = total_updates
        self.total_samples = total_samples
        self.num_train = num_train
        self.updates = self.samples = 0
        self.epoch = 0.0
        self.learning_rate = self.global_batch_size = self.accuracy = None
        self.metrics: dict[str, float] = {}  # of the last evaluation, by name
        self.loss_scale: float | None = None  # of mixed precision
        self.overflows = 0  # attempts at an update that were repeated
        self._exposed: deque[float] = deque(maxlen=_RECENT)  # seconds of exchange that computation did not hide
        self.ending = ""
        self._recent: deque[tuple[int, float, float]] = deque(maxlen=_RECENT)  # samples, seconds, loss
        self._first: tuple[float, int] | None = None  # time and samples when the first update was done
        self.now = 0.0

    @classmethod
    def of(cls, timeline: Timeline, end: int | None = None) -> Self:
        """Before the first line of a run that ends or stops before the update `end`."""
        samples = timeline.num_samples if end is None else timeline.samples_at(end)
        return cls(total_updates=timeline.num_updates, total_samples=samples, num_train=timeline.num_train)

    def take(self, line: dict[str, Any]) -> None:
        key, value = line["key"], line.get("value")
        if key == "train_loss":
            self._take_update(line)
        elif key == "eval_accuracy":
            self.accuracy, self.epoch = value, line.get("epoch", self.epoch)
        elif key == "eval_loss":
            self.epoch = line.get("epoch", self.epoch)
        elif is_score(line):
            self.metrics[key.removeprefix("eval_")] = value
        elif key == "run_stop":
            words = {"success": "finished"}.get(value, value)
            done = f"{number(line.get('update', self.updates))} of {number(self.total_updates)} updates"
            at = f"{done}, epoch {line.get('epoch', self.epoch):.2f}"
            scored = f", accuracy {percent(self.accuracy)}" if self.accuracy is not None else ""
            self.ending = f"{words}: {at}{scored}" + (f"; {reason}" if (reason := line.get("reason")) else "")
            self.ending += f"\n{memory}" if (memory := memory_words(line)) else ""

    def _take_update(self, line: dict[str, Any]) -> None:
        self.now = line["time_ms"] / 1000
        self.learning_rate, self.global_batch_size = line["learning_rate"], line["global_batch_size"]
        self.loss_scale, self.overflows = line.get("loss_scale"), self.overflows + line.get("overflows", 0)
        self.updates, self.samples = line["update"] + 1, line["samples"] + line["global_batch_size"]
        self.epoch = self.samples / self.num_train
        loss = math.nan if line["value"] is None else line["value"]
        self._recent.append((line["global_batch_size"], line["update_seconds"], loss))
        self._exposed.append(line.get("exposed_seconds", 0.0))
        if self._first is None:
            self._first = (self.now, self.samples)

    @property
    def loss(self) -> float:
        """Mean over the samples of the last few updates."""
        samples = sum(size for size, _, _ in self._recent)
        return sum(size * loss for size, _, loss in self._recent) / samples if samples else math.nan

    @property
    def samples_per_second(self) -> float:
        seconds = sum(seconds for _, seconds, _ in self._recent)
        return sum(size for size, _, _ in self._recent) / seconds if seconds > 0 else math.nan

    @property
    def exposed(self) -> float:
        """Share of the time that went into gradient exchange not hidden by computation."""
        seconds = sum(seconds for _, seconds, _ in self._recent)
        return sum(self._exposed) / seconds if seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """From the pace in samples since the first update of this session, evaluations included."""
        if self._first is None:
            return None
        start, samples = self._first
        done, left = self.samples - samples, self.total_samples - self.samples
        return (self.now - start) / done * left if done > 0 and left > 0 else None

    @property
    def figures(self) -> str:
        """The current figures in a line."""
        parts = [
            f"batch {number(self.global_batch_size)}",
            f"rate {number(self.learning_rate)}",
            f"loss {self.loss:.4f}" if self.loss < 1e6 else f"loss {self.loss:.4g}",
        ]
        parts += [f"accuracy {percent(self.accuracy)}"] if self.accuracy is not None else []
        parts += [f"{name} {number(value)}" for name, value in self.metrics.items()]
        parts += [f"loss scale {number(self.loss_scale)}"] if self.loss_scale is not None else []
        parts += [f"overflows {number(self.overflows)}"] if self.overflows else []
        parts += [f"exposed {100 * self.exposed:.0f} %"] if self.exposed >= 0.005 else []
        return "  ".join([*parts, f"{number(self.samples_per_second, digits=3)} samples/s"])


class ProgressLines:
    """A line after the first update, then every so many seconds, and one for each evaluation.

    Args:
        write: called with each line.
        state: of the run, which takes the lines of its metrics.
        every_seconds: by the times of the metrics; infinite for no lines at all.
    """

    def __init__(self, write: Callable[[str], None], state: RunState, *, every_seconds: float) -> None:
        self._write, self._state, self._every_seconds = write, state, every_seconds
        self._last = -math.inf  # time of the last line
        self._evaluated: set[str] = set()  # keys of an evaluation that have arrived and are not written yet

    def __enter__(self) -> None:
        pass

    def __exit__(self, *failure: object) -> None:
        self._write_evaluation()

    def take(self, lines: list[dict[str, Any]]) -> None:
        """Take the next lines of the metrics."""
        for line in lines:
            if not is_score(line) or line["key"] in self._evaluated:
                self._write_evaluation()
            self._state.take(line)
            if is_score(line):
                self._evaluated.add(line["key"])
            elif line["key"] == "train_loss" and line["time_ms"] / 1000 - self._last >= self._every_seconds:
                self._write_state()

    def _write_evaluation(self) -> None:
        if self._evaluated:
            self._evaluated.clear()
            self._write_state()

    def _write_state(self) -> None:
        state = self._state
        if math.isinf(self._every_seconds) or not state.updates:
            return
        self._last = state.now
        left = f"  left {duration(state.seconds_left)}" if state.seconds_left is not None else ""
        at = f"update {number(state.updates)}/{number(state.total_updates)}  epoch {state.epoch:.2f}"
        self._write(f"{at}  {state.figures}{left}")
