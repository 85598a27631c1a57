"""What `import kilobatch` gives a script or a notebook: the commands as functions, and a run's folder as an object."""

from __future__ import annotations

import inspect
import json
import math
import os
import re
import signal
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused, RecipeError, nearest, printable, refuse_unreachable
from recipes.reading.load import overrides_by_file
from recipes.reading.open import OpenedRecipe
from recipes.reading.registry import is_of_library, library_name, shown
from recipes.reading.tree_diff import compare
from recipes.reports.record import number_of, read_metrics, session_end
from recipes.reports.wording import percent
from recipes.schema.dataset import url_of
from recipes.schema.vocabulary import kind_of
from trainers.launch.model_costs import model_of
from trainers.launch.own_modules import open_with_its_code
from trainers.launch.preflight import refuse_folder
from trainers.launch.request import cluster_of, open_request, planned
from trainers.launch.start_ranks import start_or_join
from trainers.launch.timed_plan import timed_plan
from trainers.launch.vocabulary import vocabulary
from trainers.runs.errors import EXIT_STOPPED, RunFailed, print_warnings
from trainers.runs.mpi_ranks import launched_ranks
from trainers.runs.run_folder import LOG, METRICS, RECIPE, claimed, default_folder, require_run
from trainers.training.request import TrainRequest

__all__ = ["InputRefused", "OpenRecipe", "RecipeError", "Run", "RunFailed", "open", "plan", "runs", "train"]

_OF_EACH_RUN = ("train_loss", "eval_accuracy", "eval_loss")  # keys, sooner or later
_MOST_NAMED = 3  # values in a message
_OPTIONS = [field.name for field in fields(TrainRequest) if field.name not in ("recipe", "out", "workers")]
# What the command or `open` calls otherwise, and how it is written for `train`.
_OTHERWISE = {
    "n": "ranks=2",
    "workers": "ranks=2",
    "fast": "exact=False",
    "set": 'kilobatch.open(recipe, set={"epochs": 3})',
    "q": "verbosity=-1",
    "v": "verbosity=1",
    "quiet": "verbosity=-1",
    "verbose": "verbosity=1",
    "watchdog": "watchdog_seconds=60",
    "noise_scale": "measure_noise=True",
    "kernels": 'os.environ["KILOBATCH_KERNELS"] = "numpy"',
    "decoder": 'os.environ["KILOBATCH_DECODER"] = "pillow"',
}


@dataclass(frozen=True, kw_only=True)
class OpenRecipe:
    """A recipe that was opened and checked, with the changes that `set` made.

    Args:
        opened: the recipe and its data set as objects, its values as plain data, and the origin of each.
        request: how it was opened, from any working directory.
    """

    opened: OpenedRecipe
    request: TrainRequest

    @property
    def values(self) -> dict[str, Any]:
        """Every value of the recipe, as `kilobatch recipes show` prints it; a copy, which changes nothing."""
        return deepcopy(self.opened.tree)

    @property
    def origins(self) -> dict[str, str]:
        """Where each value comes from, by its dotted path."""
        return self.opened.origins

    def __repr__(self) -> str:
        recipe = self.opened.recipe
        sizes = ", ".join(map(str, recipe.batch.global_.sizes))
        return f"<recipe {recipe.name}: {kind_of(recipe.model)}, {recipe.epochs:g} epochs, batch {sizes}>"


