"""Makes what ImageNet's recipes train on, from your download, in one of four forms.

    .venv/bin/python scripts/prepare_imagenet.py SOURCE ROOT [--format F] [--shorter PIXELS]
    kilobatch train goyal2017 --data ROOT                       # --format folder
    kilobatch train goyal2017 --set dataset=ROOT/imagenet.yaml  # another form

    folder    ROOT/train/CLASS/*.JPEG, ROOT/val/CLASS/*.JPEG: ImageFolder
    tar       ROOT/train-00000.tar ..., 10,000 images each, as WebDataset has them: TarShards
    parquet   ROOT/data/train-00000-of-00129.parquet ..., uncompressed: Parquet
    arrays    ROOT/train_images.npy: decoded pixels, squares of --shorter from the middle of each image: Arrays

ImageNet's licence does not let us distribute its images. SOURCE is a folder with your download, either from
https://image-net.org, where you register and accept its terms (Download, ILSVRC 2012, tasks 1 and 2):

    ILSVRC2012_img_train.tar        md5 1d675b47d978889d74fa0da5fadfb00e
    ILSVRC2012_img_val.tar          md5 29b22e2961454d5413ddabcf34fc5622
    ILSVRC2012_devkit_t12.tar.gz    md5 fa75699e90414af021442c21a62c3abf

or from https://www.kaggle.com/c/imagenet-object-localization-challenge, where you accept its rules, unpacked:

    LOC_val_solution.csv
    ILSVRC/Data/CLS-LOC/train/CLASS/*.JPEG
    ILSVRC/Data/CLS-LOC/val/*.JPEG

or a folder in one of the four forms, such as the Parquet files of https://huggingface.co/datasets/ILSVRC/imagenet-1k.

--shorter 256 stores smaller copies, JPEG of --quality 95, for fast training. What that does to the accuracy is not
known here: nobody has measured it.

SOURCE is only read. For class folders of Kaggle's images, ROOT gets hard links or, with --move, the files themselves;
both need ROOT on the same file system.

If this command is interrupted, run it again: it continues where it was. A split of class folders is ROOT/.train.part or
ROOT/.val.part until all its images are there and counted. In all other cases ROOT/manifest.jsonl has a line with the
SHA-256 of each shard (of class folders: each class) that is whole; run the command again at the end, and it compares
all of them.

Exit codes: 0 done, 2 the input is wrong and nothing was written, 3 it failed on the way, 4 stopped by a signal.
The md5 sums are those of torchvision/datasets/imagenet.py; `md5sum FILE` prints yours.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import yaml
from rich.console import Console

from recipes.errors import InputRefused
from recipes.reading.open import open_dataset
from recipes.schema import Dataset
from trainers.datasets import Arrays, ImageFolder, Parquet, TarShards
from trainers.datasets.conversion import (
    FORMS,
    READERS,
    Conversion,
    SourceImages,
    convert,
    names_of_classes,
    refuse_other,
    verify,
)
from trainers.datasets.ilsvrc2012 import (
    ARCHIVES,
    KAGGLE,
    WAY_ON,
    FolderSource,
    archive_images,
    archives_to_folders,
    kaggle_images,
    kaggle_to_folders,
)
from trainers.datasets.manifest import MANIFEST, read_manifest
from trainers.datasets.progress_bar import showing_progress
from trainers.datasets.samples import splits_of
from trainers.datasets.shard_files import require_writer
from trainers.launch.preflight import require_data
from trainers.launch.vocabulary import vocabulary
from trainers.runs.errors import EXIT_FAILED, EXIT_INPUT, EXIT_STOPPED, RunFailed
from trainers.runs.run_folder import filling_folder

_CLASSES_SHOWN = 5  # in a message
_MAKE = {"ImageFolder": ImageFolder, "TarShards": TarShards, "Parquet": Parquet, "Arrays": Arrays}
# What shows that a folder has a form.
_SIGNS = {
    "ImageFolder": ("train/*/*", "val/*/*"),
    "TarShards": ("train-*.tar", "val-*.tar"),
    "Parquet": ("data/train-*.parquet", "data/validation-*.parquet"),
    "Arrays": ("train*.np[yz]", "val*.np[yz]"),
}


def prepare(
    source: Path, root: Path, dataset: Dataset, console: Console, *, conversion: Conversion, workers: int, move: bool
) -> None:
    """Make what is not there yet, and check all of it.

    Raises:
        InputRefused: before anything was written: the source is not what it should be, or does not fit.
        RunFailed: on the way.
    """
    require_writer(conversion.form)
    if root.resolve() == (source / KAGGLE).resolve():
        raise InputRefused(f"{root}: Kaggle's own folder of images; name one of its own for the class folders")
    if root.resolve() == source.resolve():
        raise InputRefused(f"{root}: the folder of the source; name another ROOT")
    as_folders = conversion == Conversion(form="folder") and not (root / MANIFEST).exists()
    as_folders = as_folders and dataset.validation is None  # which has no folder of scored images
    if as_folders and (not source.is_dir() or _form_of(source, dataset) is None):
        make_folders(source, root, dataset, console, move=move)
        how = f"--data {root}"
    elif move:
        raise InputRefused("--move is for class folders of Kaggle's images, without --shorter; leave it out")
    else:
        how = f"--set dataset={_convert(source, root, dataset, console, conversion, workers)}"
    console.print(f"{dataset.num_train:,} + {dataset.num_eval:,} images of {dataset.num_classes:,} classes are there.")
    recipe = "goyal2017" if "imagenet" in (dataset.name, dataset.subset_of) else "RECIPE"  # which normalises by it
    console.print(f"To train on them: kilobatch train {recipe} {how}")


def _convert(
    source: Path, root: Path, dataset: Dataset, console: Console, conversion: Conversion, workers: int
) -> Path:
    """Write samples in another form, or compare those that are all written with the manifest; the data set's file."""
    totals = {"train": dataset.num_train, "eval": dataset.num_eval}
    if dataset.validation is not None:
        totals = {"train": sum(totals.values())}
    kind = READERS[conversion.form]
    fields = _fields(kind, dataset)
    reader = _MAKE[kind](**fields)
    file = root / f"{dataset.name}.yaml"
    if not (root / MANIFEST).exists() or _num_written(root) < sum(totals.values()):
        images = _images(source, dataset)
        for split, samples in images.splits.items():
            if len(samples) != totals[split]:
                what = f"{len(samples):,} images in {split}, where there should be {totals[split]:,}"
                raise InputRefused(f"{source}: {what}; fetch it again, or name the data set's file with --dataset")
        if len(images.classes) != dataset.num_classes:
            what = f"{len(images.classes):,} classes, where there should be {dataset.num_classes:,}"
            raise InputRefused(f"{source}: {what}; fetch it again, or name the data set's file with --dataset")
        console.print(f"{images.name}: stays as it is")
        showing = partial(showing_progress, unit="images")
        with filling_folder(root):
            convert(images, root, conversion, workers=workers, showing=showing)
    else:
        _refuse_other(root, source, conversion, totals)
        console.print(f"{root}: all is written; comparing it with {MANIFEST}")
        with showing_progress(f"{root}: SHA-256 of", sum(totals.values()), unit="images") as add:
            verify(root, add)
    try:
        require_data(replace(dataset, root=root, obtain="", reader=reader))
    except InputRefused as error:
        raise RunFailed(str(error)) from error
    facts = {key: getattr(dataset, key) for key in ("num_train", "num_eval", "num_classes", "channels")}
    numbers = {key: list(values) for key in ("mean", "std") if (values := getattr(dataset, key))}
    subset = {"subset_of": dataset.subset_of} if dataset.subset_of else {}
    on_bad = dataset.on_bad_image if isinstance(dataset.on_bad_image, str) else asdict(dataset.on_bad_image)
    tree = {
        "name": dataset.name,
        "title": f"{dataset.title or dataset.name}, as {conversion.form}: {read_manifest(root)[0]['images']}",
        "source": "scripts/prepare_imagenet.py; mean and deviation: those of the images before",
        "reader": {"kind": kind, **fields},
        "root": ".",
        **facts,
        **numbers,
        **subset,
        **({"validation": asdict(dataset.validation)} if dataset.validation else {}),
        "on_bad_image": on_bad,
    }
    file.write_text(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return file


def _fields(kind: str, dataset: Dataset) -> dict[str, int | None]:
    """The reader's fields; arrays have as many channels as were written."""
    fields = {"channels": dataset.channels} if kind != "Arrays" and dataset.channels in (1, 3) else {}
    return fields | ({} if dataset.validation is None else {"eval": None})


def _refuse_other(root: Path, source: Path, conversion: Conversion, totals: Mapping[str, int]) -> None:
    """Refuse a finished folder that was made otherwise; of another source only if that is there."""
    header, _ = read_manifest(root)
    what, _, folder = header["source"].partition(" in ")
    other = source.exists() and source.resolve() != Path(folder).resolve()
    wanted = {
        "source": f"{what} in {source}" if other else header["source"],
        "images": conversion.as_text(),
        "form": conversion.form,
        "per_chunk": conversion.per_chunk,
        **{f"num_{split}": count for split, count in totals.items()},
    }
    refuse_other(root, wanted)


def _num_written(root: Path) -> int:
    return sum(line["samples"] for line in read_manifest(root)[1].values())


def _form_of(folder: Path, dataset: Dataset) -> str | None:
    """The reader of a folder, by what it holds; None for ILSVRC 2012's own files.

    Raises:
        InputRefused: it holds one split only, and the data set has no `validation`.
    """
    if (folder / KAGGLE).is_dir() or any((folder / name).is_file() for name in ARCHIVES.values()):
        return None
    signs = {kind: sign if dataset.validation is None else sign[:1] for kind, sign in _SIGNS.items()}
    if isinstance(dataset.reader, ImageFolder):  # with names of its own
        own = [f"{getattr(dataset.reader, split)}/*/*" for split in splits_of(dataset.reader)]
        signs["ImageFolder"] = own if dataset.validation is None else own[:1]
    there = {kind: [one for one in sign if next(folder.glob(one), None)] for kind, sign in signs.items()}
    if whole := [kind for kind, found in there.items() if len(found) == len(signs[kind])]:
        return whole[0]
    for kind, found in there.items():
        if found:
            (absent,) = set(signs[kind]) - set(found)
            way_out = "so add the other split, or `validation: {fraction: 0.1}` to the file that --dataset names"
            raise InputRefused(f"{folder}: has {found[0]}, and no {absent}; {kind} needs both, {way_out}")
    return None


def _images(folder: Path, dataset: Dataset) -> SourceImages:
    """The samples of a source, by the data set's own reader where that reads its form."""
    kind = _form_of(folder, dataset)
    if kind is None:
        images = kaggle_images(folder) if (folder / KAGGLE).is_dir() else archive_images(folder)
        return images if dataset.validation is None else replace(images, splits={"train": images.splits["train"]})
    own = type(dataset.reader).__name__ == kind
    try:
        reader = dataset.reader if own else _MAKE[kind](**_fields(kind, dataset))
        splits = {split: reader.open(folder, split) for split in splits_of(reader)}
    except ValueError as error:
        raise InputRefused(str(error)) from error
    return SourceImages(name=f"{kind} in {folder}", splits=splits, classes=names_of_classes(splits["train"]))


def make_folders(source: Path, root: Path, dataset: Dataset, console: Console, *, move: bool) -> None:
    """Make the class folders that are not there yet from ILSVRC 2012's own files, and count both splits.

    Raises:
        InputRefused: before anything was written: the source is not what it should be, or does not fit.
        RunFailed: on the way.
    """
    totals = {"train": dataset.num_train, "val": dataset.num_eval}
    missing = [split for split in totals if not (root / split).is_dir()]
    images = _open_source(source, root, missing, move=move) if missing else None
    with filling_folder(root):
        if images is not None:
            console.print(images.note)
        for split in missing:
            part = root / f".{split}.part"
            part.mkdir(exist_ok=True)
            with showing_progress(f"{split}: {images.words} images", totals[split], unit="images") as add:
                images.fill[split](part, add)
            shutil.rmtree(part / ".half", ignore_errors=True)  # of hard links, where the rest was moved
            _require_whole(part, split, totals[split], dataset.num_classes, images)
            part.rename(root / split)
    console.print(f"{root}: counting both splits")
    try:
        require_data(replace(dataset, root=root, obtain="", reader=ImageFolder()))
    except InputRefused as error:
        if missing:
            raise RunFailed(str(error)) from error
        raise


def _open_source(folder: Path, root: Path, splits: list[str], *, move: bool) -> FolderSource:
    if not (folder / KAGGLE).is_dir():
        archives = archives_to_folders(folder, splits)
        begun = [split for split in splits if (root / f".{split}.part").is_dir()]
        needed = sum(archives.num_bytes[split] for split in splits if split not in begun)
        if needed > (free := shutil.disk_usage(_nearest(root)).free):
            raise InputRefused(f"{root}: {free / 1e9:,.1f} GB are free, {needed / 1e9:,.1f} needed; name another ROOT")
        return archives
    if _nearest(root).stat().st_dev != (folder / KAGGLE).stat().st_dev:
        raise InputRefused(f"{root}: on another file system than {folder}, where no link leads; name a ROOT there")
    return kaggle_to_folders(folder, move=move)


def _nearest(path: Path) -> Path:
    """The folder itself, or its nearest existing parent."""
    return next(folder for folder in (path, *path.resolve().parents) if folder.is_dir())


def _require_whole(part: Path, split: str, total: int, num_classes: int, source: FolderSource) -> None:
    """Count the images of a split, and say what is missing."""
    counts = {name: len(os.listdir(part / name)) for name in sorted(os.listdir(part))}
    if (num_images := sum(counts.values())) == total and len(counts) == num_classes:
        return
    in_class = source.in_class if split == "train" else Counter(source.class_of.values())
    wrong = [f"{name} {counts.get(name, 0):,} of {n:,}" for name, n in in_class.items() if counts.get(name, 0) != n]
    more = f" and {len(wrong) - _CLASSES_SHOWN} more classes" if len(wrong) > _CLASSES_SHOWN else ""
    named = f" ({', '.join(wrong[:_CLASSES_SHOWN])}{more})" if wrong else ""
    raise RunFailed(
        f"{part}: {num_images:,} images in {len(counts):,} classes, where there should be {total:,} in {num_classes:,}"
        f"{named}; {source.way_out.replace('PART', str(part))}, {WAY_ON}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="SOURCE", type=Path, help="folder of your download, or of one of the forms")
    parser.add_argument("root", metavar="ROOT", type=Path, help="folder to make, or to go on with")
    parser.add_argument("--format", choices=FORMS, default="folder", help="form to write, folder if left out")
    parser.add_argument("--shorter", metavar="PIXELS", type=int, help="smaller copies: their shorter side")
    parser.add_argument("--quality", metavar="Q", type=int, default=95, help="of smaller copies' JPEGs, 1 to 100: 95")
    parser.add_argument("--per-shard", metavar="N", type=int, default=10_000, help="images of a shard: 10000")
    parser.add_argument("--workers", metavar="N", type=int, help="processes; as many as cores if left out")
    parser.add_argument("--move", action="store_true", help="move Kaggle's files to ROOT instead of hard links")
    parser.add_argument(
        "--dataset", default="imagenet", metavar="D", help="data set whose file has the number of images"
    )
    options = parser.parse_args()
    for name, most in (("shorter", 10_000), ("quality", 100), ("per_shard", 10**9), ("workers", 1024)):
        if (value := getattr(options, name)) is not None and not 1 <= value <= most:
            parser.error(f"--{name.replace('_', '-')} must be from 1 to {most}, got {value}")
    console = Console(highlight=False, soft_wrap=True, markup=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    conversion = Conversion(
        form=options.format, shorter=options.shorter, quality=options.quality, per_chunk=options.per_shard
    )
    workers = options.workers or len(os.sched_getaffinity(0))
    try:
        dataset = open_dataset(options.dataset, vocabulary=vocabulary())
        prepare(
            options.source,
            options.root,
            dataset,
            console,
            conversion=conversion,
            workers=workers,
            move=options.move,
        )
    except InputRefused as error:
        code, text = EXIT_INPUT, str(error)
    except RunFailed as error:
        code, text = EXIT_FAILED, str(error)
    except OSError as error:
        code, text = EXIT_FAILED, f"{error.filename or options.root}: {error.strerror}; mend that, {WAY_ON}"
    except KeyboardInterrupt:
        code, text = EXIT_STOPPED, "stopped; the same command goes on"
    else:
        return 0
    print(f"prepare_imagenet: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
