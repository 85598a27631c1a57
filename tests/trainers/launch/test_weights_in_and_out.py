"""Fine-tuning from the weights of another run, and the export of a run's model."""

import ast
import json
import re
import shutil
from pathlib import Path

import chainer
import numpy as np
import onnxruntime
import pytest
import yaml
from safetensors.numpy import load_file, safe_open, save_file

import kilobatch as kb
from recipes.errors import InputRefused, RecipeError
from recipes.reading.open import open_recipe
from trainers.datasets.augmented import augmented_samples
from trainers.launch.vocabulary import vocabulary
from trainers.runs.checkpoint import write_checkpoint
from trainers.tasks.export_run import export_run
from trainers.training.build import drawn_model

pytestmark = pytest.mark.mpi

API = Path(__file__).parents[3] / "docs" / "api.md"
SMALL = ("--set", "batch.global=32", "--set", "model={kind: SmallCNN, width: 4}", "--no-report", "--exact")


@pytest.fixture(scope="module")
def source(tmp_path_factory, kilobatch):
    """A run whose weights and their averages differ."""
    folder = tmp_path_factory.mktemp("source") / "run"
    average = ("--set", "weight_average={keep: 0.9, per: 1000}", "--stop-after", "20up")
    done = kilobatch("train", "digits/baseline", "--out", folder, *SMALL, *average, ranks=1)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def recipe(tmp_path, source, kilobatch):
    """A recipe that begins with weights of that run, which lie beside it."""
    done = kilobatch("export", source, "--format", "safetensors", "-o", tmp_path / "w.safetensors")
    assert done.returncode == 0, done.stderr
    file = tmp_path / "fine.yaml"
    file.write_text("kilobatch: 1\nextends: digits/baseline\nseed: 7\ninit: {weights: w.safetensors, except: [fc]}\n")
    return file


def opened(file, *overrides):
    return open_recipe(file, vocabulary=vocabulary(), overrides=overrides)


def test_exported_weights_are_what_evaluation_scores(recipe, source):
    exported = load_file(recipe.parent / "w.safetensors")
    checkpoint = source / "checkpoints" / "update-000020"
    averages, weights = (load_file(checkpoint / f"{name}.safetensors") for name in ("averages", "weights"))
    assert exported.keys() == weights.keys()
    assert (exported["/conv1/W"] == averages["/conv1/W"]).all()
    assert (exported["/conv1/W"] != weights["/conv1/W"]).any()
    with safe_open(recipe.parent / "w.safetensors", "np") as file:
        assert file.metadata()["recipe"] == "digits-baseline"
        metadata = {key: json.loads(file.metadata()[key]) for key in ("augmentation.eval", "mean", "std")}
    normalize = metadata["augmentation.eval"][-1]
    assert (normalize["kind"], normalize["with"]) == ("Normalize", "digits")
    assert (normalize["mean"], normalize["std"]) == (metadata["mean"], metadata["std"]) != ([], [])


