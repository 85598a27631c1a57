"""The text of a rehearsal: what holds, and what does not."""

import numpy as np
import pytest

from recipes.planning.rehearsal import Failure, rehearse
from recipes.planning.stream import Stream
from recipes.reports.rehearsal import rehearsal_text, sparkline
from trainers.launch.request import TrainRequest, prepare


class Halves(Stream):
    """Every other sample twice, the rest never."""

    def at(self, positions):
        keys, indices = super().at(positions)
        return keys, indices // 2 * 2


@pytest.fixture(scope="module")
def made():
    return prepare(TrainRequest(recipe="digits/ramp", overrides=("epochs=3",)), workers=2).plan


def test_a_whole_run_holds(made):
    text = rehearsal_text(rehearse(made, checkpoint_every=1.0, failures=[Failure(rank=1, update=3)]))
    assert "order: every sample comes once an epoch, over all workers" in text
    assert "2 workers go on from the beginning: there is no checkpoint yet" in text
    assert "BROKEN" not in text


def test_a_broken_order_is_not_to_be_overlooked(made):
    broken = Halves(seed=0, num_samples=made.dataset.num_train)
    text = rehearsal_text(rehearse(made, checkpoint_every=1.0, stream=broken))
    assert "order: BROKEN" in text
    assert "750 samples do not come, such as 1" in text
    assert "comes once" not in text


def test_a_momentum_that_moves_is_shown_as_first_and_last():
    schedule = "schedules={momentum: {kind: PiecewiseLinear, points: [[0, 0.5], [0.5, 1], [3, 1]]}}"
    request = TrainRequest(recipe="digits/ramp", overrides=("epochs=3", schedule))
    assert "  0.45, 0.9\n" in rehearsal_text(rehearse(prepare(request, workers=2).plan, checkpoint_every=1.0))


def test_repeats_are_said():
    request = TrainRequest(recipe="digits/ramp", overrides=("epochs=3", "stream.repeats=4"))
    text = rehearsal_text(rehearse(prepare(request, workers=2).plan, checkpoint_every=1.0))
    assert "order: 375 samples come 4 times each an epoch" in text


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([0.0, 0.0], "▁▁"),
        ([3.0, 3.0], "██"),
        ([1.0, 0.1, 0.1, 0.01, 0.01], "█▅▅▁▁"),  # by decades
        ([0.0, *[0.5] * 59, 1.0], "▅" * 59 + "█"),
    ],
)
def test_a_sparkline(values, bars):
    assert sparkline(np.array(values)) == bars
