"""A run's folder: its files, everything needed to resume, compare or reproduce it, its log and its report."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import logging
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import IO, Any

import yaml

from recipes.errors import InputRefused, printable
from recipes.reading.open import CODE
from recipes.reading.tree_diff import WORDS, without_place
from recipes.reading.yaml import block_text
from recipes.schema import Dataset
from trainers.runs.errors import DISK_FULL, RankFailed
from trainers.runs.stop_request import STOP_FILE

RUN, RECIPE, DATASET, INIT = "run.yaml", "recipe.yaml", "dataset.yaml", "init.safetensors"
METRICS, TRACE, PROFILE, LOG = "metrics.jsonl", "trace.jsonl", "profile.json", "log.txt"
ENVIRONMENT, CHECKPOINTS, REPORT, RANKS = "environment.json", "checkpoints", "report.html", "ranks"
SOURCES, EVALUATION, MLFLOW_NOTE = "sources", "evaluation", "mlflow.json"
_WRITTEN_INTO = (LOG, METRICS, TRACE, PROFILE, CHECKPOINTS, EVALUATION, RANKS, SOURCES, CODE)  # the rest is replaced
_READ = (RUN, METRICS, TRACE, LOG, ENVIRONMENT, "identity.json")
_LOCK_TRIES = 5
# What a longer run changes, or one that is scored elsewhere.
_OF_THE_LENGTH = ("epochs: ", "learning_rate.schedule.epochs: ", "evaluation.every: ", "evaluation.offset: ")
_WORDS_ONLY = tuple(key for key in WORDS if key != "name")  # the name identifies the folder's run


class FolderRefused(InputRefused):
    """A run's folder cannot be used as requested; the message names a way out."""


class CountsChanged(FolderRefused):
    """The data have other numbers of samples or classes than those of the run; all else is the same."""


def default_folder(recipe_name: str) -> Path:
    """`runs/NAME-DATE-TIME` in the working directory; nothing is made."""
    return Path("runs", f"{recipe_name}-{time.strftime('%Y%m%d-%H%M%S')}")


def claimed(folder: Path) -> Path:
    """Make a run's default folder; its name with -2, -3 and so on where another run began in the same second.

    Raises:
        FolderRefused: it cannot be made.
    """
    number, own = 1, folder
    while True:
        try:
            own.mkdir(parents=True)
            return own
        except FileExistsError:
            number += 1
            own = folder.with_name(f"{folder.name}-{number}")
        except OSError as error:
            raise FolderRefused(f"{own} cannot be written: {error.strerror}; choose another --out") from error


def require_run(folder: Path) -> None:
    """Refuse a folder that holds no run."""
    if not (folder / RECIPE).is_file():
        raise InputRefused(f"{folder} is no run's folder: it has no {RECIPE}; name the folder that train printed")


def checkpoints_in(folder: Path) -> list[Path]:
    """All checkpoints of a run's `checkpoints`, whole or not, oldest first; a user's copies have other names.

    Raises:
        FolderRefused: it is there and cannot be read.
    """
    try:
        paths = filter(is_checkpoint, map(folder.joinpath, os.listdir(folder)))
        return sorted((path for path in paths if path.is_dir()), key=update_of)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        what = f"{folder} cannot be read: {error.strerror}"
        raise FolderRefused(f"{what}; check whether you may open it") from error


def is_checkpoint(path: Path) -> bool:
    """Whether a path has the name of a checkpoint; a user's copies have others, such as update-000030.bak."""
    return path.name.startswith("update-") and path.name.removeprefix("update-").isdecimal()


def update_of(checkpoint: Path) -> int:
    """How many updates were done before a checkpoint."""
    return int(checkpoint.name.removeprefix("update-"))


def newest_by_name(folder: Path) -> Path | None:
    """The newest checkpoint in a run's folder, whole or not; None if none is seen."""
    with suppress(FolderRefused):
        if found := checkpoints_in(folder / CHECKPOINTS):
            return found[-1]
    return None


def dataset_facts(dataset: Dataset) -> dict[str, Any]:
    """A data set as plain data: what two runs must agree on.

    Its folder and texts for people may differ, and so may `on_bad_image`: one that refuses and one that skips train
    alike until the first bad image, where the first ends.
    """
    free = ("reader", "root", "sources", "on_bad_image", "lacks", "validation", "subset_of")
    facts = {key: value for key, value in without_texts(vars(dataset)).items() if key not in free}
    if dataset.validation is not None:
        facts["validation"] = {key: value for key, value in vars(dataset.validation).items() if value is not False}
    return json.loads(json.dumps({**facts, "reader": repr(dataset.reader)}))


