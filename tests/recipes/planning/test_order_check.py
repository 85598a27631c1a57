"""The count of samples: right orders pass, and every way to break one is found and named."""

from collections import Counter, defaultdict
from dataclasses import dataclass, replace

import numpy as np
import pytest

from recipes.planning.division import Division, MicroBatch
from recipes.planning.order_check import Shares, check_order
from recipes.planning.planner import plan
from recipes.planning.stream import Stream, stream_of
from trainers.launch.request import TrainRequest, prepare


def planned(*overrides, workers=3, num_train=101, micro_batch_size=None, recipe="digits/ramp"):
    """A run of `recipe` on the first `num_train` samples."""
    overrides = ("epochs=4", *overrides)
    request = TrainRequest(recipe=recipe, overrides=overrides, exact=False, micro_batch_size=micro_batch_size)
    whole = prepare(request, workers=workers).plan
    dataset = replace(whole.dataset, num_train=num_train)
    how = {"workers": workers, "micro_batch_size": micro_batch_size}
    return plan(recipe=whole.recipe, dataset=dataset, cluster=whole.cluster, **how)


def of(made):
    return stream_of(made.recipe, made.dataset)


def counted_one_by_one(made):
    """How often each sample comes in each epoch, with Python's lists and loops only."""
    timeline, stream = made.timeline, of(made)
    counts = defaultdict(Counter)
    for update in range(timeline.num_updates):
        for rank in range(made.workers):
            for part in made.division_of(update).micro_batches(rank):
                for position in range(part.offset, part.offset + part.size):
                    place = timeline.samples_at(update) + position
                    _, (index,) = stream.at([place])
                    counts[place // timeline.num_train][int(index)] += 1
    return counts


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"workers": 1},
        {"workers": 5, "micro_batch_size": 16},  # teams: a worker's positions are not in a row
        {"num_train": 10},  # an update takes several epochs
        {"num_train": 192},  # epochs end with updates
        {"num_train": 4001},
    ],
    ids=str,
)
def test_the_count_is_that_of_loops_over_updates_ranks_and_samples(how):
    made = planned(**how)
    checked, counts = check_order(made, of(made)), counted_one_by_one(made)
    whole, rest = divmod(made.timeline.num_samples, made.dataset.num_train)
    assert (checked.whole_epochs, checked.rest) == (whole, rest)
    assert checked.drawn == made.timeline.num_samples == sum(map(Counter.total, counts.values()))
    for epoch in range(whole):
        assert counts[epoch] == Counter(range(made.dataset.num_train))
    assert all(times == 1 for times in counts[whole].values())
    assert checked.faults == ()


def test_two_workers_and_ten_samples_by_hand():
    made = planned("batch={global: 4, norm_span: 2}", "learning_rate.warmup=null", "epochs=2", workers=2, num_train=10)
    assert Shares(made.segments[0].division).positions.tolist() == [0, 1, 2, 3]
    assert Shares(made.segments[0].division).ranks.tolist() == [0, 0, 1, 1]
    checked = check_order(made, of(made))
    assert (checked.num_samples, checked.whole_epochs, checked.rest, checked.drawn) == (10, 2, 0, 20)


@pytest.mark.parametrize("repeats", [2, 3, 7])
def test_repeats_are_counted_as_such(repeats):
    made = planned(f"stream.repeats={repeats}")
    assert check_order(made, of(made)).faults == ()
    assert check_order(made, Stream(seed=0, num_samples=101)).faults == ()
    more = Stream(seed=0, num_samples=101, repeats=repeats + 1)
    assert check_order(made, Claims(more, repeats=repeats)).faults != ()


@dataclass
class Claims:
    """A stream that says of itself what is not so."""

    inner: Stream
    repeats: int = 1

    @property
    def num_samples(self):
        return self.inner.num_samples

    def at(self, positions):
        return self.inner.at(positions)


@dataclass
class WithReplacement(Claims):
    def at(self, positions):
        return positions, (np.asarray(positions) * 7919 + 13) ** 2 % self.num_samples


@dataclass
class Drops(Claims):
    """Drops the last sample of every epoch."""

    def at(self, positions):
        size = self.num_samples
        epochs, offsets = np.divmod(np.asarray(positions), size - 1)
        return self.inner.at(epochs * size + offsets)


@dataclass
class Swaps(Claims):
    """One wrong sample in the whole run."""

    def at(self, positions):
        keys, indices = self.inner.at(positions)
        second = self.inner.at([self.num_samples + 1])[1]
        return keys, np.where(np.asarray(positions) == self.num_samples, second, indices)


@dataclass
class NeverShuffles(Claims):
    def at(self, positions):
        return self.inner.at(np.asarray(positions) % self.num_samples)


@dataclass
class CountsFromOne(Claims):
    def at(self, positions):
        keys, indices = self.inner.at(positions)
        return keys, indices + 1


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (WithReplacement, "come too often"),
        (Drops, "do not come"),
        (Swaps, "epoch 1: 1 samples come too often"),
        (NeverShuffles, "epochs 0 and 1 begin in the same order"),
        (CountsFromOne, "epoch 0: 101 is no sample"),
    ],
)
def test_a_broken_order_is_found(broken, words):
    made = planned()
    checked = check_order(made, broken(of(made)))
    assert words in " ".join(checked.faults)
    assert len(checked.faults) <= 6


def test_one_wrong_sample_is_named_with_who_took_it():
    made = planned("batch={global: 96, norm_span: 32}", workers=3)
    sample = int(of(made).at([102])[1][0])
    left_out = int(of(made).at([101])[1][0])
    (fault,) = check_order(made, Swaps(of(made))).faults
    assert fault == (  # positions 101 and 102 are 5 and 6 of update 1
        f"epoch 1: 1 samples come too often, such as {sample} (rank 0 in update 1, rank 0 in update 1); "
        f"1 samples do not come, such as {left_out}"
    )


class Overlapping(Division):
    """Rank 1 takes the first sample of rank 0 in place of its own first."""

    def micro_batches(self, rank):
        parts = super().micro_batches(rank)
        if rank != 1:
            return parts
        wrong = MicroBatch(offset=0, size=1, num_groups=1, first_group=0)
        return (wrong, replace(parts[0], offset=parts[0].offset + 1, size=parts[0].size - 1), *parts[1:])


def test_a_broken_division_is_found_and_its_ranks_are_named():
    made = planned("batch={global: 96, norm_span: 32}", workers=3)
    (only,) = made.segments
    broken = replace(made, segments=(replace(only, division=Overlapping(**vars(only.division))),))
    faults = check_order(broken, of(made)).faults
    assert faults[:2] == (
        "from update 0 on: ranks 0, 1 take sample 0 of 96",
        "from update 0 on: no rank takes sample 32 of 96",
    )
    # Epoch 0 has the positions up to 100: of update 1 the first five, of which position 0 is taken twice too.
    assert faults[2].startswith("epoch 0: 2 samples come too often, such as ")
    assert "(rank 0 and 1 in update 0); 1 samples do not come" in faults[2]


def test_progress_is_told_of_every_epoch():
    made, told = planned(), []
    check_order(made, of(made), tell=lambda done, of: told.append((done, of)))
    assert told == [(done, len(told)) for done in range(1, len(told) + 1)]
