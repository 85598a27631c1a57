"""A user's own components: `kind: mymodule.MyNet`, imported from the working directory under `--allow-code`."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from pathlib import Path
from typing import Any, get_type_hints

__all__ = ["own_class"]

# What `build` is told about the data set; a model takes of it what its constructor names.
_TOLD = ("num_classes", "channels", "image_size")
_METHODS = {**dict.fromkeys(("augmentations", "mixes", "schedules", "warmups"), "__call__"), "datasets": "open"}


def own_class(dotted: str, *, group: str) -> type:
    """The dataclass of a dotted name.

    A frozen dataclass with the methods of its group is used as it is. Of a `chainer.Chain` the arguments of the
    constructor become the fields, except `num_classes`, `channels` and `image_size`, which the data set fills in.

    Args:
        dotted: module and class.
        group: of the vocabulary.
    Raises:
        ImportError: the module is not there or fails.
        TypeError: the name is neither.
    """
    module_name, _, name = dotted.rpartition(".")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # at the end: a folder `recipes` of the user's must not hide ours
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (Exception, SystemExit) as error:  # a script may end itself
        # Whatever a user's module raises is told as a problem of the recipe's line, not as our traceback.
        raise ImportError(f"{type(error).__name__}: {error}") from error
    method = _METHODS.get(group, "build")
    if dataclasses.is_dataclass(found) and callable(getattr(found, method, None)):
        return found
    if group == "models" and isinstance(found, type) and _is_chain(found):
        return _component_of(found, dotted)
    also = " or a chainer.Chain" if group == "models" else ""
    raise TypeError(f"it is no frozen dataclass with {method}(){also}")


def _is_chain(found: type) -> bool:
    chainer = sys.modules.get("chainer")
    return chainer is not None and issubclass(found, chainer.Chain)


def _component_of(chain: type, dotted: str) -> type:
    """A dataclass whose fields are the arguments of a Chain's constructor."""
    parameters = inspect.signature(chain).parameters
    try:
        hints = get_type_hints(chain.__init__)
    except NameError:
        hints = {}
    fields = [
        (name, hints.get(name, Any), *_default(parameter))
        for name, parameter in parameters.items()
        if name not in _TOLD and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]

    def build(self: Any, **told: Any) -> Any:
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return chain(**given, **{name: told[name] for name in _TOLD if name in parameters})

    def reduce(self: Any) -> tuple:
        return _remade, (dotted, {field.name: getattr(self, field.name) for field in dataclasses.fields(self)})

    methods = {"build": build, "__reduce__": reduce, "__doc__": chain.__doc__}
    return dataclasses.make_dataclass(chain.__name__, fields, namespace=methods, frozen=True, kw_only=True)


def _default(parameter: inspect.Parameter) -> tuple[Any, ...]:
    if parameter.default is parameter.empty:
        return ()
    return (dataclasses.field(default_factory=lambda: parameter.default),)


def _remade(dotted: str, values: dict[str, Any]) -> Any:
    return own_class(dotted, group="models")(**values)
