"""Arithmetic over the values of a recipe, such as `learning_rate.reference * optimizer.weight_decay`."""

from __future__ import annotations

import ast
import itertools
import math
import operator
import re
from collections.abc import Callable
from typing import Any

_PATH = re.compile(r"(?<![\w.])[A-Za-z_]\w*(\.\w+)*")
_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_MAX_NODES = 500  # nodes: an expression deeper than Python's recursion limit has more


class Expression:
    """An expression of dotted paths and numbers, with + - * / and parentheses.

    Raises:
        ValueError: it is something else, or names no path.

    >>> halved = Expression("(learning_rate.reference + 1e-1) / 2")
    >>> halved.paths, halved({"learning_rate.reference": 0.3}.__getitem__)
    (('learning_rate.reference',), 0.2)
    """

    def __init__(self, text: str) -> None:
        names: dict[str, str] = {}

        def named(match: re.Match) -> str:  # paths become names: `train.0`, an item of a list, is not valid Python
            return names.setdefault(match[0], f"_{len(names)}")

        try:
            self._tree = ast.parse(_PATH.sub(named, text).strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # ValueError: a null character; else too deep
            raise ValueError("it cannot be read") from None
        nodes = [*itertools.islice(ast.walk(self._tree), _MAX_NODES + 1)]
        if len(nodes) > _MAX_NODES:
            raise ValueError(f"it cannot be read: it has over {_MAX_NODES} parts")
        self._names = {name: path for path, name in names.items()}
        if not names:
            raise ValueError("it names no path of the recipe")
        for node in nodes:
            _require_plain(node)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths it names, each once."""
        return tuple(self._names.values())

    def __call__(self, value_at: Callable[[str], Any]) -> float:
        """The value of the expression, with the value of each path from `value_at`.

        Raises:
            ValueError: a value is no number, the division is by 0, or the result is no number that a float can hold.
        """
        try:
            value = float(self._evaluate(self._tree, value_at))
        except ZeroDivisionError:
            raise ValueError("a division by 0") from None
        except OverflowError as error:
            raise ValueError(f"it has no number: {error}") from None
        if math.isnan(value):
            raise ValueError("it has no number: infinity less infinity, or times 0")
        return value

    def _evaluate(self, node: ast.AST, value_at: Callable[[str], Any]) -> Any:
        if isinstance(node, ast.BinOp):
            left, right = (self._evaluate(side, value_at) for side in (node.left, node.right))
            return _OPERATIONS[type(node.op)](left, right)
        if isinstance(node, ast.UnaryOp):
            return -self._evaluate(node.operand, value_at)
        if isinstance(node, ast.Constant):
            return node.value
        assert isinstance(node, ast.Name)
        path = self._names[node.id]
        value = value_at(path)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{path} is {value!r}, which is no number")
        return value


def _require_plain(node: ast.AST) -> None:
    number = isinstance(node, ast.Constant) and type(node.value) in (int, float)
    operation = isinstance(node, ast.BinOp | ast.UnaryOp | ast.USub | ast.Name | ast.Load) or type(node) in _OPERATIONS
    if isinstance(node, ast.UnaryOp):
        operation = isinstance(node.op, ast.USub)
    if not (number or operation):
        raise ValueError(f"{type(node).__name__} is none of + - * / ( )")