@dataclass(frozen=True)
class Run:
    """A run, as its folder has it.

    Args:
        folder: of the run.
    Raises:
        InputRefused: the folder is not that of a run.
    """

    folder: Path

    @refuse_unreachable()
    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", _absolute(self.folder))
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
            InputRefused: the run has no such key, and it is none that each run gets.
        """
        return self._curve(key, self.metrics)

    def _curve(self, key: str, metrics: list[dict[str, Any]]) -> list[tuple[float, float]]:
        lines = [line for line in metrics if "epoch" in line]
        keys = dict.fromkeys((*_OF_EACH_RUN, *(line["key"] for line in lines)))
        if key not in keys:
            raise InputRefused(f"{_shown(self.folder / METRICS)} has no key {key}; it has {', '.join(keys)}")
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
        """How the run ended: `success`, `stopped` (also by `stop_after`) or `failed`; `no` if it has not."""
        return session_end(read_metrics(self.folder / METRICS, all_updates=False)).get("value", "no")

    @property
    def facts(self) -> dict[str, Any]:
        """Run, recipe, how it ended or that it has not, update and epoch reached, accuracy, workers and bytes."""
        path = self.folder / METRICS
        numbered = read_metrics(path, all_updates=False)
        for number, line in numbered:
            if "epoch" in line:
                number_of(path, number, line, "epoch")
            if line["key"] in _OF_EACH_RUN:
                number_of(path, number, line, "value")
        lines = [line for _, line in numbered]
        ends = [line for line in lines if line["key"] in ("run_start", "run_stop")]
        reached = max((line for line in lines if "epoch" in line), key=lambda line: line["epoch"], default={})
        return {
            "run": _shown(self.folder),
            "recipe": next((line["value"] for line in ends if line["key"] == "run_start"), ""),
            "ended": session_end(numbered).get("value", "no"),
            "update": reached.get("update"),
            "epoch": reached.get("epoch"),
            "accuracy": self._last_accuracy(lines),
            "workers": next((line.get("workers") for line in reversed(ends) if "workers" in line), None),
            "bytes": _bytes_in(self.folder),
        }

    def evaluate(self, **options: Any) -> dict[str, Any]:
        """Score a checkpoint; the options are those of `score_run`: checkpoint, split, data, predictions, device, and
        allow_code.
        """
        from trainers.launch.score_run import score_run

        return score_run(self.folder, **_as_options(options))

    def export(self, form: str, **options: Any) -> Path:
        """Write `onnx` or `safetensors`; the options are those of `export_run`: out, checkpoint, allow_code."""
        from trainers.launch.export_run import export_run

        file, notes, _ = export_run(self.folder, form=form, **_as_options(options))
        print_warnings(notes)
        return file

    def __repr__(self) -> str:
        try:
            accuracy = self.accuracy
            scored = "not evaluated yet" if accuracy is None else f"accuracy {percent(accuracy)}"
        except (InputRefused, TypeError) as error:
            scored = _damage(self, error)
        return f"<run {_shown(self.folder)}: {scored}>"


def open(
    recipe: str | Path,
    *,
    set: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    allow_code: bool = False,
) -> OpenRecipe:
    """Open and check a recipe: its name in the library, the path of its file or of a pack, or a run's folder.

    Args:
        set: values to change, by dotted path: `{"batch.global": 512}`; of the cluster as `cluster.exchange.wire`.
            NumPy's numbers and arrays count as Python's.
        data: folder of the data set's files; relative paths are those of the working directory at this call.
        allow_code: let `kind: mymodule.MyNet` import from the working directory. Messages name it as the command does:
            `--allow-code`.
    Raises:
        RecipeError: the recipe is wrong; it lists every problem with its place and a way out.
        InputRefused: a value of `set` is none that YAML can hold; a module of one's own has changed since it was
            imported, or was imported from another folder.
    """
    if set is not None and not isinstance(set, Mapping):
        raise InputRefused(f'set is {set!r}; write values by dotted path: set={{"epochs": 3}}')
    request = TrainRequest(
        recipe=_name_of(recipe),
        overrides=tuple(f"{path}={json.dumps(value, default=_plain)}" for path, value in (set or {}).items()),
        overrides_from="kilobatch.open",
        data=None if data is None else _absolute(data),
        allow_code=allow_code,
    )
    opened = open_with_its_code(request)
    print_warnings(opened.warnings)
    opened = replace(opened, path=opened.path.absolute())
    found = library_name(opened.path) if is_of_library(opened.path) else str(opened.path)
    return OpenRecipe(opened=opened, request=replace(request, recipe=found))


def plan(
    recipe: OpenRecipe | str,
    *,
    ranks: int | None = None,
    cluster: str | None = None,
    micro_batch_size: int | None = None,
    exact: bool | None = None,
) -> dict[str, Any]:
    """What each rank does, how much memory that takes, and how long, as `kilobatch plan --json` prints it.

    Args:
        ranks: workers; None: all of the cluster.
        cluster: name or path of a cluster's file; None: this machine.
        micro_batch_size: the most samples of one forward.
        exact: as of `train`.
    Raises:
        InputRefused: `ranks` or `micro_batch_size` is no whole number of at least 1.
        RecipeError, PlanError: these workers cannot serve the recipe.
    """
    given = _opened(recipe)
    opened = given.opened
    request = replace(given.request, workers=ranks, cluster=cluster, micro_batch_size=micro_batch_size, exact=exact)
    refuse_folder(opened.dataset, request.data)
    _, overrides = overrides_by_file(request.overrides, "cluster")
    where, _ = cluster_of(request.cluster, workers=request.workers, vocabulary=vocabulary(), overrides=overrides)
    made = planned(
        opened,
        where,
        workers=request.workers,
        model=model_of(opened),
        exact=request.exact,
        micro_batch_size=request.micro_batch_size,
    )
    return timed_plan(made, is_this_machine=cluster is None).tree


def train(recipe: OpenRecipe | str, *, ranks: int | None = None, out: str | Path | None = None, **options: Any) -> Run:
    """Train a recipe in processes of its own, as `kilobatch train`, and show the progress until they end.

    Args:
        ranks: processes; None: as many as pay here.
        out: the run's folder; None: `runs/NAME-DATE-TIME`, but not under a launcher or with `resume=True`.
        options: of `TrainRequest`, such as `resume=True`, `stop_after="30up"`, `cluster="laptop"`, `exact=True`,
            `report=False`, `verbosity=-1`; for a recipe by name also `data` and `allow_code`, as of `open`.
    Returns:
        the run; also where SIGTERM or the file `stop` ended it: `ended` says how.
    Raises:
        KeyboardInterrupt: Ctrl-C ended the run, with a checkpoint; `Run(out)` has it.
        InputRefused: before anything was started; or an option is unknown, or the recipe's files have changed since
            `open`.
        RunFailed: the run failed; the message names its log and the cause.
    """
    for option in options:
        if option not in _OPTIONS:
            written = _OTHERWISE.get(option)
            way_out = f"write {written}" if written else nearest(option, _OPTIONS, called="options")
            raise InputRefused(f"kilobatch.train has no option {option}; {way_out}")
    if isinstance(recipe, OpenRecipe):
        _require_unchanged(recipe)
    given = recipe.request if isinstance(recipe, OpenRecipe) else TrainRequest(recipe=_name_of(recipe))
    changed = _as_options(options)
    if "overrides" in changed:  # on top of those of `open`
        changed["overrides"] = (*given.overrides, *(changed["overrides"] or ()))
    request = replace(given, workers=ranks, **changed)
    if request.allow_code and not isinstance(recipe, OpenRecipe):
        open_with_its_code(replace(request, out=None if out is None else _path_of(out)))
    if out is None and request.resume:
        raise InputRefused("resume=True needs the folder of the run: write out=... too")
    if out is None and launched_ranks() is not None:
        raise InputRefused("ranks of a launcher need one folder for the run: write out=..., the same on all")
    folder = claimed(default_folder(open_request(request).recipe.name)) if out is None else _path_of(out)
    signals: list[int] = []
    try:
        code = start_or_join(replace(request, out=folder), on_signal=signals.append)
    except BaseException:
        if out is None:
            with suppress(OSError):  # it holds something, or is gone
                folder.rmdir()
        raise
    if code not in (0, EXIT_STOPPED):
        log, cause = folder / LOG, _cause_in(folder / LOG)
        raise RunFailed(f"the run failed with exit code {code}; its log is {log}{cause and f': {cause}'}")
    if signal.SIGINT in signals:
        raise KeyboardInterrupt(f"the run was stopped; kilobatch.Run({str(folder)!r}) is what it has trained")
    return Run(folder)


def _cause_in(log: Path) -> str:
    """The last line of a log, if it is an error's: the ranks' own lines begin with the date."""
    with suppress(OSError):
        for line in reversed(log.read_text(encoding="utf-8", errors="replace").splitlines()):
            if line and not line.startswith(("Abort(", "[mpiexec", "[proxy")):
                return "" if re.match(r"\d{4}-", line) else printable(line.removeprefix("kilobatch: "))
    return ""


def _signature() -> inspect.Signature:
    """That of `train`, with its options, for completion and `help`."""
    own, of_request = inspect.signature(train), inspect.signature(TrainRequest)
    named = [each for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
    return own.replace(parameters=[*named, *(of_request.parameters[name] for name in _OPTIONS)])


train.__signature__ = _signature()


@refuse_unreachable()
def runs(folder: str | Path = "runs") -> list[Run]:
    """The runs in a folder and below it, those that began first first.

    One that another process removes meanwhile may be left out.

    Raises:
        InputRefused: there is no such folder.
    """
    folder = _path_of(folder)
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
        about = {"run": _shown(run.folder), "recipe": "", "ended": _damage(run, error)}
        return about | unknown | {"bytes": _bytes_in(run.folder)}


def _damage(run: Run, error: Exception) -> str:
    return "damaged: " + str(error).removeprefix(f"{run.folder}{os.sep}")


def _bytes_in(folder: Path) -> int:
    """The size of the files in a folder; without those that cannot be found, or are removed meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += Path(parent, name).stat().st_size
    return total


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


