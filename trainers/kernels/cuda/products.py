"""Matrix products for CUDA graphs: CuPy refuses to call cuBLAS in a capture."""

from __future__ import annotations

from typing import Any

from trainers.kernels import chainer_hooks
from trainers.kernels.cuda import launcher

_AT_ONE_PIXEL = {"stride": (1, 1), "pad": (0, 0)}


def product(a: Any, b: Any) -> Any | None:
    """a @ b as a convolution of images of one pixel, or one of its gradients, whichever reads both without a copy.

    None outside of captures and their rehearsals, where the types differ, or where there is no such convolution: then
    cuBLAS serves. A rehearsal makes the plans and loads their kernels, which may synchronise and so is not allowed in a
    capture.
    """
    if not launcher.device.rehearses or a.dtype != b.dtype:
        return None
    ours = chainer_hooks.operators_for(a, b)
    if a.flags.c_contiguous and b.flags.c_contiguous:
        y = ours.convolution_data(_pixels(a), _pixels(b), size=(1, 1), **_AT_ONE_PIXEL)
    elif b.flags.c_contiguous:
        y = ours.convolution_weights(_pixels(b), _pixels(a.T), kernel=(1, 1), **_AT_ONE_PIXEL)
    else:
        y = ours.convolution(_pixels(a), _pixels(b.T), None, **_AT_ONE_PIXEL)
    return None if y is None else y.reshape(len(a), -1)


def _pixels(matrix: Any) -> Any:
    return matrix[:, :, None, None]
