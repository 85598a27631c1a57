"""Searches as a user starts them."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest

HEAD = """\
kilobatch: 1
name: mine
recipe: digits/batch_256
sampler: {kind: Random}
"""


class Searching:
    """A search in a folder of its own; `options` go to every start of it."""

    def __init__(self, folder, text, *options):
        self.file, self.folder, self.options = folder / "mine.yaml", folder / "out", options
        self.file.write_text(HEAD + text)

    def start(self, *before, **variables):
        """The process of `kilobatch search`, after the words of a launcher, with these environment variables."""
        command = [sys.executable, "-P", "-m", "kilobatch", "search", str(self.file), "--out", str(self.folder)]
        return subprocess.Popen(
            [*map(str, before), *command, *map(str, self.options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.file.parent,  # where code of one's own is found
            env={**os.environ, **variables},
        )

    def run(self, *before, **variables):
        """Its exit code and what it said."""
        with self.start(*before, **variables) as process:
            said = process.communicate(timeout=1200)[0]
        return process.returncode, said

    def trials(self):
        """All trials of its study."""
        storage = f"sqlite:///{self.folder / 'study.db'}"
        return optuna.load_study(study_name="mine", storage=storage).get_trials()

    def run_folder(self, number):
        return self.folder / "trials" / f"trial-{number:04d}"

    def pids(self, number):
        """Processes of a trial's ranks, in order, once they are known."""
        text = self.wait_for(self.run_folder(number) / "environment.json").read_text()
        return [rank["pid"] for rank in json.loads(text)["ranks"]]

    def updates_of_ranks(self, number):
        """The update after which each rank of a trial left it."""
        signs = sorted((self.run_folder(number) / "ranks").glob("*.json"))
        return [json.loads(sign.read_text())["update"] for sign in signs]

    def metrics(self, number):
        return [json.loads(text) for text in (self.run_folder(number) / "metrics.jsonl").read_text().splitlines()]

    @staticmethod
    def gone(pids, seconds=30):
        """Whether no process of these numbers is left, after at most so many seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not any(os.path.exists(f"/proc/{pid}") for pid in pids):
                return True
            time.sleep(0.05)
        return False

    @staticmethod
    def wait_for(path, seconds=600):
        """The path, or the first that a pattern in its name finds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = sorted(Path(path).parent.glob(Path(path).name))
            if found:
                return found[0]
            time.sleep(0.02)
        raise AssertionError(f"there is no {path} after {seconds} s")


@pytest.fixture
def searching(tmp_path):
    """`searching(text, *options)`: a `Searching`, whose study can be read while warnings are errors."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return lambda text, *options: Searching(tmp_path, text, *options)
