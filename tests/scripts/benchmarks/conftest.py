"""Benchmarks import each other by their names, as when they run as scripts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "scripts" / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks_on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.fixture
def run(tmp_path):
    """`run(script, options)`: runs a benchmark with these words; its lines on stdout and the figures that it writes."""

    def run(script, options):
        file = tmp_path / "figures.json"
        command = [sys.executable, FOLDER / script, *options.split(), "--json", file]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines(), json.loads(file.read_text())

    return run
