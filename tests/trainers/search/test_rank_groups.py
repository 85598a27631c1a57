"""Groups of ranks: their messages, where they run, and the words that start them there."""

import json
import os
import time
from pathlib import Path

import pytest

from recipes.errors import RecipeError
from trainers.launch.request import TrainRequest
from trainers.search import rank_groups
from trainers.search.rank_groups import (
    MessageReader,
    Placement,
    hosts_named,
    launcher_command,
    placements,
    write_message,
)


def test_each_message_comes_once_and_in_order(tmp_path):
    path = tmp_path / "orders.jsonl"
    reader = MessageReader(path)
    assert reader.read() == []
    for number in range(3):
        write_message(path, {"number": number})
    assert reader.read() == [{"number": 0}, {"number": 1}, {"number": 2}]
    assert reader.read() == []
    write_message(path, {"number": 3})
    assert reader.read() == [{"number": 3}]


def test_a_message_that_is_not_yet_whole_comes_later(tmp_path):
    path = tmp_path / "orders.jsonl"
    reader = MessageReader(path)
    path.write_bytes(b'{"a": 1}\n{"b"')
    assert reader.read() == [{"a": 1}]
    with open(path, "ab") as file:
        file.write(b": 2}\n")
    assert reader.read() == [{"b": 2}]


def test_a_writer_is_dead_when_its_file_has_not_been_touched_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_groups, "_DEAD_SECONDS", 0.05)
    path = tmp_path / "orders.jsonl"
    reader = MessageReader(path)
    reader.read()
    time.sleep(0.06)
    assert not reader.writer_is_dead  # it was never there
    path.touch()
    reader.read()
    assert not reader.writer_is_dead
    time.sleep(0.06)
    os.utime(path, (1, 1))  # the time that another host's clock sets does not matter
    reader.read()
    assert not reader.writer_is_dead
    time.sleep(0.06)
    reader.read()
    assert reader.writer_is_dead
    path.unlink()
    assert reader.read() == []
    assert reader.writer_is_dead


@pytest.mark.parametrize(
    "request_",
    [
        TrainRequest(recipe="digits/ramp"),
        TrainRequest(recipe="a.yaml", overrides=("a=1", "b=[1]"), out="x/y", data="z", resume=True, watchdog_seconds=3),
    ],
)
def test_a_request_is_the_same_after_the_journey(request_):
    sent = TrainRequest.from_tree(request_.as_tree())  # with paths
    assert TrainRequest.from_tree(json.loads(json.dumps(sent.as_tree()))) == sent
    assert sent.overrides == request_.overrides


HERE = {"PATH": "/nowhere"}


@pytest.fixture
def allocation(tmp_path):
    """The environment of a batch script, with a `srun` on its path."""
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\n")
    srun.chmod(0o755)
    return {"PATH": str(tmp_path), "SLURM_JOB_ID": "17", "SLURM_NTASKS": "12", "SLURM_CPUS_PER_TASK": "4"}


def test_groups_of_this_machine():
    groups = placements(each=2, workers=5, environment=HERE)
    assert groups == [
        Placement(ranks=2, max_ranks_per_host=5),
        Placement(ranks=2, max_ranks_per_host=5, ranks_before=2),
    ]
    path, *words = launcher_command(groups[0], HERE)
    assert Path(path).name == "mpiexec"
    assert words == ["-n", "2"]


def test_without_a_number_there_is_one_group():
    assert placements(each=3, workers=None, environment=HERE) == [Placement(ranks=3, max_ranks_per_host=3)]


def test_groups_take_consecutive_ranks_of_the_hosts():
    groups = placements(each=3, workers=9, hosts="a:4,b", environment=HERE)
    assert [group.hosts for group in groups] == [(("a", 3),), (("a", 1), ("b", 2)), (("b", 3),)]
    assert [group.max_ranks_per_host for group in groups] == [4, 5, 5]
    assert [group.ranks_before for group in groups] == [0, 3, 2]
    assert launcher_command(groups[1], HERE)[1:] == ["-hosts", "a:1,b:2", "-n", "3"]


def test_hosts_that_all_have_a_number_say_how_many_ranks_there_are():
    assert len(placements(each=2, workers=None, hosts="a:2,b:4", environment=HERE)) == 3


def test_slurms_number_of_tasks_is_ignored_without_srun():
    """Under its environment and without its srun, as in a container."""
    assert placements(each=3, workers=None, environment={**HERE, "SLURM_NTASKS": "12"}) == [
        Placement(ranks=3, max_ranks_per_host=3)
    ]


@pytest.mark.parametrize(
    ("hosts", "workers", "expected"),
    [
        ("a,b,c:4", 8, [("a", 2), ("b", 2), ("c", 4)]),
        ("a", 3, [("a", 3)]),
        ("a:1, b:2", None, [("a", 1), ("b", 2)]),
        ("10.0.0.1,node-7.cluster", 4, [("10.0.0.1", 2), ("node-7.cluster", 2)]),
    ],
)
def test_hosts_share_what_is_left(hosts, workers, expected):
    assert hosts_named(hosts, workers) == expected


@pytest.mark.parametrize(
    ("hosts", "workers", "message"),
    [
        ("a,b", 3, "do not add up to 3 ranks"),
        ("a,b:4", 4, "do not add up to 4 ranks"),
        ("a:1,b:1", 3, "do not add up to 3 ranks"),
        ("a,,b", 2, "is no list of hosts"),
        ("a:x", 2, "is no list of hosts"),
        ("a:0", 2, "is no list of hosts"),
        ("a:", 2, "is no list of hosts"),
        ("a,a", 2, "names a host twice"),
        ("a,b", None, "does not say how many ranks"),
    ],
)
def test_hosts_that_make_no_sense_are_refused(hosts, workers, message):
    with pytest.raises(RecipeError, match=message):
        hosts_named(hosts, workers)


def test_fewer_ranks_than_a_trial_takes_are_refused():
    with pytest.raises(RecipeError, match="3 ranks are fewer than the 4 of a trial"):
        placements(each=4, workers=3, environment=HERE)


def test_groups_are_steps_of_the_allocation(allocation):
    groups = placements(each=4, workers=None, environment=allocation)
    assert groups == [Placement(ranks=4, slurm=True)] * 3
    words = "srun --ntasks=4 --exact --kill-on-bad-exit=1 --input=none --cpus-per-task=4"
    assert launcher_command(groups[0], allocation) == words.split()
    assert len(placements(each=4, workers=8, environment=allocation)) == 2


def test_hosts_that_are_named_count_more_than_the_allocation(allocation):
    assert not placements(each=1, workers=2, hosts="a,b", environment=allocation)[0].slurm


def test_an_allocation_without_srun_is_this_machine(allocation):
    groups = placements(each=1, workers=2, environment={**allocation, "PATH": os.devnull})
    assert groups == [
        Placement(ranks=1, max_ranks_per_host=2),
        Placement(ranks=1, max_ranks_per_host=2, ranks_before=1),
    ]
