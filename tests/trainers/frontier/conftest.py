"""Frontiers as a user starts them."""

import subprocess
import sys

import pytest

from recipes.frontiers.open_frontier import open_frontier
from trainers.frontier.run import read_points
from trainers.launch.vocabulary import search_vocabulary


class Measured:
    """A frontier in a folder of its own."""

    def __init__(self, folder, text):
        self.file, self.out = folder / "mine.yaml", folder / "out"
        self.file.write_text(text)

    def start(self, *options, name=None):
        command = [sys.executable, "-P", "-m", "kilobatch", "frontier", str(name or self.file)]
        where = [] if name else ["--out", str(self.out), "-n", "1"]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*command, *where, *options], text=True, cwd=self.file.parent, **streams)

    def run(self, *options, name=None):
        with self.start(*options, name=name) as process:
            stdout, stderr = process.communicate(timeout=600)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    @property
    def opened(self):
        return open_frontier(self.out / "frontier.yaml", vocabulary=search_vocabulary())

    @property
    def points(self):
        return read_points(self.opened, self.out)


@pytest.fixture(scope="module")
def measuring(tmp_path_factory):
    return lambda text: Measured(tmp_path_factory.mktemp("frontier"), text)
