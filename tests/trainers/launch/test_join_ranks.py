"""What MPI cannot give a run is refused by the real command, before any work."""

import json
import os
import re
import socket
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from recipes.errors import InputRefused
from recipes.reading.yaml import block_text
from trainers.launch import join_ranks
from trainers.launch.join_ranks import check_folder, lock_for_run
from trainers.launch.request import TrainRequest, prepare
from trainers.runs.errors import RankFailed
from trainers.runs.identity import IdentityChanged, identity_of
from trainers.runs.metrics_file import require_another_end
from trainers.runs.mpi_ranks import find_mpiexec
from trainers.runs.run_folder import FolderRefused, dataset_facts, is_locked, share_lock
from trainers.training.exact_mode import ExactRefused

pytestmark = pytest.mark.mpi
TRAIN = [sys.executable, "-P", "-m", "kilobatch", "train", "digits/ramp", "--fast", "-n", "2", "--set", "model.width=4"]


def train(folder, *words, **environment):
    command = [*TRAIN, *words, "--no-report", "--stop-after", "1up", "--out", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"MPI4PY_LIBMPI": "/nowhere/libmpi.so"}, "cannot load MPI library /nowhere/libmpi.so"),
        ({"MPI4PY_MPIABI": "nosuch"}, "cannot import name 'MPI' from 'mpi4py'"),
    ],
    ids=["no library", "no ABI"],
)
def test_without_an_mpi_the_way_out_is_named_and_nothing_trained(tmp_path, environment, why):
    done = train(tmp_path / "run", **environment)
    assert (done.returncode, done.stdout) == (2, f"run: {tmp_path / 'run'}\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"kilobatch: MPI cannot start: {why}")
    assert "pip install mpi4py mpich" in line
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_rank_of_a_foreign_launcher_that_cannot_start_names_itself_and_ends_those_that_wait_for_it(tmp_path):
    joins = [sys.executable, "-P", "-c", "from mpi4py import MPI"]
    refused = [sys.executable, "-P", "-m", "kilobatch", "train", "digits/ramp", "--out", str(tmp_path / "run")]
    both = [*joins, ":", "-n", "1", "-env", "OMP_NUM_THREADS", "abc", *refused]
    done = subprocess.run([find_mpiexec(), "-n", "1", *both], capture_output=True, text=True, timeout=60)
    said = f"kilobatch: rank 1 on {socket.gethostname()}: OMP_NUM_THREADS=abc is no number of threads"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(said)
    assert not (tmp_path / "run").exists()


def test_a_thread_for_the_exchange_is_refused_where_mpi_forbids_it(tmp_path):
    done = train(tmp_path / "run", MPI4PY_RC_THREAD_LEVEL="serialized")
    assert (done.returncode, done.stdout) == (2, f"run: {tmp_path / 'run'}\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith("kilobatch: gradients are exchanged by a thread beside backward, and MPI gives MPI_THREAD_S")
    assert "overlap=false" in line
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


NET = """\
import chainer
import chainer.links as L
from recipes.errors import InputRefused
from trainers.runs.mpi_ranks import launched_ranks


class Net(chainer.Chain):
    def __init__(self, num_classes):
        if launched_ranks() is not None:
            raise InputRefused("this net is not for sale; take another")
        super().__init__(fc=L.Linear(64, num_classes))

    def forward(self, x):
        return self.fc(x)
"""


def test_what_only_the_ranks_refuse_is_reported_without_a_traceback(tmp_path):
    (tmp_path / "mine.py").write_text(NET)
    command = [*TRAIN, "--allow-code", "--no-report", "--out", "run"]
    command[command.index("model.width=4")] = "model={kind: mine.Net}"
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert re.search(r"^rank [01] on \S+ failed:\nthis net is not for sale; take another$", done.stderr, re.MULTILINE)
    assert "Traceback" not in done.stderr


def test_a_report_that_rank_0_cannot_write_is_reported_as_that_of_our_own_ranks(tmp_path, capsys):
    assert join_ranks.report_run(tmp_path) == 3
    assert capsys.readouterr().err.endswith(
        f"the run has ended, but its report cannot be written; to try again: kilobatch report {tmp_path}\n"
    )


@pytest.mark.parametrize(("code", "order"), [(0, ["left", "drawn"]), (4, ["drawn", "left"])], ids=["end", "signal"])
def test_the_report_of_a_run_that_was_stopped_is_drawn_before_mpi_is_left(tmp_path, monkeypatch, capsys, code, order):
    from mpi4py import MPI

    monkeypatch.setattr(MPI, "Finalize", lambda: print("left", file=sys.stderr))
    monkeypatch.setattr(join_ranks, "_OTHERS_SECONDS", 0)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    assert join_ranks._leave(tmp_path, leads=True, code=code, report=True) == 3  # the run has no record
    said = capsys.readouterr().err
    places = {"left": said.index("left\n"), "drawn": said.index("its report cannot be written")}
    assert sorted(places, key=places.__getitem__) == order


def test_without_the_thread_a_low_level_is_enough_and_idle_nodes_of_a_job_are_warned_of(tmp_path):
    words = ("--set", "cluster.exchange.overlap=false", "--set", "updater.double_buffering=true")
    done = train(tmp_path / "run", *words, MPI4PY_RC_THREAD_LEVEL="serialized", SLURM_JOB_NUM_NODES="3")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("kilobatch: warning: all ranks start on this node, ")
    assert "has 2 other nodes; `srun" in done.stderr


def test_a_run_that_diverged_goes_on_only_with_other_data_that_were_accepted(tmp_path):
    stop = {"key": "run_stop", "value": "failed", "cause": "NotFinite", "reason": "the loss is nan", "time_ms": 1}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(stop) + "\n")
    resuming = TrainRequest(recipe="digits/ramp", out=tmp_path, resume=True)
    accepting = TrainRequest(recipe="digits/ramp", out=tmp_path, resume=True, accept_changed=("data",))
    prepared = prepare(resuming, workers=1)
    opened = prepared.opened
    record = {"recipe": opened.tree, "dataset": dataset_facts(opened.dataset)}
    (tmp_path / "run.yaml").write_text(block_text(record))
    same = identity_of(opened)
    other = same | {"data": dict.fromkeys(same["data"], "0")}
    for identity, request, refusal in (
        (same, accepting, FolderRefused),
        (other, resuming, IdentityChanged),
        (other, accepting, None),
    ):
        (tmp_path / "identity.json").write_text(json.dumps(identity))
        with pytest.raises(refusal, match="the loss is nan|accept-changed data") if refusal else nullcontext():
            check_folder(request, tmp_path, prepared)


def test_other_numbers_of_samples_are_refused_with_what_has_changed_in_the_data(tmp_path):
    request = TrainRequest(recipe="digits/ramp", out=tmp_path, resume=True, accept_changed=("data",))
    prepared = prepare(request, workers=1)
    facts = dataset_facts(prepared.opened.dataset)
    fewer = facts | {"num_train": facts["num_train"] - 1}
    (tmp_path / "run.yaml").write_text(block_text({"recipe": prepared.opened.tree, "dataset": fewer}))
    identity = identity_of(prepared.opened)
    (tmp_path / "identity.json").write_text(json.dumps(identity | {"data": dict.fromkeys(identity["data"], "0")}))
    said = r"data have changed: num_train: 1499 in the run, 1500 now; .*accept-changed takes no .*; data: .* changed$"
    with pytest.raises(FolderRefused, match=said):
        check_folder(request, tmp_path, prepared)


STOP = '{"key": "run_stop", "value": "success", "time_ms": 3, "update": 1, "epoch": 0.5}'
UPDATE = {"update": 0, "epoch": 0, "samples": 0, "learning_rate": 1, "momentum": 0, "global_batch_size": 8}
UPDATE = json.dumps({"key": "train_loss", "value": 1.0, "time_ms": 1, "update_seconds": 0.1, **UPDATE})


@pytest.fixture(scope="module")
def ramp():
    return prepare(TrainRequest(recipe="digits/ramp"), workers=1)


@pytest.mark.parametrize(
    ("line", "ends"),
    [
        ('{"key": "eval_accuracy", "value": 0.5, "time_ms": 2, "update": 1, "epoch": 0.5, "samples": 8}', True),
        ('{"key":"train_loss","value":1,"time_ms":1}', True),  # of the end only the last update tells
        ('{"key": "eval_accuracy", "value": 0.5, "time_ms": 2, "update": 1}', False),
        ('{"key": "eval_loss", "value": 0.5, "time_ms": 2, "epoch": "x"}', False),
        ('{"key": "eval_accuracy", "value": "x", "time_ms": 2, "update": 1, "epoch": 0.5, "samples": 8}', False),
        ('{"key": "eval_accuracy", "value": 1%s, "time_ms": 2, "update": 1, "epoch": 1}' % ("0" * 400), False),
        ('{"key": "run_stop", "value": "stopped", "time_ms": 2, "update": "x", "epoch": []}', False),
        ("[" * 100_000, False),
    ],
    ids=["whole", "update", "no epoch", "epoch a text", "accuracy a text", "accuracy huge", "earlier end", "brackets"],
)
def test_a_run_with_a_damaged_line_has_its_end_or_goes_on(ramp, tmp_path, monkeypatch, line, ends):
    whole = (tmp_path / "checkpoints" / "update-000001", [])
    monkeypatch.setattr("trainers.runs.checkpoint.newest_checkpoint", lambda folder: whole)
    (tmp_path / "metrics.jsonl").write_text("\n".join([line, UPDATE, STOP, ""]))
    assert ("which has ended" in join_ranks.nothing_left(tmp_path, ramp)) == ends
    (tmp_path / "metrics.jsonl").write_text("\n".join([line, ""]))
    require_another_end(tmp_path)


@pytest.mark.parametrize("name", ["metrics.jsonl", "run.yaml"])
def test_a_folder_in_place_of_a_runs_file_is_refused(ramp, tmp_path, name):
    (tmp_path / "metrics.jsonl").touch()
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    with pytest.raises(FolderRefused, match=f"{name} .*start anew|{name} .*another --out"):
        check_folder(TrainRequest(recipe="digits/ramp", out=tmp_path, resume=True), tmp_path, ramp)


@pytest.mark.parametrize("left", ["nothing", "a link to nothing"])
def test_a_run_that_has_lost_its_checkpoints_is_refused_before_ranks_are_started(ramp, tmp_path, left):
    record = {"recipe": ramp.opened.tree, "dataset": dataset_facts(ramp.opened.dataset)}
    (tmp_path / "run.yaml").write_text(block_text(record))
    written = '{"key":"checkpoint","value":"update-000001","update":1}\n'
    (tmp_path / "metrics.jsonl").write_text(UPDATE + "\n" + written)
    if left == "a link to nothing":
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / "checkpoints" / "update-000001").symlink_to("/mnt/not/there")
    said = "has lost its checkpoints" if left == "nothing" else "has update-000001, and none is a whole checkpoint"
    with pytest.raises(FolderRefused, match=f"{said}.*bring the checkpoints back"):
        check_folder(TrainRequest(recipe="digits/ramp", out=tmp_path, resume=True), tmp_path, ramp)


