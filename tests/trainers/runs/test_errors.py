"""What is printed of an error that ends a rank."""

import pytest

from trainers.runs.errors import error_text
from trainers.training.train import train_as_rank


def test_a_ranks_traceback_begins_where_it_trains():
    with pytest.raises(AttributeError) as caught:
        train_as_rank(None, None, None, mpi=None, launched_by_us=True, threads=1, heartbeat=None)
    text = error_text(caught.value)
    assert text.startswith("Traceback (most recent call last):\n")
    assert "in train_as_rank" in text.splitlines()[1]
