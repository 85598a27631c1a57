"""Searches as a user starts them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from recipes.reading.open import open_recipe
from recipes.schema import Budget, Search
from recipes.search_space.open_search import OpenedSearch, open_search
from recipes.search_space.ranges import Float
from trainers.launch.vocabulary import search_vocabulary, vocabulary
from trainers.runs.progress import Screen
from trainers.runs.run_folder import METRICS
from trainers.search.folder import opened_storage
from trainers.search.outcome import SearchRequest
from trainers.search.samplers import RandomSampler
from trainers.search.status import Display
from trainers.search.study import new_study
from trainers.search.supervisor import Supervisor

HEAD = """\
kilobatch: 1
name: mine
recipe: digits/batch_256
sampler: {kind: RandomSampler}
"""


class Searching:
    """A search in a folder of its own; `options` go to every start of it."""

    def __init__(self, kilobatch, folder, text, *options):
        self.file, self.folder, self.options = folder / "mine.yaml", folder / "out", options
        self.file.write_text(HEAD + text)
        self.storage = options[options.index("--storage") + 1] if "--storage" in options else "sqlite"
        self.kilobatch, self.process = kilobatch, None

    @property
    def words(self):
        return ["search", str(self.file), "--out", str(self.folder), *map(str, self.options)]

    def start(self, *before, **variables):
        """The process of `kilobatch search`, after the words of a launcher, with these environment variables."""
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        command = [*map(str, before), sys.executable, "-P", "-m", "kilobatch", *self.words]
        own = {"cwd": self.file.parent, "env": {**os.environ, **variables}}  # where code of one's own is found
        self.process = subprocess.Popen(command, **streams, **own)
        return self.process

    def run(self, *before, **variables):
        """Exit code and output of the whole search; without a launcher in a process that is there."""
        if not before:
            how = {"environment": variables, "cwd": str(self.file.parent), "timeout": 1200}
            done = self.kilobatch(*self.words, **how)
            return done.returncode, done.stdout + done.stderr
        with self.start(*before, **variables) as process:
            output = process.communicate(timeout=1200)[0]
        return process.returncode, output

    def complete(self, *before, **variables):
        code, output = self.run(*before, **variables)
        assert code == 0, output
        return output

    def trials(self):
        """All trials of its study, read anew."""
        with opened_storage(self.storage, self.folder) as storage:
            return optuna.load_study(study_name="mine", storage=storage).get_trials()

    def kill_launched_rank(self, *launcher):
        """Kill a rank of two trials on a foreign launcher's ranks: all ranks end; returns what was printed."""
        with self.start(*launcher) as process:
            pids = self.wait_for_checkpoint(0, 1)
            os.kill(pids[-1], signal.SIGKILL)
            output = process.communicate(timeout=60)[0]
        assert process.returncode != 0
        assert self.gone(pids)
        assert TrialState.FAIL not in [trial.state for trial in self.trials()]
        return output

    def resume_launched(self, *launcher):
        """The same command completes all trials; returns what was printed."""
        output = self.complete(*launcher)
        for trial in self.trials():
            assert (trial.state, trial.user_attrs.get("deaths")) == (TrialState.COMPLETE, None)
        return output

    def require_complete(self, num_trials, *, updates, reports):
        """Its trials: all are complete, with every update and every report once."""
        trials = self.trials()
        assert [trial.number for trial in trials] == list(range(num_trials))
        assert {trial.state for trial in trials} == {TrialState.COMPLETE}
        for trial in trials:
            assert self.updates(trial.number) == list(range(updates))
            assert sorted(trial.intermediate_values) == list(range(1, reports + 1))
        return trials

    def run_folder(self, number):
        return self.folder / "trials" / f"trial-{number:04d}"

    def pids(self, number):
        """Processes of a trial's ranks, in order, once they are known."""
        text = self.wait_for(self.run_folder(number) / "environment.json").read_text()
        return [rank["pid"] for rank in json.loads(text)["ranks"]]

    def wait_for_checkpoint(self, *numbers):
        """Wait until these trials have a checkpoint; returns the processes of all their ranks."""
        for number in numbers:
            self.wait_for(self.run_folder(number) / "checkpoints" / "update-*")
        return [pid for number in numbers for pid in self.pids(number)]

    def metrics(self, number):
        return [json.loads(text) for text in (self.run_folder(number) / "metrics.jsonl").read_text().splitlines()]

    def updates(self, number):
        """Numbers of the updates that a trial's metrics have, in their order."""
        return [line["update"] for line in self.metrics(number) if line["key"] == "train_loss"]

    @staticmethod
    def alive(pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    def gone(self, pids):
        """Whether none of these processes works any more, after at most half a minute."""
        end = time.monotonic() + 30
        while any(map(self.alive, pids)) and time.monotonic() < end:
            time.sleep(0.05)
        return not any(map(self.alive, pids))

    def wait_for(self, path):
        """The path, or the first that a pattern in its name finds; while the search runs."""
        end, over = time.monotonic() + 600, False
        while not over:
            over = self.process is None or self.process.poll() is not None or time.monotonic() > end
            if paths := sorted(Path(path).parent.glob(Path(path).name)):
                return paths[0]
            time.sleep(0.02)
        raise AssertionError(f"there is no {path}")


@pytest.fixture
def searching(kilobatch, tmp_path):
    """`searching(text, *options)`: a `Searching`, whose study can be read while warnings are errors."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return lambda text, *options: Searching(kilobatch, tmp_path, text, *options)


@pytest.fixture(scope="session")
def made():
    """`made(**keys)`: a search of the rate by random draws, with these keys."""
    space = {"learning_rate.reference": Float(low=0.01, high=1.0)}
    own = {"name": "mine", "recipe": "digits/baseline", "space": space, "sampler": RandomSampler()}
    return lambda **keys: Search(**{**own, "budget": Budget(trials=4), **keys})


@pytest.fixture(scope="session")
def opened_as():
    """`opened_as(search)`: a search of `made` as it would be opened."""
    base = open_recipe("digits/baseline", vocabulary=vocabulary())
    own = {"base": base, "tree": {}, "enqueued": (), "valid_point": {}, "path": Path("mine.yaml"), "options": {}}
    return lambda search: OpenedSearch(search=search, **own)


@pytest.fixture
def supervised(tmp_path):
    """`supervised(opened)`: its supervisor, without ranks; by default with an empty study in `tmp_path`.

    Further keys are of the command line.
    """

    def supervised(opened, study=None, folder=tmp_path, **options):
        display = Display(opened, study or new_study(opened.search), folder, Screen(), groups=1)
        return Supervisor(opened, SearchRequest(search="mine.yaml", **options), display, [], code={})

    return supervised


@pytest.fixture(scope="session")
def write_metrics():
    """`write_metrics(folder, *lines)`: the metrics of a run, in a folder that is made if there is none."""

    def write(folder, *lines):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / METRICS).write_text("".join(json.dumps({"time_ms": 0, **line}) + "\n" for line in lines))

    return write


@pytest.fixture
def open_text(tmp_path, monkeypatch):
    """`open_text(text)`: the search of the head and this text, from mine.yaml in a working directory of its own."""
    monkeypatch.chdir(tmp_path)

    def open_text(text, head=HEAD):
        Path("mine.yaml").write_text(head + text)
        return open_search("mine.yaml", vocabulary=search_vocabulary())

    return open_text
