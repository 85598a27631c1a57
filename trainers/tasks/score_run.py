"""`kilobatch evaluate`: scores a checkpoint of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.errors import InputRefused, refuse_unreachable
from recipes.reading.open import open_recipe
from recipes.reading.yaml import flow_text, parse_yaml
from recipes.reports.wording import number, percent
from recipes.schema import Recipe
from trainers import kernels
from trainers.augmentations import decoders
from trainers.launch.preflight import refuse_folder
from trainers.launch.vocabulary import vocabulary
from trainers.runs.checkpoint import (
    CheckpointContent,
    CheckpointError,
    load_into,
    read_checkpoint,
    read_newest,
    refuse_foreign,
)
from trainers.runs.errors import RankFailed, print_warnings
from trainers.runs.run_folder import CHECKPOINTS, EVALUATION, RECIPE, environment_of, require_run
from trainers.tasks.scored_data import scored_data, scored_folder
from trainers.training.device import require_asked, settled, take_device
from trainers.training.predictions import TOP, require_table, write_predictions

if TYPE_CHECKING:
    import chainer


@refuse_unreachable()
def score_run(
    folder: Path,
    *,
    checkpoint: str = "newest",
    split: str = "run",
    data: Path | None = None,
    predictions: Path | None = None,
    metrics: Sequence[str] = (),
    allow_code: bool = False,
    device: str | None = None,
) -> Any:
    """Score one checkpoint over each evaluation sample once.

    Args:
        folder: of the run.
        checkpoint: `newest`, `best`, or a name such as update-000060.
        split: `run`: what the run scores itself; `test`: the evaluation split of the data set, also where the run
            scores samples that it holds out of the training split; `all`: every image of `data`, a folder of class
            folders, whatever the run's data are.
        data: folder of the data set's files, if they have moved since the run, or of others with the same classes.
        predictions: a .csv that is written: what the model says of each sample.
        metrics: beside those of the recipe, each a `kind`, or a text with its keys: `{kind: TopAccuracy, k: 3}`.
        allow_code: as for `train`.
        device: cpu, gpu or auto; None: cpu.
    Returns:
        plain data: run, checkpoint, update, epoch, split, accuracy, top5_accuracy, loss, metrics, num_samples,
            differences. The `split` is `held out`, `test` or `all`; `top5_accuracy` is None for up to five classes;
            `metrics` has those of the recipe by name; the `differences` say in words which code and data are not the
            run's.
    Raises:
        InputRefused: there is no such run, checkpoint, split or device; the checkpoint is damaged; the data are
            missing or have other classes, or an image cannot be read.
    """
    require_run(folder)
    if split not in ("run", "test", "all"):
        raise InputRefused(f"--split: there is no split {split}; write run, test or all")
    if split == "all" and data is None:
        raise InputRefused("--split all: scores a folder of class folders; name it with --data")
    if predictions is not None:
        require_table(predictions)
    changes = [] if split == "run" else ["evaluation.held_out=null"]
    options = {"vocabulary": vocabulary(allow_code=allow_code), "allow_code": allow_code, "data_root": data}
    options |= {"of_run": True, "as_trained": True}
    opened = open_recipe(folder / RECIPE, overrides=changes, **options)
    if metrics:
        asked = f"evaluation.metrics={flow_text([*map(_of_option, metrics)])}"
        options |= {"overrides_from": "--metric"}
        more = open_recipe(folder / RECIPE, overrides=[*changes, asked], **options)
        both = [it for recipe in (opened, more) for it in recipe.tree["evaluation"].get("metrics", [])]
        changes.append(f"evaluation.metrics={flow_text([it for at, it in enumerate(both) if it not in both[:at]])}")
        opened = open_recipe(folder / RECIPE, overrides=changes, **options)
    print_warnings(opened.warnings)
    if split == "test" and opened.dataset.validation is not None:
        what = f"data set {opened.dataset.name} has no test split: it scores samples of its training split"
        raise InputRefused(f"--split: {what}; leave it out to score these")
    if split != "all":
        refuse_folder(opened.dataset, data)
    scored = scored_data(opened, folder) if split != "all" else scored_folder(opened, folder, data)
    what = f"this score is not the run's, and is not written into {folder / EVALUATION}"
    print_warnings(f"{folder} was trained with other {text}; {what}" for text in scored.unasked)
    if scored.without_names:
        why = f"those of {scored.without_names} have no names"
        print_warnings([f"classes are matched by their numbers, because {why}"])
    path, content, kind = read_scored(folder, checkpoint, device)

    from mpi4py import MPI

    from trainers.datasets.loader_workers import LoaderWorkers
    from trainers.kernels.threads import num_threads
    from trainers.training.build import build
    from trainers.training.extensions.evaluation import score
    from trainers.training.scored_samples import write_samples

    parts = build(opened.recipe, scored.dataset)
    facts = give_weights(parts.model, opened.recipe, path, content, kind)
    pays = getattr(parts.load_eval.samples, "threads_pay", False)
    try:
        with LoaderWorkers(num_threads() if pays else 0) as workers:
            top = TOP if opened.dataset.num_classes > TOP else 1
            result = score(
                parts.model,
                load=parts.load_eval,
                num_samples=parts.num_eval,
                loss=parts.loss,
                workers=workers,
                settings=opened.recipe.evaluation,
                top=top,
                mpi=MPI.COMM_SELF,
            )
    except RankFailed as error:  # a broken image, say
        raise InputRefused(str(error)) from error
    skipped = getattr(parts.load_eval.samples, "skipped", {}).values()
    print_warnings(f"sample {image.index} of {image.split} is skipped: {image.message}" for image in skipped)
    if not scored.differences:
        reached = {name: facts[name] for name in ("update", "epoch")}
        try:
            write_samples(
                folder,
                result.samples,
                recipe=opened.recipe,
                dataset=scored.dataset,
                reached={**reached, "split": split},
            )
        except (OSError, InputRefused) as error:
            print_warnings([f"{error}; the report shows no classes of this score"])
    if predictions is not None:
        write_predictions(predictions, result, parts.load_eval.samples, scored.classes)
    in_top = float((result.top[0] == result.samples[:, :1]).any(axis=1).mean())
    return {
        "run": str(folder),
        **facts,
        "split": "all" if split == "all" else "test" if opened.dataset.validation is None else "held out",
        "accuracy": result.accuracy,
        "top5_accuracy": in_top if top == TOP else None,
        "loss": result.loss,
        "metrics": dict(result.figures),
        "num_samples": result.num_samples,
        "differences": scored.differences,
    }


def _of_option(text: str) -> Any:
    """A metric as `--metric` gives it.

    >>> _of_option("MacroF1"), _of_option("{kind: TopAccuracy, k: 3}")
    ({'kind': 'MacroF1'}, {'kind': 'TopAccuracy', 'k': 3})
    """
    if not text.strip():
        raise InputRefused("--metric: is empty; write the kind of a metric, such as MacroF1")
    metric = parse_yaml(text.encode(), file="--metric").plain()
    return {"kind": metric} if isinstance(metric, str) else metric


def read_scored(folder: Path, checkpoint: str, device: str | None) -> tuple[Path, CheckpointContent, str]:
    """A checkpoint, what evaluation scores of it, and the device; from now on the run's kernels and decoder serve.

    Raises:
        InputRefused: there is no such checkpoint or device; the checkpoint is damaged.
    """
    kind = settled(device, "cpu")
    require_asked(kind)
    path = checkpoint_called(checkpoint, folder / CHECKPOINTS)
    content = read_checkpoint(path).scored()
    if kind == "cpu":
        _follow_kernels(environment_of(folder).get("kernels", {}))
    decode_as_in(folder)
    return path, content, kind


def decode_as_in(folder: Path) -> None:
    """From now on decode images as in the run; warn where its decoder is not used."""
    decoder = environment_of(folder).get("decoder", "pillow")
    decoders.use(None)
    decoders.follow(decoder)
    if decoders.in_use() != decoder:
        what = f"images are decoded by {decoders.in_use()}, in the run by {decoder}; {decoders.VARIABLE}={decoder} asks"
        print_warnings([f"{what} for it"])


def _follow_kernels(of_run: Mapping[str, Any]) -> None:
    """Compute on the CPU by the kernels of a run on a CPU, or warn that others serve."""
    was = None if "gpu" in of_run else of_run.get("operators")
    kernels.follow(was)
    if was in (None, kernels.in_use()):
        return
    way_out = "; ".join(kernels.missing(was) or ()) or f"{kernels.VARIABLE}={was} asks for them"
    what = f"{kernels.in_use()} kernels compute, in the run {was}: the same sums, rounded otherwise"
    print_warnings([f"{what}; {way_out}"])


def give_weights(
    model: chainer.Chain, recipe: Recipe, path: Path, content: CheckpointContent, kind: str
) -> dict[str, Any]:
    """Move a model to a device, with the weights of a checkpoint; returns checkpoint, update and epoch."""
    from mpi4py import MPI

    from trainers.models.batch_norm import NormGroups

    model.to_device(take_device(kind, MPI.COMM_SELF))
    NormGroups(recipe.evaluation).install(model)  # one pass a layer, with the same bits as in training
    with refuse_foreign(path):
        state = load_into(model, None, content)
        return {"checkpoint": path.name, "update": state["update"], "epoch": state["epoch"]}


def scored_text(scored: dict[str, Any]) -> str:
    """A score in one line."""
    is_held_out, others = scored["split"] == "held out", ""
    if scored["differences"]:
        others = " of other data or code than the run's"
    if scored["split"] == "all":  # which may be the run's own
        others = f", {scored['differences'][0].removeprefix('data: ')}"
    top = "" if scored["top5_accuracy"] is None else f", top-5 {percent(scored['top5_accuracy'])}"
    metrics = "".join(f", {name} {number(value)}" for name, value in scored["metrics"].items())
    return (
        f"{scored['checkpoint']} (epoch {scored['epoch']:.2f}): accuracy {percent(scored['accuracy'])}{top}, "
        f"loss {scored['loss']:.4f}{metrics} over {scored['num_samples']} {'held-out ' * is_held_out}samples{others}"
    )


def checkpoint_called(checkpoint: str, folder: Path) -> Path:
    """The checkpoint that `newest`, `best` or a name means, in a run's `checkpoints`; raises as `score_run`."""
    newest, content, complaints = read_newest(folder)
    if newest is None:
        raise CheckpointError(f"no whole checkpoint in {folder}" + "".join(f"; {c}" for c in complaints))
    if checkpoint in ("newest", "best"):
        print_warnings(f"passed over {complaint}" for complaint in complaints)
    if checkpoint == "newest":
        return newest
    name = checkpoint
    if checkpoint == "best":
        with refuse_foreign(newest):
            best = content.state["best"]
            name = best and best["checkpoint"]
        if best is None:
            what = "no evaluation has fallen on a checkpoint that counts yet; one that only a stop has caused does not"
            raise CheckpointError(f"{folder}: {what}. Use newest")
    known = sorted(path.name for path in folder.glob("update-*"))
    if name not in known:
        raise CheckpointError(f"there is no checkpoint {name} in {folder}; there are: {', '.join(known)}")
    return folder / name
