"""Makes the folder that ImageNet's recipes train on: ROOT/train/CLASS/*.JPEG and ROOT/val/CLASS/*.JPEG.

    .venv/bin/python scripts/prepare_imagenet.py SOURCE ROOT
    kilobatch train goyal2017 --data ROOT

ImageNet's licence does not let us distribute its images. SOURCE is a folder with your download, either from
https://image-net.org, where you register and accept its terms (Download, ILSVRC 2012, tasks 1 and 2):

    ILSVRC2012_img_train.tar        md5 1d675b47d978889d74fa0da5fadfb00e
    ILSVRC2012_img_val.tar          md5 29b22e2961454d5413ddabcf34fc5622
    ILSVRC2012_devkit_t12.tar.gz    md5 fa75699e90414af021442c21a62c3abf

or from https://www.kaggle.com/c/imagenet-object-localization-challenge, where you accept its rules, unpacked:

    LOC_val_solution.csv
    ILSVRC/Data/CLS-LOC/train/CLASS/*.JPEG
    ILSVRC/Data/CLS-LOC/val/*.JPEG

Archives are only read; each image is written once. Kaggle's images are not copied: ROOT gets hard links to them, or
with --move the files themselves; both need ROOT on the same file system.

If this command is interrupted, run it again: it continues where it was. A split is ROOT/.train.part or ROOT/.val.part
until all its images are there and counted.

Exit codes: 0 done, 2 the input is wrong and nothing was written, 3 it failed on the way, 4 stopped by a signal.
The md5 sums are those of torchvision/datasets/imagenet.py; `md5sum FILE` prints yours.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import io
import os
import re
import shutil
import signal
import sys
import tarfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from recipes.errors import InputRefused
from recipes.reading.open import open_dataset
from recipes.schema import Dataset
from trainers.launch.preflight import require_data
from trainers.launch.vocabulary import vocabulary
from trainers.runs.errors import EXIT_FAILED, EXIT_INPUT, EXIT_STOPPED, RunFailed

ARCHIVES = {"train": "ILSVRC2012_img_train.tar", "val": "ILSVRC2012_img_val.tar"}
DEVKIT, SOLUTION = "ILSVRC2012_devkit_t12.tar.gz", "LOC_val_solution.csv"
_META, _TRUTH = "meta.mat", "ILSVRC2012_validation_ground_truth.txt"
KAGGLE = Path("ILSVRC", "Data", "CLS-LOC")
WAY_ON = "then the same command goes on"
_CLASS, _VAL = re.compile(r"n[0-9]{8}"), re.compile(r"ILSVRC2012_val_[0-9]{8}")
_CLASSES_SHOWN = 5  # in a message
_LINE_SECONDS = 60.0  # between two lines in a log

# Fills a folder, which may be partly filled already, and reports how many images were added.
Fill = Callable[[Path, Callable[[int], None]], None]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A source of images, and how the splits are made from it.

    Args:
        note: a message about the source.
        words: the work on the images, for the progress bar.
        way_out: advice if images are missing; PART is the folder that was filled.
        fill: split -> function that fills its folder.
        class_of: class of each evaluation image, by the name of its file.
        in_class: training images of each class, if the source has these numbers.
        num_bytes: split -> bytes to write.
    """

    note: str
    words: str
    way_out: str
    fill: Mapping[str, Fill]
    class_of: Mapping[str, str]
    in_class: Mapping[str, int] = field(default_factory=dict)
    num_bytes: Mapping[str, int] = field(default_factory=dict)


def from_archives(folder: Path, splits: Collection[str]) -> Source:
    """The archives of these splits, after quick checks.

    Raises:
        InputRefused: one is not there, or not what it should be.
    """
    paths = {split: folder / ARCHIVES[split] for split in splits}
    wanted = [*paths.values(), folder / DEVKIT]
    if absent := [path.name for path in wanted if not path.is_file()]:
        raise InputRefused(f"{folder}: holds no {', no '.join(absent)}, nor Kaggle's files; --help lists the files")
    for split, path in paths.items():
        with _reading(path, InputRefused), tarfile.open(path, "r:") as archive:
            if split == "train":
                _class_tars(archive, path)
    class_of, in_class = read_devkit(folder / DEVKIT)
    fill = {
        "train": lambda target, add: _unpack_train(paths["train"], target, add),
        "val": lambda target, add: _unpack_val(paths["val"], class_of, target, add),
    }
    num_bytes = {split: path.stat().st_size for split, path in paths.items()}
    return Source(
        note=f"{folder}: the archives stay as they are",
        words="unpacking",
        way_out="compare the archive's md5 with --help, fetch it again, remove PART",
        fill=fill,
        class_of=class_of,
        in_class=in_class,
        num_bytes=num_bytes,
    )


