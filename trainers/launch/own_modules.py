"""Opens a recipe in a program that goes on: its own modules must be those that ranks, new processes, will import."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from recipes.errors import InputRefused, RecipeError
from recipes.reading.open import OpenedRecipe
from recipes.reading.registry import shown
from trainers.launch.request import open_request
from trainers.launch.vocabulary import changed_modules
from trainers.runs.identity import code_digests, own_code
from trainers.runs.mpi_ranks import launched_ranks
from trainers.training.request import TrainRequest

# Imports nothing: it looks for the first part of a module's name, and prints the package's folders or the file.
_FIND = """\
import importlib.util, json, sys
names, folders = json.loads(sys.argv[1])
sys.path += [folder for folder in folders if folder not in sys.path]
found = {}
for name in names:
    spec = importlib.util.find_spec(name)
    found[name] = spec and [*(spec.submodule_search_locations or [spec.origin])]
print(json.dumps(found))
"""


def open_with_its_code(request: TrainRequest) -> OpenedRecipe:
    """Open a recipe, and refuse modules of one's own that this process has imported and ranks would not.

    Raises:
        RecipeError: the recipe is wrong.
        InputRefused: a module's file has changed since it was imported, or it was imported from another folder.
    """
    try:
        opened = open_request(request, looks=True)
    except RecipeError as error:
        try:
            _require_unchanged_code(changed_modules() if request.allow_code else ())
        except InputRefused as changed:  # perhaps the cause
            raise InputRefused(f"{error}\n{changed}") from error
        raise
    files = own_code([opened.tree, opened.dataset_tree], opened.code_folders)
    _require_unchanged_code({path.resolve() for path in files.values()}.intersection(changed_modules()))
    if launched_ranks() is None:  # else this process is a rank
        _require_found_by_ranks(opened, files)
    return opened


def _require_unchanged_code(changed: Iterable[Path]) -> None:
    if first := min(changed, default=None):
        what = f"{shown(first)} has changed since this program imported it"
        raise InputRefused(f"{what}; restart the program, or the notebook's kernel")


def _require_found_by_ranks(opened: OpenedRecipe, files: dict[str, Path]) -> None:
    """Refuse modules that ranks take from another file with other bytes, or do not find."""
    others = {}
    for name, path in files.items():
        module = sys.modules.get(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        imported = getattr(module, "__file__", None)
        if imported is not None and Path(imported).is_file() and Path(imported).read_bytes() != path.read_bytes():
            others[name] = Path(imported)
    digests = code_digests([opened.tree, opened.dataset_tree], opened.code_folders)
    unseen = {name.partition(".")[0] for name, digest in digests.items() if digest is None}
    unseen = {name for name in unseen if getattr(sys.modules.get(name), "__file__", None) and name != "__main__"}
    if not others and not unseen:
        return
    firsts = {name: name.partition("/")[0].removesuffix(".py") for name in others}
    found = _found_by_a_new_process([*{*firsts.values(), *unseen}], opened.code_folders)
    for name, imported in others.items():
        path = files[name]
        folder = path.parents[name.count("/")]
        of_recipe = {(folder / firsts[name]).resolve(), (folder / f"{firsts[name]}.py").resolve()}
        if of_recipe.intersection(Path(each).resolve() for each in found.get(firsts[name]) or ()):
            what = f"this program has imported {shown(imported)}, and the recipe's code is {shown(path)}"
            raise InputRefused(f"{what}; restart the program, or the notebook's kernel")
    for name in sorted(unseen):
        if found.get(name, ()) is None:
            what = f"{shown(Path(sys.modules[name].__file__))} lies where ranks do not look"
            raise InputRefused(f"{what}; move it into the working directory, or to the recipe's file")


def _found_by_a_new_process(names: Sequence[str], folders: Sequence[Path]) -> dict[str, list[str] | None]:
    """Where a new process finds modules, by their names; None: nowhere. Empty if it cannot be asked."""
    asked = json.dumps([names, [str(folder.resolve()) for folder in folders]])
    done = subprocess.run([sys.executable, "-P", "-c", _FIND, asked], capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {}
