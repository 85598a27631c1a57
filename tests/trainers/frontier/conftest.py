"""Frontiers as a user starts them."""

import subprocess
import sys

import pytest

from recipes.frontiers.open_frontier import open_frontier
from trainers.frontier.run import read_points
from trainers.launch.vocabulary import search_vocabulary


class Measured:
    """A frontier in a folder of its own."""

    def __init__(self, kilobatch, folder, text):
        self.kilobatch, self.file, self.out = kilobatch, folder / "mine.yaml", folder / "out"
        self.file.write_text(text)

    @property
    def words(self):
        return ["frontier", str(self.file), "--out", str(self.out), "-n", "1"]

    def start(self):
        """The process of `kilobatch frontier`."""
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [sys.executable, "-P", "-m", "kilobatch", *self.words]
        return subprocess.Popen(command, text=True, cwd=self.file.parent, **streams)

    def run(self, *options, name=None):
        """The finished command, in a process that is there; with a name it is shown, and not run."""
        words = ["frontier", name] if name else self.words
        return self.kilobatch(*words, *options, cwd=str(self.file.parent), timeout=600)

    @property
    def opened(self):
        return open_frontier(self.out / "frontier.yaml", vocabulary=search_vocabulary())

    @property
    def points(self):
        return read_points(self.opened, self.out)


@pytest.fixture(scope="module")
def measuring(kilobatch, tmp_path_factory):
    return lambda text: Measured(kilobatch, tmp_path_factory.mktemp("frontier"), text)
