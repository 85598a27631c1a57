"""Samples of one form written in another: in parallel, resumable, with a SHA-256 of each chunk in a manifest."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from recipes.errors import InputRefused, listed
from trainers.augmentations import decoders
from trainers.datasets.fingerprints import sha256_of_parts
from trainers.datasets.manifest import MANIFEST, read_manifest
from trainers.datasets.samples import IMAGE_SUFFIXES, EncodedSamples, ImageFiles, evenly
from trainers.datasets.shard_files import WRITERS, Chunk, StoredImage, chunks_of, digest_of
from trainers.runs.errors import RunFailed
from trainers.runs.run_folder import write_whole

FORMS = tuple(WRITERS)
_ARRAYS = {"train": "train_{}.npy", "eval": "val_{}.npy"}
_JPEG = b"\xff\xd8"  # how its files begin
READERS = {"folder": "ImageFolder", "tar": "TarShards", "parquet": "Parquet", "arrays": "Arrays"}


@dataclass(frozen=True, kw_only=True)
class SourceImages:
    """What is converted.

    Args:
        name: where it comes from, for the record.
        splits: samples of "train" and "eval".
        classes: names of the classes by label; numbers where the source has no names.
    """

    name: str
    splits: Mapping[str, Any]
    classes: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """How samples are written.

    Args:
        form: one of `FORMS`.
        shorter: shorter side of smaller copies in pixels; None: the files as they are.
        quality: of the JPEGs of smaller copies, 1 to 100.
        per_chunk: samples of a shard.
    """

    form: str
    shorter: int | None = None
    quality: int = 95
    per_chunk: int = 10_000

    def as_text(self) -> str:
        """What it does to the images."""
        if self.form == "arrays":
            size = f"shorter side {self.shorter}, square from the middle" if self.shorter else "size as it was"
            return f"decoded pixels, {size}, by {decoders.in_use()}"
        if self.shorter is None:
            return "files as they were"
        return f"shorter side at most {self.shorter}, JPEG of quality {self.quality}, by {decoders.in_use()}"


def names_of_classes(samples: Any) -> list[str]:
    """Names of the classes by label, from the folders in the samples' names; numbers where they do not fit."""
    paths, labels = _paths(samples), samples.labels.tolist()
    count = max(labels) + 1
    found: dict[int, set[str]] = {}
    for label, path in zip(labels, paths, strict=False):
        found.setdefault(label, set()).add(path.rpartition("/")[0].rpartition("/")[2])
    names = [min(found.get(label, {""})) for label in range(count)]
    fits = all(len(one) == 1 for one in found.values()) and names == sorted(set(names), key=os.fsencode) and names[0]
    return names if fits else _numbers(count)


def _numbers(count: int) -> list[str]:
    """Names of classes that have none."""
    return [f"{label:0{len(str(count - 1))}d}" for label in range(count)]


def convert(
    source: SourceImages,
    root: Path,
    conversion: Conversion,
    *,
    workers: int,
    showing: Callable[[str, int], Any],
) -> None:
    """Write all chunks that are not there yet.

    Args:
        source: of the samples.
        root: folder to write to.
        conversion: how.
        workers: processes.
        showing: (words, samples) -> context that gives a function which counts samples.
    Raises:
        InputRefused: the folder has another conversion, or files of this one's names and no manifest; the images
            cannot be an array, or there is no room for it.
        RunFailed: an image cannot be decoded, a process was killed.
    """
    header = {
        "source": source.name,
        "images": conversion.as_text(),
        "form": conversion.form,
        "per_chunk": conversion.per_chunk,
        **{f"num_{split}": len(samples) for split, samples in source.splits.items()},
        **{f"sha256_of_{split}": _identity(samples) for split, samples in source.splits.items()},
    }
    num_classes = 1 + max(int(samples.labels.max()) for samples in source.splits.values())
    if num_classes == len(source.classes) and [*source.classes] != _numbers(num_classes):
        header["classes"] = [*source.classes]
    chunks = {
        split: chunks_of(conversion.form, split, samples.labels, source.classes, per_chunk=conversion.per_chunk)
        for split, samples in source.splits.items()
    }
    done = _begun(root, header, [chunk for each in chunks.values() for chunk in each])
    sizes = _array_shapes(source, conversion) if conversion.form == "arrays" else {}
    _allocate({root / _ARRAYS[split].format("images"): shape for split, shape in sizes.items()})
    for split in sizes:
        np.save(root / _ARRAYS[split].format("labels"), source.splits[split].labels)  # before the last line of a chunk
    for split, samples in source.splits.items():
        waiting = [chunk for chunk in chunks[split] if chunk.name not in done]
        words = f"{split}: writing {conversion.form}, {conversion.as_text()}"
        with showing(words, len(samples)) as add, (root / MANIFEST).open("a", encoding="utf-8") as manifest:
            add(len(samples) - sum(len(chunk.indices) for chunk in waiting))
            state = (samples, source.classes, root, conversion, split)
            for chunk, digest in zip(waiting, _written(state, waiting, workers), strict=True):
                line = {"name": chunk.name, "samples": len(chunk.indices), "sha256": digest}
                manifest.write(json.dumps(line) + "\n")
                manifest.flush()
                os.fsync(manifest.fileno())
                add(len(chunk.indices))


