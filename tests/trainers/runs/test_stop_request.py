"""Who requested a run to stop is printed and recorded."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from trainers.launch.start_ranks import _StopSignals
from trainers.runs.run_folder import require_usable
from trainers.runs.stop_request import (
    STOP_FILE,
    StopRequest,
    handling_signals,
    noting_early_signals,
    remove_old_request,
    request_stop,
    requester_text,
)


def do_nothing(number, frame):
    pass


@pytest.mark.parametrize(
    "handling", [lambda folder: handling_signals(do_nothing), lambda folder: _StopSignals(folder, print)]
)
def test_signals_are_handled_within_and_by_nobody_outside_the_main_thread(tmp_path, handling):
    def handlers():
        before = signal.getsignal(signal.SIGTERM)
        with handling(tmp_path):
            found.append(signal.getsignal(signal.SIGTERM) is before)
        found.append(signal.getsignal(signal.SIGTERM) is before)

    found = []
    handlers()
    thread = threading.Thread(target=handlers)
    thread.start()
    thread.join()
    assert found == [False, True, True, True]


def test_who_started_the_ranks_hears_of_the_signal(tmp_path):
    heard = []
    with _StopSignals(tmp_path, heard.append):
        signal.raise_signal(signal.SIGINT)
    assert heard == [signal.SIGINT]
    assert (tmp_path / STOP_FILE).read_text() == "signal"


def test_a_run_knows_whether_a_user_a_search_or_a_signal_made_its_stop_file(tmp_path):
    request = StopRequest(tmp_path, watches_file=True)
    try:
        file = tmp_path / STOP_FILE
        assert not request()
        for who in ("signal", "search"):
            request_stop(file, who)
            assert request()
            assert request.by == who
        for text in ("", "please\n", "\u00e9"):
            file.write_text(text)
            assert request.by == "stop file"
    finally:
        request.close()
    assert (requester_text("signal", file), requester_text("stop file", file)) == ("a signal", f"the file {file}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_the_signals_of_a_terminal_and_of_slurm_ask_a_parent_and_a_rank_to_stop(tmp_path, number, capfd):
    with _StopSignals(tmp_path, print):
        os.kill(os.getpid(), number)
        assert (tmp_path / STOP_FILE).read_text() == "signal"
    request = StopRequest(tmp_path, watches_file=False)
    try:
        os.kill(os.getpid(), number)
        assert request()
    finally:
        request.close()


def test_a_signal_to_a_rank_that_starts_up_stops_the_run_that_it_begins(tmp_path):
    for signalled in (True, False):  # the second run of a process knows nothing of the first
        with noting_early_signals():
            if signalled:
                os.kill(os.getpid(), signal.SIGTERM)
            request = StopRequest(tmp_path, watches_file=False)
            assert request() == signalled
            request.close()


def _descendants(process):
    children = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            children += map(int, task.read_text().split())
    return [*children, *(pid for child in children for pid in _descendants(child))]


@pytest.mark.mpi
def test_a_signal_to_all_processes_of_a_start_stops_it_and_the_same_command_begins_anew(tmp_path):
    command = [sys.executable, "-P", "-m", "kilobatch", "train", "digits/ramp", "-n", "1", "--out", tmp_path / "run"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 60
        while len(pids := _descendants(process.pid)) < 3:  # mpiexec, its proxy and the rank
            assert time.monotonic() < end
            time.sleep(0.01)
        for pid in (process.pid, *pids):
            os.kill(pid, signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 4, said
    if (tmp_path / "run" / "metrics.jsonl").exists():  # the rank was further than usual, and has a checkpoint
        assert "stopped by a signal; newest checkpoint" in said
    else:
        assert said.endswith("stopped by a signal before an update was done; the same command starts it again\n")
        require_usable(tmp_path / "run", resume=False)


@pytest.mark.parametrize(("who", "is_said"), [("", True), ("signal", False)])
def test_a_users_stop_file_from_before_the_start_is_not_removed_without_a_word(tmp_path, capsys, who, is_said):
    file = tmp_path / "stop"
    file.write_text(who)
    remove_old_request(file)
    assert not file.exists()
    assert (f"{file} was there before this start" in capsys.readouterr().err) == is_said
