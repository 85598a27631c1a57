"""Patches for what NumPy 2 and a Chainer without ChainerX break inside ChainerMN."""

from __future__ import annotations

from types import ModuleType

from trainers.compat.import_hook import After


def unpack_params_dtype(module: ModuleType) -> bool:
    """Receives into an array of the type on the wire, then casts.

    Symptom: ValueError: Unable to avoid copy while creating an array as requested (`_memory_utility.unpack_params`,
    where the parameters' type differs from that of the transfer: allreduce_grad_dtype="float16").
    """

    def unpack_params(params, attr_name, buffer, transfer_dtype, zero_fill, stream=None):
        offset = 0
        for param in params:
            if attr_name == "grad" and zero_fill and param.grad is None:
                param.grad = param.xp.zeros_like(param.data)
            target = getattr(param, attr_name)
            num_bytes = target.size * module.np.dtype(transfer_dtype).itemsize
            received = target if target.dtype == transfer_dtype else target.astype(transfer_dtype)
            buffer.to_device(received, num_bytes, offset, stream)
            offset += num_bytes
            if received is not target:
                target[...] = received.astype(target.dtype)

    module.unpack_params = unpack_params
    return True


def observed_variable(module: ModuleType) -> bool:
    """Replaces an observed variable by its value on the CPU before ObservationAggregator sees it.

    Symptom: RuntimeError: ChainerX is not available (ObservationAggregator on a Variable: `to_device("native")`).
    """
    aggregator = module.ObservationAggregator
    original = aggregator.compute_summary

    def compute_summary(self, trainer):
        value = trainer.observation.get(self.original_key)
        if isinstance(value, module.Variable):
            value.to_cpu()
            trainer.observation[self.original_key] = value.array
        return original(self, trainer)

    aggregator.compute_summary = compute_summary
    return True


def multi_node_iterator_size(module: ModuleType) -> bool:
    """Gives the module an `int` that accepts arrays of one element, in which the iterator sends its numbers.

    Symptom: TypeError: only 0-dimensional arrays can be converted to Python scalars (create_multi_node_iterator, on
    every rank but the master, which then waits for ever).
    """
    module.int = lambda value: int(module.numpy.asarray(value).item())
    return True


PATCHES = (
    After("chainermn.communicators._memory_utility", unpack_params_dtype),
    After("chainermn.extensions.observation_aggregator", observed_variable),
    After("chainermn.iterators.multi_node_iterator", multi_node_iterator_size),
)
