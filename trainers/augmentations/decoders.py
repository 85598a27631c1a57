"""Decoders of image files, and the resampling that goes with each: a family gives its own pixels.

    turbo       JPEG by libjpeg-turbo (simplejpeg), resampling by `resampling`
    opencv      the same decoder, resampling by OpenCV
    pillow      all by Pillow; where simplejpeg is missing
    nvimgcodec  JPEG by NVIDIA's nvImageCodec on the CPU, which decodes no more than the crop; resampling by OpenCV
    dali        the same by a pipeline of NVIDIA's DALI on the CPU, which is given the file and the crop

Files that are no JPEG, JPEGs in CMYK, and JPEGs that libjpeg-turbo has a warning about are decoded by Pillow in each
family. So all families read the same files, and decode the same pixels from a JPEG in colour with `channels: 3`; as
grey they differ by some levels. Resampled ones are Pillow's in turbo, but for its rounding where Pillow takes the
columns first; OpenCV's differ by about half a step of 255 on average.

A process uses one family, chosen by `use` or by KILOBATCH_DECODER in its environment, else the first of turbo and
pillow that is installed.
"""

from __future__ import annotations

import io
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Literal

import numpy as np
from PIL import Image, UnidentifiedImageError

from recipes.errors import InputRefused
from trainers.augmentations import resampling

VARIABLE = "KILOBATCH_DECODER"
MOST_PIXELS = 2 * 89_478_485  # of an image that is decoded, Pillow's limit: 179 million

# Modes of 8 bits a channel; Pillow reduces 16-bit colour to these. It would clip the other modes (I;16, I, F) to white.
_MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"})
_GREY_ALPHA_16 = b"\x10\x04"  # bits and colour type in a PNG's header; Pillow reduces it to 8 bits

# Formats that are opened, whatever the file's suffix. Of Pillow's others, EPS would run Ghostscript on the file.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP")

# Warnings of Pillow that would appear in the middle of a run without the file's name: of damaged EXIF data, which is
# not used; of transparency, which is dropped; of large images. Pillow still refuses images of twice its limit.
warnings.filterwarnings("ignore", module=r"PIL\.TiffImagePlugin")
warnings.filterwarnings("ignore", message="Palette images with Transparency", module=r"PIL\.Image")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


Interpolation = Literal["bilinear", "bicubic"]


class UndecodableImage(ValueError):
    """The bytes of a file are no image, or are damaged."""


