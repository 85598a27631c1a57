"""The training loop of one rank: `train` builds a run, `updater` does its updates, `mean_gradient` their gradients.

`extensions` holds what happens between updates (metrics, evaluation, checkpoints, those of a recipe); `device` and
`exact_mode` hold what a device and exact mode ask of a run. This room imports from the rooms of parts (models,
datasets, gradients, optimizers) and those below; `launch` imports from it.
"""
