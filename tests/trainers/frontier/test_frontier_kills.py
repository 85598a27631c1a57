"""`kill -9` at random moments: no trial is lost, doubled or marked failed, and the table is the same."""

import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from trainers.runs.errors import EXIT_FAILED
from trainers.search.outcome import metrics_lines
from trainers.search.study import state_of

pytestmark = [pytest.mark.mpi, pytest.mark.slow]
KILLS = 20
TEXT = """\
kilobatch: 1
recipe: digits/baseline
goal: {accuracy: 0.93}
batches: [64, 128, 256]
fixed:
  learning_rate.rule: none
  learning_rate.schedule: {kind: Constant}
  model.width: 4
space: {learning_rate.reference: {kind: Float, low: 0.05, high: 1, log: true}}
budget: {trials: 6, epochs: 30}
seeds: 2
retries: 20
"""


def children(pid):
    """The processes below one, the nearest first."""
    tasks = Path(f"/proc/{pid}/task").glob("*")
    found = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    return found + [below for child in found for below in children(child)]


def kill_one(process, draws):
    """Kill the command, its mpiexec or the rank; what it was, None where there is nothing to kill."""
    what = draws.choice(["rank", "mpiexec", "supervisor"])
    with suppress(OSError, IndexError):
        below = children(process.pid)
        pid = process.pid if what == "supervisor" else below[0 if what == "mpiexec" else -1]
        os.kill(pid, signal.SIGKILL)
        return what
    return None


def outcome(measured):
    """All that the table rests on."""
    found = []
    for point in measured.points:
        for part in point.parts:
            trials = [(it.number, it.params, it.values, state_of(it)) for it in part.trials]
            found.append((point.batch, part.file.name, trials, part.seeds))
    return found


def test_twenty_kills_leave_the_same_table(measuring):
    whole, killed, draws = measuring(TEXT), measuring(TEXT), random.Random(0)
    expected = whole.run()
    assert expected.returncode == 0, expected.stderr
    hits, process = [], killed.start()
    while len(hits) < KILLS:
        end = time.monotonic() + draws.uniform(0.5, 5)
        while time.monotonic() < end and process.poll() is None:
            time.sleep(0.05)
        if process.poll() is None and list(killed.out.glob("points/*/*/trials/*/metrics.jsonl")):
            hits += filter(None, [kill_one(process, draws)])
            time.sleep(0.2)
        if process.poll() is not None:
            _, errors = process.communicate()
            assert process.returncode in (0, -signal.SIGKILL, EXIT_FAILED), errors
            # Two kills before the ranks make progress, one after the other, set the only group aside.
            assert process.returncode != EXIT_FAILED or "mend that, and the same command goes on" in errors, errors
            if process.returncode == 0:
                break
            process = killed.start()
    process.communicate()
    last = killed.run()
    print(f"killed: {hits}", file=sys.stderr)
    assert len(hits) == KILLS, hits
    assert last.returncode == 0, last.stderr
    assert outcome(killed) == outcome(whole)
    assert "failed" not in {state for _, _, trials, _ in outcome(killed) for *_, state in trials}
    for run in killed.out.glob("points/*/*/trials/*"):
        updates = [line["update"] for line in metrics_lines(run) if line["key"] == "train_loss"]
        assert updates == sorted(set(updates)), run
    table = expected.stdout[expected.stdout.index("frontier mine over") :]
    assert table in last.stdout
