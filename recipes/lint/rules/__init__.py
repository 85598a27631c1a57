"""The rules of `kilobatch recipes lint`: every public function of a file in this folder is one.

Its name, with `-` for `_`, is the rule's id. Its docstring is the entry in docs/lint.md: what is found, an empty line,
why that is a fault, `Way out:`, `Source:`, and two changes to a recipe: `Fires:`, which breaks this rule and no other,
and `Quiet:`, which just keeps it. Rules in `workers.py` run only if the number of workers is known.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from functools import cache

__all__ = ["all_rules"]


@cache
def all_rules() -> tuple[Callable, ...]:
    """Every rule, by name."""
    modules = [importlib.import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]
    functions = [
        function
        for module in modules
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    ]
    return tuple(sorted(functions, key=lambda function: function.__name__))
