"""Our programs of scripts/bench_resnet50.py: ChainerCV's network, its norm groups, and a whole update of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

RATE = 1e-6  # of updates: so small that the weights stay those that all programs begin with


def chainer_model() -> Any:
    """The network with the weights that all programs have."""
    from trainers.models import ResNet50
    from trainers.models.keyed_random import draw_initial_weights

    model = ResNet50().build(num_classes=1000, channels=3, image_size=None)
    draw_initial_weights(model, seed=0)
    return model


def groups_of(model: Any, count: int) -> Callable[[], None]:
    """Make a model normalise `count` images as one group, as `kilobatch train` does; call the result at each step."""
    from recipes.planning.division import divide
    from recipes.schema import Evaluation
    from trainers.models.batch_norm import NormGroups

    groups = NormGroups(Evaluation())
    groups.install(model)
    division = divide(global_batch_size=count, norm_span=count, workers=1, micro_batch_size=count)

    def begin() -> None:
        groups.begin_update(division)
        groups.begin_micro_batch(division.micro_batches(0)[0])

    return begin


def update_of(images: Any, labels: Any, *, precision: str, graph: bool = False) -> Callable[[], float]:
    """An update of `kilobatch train` on one rank: all but loading, by goyal2017's optimizer; gives the loss.

    Args:
        images, labels: where they are trained, of one micro-batch, which is one norm group.
        precision: the recipe's `precision.compute`.
        graph: `cluster.cuda_graph`.
    """
    import chainer
    from mpi4py import MPI

    from recipes.planning.cluster import GradientExchange
    from trainers.launch.request import TrainRequest, prepare
    from trainers.models.batch_norm import NormGroups
    from trainers.optimizers.weight_decay import decay_parameters
    from trainers.training.build import build, build_exchange
    from trainers.training.updater import RecipeUpdater

    count, device = len(images), chainer.backend.get_device_from_array(images)
    kind = "cpu" if device.xp is np else "gpu"
    steady = f"learning_rate={{reference: {RATE}, per: {count}, schedule: {{kind: Constant}}}}"
    batch = f"batch={{global: {count}, norm_span: {count}}}"
    plain = ("dataset=synthetic", "augmentation={train: [], eval: []}", "epochs=10000up")
    overrides = (*plain, batch, steady, f"precision.compute={precision}")
    request = TrainRequest(recipe="goyal2017", overrides=overrides, micro_batch_size=count, device=kind)
    prepared = prepare(request, workers=1)
    plan, recipe = prepared.plan, prepared.opened.recipe
    plan = replace(plan, cluster=replace(plan.cluster, cuda_graph=graph))
    model, optimizer = chainer_model(), recipe.optimizer.build()
    model.to_device(device)
    optimizer.setup(model)
    decay_parameters(optimizer, recipe.optimizer)
    parts = replace(build(recipe, prepared.opened.dataset), model=model, optimizer=optimizer)
    groups = NormGroups(recipe.evaluation)
    groups.install(model)
    updater = RecipeUpdater(
        {"main": _Same(plan, images, labels)},
        optimizer,
        loss=parts.loss,
        plan=plan,
        exchange=build_exchange(GradientExchange(), parts, MPI.COMM_SELF),
        mpi=MPI.COMM_SELF,
        norm_groups=groups,
    )

    def update() -> float:
        updater.update()
        return updater.record.loss

    return update


class _Same:
    """An iterator that repeats one micro-batch."""

    def __init__(self, plan: Any, images: Any, labels: Any) -> None:
        from trainers.datasets.loader import LoadedMicroBatch

        (part,) = plan.division_of(0).micro_batches(0)
        numbers = np.arange(len(images))
        self._plan = plan
        self._loaded = LoadedMicroBatch(
            part=part, images_NCHW=images, targets=labels, epochs=0 * numbers, indices=numbers, seen=()
        )

    def next(self) -> Any:
        """The share of the first update."""
        from trainers.datasets.loader import UpdateShare

        of_first = {"segment": self._plan.timeline.segment_of(0), "division": self._plan.division_of(0)}
        return UpdateShare(update=0, samples=0, micro_batches=iter([self._loaded]), **of_first)

    def again(self) -> Any:
        """The same: an update that overflowed is done again."""
        return self.next()
