"""From backward to one mean gradient on all workers.

What lies between a backward pass and the optimizer's step enters here: `flat_gradients` collects the gradients,
`exchange` averages them over the workers, `mixed_precision` sets the number format of forward and backward, `norms`
measures and clips gradients. This room imports from communicators, kernels and runs.
"""
