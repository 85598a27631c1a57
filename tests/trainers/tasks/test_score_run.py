"""`kilobatch evaluate`, and that a score is the same on any number of ranks."""

import itertools
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from mpi4py import MPI
from PIL import Image

from recipes.errors import InputRefused
from recipes.reading.open import open_recipe
from trainers import kernels
from trainers.launch.vocabulary import vocabulary
from trainers.runs.checkpoint import load_into, read_checkpoint
from trainers.tasks.score_run import score_run
from trainers.training.build import build
from trainers.training.device import has_gpu
from trainers.training.extensions.evaluation import score

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def run(tmp_path_factory, kilobatch):
    """A run whose accuracy falls again at the end, so that its best and its newest checkpoint differ."""
    folder = tmp_path_factory.mktemp("run") / "run"
    words = ("--set", "epochs=4", "--set", "batch.global=32", "--set", "model.width=4")
    words += ("--set", "evaluation.metrics=[{kind: MacroF1}, {kind: TopAccuracy, k: 5}]")
    words += ("--set", "learning_rate.schedule={kind: MultiStep, boundaries: [3], factor: 200}")
    done = kilobatch("train", "digits/baseline", "--no-report", "--out", folder, *words, ranks=2)
    assert done.returncode == 0, done.stderr
    return folder


def scores(run, key):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {f"update-{line['update']:06d}": line["value"] for line in lines if line["key"] == key}


@pytest.mark.skipif(has_gpu(), reason="shows what is refused where there is no GPU")
def test_a_gpu_that_is_not_here_is_refused(run, kilobatch):
    done = kilobatch("evaluate", run, "--device", "gpu")
    assert done.returncode == 2
    assert done.stderr.startswith("command line:1:1: --device: Ch") or "CuPy finds no GPU" in done.stderr
    assert kilobatch("evaluate", run, "--device", "auto").returncode == 0
    assert "is tpu; write cpu, gpu or auto" in kilobatch("evaluate", run, "--device", "tpu").stderr


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="needs a GPU with CuPy")
def test_a_gpu_scores_what_the_cpu_scores(run):
    there, here = (score_run(run, device=device) for device in ("gpu", "cpu"))
    assert there["accuracy"] == pytest.approx(here["accuracy"], abs=2 / 297)
    assert there["loss"] == pytest.approx(here["loss"], rel=1e-4)


def test_newest_best_and_named_checkpoints_score_what_the_run_wrote(run, kilobatch):
    accuracy, loss = scores(run, "eval_accuracy"), scores(run, "eval_loss")
    newest, best = max(accuracy), max(accuracy, key=lambda name: (accuracy[name], -int(name[7:])))
    assert accuracy[newest] < accuracy[best]
    done = kilobatch("evaluate", run, "--json")
    assert done.returncode == 0, done.stderr
    by_command = json.loads(done.stdout)
    by_name = [score_run(run, checkpoint=checkpoint) for checkpoint in ("best", best)]
    for scored, name in zip((by_command, *by_name), (newest, best, best), strict=True):
        assert (scored["checkpoint"], scored["accuracy"], scored["num_samples"]) == (name, accuracy[name], 297)
        assert scored["loss"] == pytest.approx(loss[name], rel=1e-6)
        names = ("macro_f1", "top5_accuracy")
        assert scored["metrics"] == {each: scores(run, f"eval_{each}")[name] for each in names}
        assert scored["metrics"]["top5_accuracy"] == scored["top5_accuracy"]
    done = kilobatch("evaluate", run, "--checkpoint", "best")
    assert done.stdout.startswith(f"{best} (epoch ")
    assert f"): accuracy {100 * accuracy[best]:.2f} %, top-5 " in done.stdout
    f1, top5 = (scores(run, f"eval_{name}")[best] for name in ("macro_f1", "top5_accuracy"))
    assert done.stdout.endswith(
        f" %, loss {loss[best]:.4f}, macro_f1 {f1:.4g}, top5_accuracy {top5:.4g} over 297 samples\n"
    )


