import os
import subprocess
import time

import numpy as np
import pytest

from trainers.datasets.index_file import indexed, state_of


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "data"
    (folder / "train").mkdir(parents=True)
    monkeypatch.setattr("trainers.datasets.index_file._SETTLED_NS", -1_000)  # of data that have just been made, too
    return folder


def opened(root, value):
    """The value in the index: this one if it is made now."""
    state = {"train": state_of(root / "train")}
    return int(indexed(root, "data/train", state=state, make=lambda: {"value": np.array(value)})["value"])


def test_an_index_is_made_once(root):
    assert [opened(root, 1), opened(root, 2)] == [1, 1]
    assert sorted(os.listdir(root)) == [".kilobatch-index-data-train", "train"]


def test_a_change_makes_it_stale(root):
    assert opened(root, 1) == 1
    os.utime(root / "train", ns=(0, time.time_ns()))
    assert [opened(root, 2), opened(root, 3)] == [2, 2]


def test_an_index_that_was_copied_with_the_data_is_made_anew(root, tmp_path):
    os.utime(root / "train", (time.time() - 60,) * 2)
    assert opened(root, 1) == 1
    time.sleep(0.02)  # a tick of the file system's clock
    subprocess.run(["cp", "-a", root, tmp_path / "copy"], check=True)
    assert (tmp_path / "copy/.kilobatch-index-data-train").exists()
    assert [opened(tmp_path / "copy", 2), opened(tmp_path / "copy", 3), opened(root, 4)] == [2, 2, 1]


def test_of_data_that_changed_just_now_none_is_kept(root, monkeypatch):
    monkeypatch.undo()
    assert [opened(root, 1), opened(root, 2)] == [1, 2]
    assert os.listdir(root) == ["train"]


def test_a_damaged_one_is_made_anew(root):
    assert opened(root, 1) == 1
    file = root / ".kilobatch-index-data-train"
    for damaged in (b"", file.read_bytes()[:-30], file.read_bytes().replace(b"\x01\0\0\0\0\0\0\0", bytes(8))):
        file.write_bytes(damaged)
        assert opened(root, 2) == 2
    assert opened(root, 3) == 2


def test_where_the_root_cannot_be_written_the_cache_has_it(root, monkeypatch):
    (root / ".kilobatch-index-data-train").mkdir()  # as a user without rights meets it: root may write anywhere
    assert [opened(root, 1), opened(root, 2)] == [1, 1]
    (kept,) = (root.parent / "cache/kilobatch/indexes").iterdir()
    assert kept.name.endswith(".kilobatch-index-data-train")
