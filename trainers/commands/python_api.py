"""What `import kilobatch` gives a script or a notebook: the commands as functions; a run is in `python_run.py`."""

from __future__ import annotations

import inspect
import json
import re
import signal
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused, RecipeError, nearest, printable
from recipes.reading.load import overrides_by_file
from recipes.reading.open import OpenedRecipe
from recipes.reading.registry import is_of_library, library_name, shown
from recipes.reading.tree_diff import compare
from recipes.schema.vocabulary import kind_of
from trainers.commands.python_run import Run, absolute, as_options, path_of, runs
from trainers.launch.model_costs import model_of
from trainers.launch.own_modules import open_with_its_code
from trainers.launch.preflight import code_unlike_its_run, refuse_folder
from trainers.launch.request import cluster_of, open_request, planned
from trainers.launch.start_ranks import start_or_join
from trainers.launch.vocabulary import vocabulary
from trainers.runs.errors import EXIT_STOPPED, RunFailed, print_warnings
from trainers.runs.mpi_ranks import HYDRA, launched_ranks
from trainers.runs.run_folder import LOG, claimed, default_folder
from trainers.tasks.timed_plan import timed_plan
from trainers.training.request import TrainRequest

__all__ = ["InputRefused", "OpenRecipe", "RecipeError", "Run", "RunFailed", "open", "plan", "runs", "train"]

_MOST_NAMED = 3  # values in a message
_NO_OPTIONS = ("recipe", "out", "workers", "checked_id", "warnings")  # arguments of their own, and what no user gives
_OPTIONS = [field.name for field in fields(TrainRequest) if field.name not in _NO_OPTIONS]
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
        data=None if data is None else absolute(data),
        allow_code=allow_code,
    )
    opened = open_with_its_code(request)
    print_warnings([*opened.warnings, *code_unlike_its_run(opened)])
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
    _, overrides = overrides_by_file(request.overrides)
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
    changed = as_options(options)
    if "overrides" in changed:  # on top of those of `open`
        changed["overrides"] = (*given.overrides, *(changed["overrides"] or ()))
    request = replace(given, workers=ranks, **changed)
    if request.allow_code and not isinstance(recipe, OpenRecipe):
        open_with_its_code(replace(request, out=None if out is None else path_of(out)))
    if out is None and request.resume:
        raise InputRefused("resume=True needs the folder of the run: write out=... too")
    if out is None and launched_ranks() is not None:
        raise InputRefused("ranks of a launcher need one folder for the run: write out=..., the same on all")
    folder = claimed(default_folder(open_request(request).recipe.name)) if out is None else path_of(out)
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
    return Run(folder, allow_code=request.allow_code)


def _cause_in(log: Path) -> str:
    """The last line of a log, if it is an error's: the ranks' own lines begin with the date."""
    with suppress(OSError):
        for line in reversed(log.read_text(encoding="utf-8", errors="replace").splitlines()):
            if line and not line.startswith(("Abort(", *HYDRA)):
                return "" if re.match(r"\d{4}-", line) else printable(line.removeprefix("kilobatch: "))
    return ""


def _signature() -> inspect.Signature:
    """That of `train`, with its options, for completion and `help`."""
    own, of_request = inspect.signature(train), inspect.signature(TrainRequest)
    named = [each for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
    return own.replace(parameters=[*named, *(of_request.parameters[name] for name in _OPTIONS)])


train.__signature__ = _signature()


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


def _plain(value: Any) -> Any:
    """A number or array of NumPy as Python's, and a path as text, for JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise InputRefused(f"set has {value!r}, a {type(value).__name__}; write numbers, texts, lists and dicts")
