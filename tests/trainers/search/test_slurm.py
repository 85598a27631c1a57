"""A real Slurm of one node and of four: groups as steps of an allocation, and ranks that srun has started."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
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
SHORT = TEXT.replace("epochs: 16", "epochs: 1")
EVENT = re.compile(" is set aside: |trial 1 complete")


@pytest.fixture
def slurm(monkeypatch):
    """`slurm(nodes)` starts a Slurm of so many nodes, node1 and so on, and returns its folder."""
    above = Path(tempfile.mkdtemp(prefix="kilobatch-"))

    def start(nodes):
        started = subprocess.run([SCRIPT, above / "slurm", str(nodes)], capture_output=True, text=True)
        if started.returncode == 77:  # it is missing; a Slurm that does not start is a failure
            pytest.skip(f"no Slurm: {started.stderr.strip()}")
        assert started.returncode == 0, started.stderr
        monkeypatch.setenv("SLURM_CONF", started.stdout.strip())
        return above / "slurm"

    yield start
    if (above / "slurm").exists():
        subprocess.run([SCRIPT, above / "slurm", "--stop"], check=True)
    shutil.rmtree(above)


@pytest.mark.parametrize(
    ("options", "each"),
    [
        ("--gres=gpu:4", 4),
        ("--gpus-per-node=4 --mem=2000", 2),
        ("--gpus-per-task=1 --mem-per-cpu=500", 2),
        ("--gpus=16", 6),  # one of the two groups that fit takes what the other leaves
    ],
)
def test_groups_fill_nodes_and_have_their_gpus_for_themselves(searching, slurm, options, each):
    slurm(4)
    number = 16 // each
    search = searching(SHORT + f"budget: {{trials: {number}}}\nranks_per_trial: {each}\n")
    search.complete("salloc", "--quiet", "--nodes=4", "--ntasks=16", *options.split())
    assert [trial.state for trial in search.trials()] == [TrialState.COMPLETE] * number
    answers = search.folder.glob("jobs/group-*/start-*/answers.jsonl")  # each begins with hosts and GPUs of the ranks
    joined = [json.loads(path.read_text().splitlines()[0])["joined"] for path in answers]
    groups = [[re.fullmatch(r"(\S+) \(GPU (\d)\)", place).groups() for place in places] for places in joined]
    assert [len({host for host, _ in group}) for group in groups] == [2 if each == 6 else 1] * number
    devices = sum(groups, [])
    assert len(set(devices)) == len(devices) == number * each
    assert {gpu for _, gpu in devices} == {"0", "1", "2", "3"}


def test_a_step_that_slurm_does_not_start_says_why(searching, slurm):
    slurm(1)
    search = searching(SHORT + "budget: {trials: 1}\nranks_per_trial: 2\n")
    other = 'srun --ntasks=1 --exact --mem=0 --input=none sleep 600 & sleep 1; exec "$@"'
    code, output = search.run("salloc", "--quiet", "--ntasks=2", "sh", "-c", other, "sh")
    assert code == 3, output
    words = r"group 0 on node1: srun: error: Unable to create step for job \d+: Requested nodes are busy"
    assert re.search(words, output), output


def test_ranks_that_srun_started_are_split_into_groups_that_are_whole_on_a_node(searching, slurm):
    slurm(2)
    search = searching(SHORT + "budget: {trials: 2}\nranks_per_trial: 2\n")
    options = ("--nodes=2", "--ntasks-per-node=2", "--gres=gpu:4", "--mem=2000")
    output = search.complete("salloc", "--quiet", *options, "srun", "--distribution=cyclic")
    assert "2 trials are done, 2 side by side, 2 ranks each" in output
    records = [json.loads((search.run_folder(number) / "environment.json").read_text()) for number in range(2)]
    assert sorted([rank["host"] for rank in record["ranks"]] for record in records) == [["node1"] * 2, ["node2"] * 2]


def test_trials_of_a_dead_node_go_on_elsewhere_and_the_node_is_set_aside(searching, slurm):
    """Slurm notices the death after 10 s or more: the search goes on until the node was tried again, and is stopped."""
    folder = slurm(4)
    search = searching(TEXT + "budget: {trials: 500}\nranks_per_trial: 2\n")
    options = ("--no-kill", "--nodes=4", "--ntasks-per-node=2")
    with search.start("salloc", "--quiet", *options) as process:
        search.wait_for_checkpoint(0, 1, 2, 3)
        hosts = json.loads((search.run_folder(1) / "environment.json").read_text())["ranks"]
        assert hosts[0]["host"] == hosts[1]["host"]
        dead = hosts[0]["host"]
        subprocess.run([SCRIPT, folder, "--kill", dead], check=True)
        log, end = search.folder / "log.txt", time.monotonic() + 120
        while not {" is set aside: ", "trial 1 complete"} <= set(EVENT.findall(log.read_text())):
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.2)
        (search.folder / "stop").touch()
        output = process.communicate(timeout=120)[0]
    assert process.returncode == 4, output
    trials = search.trials()
    assert {trial.state for trial in trials} <= {TrialState.COMPLETE, TrialState.RUNNING}
    assert trials[1].state == TrialState.COMPLETE
    assert len(trials[1].user_attrs["deaths"]) == 1
    assert f"trial 1: srun: error: Node failure on {dead}; it goes on from its last checkpoint" in output
    assert f" on {dead} is set aside: " in output
    assert "Requested node configuration is not available" in output  # as srun says at the second start


def test_ranks_that_srun_started_are_split_into_groups_and_a_killed_one_ends_all(searching, slurm):
    slurm(1)
    search = searching(TEXT + "budget: {trials: 3}\nranks_per_trial: 2\n")
    launcher = ("salloc", "--quiet", "--ntasks=4", "srun")
    for words, expected in ((launcher, 2), (launcher[:-1], 3)):  # joined, and as steps
        code, output = search.run(*words, SLURM_MPI_TYPE="none")
        assert code == expected, output
        assert "type `export SLURM_MPI_TYPE=pmi2` before the same command" in output
    assert {trial.state for trial in search.trials()} == {TrialState.RUNNING}  # none is spent on it
    output = search.kill_launched_rank(*launcher)
    assert re.search(r"rank \d on \S+ \(process \d+\) has ended; the same command goes on", output)
    search.resume_launched(*launcher)


def test_a_run_is_trained_by_ranks_that_srun_started(slurm, tmp_path):
    slurm(1)
    command = ["salloc", "--quiet", "--ntasks=2", "srun", sys.executable, "-P", "-m", "kilobatch", "train"]
    command += ["digits/batch_256", "--set", "epochs=6", "--out", str(tmp_path / "out")]
    environment = {**os.environ, "SLURM_MPI_TYPE": "none"}
    refused = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert refused.returncode == 2
    assert refused.stderr.count("2 ranks were launched, but MPI joins 1") == 1
    assert not (tmp_path / "out").exists()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "on 2 workers" in done.stdout
    assert "finished: 36 of 36 updates, " in done.stdout
    job = json.loads((tmp_path / "out" / "environment.json").read_text())["slurm"]
    assert job == {"job": job["job"], "step": "0", "nodes": "node1"}
    assert (tmp_path / "out" / "log.txt").read_text().splitlines()[0].endswith(f"out, job {job['job']} of Slurm")


def has_trained(folder):
    end, metrics = time.monotonic() + 60, folder / "metrics.jsonl"
    while not metrics.exists() or "train_loss" not in metrics.read_text():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_killed_rank_ends_the_others_that_srun_started_and_the_log_says_why(slurm, tmp_path):
    slurm(1)
    folder = tmp_path / "out"
    command = ["salloc", "--quiet", "--ntasks=2", "srun", sys.executable, "-P", "-m", "kilobatch", "train"]
    with subprocess.Popen([*command, "digits/batch_256", "--set", "epochs=600", "--out", folder]) as process:
        has_trained(folder)
        pid = json.loads((folder / "environment.json").read_text())["ranks"][1]["pid"]
        os.kill(pid, signal.SIGKILL)
        process.wait(timeout=20)  # the watchdog would take 120 s
    assert process.returncode != 0
    assert f"kilobatch: rank 1 on node1 (process {pid}) has ended; " in (folder / "log.txt").read_text()


def test_a_warning_of_the_time_limit_ends_a_job_with_code_4_and_no_rank_is_killed(slurm, tmp_path):
    slurm(2)
    folder = tmp_path / "out"
    launcher = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2", "srun", "--kill-on-bad-exit=1"]
    command = [*launcher, sys.executable, "-P", "-m", "kilobatch", "train", "digits/batch_256", "--set", "epochs=600"]
    with subprocess.Popen([*command, "--out", folder], stderr=subprocess.PIPE, text=True) as process:
        has_trained(folder)
        job = json.loads((folder / "environment.json").read_text())["slurm"]
        subprocess.run(["scancel", "--signal=USR1", f"{job['job']}.{job['step']}"], check=True)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 4, said
    assert "task 0: Exited with exit code 4" in said
    assert "Killed" not in said
    assert (folder / "report.html").exists()