def _opened(recipe: OpenRecipe | str) -> OpenRecipe:
    return recipe if isinstance(recipe, OpenRecipe) else open(recipe)


def _name_of(recipe: object) -> str:
    if isinstance(recipe, Run):
        raise InputRefused(f"{recipe!r} is no recipe; name its folder, which has one: {str(recipe.folder)!r}")
    if not isinstance(recipe, str | Path):
        raise InputRefused(f"recipe is {recipe!r}; write a name, or the path of a file or a run's folder")
    return str(recipe)


def _require_unchanged(recipe: OpenRecipe) -> None:
    """Refuse to train a recipe whose files say something else by now: its ranks would read them anew."""
    opened, now = recipe.opened, open_with_its_code(recipe.request)
    trees = [{"recipe": each.tree, "data set": each.dataset_tree} for each in (opened, now)]
    if differences := compare(trees):
        what = ", ".join(".".join(each.path[1:]) for each in differences[:_MOST_NAMED])
        raise InputRefused(f"{shown(opened.path)} has changed since kilobatch.open, in {what}; open it again")


def _shown(path: Path) -> str:
    """An absolute path as it was perhaps typed: from the working directory, if that leads to it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _path_of(given: object) -> Path:
    if not isinstance(given, str | Path):
        raise InputRefused(f"{given!r} is no path; write one as a text or a Path")
    return Path(given).expanduser()


def _absolute(given: object) -> Path:
    """A path that leads to the same place from every folder; a URL as it is."""
    path = _path_of(given)
    return path if url_of(path) else path.absolute()


def _as_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with the texts of a notebook as paths or lists, where the commands take paths or lists."""
    made = dict(options)
    for name, value in options.items():
        if name in ("data", "out", "predictions") and value is not None:
            made[name] = _absolute(value) if name == "data" else _path_of(value)
        elif name == "accept_changed" and isinstance(value, str):
            made[name] = tuple(value.replace(" ", "").split(","))
        elif name == "overrides" and isinstance(value, str):
            made[name] = (value,)
    return made


def _plain(value: Any) -> Any:
    """A number or array of NumPy as Python's, and a path as text, for JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise InputRefused(f"set has {value!r}, a {type(value).__name__}; write numbers, texts, lists and dicts")
