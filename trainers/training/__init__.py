"""The training loop of one rank: `train` builds a run, `updater` does its updates, `mean_gradient` their gradients.

Here enter evaluation, metrics, profiles, extensions and what a device or exact mode asks of a run. This room imports
from the rooms of parts (models, datasets, gradients, optimizers) and those below; `launch` imports from it.
"""
