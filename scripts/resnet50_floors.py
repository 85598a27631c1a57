"""Lower bounds on the time of a step of ResNet-50, from its operations and bytes and the GPU's measured rates."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np


def ceilings() -> dict[str, float]:
    """This GPU's measured rates: bytes a second of a copy, operations a second of a matrix product of each type."""
    import torch

    def seconds(work: Callable[[], Any]) -> float:
        times = []
        for _ in range(8):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
        return float(np.median(times[3:]))

    source = torch.randn(1 << 29, device="cuda")
    found = {"bytes": 2 * source.nbytes / seconds(source.clone)}
    for name, kind in {"float32": "float32", "tf32": "float32", "mixed16": "float16", "bfloat16": "bfloat16"}.items():
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=getattr(torch, kind)) for _ in range(2))
        found[name] = 2 * 8192**3 / seconds(lambda a=a, b=b: a @ b)
    torch.cuda.empty_cache()
    return found


@functools.cache
def work_of_an_image(side: int) -> tuple[int, int]:
    """For one image of a step: operations of the convolutions, and the least number of values read and written.

    A convolution is computed three times (the first one twice: images need no gradient); each time two of x, y and
    their gradients are moved. Normalisation with ReLU reads x twice and writes once, and moves five such arrays
    backward; a sum in it moves two more forward and two backward. Weights are left out.
    """
    import chainer
    from chainer.functions.connection.convolution_2d import Convolution2DFunction
    from chainer.functions.math.basic_math import Add
    from resnet50_in_chainer import chainer_model

    operations = values = 0
    with chainer.using_config("train", False):
        y = chainer_model()(np.zeros((1, 3, side, side), np.float32))
    nodes, seen = [y.creator], set()
    while nodes:
        node = nodes.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        nodes += [one.creator_node for one in node.inputs if one.creator_node is not None]
        if isinstance(node, Convolution2DFunction):
            x, W = (one.shape for one in node.inputs[:2])
            out = node.outputs[0]().shape
            times = 2 if x[1] == 3 else 3
            operations += times * 2 * int(np.prod(out)) * int(np.prod(W[1:]))
            values += times * int(np.prod(x) + np.prod(out)) + 8 * int(np.prod(out))
        elif isinstance(node, Add):
            values += 4 * int(np.prod(node.outputs[0]().shape))
    return operations, values


def floors(batch: int, side: int, precision: str, ceiling: dict[str, float]) -> tuple[float, float]:
    """The least seconds of a step, by operations and by bytes."""
    operations, values = work_of_an_image(side)
    width = 2 if precision in ("mixed16", "bfloat16") else 4
    return batch * operations / ceiling[precision], batch * values * width / ceiling["bytes"]
