"""What a plan refuses, and what it says of a run that it cannot serve wholly."""

from dataclasses import replace

import pytest

from recipes.planning.division import PlanError, divide
from recipes.planning.forecast import fullest_division
from recipes.planning.memory import Bytes, Model, ModelCosts
from recipes.reports.terminal import plan_text
from recipes.schema import Precision
from trainers.launch.request import TrainRequest, prepare

ADA_SCALE = ("optimizer={kind: AdaScale, momentum: 0.9}", "learning_rate.rule=none")


def planned(*overrides, workers=1, micro_batch_size=None, exact=False):
    request = TrainRequest(recipe="digits/ramp", overrides=overrides, micro_batch_size=micro_batch_size, exact=exact)
    return prepare(request, workers=workers).plan


@pytest.mark.parametrize(("workers", "micro_batch_size"), [(1, None), (2, 96), (3, 32)])
def test_ada_scale_has_a_norm_group_a_micro_batch_whatever_fits(workers, micro_batch_size):
    division = planned(*ADA_SCALE, workers=workers, micro_batch_size=micro_batch_size).segments[0].division
    parts = [part for rank in range(workers) for part in division.micro_batches(rank)]
    assert [(part.offset, part.size, part.num_groups) for part in parts] == [(0, 32, 1), (32, 32, 1), (64, 32, 1)]


def test_ada_scale_keeps_groups_whole_where_workers_are_many():
    made = planned(*ADA_SCALE, workers=5)
    assert made.segments[0].division.team_size == 1
    assert made.segments[0].division.idle_workers == 2
    assert "2 of 5 workers have no samples" in made.warnings[0]
    assert planned(*ADA_SCALE, workers=3).warnings == ()


def test_ada_scale_refuses_a_micro_batch_below_a_group():
    with pytest.raises(PlanError, match=r"norm group of 32 samples from one worker, whose micro-batch is 16"):
        planned(*ADA_SCALE, micro_batch_size=16)
    with pytest.raises(PlanError, match="what fits: norm_span 8, or a micro-batch of 32"):
        planned(*ADA_SCALE, micro_batch_size=12)


def test_ada_scale_takes_a_batch_of_one_group_that_is_the_reference():
    reference = (*ADA_SCALE, "batch={global: 32, norm_span: 32}", "learning_rate.per=32")
    assert planned(*reference).segments[0].division.num_groups == 1


@pytest.mark.parametrize(
    ("workers", "micro_batch_size", "shares", "why"),
    [
        (1, 32, [3, 6], []),
        (2, 96, [2, 2], []),
        (1, 192, [1, 1], ["one micro-batch", "one micro-batch"]),
        (4, 16, [0, 0], ["lies on several workers"] * 2),
        (6, 32, [0, 6], ["lies on several workers"]),
    ],
)
def test_the_noise_scale_needs_two_micro_batches_of_whole_groups(workers, micro_batch_size, shares, why):
    made = planned(workers=workers, micro_batch_size=micro_batch_size)
    assert [planned.division.num_whole_micro_batches for planned in made.segments] == shares
    assert [segment["num_shares"] for segment in made.as_tree()["segments"]] == shares
    assert len(made.without_noise_scale) == len(why)
    for sentence, words in zip(made.without_noise_scale, why, strict=True):
        assert words in sentence


def test_the_plan_names_the_number_format_and_counts_the_weights_in_16_bits():
    model = Model(num_parameters=1000, num_state_values=1)
    for compute, half in (("float32", None), ("tf32", None), ("mixed16", "float16"), ("bfloat16", "bfloat16")):
        recipe = replace(planned().recipe, precision=Precision(compute=compute))
        made = replace(planned(), model=model, recipe=recipe)
        tree = made.as_tree()
        assert tree["compute"] == compute
        counted = {name: size for name, size in tree["memory"].items() if "16" in name}
        assert counted == ({f"{half}_weights_bytes": 2000} if half else {})
        assert f"computed in {compute}" in plan_text(made)
        assert (f"their {half} casts 2 kB" in plan_text(made)) == (half is not None)


def test_a_plan_with_pytorchs_kernels_counts_their_gaps_also_where_they_copy_no_weights():
    costs = ModelCosts(parameter_sizes=(10,), activations=Bytes(per_sample=8), moments=(Bytes(per_sample=16),))
    model = Model(num_parameters=10, num_state_values=1, costs={None: costs}, cpu_kernels="torch")
    made = replace(planned(), model=model)
    assert "ordered_weights_bytes" not in made.as_tree()["memory"]
    assert "the gaps that PyTorch's kernels leave" in plan_text(made)
    assert "PyTorch's order" not in plan_text(made)


def test_workers_who_would_never_have_a_sample_are_refused_before_anything_is_counted_for_each():
    assert planned(workers=192).workers == 192
    with pytest.raises(PlanError, match=r"^193 workers are more than the 192 samples .* ask for at most 192 with -n"):
        planned(workers=193)
    with pytest.raises(PlanError, match=r"^99,999,999,999 workers are more"):
        planned(workers=99_999_999_999)


def test_a_batch_of_any_size_is_planned_by_arithmetic():
    """Not by a list of its 1.6e13 micro-batches, as long as which no recipe of a stranger may keep a machine busy."""
    for aligned in (False, True):
        division = divide(global_batch_size=10**15, norm_span=32, workers=2, micro_batch_size=64)
        division = replace(division, aligned=aligned)
        assert [division.samples_of(rank) for rank in range(2)] == [500_000_000_000_000] * 2
        assert (division.largest, division.num_micro_batches(0)) == (64, 7_812_500_000_000)
        assert division.most_micro_batches == 7_812_500_000_000
        assert division.num_whole_micro_batches == 2 * 7_812_500_000_000


def test_the_plan_counts_the_forwards_of_the_worker_that_makes_most():
    """In exact mode 23 groups of 32 samples are 8 and 4 of the first worker, and 4, 4, 2 and 1 of the second."""
    made = planned("batch={global: 736, norm_span: 32}", workers=2, micro_batch_size=256, exact=True)
    (segment,), (row,) = made.segments, made.as_tree()["segments"]
    assert [segment.division.num_micro_batches(rank) for rank in range(2)] == [2, 4]
    assert (row["micro_batch_size"], row["accumulation_steps"]) == (256, 4)
    assert fullest_division(segment) == {"micro_batch_size": 96, "steps": 4}
