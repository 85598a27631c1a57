"""What importing, validating and asking for help load: no Chainer, no CuPy, no MPI, no Matplotlib."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import recipes

ROOT = Path(__file__).parent.parent
HEAVY = {"chainer", "chainermn", "chainercv", "cupy", "matplotlib", "mpi4py", "sklearn", "scipy"}
NOT_IN_A_RANK = HEAVY - {"chainer", "cupy", "mpi4py"} | {"optuna", "rich", "sqlalchemy"}
MEASURE = "import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)"
OPEN_ALL = """
from recipes import open_recipe
from recipes.reading.registry import names
from trainers.launch.vocabulary import vocabulary
assert len([open_recipe(name, vocabulary=vocabulary()) for name in names("recipes")]) >= 9
"""


def loaded_by(code):
    """Top-level modules that are loaded after running `code` in a fresh interpreter."""
    command = [sys.executable, "-c", MEASURE.format(code=code)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    return {name.partition(".")[0] for name in json.loads(done.stderr.splitlines()[-1])}


def test_no_package_loads_anything_heavy_nor_does_opening_every_recipe():
    packages = "import lr_schedules, recipes, trainers, trainers.launch.vocabulary"
    assert loaded_by(f"{packages}, trainers.launch.start_ranks, trainers.runs.progress\n{OPEN_ALL}") & HEAVY == set()


def test_a_rank_limits_the_threads_of_blas_before_numpy_is_loaded():
    """Else every rank of mpiexec and of a search has a thread of BLAS for each core, and is six times as slow."""
    commands = "import kilobatch, trainers.commands.command_line, trainers.commands.train, trainers.commands.search"
    assert "numpy" not in loaded_by(f"{commands}, trainers.runs.mpi_ranks, trainers.runs.rank_exits")


def test_public_names_of_recipes_are_those_that_are_there():
    assert all(hasattr(recipes, name) for name in recipes.__all__)
    assert sorted(name for names in recipes._MODULES.values() for name in names) == recipes.__all__


def test_schedules_load_nothing_but_the_standard_library():
    extra = loaded_by("import lr_schedules") - loaded_by("") - sys.stdlib_module_names
    assert extra == {"lr_schedules"}


def test_commands_on_recipes_load_nothing_heavy():
    lines = ["--help", "recipes --help", "recipes validate goyal2017 digits/ramp", "recipes show akiba2017"]
    lines.append("recipes curve suzuki2018 --at 0,30")
    run = "    try: kilobatch.main()\n    except SystemExit as end: assert not end.code"
    code = f"import kilobatch\nfor line in {lines}:\n    sys.argv = ['kilobatch', *line.split()]\n{run}"
    assert loaded_by(code) & HEAVY == set()


@pytest.mark.mpi
def test_a_run_loads_no_more_than_it_needs(tmp_path):
    """The process that starts the ranks and a rank, by what Python itself says of them."""
    command = [sys.executable, "-P", "-m", "kilobatch", "train", "digits/ramp", "-n", "1", "--stop-after", "1up"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPROFILEIMPORTTIME": "1"}
    folder = tmp_path / "run"
    done = subprocess.run([*command, "--out", folder], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    starter, rank = (imported(text) for text in (done.stderr, (folder / "log.txt").read_text()))
    assert starter & HEAVY == set()
    assert rank & NOT_IN_A_RANK == set()
    assert '<script type="application/json"' in (folder / "report.html").read_text()
    assert {"recipes", "trainers", "numpy"} <= starter & rank
    assert rank >= {"chainer", "mpi4py"}


def imported(text):
    """Top-level modules of `python -X importtime`."""
    lines = (line.rpartition("|") for line in text.splitlines() if line.startswith("import time:"))
    return {name.strip().partition(".")[0] for _, _, name in lines}


def test_help_answers_in_under_half_a_second():
    """Of processor time: what other processes take on a busy machine does not count."""
    command = [sys.executable, str(ROOT / "kilobatch.py"), "--help"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "80"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "recipes" in done.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5
