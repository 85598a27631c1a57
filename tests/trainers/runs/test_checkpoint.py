"""Checkpoints: whole or absent, exact, readable without pickle."""

import hashlib
import json
import os
import re

import chainer
import numpy as np
import pytest
from chainer import links as L
from safetensors.numpy import save

from trainers.runs.checkpoint import (
    CheckpointError,
    load_into,
    newest_checkpoint,
    prune_checkpoints,
    read_checkpoint,
    refuse_foreign,
    write_checkpoint,
)
from trainers.runs.errors import error_text


def trained(seed, updates=3, optimizer=None):
    np.random.seed(seed)
    model = chainer.Sequential(L.Linear(4, 5), L.BatchNormalization(5), L.Linear(5, 2))
    optimizer = optimizer or chainer.optimizers.Adam()
    optimizer.setup(model)
    for _ in range(updates):
        step(model, optimizer)
    return model, optimizer


def step(model, optimizer):
    x = np.random.RandomState(optimizer.t).rand(8, 4).astype(np.float32)
    model.cleargrads()
    chainer.functions.sum(model(x) ** 2).backward()
    optimizer.update()


def same(a, b):
    return (
        all((x.array == y.array).all() for x, y in zip(a.params(), b.params(), strict=True))
        and (a[1].avg_var == b[1].avg_var).all()
    )


@pytest.fixture
def write(tmp_path):
    """Writes checkpoints of one trained model into a folder, after these updates; returns the last one."""
    model, optimizer = trained(0)

    def write_all(*updates, folder=tmp_path, **more):
        for update in updates:
            last = write_checkpoint(folder, model=model, optimizer=optimizer, state={"update": update}, **more)
        return last

    return write_all


@pytest.mark.parametrize("kind", ["Adam", "MomentumSGD", "NesterovAG", "SGD"])
def test_training_goes_on_exactly_from_a_checkpoint(tmp_path, kind):
    model, optimizer = trained(0, optimizer=getattr(chainer.optimizers, kind)())
    folder = write_checkpoint(tmp_path, model=model, optimizer=optimizer, state={"update": 3})
    other, other_optimizer = trained(1, updates=0, optimizer=getattr(chainer.optimizers, kind)())
    state = load_into(other, other_optimizer, read_checkpoint(folder))
    assert state["update"] == 3
    assert same(model, other)
    for _ in range(3):
        step(model, optimizer)
        step(other, other_optimizer)
    assert same(model, other)


def test_every_file_is_named_with_its_checksum_and_is_no_pickle(tmp_path, write):
    written = []
    folder = write(7, folder=tmp_path / "checkpoints", moved=lambda: written.append(1))
    assert folder.name == "update-000007"
    names = {line.split("  ")[1] for line in (folder / "MANIFEST").read_text().splitlines()}
    assert names == {path.name for path in folder.iterdir()} - {"MANIFEST"}
    assert len(written) == len(names) + 1, "each counts as progress"
    header = (folder / "weights.safetensors").read_bytes()
    length = int.from_bytes(header[:8], "little")
    assert "/0/W" in json.loads(header[8 : 8 + length])


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path, write, name, damage):
    path = write(3, 4) / name
    data = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(data[:-1])
    else:
        data[-1] ^= 1
        path.write_bytes(data)
    newest, complaints = newest_checkpoint(tmp_path)
    assert newest == tmp_path / "update-000003"
    assert len(complaints) == 1
    assert "update-000004" in complaints[0]