class EncodedImage:
    """The bytes of an image file, decoded when its pixels are needed.

    Args:
        file: its bytes.
        channels: 3 for colour, 1 for grey.
    Attributes:
        shape: (height, width, channels), from the file's header.
        dtype: uint8.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, file: bytes, channels: int) -> None:
        self._file, self._channels = file, channels
        self.shape = (*size_of(file), channels)

    def decoded(self) -> np.ndarray:
        """All of it, uint8 HWC."""
        return decode(self._file, self._channels)

    def crop(self, top: int, left: int, height: int, width: int) -> np.ndarray:
        """A rectangle of it in pixels, uint8 HWC: the bytes of the whole there."""
        with _decoding() as family:
            return family.crop(self._file, self._channels, (top, left, height, width))


def size_of(file: bytes) -> tuple[int, int]:
    """Height and width of an image file in pixels, from its header.

    Raises:
        UndecodableImage: no image, or 16 bits or more a channel.
    """
    with _decoding() as family:
        return family.size(file)


def format_of(file: bytes) -> str:
    """The format of an image file, as Pillow calls it: JPEG, PNG, BMP, GIF or WEBP; its header is read.

    Raises:
        UndecodableImage: see `size_of`.
    """
    with _decoding(), _open_with_pillow(file) as image:
        return image.format or ""


@contextmanager
def _decoding() -> Iterator[_Family]:
    """The family in use; what it raises is damage of the file."""
    family = _FAMILIES[in_use()]
    try:
        yield family
    except UnidentifiedImageError as error:  # its text has the address of the bytes
        raise UndecodableImage(f"not a readable image (it is no {', '.join(FORMATS[:-1])} or {FORMATS[-1]})") from error
    except MemoryError:  # of this machine: another rank may decode the file
        raise
    except Exception as error:  # Pillow raises OSError, SyntaxError, struct.error and more for broken files
        raise UndecodableImage(f"not a readable image ({type(error).__name__}: {error})") from error


def decode(file: bytes, channels: int) -> np.ndarray:
    """The pixels of an image file, uint8 HWC; transparency is dropped, an orientation in the EXIF data is not applied.

    Raises:
        UndecodableImage: truncated, no image, 16 bits or more a channel, or too many pixels.
    """
    with _decoding() as family:
        return family.decode(file, channels)


def resampled(
    image_HWC: np.ndarray, *, height: int, width: int, interpolation: Interpolation = "bilinear"
) -> np.ndarray:
    """The image at another size, antialiased.

    With `turbo` by bilinear interpolation whose filter grows when the image shrinks (`resampling`): the same bits
    everywhere. With `pillow`, and for float32, by Pillow's, the same up to the order of its passes. Else by OpenCV's
    area where both sides shrink, and its bilinear interpolation where not. These two have the same bits wherever the
    same versions run. Bicubic interpolation is Pillow's with every family, all rows first, then all columns.

    Args:
        image_HWC: uint8 or float32, any number of channels.
        height, width: in pixels.
        interpolation: between pixels.
    Returns:
        Of the same type and number of channels; the image itself where the size is right already.
    """
    if image_HWC.shape[:2] == (height, width):
        return image_HWC
    if interpolation == "bicubic":
        rows_HWC = _resample_with_pillow(image_HWC, image_HWC.shape[0], width, Image.Resampling.BICUBIC)
        return _resample_with_pillow(rows_HWC, height, width, Image.Resampling.BICUBIC)
    kind = in_use() if image_HWC.dtype == np.uint8 else "pillow"
    return _FAMILIES[kind].resample(image_HWC, height, width)


def use(kind: str | None) -> str:
    """Decode and resample by this family from now on.

    Args:
        kind: one of `KINDS`; None for what the environment asks for, else the first that is installed.
    Raises:
        InputRefused: there is no such family, or it lacks a package.
    """
    global _in_use
    kind = kind or os.environ.get(VARIABLE) or next(each for each in ("turbo", "pillow") if not missing(each))
    if kind not in KINDS:
        raise InputRefused(f"no decoder is called {kind} (--decoder, {VARIABLE}); there are {', '.join(KINDS)}")
    if lacks := missing(kind):
        raise InputRefused(f"--decoder {kind} needs {', '.join(lacks)}; type: pip install {' '.join(lacks)}")
    _in_use = kind
    return kind


def follow(kind: str) -> None:
    """Use the family of a run, where it is installed and the environment asks for no other."""
    if not os.environ.get(VARIABLE) and kind in KINDS and not missing(kind):
        use(kind)


def ask_for(kind: str | None) -> None:
    """Make this family the default of this process and those that it starts; None leaves the environment as it is."""
    if kind is not None:
        os.environ[VARIABLE] = kind


def in_use() -> str:
    """The family in use."""
    return _in_use or use(None)


def missing(kind: str) -> list[str]:
    """Packages that a family lacks."""
    return [package for package, module in _FAMILIES[kind].needs.items() if not _is_there(module)]


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even its parent
        return False


_Rectangle = tuple[int, int, int, int]  # top, left, height, width


@dataclass(frozen=True, kw_only=True)
class _Family:
    """What one family computes.

    Args:
        needs: package -> its module.
        size: bytes of a file -> (height, width), from its header.
        decode: (bytes of a file, channels) -> uint8 HWC.
        crop: (bytes of a file, channels, (top, left, height, width)) -> uint8 HWC.
        resample: (uint8 HWC of 1 or 3 channels, height, width) -> the same at that size.
    """

    needs: dict[str, str]
    size: Callable[[bytes], tuple[int, int]]
    decode: Callable[[bytes, int], np.ndarray]
    crop: Callable[[bytes, int, _Rectangle], np.ndarray]
    resample: Callable[[np.ndarray, int, int], np.ndarray]


def _open_with_pillow(file: bytes | memoryview) -> Image.Image:
    """The image of a file, not decoded yet.

    Raises:
        ValueError: 16 bits or more a channel, or too many pixels.
        Exception: what Pillow raises for a file that is no image.
    """
    image = Image.open(io.BytesIO(file), formats=FORMATS)
    if image.mode not in _MODES:
        raise ValueError(f"mode {image.mode}: only 8 bits a channel are read, convert it first")
    if image.format == "PNG" and file[24:26] == _GREY_ALPHA_16:
        raise ValueError("mode LA of 16 bits: only 8 bits a channel are read, convert it first")
    return image


def _size_with_pillow(file: bytes) -> tuple[int, int]:
    with _open_with_pillow(file) as image:
        return image.height, image.width


def _decode_with_pillow(file: bytes, channels: int) -> np.ndarray:
    with _open_with_pillow(file) as image:
        image_HWC = np.array(image.convert("RGB" if channels == 3 else "L"), dtype=np.uint8)
    return image_HWC.reshape(*image_HWC.shape[:2], channels)


def _resample_with_pillow(
    image_HWC: np.ndarray, height: int, width: int, how: Image.Resampling = Image.Resampling.BILINEAR
) -> np.ndarray:
    size = (width, height)
    if image_HWC.dtype == np.uint8 and image_HWC.shape[2] == 3:
        return np.asarray(Image.fromarray(image_HWC).resize(size, how))
    channels = [Image.fromarray(image_HWC[:, :, c]) for c in range(image_HWC.shape[2])]
    return np.stack([np.asarray(channel.resize(size, how)) for channel in channels], axis=2)


def _cut(decode: Callable[[bytes, int], np.ndarray]) -> Callable[[bytes, int, _Rectangle], np.ndarray]:
    """A crop by decoding the whole."""

    def crop(file: bytes, channels: int, rectangle: _Rectangle) -> np.ndarray:
        top, left, height, width = rectangle
        return decode(file, channels)[top : top + height, left : left + width]

    return crop


def _turbo_size(file: bytes) -> tuple[int, int] | None:
    """Height and width of a JPEG that libjpeg-turbo is to decode; None for all else, which Pillow reads or refuses."""
    import simplejpeg

    if not simplejpeg.is_jpeg(file):
        return None
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(file)
    except ValueError:
        return None
    return (height, width) if colours in ("YCbCr", "RGB", "Gray") and height * width <= MOST_PIXELS else None


def _size_with_turbo(file: bytes) -> tuple[int, int]:
    return _turbo_size(file) or _size_with_pillow(file)


def _decode_with_turbo(file: bytes, channels: int) -> np.ndarray:
    import simplejpeg

    if _turbo_size(file) is not None:
        # A warning of libjpeg-turbo, such as of bytes between two markers, is an error here. Published data sets have
        # such files: Pillow decodes what can be used, and refuses a truncated file.
        with suppress(ValueError):
            return simplejpeg.decode_jpeg(file, colorspace="RGB" if channels == 3 else "GRAY")
    return _decode_with_pillow(file, channels)


def _part_with(make: Callable[[], Callable[[bytes, _Rectangle], np.ndarray]]) -> Callable[..., np.ndarray]:
    """A crop of a JPEG in colour by what `make` makes, once a thread; of all else by decoding the whole."""
    of_thread, making = threading.local(), threading.Lock()

    def crop(file: bytes, channels: int, rectangle: _Rectangle) -> np.ndarray:
        if channels == 3 and _turbo_size(file) is not None:
            if not hasattr(of_thread, "part"):
                with making, _stderr_dropped():  # NVIDIA's packages print what they lack for a GPU
                    of_thread.part = make()
            try:
                return of_thread.part(file, rectangle)
            except Exception:  # of NVIDIA's packages, for a damaged file; DALI's pipeline does not survive it
                del of_thread.part
        return _cut(_decode_with_turbo)(file, channels, rectangle)

    return crop


@contextmanager
def _stderr_dropped() -> Iterator[None]:
    stderr, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nothing)


def _nvimgcodec() -> Callable[[bytes, _Rectangle], np.ndarray]:
    from nvidia import nvimgcodec

    backends = [nvimgcodec.Backend(nvimgcodec.BackendKind.CPU_ONLY)]
    decoder = nvimgcodec.Decoder(
        backends=backends, device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY, max_num_cpu_threads=1
    )
    as_stored = nvimgcodec.DecodeParams(apply_exif_orientation=False)

    def part(file: bytes, rectangle: _Rectangle) -> np.ndarray:
        top, left, height, width = rectangle
        region = nvimgcodec.Region(top, left, top + height, left + width)
        image = decoder.decode(nvimgcodec.CodeStream(file).get_sub_code_stream(region=region), params=as_stored)
        if image is None:
            raise ValueError("nvImageCodec cannot decode it")
        return np.asarray(image)

    return part


def _dali() -> Callable[[bytes, _Rectangle], np.ndarray]:
    from nvidia.dali import Pipeline, fn, types

    pipeline = Pipeline(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
    with pipeline:
        file = fn.external_source(name="file", dtype=types.UINT8, ndim=1)
        place, shape = (fn.external_source(name=name, dtype=types.FLOAT, ndim=1) for name in ("place", "shape"))
        image = fn.decoders.image_slice(
            file,
            place,
            shape,
            axes=[0, 1],
            normalized_anchor=False,
            normalized_shape=False,
            adjust_orientation=False,
        )
        pipeline.set_outputs(image)
    pipeline.build()

    def part(file: bytes, rectangle: _Rectangle) -> np.ndarray:
        pipeline.feed_input("file", [np.frombuffer(file, np.uint8)])
        pipeline.feed_input("place", [np.array(rectangle[:2], np.float32)])
        pipeline.feed_input("shape", [np.array(rectangle[2:], np.float32)])
        return np.array(pipeline.run()[0].at(0))

    return part


def _resample_in_two_passes(image_HWC: np.ndarray, height: int, width: int) -> np.ndarray:
    result_HWC = resampling.compiled(image_HWC, height, width)
    if result_HWC is None:  # Pillow 13 and later choose which pass comes first, so each is a call
        rows_HWC = _resample_with_pillow(image_HWC, image_HWC.shape[0], width)
        result_HWC = _resample_with_pillow(rows_HWC, height, width)
    return result_HWC


def _resample_with_opencv(image_HWC: np.ndarray, height: int, width: int) -> np.ndarray:
    import cv2

    cv2.setNumThreads(1)  # a rank's loaders share its cores already
    shrinks = height <= image_HWC.shape[0] and width <= image_HWC.shape[1]
    how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return cv2.resize(image_HWC, (width, height), interpolation=how).reshape(height, width, -1)


_TURBO = _Family(
    needs={"simplejpeg": "simplejpeg"},
    size=_size_with_turbo,
    decode=_decode_with_turbo,
    crop=_cut(_decode_with_turbo),
    resample=_resample_in_two_passes,
)
_OPENCV = replace(_TURBO, needs={**_TURBO.needs, "opencv-python-headless": "cv2"}, resample=_resample_with_opencv)
_PILLOW = _Family(
    needs={"pillow": "PIL"},
    size=_size_with_pillow,
    decode=_decode_with_pillow,
    crop=_cut(_decode_with_pillow),
    resample=_resample_with_pillow,
)
_NVIMGCODEC = {**_OPENCV.needs, "nvidia-nvimgcodec-cu12": "nvidia.nvimgcodec"}
_DALI = {**_OPENCV.needs, "nvidia-dali-cuda120": "nvidia.dali"}
_FAMILIES = {
    "turbo": _TURBO,
    "opencv": _OPENCV,
    "pillow": _PILLOW,
    "nvimgcodec": replace(_OPENCV, needs=_NVIMGCODEC, crop=_part_with(_nvimgcodec)),
    "dali": replace(_OPENCV, needs=_DALI, crop=_part_with(_dali)),
}
KINDS = tuple(_FAMILIES)
_in_use: str | None = None
