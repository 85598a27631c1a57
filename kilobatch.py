"""`import kilobatch` is the Python API, `python -m kilobatch` the command line; both are loaded when they are used."""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainers.commands.python_api import (
        InputRefused,
        OpenRecipe,
        RecipeError,
        Run,
        RunFailed,
        open,
        plan,
        runs,
        train,
    )

__all__ = ["InputRefused", "OpenRecipe", "RecipeError", "Run", "RunFailed", "open", "plan", "runs", "train"]


class _OwnPackages(MetaPathFinder):
    """Finds our packages beside this file, also where the working directory has a `recipes` of its own.

    Before Chainer is imported, it imports `trainers`, which patches Chainer for current Python and NumPy.
    """

    folder = str(Path(__file__).resolve().parent)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As of any finder; None for other modules, and for those within the packages."""
        if name in ("chainer", "chainercv", "chainermn") and "trainers" not in sys.modules:
            import_module("trainers")  # its finders come before this one
            return find_spec(name)
        return PathFinder.find_spec(name, [self.folder]) if name in ("lr_schedules", "recipes", "trainers") else None


sys.meta_path.insert(0, _OwnPackages())


def __getattr__(name: str) -> Any:
    if name in (*__all__, "app"):
        module = "command_line" if name == "app" else "python_api"
        return getattr(import_module(f"trainers.commands.{module}"), name)
    if name == "__version__":
        return import_module("importlib.metadata").version("kilobatch")
    raise AttributeError(f"module 'kilobatch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__", "main"]


def main() -> None:
    """Runs the command line."""
    gc.set_threshold(100_000)  # imports leave next to no garbage, and looking for it takes a tenth of their time
    try:
        command_line = import_module("trainers.commands.command_line")
    except KeyboardInterrupt:
        sys.exit(130)  # as Typer ends on a Ctrl-C later
    command_line.main()


if __name__ == "__main__":
    main()
