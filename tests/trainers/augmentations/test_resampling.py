"""Compiled resampling has Pillow's bits, pass by pass, and reads and writes nothing beside its images."""

import ctypes
import mmap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from trainers.augmentations import decoders, resampling
from trainers.augmentations.decoders import resampled
from trainers.augmentations.resampling import compiled

PASSES = [
    pytest.param(passes, marks=pytest.mark.skipif(passes > resampling.PASSES, reason="needs a compiler and AVX"))
    for passes in (512, 256)
]
SEED = 7


@pytest.fixture(params=PASSES)
def passes(request):
    return request.param


def by_pillow(image, height, width):
    """Its rows, then its columns; grey images have no third axis there."""
    whole = Image.fromarray(image if image.shape[2] == 3 else image[:, :, 0])
    rows = whole.resize((width, len(image)), Image.Resampling.BILINEAR)
    return np.asarray(rows.resize((width, height), Image.Resampling.BILINEAR)).reshape(height, width, -1)


def images(height, width, channels):
    """Noise, and noise of black and white."""
    noise = np.random.default_rng([SEED, height, width]).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return noise, np.where(noise < 128, np.uint8(0), np.uint8(255))


def sizes(count):
    """Heights and widths before and after: crops for training, and sides of 1 to 500 pixels."""
    random = np.random.default_rng(SEED)
    for number in range(count):
        if number % 2:
            yield *(int(side) for side in random.integers(100, 500, 2)), 224, 224
        else:
            yield tuple(int(2 ** random.uniform(0, 9)) for _ in range(4))


EDGES = [
    (1, 1, 1, 1),
    (1, 1, 224, 224),
    (1, 7, 3, 1),
    (7, 1, 1, 5),
    (2, 3, 1, 2),
    (224, 224, 224, 224),
    (64, 21, 21, 64),
]
EDGES += [(448, 448, 224, 224), (700, 700, 100, 100), (9, 9, 8, 10), (5, 5, 500, 500), (33, 300, 33, 299)]


@pytest.mark.parametrize("count", [300, pytest.param(5000, marks=pytest.mark.slow)])
def test_the_bits_are_pillows_at_any_size(passes, count):
    served = 0
    for height, width, *size in [*EDGES, *sizes(count)]:
        for image in images(height, width, 3):
            ours = compiled(image, *size, passes=passes)
            if ours is None:
                assert max(height / size[0], width / size[1]) > (6 if passes == 512 else 7)
            else:
                served += 1
                np.testing.assert_array_equal(ours, by_pillow(image, *size), f"{height}x{width} to {size}")
    assert served > count


@pytest.mark.skipif(resampling.PASSES < 512, reason="needs a compiler and AVX-512")
def test_grey_images_have_pillows_bits():
    for height, width, *size in [*EDGES, *sizes(60)]:
        for image in images(height, width, 1):
            ours = compiled(image, *size)
            if ours is not None:
                np.testing.assert_array_equal(ours, by_pillow(image, *size), f"{height}x{width} to {size}")


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_without_compiled_code_the_bits_are_the_same(monkeypatch, channels):
    before, (image, _) = decoders.in_use(), images(97, 120, channels)
    decoders.use("turbo")
    found = [resampled(image, height=height, width=width) for height, width in ((64, 64), (200, 90), (5, 6))]
    monkeypatch.setattr(decoders.resampling, "compiled", lambda *image_and_size: None)
    for ours in found:
        np.testing.assert_array_equal(ours, resampled(image, height=ours.shape[0], width=ours.shape[1]))
    decoders.use(before)


@pytest.mark.parametrize("cut", ["crop", "mirrored", "upside down", "turned", "every second", "one column", "one row"])
def test_views_are_resampled_as_their_copies(passes, cut):
    image, _ = images(150, 170, 3)
    view = {
        "crop": image[20:121, 33:160],
        "mirrored": image[:, ::-1],
        "upside down": image[::-1],
        "turned": image.transpose(1, 0, 2),
        "every second": image[::2, ::2],
        "one column": image[:, 9:10],
        "one row": image[9:10, ::3],
    }[cut]
    expected = by_pillow(np.ascontiguousarray(view), 64, 50)
    np.testing.assert_array_equal(compiled(view, 64, 50, passes=passes), expected)


def test_large_and_very_long_images_are_left_to_pillow(passes):
    for shape, size in (((4000, 30, 3), (100, 30)), ((30, 4000, 3), (30, 100)), ((20_000, 1, 3), (1, 1))):
        assert compiled(np.zeros(shape, np.uint8), *size, passes=passes) is None


def test_threads_compute_the_same(passes):
    given = [images(height, 333, 3)[0] for height in range(200, 232)]
    expected = [compiled(image, 224, 224, passes=passes) for image in given]
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda image: compiled(image, 224, 224, passes=passes), given)
        for ours, alone in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, alone)


def test_nothing_beside_the_image_is_read(passes):
    """An image lies between pages that may not be read: the process would end."""
    page, pages, no_access = mmap.PAGESIZE, 16, 0
    area = mmap.mmap(-1, (pages + 2) * page)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(area))
    protect = ctypes.CDLL(None).mprotect
    for fence in (begin, begin + (pages + 1) * page):
        assert protect(ctypes.c_void_p(fence), ctypes.c_size_t(page), no_access) == 0
    readable = np.frombuffer(area, np.uint8)[page : (pages + 1) * page]
    for height, width in ((1, 1), (2, 1), (1, 50), (3, 20), (90, 100), (120, 150)):
        size = height * width * 3
        for image in (readable[:size], readable[-size:]):
            ours = compiled(image.reshape(height, width, 3), 64, 64, passes=passes)
            np.testing.assert_array_equal(ours, by_pillow(np.zeros((height, width, 3), np.uint8), 64, 64))