def from_kaggle(folder: Path, *, move: bool) -> Source:
    """Kaggle's files: class folders for training, evaluation images side by side and their classes in a table.

    Raises:
        InputRefused: a folder is not there; the table is not as Kaggle's.
    """
    images = folder / KAGGLE
    for path in (images / "train", images / "val"):
        if not path.is_dir():
            raise InputRefused(f"{path}: no such folder; --help shows the layout of Kaggle's files")
    class_of = _read_solution(folder / SOLUTION)
    names = [_class(name, images / "train") for name in sorted(os.listdir(images / "train"))]
    fill = {
        "train": lambda target, add: _place_train(images / "train", names, target, add, move=move),
        "val": lambda target, add: _place_val(images / "val", class_of, target, add, move=move),
    }
    if move:
        note, words, way_out = "its images are moved away", "moving", "put what is missing into PART"
    else:
        note, words = "stays as it is; hard links to its images are made, which take no room", "hard links to"
        way_out = f"put what is missing into {images}, remove PART, which holds links only"
    return Source(note=f"{images}: {note}", words=words, way_out=way_out, fill=fill, class_of=class_of)


def read_devkit(path: Path) -> tuple[dict[str, str], dict[str, int]]:
    """Class of each evaluation image by its file's name, and the number of training images of each class.

    Raises:
        InputRefused: the archive is damaged, or not the devkit; SciPy is not installed.
    """
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise InputRefused("the devkit's meta.mat is read with SciPy; type: pip install scipy") from error
    with _reading(path, InputRefused), tarfile.open(path, "r:gz") as archive:
        files = [file for file in _files(archive, path) if Path(file.name).name in (_META, _TRUTH)]
        contents = {Path(file.name).name: archive.extractfile(file).read() for file in files}
    try:
        synsets = loadmat(io.BytesIO(contents[_META]), squeeze_me=True)["synsets"]
        leaves = [synset for synset in synsets if int(synset["num_children"]) == 0]
        name_of = {int(leaf["ILSVRC2012_ID"]): _class(str(leaf["WNID"]), path) for leaf in leaves}
        has_numbers = "num_train_images" in synsets.dtype.names
        in_class = {str(leaf["WNID"]): int(leaf["num_train_images"]) for leaf in leaves if has_numbers}
        numbers = contents[_TRUTH].split()
        names = [name_of[int(number)] for number in numbers]
    except InputRefused:
        raise
    except Exception as error:  # SciPy raises many kinds for files that are not what they should be
        what = f"{type(error).__name__}: {error} in data/{_META} or data/{_TRUTH}"
        raise InputRefused(f"{path}: {what}; it is not the devkit of tasks 1 and 2 (its md5: --help)") from error
    return {f"ILSVRC2012_val_{number:08d}.JPEG": name for number, name in enumerate(names, 1)}, in_class


def _read_solution(path: Path) -> dict[str, str]:
    """File name -> class of each evaluation image; the boxes in the table are ignored."""
    if not path.is_file():
        raise InputRefused(f"{path}: no such file; it comes with Kaggle's images and has their classes")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    if wrong := [row for row in rows if len(row) != 2 or not _VAL.fullmatch(row[0])]:
        raise InputRefused(f"{path}: {','.join(wrong[0])!r} is no line of image, class and boxes; fetch it again")
    return {f"{image}.JPEG": _class(boxes.partition(" ")[0], path) for image, boxes in rows}


def _class(name: str, path: Path) -> str:
    if not _CLASS.fullmatch(name):
        raise InputRefused(f"{path}: {name!r} is no class's name such as n01440764; it is not ILSVRC 2012's")
    return name


