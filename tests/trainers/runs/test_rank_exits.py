"""The rank that exited first is distinguished from those that mpiexec killed within milliseconds of it."""

import fcntl
import os
import subprocess
import sys
import threading

import pytest

from trainers.runs import rank_exits
from trainers.runs.rank_exits import EXIT_SOCKET, RankExits, describe_first_exit, hold_exit_socket

RANK = "import sys, time; from trainers.runs.rank_exits import hold_exit_socket; hold_exit_socket(int(sys.argv[1]))"
RANK += "; print(1, flush=True)"


def started(exits, rank):
    words = [sys.executable, "-c", f"{RANK}; time.sleep(60)", str(rank)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, EXIT_SOCKET: exits.name})
    process.stdout.readline()
    return process


def end(process):
    process.kill()
    process.communicate()


def test_the_order_of_exits_is_recorded():
    exits = RankExits(3)
    ranks = [started(exits, rank) for rank in range(3)]
    for rank in (1, 0, 2):
        end(ranks[rank])
    assert exits.order() == [(rank, ranks[rank].pid) for rank in (1, 0, 2)]


def test_there_is_no_order_where_a_rank_was_not_seen():
    exits = RankExits(3)
    for rank in (2, 0):  # another host's would be the third
        end(started(exits, rank))
    assert exits.order() == exits.order() == []


def test_an_exit_that_is_read_after_mpiexecs_is_recorded(monkeypatch):
    monkeypatch.setattr(rank_exits, "_LAST_SECONDS", 60)  # on a busy machine a process may take a while to end
    exits = RankExits(1)
    rank = started(exits, 0)
    threading.Timer(0.2, end, args=(rank,)).start()
    assert exits.order() == [(0, rank.pid)]


def test_a_rank_of_another_host_holds_no_socket(monkeypatch):
    monkeypatch.setenv(EXIT_SOCKET, "no such name")
    monkeypatch.setattr(rank_exits, "_exit_socket", None)
    hold_exit_socket(0)
    assert rank_exits._exit_socket is None


@pytest.mark.parametrize("allowed", [1024, 256])
def test_the_exit_socket_has_a_higher_descriptor_than_what_a_rank_was_started_with(tmp_path, allowed):
    """Files are closed from the highest number down: the other way round mpiexec has ended another rank first."""
    exits = RankExits(1)
    code = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({allowed}, {allowed})); "
    code += "import trainers.runs.rank_exits as r; r.hold_exit_socket(0); "
    code += "print(r._exit_socket.fileno(), r._exit_socket.getpeername())"
    environment = {**os.environ, EXIT_SOCKET: exits.name}
    with open(tmp_path / "file", "w") as file:
        inherited = fcntl.fcntl(file, fcntl.F_DUPFD, 20)  # with free numbers below
        given = {"capture_output": True, "text": True, "env": environment, "pass_fds": [inherited]}
        text = subprocess.run([sys.executable, "-c", code], **given)
        os.close(inherited)
    number, peer = text.stdout.split(maxsplit=1)
    assert int(number) > inherited
    assert exits.name in peer


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (0, "mpiexec ended with 0"),
        (2, "mpiexec ended with 2"),
        (9, "mpiexec ended with 9, as for SIGKILL (is the memory full?)"),
        (7, "mpiexec ended with 7, as for SIGBUS (is /dev/shm full?)"),
        (11, "mpiexec ended with 11, as for SIGSEGV"),
        (200, "mpiexec ended with 200"),
    ],
)
def test_the_first_one_that_had_not_finished_is_named(code, cause):
    text = describe_first_exit(code, [(0, 10), (2, 12), (1, 11)], {0}, {"key": "train_loss", "update": 3})
    assert text.startswith("rank 2 on ")
    assert "(process 12) left after 4 updates, before the run ended" in text
    assert text.endswith(cause)


@pytest.mark.parametrize(("code", "number"), [(-9, "SIGKILL"), (-40, "signal 40")])
def test_mpiexec_that_was_killed_itself_is_no_ranks_fault(code, number):
    text = describe_first_exit(code, [(0, 10), (1, 11)], set(), {})
    assert text == f"mpiexec itself was killed by {number}, and the ranks ended with it"


def test_where_no_exit_was_seen_the_status_is_reported():
    text = describe_first_exit(1, [], set(), {})
    assert text.startswith("a rank left before the run ended, without an error of its own; mpiexec ended with 1")


def test_an_mpi_without_shared_memory_is_no_ranks_fault():
    errors = "Abort(6) on node 0: Fatal error\nMPIDI_POSIX_comm_bootstrap(288)...: Out of memory\n"
    text = describe_first_exit(15, [(0, 10)], set(), {}, errors)
    assert text.startswith("MPI cannot start: MPIDI_POSIX_comm_bootstrap(288)...: Out of memory; let MPI write to ")
