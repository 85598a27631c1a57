"""A table of what a model says of each sample of an evaluation, for other programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused
from trainers.datasets.inspection import class_called
from trainers.runs.run_folder import write_whole
from trainers.training.extensions.evaluation import Score

TOP = 5  # classes that are named
COLUMNS = ("sample", "file", "label", "class", "predicted", "predicted_class", "probability", "correct", "loss")
OF_TOP = (f"top{TOP}", f"top{TOP}_probabilities")  # columns of more than five classes


def require_table(file: Path) -> None:
    """Refuse a file of predictions that cannot be written, before the model is run.

    Raises:
        InputRefused: it is not called .csv, or its folder is not there.
    """
    if file.suffix.lower() != ".csv":
        raise InputRefused(f"{file}: a table of predictions is a .csv file; give another name")
    if not file.parent.is_dir():
        raise InputRefused(f"{file}: there is no folder {file.parent}; make it, or name another")


def write_predictions(file: Path, score: Score, samples: Any, classes: Sequence[str]) -> None:
    """Write a line of CSV for each sample, in the order of the evaluation set.

    Args:
        file: is replaced if it is there.
        score: of all samples, with `top`: 1, or five, which are named too.
        samples: of the evaluation set, open.
        classes: names of the classes.
    Raises:
        InputRefused: the file cannot be written.
    """
    has_top = score.top[0].shape[1] == TOP
    columns = (*COLUMNS, *OF_TOP) if has_top else COLUMNS
    write_table(file, [columns, *(line[: len(columns)] for line in _lines(score, samples, classes))])


def write_table(file: Path, lines: Iterable[Sequence[Any]]) -> None:
    """Write lines of CSV; raises as `write_predictions`."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(lines)
    try:
        write_whole(file, text.getvalue().encode(errors="surrogateescape"))
    except OSError as error:
        raise InputRefused(f"{file} cannot be written: {error.strerror}; give another") from error


def _lines(score: Score, samples: Any, classes: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    top_classes, probabilities = (each.tolist() for each in score.top)
    name_of = getattr(samples, "name_of", lambda index: "")
    for index, (value, _, loss) in enumerate(score.samples.tolist()):
        label, found, shares = int(value), top_classes[index], [f"{share:.6g}" for share in probabilities[index]]
        named = (label, class_called(classes, label), found[0], class_called(classes, found[0]))
        facts = (index, name_of(index), *named, shares[0], int(found[0] == label), f"{loss:.6g}")
        yield *facts, " ".join(map(str, found)), " ".join(shares)
