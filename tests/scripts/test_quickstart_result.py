"""The quickstart's command, whole, and the table that it ends with."""

import subprocess
import sys
from pathlib import Path

import pytest

from recipes.reading.open import open_recipe
from recipes.reports.record import open_run
from trainers.launch.vocabulary import vocabulary

SCRIPTS = Path(__file__).parents[2] / "scripts"


def run(*command):
    return subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, timeout=300, check=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("quickstart") / "large_batch"
    run("-m", "kilobatch", "train", "digits/large_batch", "-n", 2, "--out", path)
    return path


@pytest.mark.mpi
def test_quickstart_trains_the_large_batch_well(folder):
    trained = open_run(folder)
    assert trained.outcome == "success"
    assert trained.plan["segments"][0]["global_batch_size"] >= 512
    assert trained.plan["workers"] == 2
    assert trained.final_accuracy > 0.96  # 3 seeds gave 0.990 with a deviation of 0.006, without warmup 0.951


@pytest.mark.mpi
def test_result_stands_beside_the_recorded_baseline_and_names_the_report(folder):
    shown = " ".join(run(SCRIPTS / "quickstart_result.py", folder).stdout.split())
    (claim,) = (claim for claim in open_recipe("digits/baseline", vocabulary=vocabulary()).recipe.claims)
    for word in ("digits-large_batch", "digits-baseline", f"{100 * claim.value:.2f}", str(folder / "report.html")):
        assert word in shown
    assert "2026-" in claim.source
    assert "seeds" in claim.source
    assert (folder / "report.html").is_file()
