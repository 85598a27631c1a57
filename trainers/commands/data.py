"""`kilobatch data ...`: look at a data set, check its images, measure how fast they come, see them augmented."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trainers.commands.options import (
    EXIT_FOUND,
    OPTIONS_OF_GROUPS,
    AllowCode,
    Data,
    Decoder,
    Json,
    Recipe,
    Set,
    opened_recipe,
    print_json,
    written,
)

app = typer.Typer(help="Look at a data set, check and time its images.", **OPTIONS_OF_GROUPS)

_SHOWN = 20  # files that are named
Dataset = Annotated[str, typer.Argument(metavar="DATASET", help="A data set's name or file, or a folder of images.")]


@app.command()
def inspect(
    dataset: Dataset,
    data: Data = None,
    out: Annotated[Path | None, typer.Option("-o", metavar="F.png", help="Draw sizes and classes there.")] = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Counts, classes, sizes and fingerprint of a data set."""
    from trainers.datasets.inspection import inspect, inspection_text

    found = inspect(opened_dataset(dataset, data, allow_code))
    print_json(found) if as_json else print(inspection_text(found))
    if out is not None:
        from recipes.reports.plots import data_figure, save_figure

        written(lambda: save_figure(data_figure(found), out), "-o")


@app.command()
def verify(
    dataset: Dataset,
    data: Data = None,
    decoder: Decoder = None,
    write_list: Annotated[Path | None, typer.Option(metavar="F", help="Write the names of bad images there.")] = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Decode every image and name the bad ones. Exit code 5 if there are any, or the counts differ."""
    from trainers.augmentations import decoders
    from trainers.datasets.image_check import num_images, verified_text, verify_images, write_names
    from trainers.datasets.progress_bar import showing_progress

    decoders.use(decoder)
    opened, others = _opened_past_others(dataset, data, allow_code)
    with showing_progress(f"decoding {opened.name}", num_images(opened), unit="images", after_seconds=1.0) as advance:
        verified = verify_images(opened, advance, others=others)
    print_json(verified.as_tree()) if as_json else print(verified_text(verified))
    if write_list is not None:
        written(lambda: write_names(verified.unusable, write_list), "--write-list")
    raise typer.Exit(0 if verified.holds else EXIT_FOUND)


@app.command()
def get(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="A data set's name or file.")],
    to: Annotated[Path | None, typer.Option("--to", metavar="FOLDER", help="Put the files there.")] = None,
    at_hand: Annotated[
        Path | None, typer.Option("--from", metavar="FOLDER", help="Copy them from there; download nothing.")
    ] = None,
    allow_code: AllowCode = False,
) -> None:
    """Fetch the files of a data set from its source, and check them.

    Without --to they are put where training finds them by itself.
    """
    from functools import partial

    from recipes.reading.open import open_dataset
    from recipes.reading.registry import obtained_folder
    from trainers.datasets.obtaining import get
    from trainers.datasets.progress_bar import showing_progress
    from trainers.launch.vocabulary import vocabulary

    opened = open_dataset(dataset, vocabulary=vocabulary(allow_code=allow_code), allow_code=allow_code)
    target = to or obtained_folder(opened.name)
    folder = get(opened, target, at_hand=at_hand, showing=partial(showing_progress, unit="bytes"))
    found = open_dataset(dataset, vocabulary=vocabulary(allow_code=allow_code), allow_code=allow_code).root
    here = found is not None and found.resolve() == folder.resolve()
    print(f"{opened.name}: all files are in {folder}; " + ("training finds them" if here else f"--data {folder}"))


@app.command()
def stage(
    dataset: Dataset,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="On a local disk, or in memory: /dev/shm/...")],
    data: Data = None,
    allow_code: AllowCode = False,
) -> None:
    """Copy a data set's files to a local folder, and compare checksums.

    Goes on where it was cut off; a file that is there with other bytes is copied again, and one that was copied and is
    gone at the source is removed.
    """
    from recipes.errors import InputRefused, printable_line
    from recipes.reading.open import open_dataset
    from recipes.reports.wording import size
    from trainers.datasets.progress_bar import showing_progress
    from trainers.datasets.remote import CannotFetch
    from trainers.datasets.staging import Source
    from trainers.datasets.staging import stage as copy
    from trainers.launch.preflight import refuse_folder
    from trainers.launch.vocabulary import vocabulary

    if data is None and Path(dataset).is_dir():
        root: Path | None = Path(dataset)
    else:
        words = vocabulary(allow_code=allow_code)
        opened = open_dataset(dataset, vocabulary=words, allow_code=allow_code, data_root=data, counting=False)
        refuse_folder(opened, data)
        root = opened.root
    if root is None:
        raise InputRefused(f"data set {dataset} has no root to copy from; give one with --data")
    total = sum(Source(root).sizes.values())
    with showing_progress(f"copying {dataset}", total, unit="bytes") as advance:
        try:
            staged = copy(root, to, done=advance)
        except CannotFetch as error:
            raise CannotFetch(f"{error}; the same command goes on") from error
    for names, what in (
        (staged.replaced, "had other bytes than the source, copied again"),
        (staged.removed, "no longer at the source, removed"),
        (staged.extra, "not of the source, left there"),
    ):
        for name in names[:_SHOWN]:
            print(printable_line(f"{to / name}: {what}"))
        if len(names) > _SHOWN:
            print(f"and {len(names) - _SHOWN:,} more files: {what}")
    there = f"{staged.num_copied:,} copied, {staged.num_files - staged.num_copied:,} were there"
    print(f"{staged.num_files:,} files, {size(staged.num_bytes)}: {there}. To train on them: --data {to}")


@app.command()
def bench(
    dataset: Dataset,
    recipe: Annotated[str | None, typer.Option("--recipe", metavar="R", help="Whose augmentation is applied.")] = None,
    target: Annotated[float, typer.Option(min=1, metavar="RATE", help="Images/s to compute cores for.")] = 6300,
    data: Data = None,
    decoder: Decoder = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Images/s by stage on one core and on all, and what bounds them."""
    from trainers.augmentations import decoders
    from trainers.datasets.input_rates import measure_input, rates_text

    decoders.use(decoder)
    opened = opened_dataset(dataset, data, allow_code)
    of = None if recipe is None else _trainable(opened_recipe(recipe, None, data, allow_code)).recipe
    rates = measure_input(opened, of, target=target)
    print_json(rates) if as_json else print(rates_text(rates))


@app.command()
def sheet(
    recipe: Recipe,
    out: Annotated[Path, typer.Option("-o", metavar="F.png", help="Where to draw it.")],
    epoch: Annotated[int, typer.Option(min=0, metavar="E", help="Of the run, from 0.")] = 0,
    evaluation: Annotated[bool, typer.Option("--eval", help="Show samples of the evaluation.")] = False,
    overrides: Set = None,
    data: Data = None,
    decoder: Decoder = None,
    allow_code: AllowCode = False,
) -> None:
    """Draw 64 samples as a recipe's model gets them."""
    from trainers.augmentations import decoders
    from trainers.datasets.sheet import evaluated_samples, save_sheet, sheet, title_of, training_samples
    from trainers.launch.preflight import refuse_folder, require_data

    decoders.use(decoder)
    opened = _trainable(opened_recipe(recipe, overrides, data, allow_code))
    made, dataset = opened.recipe, opened.dataset
    refuse_folder(dataset, data)
    require_data(dataset)
    shown = evaluated_samples(made, dataset) if evaluation else training_samples(made, dataset, epoch=epoch)
    title = title_of(made, epoch=None if evaluation else epoch, count=len(shown))
    written(lambda: save_sheet(sheet(shown, title=title), out), "-o")


def _trainable(opened: Any) -> Any:
    from trainers.launch.preflight import refuse_unbuilt

    refuse_unbuilt(opened.recipe, opened.dataset)
    return opened


def opened_dataset(name: str, data: Path | None, allow_code: bool) -> Any:
    """The data set of a name or file; a folder is a data set of its own, read by ImageFolder.

    Raises:
        InputRefused: it is refused, its data are not there, or it has no reader.
    """
    from recipes.reading.open import open_dataset
    from trainers.datasets.inspection import dataset_of_folder, require_opened
    from trainers.launch.preflight import refuse_folder
    from trainers.launch.vocabulary import vocabulary

    if data is None and Path(name).is_dir():
        return require_opened(dataset_of_folder(Path(name)))
    words = vocabulary(allow_code=allow_code)
    dataset = open_dataset(name, vocabulary=words, allow_code=allow_code, data_root=data)
    refuse_folder(dataset, data)
    return require_opened(dataset)


def _opened_past_others(name: str, data: Path | None, allow_code: bool) -> tuple[Any, list[str]]:
    """The data set, opened past files that are no images by their names, and the names of those that it refuses."""
    from recipes.reading.open import open_dataset
    from trainers.datasets.image_folder import ImageFolder
    from trainers.datasets.inspection import dataset_of_folder, other_files, require_opened
    from trainers.launch.vocabulary import vocabulary

    if data is None and Path(name).is_dir():
        opened = require_opened(dataset_of_folder(Path(name), others="skip"))
        return opened, other_files(opened)
    words = vocabulary(allow_code=allow_code)
    reader = open_dataset(name, vocabulary=words, allow_code=allow_code, data_root=data, counting=False).reader
    if not isinstance(reader, ImageFolder) or reader.others == "skip":
        return opened_dataset(name, data, allow_code), []
    past = ["reader.others=skip"]
    opened = require_opened(open_dataset(name, vocabulary=words, allow_code=allow_code, data_root=data, overrides=past))
    return opened, other_files(opened)
