"""Reruns of packs end in the verdict that is due."""

import json
import re
import subprocess
import sys

import pytest

from recipes.errors import InputRefused
from recipes.packs.make import pack_contents
from recipes.reading.open import open_recipe
from recipes.reading.yaml import block_text
from recipes.reports.record import open_run
from recipes.sharing.pack_file import files_of, open_pack, write_pack
from trainers.launch.identity import ids_of, made_of
from trainers.launch.vocabulary import vocabulary
from trainers.tasks.packing import pack
from trainers.tasks.reproduce import (
    PACK,
    Rerun,
    RerunFailed,
    _differences,
    _other_environment,
    _registered,
    _require_pack,
    _require_same_training,
)
from trainers.tasks.reproduce import reproduce as rerun_pack


def trains(test):
    return pytest.mark.mpi(pytest.mark.slow(test))


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


@pytest.mark.parametrize(("code", "way_on"), [(2, "its input was refused, see above"), (3, "the same command goes on")])
def test_only_a_run_that_may_go_on_is_said_to(code, way_on):
    assert way_on in str(RerunFailed("out/seed-0", code))


def test_a_registration_that_finds_no_room_is_made_by_the_next_call(tmp_path, largest_file):
    settings = {"seeds": 5, "margin": 0.01}
    with largest_file(20), pytest.raises(OSError, match="File too large"):
        _registered(tmp_path, settings, True)
    assert _registered(tmp_path, settings, True) == _registered(tmp_path, settings, False)


