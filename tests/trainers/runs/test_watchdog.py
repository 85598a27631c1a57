"""Which rank is at fault is found from the heartbeats of all ranks, and from their absence while ranks start up."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from trainers.runs import errors, watchdog
from trainers.runs.heartbeat import Heartbeat, HeartbeatRecord, heartbeat_file, read_heartbeat
from trainers.runs.mpi_ranks import process_mark, start_ranks
from trainers.runs.run_folder import METRICS, RANKS
from trainers.runs.watchdog import ParentWatch, Watchdog, watch_next_rank, watchers

SECONDS = 0.4
WAITING = HeartbeatRecord(
    rank=0,
    host="one",
    process=1,
    beat=1,
    update=7,
    still_seconds=1.0,
    allowed_seconds=SECONDS,
    waits=True,
    stack=("a.py:1 in wait: mpi.Barrier()",),
    finished=False,
)
WORKING = replace(WAITING, waits=False, still_seconds=0.1, stack=())
HANGING = replace(WAITING, waits=False, stack=("b.py:2 in net: time.sleep(1000)",))


def message(folder, own, others, *, silent=(), never=(), seconds=5 * SECONDS):
    """The message of the watchdog of `own`, while all but the silent write heartbeats; those in `never` write none."""
    (folder / RANKS).mkdir(exist_ok=True)
    dog = Watchdog(folder, rank=own.rank, num_ranks=1 + len(others), seconds=SECONDS)
    for beat in range(int(20 * seconds / SECONDS)):
        for record in (own, *others):
            if record.rank not in never and (record.rank not in silent or beat == 0):
                heartbeat_file(folder, record.rank).write_text(json.dumps(asdict(replace(record, beat=beat))))
        text = dog.check(replace(own, beat=beat))
        if text is not None:
            return text
        time.sleep(SECONDS / 20)
    return None


def test_a_heartbeat_is_read_as_it_was_written_and_half_of_it_is_none(tmp_path):
    (tmp_path / RANKS).mkdir()
    text = json.dumps(asdict(WAITING))
    heartbeat_file(tmp_path, 3).write_text(text)
    assert read_heartbeat(tmp_path, 3) == WAITING
    heartbeat_file(tmp_path, 3).write_text(text[:40])
    assert read_heartbeat(tmp_path, 3) is None
    assert read_heartbeat(tmp_path, 4) is None


@pytest.mark.parametrize(
    ("ranks", "expected"), [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (4, [0, 1, 2, 3]), (1024, [0, 341, 682, 1023])]
)
def test_at_most_four_ranks_watch(ranks, expected):
    assert watchers(ranks) == expected


def test_a_rank_that_hangs_is_named_with_its_stack_and_names_itself_where_it_is_alone(tmp_path):
    assert message(tmp_path, HANGING, []).startswith("rank 0 on one hangs in update 7")
    text = message(tmp_path, WAITING, [replace(HANGING, rank=1, host="two"), replace(WAITING, rank=2)])
    assert text.splitlines() == [
        "rank 1 on two hangs in update 7, for 1.0 s:",
        "  b.py:2 in net: time.sleep(1000)",
        "No progress in update 7 for 1.0 s; --watchdog allows 0.4.",
    ]


def test_where_all_wait_all_are_named(tmp_path):
    text = message(tmp_path, WAITING, [replace(WAITING, rank=1, host="two", stack=("c.py:3 in send: mpi.Send()",))])
    assert "rank 0 on one waits for others that do not come in update 7, for 1.0 s:\n  a.py:1 in wait" in text
    assert "rank 1 on two waits for others that do not come in update 7, for 1.0 s:\n  c.py:3 in send" in text


def test_a_silent_rank_is_named_before_those_that_hang(tmp_path):
    others = [replace(WORKING, rank=1, host="two", update=6), replace(HANGING, rank=2)]
    text = message(tmp_path, WAITING, others, silent=[1])
    assert text.startswith("rank 1 on two has written no heartbeat for 0.")
    assert "the last in update 6: it is stopped or dead, or its host cannot be reached\nNo progress in update 7" in text
    assert "rank 2" not in text


def test_a_rank_that_never_wrote_a_heartbeat_is_named(tmp_path):
    text = message(tmp_path, WAITING, [replace(WAITING, rank=1)], never=[1], seconds=10 * SECONDS)
    assert text.startswith("rank 1 has written no heartbeat;")


@pytest.mark.parametrize("other", [WORKING, replace(WAITING, allowed_seconds=2.0)], ids=["works", "may take longer"])
def test_no_rank_is_named_while_one_rank_is_not_overdue(tmp_path, other):
    assert message(tmp_path, WAITING, [replace(other, rank=1)]) is None


def test_no_rank_is_named_by_a_rank_that_makes_progress(tmp_path):
    assert message(tmp_path, WORKING, [replace(HANGING, rank=1)], silent=[1]) is None


def test_a_rank_that_may_take_longer_may_also_be_silent_for_longer(tmp_path):
    other = replace(WORKING, rank=1, allowed_seconds=5 * SECONDS)
    text = message(tmp_path, WAITING, [other], silent=[1], seconds=15 * SECONDS)
    assert float(re.match(r"rank 1 on one has written no heartbeat for (\S+) s", text)[1]) >= 3 / 4 * 5 * SECONDS


def test_a_rank_that_has_finished_need_not_write_heartbeats(tmp_path):
    others = [replace(WORKING, rank=1, finished=True), replace(WORKING, rank=2)]
    assert message(tmp_path, WAITING, others, silent=[1]) is None


def test_a_rank_that_has_finished_hides_no_other_that_hangs(tmp_path):
    others = [replace(HANGING, rank=1, host="two"), replace(WORKING, rank=2, finished=True)]
    assert message(tmp_path, WAITING, others).startswith("rank 1 on two hangs in update 7")


def test_the_next_watcher_reports_only_where_the_first_does_not(tmp_path):
    own, first = replace(WAITING, rank=1), replace(WAITING, rank=0)
    hanging = replace(HANGING, rank=2)
    began = time.monotonic()
    assert message(tmp_path, own, [first, hanging]).startswith("rank 2 on one hangs")
    assert time.monotonic() - began >= 2.9 * SECONDS / 20  # it let three heartbeats pass


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
    while len(processes := ranks.processes()) < ranks.num_ranks:
        time.sleep(0.01)
    return processes


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_rank_that_is_stopped_before_it_joins_is_named_and_ends_all(tmp_path, started):
    process = processes_of(started)[1]
    os.kill(process, signal.SIGSTOP)

    startup = ParentWatch(tmp_path, started, seconds=4.0, stopped_seconds=0)
    started.process.wait(timeout=30)
    startup.close()

    assert startup.failure is not None
    assert "rank 1 on " in startup.failure
    assert f"(process {process}) did not begin within 4 s: its process is stopped (SIGSTOP)" in startup.failure
    assert "rank 0" not in startup.failure, "it only waits"


@pytest.mark.mpi
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_rank_that_exits_before_it_joins_is_named_and_ends_all(tmp_path, monkeypatch):
    """As where OpenBLAS has no memory; mpiexec waits for it. The limit is that of `--watchdog 0`: none."""
    ends = "import os, time\nif os.environ.get('PMI_RANK') == '1':\n    time.sleep(1)\n    os.write(2, b'no memory')\n"
    (tmp_path / "sitecustomize.py").write_text(ends + "    os._exit(1)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ranks = start_ranks(2, ["train", "digits/ramp", "--out", str(tmp_path / "run")], log=tmp_path / "log.txt")
    startup = ParentWatch(tmp_path / "run", ranks, seconds=0, stopped_seconds=0)
    ranks.process.wait(timeout=30)
    startup.close()
    assert ranks.errors().startswith("no memory")
    ranks.process.stderr.close()
    assert "rank 1 on " in startup.failure
    assert "ended before all ranks had joined in MPI" in startup.failure


@pytest.mark.mpi
def test_ranks_that_end_before_they_begin_keep_nobody_waiting(tmp_path, started):
    startup = ParentWatch(tmp_path, started, seconds=20.0, stopped_seconds=0)
    started.kill()
    started.process.wait(timeout=30)
    began = time.perf_counter()
    startup.close()
    assert time.perf_counter() - began < 10
    assert startup.failure is None


@pytest.mark.mpi
def test_ranks_that_write_metrics_train_though_their_heartbeats_are_not_seen(tmp_path, started, monkeypatch):
    monkeypatch.setattr("trainers.runs.watchdog._CHECK_SECONDS", 0.05)
    startup = ParentWatch(tmp_path / "elsewhere", started, seconds=0.2, stopped_seconds=0)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / METRICS).write_text("{}")
    time.sleep(0.5)
    startup.close()
    assert startup.failure is None
    assert started.process.wait(timeout=60) == 0, "they were left alone, and train to their end"


@pytest.mark.parametrize("ends", [True, False])
def test_a_rank_without_a_parent_ends_all_ranks_once_the_next_one_of_its_host_has_ended(
    ends, tmp_path, monkeypatch, capsys
):
    aborted = threading.Event()
    monkeypatch.setattr(watchdog, "abort_all_ranks", aborted.set)
    monkeypatch.setattr(watchdog, "_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(watchdog, "_LAUNCHER_SECONDS", 0.05)
    monkeypatch.setattr(errors, "_failure_log", tmp_path / "log.txt")
    with subprocess.Popen(["sleep", "60"]) as next_rank:
        mark = process_mark(next_rank.pid)
        elsewhere = [f"{mark}x", mark.replace(" ", " 1")]  # another host; another process of this number
        world = SimpleNamespace(rank=1, allgather=lambda own: [mark, own, *elsewhere])
        over = watch_next_rank(world, "start again")
        if not ends:
            over.set()
        next_rank.kill()
    assert aborted.wait(5 if ends else 0.1) == ends
    said = f"kilobatch: rank 0 on {socket.gethostname()} (process {next_rank.pid}) has ended; start again\n"
    assert capsys.readouterr().err == (said if ends else "")
    assert not ends or (tmp_path / "log.txt").read_text() == said
    over.set()


def test_a_last_heartbeat_is_written_however_fast_its_thread_ends(tmp_path):
    class Ended(threading.Event):
        def set(self):
            super().set()
            heartbeat._thread.join()

    heartbeat_file(tmp_path, 0).parent.mkdir(parents=True)
    heartbeat = Heartbeat(tmp_path, mpi=SimpleNamespace(rank=0), seconds=0)
    heartbeat._ended = Ended()
    heartbeat.start()
    heartbeat.finish()
    assert read_heartbeat(tmp_path, 0).finished
