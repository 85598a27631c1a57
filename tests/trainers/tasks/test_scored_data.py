"""`kilobatch evaluate` of other data than the run's, and its table of predictions."""

import csv
import json
import math
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image
from safetensors import safe_open

from recipes.errors import InputRefused
from trainers.datasets import ImageFolder
from trainers.datasets.conversion import Conversion, SourceImages, convert, names_of_classes
from trainers.launch.vocabulary import vocabulary
from trainers.runs.identity import installed_code
from trainers.runs.run_folder import write_whole
from trainers.tasks.export_run import export_run
from trainers.tasks.score_run import score_run, scored_text

pytestmark = pytest.mark.mpi

CLASSES = ["a", "b", 'c, "d"', "e", "f\ng", "h", "ï"]
FACTS = "reader: {kind: ImageFolder}\nroot: images\nchannels: 3\nmean: [0.5, 0.4, 0.3]\nstd: [0.2, 0.2, 0.2]\n"


def draw(root, split, classes, count):
    for number, name in enumerate(classes):
        (root / split / name).mkdir(parents=True)
        for index in range(count):
            pixels = np.random.default_rng([number, index]).integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / split / name / f"{index}.png")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, train_images):
    """A run on two images of each of seven classes, scored on one of each."""
    folder = tmp_path_factory.mktemp("trained")
    draw(folder / "images", "train", CLASSES, 2)
    draw(folder / "images", "val", CLASSES, 1)
    changes = "batch: {global: 2, norm_span: 2}\nepochs: 2\nmodel: {kind: SmallCNN, width: 4}\n"
    return train_images(folder, FACTS, changes)


def table(file):
    with open(file, newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def test_other_data_need_one_split_and_find_the_classes_of_the_run_by_their_names(run, tmp_path, capsys):
    draw(tmp_path / "other", "val", ["ï", "b"], 3)
    before = {file.name: file.read_bytes() for file in (run / "evaluation").iterdir()}
    scored = score_run(run, data=tmp_path / "other", predictions=tmp_path / "p.csv")
    assert scored["num_samples"] == 6
    (difference,) = scored["differences"]
    assert "val/a is gone" in difference
    assert "train" not in difference
    assert scored_text(scored).endswith("6 samples of other data or code than the run's")
    error = capsys.readouterr().err
    assert f"is not written into {run / 'evaluation'}" in error
    assert "numbers" not in error
    assert {file.name: file.read_bytes() for file in (run / "evaluation").iterdir()} == before
    assert [(line["label"], line["class"]) for line in table(tmp_path / "p.csv")] == [("1", "b")] * 3 + [("6", "ï")] * 3


@pytest.mark.parametrize("are_named", [True, False])
def test_converted_shards_keep_the_names_of_their_classes(run, tmp_path, capsys, are_named):
    draw(tmp_path / "other", "val", ["b", "ï"], 3)
    samples = {"train": ImageFolder(train="val", eval=None).open(tmp_path / "other", "train")}
    source = SourceImages(name="a test", splits=samples, classes=names_of_classes(samples["train"]))
    (tmp_path / "tar").mkdir()
    quiet = {"workers": 1, "showing": lambda words, total: nullcontext(lambda count: None)}
    convert(source, tmp_path / "tar", Conversion(form="tar"), **quiet)
    if not are_named:
        (tmp_path / "tar/manifest.jsonl").unlink()
    (tmp_path / "tar/train-00000.tar").rename(tmp_path / "tar/val")
    facts = (run / "dataset.yaml").read_text()
    (run / "dataset.yaml").write_text(facts.replace("kind: ImageFolder", "kind: TarShards"))
    score_run(run, data=tmp_path / "tar", predictions=tmp_path / "p.csv")
    is_warned = "matched by their numbers, because those of these data have no names" in capsys.readouterr().err
    assert is_warned is not are_named
    labels = [line["label"] for line in table(tmp_path / "p.csv")]
    assert labels == (["1"] * 3 + ["6"] * 3 if are_named else ["0"] * 3 + ["1"] * 3)


def test_code_of_an_installed_package_that_has_not_changed_is_the_run_s(run, tmp_path, monkeypatch):
    (tmp_path / "scored_loss.py").write_text("from trainers.losses import SoftmaxCrossEntropy as Plugged\n")
    about = tmp_path / "scored_loss-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: scored_loss\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[kilobatch.losses]\nPlugged = scored_loss:Plugged\n")
    monkeypatch.syspath_prepend(tmp_path)
    recipe = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(recipe.replace("kind: SoftmaxCrossEntropy", "kind: Plugged"))
    record = json.loads((run / "identity.json").read_text())
    record["installed"] = installed_code([{"loss": {"kind": "Plugged"}}], vocabulary())
    assert [*record["installed"]] == ["scored_loss.py of scored_loss"]
    write_whole(run / "identity.json", json.dumps(record))
    assert score_run(run)["differences"] == []


@pytest.mark.parametrize("is_recorded", [True, False])
def test_classes_that_the_run_does_not_know_are_refused(run, tmp_path, is_recorded):
    """Sorted with the others they would give samples another class."""
    record = json.loads((run / "identity.json").read_text())
    assert record["classes"] == CLASSES
    if not is_recorded:  # as in a run of an older version
        del record["classes"]
        write_whole(run / "identity.json", json.dumps(record))
    draw(tmp_path / "other", "val", ["ab", *CLASSES[1:]], 1)
    with pytest.raises(InputRefused, match="was not trained on: 'ab'; it knows 'a', 'b', "):
        score_run(run, data=tmp_path / "other")


