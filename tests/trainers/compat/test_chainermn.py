"""ChainerMN on two real MPI ranks, with its naive communicator and with ours: one launch each, one test a check."""

import re
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("two_ranks.py")
CHECKS = re.findall(r"^def (check_\w+)", PROGRAM.read_text(), re.MULTILINE)

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module", params=["naive", "ours"])
def launch(request, run_on_ranks):
    return run_on_ranks(2, PROGRAM, request.param)


@pytest.mark.parametrize("check", CHECKS)
def test_chainermn_on_two_ranks(launch, check):
    assert f"passed {check}\n" in launch.stdout, f"failed here or in an earlier check:\n{launch.stderr}"


def test_both_ranks_end_well_after_all_checks(launch):
    assert len(CHECKS) == 17
    assert launch.returncode == 0, launch.stderr
