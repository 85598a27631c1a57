"""Optimizers: each a frozen dataclass whose `build` gives a Chainer optimizer without a model and without a rate.

`rate_attribute` names the attribute of the Chainer optimizer that the updater sets before every update, to a Python
float. One without `states` says in `num_state_values` how many numbers it keeps for one of a parameter. Weight decay
is added by `trainers.optimizers.weight_decay.decay_parameters` once the Chainer optimizer is set up with a model; if
`decays_itself` is true the update rules add it themselves, because their trust ratio depends on it. `fused_step`
describes an update so that kernels can apply it to all parameters at once (`fused_step`); without it Chainer updates
parameter by parameter. Weight decay and averaged weights stand here too; this room imports from kernels and runs.
"""

from trainers.optimizers.ada_scale import AdaScale
from trainers.optimizers.adam import Adam
from trainers.optimizers.lamb import Lamb
from trainers.optimizers.lars import Lars
from trainers.optimizers.muon import Muon
from trainers.optimizers.rmsprop_warmup import RmspropWarmup
from trainers.optimizers.schedule_free import ScheduleFreeSGD
from trainers.optimizers.sgd import SGD, CorrectedMomentumSGD, CorrectedNesterovAG, MomentumSGD, NesterovAG

__all__ = [
    "AdaScale",
    "Adam",
    "CorrectedMomentumSGD",
    "CorrectedNesterovAG",
    "Lamb",
    "Lars",
    "MomentumSGD",
    "Muon",
    "NesterovAG",
    "RmspropWarmup",
    "SGD",
    "ScheduleFreeSGD",
]
