"""Reruns of packs end in the verdict that is due."""

import json
import subprocess
import sys

import pytest

from recipes.sharing.pack_file import files_of, open_pack, write_pack
from trainers.launch.packing import pack
from trainers.launch.reproduce import _registered

pytestmark = [pytest.mark.mpi, pytest.mark.slow]
SHORT = ["--set", "epochs=2", "--set", "learning_rate.warmup=null", "--no-report"]  # six updates


@pytest.fixture(scope="module")
def packed(tmp_path_factory, kilobatch):
    """A pack of two short runs, and its cache."""
    folder = tmp_path_factory.mktemp("packed")
    for seed in (0, 1):
        words = ["train", "digits/large_batch", *SHORT, "--out", folder / str(seed), "--set", f"seed={seed}", "--trace"]
        done = kilobatch(*words, ranks=1)
        assert done.returncode == 0, done.stderr
    runs = [str(folder / str(seed)) for seed in (0, 1)]
    return pack(runs, out=folder / "a.kilobatch", weights=False, data=None, allow_code=False)[0]


@pytest.fixture
def reproduce(tmp_path, monkeypatch):
    """`reproduce(pack, *options)`: exit code, lines, and the evidence if there is one.

    In a process of its own, because kernels hold for the rest of a process.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(path, *options, out="out"):
        command = [sys.executable, "-P", "-m", "kilobatch", "reproduce", str(path), "--out", out, *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        file = tmp_path / out / "evidence.json"
        evidence = json.loads(file.read_text()) if file.exists() else None
        return done.returncode, done.stdout.splitlines() + done.stderr.splitlines(), evidence

    return run


def test_a_registration_that_finds_no_room_is_made_by_the_next_call(tmp_path, largest_file):
    settings = {"seeds": 5, "margin": 0.01}
    with largest_file(20), pytest.raises(OSError, match="File too large"):
        _registered(tmp_path, settings, True)
    assert _registered(tmp_path, settings, True) == _registered(tmp_path, settings, False)


def changed(path, to, *, name="recipe.yaml", text=("", ""), **head):
    """A pack with other text in a file, or another head, whose sums all fit."""
    opened = open_pack(path)
    files = files_of(opened)
    files[name] = (opened.folder / name).read_text().replace(*text).encode()
    write_pack(to, {**opened.head, **head}, files)
    return to


def test_the_same_machine_gives_the_same_bits_and_a_second_call_trains_nothing(packed, reproduce, tmp_path):
    code, lines, evidence = reproduce(packed, "-n", "2", "--register")
    assert (code, evidence["verdict"]) == (0, "the same bits"), lines
    assert "differs here: nothing that the pack records" in lines
    assert list(evidence["values"]) == ["0"], "stopped early"
    assert evidence["registered"]
    before = (tmp_path / "out" / "seed-0" / "metrics.jsonl").stat().st_mtime_ns
    assert reproduce(packed, "-n", "2")[0] == 0
    assert (tmp_path / "out" / "seed-0" / "metrics.jsonl").stat().st_mtime_ns == before
    code, lines, _ = reproduce(packed, "--seeds", "7")
    assert code == 2, "it was registered with five seeds"


def test_a_run_that_began_with_given_weights_has_the_same_bits_wherever_their_file_lies(
    packed, reproduce, tmp_path, kilobatch
):
    (weights,) = (packed.parent / "0" / "checkpoints").glob("update-000006/weights.safetensors")
    begins = ["--set", f"init={{weights: {weights}}}", "--out", tmp_path / "run"]
    assert kilobatch("train", "digits/large_batch", *SHORT, *begins, ranks=1).returncode == 0
    path = pack([str(tmp_path / "run")], out=tmp_path / "b.kilobatch", weights=False, data=None, allow_code=False)[0]
    code, lines, evidence = reproduce(path, "-n", "1", "--seeds", "2")
    assert (code, evidence["verdict"]) == (0, "the same bits"), lines
    assert "differs here: nothing that the pack records" in lines


def test_other_kernels_give_the_same_run_and_are_named(packed, reproduce):
    code, lines, evidence = reproduce(packed, "-n", "1", "--kernels", "chainer")
    assert (code, evidence["verdict"]) == (0, "the same run"), lines
    assert "differs here: kernels, operators: numpy in the pack, chainer here" in lines


def test_a_part_of_a_run_is_compared_with_the_recorded_losses(packed, reproduce):
    code, lines, evidence = reproduce(packed, "-n", "1", "--part", "0.5")
    assert (code, evidence["verdict"]) == (0, "the same bits"), lines
    assert "after 50 % of it" in evidence["words"]


def test_a_claim_that_is_not_that_of_the_runs_is_named_and_held_against_them(packed, reproduce, tmp_path):
    claim = {**open_pack(packed).head["claims"][0], "value": 0.99, "deviation": 0.001, "runs": 9}
    path = changed(packed, tmp_path / "b.kilobatch", claims=[claim])
    code, lines, evidence = reproduce(path, "-n", "1", "--seeds", "3")
    assert any(line.startswith("differs here: claim: 0.9900 is claimed") for line in lines)
    assert (code, evidence["verdict"]) == (5, "worse"), lines


def test_one_seed_of_a_recipe_that_was_changed_in_secret_is_undecided_with_a_number(packed, reproduce, tmp_path):
    path = changed(packed, tmp_path / "b.kilobatch", text=("reference: 0.05", "reference: 0.055"))
    code, lines, evidence = reproduce(path, "-n", "1", "--seeds", "1")
    assert any("learning_rate.reference: 0.055 in the pack's recipe, 0.05 in its run" in line for line in lines)
    assert (code, evidence["verdict"]) == (6, "undecided"), lines
    assert "would decide if they went on like this" in evidence["words"] or "rests on too few" in evidence["words"]


def test_a_record_that_its_recipe_does_not_give_is_not_taken_for_the_same_run(packed, reproduce, tmp_path):
    path = changed(packed, tmp_path / "b.kilobatch", name="runs/0/metrics.jsonl", text=('"value":2.', '"value":1.'))
    code, lines, evidence = reproduce(path, "-n", "1", "--seeds", "1")
    assert any(line.startswith("differs here: samples or losses, and nothing else") for line in lines), lines
    assert evidence["verdict"] == "undecided"


def test_what_is_no_pack_is_refused_with_how_to_make_one(reproduce):
    code, lines, evidence = reproduce("digits/large_batch")
    assert (code, evidence) == (2, None)
    assert "kilobatch recipes pack digits/large_batch" in lines[-1]