def test_a_half_written_checkpoint_is_not_seen_and_removed_by_the_next_one(tmp_path, write):
    write(3)
    (tmp_path / ".update-000004.partial").mkdir()
    (tmp_path / ".update-000004.partial" / "weights.safetensors").write_bytes(bytes(100))
    assert newest_checkpoint(tmp_path) == (tmp_path / "update-000003", [])
    assert newest_checkpoint(tmp_path / "nothing") == (None, [])
    write(4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["update-000003", "update-000004"]


def test_a_checkpoint_that_finds_no_room_leaves_nothing_of_it(tmp_path, write, largest_file):
    """The weights still fit, the optimizer's state does not."""
    written = write(3)
    sizes = {path.name: path.stat().st_size for path in written.iterdir()}
    full = largest_file(sizes["weights.safetensors"])
    with full, pytest.raises(OSError, match="File too large") as failure:
        write(4)
    assert sizes["optimizer.safetensors"] > sizes["weights.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["update-000003"]
    told = error_text(failure.value)
    assert re.match(r"a file cannot be written: \[Errno 27\] File too large for a checkpoint of [1-9][.\d]* kB", told)
    assert "/update-" in told


def test_another_model_is_refused_by_name(write):
    folder = write(1)
    with pytest.raises(CheckpointError, match=r"differ: /1/W, /1/b, "):
        load_into(chainer.Sequential(L.Linear(4, 5)), None, read_checkpoint(folder))
    wider = chainer.Sequential(L.Linear(4, 6), L.BatchNormalization(6), L.Linear(6, 2))
    with pytest.raises(CheckpointError, match=r"weights /0/W: \(5, 4\) in the checkpoint, \(6, 4\) in the model"):
        load_into(wider, None, read_checkpoint(folder))


def test_the_newest_two_and_the_best_are_kept(tmp_path, write):
    for update in range(1, 7):
        write(update)
        prune_checkpoints(tmp_path, upto=update, keep=2, best="update-000002")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["update-000002", "update-000005", "update-000006"]


def test_a_link_to_a_checkpoint_elsewhere_is_not_pruned(tmp_path, write):
    elsewhere = write(1, folder=tmp_path / "disk")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / elsewhere.name).symlink_to(elsewhere)
    write(2, 3, folder=tmp_path / "run")
    prune_checkpoints(tmp_path / "run", upto=3, keep=1, best=None)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["update-000001", "update-000003"]
    assert any(elsewhere.iterdir())


def test_damaged_ones_that_a_resumed_run_has_passed_over_do_not_count_as_the_newest(tmp_path, write):
    for update in (10, 20, 30, 40, 12, 14, 16):  # 20 to 40 were damaged, so the run went on from 10
        write(update)
        if 10 < update < 20:
            prune_checkpoints(tmp_path, upto=update, keep=2, best=None)
    kept = sorted(int(path.name.removeprefix("update-")) for path in tmp_path.iterdir())
    assert kept == [14, 16, 20, 30, 40]


def test_a_stray_file_gives_way_to_the_checkpoint_of_its_name_and_is_never_pruned(tmp_path, write):
    for update in (3, 9):
        (tmp_path / f"update-{update:06d}").touch()
    for update in (1, 2, 3):
        write(update)
        prune_checkpoints(tmp_path, upto=9, keep=2, best=None)
    assert newest_checkpoint(tmp_path) == (tmp_path / "update-000003", [])


def with_right_checksums(folder, name, data):
    (folder / name).write_bytes(data)
    lines = [line.split("  ") for line in (folder / "MANIFEST").read_text().splitlines()]
    sums = [f"{hashlib.sha256((folder / file).read_bytes()).hexdigest()}  {file}\n" for _, file in lines]
    (folder / "MANIFEST").write_text("".join(sums))


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 8, b"\x08" + bytes(7) + b"[1, 2]  ", b"\x02" + bytes(7) + b"{}" + b"x"]
)
def test_a_broken_header_with_right_checksums_is_refused(write, data):
    folder = write(3)
    with_right_checksums(folder, "weights.safetensors", data)
    with pytest.raises(CheckpointError, match=r"weights\.safetensors: not a file of safetensors"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    "data",
    [
        *(b"[]", b"{}", b"{", b"\xff", b"[" * 100_000, b'{"update": "3", "optimizer_steps": {}}'),
        *(b'{"update": 3, "epoch": %s, "optimizer_steps": {}}' % epoch for epoch in (b"NaN", b"Infinity", b"9" * 400)),
        b'{"update": 3, "optimizer_steps": {"": %s}}' % (b"9" * 400),
    ],
    ids=lambda data: data[:40],
)
def test_a_state_of_another_form_with_right_checksums_is_refused(write, data):
    folder = write(3)
    with_right_checksums(folder, "state.json", data)
    with pytest.raises(CheckpointError, match=r"state\.json: (not JSON|holds no state of a run)"):
        read_checkpoint(folder)