def test_an_exact_run_of_a_gpu_is_compared_once_the_gpu_is_taken(ramp, tmp_path):
    (tmp_path / "checkpoints" / "update-000003").mkdir(parents=True)
    (tmp_path / "environment.json").write_text(json.dumps({"exact": True, "kernels": {"operators": "cudnn"}}))
    (tmp_path / "metrics.jsonl").touch()
    record = {"recipe": ramp.opened.tree, "dataset": dataset_facts(ramp.opened.dataset)}
    (tmp_path / "run.yaml").write_text(block_text(record))
    request = TrainRequest(recipe="digits/ramp", out=tmp_path, resume=True, exact=True)
    with pytest.raises(ExactRefused, match=r"kernels\.operators: 'cudnn' in the run"):
        check_folder(request, tmp_path, ramp)
    on_gpu = replace(ramp.plan, cluster=replace(ramp.plan.cluster, device="gpu"))
    check_folder(request, tmp_path, replace(ramp, plan=on_gpu))


def test_a_run_that_another_start_trained_meanwhile_is_not_trained_over(tmp_path):
    lock_for_run(tmp_path, resume=False).close()
    (tmp_path / "metrics.jsonl").write_text(STOP + "\n")
    lock_for_run(tmp_path, resume=True).close()
    with pytest.raises(FolderRefused, match=f"another run was trained in {tmp_path} since .* --resume"):
        lock_for_run(tmp_path, resume=False)


