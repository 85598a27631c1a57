"""A run's folder as an object of Python, and the runs in a folder."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.errors import InputRefused, refuse_unreachable
from recipes.reports.metrics import Lines, number_of, read_metrics, session_end
from recipes.reports.wording import percent
from recipes.schema.dataset import url_of
from trainers.runs.errors import print_warnings
from trainers.runs.run_folder import METRICS, RECIPE, is_locked, require_run

if TYPE_CHECKING:
    import chainer
    import numpy as np

_OF_EACH_RUN = ("train_loss", "eval_accuracy", "eval_loss")  # keys, sooner or later


@dataclass(frozen=True)
class Run:
    """A run, as its folder has it.

    Args:
        folder: of the run.
        allow_code: the default of its methods; a run of `train` has that of its training.
    Raises:
        InputRefused: the folder is not that of a run.
    """

    folder: Path
    allow_code: bool = field(default=False, kw_only=True, compare=False)

    @refuse_unreachable()
    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", absolute(self.folder))
        require_run(self.folder)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`: a table with `key`, `value`, `update`, `epoch` and more.

        Raises:
            RunError: the file is missing or damaged.
        """
        return [line for _, line in read_metrics(self.folder / METRICS)]

    def curve(self, key: str) -> list[tuple[float, float]]:
        """Epoch and value of one key, such as `train_loss` or `eval_accuracy`; nan where the value is not finite.

        Raises:
            InputRefused: the run has no such key, and it is none that each run gets; or its values are no numbers.
        """
        pairs = self._curve(key, self.metrics)
        for _, value in pairs:
            if not isinstance(value, int | float):
                raise InputRefused(f"{key} has the value {value!r:.40}, which is no number; `metrics` has it as it is")
        return pairs

    def _curve(self, key: str, metrics: list[dict[str, Any]]) -> list[tuple[float, float]]:
        lines = [line for line in metrics if "epoch" in line]
        keys = dict.fromkeys((*_OF_EACH_RUN, *(line["key"] for line in lines)))
        if key not in keys:
            raise InputRefused(f"{_as_typed(self.folder / METRICS)} has no key {key}; it has {', '.join(keys)}")
        pairs = ((line["epoch"], line["value"]) for line in lines if line["key"] == key)
        return [(epoch, math.nan if value is None else value) for epoch, value in pairs]

    @property
    def accuracy(self) -> float | None:
        """The last evaluated accuracy, 0 to 1; None before the first evaluation."""
        return self._last_accuracy(self.metrics)

    def _last_accuracy(self, metrics: list[dict[str, Any]]) -> float | None:
        return next((value for _, value in reversed(self._curve("eval_accuracy", metrics))), None)

    @property
    def ended(self) -> str:
        """How the run ended: `success`, `stopped` (also by `stop_after`) or `failed`; else `training` or `killed`.

        Killed are also runs that a machine's crash ended, and those on another host if the file system shares no
        locks; without any locks it is `no`, which may be either.
        """
        return self._ended(read_metrics(self.folder / METRICS, all_updates=False))

    def _ended(self, numbered: Lines) -> str:
        if (trains := is_locked(self.folder)) is True:
            return "training"
        return session_end(numbered).get("value", "no" if trains is None else "killed")

    @property
    def facts(self) -> dict[str, Any]:
        """Run, recipe, how it ended or that it trains, update and epoch reached, accuracy, workers and bytes."""
        path = self.folder / METRICS
        numbered = read_metrics(path, all_updates=False)
        for number, line in numbered:
            if "epoch" in line:
                number_of(path, number, line, "epoch")
            if line["key"] == "train_loss":
                number_of(path, number, line, "update")
            if line["key"] in _OF_EACH_RUN:
                number_of(path, number, line, "value")
        lines = [line for _, line in numbered]
        ends = [line for line in lines if line["key"] in ("run_start", "run_stop")]
        reached = max((line for line in lines if "epoch" in line), key=lambda line: line["epoch"], default={})
        if reached.get("key") == "train_loss":
            reached = reached | {"update": reached["update"] + 1}  # its line has the update that it began
        return {
            "run": _as_typed(self.folder),
            "recipe": next((line["value"] for line in ends if line["key"] == "run_start"), ""),
            "ended": self._ended(numbered),
            "update": reached.get("update"),
            "epoch": reached.get("epoch"),
            "accuracy": self._last_accuracy(lines),
            "workers": next((line.get("workers") for line in reversed(ends) if "workers" in line), None),
            "bytes": _bytes_in(self.folder),
        }

    def evaluate(
        self,
        *,
        checkpoint: str = "newest",
        split: str = "run",
        data: str | Path | None = None,
        predictions: str | Path | None = None,
        metrics: Sequence[str] = (),
        allow_code: bool = False,
        device: str | None = None,
    ) -> dict[str, Any]:
        """Score a checkpoint, as `kilobatch evaluate --json`.

        Args:
            checkpoint: `newest`, `best`, or a name such as update-000060.
            split: `run`, `test`, or `all` images of the folder `data`.
            data: folder of the data set's files, if they have moved since the run, or of others with the same classes.
            predictions: a .csv that is written: what the model says of each sample.
            metrics: beside those of the recipe, such as `["MacroF1", "{kind: TopAccuracy, k: 3}"]`.
            allow_code: as of `train`, whose messages call it --allow-code; True for a run that `train` gave with it.
            device: cpu, gpu or auto; None: cpu.
        Raises:
            InputRefused: there is no such checkpoint, split or device, or the data are not there.
        """
        from trainers.tasks.score_run import score_run

        given = {"checkpoint": checkpoint, "split": split, "data": data, "predictions": predictions}
        allow_code = allow_code or self.allow_code
        return score_run(self.folder, **as_options(given), metrics=metrics, allow_code=allow_code, device=device)

    def predict(
        self,
        images: str | Path | Sequence[str | Path],
        *,
        checkpoint: str = "newest",
        predictions: str | Path | None = None,
        allow_code: bool = False,
        device: str | None = None,
    ) -> list[dict[str, Any]]:
        """The most probable classes of images, or of all in a folder.

        Args:
            images: one, or several; files, and folders whose image files are all taken.
            checkpoint, predictions, allow_code, device: as of `evaluate`.
        Raises:
            InputRefused: there is no such checkpoint, device or image, or none of them can be used.
        """
        from trainers.tasks.predict_run import predict_run

        several = [images] if isinstance(images, str | Path) else images
        given = as_options({"checkpoint": checkpoint, "predictions": predictions})
        allow_code = allow_code or self.allow_code
        return predict_run(self.folder, list(map(path_of, several)), **given, allow_code=allow_code, device=device)

    def export(
        self, form: str, *, out: str | Path | None = None, checkpoint: str = "newest", allow_code: bool = False
    ) -> Path:
        """Write the weights that evaluation scores.

        Args:
            form: `onnx` or `safetensors`.
            out: the new file; None: `model.onnx` or `model.safetensors` in the run's folder.
            checkpoint, allow_code: as of `evaluate`.
        Raises:
            InputRefused: there is no such format or checkpoint, the model cannot be exported, or the file is there.
        """
        from trainers.tasks.export_run import export_run

        given = as_options({"out": out, "checkpoint": checkpoint})
        file, notes, _ = export_run(self.folder, form=form, **given, allow_code=allow_code or self.allow_code)
        print_warnings(notes)
        return file

    def model(
        self, checkpoint: str = "newest", *, data: str | Path | None = None, allow_code: bool = False
    ) -> chainer.Chain:
        """The model on the CPU, a Chainer chain, with what evaluation scores: averages, and running statistics.

        Args:
            checkpoint, allow_code: as of `evaluate`.
            data: folder of the data set's files, of which a model that has no size of its own sees an image.
        Raises:
            InputRefused: there is no such checkpoint, or it does not fit the model.
        """
        from trainers.tasks.run_model import model_of_run

        given = as_options({"checkpoint": checkpoint, "data": data})
        return model_of_run(self.folder, **given, allow_code=allow_code or self.allow_code)

    def samples(
        self, indices: Iterable[int] | None = None, *, data: str | Path | None = None, allow_code: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Samples that the run is scored on, as its model gets them: images, float32 NCHW, and labels, int32.

        Args:
            indices: which, from 0 on; None: all.
            data: folder of the data set's files, if they have moved since the run.
            allow_code: as of `evaluate`.
        Raises:
            InputRefused: there is no such sample, the data are not there, or an image cannot be read.
        """
        from trainers.tasks.run_model import samples_of_run

        given = as_options({"indices": indices, "data": data})
        return samples_of_run(self.folder, **given, allow_code=allow_code or self.allow_code)

    def __repr__(self) -> str:
        try:
            accuracy = self.accuracy
            scored = "not evaluated yet" if accuracy is None else f"accuracy {percent(accuracy)}"
        except (InputRefused, TypeError) as error:
            scored = _damage(self, error)
        return f"<run {_as_typed(self.folder)}: {scored}>"


@refuse_unreachable()
def runs(folder: str | Path = "runs") -> list[Run]:
    """The runs in a folder and below it, those that began first first.

    One that another process removes meanwhile may be left out.

    Raises:
        InputRefused: there is no such folder.
    """
    folder = path_of(folder)
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.is_file() else "is no folder"
        raise InputRefused(f"{folder} {what}; name one that holds runs")
    found = [Path(parent) for parent, _, names in os.walk(folder) if {RECIPE, METRICS} <= {*names}]
    there = []
    for path in sorted(found, key=_began):
        with suppress(InputRefused):  # removed meanwhile
            there.append(Run(path))
    return there


def facts_or_damage(run: Run) -> dict[str, Any]:
    """The facts of a run; where its metrics are damaged, `ended` says how, and what they would tell is None."""
    try:
        return run.facts
    except (InputRefused, TypeError) as error:
        unknown = dict.fromkeys(("update", "epoch", "accuracy", "workers"))
        about = {"run": _as_typed(run.folder), "recipe": "", "ended": _damage(run, error)}
        return about | unknown | {"bytes": _bytes_in(run.folder)}


def _damage(run: Run, error: Exception) -> str:
    return "damaged: " + str(error).removeprefix(f"{run.folder}{os.sep}")


def _began(folder: Path) -> tuple[float, list[str | int]]:
    """When a run began, and its path with the numbers in it as numbers: all branches of a run began when it did."""
    parts = re.split("([0-9]+)", str(folder))
    path = [int(part) if index % 2 else part for index, part in enumerate(parts)]
    if (folder / METRICS).is_fifo():  # a stranger's, which could wait for good
        return math.inf, path
    try:
        with (folder / METRICS).open(encoding="utf-8") as file:
            return float(json.loads(file.readline())["time_ms"]), path
    except (OSError, OverflowError, RecursionError, ValueError, LookupError, TypeError):  # a stranger's, or removed
        return math.inf, path


def _bytes_in(folder: Path) -> int:
    """The size of the files in a folder; without those that cannot be found, or are removed meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += Path(parent, name).stat().st_size
    return total


def _as_typed(path: Path) -> str:
    """An absolute path as it was perhaps typed: from the working directory, if that leads to it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def path_of(given: object) -> Path:
    """A path given as a text or a Path.

    Raises:
        InputRefused: it is neither.
    """
    if not isinstance(given, str | Path):
        raise InputRefused(f"{given!r} is no path; write one as a text or a Path")
    return Path(given).expanduser()


def absolute(given: object) -> Path:
    """A path that leads to the same place from every folder; a URL as it is."""
    path = path_of(given)
    return path if url_of(path) else path.absolute()


def as_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with the texts of a notebook as paths or lists, where the commands take paths or lists."""
    made = dict(options)
    for name, value in options.items():
        if name in ("data", "out", "predictions") and value is not None:
            made[name] = absolute(value) if name == "data" else path_of(value)
        elif name == "accept_changed" and isinstance(value, str):
            made[name] = tuple(value.replace(" ", "").split(","))
        elif name == "overrides" and isinstance(value, str):
            made[name] = (value,)
    return made
