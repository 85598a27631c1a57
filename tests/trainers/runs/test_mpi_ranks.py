"""Ranks: found where a launcher started them, given their share of the cores."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainers.runs import mpi_ranks
from trainers.runs.mpi_ranks import (
    KERNEL_THREADS,
    THREADS,
    LaunchError,
    _tee,
    find_mpiexec,
    in_slurm_shell,
    launched_by_us,
    launched_ranks,
    limit_threads,
    process_fields,
    process_mark,
    ranks_that_share_cores,
    start_ranks,
    threads_per_rank,
)


@pytest.fixture(autouse=True)
def same_environment(monkeypatch):
    """`limit_threads` sets variables of this process, which later tests would find."""
    before = dict(os.environ)
    monkeypatch.setattr(mpi_ranks, "_limited", set(mpi_ranks._limited))
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"PMI_RANK": "3", "PMI_SIZE": "4"}, 4),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "8"}, 8),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "16"}, 16),
        ({"SLURM_PROCID": "0", "SLURM_JOB_ID": "1"}, None),  # inside an allocation, not started by srun
    ],
)
def test_launchers_are_recognised(environment, expected):
    assert launched_ranks(environment) == expected
    assert not launched_by_us(environment)
    assert launched_by_us({**environment, "KILOBATCH_LAUNCHED": "1"})


@pytest.mark.parametrize(
    ("environment", "expected", "ranks"),
    [
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, True, None),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "KILOBATCH_LAUNCHED": "kilobatch search a"}, False, 1),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, False, 2),
        ({"SLURM_PROCID": "0", "SLURM_JOB_ID": "1"}, False, None),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "PMI_RANK": "0", "PMI_SIZE": "1"}, False, 1),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, False, 1),
        ({}, False, None),
    ],
)
def test_a_shell_that_srun_started_is_told_from_a_rank(environment, expected, ranks):
    assert in_slurm_shell(environment) == expected
    assert launched_ranks(environment) == ranks


@pytest.mark.parametrize("environment", [None, {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}])
def test_in_such_a_shell_only_ranks_are_taken_for_ranks(tmp_path, monkeypatch, environment):
    def popen(command, *, env, **how):
        found.append(launched_ranks(env))
        raise LaunchError("not started")

    found = []
    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    with pytest.raises(LaunchError, match="not started"):
        start_ranks(2, ["recipes", "path"], log=tmp_path / "log.txt", environment=environment)
    assert found == [None]


def test_a_process_whose_name_is_cut_within_a_character_is_known():
    name, mark = Path("/proc/self/comm"), process_mark(os.getpid())
    before = name.read_bytes()
    name.write_bytes("ein Lauf ) mit\u00e4".encode()[:-1])
    try:
        assert process_mark(os.getpid()) == mark
        assert process_fields(os.getpid())[0] == "R"
    finally:
        name.write_bytes(before)
    assert process_fields(0) == []


def test_cores_are_divided_and_nobody_gets_none():
    cores = len(os.sched_getaffinity(0))
    assert threads_per_rank(1) == cores
    assert threads_per_rank(10 * cores) == 1


@pytest.mark.parametrize(
    ("settings", "threads", "blas_threads"),
    [
        ({"OMP_NUM_THREADS": "7"}, 7, "7"),
        ({"OPENBLAS_NUM_THREADS": "7"}, 1, "7"),
        (dict.fromkeys(THREADS, ""), 1, "1"),
        ({"OMP_NUM_THREADS": "4,2"}, 4, "4"),
        ({"OMP_NUM_THREADS": " 01"}, 1, "1"),
    ],
    ids=["OpenMP's holds for BLAS too", "BLAS's not for OpenMP", "an empty one is none", "OpenMP's list", "spaces"],
)
def test_a_users_own_setting_is_kept(monkeypatch, settings, threads, blas_threads):
    for name in (KERNEL_THREADS, *THREADS):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert limit_threads(10_000) == threads
    assert os.environ["OPENBLAS_NUM_THREADS"] == blas_threads


@pytest.mark.parametrize("name", [KERNEL_THREADS, *THREADS])
@pytest.mark.parametrize("text", ["many", "0", "-1", "²", ",2", "99999", "9" * 5000])
def test_what_is_no_number_of_threads_is_refused_by_name(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(LaunchError, match=f"{name}=.* is no number of threads"):
        limit_threads(1)


@pytest.mark.parametrize("users", ["1", None])
def test_our_kernels_have_a_users_own_number_of_threads(monkeypatch, users):
    for name in (KERNEL_THREADS, *THREADS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(mpi_ranks, "_limited", set())
    if users is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", users)
    for _ in range(2):  # what was set the first time is no user's
        limit_threads(1, threads=1, kernels_share_cores=True)
    assert os.environ[KERNEL_THREADS] == (users or str(threads_per_rank(1)))
    assert os.environ["OMP_NUM_THREADS"] == "1"


def test_errors_of_ranks_are_kept_though_the_disk_of_the_log_is_full():
    text = []
    _tee(io.BytesIO(b"OSError: no space\nand more\n"), Path("/dev/full"), text)
    assert text == ["OSError: no space\n", "and more\n"]


def test_ranks_start_on_this_machine_though_a_scheduler_has_allocated_others(tmp_path, monkeypatch):
    """As in a container of a Slurm job, which has Slurm's environment and no srun: mpiexec waited without end."""
    job = {"SLURM_JOB_ID": "3", "SLURM_NNODES": "2", "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "2(x2)"}
    for name, value in {**job, "SLURM_JOBID": "3", "SLURM_NODELIST": "n[1-2]", "SLURM_JOB_NODELIST": "n[1-2]"}.items():
        monkeypatch.setenv(name, value)

    ranks = start_ranks(2, ["recipes", "path"], log=tmp_path / "log.txt")
    try:
        code = ranks.process.wait(timeout=30)
    finally:
        ranks.kill()
        text = ranks.errors()
        ranks.process.stderr.close()

    assert code == 2  # no such command: both ranks began and reported it
    assert text.count("No such command") == 2


def test_a_file_beside_this_python_that_cannot_be_run_is_no_mpiexec(tmp_path, monkeypatch):
    (tmp_path / "mpiexec").touch()
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(LaunchError, match="pip install mpich"):
        find_mpiexec()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"MPI_LOCALNRANKS": "4", "SLURM_TASKS_PER_NODE": "1", "SLURM_CPUS_PER_TASK": "8"}, 4),  # mpiexec in a job
        ({"SLURM_TASKS_PER_NODE": "8(x2)", "SLURM_CPUS_PER_TASK": "8"}, 1),  # bound to cores of its own
        ({"SLURM_TASKS_PER_NODE": "2,1", "SLURM_CPUS_PER_TASK": "4"}, 2),  # not bound
        ({"SLURM_TASKS_PER_NODE": "1(x3),12"}, 12),
        ({"PMI_RANK": "0", "PMI_SIZE": "3"}, 3),
        ({}, 1),
    ],
)
def test_cores_are_divided_between_the_ranks_that_share_them(environment, expected):
    assert ranks_that_share_cores(environment, cores=8) == expected
