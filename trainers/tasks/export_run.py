"""`kilobatch export`: the model of a run for other programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from recipes.errors import InputRefused, refuse_unreachable
from recipes.reading.open import CODE, OpenedRecipe, open_recipe
from recipes.schema.image_size import evaluated_size
from trainers.datasets.augmented import augmented_samples
from trainers.launch.identity import classes_of
from trainers.launch.vocabulary import vocabulary
from trainers.runs.checkpoint import load_into, read_checkpoint, refuse_foreign, weights_of
from trainers.runs.identity import changes, own_code, read_identity, sha256_of_files
from trainers.runs.run_folder import CHECKPOINTS, RECIPE, require_run, write_whole
from trainers.tasks.score_run import checkpoint_called


@refuse_unreachable()
def export_run(
    folder: Path, *, form: str, out: Path | None = None, checkpoint: str = "newest", allow_code: bool = False
) -> tuple[Path, list[str], bool]:
    """Write what evaluation scores: the averages of the weights where the recipe has them, else the weights.

    The metadata of the file say which run, checkpoint, classes and evaluation transforms it belongs to, and of a
    ResNet by torchvision's names the pooling that these names do not tell.

    Args:
        folder: of the run.
        form: `onnx`, or `safetensors`: of a ResNet by torchvision's names, of other models by those of a checkpoint.
        out: the new file; None: `model.onnx` or `model.safetensors` in the folder.
        checkpoint: `newest`, `best`, or a name such as update-000060.
        allow_code: as for `train`.
    Returns:
        the file, warnings, and whether it was written: one of `safetensors` in the folder that holds the same weights
        is left as it is, whatever its metadata, which an older version wrote otherwise.
    Raises:
        InputRefused: there is no such format, run or checkpoint; the model cannot be exported, or for `onnx` its code
            has changed since the run; the file is there already, if `out` is None with other content, has another
            suffix or cannot be written.
    """
    if form not in ("onnx", "safetensors"):
        raise InputRefused(f"{form!r} is no format of a model; write onnx or safetensors")
    if out is not None and (out.suffix != f".{form}" or out.exists()):
        what = "exists, and nothing is overwritten" if out.exists() else f"is no .{form} file"
        raise InputRefused(f"-o {out}: {what}; give another -o")
    require_run(folder)
    words = vocabulary(allow_code=allow_code)
    opened = open_recipe(folder / RECIPE, vocabulary=words, allow_code=allow_code, of_run=True, as_trained=True)
    if changed := _changed_code(folder, opened):
        changed = f"{folder} was trained with other {changed}; {folder / CODE} has the run's code"
        if form == "onnx":
            raise InputRefused(f"{changed}: put that back, or run the command in that folder")
    path = checkpoint_called(checkpoint, folder / CHECKPOINTS)
    content = read_checkpoint(path).scored()

    from trainers.models.weight_names import pooling_of, to_torch, torch_names, why_not_torch
    from trainers.training.build import drawn_model

    model, notes = drawn_model(opened.recipe, opened.dataset), [*opened.warnings]
    notes += [f"{changed}; the weights are the run's all the same"] if changed else []
    with refuse_foreign(path):
        load_into(model, None, content)
    facts = {"recipe": opened.recipe.name, "checkpoint": path.name, "dataset": opened.dataset.name}
    facts |= {name: json.dumps(getattr(opened.dataset, name)) for name in ("mean", "std")}
    facts["augmentation.eval"] = json.dumps(_transforms(opened))
    if classes := classes_of(folder, opened.dataset):
        facts["classes"] = json.dumps(classes)
    if opened.recipe.evaluation.flipped:
        facts["evaluation.flipped"] = "true"
    if form == "onnx":
        from trainers.models.onnx_graph import onnx_model

        data = onnx_model(model, _shape(opened), facts=facts).SerializeToString()
    else:
        weights = weights_of(model)
        if torch_names(model):
            weights = to_torch(model, weights)
            facts |= {f"model.{key}": json.dumps(value) for key, value in pooling_of(model).items()}
            why = why_not_torch(model)
            notes += [] if why is None else [f"torchvision's ResNet computes other logits from these weights: {why}"]
        data = _saved({name: np.asarray(array, order="C") for name, array in weights.items()}, facts)
    file = out or folder / f"model.{form}"
    try:
        before = file.read_bytes() if out is None and file.exists() else data
        if before != data and form == "safetensors" and _without_facts(before) == _without_facts(data):
            notes.append(f"{file} has these weights with other metadata; a recipe may name it; -o FILE writes another")
            return file, notes, False
        if before != data:
            what = "exists and holds another export, which a recipe or a program may name"
            raise InputRefused(f"{file}: {what}; give -o FILE.{form}, or remove it")
        write_whole(file, data)
    except OSError as error:
        raise InputRefused(f"{file} cannot be written: {error.strerror}; give another -o") from error
    return file, notes, True


def _transforms(opened: OpenedRecipe) -> list[dict[str, Any]]:
    """The evaluation transforms, with the numbers of the data set in a `Normalize` that names it."""
    numbers = {"mean": opened.dataset.mean, "std": opened.dataset.std}
    entries = opened.tree["augmentation"]["eval"]
    return [{**entry, **numbers} if entry["kind"] == "Normalize" and not entry["mean"] else entry for entry in entries]


def _changed_code(folder: Path, opened: OpenedRecipe) -> str | None:
    """In words which files of own code that make the model and its images are not the run's; None where all are."""
    trees = [opened.tree["model"], opened.tree["augmentation"]["eval"]]
    now = sha256_of_files(own_code(trees, opened.code_folders))
    before = (read_identity(folder) or {}).get("code")
    if not isinstance(before, Mapping):
        return None
    before = {name: digest for name, digest in before.items() if name in now}
    return changes({"code": before}, {"code": now}).get("code")


def _saved(arrays: Mapping[str, np.ndarray], facts: Mapping[str, str]) -> bytes:
    """A file of safetensors whose bytes follow from its content: `save` alone writes metadata in a random order."""
    from safetensors.numpy import save

    data = save(dict(arrays), metadata=dict(facts))
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps({**json.loads(data[8:end]), "__metadata__": facts}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[end:]


def _without_facts(data: bytes) -> tuple[object, bytes]:
    """The names and places of the arrays of a file of safetensors, and their bytes; of another file nothing and all."""
    end = 8 + int.from_bytes(data[:8], "little")
    try:
        return {**json.loads(data[8:end]), "__metadata__": None}, data[end:]
    except (ValueError, TypeError):
        return None, data


def _shape(opened: OpenedRecipe) -> tuple[int, int, int]:
    """Channels, height and width of an image as evaluation gives it to the model."""
    side = evaluated_size(opened.recipe)
    if side is not None:
        return opened.dataset.channels, side, side
    return augmented_samples(opened.recipe, opened.dataset, "eval")(0, 0)[0].shape
