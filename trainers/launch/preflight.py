"""Checks before a run: methods that kilobatch does not have yet, the data, and own code, that of packs too."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused, RecipeError
from recipes.reading.load import chain_of
from recipes.reading.open import CODE, OpenedRecipe, leaves
from recipes.reading.read import dotted
from recipes.reading.registry import SHOWN_PACK, is_of_pack, shown
from recipes.schema import Dataset, Recipe
from recipes.sharing.pack_file import HEAD
from trainers import models
from trainers.datasets.augmented import UnfitEnd, augmented_samples, late_samples
from trainers.datasets.bad_images import can_skip, limit_of
from trainers.datasets.held_out import contradictions, label_gaps, open_split
from trainers.datasets.samples import evenly
from trainers.runs.errors import ServiceAway, UnfitImage, print_warnings
from trainers.runs.identity import is_of_the_user, known_identity, own_code, sha256_of_files
from trainers.runs.memory import installed_bytes
from trainers.runs.run_folder import RUN

_MAX_CHECKED = 50_000  # samples of a split: 2 s if the files are in the page cache
_MOST_NAMED = 10
_MOST_CLASSES = 1_000_000  # assumed: above, and above the number of samples, labels are no classes, such as ids
_ORDER_BYTES = 20  # a training sample, while a rank draws an epoch's order: draws, order, and half of that again


class NotBuilt(InputRefused):
    """The recipe or its data set asks for a method that is not built; names it."""


def refuse_unbuilt(recipe: Recipe, dataset: Dataset) -> None:
    """Refuse to train a recipe that needs methods not built yet, naming them.

    Raises:
        NotBuilt: `lacks` of the recipe or the data set names a method, or the recipe leaves values open.
    """
    if recipe.open:
        raise NotBuilt(
            f"recipe {recipe.name} leaves open what nobody published: {', '.join(recipe.open)}; to train it, give "
            "these values in a recipe that extends it, with `open: []`"
        )
    lacking = dict.fromkeys(recipe.lacks, f"recipe {recipe.name}")
    lacking |= dict.fromkeys(dataset.lacks, f"data set {dataset.name}")
    if lacking:
        named = ", ".join(f"{name} ({where})" for name, where in lacking.items())
        raise NotBuilt(
            f"not built yet: {named}; this recipe can be validated, shown, drawn and planned, but not trained"
        )
    if dataset.reader is None:
        raise NotBuilt(
            f"data set {dataset.name} has no reader; name one in its file, e.g. reader: {{kind: ImageFolder}}"
        )


class DataRefused(InputRefused):
    """The data are missing, or are not what the data set's file says."""


def refuse_folder(dataset: Dataset, folder: Path | None) -> None:
    """Refuse `--data` for a reader that uses no folder: `reads_folder = False`.

    Raises:
        DataRefused: `folder` is given for such a reader.
    """
    if folder is not None and not getattr(dataset.reader, "reads_folder", True):
        kind = type(dataset.reader).__name__
        raise DataRefused(
            f"data set {dataset.name}: {kind} reads no folder, so {folder} would not be used; leave --data out"
        )


def require_startable(opened: OpenedRecipe, *, ranks: int, is_new: bool, on_gpu: bool = False) -> list[str]:
    """Check what depends on this machine and the data, once, before ranks start that would all meet the same error.

    Prints warnings.

    Args:
        ranks: on this machine.
        is_new: its files are checked too, and it needs every service that it names.
        on_gpu: it trains there.
    Returns:
        the warnings that it has printed.
    Raises:
        DataRefused: see `require_data`, `require_room` and `require_readable`.
        RecipeError: see `require_end`.
        InputRefused: an extension lacks its package, images cannot be computed together, a model of one's own cannot be
            trained, a loss or an optimizer of one's own cannot train it in a new run, a file would take the place of a
            pack's code there, the recipe names parameters that the model does not have, or initial weights do not fit;
            see `trial_images.py`, `trial_model.py` and `trial_update.py` of `trainers/training`.
    """
    warnings = print_warnings(opened.warnings)
    for component in opened.recipe.extensions:
        if hasattr(component, "require"):
            try:
                component.require()
            except ServiceAway as error:
                if is_new:
                    raise
                warnings += print_warnings([f"{error.what}; the run goes on without it until it can be used"])
    require_data(opened.dataset, of_pack=opened.origins.get("dataset", "").startswith(SHOWN_PACK))
    require_room(opened.dataset, ranks=ranks)
    if is_new:
        require_readable(opened.dataset)
        if "num_classes" in opened.counted:
            gaps = label_gaps(opened.dataset, *(open_split(opened.dataset, split) for split in ("train", "eval")))
            warnings += print_warnings([f"data set {opened.dataset.name}: {gap}" for gap in gaps])
    augmentation = opened.recipe.augmentation
    parts = (*augmentation.train, *augmentation.late, *augmentation.eval)
    own = any(map(is_of_the_user, parts))
    reader = opened.dataset.reader
    if is_new and (own or getattr(reader, "reads_folder", True) or getattr(reader, "is_own", False)):
        from trainers.training.trial_images import require_images

        warnings += print_warnings(require_images(opened.recipe, opened.dataset))
    if is_new:
        require_end(opened)
    warnings += require_own_code(opened, on_gpu=on_gpu, is_new=is_new)
    if is_new:
        warnings += require_fit(opened)
    return warnings


