"""A run whose output nobody reads any more."""

import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.mpi
def test_a_run_whose_readers_have_left_goes_on_and_a_signal_still_ends_in_a_checkpoint(tmp_path):
    folder = tmp_path / "run"
    words = f"train digits/ramp -n 2 --out {folder} --set model.width=4 --set evaluation.every=0.2ep"
    command = [sys.executable, "-P", "-m", "kilobatch", *words.split()]  # a line every four updates
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout.readline().startswith("epoch ")
        process.stdout.close()  # as `| head -1` does, and a `| tee` that Ctrl-C ended first
        then, until = len(lines(folder)), time.monotonic() + 60
        while len(lines(folder)) < then + 12:
            assert process.poll() is None, (folder / "log.txt").read_text()
            assert time.monotonic() < until
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 4
    last = lines(folder)[-1]
    assert (last["value"], last["reason"]) == ("stopped", "signal")
    assert (folder / "checkpoints" / f"update-{last['update']:06d}").is_dir()
    assert (folder / "report.html").exists()


@pytest.mark.mpi
def test_a_run_whose_terminal_is_closed_or_whose_log_has_no_room_goes_on_to_its_end(tmp_path):
    words = "train digits/ramp -n 1 --stop-after 12up --set model.width=4 --set evaluation.every=0.2ep"
    command = [sys.executable, "-P", "-m", "kilobatch", *words.split(), "--out"]
    ours, theirs = pty.openpty()
    with open("/dev/full", "w") as full:
        disowned = subprocess.Popen([*command, tmp_path / "disowned"], stdout=theirs, stderr=theirs)
        unwritten = subprocess.Popen([*command, tmp_path / "unwritten"], stdout=full, stderr=full)
    os.close(theirs)
    os.close(ours)  # it is no controlling terminal, so that nobody is sent a SIGHUP
    for name, process in (("disowned", disowned), ("unwritten", unwritten)):
        assert process.wait(timeout=120) == 0
        assert lines(tmp_path / name)[-1]["update"] == 12
        assert (tmp_path / name / "report.html").exists()
