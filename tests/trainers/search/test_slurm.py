"""A real Slurm of one node: groups as steps of an allocation, and ranks that srun has started."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from optuna.trial import TrialState

pytestmark = [pytest.mark.mpi, pytest.mark.slow]
SCRIPT = Path(__file__).parents[2] / "services" / "slurm"
TEXT = """\
space: {learning_rate.reference: {kind: Float, low: 0.01, high: 0.1, log: true}}
fixed: {epochs: 16, learning_rate.warmup: null, model.blocks: [1], model.width: 4}
reports: 4
"""


@pytest.fixture
def allocation(monkeypatch):
    """`allocation(tasks)`: the words before a command that run it in an allocation of so many tasks."""
    above = Path(tempfile.mkdtemp(prefix="kilobatch-"))
    started = subprocess.run([SCRIPT, above / "slurm"], capture_output=True, text=True)
    if started.returncode:
        shutil.rmtree(above)
        pytest.skip(f"no Slurm: {started.stderr.strip()}")
    monkeypatch.setenv("SLURM_CONF", started.stdout.strip())
    yield lambda tasks: ["salloc", "--quiet", f"--ntasks={tasks}"]
    subprocess.run([SCRIPT, above / "slurm", "--stop"], check=True)
    shutil.rmtree(above)


def test_groups_are_steps_and_the_death_of_a_rank_is_one_groups(searching, allocation):
    search = searching(TEXT + "budget: {trials: 4}\nranks_per_trial: 2\n")
    with search.start(*allocation(4)) as process:
        os.kill(search.wait_for_checkpoint(0, 1)[1], signal.SIGKILL)
        output = process.communicate(timeout=600)[0]
    assert process.returncode == 0, output
    assert "4 trials are done, 2 side by side, 2 ranks each" in output
    trials = search.trials()
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 4
    assert len(trials[0].user_attrs["deaths"]) == 1
    assert "ended by SIGKILL" in trials[0].user_attrs["deaths"][0]
    assert not any("deaths" in trial.user_attrs for trial in trials[1:])


def test_ranks_that_srun_started_are_split_into_groups_and_a_killed_one_ends_all(searching, allocation):
    search = searching(TEXT + "budget: {trials: 3}\nranks_per_trial: 2\n")
    launcher = (*allocation(4), "srun")
    pid, output = search.kill_launched_rank(*launcher)
    assert f"(process {pid}) has ended; the same command goes on" in output
    search.resume_launched(*launcher)


def test_ranks_that_do_not_join_are_refused_once_with_the_command_to_type(searching, allocation):
    search = searching(TEXT + "budget: {trials: 3}\nranks_per_trial: 2\n")
    for words in ((*allocation(4), "srun"), allocation(4)):  # joined, and as steps
        code, output = search.run(*words, SLURM_MPI_TYPE="none")
        assert code == 2
        assert output.count("type `export SLURM_MPI_TYPE=pmi2` before the same command") == 1
    assert [trial.state for trial in search.trials()] == [TrialState.RUNNING] * 2  # none is spent on it


def test_a_run_is_trained_by_ranks_that_srun_started(allocation, tmp_path):
    command = [*allocation(2), "srun", sys.executable, "-P", "-m", "kilobatch", "train", "digits/batch_256"]
    command += ["--set", "epochs=6", "--out", str(tmp_path / "out")]
    environment = {**os.environ, "SLURM_MPI_TYPE": "none"}
    refused = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert refused.returncode == 2
    assert refused.stderr.count("2 ranks were launched, but MPI joins 1") == 1
    assert not (tmp_path / "out").exists()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "on 2 worker(s)" in done.stdout
    assert "success at update 36" in done.stdout