def verify(root: Path, add: Callable[[int], None]) -> None:
    """Compare all chunks with the manifest.

    Raises:
        RunFailed: one is missing or has changed; the first are named.
    """
    wrong = []
    for name, line in read_manifest(root)[1].items():
        try:
            right = digest_of(root / name) == line["sha256"]
        except (OSError, ValueError):
            right = False
        wrong += [] if right else [name]
        add(line["samples"])
    if wrong:
        raise RunFailed(
            f"{root}: not as they were written: {listed(wrong)}; remove their lines from {MANIFEST}, then "
            "the same command writes them again"
        )


def refuse_other(root: Path, wanted: Mapping[str, Any]) -> None:
    """Refuse a folder whose manifest says that it was converted from something else, or otherwise.

    Raises:
        InputRefused: a value is another one than `wanted`.
    """
    before, _ = read_manifest(root)
    changed = {key: value for key, value in wanted.items() if before.get(key) != value}
    if differs := [f"{key} {before.get(key)!r}, now {value!r}" for key, value in changed.items()]:
        what = f"begun with {'; '.join(differs)}"
        raise InputRefused(f"{root / MANIFEST}: {what}; go on as it was begun, or name another ROOT")


def _identity(samples: Any) -> str:
    """SHA-256 over the name, the bytes and the label of each sample, as far as it has them without being read."""
    labels, paths = samples.labels.tolist(), _paths(samples)
    sizes: Iterable[int] = getattr(samples, "sizes", ())
    if isinstance(samples, ImageFiles):
        sizes = (os.stat(os.path.join(samples.folder, path)).st_size for path in paths)
    return sha256_of_parts(f"{label} {size} {path}" for label, size, path in zip_longest(labels, sizes, paths))


def _paths(samples: Any) -> Sequence[str]:
    """The name of each sample; empty where they have none."""
    return getattr(samples, "paths", getattr(samples, "names", ()))


def _begun(root: Path, header: dict[str, Any], chunks: Sequence[Chunk]) -> set[str]:
    """Chunks that are written already; begins the manifest where there is none."""
    path = root / MANIFEST
    if not path.exists():
        if there := next((place for chunk in chunks if (place := _place(root, chunk.name)).exists()), None):
            raise InputRefused(f"{there}: is there, and no {MANIFEST} says how it was made; name another ROOT")
        write_whole(path, json.dumps(header) + "\n")
        return set()
    refuse_other(root, {key: value for key, value in header.items() if key != "classes"})  # older ones have none
    before, lines = read_manifest(root)
    whole = "".join(json.dumps(line) + "\n" for line in (before, *lines.values()))
    if whole != path.read_text(encoding="utf-8"):  # the last line is torn
        write_whole(path, whole)
    return {name for name in lines if _place(root, name).exists()}


def _place(root: Path, chunk: str) -> Path:
    """The file or folder that a chunk is in."""
    return root / chunk.partition("[")[0]


