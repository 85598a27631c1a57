"""Messages between the supervisor and the ranks of a group."""

import json
import os
import time

import pytest

from trainers.launch.request import TrainRequest
from trainers.search import rank_groups
from trainers.search.rank_groups import MessageReader, write_message


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


def test_silence_begins_where_nobody_touches_the_file_any_more(tmp_path, monkeypatch):
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
    os.utime(path, (1, 1))  # whatever the clock of whoever touches it says
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
