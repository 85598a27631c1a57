"""The lines of `metrics.jsonl`."""

import time

from mpi4py import MPI

from trainers.runs.phase_clock import PhaseClock, RankSeconds
from trainers.training.extensions.metrics import Metrics


def test_a_clock_that_is_set_back_while_the_run_trains_changes_no_duration(tmp_path, monkeypatch):
    lines = []
    ranks = RankSeconds(PhaseClock(), MPI.COMM_SELF, counts_lost=False)
    metrics = Metrics(tmp_path / "metrics.jsonl", writes=True, ranks=ranks, memory=dict, observe=lines.append)
    began = time.time()
    metrics.write("one", 1)
    monkeypatch.setattr(time, "time", lambda: began - 3600)
    metrics.write("two", 2)
    metrics.close()
    first, second = (line["time_ms"] for line in lines)
    assert abs(first - 1000 * began) < 1000
    assert 0 <= second - first < 1000
