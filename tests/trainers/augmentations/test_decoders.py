"""Families of decoders: the same pixels of a file, right for all kinds of files, and every damaged one is named."""

import io
import os
import random
import resource
import struct
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
from PIL import Image

from recipes.errors import InputRefused
from recipes.planning.random_bits import draws
from trainers.augmentations import RandomResizedCrop, decoders
from trainers.augmentations.decoders import EncodedImage, UndecodableImage, decode, resampled, size_of
from trainers.datasets.samples import EncodedSamples, UnreadableImage
from trainers.training.environment import changed_warnings

FAMILIES = [
    pytest.param(kind, marks=pytest.mark.skipif(bool(lacks), reason=f"{kind} needs {', '.join(lacks)}"))
    for kind, lacks in ((kind, decoders.missing(kind)) for kind in decoders.KINDS)
]
SEED, MUTATED = 23, 2000


@pytest.fixture(autouse=True)
def family_kept():
    before = decoders.in_use()
    yield
    decoders.use(before)


@pytest.fixture(params=FAMILIES)
def family(request):
    decoders.use(request.param)
    return request.param


def photo(height=120, width=170, mode="RGB"):
    """Smooth colours under some noise."""
    y, x = np.mgrid[:height, :width]
    waves = [128 + 90 * np.sin(x / (9 + 7 * c) + y / 23) for c in range(3)]
    noise = np.random.default_rng(0).normal(0, 6, (height, width, 3))
    image = Image.fromarray((np.stack(waves, axis=2) + noise).clip(0, 255).astype(np.uint8))
    return image.convert(mode)


def saved(image, kind="JPEG", **how):
    file = io.BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


def by_pillow(file, mode="RGB"):
    return np.asarray(Image.open(io.BytesIO(file)).convert(mode))


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("how", [{}, {"progressive": True}, {"quality": 30}, {"optimize": True}])
def test_a_jpeg_in_colour_has_the_same_pixels_in_each_family(family, subsampling, how):
    file = saved(photo(), subsampling=subsampling, **how)
    np.testing.assert_array_equal(decode(file, 3), by_pillow(file))


HOW = [{}, {"subsampling": "4:4:4"}, {"subsampling": "4:2:2"}, {"progressive": True}, {"restart_marker_rows": 1}]


@pytest.mark.parametrize("how", [*HOW, {"keep_rgb": True}])
def test_a_crop_is_that_of_the_whole_byte_for_byte(family, how):
    file = saved(photo(), **how)
    whole, image = by_pillow(file), EncodedImage(file, 3)
    for top, left, height, width in ((0, 0, 120, 170), (3, 5, 64, 100), (119, 169, 1, 1), (17, 0, 33, 170)):
        crop = image.crop(top, left, height, width)
        np.testing.assert_array_equal(crop, whole[top : top + height, left : left + width])


def test_a_random_crop_of_a_file_is_that_of_its_pixels(family):
    file, part = saved(photo()), RandomResizedCrop(size=32)
    for index in range(5):
        ours = part(EncodedImage(file, 3), draws(0, "augmentation", 0, index, 0))
        np.testing.assert_array_equal(ours, part(decode(file, 3), draws(0, "augmentation", 0, index, 0)))


@pytest.mark.parametrize(
    ("kind", "mode"), [("JPEG", "L"), ("JPEG", "CMYK"), ("PNG", "P"), ("PNG", "RGBA"), ("PNG", "1")]
)
def test_other_colours_become_those_that_the_data_set_has(family, kind, mode):
    file = saved(photo(mode=mode), kind)
    np.testing.assert_array_equal(decode(file, 3), by_pillow(file))
    np.testing.assert_allclose(decode(file, 1)[:, :, 0].astype(int), by_pillow(file, "L"), atol=3)


