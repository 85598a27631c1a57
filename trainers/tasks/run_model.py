"""The model of a run, and the samples that it is scored on, for programs of the user's own."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from recipes.errors import InputRefused, refuse_unreachable
from recipes.reading.open import OpenedRecipe, open_recipe
from trainers.datasets.augmented import augmented_samples
from trainers.datasets.loader_workers import LoaderWorkers, Loading
from trainers.kernels.threads import num_threads
from trainers.launch.preflight import code_unlike_its_run, refuse_folder, refused_data
from trainers.launch.vocabulary import vocabulary
from trainers.runs.checkpoint import load_into, read_checkpoint, refuse_foreign
from trainers.runs.errors import RankFailed, print_warnings
from trainers.runs.run_folder import CHECKPOINTS, RECIPE, require_run
from trainers.tasks.score_run import checkpoint_called, decode_as_in
from trainers.tasks.scored_data import scored_data

if TYPE_CHECKING:
    import chainer


@refuse_unreachable()
def model_of_run(
    folder: Path, *, checkpoint: str = "newest", data: Path | None = None, allow_code: bool = False
) -> chainer.Chain:
    """The run's model on the CPU, with what evaluation scores of a checkpoint: averages, and running statistics.

    Args:
        folder: of the run.
        checkpoint: `newest`, `best`, or a name such as update-000060.
        data: folder of the data set's files, of which a model that has no size of its own sees an image.
        allow_code: as for `train`.
    Raises:
        InputRefused: there is no such run or checkpoint; the checkpoint is damaged, or does not fit the model.
    """
    require_run(folder)
    opened = _opened(folder, data, allow_code)
    print_warnings(code_unlike_its_run(opened))
    path = checkpoint_called(checkpoint, folder / CHECKPOINTS)
    content = read_checkpoint(path).scored()

    from trainers.training.build import drawn_model

    model = drawn_model(opened.recipe, opened.dataset)
    with refuse_foreign(path):
        load_into(model, None, content)
    return model


@refuse_unreachable()
def samples_of_run(
    folder: Path, indices: Iterable[int] | None = None, *, data: Path | None = None, allow_code: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Samples that the run is scored on, as its model gets them.

    Args:
        folder: of the run.
        indices: which, from 0 on; None: all.
        data: folder of the data set's files, if they have moved since the run.
        allow_code: as for `train`.
    Returns:
        images after the evaluation transforms, float32 NCHW, and labels, int32.
    Raises:
        InputRefused: there is no such run or sample; the data are missing, or an image cannot be read.
    """
    require_run(folder)
    opened = _opened(folder, data, allow_code)
    scored = scored_data(opened, folder)
    print_warnings(f"{folder} was trained with other {text}" for text in scored.unasked)
    decode_as_in(folder)
    try:
        load = augmented_samples(opened.recipe, scored.dataset, "eval")
    except (LookupError, OSError, ValueError) as error:
        raise refused_data(opened.dataset, error) from error
    count = len(load.samples)
    what = f"indices: write some of 0 to {count - 1}, the samples that the run is scored on"
    try:
        given = list(range(count) if indices is None else indices)
        if any(isinstance(index, bool | np.bool_) for index in given):
            raise InputRefused(f"{what}; of a mask they are numpy.flatnonzero(mask)")
        wanted = [*map(operator.index, given)]
    except TypeError:
        raise InputRefused(what) from None
    if not wanted or not 0 <= min(wanted) <= max(wanted) < count:
        raise InputRefused(what)
    several = [(0, index) for index in wanted]
    loading = Loading(load, several, key="augmentation.eval", finish=lambda images_NCHW, labels: (images_NCHW, labels))
    with LoaderWorkers(num_threads() if getattr(load.samples, "threads_pay", False) else 0) as workers:
        workers.begin(loading)
        try:
            return workers.result(loading)
        except RankFailed as error:  # a broken image, say
            raise InputRefused(str(error)) from error


def _opened(folder: Path, data: Path | None, allow_code: bool) -> OpenedRecipe:
    how = {"vocabulary": vocabulary(allow_code=allow_code), "allow_code": allow_code, "data_root": data}
    opened = open_recipe(folder / RECIPE, of_run=True, as_trained=True, **how)
    refuse_folder(opened.dataset, data)
    print_warnings(opened.warnings)
    return opened
