"""Patches that are applied when the module they belong to is imported."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


@dataclass(frozen=True)
class Around:
    """A patch entered before a module's code runs and left after it.

    Args:
        module: dotted name of the module whose import needs it.
        patch: gives a context manager whose value is whether the patch was needed here.
    """

    module: str
    patch: Callable[[], AbstractContextManager[bool]]


@dataclass(frozen=True)
class After:
    """A patch that changes a module once its code has run.

    Args:
        module: dotted name of the module to change.
        patch: called with the module; returns whether the patch was needed here.
    """

    module: str
    patch: Callable[[ModuleType], bool]


@dataclass(frozen=True, kw_only=True)
class PatchReport:
    """A row of `trainers.compat.patches()`.

    Args:
        name: of the patch's function.
        module: whose import applies it.
        symptom: what goes wrong without it.
        state: `applied`, `not needed` or `not imported yet`.
    """

    name: str
    module: str
    symptom: str
    state: str


class ImportHook(MetaPathFinder):
    """Finder that applies patches around the import of the modules they name.

    Args:
        patches: in the order in which those of one module are applied.
    """

    def __init__(self, patches: Sequence[Around | After]) -> None:
        self._patches = tuple(patches)
        self._needed: dict[Around | After, bool] = {}

    def install(self) -> None:
        """Become the first of Python's finders, and patch what is already imported. Does nothing the second time."""
        if self in sys.meta_path:
            return
        sys.meta_path.insert(0, self)
        for patch in self._patches:
            if isinstance(patch, After) and patch.module in sys.modules:
                self._needed[patch] = patch.patch(sys.modules[patch.module])

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """For a module to patch, the spec of the finder that has it, with the loader wrapped; None for all others."""
        if not any(patch.module == fullname for patch in self._patches):
            return None
        finders = sys.meta_path[sys.meta_path.index(self) + 1 :]  # earlier finders, such as other hooks, found nothing
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in finders)), None)
        if spec is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: self._execute(fullname, module, execute)
        return spec

    def _execute(self, name: str, module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
        patches = [patch for patch in self._patches if patch.module == name]
        with ExitStack() as stack:
            for patch in patches:
                if isinstance(patch, Around):
                    self._needed[patch] = stack.enter_context(patch.patch())
            execute(module)
        for patch in patches:
            if isinstance(patch, After):
                self._needed[patch] = patch.patch(module)

    def reports(self) -> list[PatchReport]:
        """One row for each patch."""
        states = {None: "not imported yet", True: "applied", False: "not needed"}
        return [
            PatchReport(
                name=patch.patch.__name__,
                module=patch.module,
                symptom=_symptom(patch.patch),
                state=states[self._needed.get(patch)],
            )
            for patch in self._patches
        ]


def _symptom(function: Callable) -> str:
    paragraphs = inspect.getdoc(function).split("\n\n")
    symptom = next(text for text in paragraphs if text.startswith("Symptom:"))
    return " ".join(symptom.removeprefix("Symptom:").split())
