"""Benchmarks run, and all that they measure has figures; their times are for quiet machines."""

import doctest
from pathlib import Path

import pytest

from trainers import augmentations, communicators

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


@pytest.mark.mpi
def test_every_way_has_figures_of_every_round(run):
    options = "--model small --ranks 2 --rounds 2 --turns 1 --buckets 0 --wires float32 bfloat16"
    lines, (figures,) = run("allreduce.py", options)
    ours = {*communicators.__all__, "Ring+sockets"} - {"Dummy", "Nccl"}
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


def test_every_augmentation_has_a_figure(run):
    from augmentations import cases

    lines, figures = run("augmentations.py", "--size 32 --images 1 --rounds 1")
    known = cases(32)
    assert {name.partition(",")[0] for name in known} == set(augmentations.__all__)
    assert figures["augmentations"].keys() == known.keys()
    for name, (_, peer) in known.items():
        assert all(figure is None or figure > 0 for figure in figures["augmentations"][name].values())
        assert (figures["augmentations"][name]["ratio"] is not None) == (peer is not None)
    assert len([line for line in lines if line.startswith("| ")]) == 1 + len(known)


@pytest.mark.slow
@pytest.mark.mpi
def test_every_loop_has_figures_of_every_round(run):
    lines, (figures,) = run("updater.py", "--cases digits --ranks 2 --rounds 2 --updates 1")
    assert figures["ranks"] * figures["micro_batches"] * figures["micro_batch_size"] == 512
    assert figures["global_batch_size"] == 512
    assert figures["seconds"].keys() == {"updater", "noise", "bare", "plain norm"}
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in figures["seconds"].values())
    for one, other in (("updater", "bare"), ("noise", "updater"), ("bare", "plain norm")):
        pairs = zip(figures["seconds"][one], figures["seconds"][other], strict=True)
        assert figures[f"{one}_over_{other}".replace(" ", "_")] == pytest.approx([a / b for a, b in pairs])
    assert figures["weight_difference"] < 1e-5
    assert lines[-1].startswith("| digits | 2 | ")


@pytest.mark.torch
@pytest.mark.skipif(not FASHION_MNIST.is_dir(), reason="needs Fashion-MNIST: apt-get install dataset-fashion-mnist")
def test_small_images_have_figures_beside_loops_that_do_the_same_work(run):
    lines, (figures,) = run("small_images.py", "--batches 64 --rounds 2 --updates 1")
    assert figures["seconds"].keys() == {"exact", "fast", "pytorch", "channels_last"}
    pairs = zip(figures["seconds"]["pytorch"], figures["seconds"]["exact"], strict=True)
    assert figures["times_as_fast"]["exact_over_pytorch"] == pytest.approx([a / b for a, b in pairs])
    assert lines[-1].startswith("| 64 | ")


@pytest.mark.parametrize("name", ["timing", "slow_network"])
def test_doctests(name):
    assert doctest.testmod(__import__(name)).failed == 0


def test_medians_are_those_of_the_turns_of_a_round():
    from timing import medians_of_turns

    order, values = [], {"a": iter([1, 2, 9, 4, 5, 6]), "b": iter(range(6))}

    def call(name):
        order.append(name)
        return next(values[name])

    calls = {name: lambda name=name: call(name) for name in values}
    assert medians_of_turns(calls, rounds=2, turns=3) == {"a": [2, 5], "b": [1, 4]}
    assert "".join(order) == "abba" * 3
