"""A search in an allocation of a real Slurm of one node: each group is a step."""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from optuna.trial import TrialState

pytestmark = [pytest.mark.mpi, pytest.mark.slow]
SCRIPT = Path(__file__).parents[3] / "scripts" / "start_slurm"
TEXT = """\
space: {learning_rate.reference: {kind: Float, low: 0.01, high: 0.1, log: true}}
fixed: {epochs: 4, learning_rate.warmup: null, model.blocks: [1], model.width: 4}
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
        for number in (0, 1):
            search.wait_for(search.run_folder(number) / "checkpoints" / "update-*")
        os.kill(search.pids(0)[1], signal.SIGKILL)
        said = process.communicate(timeout=600)[0]
    assert process.returncode == 0, said
    assert "4 trials are done, 2 side by side, 2 ranks each" in said
    trials = search.trials()
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 4
    assert len(trials[0].user_attrs["deaths"]) == 1
    assert "ended by SIGKILL" in trials[0].user_attrs["deaths"][0]
    assert not any("deaths" in trial.user_attrs for trial in trials[1:])