def require_end(opened: OpenedRecipe) -> None:
    """Compare the first training sample before and after the end of augmentation, where the recipe has one.

    Raises:
        RecipeError: see `late_samples`.
        InputRefused: the sample cannot be loaded.
    """
    recipe, dataset, reading = opened.recipe, opened.dataset, opened.reading
    if recipe.augmentation.end is None:
        return
    try:
        late_samples(recipe, dataset, augmented_samples(recipe, dataset, "train"))
    except UnfitEnd as error:
        reading.refuse(("augmentation", "end"), error.what, error.way_out)
        raise RecipeError(reading.problems) from error
    except UnfitImage as error:
        raise InputRefused(f"augmentation.train: {error}") from error


def require_own_code(opened: OpenedRecipe, *, on_gpu: bool = False, is_new: bool = True) -> list[str]:
    """Try a model, a loss and an optimizer of the user's own before ranks start; print and return warnings.

    Args:
        on_gpu: it will be trained there.
        is_new: it will begin with its initial weights: loss and optimizer are tried too. Where they trained the runs of
            a pack, a refusal is a warning: its rule may be younger than they.
    Raises:
        InputRefused: see `require_trainable`, `require_update` and `require_code_of_packs`.
    """
    if is_new:
        require_code_of_packs(opened)
    folder = opened.path.parent
    warnings = print_warnings(code_unlike_its_run(opened)) if is_new else []
    was_trained = (folder / HEAD).is_file() and (folder / "runs").is_dir()
    if opened.tree["model"]["kind"] not in models.__all__:
        from trainers.training.trial_model import require_trainable  # and Chainer

        is_untrained = is_new and not was_trained
        warnings += print_warnings(require_trainable(opened.recipe, opened.dataset, on_gpu=on_gpu, is_new=is_untrained))
    if any(map(is_of_the_user, opened.recipe.evaluation.metrics)):
        from trainers.training.trial_metrics import require_metrics

        warnings += print_warnings(require_metrics(opened.recipe, opened.dataset))
    if is_new and (is_of_the_user(opened.recipe.loss) or is_of_the_user(opened.recipe.optimizer)):
        from trainers.training.trial_update import require_update

        try:
            found = require_update(opened.recipe, opened.dataset, on_gpu=on_gpu)
        except InputRefused as error:
            if not was_trained:
                raise
            found = [f"{error}. The runs of this pack were trained with it; they are repeated as it is"]
        warnings += print_warnings(found)
    return warnings


def require_code_of_packs(opened: OpenedRecipe) -> None:
    """Refuse files of the user's for modules that a pack names: they would be trained, and packed, in place of its own.

    A file with the bytes of the pack's own is none.

    Raises:
        InputRefused: names the line of the pack and the file.
    """
    named = [(opened.origins.get("dataset", ""), opened.dataset_tree)]
    for leaf in leaves(opened.tree):
        if leaf[-1:] == ("kind",):
            kind = reduce(operator.getitem, leaf, opened.tree)
            named.append((opened.origins[dotted(leaf)], {"kind": kind}))
    of_packs = [folder for folder in opened.code_folders if is_of_pack(folder)]
    for origin, tree in named:
        if not origin.startswith(SHOWN_PACK):
            continue
        theirs = {name: file.read_bytes() for name, file in own_code([tree], of_packs).items()}
        for name, file in own_code([tree], opened.code_folders).items():
            if not is_of_pack(file) and file.read_bytes() != theirs.get(name):
                what = f"{origin}: names code of the pack, and your {file} would take its place as {name}"
                raise InputRefused(f"{what}; name it in a recipe of your own if you mean it, or move it away")


def code_unlike_its_run(opened: OpenedRecipe) -> list[str]:
    """A line for each file of own code that is not that of the run whose recipe this is, or which it extends."""
    runs = dict.fromkeys(file.parent for file, _ in chain_of(opened.path) if (file.parent / RUN).is_file())
    runs = [run for run in runs if not is_of_pack(run)]
    files = own_code([opened.tree, opened.dataset_tree], opened.code_folders) if runs else {}
    lines, digests = [], sha256_of_files(files)
    for run in runs:
        if not isinstance(recorded := known_identity(run)[0].get("code"), Mapping):
            continue
        for name, digest in digests.items():
            if recorded.get(name, digest) != digest:
                what = f"{shown(files[name])} is not that of {shown(run)}, whose copy is {shown(run / CODE / name)}"
                lines.append(f"{what}; to use the run's own, move yours away")
    return lines


