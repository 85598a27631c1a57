"""Convolution and its two gradients by matrix products over images whose channels are last in memory.

Arguments and results have Chainer's axes (NCHW), as views of memory in the order NHWC; an input in another order is
copied once. Patches are gathered (im2col) block by block into memory that stays in the cache.

Notation: n images, c channels in, o channels out, h x w in, oh x ow out, kh x kw kernel.

With `groups` above 1 the images are so many norm groups, and the products of each are those it would have alone, see
`trainers.kernels.by_group`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator

import numpy as np

from trainers.kernels import by_group
from trainers.kernels.by_group import sum_of_groups
from trainers.kernels.threads import num_threads, shared

_BLOCK_VALUES = 1 << 19  # patches gathered at once: 2 MiB of float32
_BLOCK_ROWS = 1024  # at least, where blocks are summed: adding the product of few rows costs as much as the product
WORTH_THREADS = 1 << 23  # multiplications
_kept = threading.local()

Pair = tuple[int, int]


def out_size(size: Pair, kernel: Pair, stride: Pair, pad: Pair) -> Pair:
    """Height and width of a convolution's output."""
    return tuple((s + 2 * p - k) // step + 1 for s, k, step, p in zip(size, kernel, stride, pad, strict=True))


def convolution(
    x: np.ndarray, W: np.ndarray, b: np.ndarray | None, *, stride: Pair, pad: Pair, groups: int = 1
) -> np.ndarray:
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
    return _as_NCHW(_products(channels_last(x), by_patch, b, kernel, stride, pad, groups))


def convolution_data(
    gy: np.ndarray, W: np.ndarray, *, size: Pair, stride: Pair, pad: Pair, groups: int = 1
) -> np.ndarray:
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
        return _as_NCHW(_products(gy_NHWC, flipped, None, tuple(kernel), stride, around, groups))
    gx = np.zeros((len(gy), *size, num_in), gy.dtype)
    by_image = W.transpose(0, 2, 3, 1).reshape(num_out, -1)

    def of_images(images: slice, some: slice) -> None:
        whole = some.stop - some.start
        if tuple(kernel) == (1, 1) and pad == (0, 0):
            given = gy_NHWC[images].reshape(whole, -1, num_out) @ by_image
            gx[images, :: stride[0], :: stride[1]] = given.reshape(*gy_NHWC[images].shape[:3], -1)
        else:
            _add_patches(gx[images], gy_NHWC[images], by_image, tuple(kernel), stride, pad, whole)

    _on_threads(of_images, _pieces(gy_NHWC, row=by_image.shape[1], groups=groups))
    return _as_NCHW(gx)


def convolution_weights(
    x: np.ndarray, gy: np.ndarray, *, kernel: Pair, stride: Pair, pad: Pair, groups: int = 1
) -> np.ndarray:
    """The gradient of a convolution's weights.

    Args:
        x: (n, c, h, w).
        gy: (n, o, oh, ow).
    Returns:
        (o, c, kh, kw).
    """
    x_NHWC, gy_NHWC = channels_last(x), channels_last(gy)
    num_out, row = gy_NHWC.shape[3], kernel[0] * kernel[1] * x_NHWC.shape[3]
    pieces = _pieces(gy_NHWC, row=row, groups=groups)
    gW = np.empty((pieces[-1][1].stop, num_out, row), x_NHWC.dtype)
    most = max(_BLOCK_VALUES, _BLOCK_ROWS * row)

    def of_images(images: slice, some: slice) -> None:
        gy_some, gW_some, out = gy_NHWC[images], gW[some], gy_NHWC.shape[1:3]
        span = len(gy_some) // len(gW_some)
        for part, rows, patches in _patches(x_NHWC[images], kernel, stride, pad, out, most, len(gW_some)):
            gy_rows = gy_some[part, rows].reshape(*patches.shape[:2], num_out).transpose(0, 2, 1)
            first, rest = divmod(part.start, span)
            if rest == rows.start == 0:
                np.matmul(gy_rows, patches, out=gW_some[first : first + len(patches)])
            else:
                gW_some[first] += (gy_rows @ patches)[0]

    _on_threads(of_images, pieces)
    while groups > 1 and len(gW) > 1:  # `tree_sum` in the memory that is there: new memory costs page faults
        gW = np.add(gW[0::2], gW[1::2], out=gW[0::2])
    return sum_of_groups(gW).reshape(num_out, *kernel, -1).transpose(0, 3, 1, 2)


def channels_last(x_NCHW: np.ndarray) -> np.ndarray:
    """The same values as a contiguous array (n, h, w, c); a copy only where channels are not last in memory."""
    return np.ascontiguousarray(x_NCHW.transpose(0, 2, 3, 1))


def _as_NCHW(x_NHWC: np.ndarray) -> np.ndarray:
    return x_NHWC.transpose(0, 3, 1, 2)


def _products(
    x_NHWC: np.ndarray,
    by_patch: np.ndarray,
    b: np.ndarray | None,
    kernel: Pair,
    stride: Pair,
    pad: Pair,
    groups: int,
) -> np.ndarray:
    """Each patch of the images, as a row, times a matrix (kh * kw * c, o)."""
    n, *size, _ = x_NHWC.shape
    out = out_size(tuple(size), kernel, stride, pad)
    y = np.empty((n, *out, by_patch.shape[1]), x_NHWC.dtype)

    def of_images(images: slice, some: slice) -> None:
        y_some, whole = y[images], some.stop - some.start
        for part, rows, patches in _patches(x_NHWC[images], kernel, stride, pad, out, _BLOCK_VALUES, whole):
            np.matmul(patches, by_patch, out=y_some[part, rows].reshape(*patches.shape[:2], -1))
        if b is not None:
            y_some += b

    _on_threads(of_images, _pieces(y, row=len(by_patch), groups=groups))
    return y


# Images that are computed at once, and the rows of a sum over images that they give: one a norm group, else one.
_Piece = tuple[slice, slice]
_PIECES = 4  # of images without norm groups: an evaluation has the same bits on any number of threads


def _pieces(y_NHWC: np.ndarray, *, row: int, groups: int) -> list[_Piece]:
    """What threads compute at once for an output, or its gradient; `row`: multiplications for a value of it.

    Norm groups that are computed apart stay whole, and other images are cut by their number alone, so that the number
    of threads changes no bit.
    """
    n = len(y_NHWC)
    is_worth = y_NHWC.size * row >= WORTH_THREADS
    if groups > 1 or by_group.count:
        threads = min(num_threads(), groups) if is_worth else 1
        cuts, span = [groups * k // threads for k in range(threads + 1)], n // groups
        return [(slice(a * span, b * span), slice(a, b)) for a, b in itertools.pairwise(cuts)]
    pieces = min(_PIECES, n) if is_worth else 1
    cuts = [n * k // pieces for k in range(pieces + 1)]
    return [(slice(a, b), slice(k, k + 1)) for k, (a, b) in enumerate(itertools.pairwise(cuts))]


def _on_threads(task: Callable[[slice, slice], None], pieces: list[_Piece]) -> None:
    def of_some(start: int, stop: int) -> None:
        for piece in pieces[start:stop]:
            task(*piece)

    shared(of_some, len(pieces), worth=True)


def _add_patches(
    gx_NHWC: np.ndarray,
    gy_NHWC: np.ndarray,
    by_image: np.ndarray,
    kernel: Pair,
    stride: Pair,
    pad: Pair,
    groups: int,
) -> None:
    """col2im: add to `gx_NHWC`, zeros, what each output pixel contributes to its patch of the input."""
    (_, height, width, num_in), (n, oh, ow, num_out) = gx_NHWC.shape, gy_NHWC.shape
    (kh, kw), (sy, sx), (ph, pw) = kernel, stride, pad
    together = max(1, _BLOCK_VALUES // (oh * ow * kh * kw * num_in))
    padded_size = (max(height + 2 * ph, sy * (oh - 1) + kh), max(width + 2 * pw, sx * (ow - 1) + kw))
    for images, whole in _blocks(n, together, groups):
        part = gy_NHWC[images]
        given = (part.reshape(whole, -1, num_out) @ by_image).reshape(len(part), oh, ow, kh, kw, num_in)
        padded = np.zeros((len(part), *padded_size, num_in), gx_NHWC.dtype)
        for j in range(kh):
            for i in range(kw):
                padded[:, j : j + sy * oh : sy, i : i + sx * ow : sx] += given[:, :, :, j, i]
        gx_NHWC[images] = padded[:, ph : ph + height, pw : pw + width]


def _blocks(n: int, together: int, groups: int) -> Iterator[tuple[slice, int]]:
    """Images that are computed together, and how many whole groups they are; 1 where they are part of one.

    A group is cut in the same way beside any number of others.
    """
    span = n // groups
    if together >= span:
        together -= together % span
        for start in range(0, n, together):
            stop = min(start + together, n)
            yield slice(start, stop), (stop - start) // span
        return
    for end in range(span, n + 1, span):
        for start in range(end - span, end, together):
            yield slice(start, min(start + together, end)), 1


def _patches(
    x_NHWC: np.ndarray, kernel: Pair, stride: Pair, pad: Pair, out: Pair, most: int, groups: int
) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """Blocks of patches: images and rows of the output that they belong to, and the patches.

    Patches are (groups, patches of a group, kh * kw * c); one group where the images are part of one. Valid until the
    next block. `most`: values of a block, at least an image's row.
    """
    n, height, width, channels = x_NHWC.shape
    (kh, kw), (sy, sx), (ph, pw), (oh, ow) = kernel, stride, pad, out
    row = kh * kw * channels
    if kernel == (1, 1) and pad == (0, 0):
        pixels = x_NHWC if stride == (1, 1) else np.ascontiguousarray(x_NHWC[:, ::sy, ::sx])
        yield slice(0, n), slice(0, oh), pixels.reshape(groups, -1, channels)
        return
    together = max(1, most // (oh * ow * row))
    rows = oh if together > 1 else max(1, min(oh, most // (ow * row)))
    gathered = _memory(min(together, n) * rows * ow * row, x_NHWC.dtype)
    padded = x_NHWC
    if (ph, pw) != (0, 0):
        padded = np.zeros((min(together, n), height + 2 * ph, width + 2 * pw, channels), x_NHWC.dtype)
    value = x_NHWC.itemsize  # not from .strides: the stride of an axis of length 1 may be anything
    pixel = channels * value
    line = padded.shape[2] * pixel
    for images, whole in _blocks(n, together, groups):
        part = x_NHWC[images]
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
            yield images, slice(top, top + count), block.reshape(whole, -1, row)


def _memory(size: int, dtype: np.dtype) -> np.ndarray:
    """This thread's workspace for patches, of at least `size` values; reused, since new memory costs page faults."""
    flat = getattr(_kept, dtype.char, None)
    if flat is None or flat.size < size:
        flat = np.empty(size, dtype)
        setattr(_kept, dtype.char, flat)
    return flat[:size]


def free_workspace() -> None:
    """Free this thread's workspace for patches."""
    _kept.__dict__.clear()
