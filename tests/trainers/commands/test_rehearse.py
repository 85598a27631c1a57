"""`kilobatch rehearse`, as a user types it."""

import json
import time

import pytest
from typer.testing import CliRunner

import kilobatch
from recipes.errors import InputRefused
from recipes.planning.stream import Stream


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs `kilobatch rehearse ...` in an empty folder: (exit code, what is printed, or the refusal)."""
    monkeypatch.chdir(tmp_path)

    def run_command(*arguments):
        result = CliRunner().invoke(kilobatch.app, ["rehearse", *map(str, arguments)])
        if isinstance(result.exception, InputRefused):
            assert result.stdout == ""
            return 2, str(result.exception)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout

    return run_command


@pytest.fixture
def rehearsed(run):
    """The tree of `--json`."""

    def tree(*arguments):
        code, shown = run(*arguments, "--json")
        assert code == 0
        return json.loads(shown)

    return tree


@pytest.mark.slow
def test_akiba_on_1024_workers_in_seconds(rehearsed):
    """1.28 million images, 90 epochs: each sample is drawn for its worker. 10 s of processor time, 6 s on two cores."""
    before = time.process_time()
    tree = rehearsed("akiba2017", "--workers", 1024, "--cluster", "mn1", "--fail", "3@epoch12", "--restart-on", 1016)
    assert time.process_time() - before < 20  # cores that others share are slower
    assert (tree["num_updates"], tree["num_samples"]) == (3519, 3519 * 32768)
    order = tree["order"]
    assert (order["num_samples"], order["whole_epochs"], order["rest"]) == (1281167, 90, 5562)
    assert (order["drawn"], order["faults"]) == (3519 * 32768, [])
    assert tree["segments"][0]["learning_rate"] == {"first": 6.4, "last": 0.0128, "lowest": 0.0128, "highest": 6.4}
    # 12 epochs are 469.2 updates: the checkpoint after 470 is not written yet; 11 epochs are 430.1.
    (restart,) = tree["restarts"]
    assert (restart["dies_in_update"], restart["restarts_after_updates"]) == (469, 431)
    assert (restart["repeated_updates"], restart["repeated_samples"]) == (38, 38 * 32768)
    assert (restart["workers"], restart["faults"]) == (1016, [])
    assert tree["storage"]["images_an_epoch"]["worker"] == pytest.approx(1281167 / 1024)
    assert tree["storage"]["images_an_epoch"]["node"] == pytest.approx(1281167 / 128)


def test_the_text_says_what_was_checked(run):
    code, shown = run("digits/ramp", "-n", 3, "--fail", "2@100up", "--restart-on", 2)
    assert code == 0
    assert "sample ids 0 to 1,499 in 20 whole epochs, and the 144 that the last updates take of epoch 20" in shown
    assert "rank 2 dies in update 100" in shown
    assert "2 workers go on from the checkpoint after 94 updates" in shown
    assert "no image is read while it trains" in shown


@pytest.mark.mpi
def test_train_writes_checkpoints_and_scores_where_the_rehearsal_says(tmp_path, rehearsed, kilobatch):
    how = ("digits/ramp", "--set", "epochs=3", "--set", "evaluation.every=30up", "--checkpoint-every", "0.4ep")
    tree = rehearsed(*how, "-n", 2)
    done = kilobatch("train", *how, "--no-report", "--out", tmp_path / "run", ranks=2)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    reached = {key: [line["update"] for line in lines if line["key"] == key] for key in ("checkpoint", "eval_accuracy")}
    assert reached["checkpoint"] == tree["checkpoints"]["updates"]
    assert reached["eval_accuracy"] == tree["evaluations"]
    assert len(set(reached["checkpoint"]) ^ set(reached["eval_accuracy"])) > 1


@pytest.mark.parametrize(
    ("place", "update"),
    [("epoch2", 23), ("2ep", 23), ("2", 23), ("3000sp", 23), ("0.1run", 23), ("update20", 20), ("20up", 20)],
)
def test_places_of_a_failure(rehearsed, place, update):
    """Two epochs are 3,000 samples: 16 updates of 96, and 7.6 of 192."""
    tree = rehearsed("digits/ramp", "-n", 2, "--fail", f"1@{place}")
    assert tree["restarts"][0]["dies_in_update"] == update


def test_a_restart_on_workers_whose_micro_batches_do_not_fit_is_refused(run):
    """Of 96 samples one of 32 workers has 7 at most, which fit; one alone has all of them."""
    memory = ("--set", "cluster.device_memory_bytes=6500000", "--micro-batch-size", 96)
    how = ("digits/ramp", "--fast", "--cluster", "mn1", *memory, "-n", 32)
    assert run(*how)[0] == 0
    code, error = run(*how, "--fail", "1@3", "--restart-on", 1)
    assert code == 2
    assert "micro-batches of 96 samples need" in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--fail", "2@epoch3"), "--fail: 2@epoch3: there is no rank 2; ranks go from 0 to 1"),
        (
            ("--fail", "0@epoch21"),
            "--fail: 0@epoch21 lies after the end of the run: its last update ends at epoch",
        ),
        (("--fail", "0@165up"), "lies after the end of the run"),
        (("--fail", "0@999999up"), "lies after the end of the run"),
        (("--fail", "epoch3"), "'epoch3' is not a rank and a place; write it as 3@epoch12"),
        (("--fail", "-1@epoch3"), "is not a rank and a place"),
        (("--fail", "0@epochs3"), "is not a position; write it as 30ep"),
        (("--fail", "0@0"), "0 is no time at all"),
        (("--fail", "0@3parsec"), "is not a unit of time"),
        (("--fail", "1@3", "--fail", "1@4", "--restart-on", "1"), "no rank 1 after the failure before"),
        (("--restart-on", "1"), "--restart-on: is for a run in which a rank dies; name it: --fail 3@epoch12"),
        (("--fail", "0@3", "--restart-on", "9999"), "9,999 workers are more than the 192 samples"),
        (("--checkpoint-every", "0"), "--checkpoint-every: 0 is no time at all"),
        (("--cluster", "laptop", "-n", "3"), "ask for 1 to 2"),
        (("--data", "photos"), "reads no folder"),
        (("--set", "updater.local_steps={every: 2, replicas: 3}"), "trains 3 replicas"),
        (("--set", "epochs=99999999999"), "rehearse it on a larger machine, or with fewer epochs: --set epochs=2"),
    ],
)
def test_wrong_input_is_refused_with_a_way_out(run, arguments, words):
    code, error = run("digits/ramp", *(() if "-n" in arguments else ("-n", 2)), *arguments)
    assert code == 2
    assert words in error
    assert "; " in error
    assert len(error.splitlines()) == 1


def test_images_below_data_or_the_own_folder_are_measured(run, tmp_path, rehearsed):
    from PIL import Image

    sizes = []
    for split, number in (("train", 4), ("val", 2)):
        for index in range(number):
            path = tmp_path / "photos" / split / f"c{index % 2}" / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32 + index, 32), (index, 2, 3)).save(path)
            sizes += [path.stat().st_size] if split == "train" else []
    (tmp_path / "photos.yaml").write_text(
        "reader: {kind: ImageFolder}\nroot: photos\nchannels: 3\nmean: [0.5, 0.5, 0.5]\nstd: [0.5, 0.5, 0.5]\n"
    )
    how = ("digits/baseline", "--set", "dataset=photos.yaml", "--set", "batch={global: 4, norm_span: 2}", "-n", 2)
    how += ("--set", "augmentation={train: [], eval: []}")
    storage = rehearsed(*how, "--data", "photos")["storage"]
    assert storage["image_bytes"] == pytest.approx(sum(sizes) / 4)
    assert storage["bytes_an_epoch"]["worker"] == pytest.approx(sum(sizes) / 2)
    assert rehearsed(*how)["storage"] == storage
    (tmp_path / "empty").mkdir()
    facts = (tmp_path / "photos.yaml").read_text().replace("root: photos", "root: empty")
    (tmp_path / "photos.yaml").write_text(f"{facts}num_train: 4\nnum_eval: 2\nnum_classes: 2\n")
    assert rehearsed(*how)["storage"]["image_bytes"] is None
    assert rehearsed(*how, "--data", "photos", "--image-bytes", 7)["storage"]["image_bytes"] == 7


def test_a_broken_order_ends_with_5(run, monkeypatch):
    at = Stream.at

    def one_too_often(self, positions):
        keys, indices = at(self, positions)
        indices[indices == 7] = 8
        return keys, indices

    monkeypatch.setattr(Stream, "at", one_too_often)
    code, shown = run("digits/ramp", "-n", 2)
    assert code == 5
    assert "order: BROKEN" in shown
    assert "such as 8" in shown
    assert "1 samples do not come, such as 7" in shown


def test_failures_cost_the_time_of_what_they_repeat(rehearsed, run):
    words = ("goyal2017", "--workers", "256", "--cluster", "big-basin", "--set", "epochs=6")
    whole = rehearsed(*words)
    assert whole["seconds"] == whole["seconds_with_failures"]
    hurt = rehearsed(*words, "--fail", "3@300up")
    repeated = hurt["restarts"][0]["repeated_updates"] + 1
    each = (whole["seconds"] - 5) / whole["num_updates"]  # 5 s is the start; evaluations are a part of the rest
    assert hurt["seconds"] == whole["seconds"]
    assert hurt["seconds_with_failures"] - hurt["seconds"] == pytest.approx(5 + repeated * each, rel=0.05)
    assert "more than without 1 failure" in run(*words, "--fail", "3@300up")[1]
    assert rehearsed("digits/large_batch", "--workers", "2")["seconds"] is None
