"""A search whose ranks a foreign launcher has started, on one host or on several."""

import os
import signal

import pytest
from optuna.trial import TrialState

from trainers.launch import LaunchError, find_mpiexec
from trainers.search import start
from trainers.search.start import SearchRequest

pytestmark = pytest.mark.mpi
TEXT = """\
space: {learning_rate.reference: {kind: Float, low: 0.01, high: 0.1, log: true}}
fixed: {epochs: 8, model.blocks: [1], model.width: 4}
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


@pytest.mark.parametrize(("ranks", "each"), [(2, 1), pytest.param(5, 2, marks=pytest.mark.slow)])  # one is left over
def test_a_fault_ends_all_and_the_same_command_goes_on(searching, ranks, each):
    search = searching(TEXT + f"budget: {{trials: 4}}\nranks_per_trial: {each}\n")
    launcher = (find_mpiexec(), "-n", ranks)
    with search.start(*launcher) as process:
        for number in (0, 1):
            search.wait_for(search.run_folder(number) / "checkpoints" / "update-*")
        pids = [*search.pids(0), *search.pids(1)]
        os.kill(pids[-1], signal.SIGKILL)
        process.communicate(timeout=60)
    assert process.returncode != 0
    assert search.gone(pids)
    assert [trial.state for trial in search.trials()] == [TrialState.RUNNING] * 2
    code, said = search.run(*launcher)
    assert code == 0, said
    trials = search.trials()
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 4
    assert [trial.user_attrs.get("deaths") for trial in trials] == [["the search was ended"]] * 2 + [None] * 2
    assert len({tuple(search.pids(number)) for number in range(4)}) == 2
    assert said.count("trials are done, 2 side by side, ") == 1


def test_what_is_wrong_is_told_once(searching):
    search = searching(TEXT + "budget: {trials: 4}\nranks_per_trial: 3\n")
    code, said = search.run(find_mpiexec(), "-n", 2)
    assert code == 2
    assert said.count("2 ranks are fewer than the 3 of a trial") == 1
    assert not search.folder.exists()


def launched(monkeypatch, file, *, rank):
    """A dry run as one of the four ranks that mpiexec started."""
    for name, value in (("PMI_RANK", rank), ("PMI_SIZE", 4)):
        monkeypatch.setenv(name, str(value))
    return start.search(SearchRequest(search=str(file), dry_run=True))


def test_a_dry_run_is_told_once_for_all_ranks(searching, monkeypatch, capsys):
    file = searching(TEXT + "budget: {trials: 4}\nranks_per_trial: 2\n").file
    assert launched(monkeypatch, file, rank=1) == 0
    assert capsys.readouterr().out == ""
    assert launched(monkeypatch, file, rank=0) == 0
    assert "ranks: 2 a trial, 2 trials side by side" in capsys.readouterr().out


def test_a_transfer_says_how_it_is_started(searching, monkeypatch):
    text = TEXT.replace("epochs: 8", "epochs: 8, batch.global: 32").replace("reports: 4\n", "")
    file = searching(f"{text}budget: {{trials: 6}}\ntransfer: {{from_batch: 32, to_batch: 512, trials: [4, 2]}}\n").file
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(LaunchError, match="run kilobatch search without mpiexec or srun: it uses all of a Slurm"):
        start.search(SearchRequest(search=str(file)))


@pytest.mark.slow
def test_ranks_of_a_group_on_two_hosts(searching, tmp_path):
    login = tmp_path / "login"
    login.write_text(LOGIN)
    login.chmod(0o755)
    search = searching(TEXT + "budget: {trials: 1}\nranks_per_trial: 2\n", "-n", 2, "--hosts", "left,right")
    seen = tmp_path / "seen"
    launcher = {"HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": str(login), "HOSTS_SEEN": str(seen)}
    code, said = search.run(**launcher, UCX_TLS="tcp,self")
    assert code == 0, said
    assert sorted(seen.read_text().split()) == ["left", "right"]
    (trial,) = search.trials()
    assert trial.state == TrialState.COMPLETE
