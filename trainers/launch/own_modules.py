"""Opens a recipe in a program that goes on: its own modules must be those that ranks, new processes, will import."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from recipes.errors import InputRefused, RecipeError
from recipes.reading.open import OpenedRecipe
from recipes.reading.registry import shown
from trainers.launch.request import open_request
from trainers.launch.vocabulary import changed_modules
from trainers.runs.identity import code_digests, own_code
from trainers.training.request import TrainRequest


def open_with_its_code(request: TrainRequest) -> OpenedRecipe:
    """Open a recipe, and refuse modules of one's own that this process has imported and ranks would not.

    Raises:
        RecipeError: the recipe is wrong.
        InputRefused: a module's file has changed since it was imported, or it was imported from another folder.
    """
    try:
        opened = open_request(request, looks=True)
    except RecipeError:  # perhaps of the code as it was
        _require_unchanged_code(changed_modules())
        raise
    trees = [opened.tree, opened.dataset_tree]
    files = own_code(trees, opened.code_folders)
    _require_unchanged_code({path.resolve() for path in files.values()}.intersection(changed_modules()))
    for name, path in files.items():
        module = sys.modules.get(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        imported = getattr(module, "__file__", None)
        if imported is not None and Path(imported).is_file() and Path(imported).read_bytes() != path.read_bytes():
            what = f"this program has imported {shown(Path(imported))}, and the recipe's code is {shown(path)}"
            raise InputRefused(f"{what}; restart the program, or the notebook's kernel")
    program = getattr(sys.modules["__main__"], "__file__", None)
    for name, digest in code_digests(trees, opened.code_folders).items():
        module = None if digest is not None else sys.modules.get(name.partition(".")[0])
        file = getattr(module, "__file__", None)
        if file and program and Path(file).parent == Path(program).absolute().parent:
            what = f"{shown(Path(file))} lies beside the program, where ranks do not look"
            raise InputRefused(f"{what}; move it into the working directory, or to the recipe's file")
    return opened


def _require_unchanged_code(changed: Iterable[Path]) -> None:
    if first := min(changed, default=None):
        what = f"{shown(first)} has changed since this program imported it"
        raise InputRefused(f"{what}; restart the program, or the notebook's kernel")
