"""Equal bits on any number of ranks: the default, where it cannot be held, and what it is bound to."""

import json
import subprocess
import sys

import pytest
from mpi4py import MPI

from recipes.reading.open import open_cluster, open_recipe
from recipes.reading.yaml import block_text
from trainers.launch.request import TrainRequest, prepare
from trainers.launch.vocabulary import vocabulary
from trainers.runs.errors import RunFailed
from trainers.runs.mpi_ranks import THREADS
from trainers.runs.run_folder import dataset_facts
from trainers.training.environment import numerical_environment
from trainers.training.exact_mode import ExactRefused, hold_on_gpu, require_same_machine, unlike_hosts, why_not_exact

CLUSTER = "name: ours\nnodes: 1\nworkers_per_node: 4\ndevice: {device}\ndevice_memory_bytes: 8000000000\n{more}"


@pytest.fixture
def cluster(tmp_path):
    def write(more="", device="cpu"):
        path = tmp_path / "ours.yaml"
        path.write_text(CLUSTER.format(more=more, device=device))
        return open_cluster(str(path), vocabulary=vocabulary())

    return write


@pytest.mark.parametrize("kind", ["MpiAllreduce", "Ring", "HalvingDoubling", "SharedWindow", "Dummy"])
def test_communicators_that_add_up_by_themselves_cannot_hold_them(cluster, kind):
    why = why_not_exact(cluster(f"exchange: {{communicator: {{kind: {kind}}}}}"), {})
    assert f"has gradients summed by {kind}, whose order depends on the ranks; leave exchange.communicator out" in why


@pytest.mark.parametrize("kind", ["Auto", "Direct"])
def test_those_that_leave_it_open_are_not(cluster, kind):
    assert why_not_exact(cluster(f"exchange: {{communicator: {{kind: {kind}}}}}"), {}) is None
    assert why_not_exact(cluster(), {}) is None


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_16_bits_on_the_wire_cannot(cluster, wire):
    assert f"cluster ours has {wire} on the wire" in why_not_exact(cluster(f"exchange: {{wire: {wire}}}"), {})


def test_a_gpu_can_where_that_is_asked_for(cluster):
    assert "--exact makes them equal" in why_not_exact(cluster(device="gpu"), {})
    assert why_not_exact(cluster(device="gpu"), {}, asked=True) is None


@pytest.mark.parametrize("name", THREADS)
def test_more_than_one_thread_cannot(cluster, name):
    assert f"{name} is 2, and equal bits take one BLAS thread a rank; unset it" in why_not_exact(cluster(), {name: "2"})
    assert why_not_exact(cluster(), {name: "1"}) is None
    assert why_not_exact(cluster(), {name: ""}) is None


def planned(monkeypatch, *overrides, exact=None, **what):
    for name in THREADS:
        monkeypatch.setenv(name, "1")
    workers = what.pop("workers", 1)
    return prepare(TrainRequest(recipe="digits/ramp", overrides=overrides, exact=exact, **what), workers=workers).plan


@pytest.mark.parametrize(
    ("micro_batch_size", "parts"),
    [
        (32, [(32 * number, 32) for number in range(3)]),
        (None, [(0, 64), (64, 32)]),
        (192, [(0, 64), (64, 32)]),  # worker 0 has groups 0 and 1
    ],
)
def test_a_forward_is_a_node_of_the_tree(monkeypatch, micro_batch_size, parts):
    made = planned(monkeypatch, workers=2, micro_batch_size=micro_batch_size)
    assert made.as_tree()["exact"] is True
    division = made.segments[0].division
    assert [(part.offset, part.size) for rank in range(2) for part in division.micro_batches(rank)] == parts


def test_norms_are_measured_of_single_norm_groups(monkeypatch):
    made = planned(monkeypatch, measure_noise=True, micro_batch_size=192)
    assert [segment.division.num_whole_micro_batches for segment in made.segments] == [3, 6]


def test_fast_gives_them_up_and_says_so(monkeypatch):
    made = planned(monkeypatch, exact=False)
    assert (made.exact, made.why_not_exact) == (False, "--fast")


