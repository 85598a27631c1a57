"""Schedule-free SGD: an average of the iterates takes the place of a schedule of the rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from lr_schedules.units import require_number
from trainers.optimizers.hyperparameters import build_from_formula
from trainers.optimizers.weight_decay import NoDecay, require_weight_decay


@dataclass(frozen=True, kw_only=True)
class ScheduleFreeSGD:
    """SGD whose gradients are taken between its iterate z and the average x of its iterates, which is evaluated.

        y = (1 - beta) z + beta x                         # the weights while training: g is their gradient
        z <- z - eta g
        x <- (1 - c) x + c z                              c = w / (sum of all w so far), w = (largest eta so far)^2

    Both start at the first weights. The model holds y, the state d = z - y, so that all of it is

        y <- y + c d - eta (1 - beta (1 - c)) g
        d <- (1 - c) (d - beta eta g)                     and x = y + (1 - 1 / beta) d

    Evaluation scores x with running statistics of its own, `trainers.training.evaluation_point`; a checkpoint keeps x
    where it keeps averages of the weights, beside y. Leave the rate constant behind its warmup: that is what it is for.

    Notation: g gradient, of y, with its decay; eta the rate of this update.

    Args:
        beta: in (0, 1).
        weight_decay: lambda, at least 0: g becomes g + lambda y.
        no_decay: parameters that are not decayed: `norm` (scales and shifts of normalisation), `bias`, both or neither.
    Raises:
        ValueError: `beta` is outside (0, 1); `weight_decay` is negative; `no_decay` holds another word or one twice.

    Source: Defazio et al. 2024, arXiv 2405.15682; github.com/facebookresearch/schedule_free at 70785b5 (both as notes
        made from them have it), with r = 0.
    """

    beta: float = 0.9
    weight_decay: float = 0.0
    no_decay: tuple[NoDecay, ...] = ()

    rate_attribute: ClassVar[str] = "lr"
    rate_rule: ClassVar[str] = "linear"
    states: ClassVar[tuple[str, ...]] = ("d",)
    numbers: ClassVar[tuple[str, ...]] = ("largest_rate", "sum_of_weights")
    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_number("ScheduleFreeSGD.beta", self.beta, above=0)
        if not self.beta < 1:
            raise ValueError(f"ScheduleFreeSGD.beta must be < 1, got {self.beta!r}")
        require_weight_decay(self)

    def update(self, w: Any, g: Any, state: Any, hyperparam: Any, *, t: int, xp: Any) -> None:
        """One update of a parameter in place: weights w, which are y, gradient g and the state; see the formula."""
        d, largest, total, rate = state["d"], state["largest_rate"], state["sum_of_weights"], hyperparam.lr
        xp.maximum(largest, rate, out=largest)
        total += largest**2
        c = xp.where(total > 0, largest**2 / xp.where(total > 0, total, 1.0), 0.0)  # on the device: it never waits
        w += c.astype(w.dtype) * d
        w -= (rate * (1.0 - self.beta * (1.0 - c))).astype(w.dtype) * g
        d -= (self.beta * rate) * g
        d *= (1.0 - c).astype(w.dtype)

    def evaluated(self, w: Any, state: Any) -> Any:
        """x of a parameter; its weights where no update has been made."""
        return w + (1.0 - 1.0 / self.beta) * state["d"] if state else w

    build = build_from_formula