def test_a_rank_shares_the_lock_of_its_parent_and_no_other(tmp_path, monkeypatch):
    alone = SimpleNamespace(rank=0, size=1, bcast=lambda value, root: value)
    request = TrainRequest(recipe="digits/ramp", out=tmp_path)
    parent = lock_for_run(tmp_path, resume=False)
    with pytest.raises(FolderRefused, match=f"a run is being trained in {tmp_path}"):
        join_ranks._checked_together(request, alone, checked=True, alone=True)
    share_lock(parent)
    *_, held, _, _ = join_ranks._checked_together(request, alone, checked=True, alone=True)
    for end in (parent, held):
        with pytest.raises(FolderRefused, match=f"a run is being trained in {tmp_path}"):
            lock_for_run(tmp_path, resume=True)
        assert is_locked(tmp_path)
        end.close()
    assert is_locked(tmp_path) is False
    monkeypatch.setenv("KILOBATCH_PARENT", f"1 0 {socket.gethostname()}")
    with pytest.raises(FolderRefused, match="the process that started this run was killed"):
        join_ranks._checked_together(request, alone, checked=True, alone=True)


@pytest.mark.slow
def test_of_two_starts_in_one_folder_one_is_refused_and_leaves_no_trace_in_the_log(tmp_path):
    command = [*TRAIN, "--no-report", "--stop-after", "1up", "--out", str(tmp_path / "run")]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ended = sorted((process.communicate(timeout=120)[1], process.returncode) for process in started)
    (errors, code), (refused, other) = ended
    assert (errors, code, other) == ("", 0, 2)
    assert re.search(f"kilobatch: (a|another) run (is being|was) trained in {tmp_path}/run", refused)
    assert "trained in" not in (tmp_path / "run" / "log.txt").read_text()


