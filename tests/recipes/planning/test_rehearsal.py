"""A rehearsal against a run that is stepped by hand: checkpoints, restarts, rates and the load on storage."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from recipes.planning.forecast import forecast, seconds_of_a_checkpoint
from recipes.planning.hardware import Hardware, NodeLink, Rate
from recipes.planning.planner import Model, plan
from recipes.planning.rates import learning_rate_at, momentum_at
from recipes.planning.rehearsal import Failure, Storage, rehearse
from recipes.planning.stream import Stream, stream_of
from trainers.launch.request import TrainRequest, prepare

RATE = Rate(model="SmallResNet", image_size=8, micro_batch_size=16, samples_per_second=100.0, source="by hand")
LINK = NodeLink(kind="shared_memory", gb_per_second=5.0, source="by hand")
HARDWARE = Hardware(
    device="cpu", node_link=LINK, rates=(RATE,), start_seconds=7.0, write_gb_per_second=1e-3, source="by hand"
)


def planned(*overrides, workers=3, num_train=100, micro_batch_size=None):
    overrides = ("epochs=6", "batch={global: [{from: 0, size: 32}, {from: 3, size: 64}], norm_span: 16}", *overrides)
    request = TrainRequest(recipe="digits/ramp", overrides=overrides, exact=False)
    whole = prepare(request, workers=workers).plan
    dataset = replace(whole.dataset, num_train=num_train)
    how = {"workers": workers, "micro_batch_size": micro_batch_size}
    return plan(recipe=whole.recipe, dataset=dataset, cluster=whole.cluster, **how)


def stepped(made, every):
    """A run update by update: (samples before it, batch) of each, and after how many a checkpoint is written."""
    size, samples, updates, saved = made.dataset.num_train, 0, [], []
    while samples < 6 * size:
        batch = 32 if samples < 3 * size else 64
        before, samples = samples, samples + batch
        updates.append((before, batch))
        passed = Fraction(samples, size) // every > Fraction(before, size) // every
        if passed or samples >= 6 * size:
            saved.append(len(updates))
    return updates, saved


@pytest.mark.parametrize("every", ["1", "0.5", "2", "0.1", "100"])
def test_checkpoints_rates_and_batches_are_those_of_a_run_stepped_by_hand(every):
    made = planned()
    rehearsed = rehearse(made, checkpoint_every=float(every))
    updates, saved = stepped(made, Fraction(every))
    assert list(rehearsed.checkpoints) == saved
    assert rehearsed.holds
    rates = [learning_rate_at(made.recipe, samples / 100) for samples, _ in updates]
    assert rehearsed.learning_rates.tolist() == rates
    tree = rehearsed.as_tree()
    assert (tree["num_updates"], tree["num_samples"]) == (len(updates), sum(batch for _, batch in updates))
    first, second = tree["segments"]
    assert [first["global_batch_size"], second["global_batch_size"]] == [32, 64]
    assert second["update"] == next(number for number, (_, batch) in enumerate(updates) if batch == 64)
    assert second["learning_rate"]["last"] == rates[-1]
    assert first["learning_rate"]["highest"] == max(rates[: second["update"]])


def test_a_momentum_that_moves_within_a_segment_has_a_first_and_a_last_value():
    made = planned("schedules={momentum: {kind: PiecewiseLinear, points: [[0, 0.5], [3, 1], [6, 1]]}}")
    first, second = rehearse(made, checkpoint_every=1.0).as_tree()["segments"]
    last = momentum_at(made.recipe, (first["num_updates"] - 1) * 32 / 100)
    assert 0.8 < last < 0.9
    assert (first["momentum"], second["momentum"]) == ({"first": 0.45, "last": last}, {"first": 0.9, "last": 0.9})


def test_evaluations_follow_the_recipe():
    made = planned("evaluation.every=2ep")
    assert list(rehearse(made, checkpoint_every="update").evaluations) == stepped(made, Fraction(2))[1]


@pytest.mark.parametrize("died", [0, 3, 4, 9, 12])
@pytest.mark.parametrize("restart_on", [None, 1, 2])
def test_a_restart_repeats_what_follows_the_newest_checkpoint(died, restart_on):
    made = planned()
    updates, saved = stepped(made, 1)
    then = None if restart_on is None else planned(workers=restart_on)
    failure = Failure(rank=2, update=died)
    (restart,) = rehearse(made, checkpoint_every=1.0, failures=[failure], restart_plan=then).restarts
    begin = max([update for update in saved if update <= died], default=0)
    assert (restart.update, restart.repeated_updates) == (begin, died - begin)
    assert restart.repeated_samples == sum(batch for _, batch in updates[begin:died])
    assert restart.workers == (restart_on or 3)
    assert restart.compared.start == begin
    assert restart.compared.stop > died
    assert restart.faults == ()


def test_the_time_counts_every_checkpoint_and_evaluation_that_is_made_and_made_again():
    made = planned("evaluation.every=1ep")
    made = replace(
        made,
        cluster=replace(made.cluster, hardware=HARDWARE, workers_per_node=3),
        model=Model(num_parameters=500_000, num_state_values=1),  # 4 MB, so 4 s a checkpoint
    )
    time = forecast(made)
    updates = [float(each.update.total) for each in time.segments for _ in range(each.planned.segment.num_updates)]
    failures = [Failure(rank=0, update=9), Failure(rank=1, update=9), Failure(rank=2, update=11)]
    for every in (0.3, 1.0, 4.0):
        rehearsed = rehearse(made, checkpoint_every=every, failures=failures)
        evaluation = time.evaluation_seconds / len(rehearsed.evaluations)
        for died, result in zip(([9, 9, 11], []), reversed(rehearsed.seconds(time, time)), strict=True):
            seconds, done, saved = 7.0, 0, 0
            while done < len(updates):
                seconds += updates[done]
                if died and done == died[0]:
                    died, done, seconds = died[1:], saved, seconds + 7.0
                    continue
                done += 1
                seconds += evaluation * (done in rehearsed.evaluations)
                if done in rehearsed.checkpoints:
                    seconds, saved = seconds + 4.0, done
            assert result == pytest.approx(seconds), every


def test_restarts_stand_in_the_order_of_time():
    failures = [Failure(rank=0, update=9), Failure(rank=1, update=2)]
    restarts = rehearse(planned(), checkpoint_every=1.0, failures=failures).restarts
    assert [restart.failure.update for restart in restarts] == [2, 9]


def test_a_restart_on_teams_draws_the_same_samples():
    made, then = planned(workers=2), planned(workers=5, micro_batch_size=8)
    assert then.segments[0].division.team_size > 1
    (restart,) = rehearse(made, checkpoint_every=1.0, failures=[Failure(rank=0, update=5)], restart_plan=then).restarts
    assert restart.faults == ()


def test_a_restart_with_another_seed_of_the_order_is_found():
    """A stream with a state of its own: drawn a second time, it gives other samples."""
    made, drawn = planned(), []

    class Stateful(Stream):
        def at(self, positions):
            drawn.append(1)
            return Stream(seed=len(drawn), num_samples=self.num_samples).at(positions)

    failures = [Failure(rank=0, update=5)]
    rehearsed = rehearse(made, checkpoint_every=1.0, failures=failures, stream=Stateful(seed=0, num_samples=100))
    assert rehearsed.order.faults == ()  # each epoch by itself is whole
    assert rehearsed.restarts[0].faults == ("updates 4 to 8: other samples, or in another order",)
    assert not rehearsed.holds


def test_a_restart_of_another_recipe_is_found():
    made = planned()
    other = replace(made, recipe=replace(made.recipe, learning_rate=replace(made.recipe.learning_rate, reference=1.0)))
    (restart,) = rehearse(made, checkpoint_every=1.0, failures=[Failure(rank=0, update=5)], restart_plan=other).restarts
    assert restart.faults[0].startswith("update 4: rate ")


def test_a_broken_stream_is_no_run_that_holds():
    class Halves(Stream):
        def at(self, positions):
            keys, indices = super().at(positions)
            return keys, indices // 2

    rehearsed = rehearse(planned(), checkpoint_every=1.0, stream=Halves(seed=0, num_samples=100))
    assert not rehearsed.holds
    assert not rehearsed.as_tree()["holds"]


def test_the_load_on_storage_by_hand():
    made = planned("batch={global: 48, norm_span: 16}", workers=3)  # 16 samples each of 48
    known = Storage(image_bytes=1000.0, images_per_second=30.0, workers_per_node=2)
    storage = rehearse(made, checkpoint_every=1.0, storage=known).as_tree()["storage"]
    assert storage["images_an_epoch"] == pytest.approx({"all": 100, "worker": 100 / 3, "node": 200 / 3})
    assert storage["bytes_an_epoch"] == pytest.approx({"all": 1e5, "worker": 1e5 / 3, "node": 2e5 / 3})
    assert storage["images_per_second"] == pytest.approx({"all": 30, "worker": 10, "node": 20})
    assert storage["bytes_per_second"] == pytest.approx({"all": 3e4, "worker": 1e4, "node": 2e4})


def test_the_busiest_worker_counts_where_shares_differ():
    made = planned("batch={global: 48, norm_span: 16}", workers=2)  # 32 and 16
    storage = rehearse(made, checkpoint_every=1.0).as_tree()["storage"]
    assert storage["images_an_epoch"] == pytest.approx({"all": 100, "worker": 100 * 2 / 3})
    assert storage["bytes_an_epoch"] is None


@pytest.mark.parametrize(
    ("word", "copies"),
    [
        (None, 2),
        ("updater.double_buffering=true", 3),
        ("weight_average={keep: 0.9, per: 64}", 3),
        ("updater.power_sgd_rank=2", 2 + 2),  # the errors of both workers
        ("updater.local_steps={every: 4, replicas: 2}", 3 + 2 * 2),  # the mean, and of each worker weights and state
    ],
)
def test_a_checkpoint_has_weights_state_and_what_the_updater_keeps(word, copies):
    made = planned(*filter(None, [word]), workers=2)
    rehearsed = rehearse(replace(made, model=Model.of(made.recipe, 1000)), checkpoint_every=1.0)
    assert rehearsed.checkpoint_bytes == copies * 4000
    total = rehearsed.as_tree()["storage"]["checkpoint_bytes"]
    assert total == copies * 4000 * len(rehearsed.checkpoints)
    made = replace(rehearsed.plan, cluster=replace(made.cluster, hardware=HARDWARE))
    assert seconds_of_a_checkpoint(made) == pytest.approx(copies * 4e-3)  # at a megabyte a second


def test_a_failure_costs_at_most_the_longest_gap():
    made = planned()
    rehearsed = rehearse(made, checkpoint_every=1.0)
    costs = [
        died + 1 - max([0, *(update for update in rehearsed.checkpoints if update <= died)])
        for died in range(made.timeline.num_updates)
    ]
    assert rehearsed.longest_gap == max(costs)


def test_what_is_not_rehearsed_is_said():
    ada = planned("optimizer={kind: AdaScale, momentum: 0.9}", "learning_rate.rule=none")
    assert any("AdaScale multiplies" in note for note in rehearse(ada, checkpoint_every=1.0).notes)
    assert rehearse(planned(), checkpoint_every=1.0).notes == planned().warnings


def test_the_stream_is_that_of_training():
    made = planned("seed=5", "stream.repeats=2")
    assert stream_of(made.recipe, made.dataset) == Stream(seed=5, num_samples=100, repeats=2)
    assert np.array_equal(*(stream_of(made.recipe, made.dataset).at(range(50))[1].reshape(25, 2).T))
