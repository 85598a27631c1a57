"""A search whose ranks a foreign launcher has started, on one host or on several."""

import subprocess
import sys

import pytest
from optuna.trial import TrialState

from trainers.runs.mpi_ranks import find_mpiexec

pytestmark = pytest.mark.mpi
TEXT = """\
space: {learning_rate.reference: {kind: Float, low: 0.01, high: 0.1, log: true}}
fixed: {epochs: 8, model: {kind: SmallCNN, width: 2, first_stride: 2}}
reports: 4
"""
# What stands for ssh: options and a host's name, then words of a command that runs here.
LOGIN = """\
#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
echo "$1" >> "$HOSTS_SEEN"
shift
exec sh -c "$*"
"""


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "each"), [(2, 1), (5, 2)])  # one is left over
def test_a_fault_ends_all_and_the_same_command_goes_on(searching, ranks, each):
    search = searching(TEXT + f"budget: {{trials: 2}}\nranks_per_trial: {each}\n")
    launcher = (find_mpiexec(), "-n", ranks)
    search.kill_launched_rank(*launcher)
    output = search.resume_launched(*launcher)
    assert len({tuple(search.pids(number)) for number in range(2)}) == 2
    assert output.count("trials are done, 2 side by side, ") == 1


def test_an_error_is_printed_by_one_rank(searching):
    search = searching(TEXT + "budget: {trials: 4}\nranks_per_trial: 3\n")
    command = [find_mpiexec(), "-n", "2", sys.executable, "-P", "-m", "kilobatch", *map(str, search.words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert (done.stdout + done.stderr).count("2 ranks are fewer than the 3 of a trial") == 1
    assert not search.folder.exists()


@pytest.mark.slow
def test_ranks_of_a_group_on_two_hosts(searching, tmp_path):
    login = tmp_path / "login"
    login.write_text(LOGIN)
    login.chmod(0o755)
    search = searching(TEXT + "budget: {trials: 1}\nranks_per_trial: 2\n", "-n", 2, "--hosts", "left,right")
    seen = tmp_path / "seen"
    launcher = {"HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": str(login), "HOSTS_SEEN": str(seen)}
    search.complete(**launcher, UCX_TLS="tcp,self")
    assert sorted(seen.read_text().split()) == ["left", "right"]
    (trial,) = search.trials()
    assert trial.state == TrialState.COMPLETE
