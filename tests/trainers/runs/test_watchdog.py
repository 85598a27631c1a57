"""Which rank is at fault is found from the heartbeats of all ranks."""

import json
import re
import time
from dataclasses import asdict, replace

import pytest

from trainers.runs.heartbeat import HeartbeatRecord, heartbeat_file, read_heartbeat
from trainers.runs.run_folder import RANKS
from trainers.runs.watchdog import Watchdog, watchers

SECONDS = 0.4
WAITING = HeartbeatRecord(
    rank=0,
    host="one",
    process=1,
    beat=1,
    update=7,
    still_seconds=1.0,
    allowed_seconds=SECONDS,
    waits=True,
    stack=("a.py:1 in wait: mpi.Barrier()",),
    finished=False,
)
WORKING = replace(WAITING, waits=False, still_seconds=0.1, stack=())
HANGING = replace(WAITING, waits=False, stack=("b.py:2 in net: time.sleep(1000)",))


def message(folder, own, others, *, silent=(), seconds=5 * SECONDS):
    """The message of the watchdog of `own`, while all but the silent write heartbeats."""
    (folder / RANKS).mkdir(exist_ok=True)
    dog = Watchdog(folder, rank=own.rank, num_ranks=1 + len(others), seconds=SECONDS)
    for beat in range(int(20 * seconds / SECONDS)):
        for record in (own, *others):
            if record.rank not in silent or beat == 0:
                heartbeat_file(folder, record.rank).write_text(json.dumps(asdict(replace(record, beat=beat))))
        text = dog.check(replace(own, beat=beat))
        if text is not None:
            return text
        time.sleep(SECONDS / 20)
    return None


def test_a_heartbeat_is_read_as_it_was_written_and_half_of_it_is_none(tmp_path):
    (tmp_path / RANKS).mkdir()
    text = json.dumps(asdict(WAITING))
    heartbeat_file(tmp_path, 3).write_text(text)
    assert read_heartbeat(tmp_path, 3) == WAITING
    heartbeat_file(tmp_path, 3).write_text(text[:40])
    assert read_heartbeat(tmp_path, 3) is None
    assert read_heartbeat(tmp_path, 4) is None


@pytest.mark.parametrize(
    ("ranks", "expected"), [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (4, [0, 1, 2, 3]), (1024, [0, 341, 682, 1023])]
)
def test_at_most_four_ranks_watch(ranks, expected):
    assert watchers(ranks) == expected


def test_the_one_that_does_not_wait_is_named_with_its_stack(tmp_path):
    text = message(tmp_path, WAITING, [replace(HANGING, rank=1, host="two"), replace(WAITING, rank=2)])
    assert text.splitlines() == [
        "rank 1 on two hangs in update 7, for 1.0 s:",
        "  b.py:2 in net: time.sleep(1000)",
        "No progress in update 7 for 1.0 s; --watchdog allows 0.4.",
    ]


def test_a_rank_that_hangs_names_itself_where_it_is_alone(tmp_path):
    assert message(tmp_path, HANGING, []).startswith("rank 0 on one hangs in update 7")


def test_where_all_wait_all_are_named(tmp_path):
    text = message(tmp_path, WAITING, [replace(WAITING, rank=1, host="two", stack=("c.py:3 in send: mpi.Send()",))])
    assert "rank 0 on one waits for others that do not come in update 7, for 1.0 s:\n  a.py:1 in wait" in text
    assert "rank 1 on two waits for others that do not come in update 7, for 1.0 s:\n  c.py:3 in send" in text


def test_a_silent_rank_is_named_before_those_that_hang(tmp_path):
    others = [replace(WORKING, rank=1, host="two", update=6), replace(HANGING, rank=2)]
    text = message(tmp_path, WAITING, others, silent=[1])
    assert text.startswith("rank 1 on two has written no heartbeat for 0.")
    assert "the last in update 6: it is stopped or dead, or its host cannot be reached\nNo progress in update 7" in text
    assert "rank 2" not in text


def test_a_rank_that_never_wrote_a_heartbeat_is_named(tmp_path):
    (tmp_path / RANKS).mkdir()
    dog = Watchdog(tmp_path, rank=0, num_ranks=2, seconds=SECONDS)
    text, until = None, time.monotonic() + 10 * SECONDS
    while text is None and time.monotonic() < until:
        heartbeat_file(tmp_path, 0).write_text(json.dumps(asdict(replace(WAITING, beat=int(time.monotonic_ns())))))
        text = dog.check(WAITING)
        time.sleep(SECONDS / 20)
    assert text.startswith("rank 1 has written no heartbeat;")


@pytest.mark.parametrize("other", [WORKING, replace(WAITING, allowed_seconds=2.0)], ids=["works", "may take longer"])
def test_no_rank_is_named_while_one_rank_is_not_overdue(tmp_path, other):
    assert message(tmp_path, WAITING, [replace(other, rank=1)]) is None


def test_no_rank_is_named_by_a_rank_that_makes_progress(tmp_path):
    assert message(tmp_path, WORKING, [replace(HANGING, rank=1)], silent=[1]) is None


def test_a_rank_that_may_take_longer_may_also_be_silent_for_longer(tmp_path):
    other = replace(WORKING, rank=1, allowed_seconds=5 * SECONDS)
    text = message(tmp_path, WAITING, [other], silent=[1], seconds=15 * SECONDS)
    assert float(re.match(r"rank 1 on one has written no heartbeat for (\S+) s", text)[1]) >= 3 / 4 * 5 * SECONDS


def test_a_rank_that_has_finished_need_not_write_heartbeats(tmp_path):
    others = [replace(WORKING, rank=1, finished=True), replace(WORKING, rank=2)]
    assert message(tmp_path, WAITING, others, silent=[1]) is None


def test_a_rank_that_has_finished_hides_no_other_that_hangs(tmp_path):
    others = [replace(HANGING, rank=1, host="two"), replace(WORKING, rank=2, finished=True)]
    assert message(tmp_path, WAITING, others).startswith("rank 1 on two hangs in update 7")


def test_the_next_watcher_reports_only_where_the_first_does_not(tmp_path):
    own, first = replace(WAITING, rank=1), replace(WAITING, rank=0)
    hanging = replace(HANGING, rank=2)
    began = time.monotonic()
    assert message(tmp_path, own, [first, hanging]).startswith("rank 2 on one hangs")
    assert time.monotonic() - began >= 2.9 * SECONDS / 20  # it let three heartbeats pass