def without_texts(dataset: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a data set without its texts for people, which runs and searches of older versions have recorded."""
    return {key: value for key, value in dataset.items() if key not in ("title", "source", "classes", "obtain")}


def require_usable(folder: Path, *, resume: bool) -> None:
    """Refuse a folder that is not empty, unless it holds a run and `resume` is true.

    Raises:
        FolderRefused: it is a file, or not empty without a run, or holds a run without `resume`, or one that would
            have us write elsewhere, see `refuse_links`.
    """
    if folder.exists() and not folder.is_dir():
        raise FolderRefused(f"{folder} is a file; give --out a folder")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not any((folder / name).exists() for name in (LOG, RUN, METRICS, CHECKPOINTS)):
        raise FolderRefused(f"{folder} is not empty, and holds no run; choose another --out")
    begun = {path.name for path in folder.iterdir()} - {LOG, RANKS, STOP_FILE}  # which a start has made
    if not resume and begun:
        raise FolderRefused(f"{folder} is not empty; add --resume to go on with the run in it, or choose another --out")
    refuse_links(folder)
    for name in _READ:
        _require_file(folder / name)
    if (folder / STOP_FILE).is_dir():
        raise FolderRefused(f"{folder / STOP_FILE} is a folder, and as a file asks a run to stop; rename it")
    if (ranks := folder / RANKS).is_symlink() or (ranks.exists() and not ranks.is_dir()):
        raise FolderRefused(f"{ranks} is no folder, and the ranks of a run write into it; remove it")


def _require_file(path: Path) -> None:
    """Refuse a named pipe or a device in the place of a run's file: whoever opens it waits, perhaps for good."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise FolderRefused(f"{path} is no file; remove it, or choose another --out")


def read_file(path: Path) -> bytes:
    """The content of a file of a run, which a stranger may have made.

    Raises:
        OSError: it cannot be read, or is a named pipe or a device, which could wait for good.
    """
    if path.is_fifo() or path.is_char_device():
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return path.read_bytes()


def refuse_links(folder: Path, *names: str) -> None:
    """Refuse a run's folder that is about to be written into where a link would lead that out of it.

    A stranger's run could otherwise write to, or remove, any file of ours. `folder` may be a link itself, and so may
    single checkpoints, which are only read.

    Args:
        names: what in the folder is to be written, with all below; by default all that a run writes into.
    Raises:
        FolderRefused: names the link.
    """
    inside = os.path.realpath(folder)
    for top in (folder / name for name in names or _WRITTEN_INTO):
        below = () if top.name == CHECKPOINTS or top.is_symlink() else top.rglob("*")
        for path in (path for path in (top, *below) if path.is_symlink()):
            if not Path(os.path.realpath(path)).is_relative_to(inside):
                raise FolderRefused(
                    f"{path} is a link that leads out of the run's folder, and would be written through; replace it by "
                    "what it leads to, or give --out a folder on the other disk"
                )


def lock_folder(folder: Path, *, shared: bool = False, way_out: str = "give another --out, ") -> IO[bytes]:
    """Lock a folder, made if it does not exist, against other runs, whose files would mix.

    The lock holds as long as the returned file, its log, is open. The system releases the lock of a killed process.
    Without locks of the file system there is no such protection.

    Args:
        shared: with the process that started this one, which has locked the folder and called `share_lock`.
        way_out: before waiting and ending that run, for the error.
    Raises:
        FolderRefused: the folder or its log cannot be written, or the log is a link out of the folder or no file, or
            another run has locked the folder.
    """
    held = _opened_log(folder)
    if not _lock(held, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
        held.close()
        way_out += f"wait until it has ended, or end it with `touch {quote(str(folder))}/stop`"
        raise FolderRefused(f"a run is being trained in {folder}; {way_out}")
    return held


def _opened_log(folder: Path) -> IO[bytes]:
    refuse_links(folder, LOG)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _require_file(folder / LOG)
        return open(folder / LOG, "a+b")
    except OSError as error:
        raise FolderRefused(f"{folder} cannot be written: {error.strerror}; choose another --out") from error


def share_lock(held: IO[bytes]) -> None:
    """Let processes lock the folder too that do so with `shared`; others stay out.

    Raises:
        FolderRefused: another run has locked it in this instant.
    """
    if not _lock(held, fcntl.LOCK_SH):
        where = Path(held.name).parent
        raise FolderRefused(f"another run was started in {where} in the same instant; wait until it has ended")


def _lock(file: IO[bytes], kind: int) -> bool:
    """Lock a file against others; false if another has locked it. Without locks of the file system it is true."""
    try:
        return _locked_soon(file, kind)
    except OSError:  # no locks here
        return True


def _locked_soon(file: IO[bytes], kind: int) -> bool:
    """Whether a file could be locked, within several tries: whoever asks `is_locked` holds it for an instant."""
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(random.uniform(0.005, 0.03))
        else:
            return True
    return False


def is_locked(folder: Path) -> bool | None:
    """Whether a run is being trained in a folder; None where the file system has no locks."""
    with suppress(OSError), open(folder / LOG, "rb", opener=_without_waiting) as file:
        return not _locked_soon(file, fcntl.LOCK_EX)
    return False if not (folder / LOG).exists() else None


def _without_waiting(path: str, flags: int) -> int:
    flags |= os.O_NONBLOCK  # a stranger's named pipe
    with suppress(OSError):
        return os.open(path, flags | os.O_RDWR)  # NFS locks no file that is open for reading only
    return os.open(path, flags)


@contextmanager
def filling_folder(folder: Path) -> Iterator[None]:
    """Lock a folder, made if it does not exist, so that no other command fills it with data meanwhile.

    Raises:
        InputRefused: another command has locked it. Without locks of the file system there is no such protection.
    """
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputRefused(f"{folder}: another of these commands is at work there; wait for it") from error
        except OSError:
            pass
        yield
    finally:
        os.close(held)


@contextmanager
def folder_required(folder: Path) -> Iterator[None]:
    """Within, an error of the system about a run's folder or a file in it fails the rank without a traceback.

    Raises:
        RankFailed: the folder was removed, renamed or made read-only, perhaps. A full disk is reported elsewhere.
    """
    try:
        yield
    except OSError as error:
        names = [Path(name) for name in (error.filename, error.filename2) if isinstance(name, (str, os.PathLike))]
        if error.errno in DISK_FULL or not any(name.is_relative_to(folder) for name in names):
            raise
        raise RankFailed(
            f"the run's folder cannot be used any more: {error}; it was removed, renamed or made read-only, perhaps: "
            "bring it back and add --resume to go on with the run in it, or start anew in another --out"
        ) from error


def require_same_recipe(folder: Path, recipe: dict[str, Any], dataset: dict[str, Any]) -> None:
    """Refuse to resume a run with another recipe or other data, naming every difference.

    Raises:
        FolderRefused: the resolved recipe or the facts of the data differ from those in the folder's run.yaml, or
            run.yaml is damaged, or missing in a run that has metrics or checkpoints.
    """
    lost = "and with it the run's recipe is lost; start anew in another --out"
    if (folder / RECIPE).is_file():
        lost = f"without which no run goes on; start anew in another --out, with the run's own {folder / RECIPE}"
    if not (folder / RUN).exists():
        if (folder / METRICS).exists() or checkpoints_in(folder / CHECKPOINTS):  # run.yaml is written before these
            raise FolderRefused(f"{folder / RUN} is missing, {lost}")
        return
    try:
        before = yaml.safe_load((folder / RUN).read_text(encoding="utf-8"))
        ran, on = run_identity(before["recipe"]), without_texts(before["dataset"])
    except (OSError, yaml.YAMLError, RecursionError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise FolderRefused(f"{folder / RUN} is damaged, {lost}") from error
    changed = differences(ran, run_identity(recipe))
    changed += [f"dataset: {line}" for line in differences(on, dataset)]
    if changed and all(line.startswith("dataset: num_") for line in changed):
        counts = "; ".join(changed).replace("dataset: ", "")
        raise CountsChanged(f"{folder}: the data have changed: {counts}; put back what it had, or start anew elsewhere")
    if changed:
        what = f"{folder} holds a run of another recipe; {'; '.join(changed)}"
        way_out = f"resume with the recipe it began with, {folder / RECIPE}, or start anew in another --out"
        newest = newest_by_name(folder)
        if newest is not None and all(line.startswith(_OF_THE_LENGTH) for line in changed):
            way_out += f", from its weights with --set {quote(f'init={{weights: {newest}/weights.safetensors}}')}"
        raise FolderRefused(f"{what}; {way_out}")


def differences(before: Any, now: Any, path: str = "", *, where: tuple[str, str] = ("in the run", "now")) -> list[str]:
    """A line for every dotted path at which two trees differ, with both values and where each was found."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = sorted(before.keys() | now.keys(), key=str)
        inner = (differences(before.get(k), now.get(k), f"{path}.{k}" if path else k, where=where) for k in keys)
        return [line for lines in inner for line in lines]
    return [] if before == now else [f"{path}: {before!r} {where[0]}, {now!r} {where[1]}"]


def write_run(
    folder: Path,
    *,
    recipe: dict[str, Any],
    origins: dict[str, str],
    plan: dict[str, Any],
    dataset: dict[str, Any],
    dataset_tree: dict[str, Any],
    environment: dict[str, Any],
    command: str,
    sources: Sequence[Path] = (),
) -> None:
    """Write `run.yaml` and `environment.json`, and recipe, data set and initial weights as files that open again.

    `sources` are the files that the recipe was written in, each extending the next; the first session copies them.
    """
    run = {"kilobatch": 1, "command": command, "recipe": recipe, "dataset": dataset, "plan": plan, "origins": origins}
    own = {**recipe, "dataset": DATASET}
    if init := recipe.get("init"):
        own["init"] = {**init, "weights": INIT}
        if not (folder / INIT).exists() and Path(init["weights"]).exists():
            partial = folder / f".{INIT}.partial"
            partial.unlink(missing_ok=True)  # perhaps a stranger's link
            try:
                shutil.copyfile(init["weights"], partial)
                partial.rename(folder / INIT)
            except OSError:  # the disk is full, perhaps
                partial.unlink(missing_ok=True)
                raise
    names = folder / SOURCES / "paths.json"  # written last
    if not names.exists():
        names.parent.mkdir(exist_ok=True)
        for number, path in enumerate(sources):
            (folder / SOURCES / f"{number}.yaml").write_bytes(path.read_bytes())
        write_whole(names, json.dumps([str(path) for path in sources]) + "\n")
    for name, tree in ((RUN, run), (RECIPE, own), (DATASET, dataset_tree)):
        write_whole(folder / name, block_text(tree))
    write_whole(folder / ENVIRONMENT, json.dumps(environment, indent=1) + "\n")


def environment_of(folder: Path) -> dict[str, Any]:
    """The environment in which a run's last session began; empty where it is lost or damaged."""
    try:
        tree = json.loads(read_file(folder / ENVIRONMENT).decode())
    except (OSError, RecursionError, ValueError):
        return {}
    return tree if isinstance(tree, dict) and isinstance(tree.get("kernels", {}), dict) else {}


def run_identity(recipe: dict[str, Any]) -> dict[str, Any]:
    """The keys of a recipe that decide the run, and its name; without the other texts, such as the title.

    The name of the data set's file is left out: the facts of the data are compared, and a run has its own copy.
    """
    return {key: value for key, value in without_place(recipe).items() if key not in (*_WORDS_ONLY, "dataset")}


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)  # of a killed process, or a stranger's link, which would be written through
    try:
        with open(partial, "xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())  # else a power cut may leave an empty file under the name
        partial.rename(path)
    except OSError:  # the disk is full, perhaps
        partial.unlink(missing_ok=True)
        raise


log = logging.getLogger("kilobatch")
ENDING = (logging.INFO + logging.WARNING) // 2  # level of the lines that say how a run ended


class _Printable(logging.Formatter):
    """Formats a record as a `printable` text: file names and messages of libraries go into it."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def configure_logging(folder: Path, *, rank: int, to_file: bool, quiet: bool = False) -> None:
    """From now on rank 0 logs everything, the others their warnings; with `to_file` into the run's log file as well.

    With `quiet` only `ENDING` and warnings are printed; the file has everything. What own code prints is
    written line by line: unbuffered, a newline comes later, when other ranks may have written into the line.

    Raises:
        FolderRefused: on rank 0, as `refuse_links`.
    """
    if rank == 0:
        refuse_links(folder)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True, write_through=False)
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stdout)]
    handlers[0].setLevel(ENDING if quiet else logging.NOTSET)
    if to_file and rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(folder / LOG, encoding="utf-8"))
    for handler in handlers:
        handler.setFormatter(_Printable(f"%(asctime)s rank {rank} %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=handlers, force=True)
    log.setLevel(logging.INFO if rank == 0 else logging.WARNING)


def note_in_log(folder: Path, line: str) -> None:
    """Append a line to a folder's log where no logger does, if it can be written: a full disk ends nothing for it."""
    with suppress(OSError), open(folder / LOG, "a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{printable(line)}\n")


def log_end(folder: Path, ending: str) -> None:
    """Log how a run ended, its folder and its newest checkpoint."""
    newest = newest_by_name(folder)
    for line in (*ending.splitlines(), f"run: {folder}{f'; newest checkpoint: {newest.name}' if newest else ''}"):
        log.log(ENDING, "%s", line)


def write_report(folder: Path) -> None:
    """Write the report page of a run into its folder."""
    from recipes.reports.page import write_page
    from recipes.reports.record import open_run

    write_page([open_run(folder)], folder / REPORT)