def test_a_recipe_with_a_number_as_key_differs(ramp, tmp_path):
    record = {"recipe": {**ramp.opened.tree, 5: 6}, "dataset": dataset_facts(ramp.opened.dataset)}
    (tmp_path / "run.yaml").write_text(block_text(record))
    with pytest.raises(FolderRefused, match="another recipe; 5: 6 in the run, None now"):
        check_folder(TrainRequest(recipe="digits/ramp", out=tmp_path, resume=True), tmp_path, ramp)


@pytest.mark.parametrize(("key", "goes_on"), [("epochs", True), ("seed", False)])
def test_a_longer_run_is_told_how_to_begin_with_the_weights_of_this_one(ramp, tmp_path, key, goes_on):
    record = {"recipe": {**ramp.opened.tree, key: 5}, "dataset": dataset_facts(ramp.opened.dataset)}
    (tmp_path / "run.yaml").write_text(block_text(record))
    (tmp_path / "checkpoints" / "update-000003").mkdir(parents=True)
    with pytest.raises(FolderRefused, match=f"another recipe; {key}: 5 in the run, .* or start anew") as refusal:
        check_folder(TrainRequest(recipe="digits/ramp", out=tmp_path, resume=True), tmp_path, ramp)
    way_on = f"--set 'init={{weights: {tmp_path}/checkpoints/update-000003/weights.safetensors}}'"
    assert (way_on in str(refusal.value)) == goes_on


def test_a_shell_with_the_variables_of_one_rank_is_told_how_to_start_ranks_all_the_same(tmp_path):
    alone = SimpleNamespace(rank=0, size=1, bcast=lambda value, root: value)
    request = TrainRequest(recipe="digits/ramp", workers=2, out=tmp_path / "run")
    with pytest.raises(InputRefused, match=r"1 rank was launched; .*srun -n N .*srun --mpi=none --pty.*unset PMI_RANK"):
        join_ranks._checked_together(request, alone, checked=False, alone=True)


def test_a_host_without_the_recipe_of_rank_0_is_told_that_all_hosts_need_the_same_files(tmp_path):
    request = TrainRequest(recipe=str(tmp_path / "own.yaml"))
    with pytest.raises(RankFailed, match="there is no file .*own.yaml(?s:.*)all hosts need the same working directory"):
        join_ranks._prepare_as_rank_0(request, ranks=2)


LATE = """\
import os, sys, time
from trainers.launch import join_ranks
join_ranks._LONGEST_JOIN_SECONDS = 1.0
if os.environ["PMI_RANK"] == "1":
    time.sleep(40)
join_ranks.join_world(2)
"""


def test_a_rank_that_others_never_join_ends_the_job():
    words = [find_mpiexec(), "-n", "2", sys.executable, "-c", LATE]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert done.returncode not in (0, None)
    assert "Timeout (0:00:01)!" in done.stderr
    assert " in join_world\n" in done.stderr