@contextmanager
def _reading(path: Path, failure: type[Exception] = RunFailed) -> Iterator[None]:
    """Name the archive in errors raised inside, as damaged."""
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise failure(f"{path}: {error}; damaged or cut off: compare its md5, fetch it again, {WAY_ON}") from error


def _files(archive: tarfile.TarFile, path: Path, failure: type[Exception] = InputRefused) -> Iterator[tarfile.TarInfo]:
    """The files of an archive; folders are skipped, anything else is refused."""
    for member in archive:
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE) or member.issparse():
            raise failure(f"{path}: {member.name!r} is a link, a device or a file with holes; not ILSVRC 2012's")
        if not member.isdir():
            yield member


def _class_tars(archive: tarfile.TarFile, path: Path) -> dict[str, tarfile.TarInfo]:
    """The tar of each class, all of which are complete within the archive."""
    tars, num_bytes = {}, path.stat().st_size
    for member in _files(archive, path):
        if member.offset_data + member.size > num_bytes:
            raise InputRefused(f"{path}: cut off within {member.name!r}; fetch it again (its md5: --help)")
        tars[_class(member.name.removeprefix("./").removesuffix(".tar"), path)] = member
    return tars


def _unpack_train(path: Path, folder: Path, add: Callable[[int], None]) -> None:
    """Unpack each class's tar, read in place, into a folder that is renamed to the class when it is complete."""
    with _reading(path), tarfile.open(path, "r:") as outer:
        for name, member in _class_tars(outer, path).items():
            if (folder / name).exists():
                add(len(os.listdir(folder / name)))
                continue
            half = _emptied(folder / ".half")
            with tarfile.open(fileobj=outer.extractfile(member), mode="r:") as inner:
                for file in _files(inner, path, RunFailed):
                    _write(inner, file, half / _image(file.name.removeprefix("./"), name, path))
                    add(1)
            half.rename(folder / name)


def _unpack_val(path: Path, class_of: Mapping[str, str], folder: Path, add: Callable[[int], None]) -> None:
    """Unpack each image into its class's folder; the file is renamed to its name when it is complete."""
    for name in set(class_of.values()):
        (folder / name).mkdir(exist_ok=True)
    with _reading(path), tarfile.open(path, "r:") as archive:
        for member in _files(archive, path, RunFailed):
            plain = member.name.removeprefix("./")
            if plain not in class_of:
                raise RunFailed(f"{path}: holds {member.name!r}, which the devkit does not list; fetch both again")
            if not (target := folder / class_of[plain] / plain).exists():
                _write(archive, member, folder / ".half")
                (folder / ".half").rename(target)
            add(1)


def _place_train(source: Path, names: Sequence[str], folder: Path, add: Callable[[int], None], *, move: bool) -> None:
    """Move each class's folder, or make one of hard links, renamed to the class when it is complete."""
    for name in names:
        if not (target := folder / name).exists():
            files = [_image(entry.name, name, source) for entry in _entries(source / name)]
            if move:
                (source / name).rename(target)
            else:
                half = _emptied(folder / ".half")
                for file in files:
                    os.link(source / name / file, half / file)
                half.rename(target)
        add(len(os.listdir(target)))


def _place_val(
    source: Path, class_of: Mapping[str, str], folder: Path, add: Callable[[int], None], *, move: bool
) -> None:
    """Move each image into its class's folder, or make a hard link there."""
    for name in set(class_of.values()):
        (folder / name).mkdir(exist_ok=True)
    for entry in _entries(source):
        if entry.name not in class_of:
            raise RunFailed(f"{entry.path}: {SOLUTION} has no class of it; move it away, {WAY_ON}")
        if not (target := folder / class_of[entry.name] / entry.name).exists():
            (os.rename if move else os.link)(entry.path, target)
        add(1)


def _image(file: str, name: str, path: Path) -> str:
    if not re.fullmatch(rf"{name}_[0-9]+\.JPEG", file):
        raise RunFailed(f"{path}: class {name} holds {file!r}, no {name}_NUMBER.JPEG; not ILSVRC 2012's images")
    return file


