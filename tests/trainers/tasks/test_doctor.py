"""The doctor's findings on this machine, and each fault that can be had without breaking it."""

import json
import socket
import subprocess
import sys

import pytest

from trainers.runs.mpi_ranks import find_mpiexec
from trainers.tasks import doctor


@pytest.fixture(scope="module")
def diagnosis():
    return doctor.examine()


@pytest.mark.mpi
def test_this_environment_trains_on_the_cpu(diagnosis):
    assert [problem for problem in diagnosis.problems if problem.stops_cpu_training] == []
    assert diagnosis.trains_on_cpu
    assert diagnosis.sections["versions"]["chainer"] == diagnosis.sections["versions"]["chainermn"] == "7.8.1"
    assert diagnosis.sections["mpi"]["ranks_started"] == 2
    assert "MPI" in diagnosis.sections["mpi"]["library"]


@pytest.mark.mpi
def test_json_and_terminal_have_versions_patches_and_the_verdict(diagnosis, capsys):
    doctor.print_diagnosis(diagnosis, as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed == diagnosis.as_dict()
    assert printed["trains_on_cpu"]
    assert len(printed["patches"]) == 25
    doctor.print_diagnosis(diagnosis)
    shown = capsys.readouterr().out
    for word in ("7.8.1", "mpiexec", "threads per rank", "patches (--json: names", "Training on the CPU works."):
        assert word in shown
    assert "None" not in shown
    assert [line for line in shown.splitlines() if line.startswith("applied ")][0].split()[1].isdigit()
    assert all(line == line.rstrip() for line in shown.splitlines())


@pytest.mark.mpi
def test_ranks_that_do_not_end_in_time_stop_training():
    diagnosis = doctor.examine(mpi_timeout_seconds=0.001)
    (problem,) = (problem for problem in diagnosis.problems if problem.stops_cpu_training)
    assert "did not end within 0.001 s" in problem.what
    assert "mpich" in problem.way_out
    assert not diagnosis.trains_on_cpu


@pytest.mark.mpi
@pytest.mark.parametrize(
    "error",
    [
        "MPIDI_UCX_init_worker(86): ucx function returned with failed status (Shared memory error)",
        "MPIDI_POSIX_comm_bootstrap(288).......: Out of memory",
    ],
    ids=["UCX", "POSIX"],
)
def test_a_dev_shm_that_mpi_cannot_write_to_is_mended_by_no_other_mpi(tmp_path, monkeypatch, error):
    """MPICH's messages where /dev/shm is read-only."""
    command = tmp_path / "mpiexec"
    command.write_text(f"#!/bin/sh\necho '{error}' >&2\nexit 15\n")
    command.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    problems = []
    doctor._mpi(problems, 20.0)

    assert problems[0].what == f"mpiexec -n 2 fails: {error}"
    assert problems[0].way_out.startswith("let MPI write to /dev/shm, and make room there")


def test_a_thread_level_below_multiple_is_named_with_its_way_out(monkeypatch):
    monkeypatch.setenv("MPI4PY_RC_THREAD_LEVEL", "serialized")
    problems = []
    assert doctor._mpi(problems, 60.0)["thread_level"] == "serialized"
    (problem,) = problems
    assert "MPI's thread level is serialized" in problem.what
    assert "overlap=false" in problem.way_out
    assert not problem.stops_cpu_training


@pytest.mark.mpi
def test_under_a_launcher_its_ranks_join_and_one_of_each_host_prints():
    program = """
from trainers.tasks import doctor
problems = []
facts = doctor._mpi(problems, 60.0)
print(problems, facts["thread_level"], facts["ranks_joined"], facts["ranks_here"], flush=True)
doctor.print_diagnosis(doctor.Diagnosis(sections={"mpi": facts}, patches=[]))
"""
    command = [find_mpiexec(), "-n", "2", sys.executable, "-P", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    # The launcher may mix the lines of both.
    assert done.stdout.count("[] multiple 2 of 2 [0, 1]") == 2, done.stdout + done.stderr
    assert done.stdout.count("Training on the CPU works.") == 1
    assert f"rank 0 of 2 on {socket.gethostname()}" in done.stdout


def test_kernels_of_an_unknown_name_are_named_once_and_not_as_packages_to_be_installed_again(monkeypatch):
    monkeypatch.setattr(doctor, "_mpi", lambda *_: {})
    monkeypatch.setenv("KILOBATCH_KERNELS", "x")
    for name in ("chainer", "chainermn", "chainercv"):  # none can be imported then
        monkeypatch.setitem(sys.modules, name, None)
    problems = [problem for problem in doctor.examine().problems if problem.stops_cpu_training]
    assert [problem.what for problem in problems] == ["no kernels are called x"]


@pytest.mark.parametrize("threads", ["100000", "²"])
def test_too_many_threads_are_named_with_their_way_out(monkeypatch, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    problems = []
    doctor._machine(problems)
    assert any(f"OMP_NUM_THREADS={threads}" in problem.what and "unset" in problem.way_out for problem in problems)
    assert not any(problem.stops_cpu_training for problem in problems)


def test_little_shared_memory_names_what_killed_ranks_left(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "_SMALL_SHARED_MEMORY", 1 << 60)
    (tmp_path / "mpich_shm_1").touch()
    problems = []
    assert doctor._shared_memory(problems, tmp_path)["shared_memory_files"] == 1
    (problem,) = problems
    assert "--shm-size" in problem.way_out
    assert "mpich_shm_* (1 files" in problem.way_out
