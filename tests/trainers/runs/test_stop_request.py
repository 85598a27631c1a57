"""Who requested a run to stop is printed and recorded."""

import json
import subprocess
import sys
import time

import pytest

from trainers.runs.stop_request import STOP_FILE, StopRequest, request_stop, requester_text


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


@pytest.mark.mpi
def test_a_run_that_its_stop_file_ended_reports_it(tmp_path):
    folder = tmp_path / "run"
    words = f"train digits/ramp -n 2 --no-report --out {folder} --set model.width=4 --set epochs=40"
    command = [sys.executable, "-P", "-m", "kilobatch", *words.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 60
        while not (folder / "metrics.jsonl").exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < until
            time.sleep(0.02)
        (folder / STOP_FILE).touch()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 4, errors
    assert f"kilobatch: stopped by the file {folder}/stop; newest checkpoint: " in errors
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["value"], last["reason"]) == ("stopped", "stop file")