def _entries(folder: Path) -> Iterator[os.DirEntry]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_file(follow_symlinks=False):
                raise RunFailed(f"{entry.path}: a link or a folder, where images are expected; move it away, {WAY_ON}")
            yield entry


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    with archive.extractfile(member) as content, path.open("wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


@contextmanager
def showing_progress(console: Console, words: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that counts further images of a split: a bar on a terminal, a line a minute in a log."""
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(words, total=total)
            yield lambda images: bar.advance(task, images)
        return
    console.print(words)
    done, printed_at = 0, time.monotonic()

    def add(images: int) -> None:
        nonlocal done, printed_at
        done += images
        if time.monotonic() - printed_at > _LINE_SECONDS:
            printed_at = time.monotonic()
            console.print(f"{words}: {done:,} of {total:,} images")

    yield add


def prepare(source: Path, root: Path, dataset: Dataset, console: Console, *, move: bool = False) -> None:
    """Make the splits that are not there yet, and check both.

    Raises:
        InputRefused: before anything was written: the source is not what it should be, or does not fit.
        RunFailed: on the way.
    """
    if root.resolve() == (source / KAGGLE).resolve():
        raise InputRefused(f"{root}: Kaggle's own folder of images; name one of its own for the class folders")
    totals = {"train": dataset.num_train, "val": dataset.num_eval}
    missing = [split for split in totals if not (root / split).is_dir()]
    images = _open_source(source, root, missing, move=move) if missing else None
    with _locked(root):
        if images is not None:
            console.print(images.note)
        for split in missing:
            part = root / f".{split}.part"
            part.mkdir(exist_ok=True)
            with showing_progress(console, f"{split}: {images.words} images", totals[split]) as add:
                images.fill[split](part, add)
            shutil.rmtree(part / ".half", ignore_errors=True)  # of hard links, where the rest was moved
            _require_whole(part, split, totals[split], dataset.num_classes, images)
            part.rename(root / split)
    console.print(f"{root}: counting both splits")
    try:
        require_data(replace(dataset, root=root, obtain=""))
    except InputRefused as error:
        if missing:
            raise RunFailed(str(error)) from error
        raise
    console.print(f"{dataset.num_train:,} + {dataset.num_eval:,} images of {dataset.num_classes:,} classes are there.")
    console.print(f"To train on them: kilobatch train goyal2017 --data {root}")


def _open_source(folder: Path, root: Path, splits: list[str], *, move: bool) -> Source:
    if not (folder / KAGGLE).is_dir():
        archives = from_archives(folder, splits)
        begun = [split for split in splits if (root / f".{split}.part").is_dir()]
        needed = sum(archives.num_bytes[split] for split in splits if split not in begun)
        if needed > (free := shutil.disk_usage(_nearest(root)).free):
            raise InputRefused(f"{root}: {free / 1e9:,.1f} GB are free, {needed / 1e9:,.1f} needed; name another ROOT")
        return archives
    if _nearest(root).stat().st_dev != (folder / KAGGLE).stat().st_dev:
        raise InputRefused(f"{root}: on another file system than {folder}, where no link leads; name a ROOT there")
    return from_kaggle(folder, move=move)


def _nearest(path: Path) -> Path:
    """The folder itself, or its nearest existing parent."""
    return next(folder for folder in (path, *path.resolve().parents) if folder.is_dir())


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Lock the folder, made if it does not exist, so that no other process fills it meanwhile."""
    root.mkdir(parents=True, exist_ok=True)
    held = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputRefused(f"{root}: another of these commands is at work there; wait for it") from error
        except OSError:
            pass  # a file system without locks keeps nobody out
        yield
    finally:
        os.close(held)


def _require_whole(part: Path, split: str, total: int, num_classes: int, source: Source) -> None:
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
    parser.add_argument("source", metavar="SOURCE", type=Path, help="folder of the archives or of Kaggle's files")
    parser.add_argument("root", metavar="ROOT", type=Path, help="folder to make, or to go on with")
    parser.add_argument("--move", action="store_true", help="move Kaggle's files to ROOT instead of hard links")
    parser.add_argument(
        "--dataset", default="imagenet", metavar="D", help="data set whose file has the number of images"
    )
    options = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True, markup=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        dataset = open_dataset(options.dataset, vocabulary=vocabulary())
        prepare(options.source, options.root, dataset, console, move=options.move)
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