@pytest.mark.parametrize("update", [-5, 1, 1_000_000, 10**400], ids=lambda update: str(update)[:9])
def test_a_state_of_another_update_than_its_folder_is_passed_over(tmp_path, write, update):
    folder = write(2, 3)
    with_right_checksums(folder, "state.json", json.dumps({"update": update, "optimizer_steps": {}}).encode())
    newest, complaints = newest_checkpoint(tmp_path)
    assert newest == tmp_path / "update-000002"
    assert f"is the state after update {update}, and its folder's name says 3" in complaints[0]


def test_a_copy_under_a_name_of_the_user_is_read(write):
    folder = write(3)
    assert read_checkpoint(folder.rename(folder.with_name("update-000003-good"))).state["update"] == 3


@pytest.mark.parametrize("name", ["9" * 5000 + ":/fc/W", "²:/fc/W", "/fc/W"])
def test_arrays_of_no_rank_are_refused(write, name):
    folder = write(3, ranks=[{"/fc/W": np.zeros(1)}])
    with_right_checksums(folder, "ranks.safetensors", save({name: np.zeros(1)}))
    with pytest.raises(CheckpointError, match=r"ranks\.safetensors: .* is of no rank"):
        read_checkpoint(folder)


@pytest.mark.parametrize("name", ["MANIFEST", "weights.safetensors"])
def test_a_named_pipe_in_a_checkpoint_is_not_waited_for(write, name):
    folder = write(3)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(CheckpointError, match=f"not a whole checkpoint .*it is no file.*{name}"):
        read_checkpoint(folder)


def test_a_state_that_lacks_what_a_run_writes_is_refused_with_its_checkpoint(write):
    folder = write(3)
    with_right_checksums(folder, "state.json", b'{"update": 3, "optimizer_steps": {"": 3}}')
    model, optimizer = trained(1)
    with (
        pytest.raises(CheckpointError, match="its state.json is not as a run writes it .KeyError"),
        refuse_foreign(folder),
    ):
        load_into(model, optimizer, read_checkpoint(folder))


@pytest.mark.parametrize("best", [{"checkpoint": 3, "accuracy": 0.5}, {"checkpoint": "update-000003"}, [1]])
def test_a_best_checkpoint_of_another_form_is_refused(write, best):
    folder = write(3)
    state = {"update": 3, "optimizer_steps": {}, "best": best}
    with_right_checksums(folder, "state.json", json.dumps(state).encode())
    with pytest.raises(CheckpointError, match="holds no state of a run"):
        read_checkpoint(folder)


def test_checkpoints_of_more_than_a_million_updates_are_in_their_order(tmp_path, write):
    write(999_998, 999_999, 1_000_000)
    prune_checkpoints(tmp_path, upto=1_000_000, keep=2, best=None)
    assert newest_checkpoint(tmp_path) == (tmp_path / "update-1000000", [])


def test_a_checkpoint_reaches_the_disk_before_it_gets_its_name(tmp_path, write, monkeypatch):
    synced, real = [], os.fsync

    def fsync(handle):
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    files = {str(tmp_path / ".update-000003.partial" / path.name) for path in write(3).iterdir()}
    assert {*synced[:-1]} == files
    assert synced[-1] == str(tmp_path)


def test_arrays_of_ranks_of_which_one_is_missing_are_refused(write):
    folder = write(3, ranks=({}, {"error:/W": np.zeros(2, np.float32)}))
    with pytest.raises(CheckpointError, match="a rank is missing"):
        read_checkpoint(folder)


def test_a_link_gives_way_to_the_checkpoint_of_its_name_and_what_it_leads_to_stays(tmp_path, write):
    elsewhere = write(3, folder=tmp_path / "disk")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / elsewhere.name).symlink_to(elsewhere)
    assert not write(3, folder=tmp_path / "run").is_symlink()
    read_checkpoint(elsewhere)
