"""Schedules of learning rate and batch size: pure, stateless functions of the epochs seen.

A class in `__all__` of `shapes` or `warmups` is a `kind` of the YAML: `kind: Cosine` is `lr_schedules.Cosine`. Imports
only from the standard library.
"""

from lr_schedules import combine, ramps, scaling, shapes, warmups
from lr_schedules.combine import *  # noqa: F403
from lr_schedules.ramps import *  # noqa: F403
from lr_schedules.scaling import *  # noqa: F403
from lr_schedules.shapes import *  # noqa: F403
from lr_schedules.warmups import *  # noqa: F403

__all__ = sorted(name for module in (combine, ramps, scaling, shapes, warmups) for name in module.__all__)