def write_run(folder, opened, accuracies, *, exact, traced, figures=()):
    """A folder as a run of three updates leaves it, with an evaluation after each.

    Args:
        figures: keys and values of lines after the first update.
    """
    rates = dict.fromkeys(("learning_rate", "momentum", "update_seconds"), 0.1)
    at = [{"update": n, "epoch": n / 3, "samples": 512 * n, "time_ms": n} for n in range(4)]
    lines = [{"key": "train_loss", "value": 2.0 - n, "global_batch_size": 512, **rates, **at[n]} for n in range(3)]
    lines += [{"key": "eval_accuracy", "value": accuracy, **at[n + 1]} for n, accuracy in enumerate(accuracies)]
    lines += [{"key": key, "value": value, **at[1]} for key, value in figures]
    lines += [{"key": "run_stop", "value": "success", "time_ms": 4}]
    weights = folder / "checkpoints" / "update-000003" / "weights.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"weights")
    head = {"recipe": opened.tree, "plan": {"num_updates": 3}, "dataset": {}, "origins": {}}
    (folder / "run.yaml").write_text(block_text(head))
    (folder / "environment.json").write_text(json.dumps({"exact": exact}))
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if traced:
        trace = [{"update": n, "sample_ids": [n], "images_sha256": "0"} for n in range(3)]
        (folder / "trace.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in trace))


@pytest.fixture
def rerun(tmp_path, monkeypatch):
    """`rerun(recorded, reached)`: the evidence about a pack whose run and whose rerun have these accuracies."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    known = vocabulary()
    opened = open_recipe("digits/large_batch", vocabulary=known)

    def compare(recorded, reached, *, exact=True, traced=True, part=1.0, figures=((), ()), **head):
        write_run(tmp_path / "run", opened, recorded, exact=exact, traced=traced, figures=figures[0])
        write_run(tmp_path / "out" / "seed-0", opened, reached, exact=exact, traced=True, figures=figures[1])
        how = {"ids": ids_of(opened), "made_of": made_of(opened), "lock": "", "own_code": {}, "vocabulary": known}
        packed, files = pack_contents(opened, runs=[(opened, tmp_path / "run")], **how)
        path = tmp_path / "a.kilobatch"
        (tmp_path / "out" / PACK).write_text(write_pack(path, packed | head, files))
        return rerun_pack(Rerun(pack=str(path), seeds=1, part=part, out=tmp_path / "out"), tell=lambda line: None)

    return compare


TRUE = [0.3, 0.6, 0.52]


@pytest.mark.parametrize(
    ("recorded", "exact", "traced", "verdict", "words"),
    [
        (TRUE, True, True, "the same bits", "the same bits: every loss, weight, accuracy and metric is equal"),
        ([0.3, 0.6, 0.999], True, True, "undecided", "the pack records 99.90 %, and the same training has 52.00 %"),
        ([0.3, 0.999, 0.52], True, True, "undecided", "the pack records 99.90 %, and the same training has 60.00 %"),
        ([0.3, 0.6], True, True, "undecided", "the pack records none, and the same training has 52.00 %"),
        ([0.3, 0.6, 0.999], True, True, "undecided", "1 more seed would decide if they went on like this: --seeds 2"),
        ([0.3, 0.9, 0.525], False, True, "the same run", "the same run: samples and images are equal, losses up to"),
        ([0.3, 0.6, 0.525], False, False, "the same run", "equal up to rounding; the pack has no samples to compare"),
        ([0.3, 0.6, 0.54], False, True, "undecided", "the pack records 54.00 %, and the same training has 52.00 %"),
    ],
)
def test_a_pack_is_the_same_run_only_with_its_recorded_accuracy(rerun, recorded, exact, traced, verdict, words):
    evidence = rerun(recorded, TRUE, exact=exact, traced=traced)
    assert evidence["verdict"] == verdict
    assert words in evidence["words"] or any(words in line for line in evidence["differs"])


HONEST = [("eval_loss", 1.5), ("eval_macro_f1", 0.5)]


@pytest.mark.parametrize(
    ("recorded", "words"),
    [
        ([("eval_loss", 1.5), ("eval_macro_f1", 0.9)], "macro_f1 at epoch 0.3333: the pack records 0.9, .* has 0.5"),
        ([("eval_loss", 1.4), ("eval_macro_f1", 0.5)], "loss at epoch 0.3333: the pack records 1.4, .* has 1.5"),
        ([("eval_macro_f1", 0.9), *HONEST], "macro_f1 .* 0.9, and the same training has 0.5"),
        ([("eval_top5", 0.9), *HONEST], "top5 .* 0.9, and the same training has none"),
        (HONEST, None),
        ([], None),
    ],
)
def test_a_pack_with_other_metrics_or_evaluation_losses_has_not_the_same_bits(rerun, recorded, words):
    evidence = rerun(TRUE, TRUE, figures=(recorded, HONEST))
    assert evidence["verdict"] == ("undecided" if words else "the same bits")
    assert words is None or any(re.search(words, line) for line in evidence["differs"])


def test_a_rerun_with_other_code_says_so_in_its_verdict(rerun):
    evidence = rerun(TRUE, TRUE, ids={"code": "a" * 64})
    assert evidence["differs"][0] == "code: aaaaaaaaaaaa in the pack, not found here"
    assert evidence["words"].startswith("undecided, with other code: the difference is")


@pytest.mark.parametrize("runs", [7, [3], None])
def test_a_pack_whose_head_has_no_runs_is_judged_by_its_losses(rerun, runs):
    assert rerun(TRUE, TRUE, runs=runs)["verdict"] == "the same run"


def test_a_record_of_another_number_of_updates_is_no_measure_of_a_part(rerun):
    with pytest.raises(InputRefused, match="not that of the pack's recipe, which has 59 updates"):
        rerun(TRUE, TRUE, part=0.5)


def test_kernels_that_nobody_knows_are_refused_before_anything_is_read(monkeypatch):
    monkeypatch.setenv("KILOBATCH_KERNELS", "bogus")
    with pytest.raises(InputRefused, match="--kernels: no kernels are called bogus; there are numpy, torch, chainer"):
        rerun_pack(Rerun(pack="gone.kilobatch"), tell=print)


def test_a_folder_with_runs_of_another_pack_is_refused(tmp_path):
    for _ in range(2):
        _require_pack(tmp_path, "a" * 64)
    with pytest.raises(InputRefused, match="has runs of pack a{12}, and this is pack b{12}; give another --out"):
        _require_pack(tmp_path, "b" * 64)
    (tmp_path / PACK).unlink()
    (tmp_path / "seed-0").mkdir()
    with pytest.raises(InputRefused, match="has runs of an unknown pack"):
        _require_pack(tmp_path, "a" * 64)


OTHERS = [
    ({"data": {"digits": "0"}}, {}, "other data: digits has changed; give another --out"),
    ({"code": {"net.py": "0"}}, {}, "other code: net.py is gone; give another --out"),
    ({"installed": {"net.py of nets": "1 0"}}, {}, "other code: net.py of nets is gone; give another --out"),
    ({}, {"kernels": {"operators": "other"}}, "other kernels: other there, .* now; .* --kernels other to go on as"),
    ({}, {"decoder": "other"}, "other decoder: other there"),
]


def test_runs_of_other_code_data_or_kernels_are_not_taken_for_reruns(rerun, tmp_path):
    assert rerun(TRUE, TRUE)["verdict"] == "the same bits"
    made, out = made_of(open_recipe("digits/large_batch", vocabulary=vocabulary())), tmp_path / "out"
    again = Rerun(pack=str(tmp_path / "a.kilobatch"), seeds=1, out=out)
    for identity, environment, named in OTHERS:
        (out / "seed-0" / "identity.json").write_text(json.dumps(made | identity))
        (out / "seed-0" / "environment.json").write_text(json.dumps(environment))
        with pytest.raises(InputRefused, match=f"seed-0 has a run with {named}"):
            rerun_pack(again, tell=print)
    (out / "seed-0" / "environment.json").unlink()
    with pytest.raises(InputRefused, match="other data: digits is gone; the data are not here: give --data FOLDER"):
        _require_same_training(out, {"code": {}})
    (out / "seed-0" / "identity.json").write_text(json.dumps(made))
    (out / "seed-0" / "environment.json").write_text(json.dumps({"exact": True, "libc": "older"}))
    assert "libc: None in the pack, older in seed-0" in rerun_pack(again, tell=print)["differs"]
    on_gpu = {"kernels": {"operators": "other"}, "ranks": [{"gpu": "H100"}]}
    (out / "seed-0" / "environment.json").write_text(json.dumps(on_gpu))
    _require_same_training(out, made)


def changed(path, to, *, name="recipe.yaml", text=("", ""), **head):
    """A pack with other text in a file, or another head, whose sums all fit."""
    opened = open_pack(path)
    files = files_of(opened)
    files[name] = (opened.folder / name).read_text().replace(*text).encode()
    write_pack(to, {**opened.head, **head}, files)
    return to


def test_data_that_are_not_here_are_named_with_the_option_that_gives_their_folder(tmp_path):
    opened = open_recipe("goyal2017", vocabulary=vocabulary())
    head = {"ids": {"code": None, "data": "a" * 64}}
    (line,) = _differences(head, opened, tmp_path, {}, made_of(opened))
    assert line == "data: aaaaaaaaaaaa in the pack, not found here; give --data FOLDER"


def test_what_an_older_version_did_not_record_is_no_difference():
    def found(version, now):
        before = {"versions": {"kilobatch": version}, "kernels": {"operators": "torch"}}
        return [*_other_environment(before, {"versions": {"kilobatch": "0.2"}, "kernels": now}, "here")]

    here = {"operators": "torch", "passes": "compiled"}
    assert found("0.1", here) == ["versions, kilobatch: 0.1 in the pack, 0.2 here"]
    assert found("0.2", here) == ["kernels, passes: None in the pack, compiled here"]
    assert "kernels, MKL_CBWR: None in the pack, 1 here" in found("0.1", here | {"MKL_CBWR": "1"})


def test_a_recorded_run_without_an_accuracy_is_named_and_counts_as_no_0(tmp_path):
    opened = open_recipe("digits/large_batch", vocabulary=vocabulary())
    write_run(tmp_path / "run", opened, [], exact=True, traced=False)
    lines = [*_differences({}, opened, tmp_path, {0: open_run(tmp_path / "run")}, {})]
    assert [line for line in lines if line.startswith("claim")] == ["claim: no accuracy in 1 of the pack's 1 run"]


@trains
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


@trains
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


@trains
def test_other_kernels_give_the_same_run_and_are_named(packed, reproduce):
    code, lines, evidence = reproduce(packed, "-n", "1", "--kernels", "chainer")
    assert (code, evidence["verdict"]) == (0, "the same run"), lines
    assert any(re.fullmatch("differs here: kernels, operators: .* in the pack, chainer here", line) for line in lines)


@trains
def test_a_part_of_a_run_is_compared_with_the_recorded_losses(packed, reproduce):
    code, lines, evidence = reproduce(packed, "-n", "1", "--part", "0.5")
    assert (code, evidence["verdict"]) == (0, "the same bits"), lines
    assert "after 50 % of it" in evidence["words"]


@trains
def test_a_claim_that_is_not_that_of_the_runs_is_named_and_held_against_them(packed, reproduce, tmp_path):
    claim = {**open_pack(packed).head["claims"][0], "value": 0.99, "deviation": 0.001, "runs": 9}
    path = changed(packed, tmp_path / "b.kilobatch", claims=[claim])
    code, lines, evidence = reproduce(path, "-n", "1", "--seeds", "3")
    assert any(line.startswith("differs here: claim: 0.9900 is claimed") for line in lines)
    assert (code, evidence["verdict"]) == (5, "worse"), lines


@trains
def test_one_seed_of_a_recipe_that_was_changed_in_secret_is_undecided_with_a_number(packed, reproduce, tmp_path):
    path = changed(packed, tmp_path / "b.kilobatch", text=("reference: 0.05", "reference: 0.055"))
    code, lines, evidence = reproduce(path, "-n", "1", "--seeds", "1")
    assert any("learning_rate.reference: 0.055 in the pack's recipe, 0.05 in its run" in line for line in lines)
    assert (code, evidence["verdict"]) == (6, "undecided"), lines
    assert "would decide if they went on like this" in evidence["words"] or "rests on too few" in evidence["words"]


@trains
def test_a_record_that_its_recipe_does_not_give_is_not_taken_for_the_same_run(packed, reproduce, tmp_path):
    path = changed(packed, tmp_path / "b.kilobatch", name="runs/0/metrics.jsonl", text=('"value":2.', '"value":1.'))
    code, lines, evidence = reproduce(path, "-n", "1", "--seeds", "1")
    assert any(line.startswith("differs here: samples or losses, and nothing else") for line in lines), lines
    assert evidence["verdict"] == "undecided"


@trains
def test_what_is_no_pack_is_refused_with_how_to_make_one(reproduce):
    code, lines, evidence = reproduce("digits/large_batch")
    assert (code, evidence) == (2, None)
    assert "kilobatch recipes pack digits/large_batch" in lines[-1]
