"""Every communicator, wire and size of buckets on real ranks, with overlap and without; a launch a number of ranks."""

import itertools
import json
from pathlib import Path

import pytest

from trainers import communicators
from trainers.communicators.mpi_allreduce import takes_gpu_memory
from trainers.training.device import has_gpu

PROGRAM = Path(__file__).with_name("sums_on_ranks.py")
RANKS = (1, 2, 3, 4)
FACTORS = ("ranks", "communicator", "wire", "bucket_bytes")
SUMMING = set(communicators.__all__) - {"Dummy", "Nccl", "CudaAwareMpi"}
NEVER_TOGETHER = {
    ("MpiAllreduce", "float16"),
    ("MpiAllreduce", "bfloat16"),
    (1, "Torus 2"),
    (3, "Torus 2"),
    (3, "SharedWindow 2"),
}

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def launched(run_on_ranks):
    """Lines that the program printed: launched(which, ranks); each launch happens once."""
    done = {}

    def launch(which, ranks):
        if (which, ranks) not in done:
            ended = run_on_ranks(ranks, PROGRAM, which, timeout=1200)
            assert ended.returncode == 0, ended.stdout + ended.stderr
            done[which, ranks] = [json.loads(line) for line in ended.stdout.splitlines()]
        return done[which, ranks]

    return launch


def assert_right(lines, ranks, measured=("Auto 2", "Auto 2 measured")):
    assert lines
    for line in lines:
        assert line["ranks"] == ranks
        if "refused" not in line:
            assert line["error_over_bound"] <= 1, line
            assert line["identical"], line
            assert line["overlap_changes_no_bit"] or not line["same_algorithm"], line
            assert line["same_algorithm"] or line["communicator"] in measured, line


@pytest.mark.parametrize("ranks", RANKS)
def test_sums_are_numpys_the_same_bits_on_all_ranks_and_with_overlap(launched, ranks):
    assert_right(launched("pairs", ranks), ranks)


def test_every_two_values_of_two_factors_have_met(launched):
    lines = [line for ranks in RANKS for line in launched("pairs", ranks)]
    met = {pair for line in lines if "refused" not in line for pair in pairs_of(line)}
    values = [dict.fromkeys(line[factor] for line in lines) for factor in FACTORS]
    assert [len(found) for found in values[::2]] == [4, 4]
    assert {name.split()[0] for name in values[1]} == SUMMING
    possible = {pair for some, more in itertools.combinations(values, 2) for pair in itertools.product(some, more)}
    assert possible - met == NEVER_TOGETHER


def pairs_of(line):
    return itertools.combinations([line[factor] for factor in FACTORS], 2)


def test_what_cannot_be_summed_is_refused_on_all_ranks_alike(launched):
    refused = [line for ranks in RANKS for line in launched("pairs", ranks) if "refused" in line]
    met = {pair for line in refused for pair in pairs_of(line)}
    assert met >= NEVER_TOGETHER


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [*RANKS, 5, 8])
def test_the_whole_product(launched, ranks):
    lines = launched("all", ranks)
    assert_right(lines, ranks)
    assert len(lines) >= 14 * 4 * 2
    assert {line["communicator"].split()[0] for line in lines} == SUMMING


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="needs a GPU with CuPy")
@pytest.mark.parametrize("ranks", [1, 2])
def test_sums_in_the_memory_of_gpus(launched, ranks):
    """One rank through NCCL, two through host memory; where there is one GPU, NCCL refuses two ranks on it.

    Where this MPI is CUDA-aware, by that, too.
    """
    lines = launched("gpu", ranks)
    assert len(lines) == 7 * 4 * 3
    assert_right(lines, ranks, measured=("Auto", "Auto measured"))
    refused = {(line["communicator"], line["wire"]) for line in lines if "refused" in line}
    by_mpi = itertools.product(["CudaAwareMpi", "Auto measured"], ["float32", "float64", "float16", "bfloat16"])
    if takes_gpu_memory():
        by_mpi = [("CudaAwareMpi", "float16"), ("CudaAwareMpi", "bfloat16")]
    assert {case for case in refused if case[0] != "Nccl"} == set(by_mpi)
    assert ranks > 1 or not any(name == "Nccl" for name, _ in refused)


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="needs a GPU with CuPy")
def test_auto_reports_how_two_ranks_sum_in_the_memory_of_gpus(launched):
    lines = launched("gpu", 2)
    expected = "CudaAwareMpi or through host memory, " if takes_gpu_memory() else "through host memory, "
    if not any("refused" in line for line in lines if line["communicator"] == "Nccl"):
        expected = "Nccl: every worker has a GPU of its own"
    choices = {line["choices"][0].partition("because ")[0] for line in lines if line["communicator"] == "Auto"}
    assert choices == {expected}
