"""`kilobatch data inspect`: what a data set holds, from its labels and the headers of an even sample of its images."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from recipes.errors import InputRefused, printable_line
from recipes.reports.wording import counted, number, size
from recipes.schema import Dataset
from recipes.schema.dataset import Validation, url_of
from trainers.augmentations.decoders import FORMATS
from trainers.datasets.held_out import label_gaps, open_split
from trainers.datasets.image_folder import reader_of
from trainers.datasets.samples import evenly

SPLITS = ("train", "eval")
_LOOKED = 2000  # images of a split whose header is read
UNEVEN = 2  # times as many samples as the smallest class the largest one has, from which on weights are shown
_MOST_WEIGHTS = 30  # that are printed
_BINS = 12  # of the histogram
_WIDTH = 40  # of its longest bar, in characters
_ORIENTATION = 0x112  # the EXIF tag


def dataset_of_folder(folder: Path, *, others: Literal["refuse", "skip"] = "refuse") -> Dataset:
    """A data set of class folders that no file describes: `FOLDER/train/CLASS/FILE` and those of `val`, or other forms.

    Where there is no folder of an evaluation split, a tenth of the images is that.

    Args:
        others: what happens to other files, see `ImageFolder`.
    Raises:
        InputRefused: the folder is not as described.
    """
    reader, validation = replace(reader_of(folder), others=others), None
    try:
        facts = reader.facts(folder)
        if reader.eval is None:
            validation = Validation(fraction=0.1)
            facts |= validation.split(facts["num_train"])
    except (OSError, ValueError) as error:
        raise InputRefused(f"{error}; or name a data set of configs/datasets, and this folder by --data") from error
    name, channels = folder.resolve().name, reader.channels
    return Dataset(name=name, reader=reader, root=folder, channels=channels, validation=validation, **facts)


def require_opened(dataset: Dataset) -> Dataset:
    """The data set itself, whose reader has found its data.

    Raises:
        InputRefused: it has no reader, or this does not find the data.
    """
    if not hasattr(dataset.reader, "facts"):
        raise InputRefused(f"data set {dataset.name} has no reader; name one: reader: {{kind: ImageFolder}}")
    try:
        dataset.reader.facts(dataset.root)
    except (LookupError, OSError, ValueError) as error:
        obtain = f"; {dataset.obtain}" if dataset.obtain else ""
        raise InputRefused(f"data set {dataset.name}: {error}{obtain}") from error
    return dataset


def other_files(dataset: Dataset) -> list[str]:
    """The files and folders that are no images by their names, by `other_files(root)` of the reader; else none."""
    root = dataset.root and (url_of(dataset.root) or dataset.root)
    names = dataset.reader.other_files(dataset.root) if hasattr(dataset.reader, "other_files") else []
    return [f"{root}/{name}" for name in names]


def class_called(names: Sequence[str], label: int) -> str:
    """The name of a class; its number if it has none."""
    return names[label] if label < len(names) else str(label)


def labels_of(samples: Any) -> np.ndarray:
    """The label of every sample; where the samples keep no array of them, up to 2,000 evenly spaced ones are loaded."""
    if hasattr(samples, "labels"):
        return np.asarray(samples.labels)
    return np.array([samples[index][1] for index in evenly(len(samples), _LOOKED)])


def inspect(dataset: Dataset) -> dict[str, Any]:
    """What a data set holds, as plain data.

    Sizes, types and modes are those of up to 2,000 evenly spaced images of each split, by their headers.

    Returns:
        name, num_classes, channels, other_files (their number), fingerprint, label_gaps (in words), and for each split
        samples, classes and images.
    Raises:
        InputRefused: a file cannot be read for the fingerprint; it is named.
    """
    try:
        return _inspected(dataset)
    except (LookupError, OSError, ValueError) as error:  # a file is gone, say, though the index names it
        raise InputRefused(f"data set {dataset.name}: {error}") from error


def _inspected(dataset: Dataset) -> dict[str, Any]:
    names = dataset.class_names()
    opened = {split: open_split(dataset, split) for split in SPLITS}
    return {
        "name": dataset.name,
        "reader": type(dataset.reader).__name__,
        "root": None if dataset.root is None else str(url_of(dataset.root) or dataset.root),
        "num_classes": dataset.num_classes,
        "channels": dataset.channels,
        "other_files": len(other_files(dataset)),
        "fingerprint": dataset.reader.fingerprint(dataset.root),
        "label_gaps": label_gaps(dataset, *opened.values()),
        "splits": {split: _split(samples, names, dataset.num_classes) for split, samples in opened.items()},
    }


def _split(samples: Any, names: Sequence[str], num_classes: int) -> dict[str, Any]:
    counts = np.bincount(labels_of(samples), minlength=num_classes)
    small, large = int(counts.argmin()), int(counts.argmax())
    return {
        "samples": len(samples),
        "classes": {
            "counted": int(counts.sum()),
            "counts": counts.tolist(),
            "smallest": {"name": class_called(names, small), "samples": int(counts[small])},
            "largest": {"name": class_called(names, large), "samples": int(counts[large])},
            "weights": class_weights(counts),
            "without_samples": int((counts == 0).sum()),
        },
        "images": images_found(samples),
    }


def class_weights(counts: np.ndarray) -> list[float]:
    """Samples / (classes * samples of the class), for each class: in the mean over the samples 1; 1 without samples.

    They are the `class_weights` of a loss that make classes count alike.
    """
    counts = np.asarray(counts)
    mean = counts.sum() / np.count_nonzero(counts)
    return [round(float(mean / count), 4) if count else 1.0 for count in counts]


def images_found(samples: Any) -> dict[str, Any]:
    """Sizes, types and modes of an even sample."""
    measured, kinds, modes, unreadable, turned = [], Counter(), Counter(), 0, 0
    looked = evenly(len(samples), _LOOKED)
    for index in looked:
        if not hasattr(samples, "encoded"):
            image_HWC = samples[index][0]
            measured.append((*image_HWC.shape[:2], image_HWC.nbytes))
            kinds["array"] += 1
            modes[f"{image_HWC.dtype}, {counted(image_HWC.shape[2], 'channel')}"] += 1
            continue
        try:
            file = samples.encoded(index)
            with Image.open(io.BytesIO(file), formats=FORMATS) as image:
                turned += image.getexif().get(_ORIENTATION, 1) not in (0, 1)
                measured.append((image.height, image.width, len(file)))
                kinds[image.format] += 1
                modes[image.mode] += 1
        except Exception:  # Pillow raises OSError, SyntaxError, struct.error and more; `data verify` names the file
            unreadable += 1
    found: dict[str, Any] = {"looked_at": len(looked), "unreadable": unreadable, "turned_by_exif": turned}
    found |= {"types": dict(kinds.most_common()), "modes": dict(modes.most_common())}
    if measured:
        columns = dict(zip(("height", "width", "bytes"), np.array(measured).T, strict=True))
        columns["shorter"] = np.minimum(columns["height"], columns["width"])
        found |= {
            name: {"min": int(each.min()), "median": float(np.median(each)), "max": int(each.max())}
            for name, each in columns.items()
        }
        found["histogram"] = _histogram(columns["shorter"])
    return found


def _histogram(sides: np.ndarray) -> dict[str, list]:
    """Images by their shorter side: whole numbers as edges."""
    low, high = int(sides.min()), int(sides.max()) + 1
    edges = np.unique(np.linspace(low, high, min(_BINS, high - low) + 1).astype(int))
    return {"edges": edges.tolist(), "images": np.histogram(sides, edges)[0].tolist()}


def inspection_text(found: dict[str, Any]) -> str:
    """What `inspect` found, for a terminal."""
    lines = [f"{found['name']}: {number(found['num_classes'])} classes, {counted(found['channels'], 'channel')}"]
    lines.append(f"read by {found['reader']}" + (f" from {found['root']}" if found["root"] else ""))
    if found["other_files"]:
        lines.append(f"passed over, no images by their names: {number(found['other_files'])}")
    lines.append(f"fingerprint {found['fingerprint']}")
    for split, part in found["splits"].items():
        lines += ["", f"{split}: {counted(part['samples'], 'sample')}", *_class_lines(part["classes"], part["samples"])]
        lines += _image_lines(part["images"])
    lines += ["", *found["label_gaps"]] if found["label_gaps"] else []
    lines += _weights_lines(found["splits"]["train"]["classes"])
    return "\n".join(printable_line(line) for line in lines)


def _class_lines(classes: dict[str, Any], samples: int) -> list[str]:
    small, large = classes["smallest"], classes["largest"]
    among = "" if classes["counted"] == samples else f", of {number(classes['counted'])} evenly spaced ones"
    line = f"{number(small['samples'])} ({small['name']}) to {number(large['samples'])} ({large['name']})"
    if small["samples"] == large["samples"]:
        line = f"{number(small['samples'])} in each"
    empty = classes["without_samples"]
    return [f"  samples a class: {line}{among}"] + ([f"  classes without a sample: {number(empty)}"] if empty else [])


def _weights_lines(classes: dict[str, Any]) -> list[str]:
    """The `class_weights` of training samples, where classes are uneven and few."""
    is_even = classes["largest"]["samples"] < UNEVEN * classes["smallest"]["samples"]
    if is_even or len(classes["weights"]) > _MOST_WEIGHTS:
        return []
    return ["", f"class_weights of a loss that make all classes count alike: {classes['weights']}"]


def _image_lines(images: dict[str, Any]) -> list[str]:
    lines = [f"  {word}: {_shares(images[word])}" for word in ("types", "modes")]
    if "histogram" in images:
        for name in ("height", "width", "bytes"):
            shown = size if name == "bytes" else number
            least, middle, most = (shown(images[name][key]) for key in ("min", "median", "max"))
            lines.append(f"  {name}: {least} to {most}, median {middle}")
    if images["turned_by_exif"]:
        lines.append(f"  turned by EXIF, which is not applied: {number(images['turned_by_exif'])}")
    if images["unreadable"]:
        lines.append(f"  no image by their header: {number(images['unreadable'])}; `kilobatch data verify` names them")
    lines.append(f"  all by {counted(images['looked_at'], 'image')}, evenly spaced")
    if len(images.get("histogram", {}).get("images", ())) > 1:
        lines += ["  shorter side in pixels", *_bars(images["histogram"])]
    return lines


def _shares(counts: dict[str, int]) -> str:
    return ", ".join(f"{kind} {number(count)}" for kind, count in counts.items()) or "none"


def _bars(histogram: dict[str, list]) -> list[str]:
    edges, counts = histogram["edges"], histogram["images"]
    ranges = [f"{low}-{high - 1}" if high - low > 1 else f"{low}" for low, high in zip(edges, edges[1:], strict=False)]
    wide, most = max(map(len, ranges)), max(counts)
    return [
        f"    {text:>{wide}} {'█' * round(_WIDTH * count / most)} {number(count)}".rstrip()
        for text, count in zip(ranges, counts, strict=True)
    ]
