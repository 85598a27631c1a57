"""Makes the folder that ImageNet's recipes train on: ROOT/train/CLASS/*.JPEG and ROOT/val/CLASS/*.JPEG.

    .venv/bin/python scripts/prepare_imagenet.py SOURCE ROOT
    kilobatch train goyal2017 --data ROOT

ImageNet's images are not free to pass on: SOURCE is a folder with what you were given of them. Either by
https://image-net.org, where you register and accept its terms (Download, ILSVRC 2012, tasks 1 and 2):

    ILSVRC2012_img_train.tar        md5 1d675b47d978889d74fa0da5fadfb00e
    ILSVRC2012_img_val.tar          md5 29b22e2961454d5413ddabcf34fc5622
    ILSVRC2012_devkit_t12.tar.gz    md5 fa75699e90414af021442c21a62c3abf

or by https://www.kaggle.com/c/imagenet-object-localization-challenge, where you accept its rules, unpacked:

    LOC_val_solution.csv
    ILSVRC/Data/CLS-LOC/train/CLASS/*.JPEG
    ILSVRC/Data/CLS-LOC/val/*.JPEG

Archives are read where they lie and stay as they are; each image is written once. Kaggle's images are not copied: ROOT
gets hard links to them, or with --move the files themselves; both want ROOT on the same file system.

If this command ends before it is done, give it again: it goes on where it was. A split has its name when all of it is
there and counted; until then it is ROOT/.train.part or ROOT/.val.part.

Exit codes: 0 done, 2 the input is wrong and nothing was written, 3 it failed on the way, 4 stopped by a signal.
The md5 sums are those of torchvision/datasets/imagenet.py; `md5sum FILE` says yours.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from imagenet_sources import KAGGLE, WAY_ON, Source, from_archives, from_kaggle
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from recipes.errors import InputRefused
from recipes.reading.open import open_dataset
from recipes.schema import Dataset
from trainers.launch.preflight import require_data
from trainers.launch.vocabulary import vocabulary
from trainers.runs.errors import EXIT_FAILED, EXIT_INPUT, EXIT_STOPPED, RunFailed

_NAMED = 5  # classes in a message
_LINE_SECONDS = 60.0  # between two lines in a log


class Shown:
    """Shows the progress of a split: a bar on a terminal, a line a minute in a log."""

    def __init__(self, console: Console, words: str, total: int) -> None:
        self._console, self._words, self._total = console, words, total
        self._done, self._told = 0, time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console) if console.is_terminal else None

    def __enter__(self) -> Shown:
        if self._bar is None:
            self._console.print(self._words)
        else:
            self._bar.start()
            self._bar.add_task(self._words, total=self._total)
        return self

    def __exit__(self, *failure: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def add(self, images: int) -> None:
        """Count further images."""
        self._done += images
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], images)
        elif time.monotonic() - self._told > _LINE_SECONDS:
            self._told = time.monotonic()
            self._console.print(f"{self._words}: {self._done:,} of {self._total:,} images")


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
    found = _source(source, root, missing, move=move) if missing else None
    with _alone(root):
        if found is not None:
            console.print(found.note)
        for split in missing:
            part = root / f".{split}.part"
            part.mkdir(exist_ok=True)
            with Shown(console, f"{split}: {found.words} images", totals[split]) as shown:
                found.fill[split](part, shown.add)
            shutil.rmtree(part / ".half", ignore_errors=True)  # of hard links, where the rest was moved
            _require_whole(part, split, totals[split], dataset.num_classes, found)
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


def _source(folder: Path, root: Path, splits: list[str], *, move: bool) -> Source:
    if not (folder / KAGGLE).is_dir():
        found = from_archives(folder, splits)
        begun = [split for split in splits if (root / f".{split}.part").is_dir()]
        needed = sum(found.num_bytes[split] for split in splits if split not in begun)
        if needed > (free := shutil.disk_usage(_nearest(root)).free):
            raise InputRefused(f"{root}: {free / 1e9:,.1f} GB are free, {needed / 1e9:,.1f} needed; name another ROOT")
        return found
    if _nearest(root).stat().st_dev != (folder / KAGGLE).stat().st_dev:
        raise InputRefused(f"{root}: on another file system than {folder}, where no link leads; name a ROOT there")
    return from_kaggle(folder, move=move)


def _nearest(path: Path) -> Path:
    """The folder itself, or its nearest existing parent."""
    return next(folder for folder in (path, *path.resolve().parents) if folder.is_dir())


@contextmanager
def _alone(root: Path) -> Iterator[None]:
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
    if (found := sum(counts.values())) == total and len(counts) == num_classes:
        return
    in_class = source.in_class if split == "train" else Counter(source.class_of.values())
    wrong = [f"{name} {counts.get(name, 0):,} of {n:,}" for name, n in in_class.items() if counts.get(name, 0) != n]
    more = f" and {len(wrong) - _NAMED} more classes" if len(wrong) > _NAMED else ""
    named = f" ({', '.join(wrong[:_NAMED])}{more})" if wrong else ""
    raise RunFailed(
        f"{part}: {found:,} images in {len(counts):,} classes, where there should be {total:,} in {num_classes:,}"
        f"{named}; {source.way_out.replace('PART', str(part))}, {WAY_ON}"
    )


def main() -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="SOURCE", type=Path, help="folder of the archives or of Kaggle's files")
    parser.add_argument("root", metavar="ROOT", type=Path, help="folder to make, or to go on with")
    parser.add_argument("--move", action="store_true", help="move Kaggle's files to ROOT instead of hard links")
    parser.add_argument("--dataset", default="imagenet", metavar="D", help="whose file says how many images there are")
    given = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True, markup=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        dataset = open_dataset(given.dataset, vocabulary=vocabulary())
        prepare(given.source, given.root, dataset, console, move=given.move)
    except InputRefused as error:
        return _told(str(error), EXIT_INPUT)
    except RunFailed as error:
        return _told(str(error), EXIT_FAILED)
    except OSError as error:
        return _told(f"{error.filename or given.root}: {error.strerror}; mend that, {WAY_ON}", EXIT_FAILED)
    except KeyboardInterrupt:
        return _told("stopped; the same command goes on", EXIT_STOPPED)
    return 0


def _told(text: str, code: int) -> int:
    print(f"prepare_imagenet: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
