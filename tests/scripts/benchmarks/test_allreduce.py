"""Every way of the all-reduce benchmark has its figures; its times are for quiet machines."""

import pytest

from trainers import communicators


@pytest.mark.mpi
def test_every_way_has_figures_of_every_round(run):
    options = "--model small --ranks 2 --rounds 2 --turns 1 --buckets 0 --wires float32 bfloat16"
    lines, (figures,) = run("allreduce.py", options)
    ours = {*communicators.__all__, "Ring+sockets"} - {"CudaAwareMpi", "Dummy", "Nccl"}
    seconds = figures["seconds"]
    assert {way.split(",")[0] for way in seconds} - {"gloo"} == ours | {"naive", "copy"}
    assert "Ring, whole, bfloat16" in seconds
    assert "MpiAllreduce, whole, bfloat16" not in seconds
    assert all(difference < 0.05 for difference in figures["differences"].values())
    for way, times in seconds.items():
        assert len(times) == 2
        assert figures["times_naive"][way] == pytest.approx([seconds["naive"][i] / times[i] for i in (0, 1)])
        assert figures["times_copy"][way] == pytest.approx([times[i] / seconds["copy"][i] for i in (0, 1)])
    assert len([line for line in lines if line.startswith("| 2 |")]) == len(seconds)
