"""A rank that is stopped before it has joined the others ends the run, which would wait for it without end."""

import os
import signal
import sys
import time

import pytest
from trainers.runs.startup_check import StartupCheck

from trainers.runs.mpi_ranks import start_ranks
from trainers.runs.run_folder import METRICS


@pytest.fixture
def started(tmp_path):
    words = ["train", "digits/ramp", "--stop-after", "1up", "--no-report", "--out", str(tmp_path)]
    ranks = start_ranks(2, words, log=tmp_path / "log.txt")
    yield ranks
    ranks.kill()
    ranks.process.wait(timeout=30)
    ranks.errors()
    ranks.process.stderr.close()


def processes_of(ranks):
    while len(found := ranks.processes()) < ranks.num_ranks:
        time.sleep(0.01)
    return found


@pytest.mark.mpi
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_rank_that_is_stopped_before_it_joins_is_named_and_ends_all(tmp_path, started):
    process = processes_of(started)[1]
    os.kill(process, signal.SIGSTOP)

    startup = StartupCheck(tmp_path, started, seconds=4.0)
    started.process.wait(timeout=30)
    startup.close()

    assert startup.failure is not None
    assert "rank 1 on " in startup.failure
    assert f"(process {process}) did not begin within 4 s: its process is stopped (SIGSTOP)" in startup.failure
    assert "rank 0" not in startup.failure, "it only waits"


@pytest.mark.mpi
def test_ranks_that_end_before_they_begin_keep_nobody_waiting(tmp_path, started):
    startup = StartupCheck(tmp_path, started, seconds=20.0)
    started.kill()
    started.process.wait(timeout=30)
    began = time.perf_counter()
    startup.close()
    assert time.perf_counter() - began < 10
    assert startup.failure is None


@pytest.mark.mpi
def test_ranks_that_write_metrics_train_though_their_heartbeats_are_not_seen(tmp_path, started, monkeypatch):
    monkeypatch.setattr("trainers.runs.startup_check._CHECK_SECONDS", 0.05)
    startup = StartupCheck(tmp_path / "elsewhere", started, seconds=0.2)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / METRICS).write_text("{}")
    time.sleep(0.5)
    startup.close()
    assert startup.failure is None
    assert started.process.poll() is None


@pytest.mark.mpi
def test_ranks_that_begin_are_left_alone(tmp_path, started):
    startup = StartupCheck(tmp_path, started, seconds=30.0)
    assert started.process.wait(timeout=60) == 0
    startup.close()
    assert startup.failure is None
