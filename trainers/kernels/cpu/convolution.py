"""Convolution and its two gradients by matrix products over images whose channels are last in memory.

Arguments and results have Chainer's axes (NCHW), as views of memory in the order NHWC; an input in another order is
copied once. Patches are gathered (im2col) block by block into memory that stays in the cache.

Notation: n images, c channels in, o channels out, h x w in, oh x ow out, kh x kw kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np

_BLOCK_VALUES = 1 << 19  # patches gathered at once: 2 MiB of float32
_BLOCK_ROWS = 1024  # at least, where blocks are summed: adding the product of few rows costs as much as the product
_kept = threading.local()

Pair = tuple[int, int]


def out_size(size: Pair, kernel: Pair, stride: Pair, pad: Pair) -> Pair:
    """Height and width of a convolution's output."""
    return tuple((s + 2 * p - k) // step + 1 for s, k, step, p in zip(size, kernel, stride, pad, strict=True))


def convolution(x: np.ndarray, W: np.ndarray, b: np.ndarray | None, *, stride: Pair, pad: Pair) -> np.ndarray:
    """y[n, o] = sum over c of x[n, c] correlated with W[o, c], plus b[o].

    Args:
        x: (n, c, h, w).
        W: (o, c, kh, kw).
        b: (o,) or None.
    Returns:
        (n, o, oh, ow).
    """
    kernel = W.shape[2:]
    if kernel == (1, 1) and pad == (0, 0):
        by_patch = W.reshape(W.shape[:2]).T
    else:
        by_patch = W.transpose(2, 3, 1, 0).reshape(-1, len(W))
    return _as_NCHW(_products(channels_last(x), by_patch, b, kernel, stride, pad))


def convolution_data(gy: np.ndarray, W: np.ndarray, *, size: Pair, stride: Pair, pad: Pair) -> np.ndarray:
    """The gradient of a convolution's input; a transposed convolution.

    Args:
        gy: (n, o, oh, ow), where (oh, ow) = out_size(size, ...).
        W: (o, c, kh, kw).
        size: (h, w).
    Returns:
        (n, c, h, w).
    """
    gy_NHWC, (num_out, num_in, *kernel) = channels_last(gy), W.shape
    if stride == (1, 1) and all(p < k for p, k in zip(pad, kernel, strict=True)):
        flipped = W[:, :, ::-1, ::-1].transpose(2, 3, 0, 1).reshape(-1, num_in)
        around = tuple(k - 1 - p for p, k in zip(pad, kernel, strict=True))
        return _as_NCHW(_products(gy_NHWC, flipped, None, tuple(kernel), stride, around))
    gx = np.zeros((len(gy), *size, num_in), gy.dtype)
    by_image = W.transpose(0, 2, 3, 1).reshape(num_out, -1)
    if tuple(kernel) == (1, 1) and pad == (0, 0):
        gx[:, :: stride[0], :: stride[1]] = (gy_NHWC.reshape(-1, num_out) @ by_image).reshape(*gy_NHWC.shape[:3], -1)
    else:
        _add_patches(gx, gy_NHWC, by_image, tuple(kernel), stride, pad)
    return _as_NCHW(gx)


def convolution_weights(x: np.ndarray, gy: np.ndarray, *, kernel: Pair, stride: Pair, pad: Pair) -> np.ndarray:
    """The gradient of a convolution's weights.

    Args:
        x: (n, c, h, w).
        gy: (n, o, oh, ow).
    Returns:
        (o, c, kh, kw).
    """
    x_NHWC, gy_NHWC = channels_last(x), channels_last(gy)
    num_out = gy_NHWC.shape[3]
    row = kernel[0] * kernel[1] * x_NHWC.shape[3]
    gW = None
    most = max(_BLOCK_VALUES, _BLOCK_ROWS * row)
    for images, rows, patches in _patches(x_NHWC, kernel, stride, pad, gy_NHWC.shape[1:3], most):
        part = gy_NHWC[images, rows].reshape(-1, num_out).T @ patches
        gW = part if gW is None else np.add(gW, part, out=gW)
    return gW.reshape(num_out, *kernel, -1).transpose(0, 3, 1, 2)


def channels_last(x_NCHW: np.ndarray) -> np.ndarray:
    """The same values as a contiguous array (n, h, w, c); a copy only where channels are not last in memory."""
    return np.ascontiguousarray(x_NCHW.transpose(0, 2, 3, 1))


def _as_NCHW(x_NHWC: np.ndarray) -> np.ndarray:
    return x_NHWC.transpose(0, 3, 1, 2)


def _products(
    x_NHWC: np.ndarray, by_patch: np.ndarray, b: np.ndarray | None, kernel: Pair, stride: Pair, pad: Pair
) -> np.ndarray:
    """Each patch of the images, as a row, times a matrix (kh * kw * c, o)."""
    n, *size, _ = x_NHWC.shape
    out = out_size(tuple(size), kernel, stride, pad)
    y = np.empty((n, *out, by_patch.shape[1]), x_NHWC.dtype)
    for images, rows, patches in _patches(x_NHWC, kernel, stride, pad, out, _BLOCK_VALUES):
        np.matmul(patches, by_patch, out=y[images, rows].reshape(len(patches), -1))
    if b is not None:
        y += b
    return y


def _add_patches(
    gx_NHWC: np.ndarray, gy_NHWC: np.ndarray, by_image: np.ndarray, kernel: Pair, stride: Pair, pad: Pair
) -> None:
    """col2im: add to `gx_NHWC`, zeros, what each output pixel contributes to its patch of the input."""
    (_, height, width, num_in), (n, oh, ow, num_out) = gx_NHWC.shape, gy_NHWC.shape
    (kh, kw), (sy, sx), (ph, pw) = kernel, stride, pad
    together = max(1, _BLOCK_VALUES // (oh * ow * kh * kw * num_in))
    padded_size = (max(height + 2 * ph, sy * (oh - 1) + kh), max(width + 2 * pw, sx * (ow - 1) + kw))
    for start in range(0, n, together):
        part = gy_NHWC[start : start + together]
        given = (part.reshape(-1, num_out) @ by_image).reshape(len(part), oh, ow, kh, kw, num_in)
        padded = np.zeros((len(part), *padded_size, num_in), gx_NHWC.dtype)
        for j in range(kh):
            for i in range(kw):
                padded[:, j : j + sy * oh : sy, i : i + sx * ow : sx] += given[:, :, :, j, i]
        gx_NHWC[start : start + together] = padded[:, ph : ph + height, pw : pw + width]


def _patches(
    x_NHWC: np.ndarray, kernel: Pair, stride: Pair, pad: Pair, out: Pair, most: int
) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """Blocks of patches: images and rows of the output that they belong to, and the patches, one a row.

    Valid until the next block. `most`: values of a block, at least an image's row.
    """
    n, height, width, channels = x_NHWC.shape
    (kh, kw), (sy, sx), (ph, pw), (oh, ow) = kernel, stride, pad, out
    row = kh * kw * channels
    if kernel == (1, 1) and pad == (0, 0):
        pixels = x_NHWC if stride == (1, 1) else np.ascontiguousarray(x_NHWC[:, ::sy, ::sx])
        yield slice(None), slice(None), pixels.reshape(-1, channels)
        return
    together = max(1, min(n, most // (oh * ow * row)))
    rows = oh if together > 1 else max(1, min(oh, most // (ow * row)))
    gathered = _memory(together * rows * ow * row, x_NHWC.dtype)
    padded = x_NHWC
    if (ph, pw) != (0, 0):
        padded = np.zeros((together, height + 2 * ph, width + 2 * pw, channels), x_NHWC.dtype)
    value = x_NHWC.itemsize  # not from .strides: the stride of an axis of length 1 may be anything
    pixel = channels * value
    line = padded.shape[2] * pixel
    for start in range(0, n, together):
        part = x_NHWC[start : start + together]
        if (ph, pw) == (0, 0):
            padded = part
        else:
            padded[: len(part), ph : ph + height, pw : pw + width] = part
        for top in range(0, oh, rows):
            count = min(rows, oh - top)
            windows = np.ndarray(
                (len(part), count, ow, kh, kw * channels),
                x_NHWC.dtype,
                buffer=padded,
                offset=top * sy * line,
                strides=(padded.shape[1] * line, sy * line, sx * pixel, line, value),
            )
            block = gathered[: windows.size].reshape(windows.shape)
            np.copyto(block, windows)
            yield slice(start, start + together), slice(top, top + count), block.reshape(-1, row)


def _memory(size: int, dtype: np.dtype) -> np.ndarray:
    """This thread's workspace for patches, of at least `size` values; reused, since new memory costs page faults."""
    flat = getattr(_kept, dtype.char, None)
    if flat is None or flat.size < size:
        flat = np.empty(size, dtype)
        setattr(_kept, dtype.char, flat)
    return flat[:size]
