"""`kilobatch recipes pack`: gathers what a pack holds from runs or from a recipe."""

from __future__ import annotations

import filecmp
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from shlex import quote
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from recipes.errors import InputRefused, refuse_unreachable
from recipes.packs.make import pack_contents
from recipes.reading.identity import identity_ids
from recipes.reading.open import CODE, OpenedRecipe, open_recipe
from recipes.reading.registry import can_name_folder, is_of_pack, shown
from recipes.sharing.pack_file import SUFFIX, write_pack, write_pack_of_layout
from trainers.launch.identity import made_of, missing_modules
from trainers.launch.preflight import require_code_of_packs
from trainers.launch.vocabulary import vocabulary
from trainers.runs.identity import own_code, read_identity, sha256_of_files
from trainers.runs.run_folder import CHECKPOINTS, RECIPE, environment_of


@refuse_unreachable()
def pack(
    names: Sequence[str], *, out: Path | None, weights: bool, data: Path | None, allow_code: bool
) -> tuple[Path, str, dict[str, Any]]:
    """Write a pack of runs, of one recipe, or of an image layout that holds one; returns its path, digest and head.

    Raises:
        InputRefused: it is a pack already; the runs do not belong together, have not ended or were changed; the weights
            to begin with are no safetensors, own code is not here, or a stranger's pack names own code that it does not
            hold; the file cannot be written.
    """
    known = vocabulary(allow_code=allow_code)

    def opened_at(name: str | Path) -> OpenedRecipe:
        return open_recipe(name, vocabulary=known, allow_code=allow_code or None, data_root=data, of_run=None)

    if len(names) == 1 and (Path(names[0]) / "oci-layout").is_file():
        path = file_of_pack(out, Path(names[0]).resolve().name)
        found = written_once(path, lambda part: write_pack_of_layout(part, Path(names[0])))
        return path, found.digest, found.head
    folders = [Path(name) for name in names if (Path(name) / RECIPE).is_file()]
    if len(folders) != len(names) and len(names) > 1:
        stray = next(name for name in names if Path(name) not in folders)
        raise InputRefused(f"{stray} is no folder of a run; name runs only, or one recipe")
    runs = sorted(((opened_at(folder / RECIPE), folder) for folder in folders), key=lambda run: run[0].recipe.seed)
    opened = runs[0][0] if runs else opened_at(names[0])
    folders = opened.code_folders
    if runs:
        recorded = read_identity(runs[0][1]) or {}
        parts = {what: recorded.get(what) or {} for what in ("code", "data")}
        folders = (runs[0][1] / CODE, *folders)
    else:
        if is_of_pack(opened.path):
            what = f"{names[0]}: is a pack already, and its runs and weights would be left out"
            way_out = (
                "copy its file" if names[0].endswith(SUFFIX) else "pull its file, or pack a recipe that extends it"
            )
            raise InputRefused(f"{what}; {way_out}")
        require_code_of_packs(opened)
        if missing := missing_modules(opened):
            what = f"{shown(opened.path)}: names code that is not here: {', '.join(missing)}"
            raise InputRefused(f"{what}; put the files beside the recipe or into the working directory")
        parts = made_of(opened)
    code = own_code([opened.tree, opened.dataset_tree], folders)
    if runs and sha256_of_files(code) != parts["code"]:
        what = f"{runs[0][1] / CODE}: own code is not that which the run was trained with"
        raise InputRefused(f"{what}; put it back as it was, or train anew")
    if weights and not runs:
        raise InputRefused("--weights: a recipe has none; name the folder of a run")
    ids = identity_ids(opened, parts)
    for each, folder in runs:
        trained = environment_of(folder).get("ids") or {}
        if trained.get("recipe") != identity_ids(each, {})["recipe"] or trained.get("data") != ids["data"]:
            what = f"{folder}: recipe.yaml or the data are not those that it was trained with"
            raise InputRefused(f"{what}; pack runs as `kilobatch train` left them")
        if trained.get("code") != ids["code"]:
            what = f"{folder} was trained with other code than {runs[0][1] / CODE} has"
            raise InputRefused(f"{what}; pack runs of the same code, as `kilobatch train` left them")
    if init := opened.recipe.init:
        _require_weights(Path(init.weights))
    head, files = pack_contents(
        opened,
        ids=ids,
        made_of=parts,
        lock="".join(sorted({f"{package.name}=={package.version}\n" for package in distributions()})),
        runs=runs,
        own_code=code,
        vocabulary=known,
        weights=_scored_weights(runs[0][1]) if weights else None,
    )
    path = file_of_pack(out, head["name"])
    return path, written_once(path, lambda part: write_pack(part, head, files)), head


def _require_weights(file: Path) -> None:
    """Refuse to give away a file that holds no weights; one that is missing is refused later."""
    try:
        with safe_open(file, framework="numpy"):
            pass
    except FileNotFoundError:
        pass
    except (SafetensorError, OSError) as error:
        what = f"init.weights: {file} is no file of safetensors ({error}), and goes into no pack"
        raise InputRefused(f"{what}; name a file of weights") from None


def _scored_weights(folder: Path) -> bytes:
    """What evaluation scores of a run's newest checkpoint: the averages where it has them, else the weights."""
    from trainers.runs.checkpoint import read_checkpoint
    from trainers.tasks.score_run import checkpoint_called  # and Chainer

    return save(read_checkpoint(checkpoint_called("newest", folder / CHECKPOINTS)).scored().weights)


def file_of_pack(out: Path | None, name: str) -> Path:
    """The file that a pack is to be written into: `out`, by default one of its name here.

    Raises:
        InputRefused: commands would not take it as a pack.
    """
    path = out or Path(f"{name}{SUFFIX}")
    if path.suffix != SUFFIX:
        raise InputRefused(f"{path}: a pack's file ends in {SUFFIX}; write -o {path.stem or 'mine'}{SUFFIX}")
    if not can_name_folder(path.name):
        other = path.with_name(re.sub(r"[^A-Za-z0-9_.-]+", "_", path.stem).strip("._-")[:100] or "mine")
        what = "the name of a pack's file has letters without accents, digits, `_`, `.` and `-`, at most 200"
        raise InputRefused(f"{path}: {what}; write -o {quote(f'{other}{SUFFIX}')}")
    return path


def written_once(path: Path, write: Callable[[Path], Any]) -> Any:
    """What `write` returns; the file that it makes never takes the place of another one.

    Raises:
        InputRefused: the file exists and holds something else, or cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        written = write(part)
        if path.exists() and not filecmp.cmp(path, part, shallow=False):
            raise InputRefused(f"{path}: exists and holds something else; remove it, or give another -o")
        part.replace(path)
        return written
    except OSError as error:
        raise InputRefused(f"{path} cannot be written: {error.strerror}; give another -o") from error
    finally:
        with suppress(OSError):
            part.unlink()
