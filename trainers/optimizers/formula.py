"""What optimizers share that have a formula here."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import chainer


class Formula:
    """An optimizer by its formula: `update` moves one parameter. See `component_rule` for what else a class names."""

    rate_attribute: ClassVar[str] = "lr"

    def build(self) -> chainer.Optimizer:
        """The Chainer optimizer; the updater sets its `lr`."""
        from trainers.optimizers.component_rule import ComponentOptimizer

        return ComponentOptimizer(self)