def require_fit(opened: OpenedRecipe) -> list[str]:
    """Check that the model has what the recipe names of it, and that initial weights fit; print and return warnings.

    The data may be elsewhere.

    Raises:
        RecipeError: see `trainers.training.trial_model.require_parameters`.
    """
    recipe = opened.recipe
    if recipe.init or recipe.learning_rate.factors or getattr(recipe.optimizer, "required_matrices", ()):
        from trainers.training.trial_model import require_parameters

        return print_warnings(require_parameters(recipe, opened.dataset, opened.reading))
    return []


def has_data(dataset: Dataset) -> bool:
    """Whether the data are where they should be."""
    try:
        require_data(dataset)
    except DataRefused:
        return False
    return True


def require_data(dataset: Dataset, *, of_pack: bool = False) -> None:
    """Let the reader count the data.

    Args:
        of_pack: the data set's file lies in a pack, and cannot be corrected.
    Raises:
        DataRefused: the data cannot be read, are not as the data set's file says (see `contradictions`), or have over a
            million classes and fewer training samples.
    """
    try:
        wrong = next(contradictions(dataset), None)
    except (LookupError, OSError, ValueError) as error:
        raise refused_data(dataset, error) from error
    if wrong is not None:
        here, way_out = "its file says", "correct it there, or give the right folder with --data"
        if of_pack:
            here, way_out = "this is not the data of the pack, which says", "give the right folder with --data"
        raise DataRefused(f"data set {dataset.name}: {here} {wrong}; {way_out}")
    if dataset.num_classes > max(_MOST_CLASSES, dataset.num_train):
        what = f"{dataset.num_classes:,} classes of {dataset.num_train:,} training samples"
        raise DataRefused(
            f"data set {dataset.name}: {what}: the largest label is one less; number the classes from 0, without gaps"
        )


def refused_data(dataset: Dataset, error: Exception) -> DataRefused:
    """The refusal of data that cannot be read, with what to do about it."""
    way_out = "" if dataset.root is None else "; another folder is given with --data"
    way_out += f"; {dataset.obtain}" if dataset.obtain else ""
    return DataRefused(f"data set {dataset.name}: {error}{way_out}")


def require_room(dataset: Dataset, *, ranks: int) -> None:
    """Refuse more training samples than this machine has memory to order: the system would kill a rank silently.

    Args:
        ranks: on this machine; each draws the order for itself.
    Raises:
        DataRefused: this machine has less memory than that needs.
    """
    needed, installed = _ORDER_BYTES * dataset.num_train, installed_bytes()
    if installed is not None and ranks * needed > installed:
        raise DataRefused(
            f"data set {dataset.name}: to draw the order of {dataset.num_train:,} training samples takes {needed:,} "
            f"bytes of memory in each rank here, {ranks} in all, and this machine has {installed:,}; take fewer "
            "samples (num_train), fewer ranks on a machine, or a larger machine"
        )


def require_readable(dataset: Dataset) -> None:
    """Check the samples' files before training, by `require_readable(index)` of the samples, where they have it.

    Of a larger split, 50,000 evenly spaced samples are checked; a fault in the others shows when they are read. Images
    that the data set's `on_bad_image` lets the run skip are no fault. Nothing is checked at a URL: all that would be
    fetched first.

    Raises:
        DataRefused: some cannot be read; the first ten are named.
    """
    try:
        opened = [open_split(dataset, split) for split in ("train", "eval")]
    except (LookupError, OSError, ValueError) as error:
        raise refused_data(dataset, error) from error
    errors = [error for samples in opened for error in _unreadable(samples)]
    way_out = "replace or remove them"
    if dataset.on_bad_image == "refuse":
        skip = ", or write `on_bad_image: skip` in the data set's file to pass over those that cannot be decoded"
        way_out += skip if any(map(can_skip, errors)) else ""
    else:
        skips, limit = sum(map(can_skip, errors)), limit_of(dataset)
        errors = [error for error in errors if not can_skip(error) or (limit is not None and skips > limit)]
    if complaints := list(map(str, errors)):
        more = f"\nand {len(complaints) - _MOST_NAMED:,} more" if len(complaints) > _MOST_NAMED else ""
        named = "\n".join(complaints[:_MOST_NAMED])
        raise DataRefused(
            f"data set {dataset.name}: {len(complaints):,} of its files cannot be read; {way_out}\n{named}{more}"
        )


def _unreadable(samples: Any) -> Iterator[ValueError]:
    if not hasattr(samples, "require_readable") or getattr(samples, "mirror", None) is not None:
        return
    for index in evenly(len(samples), _MAX_CHECKED):
        try:
            samples.require_readable(index)
        except ValueError as error:
            yield error
