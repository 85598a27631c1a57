"""Initial weights and dropout masks as functions of the recipe's seed and of what they are for."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import chainer
import numpy as np
from chainer.functions.noise import dropout as dropout_module
from chainer.functions.util import forget as forget_module

from recipes.planning.random_bits import Draws, draws, word


@dataclass(frozen=True)
class KeyedGenerator:
    """The two distributions that Chainer's initializers ask a generator for, from keyed draws."""

    draws: Draws

    def normal(self, loc: float = 0.0, scale: float = 1.0, *, size: Any) -> np.ndarray:
        """Normal numbers, float64 of shape `size`."""
        return loc + scale * self.draws.normals(int(np.prod(size))).reshape(size)

    def uniform(self, low: float = 0.0, high: float = 1.0, *, size: Any) -> np.ndarray:
        """Uniform numbers in [low, high), float64 of shape `size`."""
        return low + (high - low) * self.draws.uniforms(int(np.prod(size))).reshape(size)


def draw_initial_weights(model: chainer.Link, *, seed: int) -> None:
    """Draw every parameter again by its own initializer, keyed by (seed, parameter path).

    The same weights come out whatever was drawn before and in whatever order the links were made. A parameter that was
    given an array, as in `chainer.Parameter(array)`, begins with it; it has no initializer. An initializer that
    takes no generator of its own draws from NumPy's legacy global one (its stream is frozen), seeded for this parameter
    and put back afterwards.

    Args:
        model: all parameters have their shapes; on the CPU.
        seed: the recipe's seed.
    Raises:
        ValueError: a parameter has no shape yet.
    """
    for path, parameter in sorted(model.namedparams()):
        if parameter.array is None:
            raise ValueError(f"parameter {path} has no shape yet: give its layer an input size, or call the model once")
        key = word(path)
        initializer = parameter.initializer
        if isinstance(initializer, np.ndarray):
            continue
        if hasattr(initializer, "rng"):
            before, initializer.rng = initializer.rng, KeyedGenerator(draws(seed, "weights", key))
            try:
                initializer(parameter.array)
            finally:
                initializer.rng = before
        else:
            _initialize_from_global(initializer, parameter.array, draws(seed, "weights", key))


def _initialize_from_global(initializer: Any, array: np.ndarray, keyed: Draws) -> None:
    before = np.random.get_state()
    np.random.seed(keyed.bits(4).view(np.uint32))
    try:
        array[...] = chainer.initializers.generate_array(initializer, array.shape, np, dtype=array.dtype)
    finally:
        np.random.set_state(before)


class KeyedDropout(chainer.LinkHook):
    """Masks of `F.dropout` keyed by (seed, epoch, index, layer path), in effect inside a `with`.

    A sample's mask does not depend on the samples beside it, nor on the worker. The layer path is that of the innermost
    link that calls `F.dropout`, and the number of the call within it. What `F.forget` computes again in backward, after
    the `with`, has the same masks.

    Args:
        model: its paths name the layers.
        seed: the recipe's seed.
        epochs: epoch of each sample of the micro-batch, int (samples,).
        indices: index of each sample, int (samples,).
    """

    name = "KeyedDropout"

    def __init__(self, model: chainer.Link, *, seed: int, epochs: np.ndarray, indices: np.ndarray) -> None:
        self._model, self._seed, self._epochs, self._indices = model, seed, epochs, indices
        self._stack: list[chainer.Link] = []
        self._calls: Counter[str] = Counter()

    def __enter__(self) -> KeyedDropout:
        super().__enter__()
        self._forward, self._forgetting = dropout_module.Dropout.forward, forget_module.Forget.forward
        dropout_module.Dropout.forward = self._patched(self._forward)
        forget_module.Forget.forward = self._patched_forget(self._forgetting)
        return self

    def __exit__(self, *exception: object) -> None:
        dropout_module.Dropout.forward = self._forward
        forget_module.Forget.forward = self._forgetting
        super().__exit__(*exception)

    def forward_preprocess(self, args: Any) -> None:
        """Note which link runs."""
        self._stack.append(args.link)

    def forward_postprocess(self, args: Any) -> None:
        """Forget it again."""
        self._stack.pop()

    @contextmanager
    def only(self, rows: slice) -> Iterator[None]:
        """Masks within are those of some of the samples, as they would be if these were alone."""
        epochs, indices, calls = self._epochs, self._indices, self._calls.copy()
        self._of(epochs[rows], indices[rows])
        try:
            yield
        finally:
            self._of(epochs, indices)
            self._calls = calls

    def _of(self, epochs: np.ndarray, indices: np.ndarray) -> None:
        self._epochs, self._indices = epochs, indices
        self.__dict__.pop("_samples", None)

    def mask(self, shape: tuple[int, ...], ratio: float, dtype: np.dtype) -> np.ndarray:
        """The scaled mask of one call: 0 or 1 / (1 - ratio), of `shape` (samples, ...)."""
        path = self._paths.get(id(self._stack[-1]), "") if self._stack else ""
        self._calls[path] += 1
        key = word(f"{path}#{self._calls[path]}")
        if shape[0] != len(self._samples):
            raise ValueError(
                f"dropout in {path or 'the model'} on {shape[0]} rows for {len(self._samples)} samples: "
                "its first axis must be the sample"
            )
        if not ratio:
            return np.ones(shape, dtype)
        size = int(np.prod(shape[1:]))
        rows = [draws(self._seed, "dropout", epoch, index, key).uniforms(size) for epoch, index in self._samples]
        return ((np.stack(rows) >= ratio) / (1.0 - ratio)).reshape(shape).astype(dtype)

    @functools.cached_property  # of this and the next: many models have no dropout
    def _paths(self) -> dict[int, str]:
        return {id(link): path for path, link in self._model.namedlinks()}

    @functools.cached_property
    def _samples(self) -> list[tuple[int, int]]:
        return [(int(e), int(i)) for e, i in zip(self._epochs, self._indices, strict=True)]

    def _patched(self, forward: Any) -> Any:
        def keyed(node: Any, inputs: tuple[np.ndarray, ...]) -> Any:
            if node.mask is None:
                mask = self.mask(inputs[0].shape, node.dropout_ratio, inputs[0].dtype)
                node.mask = chainer.backend.get_array_module(inputs[0]).asarray(mask)
            return forward(node, inputs)

        return keyed

    def _patched_forget(self, forward: Any) -> Any:
        def keyed(node: Any, inputs: tuple[np.ndarray, ...]) -> Any:
            func, stack, calls = node.func, [*self._stack], self._calls.copy()
            epochs, indices = self._epochs, self._indices

            def again(*variables: chainer.Variable) -> Any:
                if not chainer.config.in_recomputing:
                    return func(*variables)
                same = KeyedDropout(self._model, seed=self._seed, epochs=epochs, indices=indices)
                same._stack, same._calls = [*stack], calls.copy()
                with same:
                    return func(*variables)

            node.func = again
            return forward(node, inputs)

        return keyed
