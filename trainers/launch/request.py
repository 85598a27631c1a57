"""The check of a whole request before anything is started or written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from recipes.errors import InputRefused, refused
from recipes.planning.cluster import Cluster
from recipes.planning.planner import NormGroupTooLarge, Plan, plan
from recipes.reading.load import overrides_by_file
from recipes.reading.open import OpenedRecipe, open_recipe, read_cluster
from recipes.reading.read import Reading
from recipes.reports.wording import counted
from recipes.schema.positions import typed_position
from recipes.schema.vocabulary import Vocabulary
from trainers import kernels
from trainers.augmentations import decoders
from trainers.launch.model_costs import known_model
from trainers.launch.preflight import refuse_folder, refuse_unbuilt
from trainers.launch.vocabulary import vocabulary
from trainers.runs.identity import WHATS, recipe_and_code_id
from trainers.runs.run_folder import RUN
from trainers.training.device import require_asked, require_device, require_numbers, settled
from trainers.training.exact_mode import ExactRefused, why_not_exact
from trainers.training.request import Prepared, TrainRequest


def prepare(request: TrainRequest, *, workers: int | None) -> Prepared:
    """Check recipe, data set, cluster and options, and plan the run; nothing is written.

    Args:
        workers: None for as many as the recipe names, else 1.
    Raises:
        RecipeError, PlanError, NotBuilt, DataRefused, InputRefused: the input is wrong.
    """
    if request.resume and request.out is None:
        raise refused("--resume", "goes on in a run's folder, and none is named", "name it: --out runs/a --resume")
    unknown = [word for word in request.accept_changed if word not in WHATS]
    if unknown or (request.accept_changed and not request.resume):
        what = f"{unknown[0]!r} is neither code nor data" if unknown else "is for a run that is resumed"
        raise refused("--accept-changed", what, "write --resume --accept-changed code,data, or one of them")
    if request.loader not in (None, "threads", "processes"):
        raise refused("--loader", f"{request.loader!r} is no kind of worker", "write threads or processes")
    opened = open_request(request)
    local, (_, of_cluster) = opened.recipe.updater.local_steps, overrides_by_file(request.overrides)
    workers = workers or (local.replicas if local else 1)
    refuse_unbuilt(opened.recipe, opened.dataset)
    refuse_folder(opened.dataset, request.data)
    require_numbers(opened.recipe.precision.compute, opened.reading)
    words = vocabulary(allow_code=request.allow_code)
    cluster, reading = cluster_of(request.cluster, workers=workers, vocabulary=words, overrides=of_cluster)
    cluster = replace(cluster, device=settled(request.device, cluster.device))
    if request.device is not None:
        require_asked(cluster.device)
    require_device(cluster, reading, workers=workers)
    word = kernels.asked()
    names_the_device = cluster.device == "cpu" or word not in kernels.KINDS  # a GPU's beside those of the CPU
    if names_the_device and (lacks := kernels.missing(word, device=cluster.device)) is not None:
        raise refused("--kernels", *lacks)
    decoders.use(None)
    made = planned(
        opened,
        cluster,
        exact=request.exact,
        workers=workers,
        micro_batch_size=request.micro_batch_size,
        by_group=request.measure_noise,
        model=known_model(opened),
    )
    _require_model_for_images(opened)
    if request.measure_noise and (why_never := opened.recipe.updater.why_not_exact):
        raise refused("--noise-scale", f"{why_never}, and compares gradients of no one set of weights", "leave it out")
    stop_after = request.stop_after
    return Prepared(
        opened=opened,
        plan=made,
        stop_after_update=(
            None if stop_after is None else made.timeline.first_update_at(epochs_of("--stop-after", stop_after, made))
        ),
        checkpoint_every=checkpoint_every_of(request.checkpoint_every, made),
    )


def open_request(request: TrainRequest, *, looks: bool = False) -> OpenedRecipe:
    """The recipe of a request.

    Args:
        looks: it is not trained now: a run's recipe opens although a new run would be refused for it.
    Raises:
        RecipeError: with all problems of the recipe, of what it extends, or of its data set.
        InputRefused: it is no longer the one that was checked.
    """
    own, _ = overrides_by_file(request.overrides)
    resumed = request.out if request.resume else None
    goes_on = resumed is not None and (resumed / RUN).is_file()
    opened = open_recipe(
        request.recipe,
        vocabulary=vocabulary(allow_code=request.allow_code),
        overrides=own,
        overrides_from=request.overrides_from or "command line",
        allow_code=request.allow_code,
        data_root=request.data,
        copies_in=[resumed] if resumed is not None else [],
        of_run=goes_on or (None if looks else False),
    )
    if request.checked_id is not None and request.checked_id != recipe_and_code_id(opened):
        raise InputRefused(f"what {request.recipe} trains was changed after it had been checked")
    return opened


def planned(opened: OpenedRecipe, cluster: Cluster, *, exact: bool | None, **how: Any) -> Plan:
    """The plan of a run, whose bits do not depend on the number of ranks where that can be held.

    Args:
        exact: None: if it can be held; False: not; True: refuse a run that cannot hold it.
        how: for `recipes.planning.planner.plan`.
    Raises:
        ExactRefused: `exact` is True and cannot be held.
        PlanError: these workers cannot serve the recipe.
        RecipeError: they are not its replicas; or no kernels have the name in the environment.
    """
    if (word := kernels.asked()) not in (*kernels.KINDS, *kernels.GPU_KINDS):
        raise refused(kernels.VARIABLE, *kernels.missing(word, device=cluster.device))
    how |= {"recipe": opened.recipe, "dataset": opened.dataset, "cluster": cluster}
    why_never = opened.recipe.updater.why_not_exact
    why = "--fast" if exact is False else why_never or why_not_exact(cluster, asked=exact is True)
    if why is None:
        try:
            return plan(exact=True, **how)
        except NormGroupTooLarge as error:
            why = str(error)
    if exact:
        raise ExactRefused(f"--exact cannot be held: {why}")
    made = plan(why_not_exact=why, **how)
    _require_replicas(made)
    return made


def cluster_of(
    name: str | None, *, workers: int | None, vocabulary: Vocabulary, overrides: Sequence[str | None]
) -> tuple[Cluster, Reading]:
    """The cluster that was named; where none was, this machine with as many workers as were asked for.

    Args, Returns, Raises: as of `read_cluster`.
    """
    cluster, reading = read_cluster("laptop" if name is None else name, vocabulary=vocabulary, overrides=overrides)
    says_workers = any(text and text.strip().startswith("cluster.workers_per_node") for text in overrides)
    if name is None and workers is not None and not says_workers:
        cluster = replace(cluster, workers_per_node=max(workers, 1))
    return cluster, reading


def _require_replicas(made: Plan) -> None:
    """Refuse workers that are not the replicas of local steps, or hold no whole norm groups.

    Raises:
        RecipeError: says which number of workers, or which micro-batch, would do.
    """
    local = made.recipe.updater.local_steps
    if local is None:
        return
    if made.workers != local.replicas:
        what = f"the recipe trains {local.replicas} replicas (updater.local_steps), one on each worker"
        way_out = f"write -n {local.replicas}, or `ranks_per_trial: {local.replicas}` in a search"
        raise refused("-n", f"{counted(made.workers, 'worker')}: {what}", way_out)
    if (wire := made.cluster.exchange.wire) != "float32":
        what = f"weights cross here (updater.local_steps), and {wire} would round them"
        raise refused("exchange.wire", what, "leave it out, or write float32")
    if spans := [each.segment.norm_span for each in made.segments if each.division.team_size > 1]:
        what = f"workers would share a norm group of {max(spans)} samples, and a replica has whole ones"
        raise refused("--micro-batch-size", what, f"write at least {max(spans)}")


def _require_model_for_images(opened: OpenedRecipe) -> None:
    """Ask the model whether it takes the images, where it or they are particular; else no Chainer is loaded for it.

    That is where the images change their size, or the model's component has a class attribute `takes_one_size = True`.
    """
    ramp = opened.recipe.image_size
    moves = ramp is not None and len(set(ramp.sizes)) > 1
    if moves or getattr(opened.recipe.model, "takes_one_size", False):
        from trainers.training.build import build_model

        build_model(opened.recipe, opened.dataset)


def checkpoint_every_of(text: str, made: Plan) -> float | Literal["update"]:
    """What `--checkpoint-every` asks for, in epochs, or `update`; refused as by `epochs_of`."""
    return "update" if text == "update" else epochs_of("--checkpoint-every", text, made)


def epochs_of(flag: str, text: str, made: Plan) -> float:
    """The epochs of a position such as 30ep or 500up, from the start of the run.

    Args:
        flag: the option, for the message.
        text: as it was typed.
        made: the plan of the run.
    Raises:
        RecipeError: it is no position, or not above 0.
    """
    timeline = made.timeline
    try:
        at = typed_position(
            text,
            num_train=made.dataset.num_train,
            epochs=made.recipe.epochs,
            updates_to_samples=lambda updates: timeline.samples_at(min(updates, timeline.num_updates)),
        )
    except ValueError as error:
        raise refused(flag, str(error), "write it as 30ep, 500up, 1.5Msp or 0.5run") from None
    if at <= 0:
        raise refused(flag, f"{text} is no time at all", "give more than 0")
    return at