def test_the_kernels_of_the_run_score_it_and_others_are_named(run, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv(kernels.VARIABLE, raising=False)
    before, copy = kernels.in_use(), tmp_path / "run"
    shutil.copytree(run, copy)
    record = json.loads((run / "environment.json").read_text())
    for operators, kind in (("chainer", "chainer"), ("numpy", "numpy"), ("fast", kernels.of_runs())):
        (copy / "environment.json").write_text(json.dumps(record | {"kernels": {"operators": operators}}))
        score_run(copy)
        assert kernels.in_use() == kind
        said = (
            f"{kind} kernels compute, in the run {operators}: the same sums, rounded otherwise; no kernels are called"
        )
        assert (said in capsys.readouterr().err) == (kind != operators)
    monkeypatch.setenv(kernels.VARIABLE, "numpy")
    score_run(copy)
    assert "numpy kernels compute, in the run fast" in capsys.readouterr().err
    (copy / "environment.json").write_text(json.dumps(record | {"kernels": {"operators": "chainer"}}))
    score_run(copy)
    assert f"rounded otherwise; {kernels.VARIABLE}=chainer asks for them" in capsys.readouterr().err
    kernels.use(before)


@pytest.fixture(scope="module")
def score_on(run, run_on_ranks):
    """Gives what each of some ranks prints of the run's last weights: accuracy, loss and number of samples."""

    def score_on(ranks):
        done = run_on_ranks(ranks, __file__, run)
        assert done.returncode == 0, done.stderr
        return [line.split() for line in done.stdout.splitlines()]

    return score_on


def test_a_finished_run_is_scored_by_metrics_that_its_recipe_lacks(run, kilobatch):
    more = ("--metric", "BalancedAccuracy", "--metric", "{kind: TopAccuracy, k: 1}")
    done = kilobatch("evaluate", run, *more, "--json")
    assert done.returncode == 0, done.stderr
    scored = json.loads(done.stdout)
    assert list(scored["metrics"]) == ["macro_f1", "top5_accuracy", "balanced_accuracy", "top1_accuracy"]
    assert scored["metrics"]["top1_accuracy"] == scored["accuracy"]
    assert scored["metrics"]["macro_f1"] == scores(run, "eval_macro_f1")[scored["checkpoint"]]
    again = score_run(run, metrics=["MacroF1", "TopAccuracy"])  # which it has
    assert list(again["metrics"]) == ["macro_f1", "top5_accuracy"]
    with pytest.raises(InputRefused, match=r"--metric:1:\d+: evaluation.metrics.0.kind: there is no metric called Mac"):
        score_run(run, metrics=["MacroF2"])
    with pytest.raises(InputRefused, match="--metric: is empty"):
        score_run(run, metrics=[""])


def test_evaluation_is_exact_on_any_number_of_ranks(score_on):
    ((accuracy, loss, num_samples),) = score_on(1)
    assert num_samples == "297"
    for ranks in (2, 3):
        lines = score_on(ranks)
        assert len(lines) == ranks
        for line in lines:  # every rank has the score of all
            assert (line[0], line[2]) == (accuracy, num_samples)
            assert float(line[1]) == pytest.approx(float(loss), rel=1e-6)


def test_what_cannot_be_scored_is_reported_in_a_line(run, tmp_path, capsys, kilobatch):
    damaged = tmp_path / "damaged"
    shutil.copytree(run, damaged)
    newest = max((damaged / "checkpoints").iterdir())
    (newest / "weights.safetensors").write_bytes(b"")
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "recipe.yaml").write_text((run / "recipe.yaml").read_text())
    (bare / "dataset.yaml").write_text((run / "dataset.yaml").read_text())
    for folder, checkpoint, message in (
        (run, "update-000001", "there is no checkpoint update-000001 in "),
        (run, "../../run", "there is no checkpoint ../../run in "),
        (damaged, newest.name, "weights.safetensors: differs from its checksum"),
        (bare, "newest", "no whole checkpoint in "),
    ):
        with pytest.raises(InputRefused, match=re.escape(message)) as refused:
            score_run(folder, checkpoint=checkpoint)
        assert "\n" not in str(refused.value)
    capsys.readouterr()
    for checkpoint in ("newest", "best"):
        assert score_run(damaged, checkpoint=checkpoint)["checkpoint"] != newest.name, "the newest that is whole"
        errors = capsys.readouterr().err
        assert errors.startswith(
            f"kilobatch: warning: passed over {newest / 'weights.safetensors'}: differs from its checksum"
        )
    done = kilobatch("evaluate", tmp_path / "nowhere")
    assert done.returncode == 2, done.stderr
    assert "is no run's folder: it has no recipe.yaml" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_an_image_that_cannot_be_read_is_reported_in_a_line(tmp_path, kilobatch):
    for split, name in itertools.product(("train", "val"), "ab"):
        (tmp_path / "images" / split / name).mkdir(parents=True)
        Image.effect_noise((8, 8), 60).save(tmp_path / "images" / split / name / "1.png")
    (tmp_path / "images.yaml").write_text("reader: {kind: ImageFolder}\nroot: images\nchannels: 3\n")
    (tmp_path / "recipe.yaml").write_text(
        "kilobatch: 1\nextends: digits/baseline\ndataset: images.yaml\nbatch: {global: 2, norm_span: 2}\nepochs: 1\n"
        "augmentation: {train: [], eval: []}\n"
    )
    done = kilobatch("train", tmp_path / "recipe.yaml", "--no-report", "--out", tmp_path / "run", ranks=1)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "images" / "val" / "b" / "1.png"
    path.write_bytes(path.read_bytes()[:60])
    done = kilobatch("evaluate", tmp_path / "run")
    assert (done.returncode, done.stderr.count("\n")) == (2, 2), done.stderr
    warning, refusal = done.stderr.splitlines()
    assert "was trained with other data: val/b has changed" in warning
    assert refusal.startswith(f"kilobatch: {path}: not a readable image")


if __name__ == "__main__":  # on a rank
    folder = Path(sys.argv[1])
    opened = open_recipe(folder / "recipe.yaml", vocabulary=vocabulary())
    parts = build(opened.recipe, opened.dataset)
    load_into(parts.model, None, read_checkpoint(max((folder / "checkpoints").glob("update-*"))))
    data = {"load": parts.load_eval, "num_samples": parts.num_eval, "loss": parts.loss}
    result = score(parts.model, **data, mpi=MPI.COMM_WORLD)
    print(float(result.accuracy).hex(), float(result.loss), result.num_samples)


def test_classes_and_the_worst_samples_are_those_of_the_score(run):
    file = run / "evaluation" / "classes.json"
    file.unlink()
    scored = score_run(run)
    record = json.loads(file.read_text())
    assert record["update"] == scored["update"]
    assert record["classes"] == [str(digit) for digit in range(10)]
    right = sum(count for label, taken_for, count in record["counts"] if label == taken_for)
    assert sum(count for _, _, count in record["counts"]) == scored["num_samples"]
    assert right / scored["num_samples"] == scored["accuracy"]
    losses = [one["loss"] for one in record["worst"]]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > scored["loss"] > 0
    assert len(losses) == len(list((run / "evaluation").glob("worst-*.png"))) == 24
    with Image.open(run / "evaluation" / "worst-00.png") as image:
        assert image.size == (8, 8)