def test_a_class_in_other_bytes_than_that_of_the_run_is_refused_by_its_bytes(run, tmp_path):
    draw(tmp_path / "other", "val", ["a", "i\u0308"], 1)
    with pytest.raises(InputRefused, match=r"; 'i\\u0308' is '\\xef' there, the same letters in other bytes; rename"):
        score_run(run, data=tmp_path / "other")


def test_without_a_record_a_score_counts_for_other_data_and_takes_no_classes_by_their_numbers(run, tmp_path, capsys):
    (run / "identity.json").write_text("{")
    shutil.rmtree(run / "evaluation")
    draw(tmp_path / "seven", "val", CLASSES, 2)
    scored = score_run(run, data=tmp_path / "seven")
    error = capsys.readouterr().err
    assert "identity.json is missing or damaged; this score is not the run's" in error
    assert "classes are matched by their numbers, because those of the run have no names" in error
    assert scored["differences"]
    assert not (run / "evaluation").exists()
    draw(tmp_path / "two", "val", CLASSES[2:4], 1)
    with pytest.raises(InputRefused, match="has no record of its classes, and here are 2 of 7, by whatever numbers"):
        score_run(run, data=tmp_path / "two")


def test_the_same_images_are_the_run_s_wherever_they_lie_and_without_those_of_training(trained, run, tmp_path):
    (run / "evaluation" / "classes.json").unlink()
    shutil.copytree(trained / "images" / "val", tmp_path / "moved" / "val")
    assert score_run(run, data=tmp_path / "moved") == score_run(run)
    assert score_run(run)["differences"] == []
    assert json.loads((run / "evaluation" / "classes.json").read_text())["classes"] == CLASSES


def test_another_number_of_samples_holds_out_others_and_is_refused(trained, run, tmp_path):
    facts = (run / "dataset.yaml").read_text().replace(
        "num_train: 14", "num_train: 7"
    ) + "validation: {fraction: 0.5}\n"
    (run / "dataset.yaml").write_text(facts)
    shutil.copytree(trained / "images" / "train", tmp_path / "some" / "train")
    assert score_run(run, data=tmp_path / "some")["split"] == "held out"
    (tmp_path / "some" / "train" / "a" / "0.png").unlink()
    with pytest.raises(InputRefused, match="run/dataset.yaml says num_train and num_eval together: 14, .* are 13; "):
        score_run(run, data=tmp_path / "some")


@pytest.mark.parametrize("flipped", [False, True])
def test_the_table_has_the_figures_of_the_score(run, tmp_path, flipped):
    if flipped:
        recipe = (run / "recipe.yaml").read_text()
        (run / "recipe.yaml").write_text(recipe.replace("evaluation:\n", "evaluation:\n  flipped: true\n"))
    scored = score_run(run, predictions=tmp_path / "p.csv")
    lines = table(tmp_path / "p.csv")
    assert [line["class"] for line in lines] == CLASSES
    assert [Path(line["file"]).parent.name for line in lines] == CLASSES
    assert np.mean([float(line["loss"]) for line in lines]) == pytest.approx(scored["loss"], rel=1e-5)
    assert np.mean([line["correct"] == "1" for line in lines]) == scored["accuracy"]
    for line in lines:
        top = dict(zip(line["top5"].split(), map(float, line["top5_probabilities"].split()), strict=True))
        assert list(top.values()) == sorted(top.values(), reverse=True)
        assert [*top][0] == line["predicted"]
        assert top[line["predicted"]] == float(line["probability"])
        assert line["predicted_class"] == CLASSES[int(line["predicted"])]
        if line["label"] in top:
            assert -math.log(top[line["label"]]) == pytest.approx(float(line["loss"]), rel=1e-4)
    assert np.mean([line["label"] in line["top5"].split() for line in lines]) == scored["top5_accuracy"]
    assert f", top-5 {100 * scored['top5_accuracy']:.2f} %, loss" in scored_text(scored)


def test_the_table_does_not_depend_on_the_samples_of_a_forward(run, tmp_path, monkeypatch):
    score_run(run, predictions=tmp_path / "whole.csv")
    monkeypatch.setattr("trainers.training.extensions.evaluation._CHUNK", 3)
    score_run(run, predictions=tmp_path / "parts.csv")
    for one, other in zip(table(tmp_path / "whole.csv"), table(tmp_path / "parts.csv"), strict=True):
        for column in ("probability", "loss"):
            assert float(one.pop(column)) == pytest.approx(float(other.pop(column)), rel=1e-4)
        shares = (list(map(float, each.pop("top5_probabilities").split())) for each in (one, other))
        np.testing.assert_allclose(*shares, rtol=1e-4)
        assert one == other


@pytest.mark.parametrize("name", ["p.parquet", "nowhere/p.csv"])
def test_a_table_that_cannot_be_written_is_refused_before_the_model_runs(run, tmp_path, name):
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(InputRefused, match="a table of predictions is a .csv file|there is no folder"):
        score_run(run, predictions=tmp_path / name)


def test_an_exported_model_names_its_classes(run, tmp_path):
    weights, model = (export_run(run, form=form, out=tmp_path / f"m.{form}")[0] for form in ("safetensors", "onnx"))
    with safe_open(weights, "np") as file:
        assert json.loads(file.metadata()["classes"]) == CLASSES
    metadata = {pair.key: pair.value for pair in onnx.load(model).metadata_props}
    assert json.loads(metadata["classes"]) == CLASSES
    assert json.loads(metadata["augmentation.eval"])[0]["mean"] == [0.5, 0.4, 0.3]