def test_the_api_page_shows_weights_and_activations_of_a_run(source, tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n([^`]*run\.model.*?)```", API.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/a").symlink_to(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KILOBATCH_KERNELS", "numpy")  # loads sooner than torch
    exec(code, {})
    accuracy, *weights, activations = capsys.readouterr().out.splitlines()
    assert float(accuracy) == kb.Run(source).evaluate()["accuracy"]
    assert "/conv1/W (4, 1, 3, 3)" in weights
    assert ast.literal_eval(activations)["/conv1"] == (10, 4, 8, 8)


def test_a_runs_model_on_its_samples_gives_the_score_of_evaluate(source, monkeypatch):
    monkeypatch.setenv("KILOBATCH_KERNELS", "numpy")
    run = kb.Run(source)
    model, (images_NCHW, labels) = run.model(), run.samples()
    assert (images_NCHW.dtype, images_NCHW.shape, labels.dtype) == (np.float32, (297, 1, 8, 8), np.int32)
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        logits = model(images_NCHW)
        loss = float(chainer.functions.softmax_cross_entropy(logits, labels).array)
    scored = run.evaluate()
    assert (logits.array.argmax(axis=1) == labels).mean() == scored["accuracy"]
    assert loss == pytest.approx(scored["loss"], rel=1e-6)
    some, same = run.samples([3, np.int64(296)])
    with pytest.raises(InputRefused, match=r"of a mask they are numpy.flatnonzero\(mask\)"):
        run.samples(labels == 3)
    with pytest.raises(InputRefused, match="of a mask"):
        run.samples(iter([True, False]))
    assert (some == images_NCHW[[3, 296]]).all()
    assert same.tolist() == labels[[3, 296]].tolist()
    for wrong in ([297], [-1], [], [0.5], slice(3)):
        with pytest.raises(InputRefused, match="^indices: write some of 0 to 296"):
            run.samples(wrong)
    with pytest.raises(InputRefused, match="there is no checkpoint update-7"):
        run.model("update-7")


def test_a_score_with_mirror_images_is_in_the_metadata(source, tmp_path):
    run = shutil.copytree(source, tmp_path / "run")
    tree = yaml.safe_load((run / "recipe.yaml").read_text())
    tree["evaluation"]["flipped"] = True
    (run / "recipe.yaml").write_text(yaml.safe_dump(tree))
    file, *_ = export_run(run, form="safetensors", out=tmp_path / "w.safetensors")
    with safe_open(file, "np") as opened_file:
        assert opened_file.metadata()["evaluation.flipped"] == "true"


@pytest.mark.slow  # eleven million weights, drawn, written and exported
def test_the_export_of_a_resnet_says_its_pooling(source, tmp_path):
    run = shutil.copytree(source, tmp_path / "run", ignore=shutil.ignore_patterns("update-*"))
    tree = yaml.safe_load((run / "recipe.yaml").read_text())
    tree["model"] = {"kind": "ResNet18", "blur_pool": True}
    (run / "recipe.yaml").write_text(yaml.safe_dump(tree))
    own = opened(run / "recipe.yaml")
    model = drawn_model(own.recipe, own.dataset)
    optimizer = chainer.optimizers.SGD().setup(model)
    write_checkpoint(run / "checkpoints", model=model, optimizer=optimizer, state={"update": 1})
    file, *_ = export_run(run, form="safetensors")
    with safe_open(file, "np") as exported:
        facts = exported.metadata()
    assert (facts["model.padded_pool"], facts["model.blur_pool"]) == ("false", "true")


def test_every_export_of_a_checkpoint_has_the_same_bytes(source, tmp_path):
    files = [export_run(source, form="safetensors", out=tmp_path / f"{i}.safetensors")[0] for i in range(4)]
    with safe_open(files[0], "np") as file:
        assert len(file.metadata()) > 5  # in whatever order they might be written
    assert len({file.read_bytes() for file in files}) == 1


@pytest.mark.parametrize("form", ["onnx", "safetensors"])
def test_an_export_into_the_folder_replaces_no_other_export(source, tmp_path, form):
    run = shutil.copytree(source, tmp_path / "run", ignore=shutil.ignore_patterns("model.*"))
    file, *_ = export_run(run, form=form)
    assert export_run(run, form=form)[0] == file
    if form == "safetensors":
        save_file(load_file(file), file, metadata={"by": "an older version"})
        before = file.read_bytes()
        again, (*_, note), is_written = export_run(run, form=form)
        assert (again, is_written, file.read_bytes() == before) == (file, False, True)
        assert "has these weights with other metadata" in note
    file.write_text("of another checkpoint")
    with pytest.raises(InputRefused, match=rf"model\.{form}: exists and holds another .*; give -o FILE\.{form}, "):
        export_run(run, form=form)
    assert file.read_text() == "of another checkpoint"


def test_a_run_begins_with_the_weights_and_records_their_hash(recipe, tmp_path, kilobatch):
    run = tmp_path / "run"
    words = ("train", recipe, *SMALL, "--stop-after", "1up", "--set", "learning_rate.reference=1e-9")
    done = kilobatch(*words, "--out", run, ranks=2)
    assert done.returncode == 0, done.stderr
    given = load_file(tmp_path / "w.safetensors")
    begun = load_file(run / "checkpoints/update-000001/weights.safetensors")
    np.testing.assert_allclose(begun["/conv2/W"], given["/conv2/W"], atol=1e-6)
    assert abs(begun["/fc/W"] - given["/fc/W"]).max() > 0.1  # drawn by the seed
    assert "begins with the weights of" in (run / "log.txt").read_text()
    own = opened(run / "recipe.yaml")
    assert own.tree["init"]["sha256"] == opened(recipe).tree["init"]["sha256"]
    assert own.recipe.init.weights == str(run / "init.safetensors")

    # The folder goes on, by either recipe, and begins again without the file, and refuses another one.
    (tmp_path / "w.safetensors").rename(tmp_path / "gone")
    moved = shutil.copytree(run, tmp_path / "moved")
    words = ("train", recipe, *SMALL, "--set", "learning_rate.reference=1e-9", "--stop-after")
    done = kilobatch(*words, "2up", "--out", moved, "--resume", ranks=1)
    assert done.returncode == 0, done.stderr
    words = ("train", moved / "recipe.yaml", "--no-report", "--exact", "--stop-after")
    assert kilobatch(*words, "1up", "--out", tmp_path / "again", ranks=1).returncode == 0
    again = load_file(tmp_path / "again/checkpoints/update-000001/weights.safetensors")
    assert all((again[name] == array).all() for name, array in begun.items())
    shutil.copyfile(moved / "checkpoints/update-000002/weights.safetensors", tmp_path / "w.safetensors")
    words = ("train", recipe, *SMALL, "--set", "learning_rate.reference=1e-9", "--out", moved, "--resume")
    assert "init.sha256" in kilobatch(*words, ranks=1).stderr


def test_weights_that_do_not_fit_are_refused_before_ranks_start(recipe, tmp_path, kilobatch):
    done = kilobatch("train", recipe, "--set", "init.except=[]", "--set", "model.width=3", "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "init.weights: " in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_file_that_is_not_here_is_refused_unless_its_hash_is_known(recipe):
    sha256 = opened(recipe).recipe.init.sha256
    with pytest.raises(RecipeError, match=r"init.weights: there is no file .*nothing.safetensors; give its path"):
        opened(recipe, "init.weights=nothing.safetensors")
    with pytest.raises(RecipeError, match=r"is a folder, and no file of weights; `kilobatch export \S+ --format saf"):
        opened(recipe, f"init.weights={recipe.parent}")
    assert opened(recipe, "init.weights=nothing.safetensors", f"init.sha256={sha256}").recipe.init.sha256 == sha256
    with pytest.raises(RecipeError, match=r"init.sha256: the SHA-256 of .* is [0-9a-f]{64}; put the file"):
        opened(recipe, "init.sha256=abc")
    assert "init" not in opened(recipe, "init=null").tree


def test_onnxruntime_scores_what_the_run_scored(source, kilobatch):
    assert kilobatch("export", source, "--format", "onnx").returncode == 0
    session = onnxruntime.InferenceSession(str(source / "model.onnx"), providers=["CPUExecutionProvider"])
    run = opened(source / "recipe.yaml")
    load = augmented_samples(run.recipe, run.dataset, "eval")
    images, labels = zip(*(load(0, index) for index in range(run.dataset.num_eval)), strict=True)
    logits = session.run(["logits"], {"images_NCHW": np.stack(images)})[0]
    scored = json.loads(kilobatch("evaluate", source, "--json").stdout)
    accuracy = (logits.argmax(axis=1) == labels).mean()
    assert accuracy == pytest.approx(scored["accuracy"], abs=1.01 / run.dataset.num_eval)


def test_an_export_that_cannot_be_written_is_refused(source, tmp_path, kilobatch):
    assert "is no run's folder" in kilobatch("export", tmp_path, "--format", "onnx").stderr
    done = kilobatch("export", source, "--format", "onnx", "-o", tmp_path / "no" / "model.onnx")
    assert done.returncode == 2
    assert "cannot be written: No such file or directory; give another -o" in done.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.onnx", r"-o .*model\.onnx: exists, and nothing is overwritten; give another -o"),
        ("recipe.yaml", "exists, and nothing is overwritten"),
        ("new.safetensors", r"is no \.onnx file; give another -o"),
    ],
)
def test_an_export_overwrites_nothing_and_has_the_suffix_of_its_format(tmp_path, name, message):
    for there in ("model.onnx", "recipe.yaml"):
        (tmp_path / there).write_text("kept")
    with pytest.raises(InputRefused, match=message):
        export_run(tmp_path, form="onnx", out=tmp_path / name)
    assert {path.read_text() for path in tmp_path.iterdir()} == {"kept"}
