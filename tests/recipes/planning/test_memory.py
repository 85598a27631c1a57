"""Memory of a device by hand, for a network whose bytes a reader can count; and what the planner makes of it."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from recipes.planning.division import PlanError, divide
from recipes.planning.memory import Bytes, Model, ModelCosts, largest_that_fits
from recipes.planning.planner import plan
from recipes.reading.open import open_cluster, open_recipe
from recipes.reports.terminal import plan_text
from recipes.schema import Precision
from trainers.communicators.tree_sum import TreeSum
from trainers.launch.vocabulary import vocabulary

# Two linear layers, 4 -> 3 -> 2, without biases: 12 and 6 numbers. Forward keeps of each sample its 4 inputs and 3
# hidden values, 28 bytes. Backward is fullest where the gradient of the hidden values is there too, and that of the
# first weights: 40 bytes a sample and 48. In exact mode a second norm group has a gradient of the weights of its own.
COSTS = ModelCosts(
    parameter_sizes=(6, 12),
    activations=Bytes(per_sample=28),
    moments=(Bytes(per_sample=40, per_group=48, fixed=48),),
)
MODEL = Model(num_parameters=18, num_state_values=1, costs={None: COSTS})
HELD = 3 * 72  # weights, gradients, momentum


def divided(size=64, *, span=32, batch=256, workers=2):
    return divide(global_batch_size=batch, norm_span=span, workers=workers, micro_batch_size=size)


def test_the_memory_of_a_small_network_by_hand():
    memory = MODEL.memory_with(divided())
    assert memory == {
        "weights_bytes": 72,
        "gradients_bytes": 72,
        "optimizer_state_bytes": 72,
        "activations_bytes": 28 * 64,
        "workspace_bytes": 12 * 64 + 48,
        "total_bytes": HELD + 40 * 64 + 48,
    }
    assert COSTS.num_parameters == 18


def test_sixteen_bits_halve_what_a_micro_batch_takes():
    memory = MODEL.memory_with(divided(), compute="mixed16")
    assert memory["float16_weights_bytes"] == 36
    assert memory["activations_bytes"] == 14 * 64
    assert memory["total_bytes"] == HELD + 36 + (40 * 64 + 48) // 2


def test_exact_mode_adds_partial_sums_and_a_gradient_for_each_group():
    """A worker has 128 samples: two micro-batches of two groups, added to one sum."""
    memory = MODEL.memory_with(divided(), exact=True)
    assert memory["sums_bytes"] == 72
    assert memory["total_bytes"] == HELD + 72 + 40 * 64 + 48 + 48
    for steps, arrays in ((1, 1), (2, 1), (3, 2), (6, 3), (7, 3), (64, 6)):  # 6: the second's 6-7, 8-9 and 10
        division = divided(32, batch=64 * steps)
        assert division.most_micro_batches == steps
        assert MODEL.memory_with(division, exact=True)["sums_bytes"] == 72 * arrays


@pytest.mark.parametrize("by_group", [False, True])
def test_the_sums_counted_are_the_arrays_of_the_tree_of_the_worker_that_holds_most(by_group):
    values = np.zeros(1, np.float32)
    for groups, workers, limit in itertools.product((1, 7, 23, 64, 77), (1, 2, 3, 5), (1, 2, 4, 8)):
        division = replace(divided(limit, span=1, batch=groups, workers=workers), team_size=1, aligned=True)
        most = 0
        for rank in range(workers):
            tree = TreeSum(None)
            for part in division.micro_batches(rank):
                for one in part.by_group if by_group else [part]:
                    tree.add(one.first_group, values, leaves=one.num_groups)
                    most = max(most, len(tree.held))
        assert division.most_sums(by_group=by_group) == most


def test_groups_that_exact_mode_computes_one_by_one_take_the_memory_of_one():
    """Once, before there is a momentum or a sum, all of them have a forward: here it takes less."""
    one_by_one = replace(MODEL, costs={None: replace(COSTS, mixes_samples=True)})
    memory = one_by_one.memory_with(divided(), exact=True)
    assert memory["sums_bytes"] == 72 * 2  # four groups, one after the other
    assert memory["activations_bytes"] == 28 * 32
    assert memory["total_bytes"] == max(HELD + 2 * 72 + 40 * 32 + 48, 2 * 72 + 28 * 64)
    assert one_by_one.memory_with(divided()) == MODEL.memory_with(divided())


def test_the_fullest_moment_depends_on_the_micro_batch():
    """For few samples that of large weights, for many that of large images; and half of the largest array for gaps."""
    moments = (Bytes(per_sample=1, fixed=1000), Bytes(per_sample=20))
    costs = replace(COSTS, activations=Bytes(per_sample=1), moments=moments, largest_growth=Bytes(per_sample=4))
    model = replace(MODEL, costs={None: costs})
    for samples, fullest in ((8, 1008 + 16), (64, 1280 + 128)):
        assert model.memory_with(divided(samples, span=8))["total_bytes"] == HELD + fullest


def test_pytorchs_kernels_on_a_cpu_add_ordered_weights_and_larger_gaps():
    costs = {None: replace(COSTS, ordered_weights=12, largest_growth=Bytes(per_sample=4))}
    by_numpy, by_torch = (replace(MODEL, costs=costs, cpu_kernels=kernels) for kernels in ("numpy", "torch"))
    memory, fullest = by_torch.memory_with(divided()), 40 * 64 + 48
    assert memory["ordered_weights_bytes"] == 48
    assert memory["total_bytes"] == HELD + 48 + fullest + 192 + int(0.2 * fullest)  # 3 / 4 of 256, and a fifth of all
    assert by_torch.memory_with(divided(), on_gpu=True) == by_numpy.memory_with(divided())


def test_double_buffering_and_averaged_weights_are_counted():
    recipe = open_recipe("digits/ramp", vocabulary=vocabulary()).recipe
    doubled = replace(recipe, updater=replace(recipe.updater, double_buffering=True), weight_average=object())
    assert Model.of(recipe, 10).memory() == {"weights_bytes": 40, "gradients_bytes": 40, "optimizer_state_bytes": 40}
    assert Model.of(doubled, 10).memory() == {
        "weights_bytes": 40,
        "gradients_bytes": 80,
        "optimizer_state_bytes": 40,
        "averaged_weights_bytes": 40,
    }


def test_costs_survive_json():
    assert ModelCosts.from_tree(COSTS.as_tree()) == COSTS
    unmeasured = ModelCosts(parameter_sizes=(1, 2))
    assert ModelCosts.from_tree(unmeasured.as_tree()) == unmeasured
    assert Model(num_parameters=3, num_state_values=1, costs={None: unmeasured}).memory_with(divided()) == {
        "weights_bytes": 12,
        "gradients_bytes": 12,
        "optimizer_state_bytes": 12,
        "activations_bytes": None,
        "workspace_bytes": None,
        "total_bytes": None,
    }


@pytest.mark.parametrize(
    ("room", "size"),
    [
        (HELD + 40 * 128 + 48, 128),  # the worker's whole share
        (10**9, 128),
        (HELD + 40 * 128 + 47, 64),  # two steps; 96 would make even steps of 64
        (HELD + 40 * 64 + 47, 32),
        (HELD + 40 * 32 + 47, 16),  # not a whole group: a team of two shares it
        (HELD + 40 * 16 + 47, 11),  # of three
        (HELD + 40 + 48, 1),
        (HELD + 40 + 47, 0),
    ],
)
def test_the_largest_micro_batch_that_fits(room, size):
    assert largest_that_fits(divided(256), lambda each: MODEL.memory_with(each)["total_bytes"], room) == size


def made(cluster="laptop", *, device_bytes, size=None, recipe="digits/ramp", per_sample=40, **how):
    """A plan of a recipe with a model of so many bytes a sample, and one worker."""
    opened = open_recipe(recipe, vocabulary=vocabulary())
    costs = replace(COSTS, moments=(Bytes(per_sample=per_sample),))
    model = replace(MODEL, costs={None: costs})
    on = replace(
        open_cluster(cluster, vocabulary=vocabulary()), device_memory_bytes=device_bytes, micro_batch_size="auto"
    )
    given = {"recipe": opened.recipe, "dataset": opened.dataset, "model": model, "workers": 1}
    return plan(**given, cluster=on, micro_batch_size=size, **how)


def sizes(plan):
    return [planned.division.largest for planned in plan.segments]


def test_auto_is_the_largest_that_fits_on_a_gpu_and_on_a_cpu_at_most_64_or_256_of_small_images():
    """digits/ramp has batches of 96 and 192 samples in norm groups of 32."""
    assert sizes(made("mn1", device_bytes=10**6)) == [96, 192]
    assert sizes(made("mn1", device_bytes=4600)) == [96, 96]
    assert sizes(made("mn1", device_bytes=3500)) == [64, 64]
    assert sizes(made(device_bytes=10**6)) == [96, 192]
    assert sizes(made(device_bytes=4600)) == [96, 96]
    assert sizes(made(device_bytes=10**6, recipe="goyal2017", per_sample=1)) == [64]
    assert sizes(made(device_bytes=2500)) == [32, 32]


def test_auto_on_a_cpu_never_cuts_a_norm_group_and_warns_instead():
    too_large = made(device_bytes=1000)
    assert sizes(too_large) == [32, 32]
    (warning,) = too_large.warnings
    assert "micro-batches of 32 samples need 1,496 bytes on a device" in warning
    assert "has 1,000; micro-batches of 16 fit: --micro-batch-size 16" in warning
    assert warning.endswith("2 workers then share a norm group of 32")


def test_a_micro_batch_that_does_not_fit_is_refused_on_a_gpu_and_warned_of_on_a_cpu():
    with pytest.raises(PlanError, match=r"^micro-batches of 96 samples need 4,056 bytes .*es of 64 fit: --mi"):
        made("mn1", device_bytes=4000, size=96)
    assert "micro-batches of 64 fit" in made(device_bytes=4000, size=96).warnings[0]
    assert made("mn1", device_bytes=4056, size=96).warnings == ()
    with pytest.raises(PlanError, match="not even one sample fits"):
        made("mn1", device_bytes=10**6, per_sample=10**9)
    with pytest.raises(PlanError, match=r"^weights, gradients and optimizer state need 216 bytes.*file in bytes$"):
        made(device_bytes=215)


def test_the_plan_shows_what_smaller_micro_batches_would_cost():
    tree = made("mn1", device_bytes=10**6, size=96).as_tree()["memory"]
    assert tree["total_bytes"] == 216 + 40 * 96
    assert tree["device_bytes"] == 10**6
    assert (tree["update"], tree["largest_that_fits"]) == (0, 96)
    tree = made("mn1", device_bytes=10**6, size=192).as_tree()["memory"]
    assert (tree["update"], tree["largest_that_fits"]) == (16, 192)
    assert [(row["micro_batch_size"], row["accumulation_steps"]) for row in tree["choices"]] == [
        (192, 1),
        (96, 2),
        (32, 6),
    ]
    assert [row["total_bytes"] for row in tree["choices"]] == [216 + 40 * 192, 216 + 40 * 96, 216 + 40 * 32]
    text = plan_text(made("mn1", device_bytes=10**6, size=192))
    assert "activations 5.38 kB + workspace 2.3 kB = 7.9 kB (6.87 kB to 9.08 kB) of 1 MB" in text
    assert "micro-batches: 192: 7.9 kB in 1 step; 96: 4.06 kB in 2 steps; 32: 1.5 kB in 6 steps" in text
    assert text.endswith("in 6 steps; a worker has only 192")
    assert plan_text(made("mn1", device_bytes=3000, size=32)).endswith("the largest that fits is 32")


def test_sixteen_bits_fit_about_twice_as_many_samples():
    opened = open_recipe("digits/ramp", vocabulary=vocabulary())
    half = replace(opened.recipe, precision=Precision(compute="mixed16"))
    division = divided(10**6, span=1, batch=10**6, workers=1)
    fits = [
        largest_that_fits(division, lambda each, how=how: MODEL.memory_with(each, compute=how)["total_bytes"], 40_000)
        for how in ("float32", half.precision.compute)
    ]
    assert fits[1] / fits[0] == pytest.approx(2, rel=0.1)
