"""Checkpoints: atomic folders with checksums, readable without pickle, belonging to no rank."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import chainer
import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from recipes.errors import InputRefused
from recipes.reports.wording import size
from trainers.runs.run_folder import checkpoints_in, read_file, update_of

_WEIGHTS, _OPTIMIZER, _STATE, _MANIFEST = "weights.safetensors", "optimizer.safetensors", "state.json", "MANIFEST"
_AVERAGES = "averages.safetensors"  # only where the recipe has a weight_average
_PENDING = "pending.safetensors"  # only with double buffering
_RANKS = "ranks.safetensors"  # only where each rank has arrays of its own
_NUMBERS = {f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)}  # of safetensors
_NUMBERS |= {"F16": "<f2", "F32": "<f4", "F64": "<f8", "BOOL": "?"}


class CheckpointError(InputRefused):
    """A checkpoint that is not whole, or does not fit the model; names the file."""


class CheckpointContent(NamedTuple):
    """What a checkpoint holds: arrays by path, and plain data."""

    weights: dict[str, np.ndarray]  # running statistics among them
    optimizer: dict[str, np.ndarray]  # its state by path and name
    averages: dict[str, np.ndarray]  # of the weights; empty where the recipe has none
    pending: dict[str, np.ndarray]  # the mean gradient that waits to be applied; empty where none does
    state: dict[str, Any]
    ranks: tuple[dict[str, np.ndarray], ...] = ()  # of each rank what is its own; empty where nothing is

    def scored(self) -> CheckpointContent:
        """The same with the averages in place of the weights: what evaluation scores."""
        return self._replace(weights={**self.weights, **self.averages})


def weights_of(model: chainer.Link) -> dict[str, np.ndarray]:
    """Parameters and persistent values (running statistics among them) by path; the model's own arrays, not copies."""
    arrays = {path: parameter.array for path, parameter in model.namedparams()}
    for path, link, name in persistents_of(model):
        value = getattr(link, name)
        if value is not None:
            arrays[path] = _as_array(value)
    return arrays


def persistents_of(model: chainer.Link) -> Iterator[tuple[str, chainer.Link, str]]:
    """The path of each persistent value, its link and its name there."""
    for path, link in model.namedlinks():
        for name in link._persistent:
            yield f"{path.rstrip('/')}/{name}", link, name


def optimizer_arrays(optimizer: chainer.Optimizer) -> dict[str, np.ndarray]:
    """Optimizer state by parameter path and name, e.g. `/fc/W:v`; arrays are the optimizer's own, not copies."""
    return {
        f"{path}:{name}": _as_array(value)
        for path, parameter in optimizer.target.namedparams()
        for name, value in (parameter.update_rule.state or {}).items()
    }


def _as_array(value: Any) -> Any:
    """An array as it is, on any device; a number as a NumPy array."""
    return value if isinstance(value, chainer.get_array_types()) else np.asarray(value)


def checkpoint_name(update: int) -> str:
    """Name of the checkpoint after `update` updates."""
    return f"update-{update:06d}"


