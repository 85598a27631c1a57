"""Who requested a run to stop is printed and recorded."""

import os
import signal
import threading

import pytest

from trainers.launch.start_ranks import _StopSignals
from trainers.runs.stop_request import STOP_FILE, StopRequest, handling_signals, request_stop, requester_text


def do_nothing(number, frame):
    pass


@pytest.mark.parametrize("handling", [lambda folder: handling_signals(do_nothing), _StopSignals])
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
    with _StopSignals(tmp_path):
        os.kill(os.getpid(), number)
        assert (tmp_path / STOP_FILE).read_text() == "signal"
    request = StopRequest(tmp_path, watches_file=False)
    try:
        os.kill(os.getpid(), number)
        assert request()
    finally:
        request.close()