def _written(state: tuple, chunks: Sequence[Chunk], workers: int) -> Iterator[str]:
    if workers == 1 or len(chunks) < 2:
        _begin(*state)
        yield from map(_write_chunk, chunks)
        return
    # Not forked: it would copy locks that OpenCV's threads hold.
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin, initargs=state) as pool:
        try:
            yield from pool.map(_write_chunk, chunks)
        except BrokenProcessPool as error:
            raise RunFailed(
                "a process that writes was killed, for example because memory ran out; fewer --workers need less, and "
                "the same command goes on"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


_state: tuple[Any, Sequence[str], Path, Conversion, str]


def _begin(*state: Any) -> None:
    global _state
    _state = state


def _write_chunk(chunk: Chunk) -> str:
    samples, classes, root, conversion, _ = _state
    path = root / chunk.name
    try:
        if conversion.form == "arrays":
            images: Iterator[Any] = (_pixels(samples, index, conversion.shorter) for index in chunk.indices)
        else:
            images = _stored(samples, classes, chunk.indices, conversion)
        WRITERS[conversion.form](path, images)
        return digest_of(path)
    except (ValueError, FileExistsError) as error:
        raise RunFailed(f"{error}; mend that, then the same command goes on") from error


def _stored(samples: Any, classes: Sequence[str], indices: Sequence[int], how: Conversion) -> Iterator[StoredImage]:
    parts = [_own_name(samples, index).rpartition(".") for index in indices]
    keys = [f"{classes[int(samples.labels[index])]}/{part[0]}" for index, part in zip(indices, parts, strict=True)]
    named, taken = set(keys), set()
    for index, (stem, _, own), key in zip(indices, parts, keys, strict=True):
        label = int(samples.labels[index])
        file = _file(samples, index, how)
        if not stem or "." in stem or key in taken:  # a key of WebDataset ends at the first dot
            key = f"{classes[label]}/{index:08d}"
            while key in named:
                key += "-"
        taken.add(key)
        if how.shorter is not None or f".{own.lower()}" not in IMAGE_SUFFIXES:
            own = "jpg" if file.startswith(_JPEG) else "png"  # readers look into the file, whatever its name
        yield StoredImage(name=f"{key}.{own}", file=file, label=label)


def _own_name(samples: Any, index: int) -> str:
    """The name of a sample's file; empty where it has none."""
    paths = _paths(samples)
    return paths[index].rpartition("/")[2] if len(paths) else ""


def _file(samples: Any, index: int, how: Conversion) -> bytes:
    """The bytes of an image file."""
    if not isinstance(samples, EncodedSamples):
        image_HWC = samples[index][0]
    else:
        with samples.naming(index):
            file = samples.encoded(index)
            if how.shorter is None or min(decoders.size_of(file)) <= how.shorter:
                return file
        image_HWC = samples[index][0]
    if how.shorter is None:
        return _encoded(image_HWC, "PNG")
    return _encoded(_smaller(image_HWC, how.shorter), "JPEG", quality=how.quality)


def _encoded(image_HWC: np.ndarray, kind: str, **options: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image_HWC if image_HWC.shape[2] == 3 else image_HWC[..., 0]).save(file, kind, **options)
    return file.getvalue()


def _smaller(image_HWC: np.ndarray, shorter: int) -> np.ndarray:
    height, width = image_HWC.shape[:2]
    if min(height, width) <= shorter:
        return image_HWC
    sides = (max(1, round(side * shorter / min(height, width))) for side in (height, width))
    return decoders.resampled(image_HWC, **dict(zip(("height", "width"), sides, strict=True)))


def _pixels(samples: Any, index: int, shorter: int | None) -> np.ndarray:
    """An image of an array: all of it, or a square from its middle."""
    image_HWC = samples[index][0]
    if shorter is None:
        return image_HWC
    height, width = image_HWC.shape[:2]
    sides = (max(shorter, round(side * shorter / min(height, width))) for side in (height, width))
    image_HWC = decoders.resampled(image_HWC, **dict(zip(("height", "width"), sides, strict=True)))
    top, left = ((side - shorter) // 2 for side in image_HWC.shape[:2])
    return image_HWC[top : top + shorter, left : left + shorter]


def _array_shapes(source: SourceImages, how: Conversion) -> dict[str, tuple[int, ...]]:
    """The shape of each split's images.

    Raises:
        InputRefused: they differ in size, as far as 1,000 evenly spaced ones show.
    """
    shapes = {}
    for split, samples in source.splits.items():
        shape = _pixels(samples, 0, how.shorter).shape
        if how.shorter is None and isinstance(samples, EncodedSamples):
            for index in evenly(len(samples), 1000):
                if (size := samples.size_of(index)) != shape[:2]:
                    what = f"{size[0]}x{size[1]} pixels, and the first image has {shape[0]}x{shape[1]}"
                    raise InputRefused(f"{samples.name_of(index)}: {what}; --shorter brings all to one size")
        shapes[split] = (len(samples), *shape)
    return shapes


def _allocate(shapes: Mapping[Path, tuple[int, ...]]) -> None:
    """Make the files of arrays that are not there; their blocks are taken as images are written.

    Raises:
        InputRefused: there is too little room: a write to mapped memory would end the process without a word.
    """
    for path, shape in shapes.items():
        if not path.exists():
            np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape).flush()
    missing = sum(math.prod(shape) - 512 * path.stat().st_blocks for path, shape in shapes.items())
    for folder in {path.parent for path in shapes}:
        if missing > (free := shutil.disk_usage(folder).free):
            raise InputRefused(f"{folder}: {free:,} bytes are free, {missing:,} needed; name another ROOT")