def write_checkpoint(
    folder: Path,
    *,
    model: chainer.Link,
    optimizer: chainer.Optimizer,
    state: dict[str, Any],
    averages: Mapping[str, np.ndarray] | None = None,
    pending: Mapping[str, np.ndarray] | None = None,
    ranks: Sequence[Mapping[str, np.ndarray]] = (),
    moved: Callable[[], None] = lambda: None,
) -> Path:
    """Write `folder`/update-000123 atomically, where 123 is `state["update"]`.

    Everything is written to a folder of another name, flushed to the disk with its checksums, and renamed.

    Args:
        folder: the run's `checkpoints`; the run's folder is there.
        state: plain data; must hold `update`, the number of updates done.
        averages, pending, ranks: see `CheckpointContent`.
        moved: called after every file: it is progress.
    Returns:
        the folder of the checkpoint.
    """
    final = folder / checkpoint_name(state["update"])
    partial = folder / f".{final.name}.partial"
    for abandoned in folder.glob(".update-*.partial"):  # by a rank that was killed
        shutil.rmtree(abandoned, ignore_errors=True)
    folder.mkdir(exist_ok=True)  # but not what it lies in: a run whose folder was removed has lost more
    partial.mkdir()
    steps = {path: parameter.update_rule.t for path, parameter in optimizer.target.namedparams()}
    files = {
        _WEIGHTS: save(_contiguous(weights_of(model))),
        _OPTIMIZER: save(_contiguous(optimizer_arrays(optimizer))),
        **({_AVERAGES: save(_contiguous(averages))} if averages else {}),
        **({_PENDING: save(_contiguous(pending))} if pending else {}),
        **({_RANKS: save(_contiguous(_by_rank(ranks)))} if ranks else {}),
        _STATE: json.dumps({**state, "optimizer_steps": {"": optimizer.t, **steps}}, indent=1).encode(),
    }
    manifest = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items())
    try:
        for name, data in {**files, _MANIFEST: manifest.encode()}.items():
            with open(partial / name, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            moved()
    except OSError as error:  # the disk is full, perhaps: free what the partial checkpoint takes
        shutil.rmtree(partial, ignore_errors=True)
        what = f"{error.strerror} for a checkpoint of {size(sum(map(len, files.values())))}"
        raise OSError(error.errno, what, str(final)) from error
    if final.is_dir() and not final.is_symlink():  # only if a resumed run reaches this update again
        shutil.rmtree(final, ignore_errors=True)
    else:
        final.unlink(missing_ok=True)  # a stray file: a folder cannot be renamed to its name
    partial.rename(final)
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return final


def read_checkpoint(folder: Path) -> CheckpointContent:
    """What one checkpoint holds.

    Raises:
        CheckpointError: a file is missing, differs from its checksum, or cannot be read although it does not; or the
            state is of another update than the folder's name.
    """
    try:
        manifest = read_file(folder / _MANIFEST).decode().splitlines()
        sums = {name: digest for digest, name in (line.split("  ", 1) for line in manifest)}
        names = (_WEIGHTS, _OPTIMIZER, _STATE, *(name for name in (_AVERAGES, _PENDING, _RANKS) if name in sums))
        data = {name: read_file(folder / name) for name in names}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}: not a whole checkpoint ({error})") from error
    for name, content in data.items():
        if hashlib.sha256(content).hexdigest() != sums.get(name):
            raise CheckpointError(f"{folder / name}: differs from its checksum in {_MANIFEST}; it was damaged")
    arrays = {name: _arrays(folder / name, content) for name, content in data.items() if name != _STATE}
    return CheckpointContent(
        weights=arrays[_WEIGHTS],
        optimizer=arrays[_OPTIMIZER],
        averages=arrays.get(_AVERAGES, {}),
        pending=arrays.get(_PENDING, {}),
        state=_state(folder / _STATE, data[_STATE]),
        ranks=_of_ranks(arrays.get(_RANKS, {}), folder / _RANKS),
    )