@pytest.mark.parametrize("size", [(1, 1), (1, 20_000), (20_000, 1), (7, 20_000)])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_tiny_and_very_long_images_are_read(family, size, kind):
    if kind == "WEBP" and max(size) > 16_383:
        pytest.skip("WebP has no images of this size")
    file = saved(Image.new("RGB", size[::-1], (200, 100, 50)), kind)
    assert size_of(file) == decode(file, 3).shape[:2] == size


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_orientation_in_the_exif_data_is_not_applied(family, orientation):
    turned = Image.Exif()
    turned[0x0112] = orientation
    file = saved(photo(), exif=turned)
    whole = decode(file, 3)
    np.testing.assert_array_equal(whole, by_pillow(file))
    np.testing.assert_array_equal(EncodedImage(file, 3).crop(10, 20, 90, 140), whole[10:100, 20:160])


@pytest.mark.parametrize("height_width", [((300, 400), (224, 224)), ((100, 140), (224, 224)), ((240, 180), (224, 224))])
def test_resampled_pixels_are_near_pillows(family, height_width):
    (height, width), (to_height, to_width) = height_width
    image = np.asarray(photo(height, width))
    expected = np.asarray(photo(height, width).resize((to_width, to_height), Image.Resampling.BILINEAR)).astype(int)
    mean = np.abs(resampled(image, height=to_height, width=to_width) - expected).mean()
    assert mean == 0 if family == "pillow" else mean < 1.5


def test_float_images_are_resampled_by_pillow_in_each_family(family):
    image = np.random.default_rng(0).random((9, 7, 2), dtype=np.float32)
    ours = resampled(image, height=4, width=5)
    expected = [np.asarray(Image.fromarray(image[:, :, c]).resize((5, 4), Image.Resampling.BILINEAR)) for c in (0, 1)]
    np.testing.assert_array_equal(ours, np.stack(expected, axis=2))


def png_that_claims(width, height, *, bits=8, color_type=2):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color_type, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


def jpeg_that_claims(width, height):
    file = saved(photo())
    place = file.index(b"\xff\xc0")
    return file[: place + 5] + struct.pack(">HH", height, width) + file[place + 9 :]


