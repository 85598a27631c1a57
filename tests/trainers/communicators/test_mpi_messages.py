"""Workers that wait for each other in shared memory: right sums, and no core kept busy with waiting."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainers.runs.mpi_ranks import find_mpiexec

PROGRAM = Path(__file__).with_name("meetings_on_ranks.py")


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 3])
def test_who_waits_for_a_late_rank_sleeps_and_sums_are_right(ranks):
    command = [find_mpiexec(), "-n", str(ranks), sys.executable, "-W", "error", "-m", "mpi4py", str(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for waited, processor in json.loads(done.stdout):
        assert waited > 0.99, "nobody leaves before all have come"
        assert processor < 0.8, "spinning would cost a second of a core and more"