def _by_rank(ranks: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Arrays of all ranks, as `3:NAME`."""
    return {f"{rank}:{name}": array for rank, own in enumerate(ranks) for name, array in own.items()}


def _of_ranks(arrays: Mapping[str, np.ndarray], file: Path) -> tuple[dict[str, np.ndarray], ...]:
    """The arrays of each rank, from `_by_rank`."""
    ranks: dict[int, dict[str, np.ndarray]] = {}
    for key, array in arrays.items():
        rank, colon, name = key.partition(":")
        if not (colon and re.fullmatch("[0-9]{1,9}", rank)):
            raise CheckpointError(f"{file}: {key} is of no rank")
        ranks.setdefault(int(rank), {})[name] = array
    if sorted(ranks) != list(range(len(ranks))):
        raise CheckpointError(f"{file}: a rank is missing")
    return tuple(ranks[rank] for rank in range(len(ranks)))


def read_arrays(file: str | Path) -> dict[str, np.ndarray]:
    """The arrays of a file of safetensors by their names; bfloat16 as float32.

    Raises:
        CheckpointError: it cannot be read, or is no such file.
    """
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from None
    return _arrays(Path(file), data)


def _arrays(file: Path, data: bytes) -> dict[str, np.ndarray]:
    try:
        return {name: _array(view) for name, view in deserialize(data)}
    except (SafetensorError, ArithmeticError, LookupError, TypeError, ValueError) as error:  # a stranger's header
        raise CheckpointError(f"{file}: not a file of safetensors ({type(error).__name__}: {error})") from None


def _array(view: Mapping[str, Any]) -> np.ndarray:
    """An array of a file of safetensors; bfloat16, which NumPy does not have, is the upper half of float32."""
    if view["dtype"] == "BF16":
        return (np.frombuffer(view["data"], "<u2").astype("<u4") << 16).view("<f4").reshape(view["shape"])
    return np.frombuffer(view["data"], _NUMBERS[view["dtype"]]).reshape(view["shape"])


def _state(file: Path, data: bytes) -> dict[str, Any]:
    try:
        state = json.loads(data)
    except (RecursionError, ValueError) as error:
        raise CheckpointError(f"{file}: not JSON ({error})") from None
    kinds = {"update": int, "optimizer_steps": dict, "epoch": int | float, "best": dict | None}
    given = state if isinstance(state, dict) else {}
    whole = {"update", "optimizer_steps"} <= given.keys()
    whole = whole and all(isinstance(given[key], kind) for key, kind in kinds.items() if key in given)
    whole = whole and all(isinstance(count, int) and abs(count) < 2**63 for count in given["optimizer_steps"].values())
    whole = whole and abs(given.get("epoch", 0)) < 2**63  # neither NaN nor infinite
    if best := given.get("best"):
        whole = whole and isinstance(best.get("checkpoint"), str) and isinstance(best.get("accuracy"), int | float)
    if not whole:
        raise CheckpointError(f"{file}: holds no state of a run")
    named = re.fullmatch(r"update-(\d+)", file.parent.name)  # a user's copies have other names
    if named and state["update"] != int(named[1]):
        what = f"is the state after update {state['update']}, and its folder's name says {int(named[1])}"
        raise CheckpointError(f"{file}: {what}; it was renamed or damaged")
    return state


@contextmanager
def refuse_foreign(checkpoint: Path) -> Iterator[None]:
    """Refuse a state that lacks what a run writes, or has it in another form: a stranger's, with right checksums.

    Raises:
        CheckpointError: what happens within fails for such a reason.
    """
    try:
        yield
    except InputRefused:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"{checkpoint}: its {_STATE} is not as a run writes it ({type(error).__name__}: {error})"
        raise CheckpointError(f"{what}; take another checkpoint") from error


def newest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint of a run's `checkpoints`, and what is wrong with newer ones."""
    newest, _, complaints = read_newest(folder)
    return newest, complaints


def read_newest(folder: Path) -> tuple[Path | None, CheckpointContent | None, list[str]]:
    """`newest_checkpoint` with what it holds."""
    complaints = []
    for candidate in reversed(checkpoints_in(folder)):
        try:
            return candidate, read_checkpoint(candidate), complaints
        except CheckpointError as error:
            complaints.append(str(error))
    return None, None, complaints


def load_into(
    model: chainer.Link,
    optimizer: chainer.Optimizer | None,
    content: CheckpointContent,
    *,
    averages: dict[str, np.ndarray] | None = None,
) -> dict[str, Any]:
    """Put what `read_checkpoint` gave into a model, its optimizer and the average of its weights.

    Returns:
        the state.
    Raises:
        CheckpointError: names or shapes are not those of the model.
    """
    weights, state = content.weights, content.state
    copy_arrays(weights, weights_of(model), "weights")
    for path, link, name in persistents_of(model):
        if not isinstance(getattr(link, name), chainer.get_array_types()) and path in weights:
            setattr(link, name, weights[path].item())
    if optimizer is not None:
        steps = state["optimizer_steps"]
        optimizer.t = steps[""]
        for path, parameter in optimizer.target.namedparams():
            rule = parameter.update_rule
            rule.t = steps[path]
            if rule.t:  # Chainer allocates the state in the first step, and there may have been none
                rule._init_states(parameter)
        copy_arrays(content.optimizer, optimizer_arrays(optimizer), "optimizer state")
    if averages is not None:
        copy_arrays(content.averages, averages, "averages of the weights")
    return state


def prune_checkpoints(folder: Path, *, upto: int, keep: int, best: str | None) -> None:
    """Remove all but the newest `keep` checkpoints and the one called `best`.

    Those after update `upto` do not count and stay: a resumed run has skipped them as damaged. A link stays, too.
    """
    for old in [path for path in checkpoints_in(folder) if update_of(path) <= upto][:-keep]:
        if old.name != best and not old.is_symlink():
            shutil.rmtree(old)


def _contiguous(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    host = chainer.get_device("@numpy")
    return {path: np.asarray(host.send(array), order="C") for path, array in arrays.items()}


def copy_arrays(source: dict[str, np.ndarray], target: dict[str, np.ndarray], what: str) -> None:
    """Copy arrays by path.

    Raises:
        CheckpointError: names or shapes differ.
    """
    if source.keys() != target.keys():
        odd = sorted(source.keys() ^ target.keys())
        raise CheckpointError(
            f"{what} of the checkpoint and of the model differ: {', '.join(odd[:5])} ({len(odd)} names)"
        )
    for path, array in target.items():
        if array.shape != source[path].shape:
            raise CheckpointError(f"{what} {path}: {source[path].shape} in the checkpoint, {array.shape} in the model")
        array[...] = chainer.backend.get_device_from_array(array).send(source[path])
