"""Where the figures of a run go beside its own files; see `loggers.py` for the extensions that recipes name."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import posixpath
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from chainer.training import Extension, Trainer

from recipes.reports.metrics import extension_figure, is_score, read_metrics
from trainers.runs.run_folder import METRICS, MLFLOW_NOTE, write_whole

log = logging.getLogger("kilobatch")
_UPDATE = ("learning_rate", "momentum", "global_batch_size", "gradient_norm", "image_size", "loss_scale")
_MISSING = "missing_from"  # in the note of MLflow: the first update whose figures it lacks
_LOST = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "INVALID_STATE")  # MLflow's codes; deleted: the others
COLUMNS = ("update", "epoch", "samples", "loss", *_UPDATE, "samples_per_second", "eval_accuracy", "eval_loss")


def figures(line: dict[str, Any]) -> dict[str, float]:
    """The figures in a line of the metrics, by their names; none in a line of another kind."""
    if is_score(line) or (extension_figure(line) and line["key"] not in COLUMNS):
        return {line["key"]: line["value"]}
    if line["key"] != "train_loss":
        return {}
    found = {"loss": line["value"], **{name: line[name] for name in _UPDATE if line.get(name) is not None}}
    seconds = line["update_seconds"]
    return found | ({"samples_per_second": line["global_batch_size"] / seconds} if seconds > 0 else {})


def _is_left_out(line: dict[str, Any]) -> bool:
    """Whether it is a number of an extension, under a key that would take the place of a figure."""
    return line["key"] in COLUMNS and extension_figure(line)


class Logger(Extension):
    """Gives the lines of the metrics to a sink, on the rank that writes them.

    Args:
        name: of the sink, for people.
        open_: the trainer -> the sink.
    """

    def __init__(self, name: str, open_: Callable[[Trainer], Any]) -> None:
        self._sink_name, self._open, self._sink = name, open_, None
        self._left_out: set[str] = set()  # keys that were warned of

    def initialize(self, trainer: Trainer) -> None:
        """Begin; Chainer calls this before the first update."""
        metrics = trainer.get_extension("Metrics")
        if metrics.writes:
            self._sink = self._open(trainer)
            metrics.observers.append(self._take)
        metrics.restart_clock()  # opening a data base is no part of the first update

    def __call__(self, trainer: Trainer) -> None:
        """Send what has gathered, after an epoch."""
        if self._sink is not None and trainer.updater.is_new_epoch:
            self._sink.flush()

    def finalize(self) -> None:
        """Send the rest; Chainer calls this when the loop ends."""
        if self._sink is not None:
            self._sink.close()

    def _take(self, line: dict[str, Any]) -> None:
        if found := figures(line):
            self._sink.add(line, found)
        elif _is_left_out(line) and line["key"] not in self._left_out:
            self._left_out.add(line["key"])
            what = f"the numbers that an extension writes as {line['key']}, a name of kilobatch's own there"
            log.warning("warning: %s lacks %s; metrics.jsonl has them", self._sink_name, what)
        elif line["key"] == "checkpoint":  # a resumed run does not make these updates again
            self._sink.flush()


class EventFiles:
    """TensorBoard's event files, by tensorboardX; steps from `update` on replace those of an earlier session.

    The line of an update has the update that it began, that of an evaluation or an extension the one that it reached:
    those of the checkpoint have the step of the first update to be replaced. They are taken again from the run's
    `metrics`.
    """

    def __init__(self, folder: Path, update: int, metrics: Path) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=update)
        for _, line in read_metrics(metrics):
            if line["key"] != "train_loss" and line.get("update") == update:
                self.add(line, figures(line))

    def add(self, line: dict[str, Any], found: dict[str, float]) -> None:
        """Take the figures found in a line."""
        for name, value in found.items():
            self._writer.add_scalar(name, value, line["update"], walltime=line["time_ms"] / 1000)

    def flush(self) -> None:
        """Write or send what was taken."""
        self._writer.flush()

    def close(self) -> None:
        """Write or send the rest, and end."""
        self._writer.close()


class MLflowRun:
    """A run in MLflow, whose number `mlflow.json` of the run's folder keeps for a resumed run.

    If that run or its number is lost, a new one begins, with a warning. If the server fails, the figures wait; those of
    an earlier session that it never took, which `mlflow.json` says too, are taken from the run's metrics.

    Args:
        update: at which this session begins.
        connect: makes MLflow's client.
    """

    def __init__(self, folder: Path, experiment: str, update: int, connect: Callable[[], Any]) -> None:
        self._client, self._folder, self._experiment, self._begins_at = None, folder, experiment, update
        self._connect = connect
        self._run: str | None = None
        self._waiting: list[Any] = []
        self._note = self._read_note()
        self._lacks_from = self._note.get(_MISSING)  # of earlier sessions, until it is sent
        self.flush()

    def _read_note(self) -> dict[str, Any]:
        file = self._folder / MLFLOW_NOTE
        try:
            return dict(json.loads(file.read_text()))
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError) as error:
            log.warning("warning: MLflow: %s is damaged: %s; a new run of MLflow begins", file, error)
            return {}

    def _write_note(self, **more: Any) -> None:
        self._note |= more
        write_whole(self._folder / MLFLOW_NOTE, json.dumps(self._note) + "\n")

    def _begin(self) -> None:
        self._client = self._connect()
        from mlflow.exceptions import MlflowException

        if (run := self._note.get("run_id")) is not None:
            try:
                self._client.update_run(run, status="RUNNING")
                self._run = run
                return
            except MlflowException as error:
                if error.error_code not in _LOST:  # the server fails, and may have the run
                    raise
                log.warning("warning: MLflow: %s; a new run of MLflow begins", error)
        known = self._client.get_experiment_by_name(self._experiment)
        number = known.experiment_id if known else self._client.create_experiment(self._experiment)
        self._run = self._client.create_run(number, run_name=self._folder.name).info.run_id
        self._write_note(run_id=self._run, tracking_uri=self._client.tracking_uri)
        for path, text in _leaves(self._folder):
            self._client.log_param(self._run, path, text)

    def add(self, line: dict[str, Any], found: dict[str, float]) -> None:
        """Take the figures found in a line."""
        self._waiting += _mlflow_metrics(line, found)

    def flush(self) -> None:
        """Write or send what was taken."""
        with self._failure_logged():
            self._send()

    def close(self) -> None:
        """Write or send the rest, and end; as failed, if an exception ends the run."""
        with self._failure_logged():
            self._send()
            self._client.set_terminated(self._run, "FAILED" if sys.exc_info()[0] else None)
        if self._waiting:
            log.warning("warning: MLflow: %d figures are not in it; metrics.jsonl has them", len(self._waiting))

    def _send(self) -> None:
        if self._run is None:
            self._begin()
        if self._lacks_from is not None:
            self._waiting[:0], self._lacks_from = self._missing(self._lacks_from), None
        while self._waiting:
            self._client.log_batch(self._run, metrics=self._waiting[:1000])  # its limit
            del self._waiting[:1000]
        if self._note.pop(_MISSING, None) is not None:
            self._write_note()

    def _missing(self, first: int) -> list[Any]:
        """The figures of earlier sessions from an update on."""
        found = []
        for _, line in read_metrics(self._folder / METRICS):
            # The line of an update has the update that it began; others have the one that they reached.
            is_of_reached = line["key"] != "train_loss"
            if (each := figures(line)) and first <= line["update"] < self._begins_at + is_of_reached:
                found += _mlflow_metrics(line, each)
        return found

    @contextmanager
    def _failure_logged(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of MLflow, its data base or the system
            log.warning("warning: MLflow: %s; %d figures wait", error, len(self._waiting))
            if self._waiting and self._waiting[0].step < self._note.get(_MISSING, math.inf):
                with suppress(OSError):  # the disk is full, which the run says itself
                    self._write_note(**{_MISSING: self._waiting[0].step})


def _mlflow_metrics(line: dict[str, Any], found: dict[str, float]) -> list[Any]:
    from mlflow.entities import Metric

    return [
        Metric(key=_mlflow_name(name), value=float(value), timestamp=line["time_ms"], step=line["update"])
        for name, value in found.items()
    ]


def _mlflow_name(key: str) -> str:
    """A key of an extension as MLflow takes it: it refuses other letters, and what is no plain path."""
    name = re.sub(r"[^/\w.\- ]", "_", key)[:250]
    is_path = posixpath.normpath(name) == name and not name.startswith(("/", "."))
    return name if is_path else re.sub("[/.]", "_", name) or "_"


class Table:
    """A CSV file, written row by row; of an earlier session it keeps what was done before `update`.

    The first number of each key of an extension adds a column at the end, which later sessions keep.

    Args:
        metrics: names of the recipe's metrics, each of which has a column.
    """

    def __init__(self, path: Path, update: int, *, metrics: Sequence[str] = ()) -> None:
        self._path, self._columns = path, [*COLUMNS, *(f"eval_{name}" for name in metrics)]
        names, rows = self._read() if update and path.is_file() else ([], [])
        if names[: len(self._columns)] == self._columns:
            self._columns = names
        else:
            rows = []
        # The line of an update has the update that it began; others have the one that they reached.
        self._begin(row for row in rows if int(row["update"]) < update + (not row["loss"]))

    def _read(self) -> tuple[list[str], list[dict[str, str]]]:
        """The columns of the file, and its whole rows."""
        with open(self._path, encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            names = list(reader.fieldnames or ())
            return names, [row for row in reader if _is_whole(row, names)]

    def _begin(self, rows: Iterable[dict[str, str]]) -> None:
        """Write the file anew with these rows, and go on behind them."""
        before = io.StringIO(newline="")
        writer = csv.DictWriter(before, self._columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_whole(self._path, before.getvalue())
        self._file = open(self._path, "a", encoding="utf-8", newline="", buffering=1)  # noqa: SIM115
        self._rows = csv.DictWriter(self._file, self._columns, restval="", lineterminator="\n")

    def add(self, line: dict[str, Any], found: dict[str, float]) -> None:
        """Take the figures found in a line."""
        if new := [name for name in found if name not in self._columns]:
            self._file.close()
            _, rows = self._read()
            self._columns += new
            self._begin(rows)
        self._rows.writerow({name: line.get(name) for name in ("update", "epoch", "samples")} | found)

    def flush(self) -> None:
        """Write or send what was taken."""
        self._file.flush()

    def close(self) -> None:
        """Write or send the rest, and end."""
        self._file.close()


def _is_whole(row: dict[str, str | None], columns: Sequence[str]) -> bool:
    """Whether a row was not cut off or damaged: it has its number, all its columns, and a figure."""
    figures = [row[name] for name in columns if name not in ("update", "epoch", "samples")]
    return row.keys() == {*columns} and None not in row.values() and row["update"].isdecimal() and any(figures)


def _leaves(folder: Path) -> list[tuple[str, str]]:
    """Dotted paths and values of the run's recipe, as MLflow takes them."""
    from recipes.reports.record import read_head
    from recipes.reports.sections import leaves

    recipe = read_head(folder / "run.yaml")["recipe"]
    return [(path, text[:500]) for path, text in leaves(recipe) if not path.startswith(("claims", "card"))]
