"""Workers that wait for each other in shared memory: right sums, and no core kept busy with waiting."""

import json
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("meetings_on_ranks.py")


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 3])
def test_who_waits_for_a_late_rank_sleeps_and_sums_are_right(run_on_ranks, ranks):
    done = run_on_ranks(ranks, PROGRAM)
    assert done.returncode == 0, done.stderr
    for waited, processor in json.loads(done.stdout):
        assert waited > 0.99, "nobody leaves before all have come"
        assert processor < 0.8, "spinning would cost a second of a core and more"
