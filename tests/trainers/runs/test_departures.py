"""The rank that left first is told from those that mpiexec ended, which leave within milliseconds of it."""

import fcntl
import os
import subprocess
import sys

import pytest

import trainers.runs.rank_exits as departures_module
from trainers.runs.heartbeat import first_to_leave
from trainers.runs.rank_exits import LINE, Departures, hold_line
from trainers.runs.watchdog import Sign

RANK = "import sys, time; from trainers.runs.rank_exits import hold_line; hold_line(int(sys.argv[1]))"
RANK += "; print(1, flush=True)"


def started(departures, rank):
    words = [sys.executable, "-c", f"{RANK}; time.sleep(60)", str(rank)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, LINE: departures.name})
    process.stdout.readline()
    return process


def end(process):
    process.kill()
    process.communicate()


def test_ranks_are_told_in_the_order_in_which_they_left():
    departures = Departures(3)
    ranks = [started(departures, rank) for rank in range(3)]
    for rank in (1, 0, 2):
        end(ranks[rank])
    assert departures.order() == [(rank, ranks[rank].pid) for rank in (1, 0, 2)]


def test_nothing_is_told_where_a_rank_was_not_seen():
    departures = Departures(3)
    for rank in (2, 0):  # another host's would be the third
        end(started(departures, rank))
    assert departures.order() == departures.order() == []


def test_a_rank_of_another_host_has_nobody_to_call(monkeypatch):
    monkeypatch.setenv(LINE, "no such name")
    monkeypatch.setattr(departures_module, "_line", None)
    hold_line(0)
    assert departures_module._line is None


def test_the_connection_has_a_higher_number_than_what_a_rank_was_started_with(tmp_path):
    """Files are closed from the highest number down: the other way round mpiexec has ended another rank first."""
    departures = Departures(1)
    code = "import trainers.runs.rank_exits as d; d.hold_line(0); print(d._line.fileno(), d._line.getpeername())"
    environment = {**os.environ, LINE: departures.name}
    with open(tmp_path / "file", "w") as file:
        inherited = fcntl.fcntl(file, fcntl.F_DUPFD, 20)  # with free numbers below
        given = {"capture_output": True, "text": True, "env": environment, "pass_fds": [inherited]}
        said = subprocess.run([sys.executable, "-c", code], **given)
        os.close(inherited)
    number, peer = said.stdout.split(maxsplit=1)
    assert int(number) > inherited
    assert departures.name in peer


def sign(rank, *, finished):
    return Sign(
        rank=rank,
        host="one",
        process=os.getpid(),
        beat=1,
        update=3,
        still_seconds=0.0,
        allowed_seconds=120.0,
        waits=False,
        stack=(),
        finished=finished,
    )


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (0, "mpiexec ended with 0"),
        (9, "mpiexec ended with 9, as for SIGKILL (is the memory full?)"),
        (7, "mpiexec ended with 7, as for SIGBUS (is /dev/shm full?)"),
        (11, "mpiexec ended with 11, as for SIGSEGV"),
        (200, "mpiexec ended with 200"),
    ],
)
def test_the_first_one_that_had_not_finished_is_named(code, cause):
    signs = [sign(0, finished=True), sign(1, finished=False), None]
    said = first_to_leave(code, [(0, 10), (2, 12), (1, 11)], signs, {"key": "train_loss", "update": 3})
    assert said.startswith("rank 2 on ")
    assert "(process 12) left after 4 updates, before the run ended" in said
    assert said.endswith(cause)


def test_where_no_end_was_seen_the_status_is_told():
    said = first_to_leave(1, [], [None], {})
    assert said.startswith("a rank left before the run ended, without an error of its own; mpiexec ended with 1")
