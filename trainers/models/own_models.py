"""What the layers of a model of one's own show before it runs: what a run would not do as they say."""

from __future__ import annotations

import hashlib
from typing import Any

import chainer
import numpy as np

from trainers.runs.checkpoint import persistents_of


def require_one_path(model: chainer.Link) -> None:
    """Refuse a parameter, or a layer with persistent values, that is registered twice: it would be updated twice.

    Raises:
        ValueError: names both paths.
    """
    named = [(path, parameter) for path, parameter in model.namedparams()]
    named += [(path, link) for path, link in model.namedlinks() if link._persistent]
    first: dict[int, str] = {}
    for path, each in sorted(named, key=lambda pair: pair[0]):
        if (other := first.setdefault(id(each), path)) != path:
            raise ValueError(
                f"{path} is also {other}, and would be updated twice; register the layer once and call it twice, or "
                "give its parameter to a function of chainer.functions"
            )


def require_numbers(model: chainer.Link) -> None:
    """Refuse persistent values that a checkpoint cannot hold: other than None, numbers and arrays of numbers.

    Raises:
        ValueError: names the first.
    """
    for path, link, name in sorted(persistents_of(model), key=lambda each: each[0]):
        value = getattr(link, name)
        try:
            kind = "f" if value is None else np.asarray(value).dtype.kind
        except ValueError:  # lists of several lengths
            kind = "O"
        if kind not in "biuf":
            what = f"the persistent value {path}, of {type(value).__name__}, is no number and no array of numbers"
            raise ValueError(f"{what}, which a checkpoint holds; keep it as a plain attribute")


class AsInitialized:
    """Within, notes each array that an initializer makes, to tell later which parameters have other values since.

    Attributes:
        disabled: the links whose `disable_update` was called.
    """

    def __init__(self) -> None:
        self.disabled: list[chainer.Link] = []
        self._made: dict[int, tuple[np.ndarray, bytes]] = {}  # the array too: its id is its own while it lives

    def __enter__(self) -> AsInitialized:
        self._generate = generate = chainer.initializers.generate_array

        def noting(*args: Any, **how: Any) -> Any:
            array = generate(*args, **how)
            self._made[id(array)] = array, _digest(array)
            return array

        def noting_link(link: chainer.Link) -> None:
            self.disabled.append(link)
            disable(link)

        chainer.initializers.generate_array = noting
        self._disable = disable = chainer.Link.disable_update
        chainer.Link.disable_update = noting_link
        return self

    def __exit__(self, *exception: object) -> None:
        chainer.initializers.generate_array, chainer.Link.disable_update = self._generate, self._disable

    def changed(self, model: chainer.Link) -> list[str]:
        """Paths of the parameters that have an initializer and other values than it made; copied layers have not."""
        digests, changed = {digest for _, digest in self._made.values()}, []
        for path, parameter in sorted(model.namedparams()):
            if parameter.array is None or isinstance(parameter.initializer, np.ndarray):
                continue
            _, digest = self._made.get(id(parameter.array), (None, None))
            if _digest(parameter.array) not in (digests if digest is None else {digest}):
                changed.append(path)
        return changed


def _digest(array: np.ndarray) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(array)).digest()
