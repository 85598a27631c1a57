"""ReLU and sums on a GPU that keep the memory layout of their inputs, where CuPy's own always write C order."""

from __future__ import annotations

from typing import Any

from trainers.kernels.cuda import launcher
from trainers.kernels.cuda.launcher import ACCESS_BYTES, THREADS, address


def relu(x: Any) -> Any | None:
    """max(x, 0). As in all functions here, None where x has no axes or gaps in memory, or the types differ."""
    return _alike("relu", x)


def relu_gradient(y: Any, gy: Any) -> Any | None:
    """gy where y > 0, else 0."""
    return _alike("relu_gradient", y, gy)


def add(x: Any, y: Any) -> Any | None:
    """x + y"""
    return _alike("add", x, y)


def add_to(x: Any, y: Any) -> bool:
    """x += y, in place; returns whether it was done."""
    return _alike("add_to", x, y, in_place=True) is not None


def _alike(name: str, *arrays: Any, in_place: bool = False) -> Any | None:
    """Run a kernel on arrays brought into the first one's layout; `in_place` it writes the first one."""
    first, xp = arrays[0], launcher.device.xp
    if not first.ndim or any(array.dtype != first.dtype for array in arrays):
        return None
    order = sorted(range(first.ndim), key=lambda axis: -first.strides[axis])  # stable: C order where all are equal
    if not first.transpose(order).flags.c_contiguous:
        return None
    rows = [xp.ascontiguousarray(array.transpose(order)) for array in arrays]
    if not in_place:
        rows.append(xp.empty(rows[0].shape, first.dtype))
    aligned = not any(address(array) % ACCESS_BYTES for array in rows)  # not so: parts of arrays
    width = launcher.width_of(first.itemsize, first.size) if aligned else 1
    blocks = -(-first.size // (width * THREADS))
    launcher.device.launch(name, first.dtype.char, width, (blocks,), (*rows, first.size))
    return first if in_place else rows[-1].transpose(sorted(range(first.ndim), key=order.__getitem__))