def test_more_workers_than_norm_groups_leave_some_without(monkeypatch):
    made = planned(monkeypatch, workers=5)
    assert [segment.division.idle_workers for segment in made.segments] == [2, 0]
    assert "2 of 5 workers have no samples" in made.warnings[0]
    assert len(made.warnings) == 1
    end = made.segments[1].segment.update
    assert (made.warnings_after(end - 1), made.warnings_after(end)) == (made.warnings, ())


def test_a_norm_group_that_no_worker_holds_cannot(monkeypatch):
    why = "takes each norm group of 32 samples from one worker, whose micro-batch is 16; what fits: norm_span 16"
    made = planned(monkeypatch, workers=2, micro_batch_size=16)
    assert not made.exact
    assert why in made.why_not_exact
    with pytest.raises(ExactRefused, match=f"--exact cannot be held: .*{why}"):
        planned(monkeypatch, workers=2, micro_batch_size=16, exact=True)


def test_a_refusal_ends_with_2_and_nothing_written(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    command = [sys.executable, "-P", "-m", "kilobatch", "train", "digits/ramp", "--exact", "--out", tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("kilobatch: --exact cannot be held: OMP_NUM_THREADS is 2, and equal bits take one")
    assert not (tmp_path / "run").exists()


@pytest.fixture
def run(tmp_path):
    """A folder with a checkpoint, trained as the environment given says."""
    (tmp_path / "checkpoints" / "update-000003").mkdir(parents=True)

    def write(**environment):
        (tmp_path / "environment.json").write_text(json.dumps(environment))
        return tmp_path

    return write


def test_a_run_goes_on_where_it_was_made(run, tmp_path):
    require_same_machine(run(exact=True, **numerical_environment()))
    (tmp_path / "checkpoints" / "update-000003").rmdir()
    require_same_machine(run(exact=False))  # nothing to go on with


def test_another_processor_or_version_is_refused_naming_both(run):
    now = numerical_environment()
    before = {**now, "cpu_model": "Other-1-2-3", "versions": {**now["versions"], "numpy": "1.0"}}
    with pytest.raises(ExactRefused) as refusal:
        require_same_machine(run(exact=True, **before))
    assert f"cpu_model: 'Other-1-2-3' in the run, '{now['cpu_model']}' now" in str(refusal.value)
    assert f"versions.numpy: '1.0' in the run, '{now['versions']['numpy']}' now" in str(refusal.value)
    assert str(refusal.value).count(" now") == 2


@pytest.mark.parametrize("environment", [{}, {"exact": False}])
def test_an_ordinary_run_does_not_become_an_exact_one(run, environment):
    with pytest.raises(ExactRefused, match="its weights so far depend on how it was divided"):
        require_same_machine(run(**environment, **numerical_environment()))


def test_on_a_gpu_another_version_of_a_library_is_refused_once_the_gpu_is_taken(run):
    now = numerical_environment()
    folder = run(exact=True, **now | {"kernels": now["kernels"] | {"cublas": "130200"}})
    with pytest.raises(RunFailed, match=r"kernels\.cublas: '130200' in the run, None now; resume without --exact"):
        hold_on_gpu(MPI.COMM_SELF, folder)
    hold_on_gpu(MPI.COMM_SELF, run(exact=True, **now))
    hold_on_gpu(MPI.COMM_SELF, None)


def test_without_a_record_nothing_is_promised(run, tmp_path):
    run()
    for text in ("", "{"):
        (tmp_path / "environment.json").write_text(text)
        with pytest.raises(ExactRefused, match=r"environment\.json is missing or damaged, so it is not known where"):
            require_same_machine(tmp_path)


def test_a_resume_elsewhere_ends_with_2(run, monkeypatch):
    for name in THREADS:
        monkeypatch.setenv(name, "1")
    folder = run(exact=True, **{**numerical_environment(), "cpu_model": "Other-1-2-3"})
    opened = open_recipe("digits/ramp", vocabulary=vocabulary())
    record = {"kilobatch": 1, "recipe": opened.tree, "dataset": dataset_facts(opened.dataset)}
    (folder / "run.yaml").write_text(block_text(record))
    command = [sys.executable, "-P", "-m", "kilobatch", "train", "digits/ramp", "--exact", "--resume", "--out", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "cpu_model: 'Other-1-2-3' in the run" in done.stderr
    assert not (folder / "log.txt").exists()


def test_one_machine_agrees_with_itself():
    assert unlike_hosts(MPI.COMM_SELF) is None