BAD = {
    "empty": b"",
    "no image": b"a text, long enough to be one" * 9,
    "truncated JPEG": saved(photo())[:-500],
    "JPEG without its end": saved(photo())[:-2],
    "truncated PNG": saved(photo(), "PNG")[:-200],
    "JPEG's first bytes only": b"\xff\xd8\xff",
    "16 bits": saved(Image.fromarray(np.arange(2400, dtype=np.uint16).reshape(40, 60)), "PNG"),
    "16 bits of grey and alpha": png_that_claims(2, 1, bits=16, color_type=4),
    "PNG bomb": png_that_claims(30_000, 30_000),
    "JPEG bomb": jpeg_that_claims(30_000, 30_000),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_file_is_refused_by_each_family(family, bad):
    with pytest.raises(UndecodableImage, match="not a readable image"):
        decode(BAD[bad], 3)


def test_grey_and_alpha_of_8_bits_is_read(family):
    assert decode(png_that_claims(2, 1, color_type=4), 1).shape == (1, 2, 1)


def mutated(count, seed):
    """JPEGs and PNGs with bytes changed, cut out, doubled, or cut off."""
    chance = random.Random(seed)
    sources = [saved(photo(60, 80)), saved(photo(60, 80), progressive=True), saved(photo(40, 30), "PNG")]
    for number in range(count):
        file = bytearray(sources[number % len(sources)])
        for _ in range(chance.choice((1, 1, 2, 8, 40))):
            place, how = chance.randrange(len(file)), chance.randrange(4)
            if how == 0:
                file[place] = chance.randrange(256)
            elif how == 1:
                del file[place : place + chance.randrange(1, 30)]
            elif how == 2:
                file[place:place] = file[place : place + chance.randrange(1, 60)]
            else:
                file[place : place + 2] = b"\xff" + bytes([chance.randrange(256)])
            if len(file) < 10:
                break
        yield bytes(file)


@pytest.mark.parametrize("count", [100, pytest.param(MUTATED, marks=pytest.mark.slow)])
def test_mutated_files_are_decoded_or_refused_in_bounded_memory(family, count):
    before, results = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, {True: 0, False: 0}
    for file in mutated(count, SEED):
        try:
            encoded = EncodedImage(file, 3)
            height, width, _ = encoded.shape
            crop = encoded.crop(height // 4, width // 4, height // 2 + 1, width // 2 + 1)
            results[True] += 1
            assert crop.shape == (height // 2 + 1, width // 2 + 1, 3)
        except UndecodableImage:
            results[False] += 1
    assert min(results.values()) > 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB


def test_threads_that_begin_together_get_the_same_crops_and_keep_stderr(family):
    files, threads = [saved(photo(height)) for height in range(60, 68)], 8
    expected = [decode(file, 3)[3:40, 5:90] for file in files]
    stderr, begin = os.fstat(2), threading.Barrier(threads)

    def crops(_):
        begin.wait()
        return [EncodedImage(file, 3).crop(3, 5, 37, 85) for file in files]

    for _ in range(5):  # new threads each time
        with ThreadPoolExecutor(threads) as pool:
            for found in pool.map(crops, range(threads)):
                for ours, whole in zip(found, expected, strict=True):
                    np.testing.assert_array_equal(ours, whole)
    assert os.path.samestat(os.fstat(2), stderr)


@dataclass(frozen=True, kw_only=True, eq=False)
class InMemory(EncodedSamples):
    files: list

    def encoded(self, index):
        return self.files[index]

    def name_of(self, index):
        return f"photos/{index}.jpg"


@pytest.mark.parametrize("count", [100, pytest.param(MUTATED, marks=pytest.mark.slow)])
def test_a_mutated_file_is_read_as_by_pillow_or_named(family, count):
    files = [*mutated(count, SEED)]
    samples = InMemory(labels=np.zeros(count, int), channels=3, files=files)
    for index, file in enumerate(files):
        decoders.use("pillow")
        try:
            expected = decode(file, 3)
        except UndecodableImage:
            expected = None
        decoders.use(family)
        if expected is None:
            with pytest.raises(UnreadableImage, match=rf"^photos/{index}\.jpg: not a readable image"):
                _ = samples[index]
        else:
            np.testing.assert_array_equal(samples[index][0], expected)


def test_bytes_between_two_markers_do_no_harm(family):
    """As in some files of ImageNet: libjpeg warns of them."""
    file = saved(photo())
    place = file.index(b"\xff\xc4")
    padded, whole = file[:place] + b"\1\2\3" + file[place:], decode(file, 3)
    np.testing.assert_array_equal(decode(padded, 3), whole)
    np.testing.assert_array_equal(EncodedImage(padded, 3).crop(20, 30, 90, 140), whole[20:110, 30:170])


def test_the_environment_chooses_and_what_is_not_there_is_refused(monkeypatch):
    monkeypatch.setenv(decoders.VARIABLE, "pillow")
    assert decoders.use(None) == "pillow"
    monkeypatch.setenv(decoders.VARIABLE, "fast")
    with pytest.raises(InputRefused, match=r"no decoder is called fast \(--decoder, KILOBATCH_DECODER\); there are"):
        decoders.use(None)
    monkeypatch.setattr(decoders, "_in_use", None)
    with pytest.raises(InputRefused, match="no decoder is called fast"):
        decode(saved(photo()), 3)
    monkeypatch.setattr(decoders, "find_spec", lambda module: None)
    with pytest.raises(InputRefused, match="--decoder opencv needs simplejpeg, opencv-python-headless; type: pip"):
        decoders.use("opencv")


def test_a_run_that_goes_on_with_another_family_is_told(tmp_path):
    decoders.use("opencv")
    (tmp_path / "environment.json").write_text('{"decoder": "opencv"}')
    assert changed_warnings(tmp_path) == []
    (tmp_path / "environment.json").write_text('{"decoder": "pillow"}')
    (warning,) = changed_warnings(tmp_path)
    assert "decoded by pillow so far, opencv goes on" in warning
    assert "--decoder pillow" in warning
