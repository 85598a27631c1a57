"""Progressive resizing in a recipe: which update has which size, and what is refused where."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from lr_schedules import BatchRamp
from recipes.planning.planner import plan
from recipes.planning.rates import image_size_at
from recipes.planning.timeline import timeline, timeline_of
from recipes.reading.open import open_cluster
from recipes.reports.curves import curve_points
from recipes.reports.terminal import plan_text
from recipes.schema.image_size import at_image_size, evaluated_size, image_sizes, keys_of_image_size
from recipes.schema.vocabulary import Unbuilt
from trainers.augmentations import CenterCrop, Cutout, HorizontalFlip, RandomResizedCrop, Resize
from trainers.launch.vocabulary import vocabulary

CROP = "augmentation: {train: [{kind: RandomResizedCrop, size: image_size}]}"
LOSS = "loss: {kind: SoftmaxCrossEntropy}"


def steps(**sizes):
    """A ramp: `steps(at_0=8, at_30=16)`."""
    boundaries = tuple(float(key.removeprefix("at_")) for key in sizes)
    return BatchRamp(boundaries=boundaries, sizes=tuple(sizes.values()))


def test_a_recipe_without_it_has_none(opened):
    result = opened()
    assert result.recipe.image_size is None
    assert image_size_at(result.recipe, 3.0) is None
    assert result.tree["image_size"] is None


def test_one_number_holds_throughout(opened):
    result = opened(line_9=f"{LOSS}\nimage_size: 8\n{CROP}")
    assert [image_size_at(result.recipe, epoch) for epoch in (0.0, 7.3, 20.0)] == [8, 8, 8]
    assert result.tree["image_size"] == 8
    assert result.tree["augmentation"]["train"][0]["size"] == "image_size"


def test_steps_may_have_every_unit_of_time(opened):
    line = "image_size: [{from: 0, size: 4}, {from: 30up, size: 6}, {from: 0.5run, size: 8}]"
    result = opened(line_9=f"{LOSS}\n{line}\n{CROP}")
    thirty = 30 * 96 / result.dataset.num_train
    assert result.recipe.image_size == BatchRamp(boundaries=(0.0, thirty, 10.0), sizes=(4, 6, 8))
    assert [image_size_at(result.recipe, e) for e in (0.0, np.nextafter(thirty, 0), thirty, 10.0)] == [4, 4, 6, 8]


def test_a_derived_recipe_may_take_it_away(opened):
    result = opened("image_size=null", "augmentation.train.0.size=5", line_9=f"{LOSS}\nimage_size: 8\n{CROP}")
    assert result.recipe.image_size is None
    assert result.recipe.augmentation.train[0].size == 5


def test_an_update_has_the_size_of_its_start_also_where_it_straddles():
    ramps = {"global_batch_size": steps(at_0=30), "norm_span": steps(at_0=10), "epochs": 2, "num_train": 100}
    made = timeline(**ramps, image_size=steps(at_0=16, at_1=24))
    result = [(s.update, s.num_updates, s.samples, s.image_size) for s in made.segments]
    assert result == [(0, 4, 0, 16), (4, 3, 120, 24)]
    assert made.segment_of(3).image_size == 16  # samples 90 to 119: it straddles epoch 1
    assert made.segment_of(4).image_size == 24


def test_a_step_of_the_size_alone_moves_no_update():
    ramps = {"global_batch_size": steps(at_0=30, at_2=60), "norm_span": steps(at_0=10), "epochs": 4, "num_train": 97}
    plain, sized = timeline(**ramps), timeline(**ramps, image_size=steps(at_0=16, at_1=20, at_2=24, at_3=32))
    assert len(sized.segments) == 4
    assert [plain.samples_at(u) for u in range(plain.num_updates + 1)] == [
        sized.samples_at(u) for u in range(sized.num_updates + 1)
    ]


def test_coupled_with_the_batch_both_move_at_the_same_update():
    ramps = {"global_batch_size": steps(at_0=30, at_1=60), "norm_span": steps(at_0=10), "epochs": 3, "num_train": 100}
    made = timeline(**ramps, image_size=steps(at_0=16, at_1=24))
    assert [(s.global_batch_size, s.image_size) for s in made.segments] == [(30, 16), (60, 24)]


def test_the_size_of_an_update_by_the_formula_and_by_the_timeline_are_one(opened):
    line = "image_size: [{from: 0, size: 4}, {from: 3.3, size: 6}, {from: 7.7, size: 8}]"
    result = opened(line_9=f"{LOSS}\n{line}\n{CROP}")
    made = timeline_of(result.recipe, result.dataset)
    for update in range(made.num_updates):
        assert made.segment_of(update).image_size == image_size_at(result.recipe, made.epoch_at(update))


def test_what_means_the_size_gets_it_and_nothing_else_changes():
    crop = RandomResizedCrop(size="image_size", area=(0.5, 1.0))
    assert keys_of_image_size(crop) == ["size"]
    assert at_image_size(crop, 12) == RandomResizedCrop(size=12, area=(0.5, 1.0))
    assert at_image_size(Resize(shorter="image_size"), 12) == Resize(shorter=12)
    for fixed in (CenterCrop(size=7), Cutout(size=3), object(), Unbuilt(kind="Warp", fields={"size": "image_size"})):
        assert at_image_size(fixed, 12) is fixed
    assert keys_of_image_size(Unbuilt(kind="Warp", fields={"size": "image_size"})) == ["size"]


@dataclass(frozen=True)
class Own:
    """An augmentation of the user's own."""


@dataclass(frozen=True)
class KeepsSize:
    keeps_size: ClassVar[bool] = True


def test_behind_an_own_augmentation_the_size_is_taken_for_the_same_and_not_known(opened):
    recipe = opened().recipe
    crop, flip = CenterCrop(size=7), HorizontalFlip()
    for parts, size in (
        ((crop, flip), 7),
        ((crop, Own()), None),
        ((crop, Unbuilt(kind="own.Warp", fields={})), None),
        ((crop, KeepsSize()), 7),
        ((Own(), crop), 7),
        ((crop, Own(), Resize(shorter=5)), None),
    ):
        changed = replace(recipe, augmentation=replace(recipe.augmentation, train=parts, eval=parts))
        assert [evaluated_size(changed, known=True)] == image_sizes(changed, known=True) == [size]
        assert [evaluated_size(changed)] == image_sizes(changed) == [5 if len(parts) == 3 else 7]


def test_curve_and_plan_show_it_where_there_is_one(opened):
    result = opened(line_9=f"{LOSS}\nimage_size: [{{from: 0, size: 6}}, {{from: 5, size: 8}}]\n{CROP}")
    assert [point["image_size"] for point in curve_points(result, [0.0, 4.9, 5.0, 20.0])] == [6, 6, 8, 8]
    made = plan(recipe=result.recipe, dataset=result.dataset, cluster=open_cluster("laptop", vocabulary=vocabulary()))
    assert [segment["image_size"] for segment in made.as_tree()["segments"]] == [6, 8]
    heads, *rows = plan_text(made).splitlines()[2:5]
    position = heads.split().index("image_size")
    assert [row.split()[position] for row in rows] == ["6", "8"]


def test_curve_and_plan_do_not_mention_it_where_there_is_none(opened):
    result = opened()
    assert "image_size" not in curve_points(result, [0.0])[0]
    made = plan(recipe=result.recipe, dataset=result.dataset, cluster=open_cluster("laptop", vocabulary=vocabulary()))
    assert "image_size" not in plan_text(made)
