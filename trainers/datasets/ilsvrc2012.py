"""ILSVRC 2012 as it is downloaded: image-net.org's archives, or Kaggle's files."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from recipes.errors import InputRefused
from trainers.datasets.byte_ranges import ByteRanges
from trainers.datasets.conversion import SourceImages
from trainers.datasets.place import Place
from trainers.datasets.samples import FilePaths, ImageFiles
from trainers.runs.errors import RunFailed

ARCHIVES = {"train": "ILSVRC2012_img_train.tar", "val": "ILSVRC2012_img_val.tar"}
DEVKIT, SOLUTION = "ILSVRC2012_devkit_t12.tar.gz", "LOC_val_solution.csv"
_META, _TRUTH = "meta.mat", "ILSVRC2012_validation_ground_truth.txt"
KAGGLE = Path("ILSVRC", "Data", "CLS-LOC")
WAY_ON = "then the same command goes on"
_CLASS, _VAL = re.compile(r"n[0-9]{8}"), re.compile(r"ILSVRC2012_val_[0-9]{8}")

# Fills a folder, which may be partly filled already, and reports how many images were added.
Fill = Callable[[Path, Callable[[int], None]], None]


@dataclass(frozen=True, kw_only=True)
class FolderSource:
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


def archives_to_folders(folder: Path, splits: Collection[str]) -> FolderSource:
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
    return FolderSource(
        note=f"{folder}: the archives stay as they are",
        words="unpacking",
        way_out="compare the archive's md5 with --help, fetch it again, remove PART",
        fill=fill,
        class_of=class_of,
        in_class=in_class,
        num_bytes=num_bytes,
    )


def kaggle_to_folders(folder: Path, *, move: bool) -> FolderSource:
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
    return FolderSource(note=f"{images}: {note}", words=words, way_out=way_out, fill=fill, class_of=class_of)


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


def archive_images(folder: Path) -> SourceImages:
    """The images in the archives, read where they lie; in the order that class folders of them have.

    Raises:
        InputRefused: an archive is not there, or not what it should be.
    """
    class_of = archives_to_folders(folder, ["train", "val"]).class_of
    paths = {split: folder / name for split, name in ARCHIVES.items()}
    with _reading(paths["train"], InputRefused), tarfile.open(paths["train"], "r:") as outer:
        tars = _class_tars(outer, paths["train"]).items()
        train = [member for name, tar in tars for member in _within(outer, name, tar)]
    with _reading(paths["val"], InputRefused), tarfile.open(paths["val"], "r:") as archive:
        evaluation = []
        for file in _files(archive, paths["val"]):
            if (plain := file.name.removeprefix("./")) not in class_of:
                what = f"holds {file.name!r}, which the devkit does not list"
                raise InputRefused(f"{paths['val']}: {what}; fetch both again")
            evaluation.append((f"{class_of[plain]}/{plain}", file.offset_data, file.size))
    classes = sorted(set(class_of.values()))
    return SourceImages(
        name=f"the archives of ILSVRC 2012 in {folder}",
        splits={
            split: _ranges(paths[archive], sorted(members), classes)
            for split, archive, members in (("train", "train", train), ("eval", "val", evaluation))
        },
        classes=classes,
    )


def _within(outer: tarfile.TarFile, name: str, tar: tarfile.TarInfo) -> Iterator[tuple[str, int, int]]:
    """Path, place in the outer archive, and size of each image of a class."""
    path = Path(str(outer.name))
    with tarfile.open(fileobj=outer.extractfile(tar), mode="r:") as inner:
        for file in _files(inner, path):
            image = _image(file.name.removeprefix("./"), name, path)
            yield f"{name}/{image}", tar.offset_data + file.offset_data, file.size


def _ranges(path: Path, members: Sequence[tuple[str, int, int]], classes: Sequence[str]) -> ByteRanges:
    names = FilePaths()
    names.extend(os.fsencode(name) for name, _, _ in members)
    return ByteRanges(
        labels=_labels([name.partition("/")[0] for name, _, _ in members], classes, path),
        channels=3,
        files=[path],
        file_of=np.zeros(len(members), dtype=np.int32),
        offsets=np.array([offset for _, offset, _ in members], dtype=np.int64),
        sizes=np.array([size for _, _, size in members], dtype=np.int64),
        names=names,
        place=Place(path.parent),
    )


def _labels(names: Sequence[str], classes: Sequence[str], path: Path) -> np.ndarray:
    """The label of each image by the name of its class."""
    label_of = {name: label for label, name in enumerate(classes)}
    if odd := sorted(set(names) - label_of.keys()):
        raise InputRefused(f"{path}: no evaluation image has class {odd[0]}; move it away, or fetch all files again")
    return np.array([label_of[name] for name in names], dtype=np.int32)


def kaggle_images(folder: Path) -> SourceImages:
    """Kaggle's images, read where they lie; in the order that class folders of them have.

    Raises:
        InputRefused: a folder is not there; the table is not as Kaggle's.
    """
    class_of = kaggle_to_folders(folder, move=False).class_of
    images, classes = folder / KAGGLE, sorted(set(class_of.values()))
    folders = sorted(os.listdir(images / "train"))
    train = sorted(f"{name}/{entry.name}" for name in folders for entry in _entries(images / "train" / name))
    found = [entry.name for entry in _entries(images / "val")]
    evaluation = sorted(found, key=lambda file: (class_of.get(file, ""), file))
    if odd := [file for file in evaluation if file not in class_of]:
        raise InputRefused(f"{images / 'val' / odd[0]}: {SOLUTION} has no class of it; move it away")
    names = [path.partition("/")[0] for path in train], [class_of[file] for file in evaluation]
    splits = {
        split: ImageFiles(folder=images / place, paths=paths, labels=_labels(own, classes, images / place), channels=3)
        for split, place, paths, own in zip(
            ("train", "eval"), ("train", "val"), (train, evaluation), names, strict=True
        )
    }
    return SourceImages(name=f"Kaggle's files in {folder}", splits=splits, classes=classes)
