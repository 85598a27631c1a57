"""`kill -9` at random moments, over every storage: no trial is lost, counted twice or left running; nothing hangs."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from trainers.runs.metrics_file import ending_of
from trainers.runs.storage_url import hidden
from trainers.search.folder import PASSWORD

pytestmark = [pytest.mark.mpi, pytest.mark.slow]
KILLS, MOST_SECONDS, UPDATES, REPORTS = 30, 1800, 176, 5
# A slow machine makes no checkpoint between two kills: the trial that is hit at each start must not use up its retries.
TEXT = f"""\
space: {{learning_rate.reference: {{kind: Float, low: 0.01, high: 0.1, log: true}}}}
fixed: {{epochs: 30, model.blocks: [1], model.width: 4}}
ranks_per_trial: 2
reports: {REPORTS}
retries: {KILLS}
"""


class Killing:
    """Kills processes of a search and goes on with it; `killed` and `of_trial` count that."""

    def __init__(self, search, seed):
        self.search, self.random, self.until = search, random.Random(seed), time.monotonic() + MOST_SECONDS
        self.budget, self.process, self.killed, self.of_trial = 0, None, [], Counter()

    def start(self, more):
        """The same command, with a larger budget."""
        if self.process is not None and not self.process.stdout.closed:
            output = self.process.communicate()[0]  # also where it ended by itself: closes its output
            assert self.process.returncode in (0, -signal.SIGKILL), output
        self.budget += more
        text = self.search.file.read_text().partition("budget:")[0]
        self.search.file.write_text(f"{text}budget: {{trials: {self.budget}}}\n")
        self.process = self.search.start()

    def watch(self, seconds):
        """Let it work so long, or until it ends."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            assert time.monotonic() < self.until, "it hangs"
            time.sleep(0.05)

    def running(self):
        """Processes of the ranks of each trial that runs now."""
        pids_of = {}
        for path in self.search.folder.glob("trials/trial-*/environment.json"):
            number = int(path.parent.name.rpartition("-")[2])
            pids = self.search.pids(number)
            if all(map(self.search.alive, pids)) and not ending_of(path.parent):  # else they train the next one
                pids_of[number] = pids
        return pids_of

    def kill_one(self):
        """Kill something of the search, if a trial runs."""
        if not (running := self.running()):
            return
        what = self.random.choice(["rank", "leader", "mpiexec", "supervisor"])
        number = self.random.choice(sorted(running))
        leader, rank = running[number]
        pid = {"leader": leader, "rank": rank, "supervisor": self.process.pid}.get(what) or ancestor(leader, "mpiexec")
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, TypeError):  # it has ended already
            return
        self.killed.append(what)
        if what == "supervisor":
            self.process.communicate()
            assert self.search.gone(sum(running.values(), [])), "ranks outlive their supervisor"
        else:
            self.of_trial[number] += 1


def ancestor(pid, name):
    """The nearest process above that runs a program of this name; None where there is none."""
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return None
        if Path(words[0].decode()).name.startswith(name) or (len(words) > 1 and words[1].endswith(name.encode())):
            return pid
    return None


@pytest.mark.parametrize("storage", ["sqlite", "journal"])
def test_thirty_kills_at_random_moments(storage, searching):
    killing = Killing(searching(TEXT, "-n", 4, "--storage", storage), seed=storage)
    killing.start(6)
    while len(killing.killed) < KILLS:
        killing.watch(killing.random.uniform(0.2, 6))
        if killing.process.poll() is None:
            killing.kill_one()
        if killing.process.poll() is not None:
            killing.start(2)
    while killing.process.poll() is None:
        killing.watch(1)
    output = killing.process.communicate()[0]
    assert killing.process.returncode == 0, output
    trials = killing.search.require_complete(killing.budget, updates=UPDATES, reports=REPORTS)
    print(f"{storage}: killed {killing.killed}, {len(trials)} trials", file=sys.stderr)
    for trial in trials:
        own = trial.user_attrs.get("deaths", [])
        assert len(own) <= killing.of_trial[trial.number], "a group noticed the death of another one"


def test_ends_of_an_allocation_change_no_proposal_and_no_result(searching, tmp_path):
    """Three times SIGTERM and a while later SIGKILL, as a batch system ends a job, and three times SIGKILL at once."""
    text = TEXT.replace("ranks_per_trial: 2", "budget: {trials: 7}")
    whole, ended = searching(text, "-n", 1), searching(text, "-n", 1)
    sampler = "{kind: TPESampler, n_startup_trials: 3}"
    ended.file.write_text(ended.file.read_text().replace("{kind: RandomSampler}", sampler))
    whole.folder = tmp_path / "whole"
    whole.complete()
    random_ = random.Random(0)
    for number in range(6):
        began = time.time()
        with ended.start() as process:
            while not any(path.stat().st_mtime > began for path in ended.folder.glob("trials/*/metrics.jsonl")):
                time.sleep(0.05)
            time.sleep(random_.uniform(0, 1.5))
            if number % 2:
                process.send_signal(signal.SIGTERM)
                time.sleep(random_.uniform(0, 2))
            process.kill()
            process.communicate()
    ended.complete()
    for one, other in zip(whole.trials(), ended.trials(), strict=True):
        assert (one.number, one.params, one.value) == (other.number, other.params, other.value)
        assert one.intermediate_values == other.intermediate_values
        assert "deaths" not in other.user_attrs
    resumed = (ended.folder / "log.txt").read_text().count(" goes on: ")
    print(f"{resumed} trials that ran were resumed", file=sys.stderr)
    assert resumed >= 4  # the others ended meanwhile


@pytest.fixture
def postgresql(monkeypatch):
    """The URL, without its password, of a PostgreSQL of the test's own."""
    above = Path(tempfile.mkdtemp(prefix="kilobatch-"))
    above.chmod(0o755)  # PostgreSQL runs as another user where this one is root
    words = [Path(__file__).parents[2] / "services" / "postgresql", above / "server"]
    started = subprocess.run(words, capture_output=True, text=True)
    if started.returncode == 77:  # it is missing; a server that does not start is a failure
        pytest.skip(f"no PostgreSQL: {started.stderr.strip()}")
    assert started.returncode == 0, started.stderr
    packages, url = above / "server" / "packages", started.stdout.strip()  # its driver, where that is not installed
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setenv(PASSWORD, urlsplit(url).password)
    yield hidden(url)
    subprocess.run([*words, "--stop"], check=True)
    shutil.rmtree(above, ignore_errors=True)


def test_a_search_over_postgresql_goes_on_after_a_kill(searching, postgresql):
    text = TEXT.replace("ranks_per_trial: 2", "budget: {trials: 3}")
    search = searching(text, "-n", 2, "--storage", postgresql)
    with search.start() as process:
        search.wait_for_checkpoint(0, 1)
        process.kill()
        process.communicate()
    with search.start() as process:  # a process of its own finds the driver
        output = process.communicate(timeout=600)[0]
    assert process.returncode == 0, output
    search.require_complete(3, updates=UPDATES, reports=REPORTS)
