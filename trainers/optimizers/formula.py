"""`build` of an optimizer whose `update` is its formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import chainer


def build_from_formula(self: Any) -> chainer.Optimizer:
    """Chainer's optimizer of a component, see `component_rule.py`; `set_hyperparameters` sets its rate."""
    from trainers.optimizers.component_rule import ComponentOptimizer

    return ComponentOptimizer(self)
