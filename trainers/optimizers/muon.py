"""Muon: momentum, made orthogonal matrix by matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal

from recipes.arguments import require_count, require_share
from trainers.optimizers.hyperparameters import build_from_formula
from trainers.optimizers.weight_decay import NoDecay, require_weight_decay

_A, _B, _C = 3.4445, -4.7750, 2.0315
# Five are usual; a recipe may come from a stranger, and each iteration of each update takes time. Assumed.
_MOST_ITERATIONS = 100


@dataclass(frozen=True, kw_only=True)
class Muon:
    """SGD with Nesterov momentum whose step has nearly equal singular values.

        m <- beta m + (1 - beta) g
        u  = (1 - beta) g + beta m                        # m is the new one
        w <- (1 - eta lambda) w
        w <- w - eta s O(u)

    O(u): u as a matrix of its first axis against all others, transposed if it has more rows than columns, divided by
    its Frobenius norm + 1e-7; then so many times

        A = X X^T;   X <- a X + (b A + c A A) X           a, b, c = 3.4445, -4.7750, 2.0315

    in float64, which maps singular values from 0.01 to 1 into about 0.7 to 1.2 after five.

    Parameters with one axis, and those that `others` names, are updated by `w <- w - eta u`; give them a rate of their
    own by `learning_rate.factors`.

    Notation: w weights, g gradient, eta the rate of this update, lambda `weight_decay`, m starts at 0.

    Args:
        momentum: beta, in [0, 1).
        iterations: of the polynomial, 1 to 100.
        scale: s, of a matrix with so many rows and columns: `rows`, sqrt(max(1, rows / columns)); `largest`,
            0.2 sqrt(max(rows, columns)), whose step is about as long as Adam's; `none`, 1.
        others: patterns of paths of matrices that are not made orthogonal, each of which names one, by default the last
            layer: `fc`, or `fc6` of the larger ResNets; of VGG16 and AlexNetBN that is the first linear layer as well.
        weight_decay: lambda, at least 0, times the rate.
        no_decay: parameters that are not decayed: `norm` (scales and shifts of normalisation), `bias`, both or neither.
    Raises:
        ValueError: `momentum` is outside [0, 1); `iterations` is no whole number 1 to 100; `scale` is another word;
            `weight_decay` is negative; `no_decay` holds another word or one twice.

    Source: github.com/KellerJordan/Muon, muon.py at 857d1ad; `largest`: github.com/MoonshotAI/Moonlight,
        examples/toy_train.py at abaa96e (both as notes made from them have it).
    Differs: the former takes rows and columns of s from the last two axes of a convolution, so that its s is 1; here
        the convolution is flattened first. Both compute O in bfloat16.
    """

    momentum: float = 0.95
    iterations: int = 5
    scale: Literal["rows", "largest", "none"] = "rows"
    others: tuple[str, ...] = ("/fc/*", "/fc6/*")
    weight_decay: float = 0.0
    no_decay: tuple[NoDecay, ...] = ("norm", "bias")

    rate_attribute: ClassVar[str] = "lr"
    states: ClassVar[tuple[str, ...]] = ("m",)
    elementwise: ClassVar[bool] = False
    decay: ClassVar[str] = "times_rate"

    def __post_init__(self) -> None:
        require_share("Muon.momentum", self.momentum)
        require_count("Muon.iterations", self.iterations, at_most=_MOST_ITERATIONS)
        if not isinstance(self.others, tuple) or not all(isinstance(pattern, str) for pattern in self.others):
            raise ValueError(f"Muon.others must be patterns of paths, got {self.others!r}")
        if self.scale not in ("rows", "largest", "none"):
            raise ValueError(f"Muon.scale must be rows, largest or none, got {self.scale!r}")
        require_weight_decay(self)

    @property
    def required_matrices(self) -> tuple[str, ...]:
        """Patterns that must name a matrix of the model: `others`, but for the default, which is for any model."""
        return () if self.others == type(self).others else self.others

    def update(self, w: Any, g: Any, state: Any, hyperparam: Any, *, t: int, xp: Any) -> None:
        """One update of a parameter in place: weights w, gradient g and the state; see the formula above."""
        m = state["m"]
        m *= self.momentum
        m += (1.0 - self.momentum) * g
        u = (1.0 - self.momentum) * g + self.momentum * m
        if w.ndim >= 2 and not any(fnmatchcase(hyperparam.path, pattern) for pattern in self.others):
            matrix = u.reshape(len(u), -1)
            u = (self._scale(*matrix.shape) * self._orthogonal(xp, matrix)).reshape(w.shape).astype(w.dtype)
        w -= hyperparam.lr * u

    def _scale(self, rows: int, columns: int) -> float:
        if self.scale == "none":
            return 1.0
        return math.sqrt(max(1.0, rows / columns)) if self.scale == "rows" else 0.2 * math.sqrt(max(rows, columns))

    def _orthogonal(self, xp: Any, matrix: Any) -> Any:
        x = matrix.astype(xp.float64)
        turned = x.shape[0] > x.shape[1]
        x = x.T if turned else x
        x = x / (xp.sqrt((x * x).sum()) + 1e-7)
        for _ in range(self.iterations):
            a = x @ x.T
            x = _A * x + (_B * a + _C * (a @ a)) @ x
        return x.T if turned else x

    build = build_from_formula
