"""What importing, validating and asking for help load: no Chainer, no CuPy, no MPI, no Matplotlib."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = {"chainer", "chainermn", "chainercv", "cupy", "matplotlib", "mpi4py", "sklearn", "scipy"}
MEASURE = "import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)"
OPEN_ALL = """
from recipes import open_recipe
from recipes.registry import names
from trainers.vocabulary import vocabulary
assert len([open_recipe(name, vocabulary=vocabulary()) for name in names("recipes")]) >= 9
"""


def loaded_by(code):
    """Top-level modules that are loaded after running `code` in a fresh interpreter."""
    command = [sys.executable, "-c", MEASURE.format(code=code)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    return {name.partition(".")[0] for name in json.loads(done.stderr.splitlines()[-1])}


@pytest.mark.parametrize(
    "code",
    [
        "import lr_schedules",
        "import recipes",
        "import trainers",
        "import trainers.vocabulary",
        "import trainers.start, trainers.progress",
        OPEN_ALL,
    ],
    ids=["lr_schedules", "recipes", "trainers", "vocabulary", "starting ranks", "opening every recipe"],
)
def test_nothing_heavy_is_loaded_by(code):
    assert loaded_by(code) & HEAVY == set()


def test_schedules_load_nothing_but_the_standard_library():
    extra = loaded_by("import lr_schedules") - loaded_by("") - sys.stdlib_module_names
    assert extra == {"lr_schedules"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["recipes", "--help"],
        ["recipes", "validate", "goyal2017", "digits/ramp"],
        ["recipes", "curve", "suzuki2018", "--at", "0,30"],
        ["recipes", "show", "akiba2017"],
    ],
    ids=" ".join,
)
def test_commands_on_recipes_load_nothing_heavy(arguments):
    run = "try: kilobatch.main()\nexcept SystemExit as end: assert not end.code"
    code = f"import kilobatch\nsys.argv = ['kilobatch'] + {arguments!r}\n{run}"
    assert loaded_by(code) & HEAVY == set()


def test_help_answers_in_under_half_a_second():
    """The best of a few: a machine that is busy makes any one of them slow."""
    command = [sys.executable, str(ROOT / "kilobatch.py"), "--help"]
    seconds = []
    while len(seconds) < 5 and min(seconds, default=1.0) > 0.5:
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "80"})
        seconds.append(time.perf_counter() - start)
    assert "recipes" in done.stdout
    assert min(seconds) < 0.5
