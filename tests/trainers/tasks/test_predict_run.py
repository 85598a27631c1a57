"""`kilobatch predict`, and scores of any folder of class folders."""

import csv
import json
import os
import shutil

import numpy as np
import pytest
from PIL import Image

from recipes.errors import InputRefused
from trainers.commands.python_run import Run
from trainers.runs.run_folder import write_whole
from trainers.tasks.predict_run import predict_run, predicted_text
from trainers.tasks.score_run import score_run, scored_text

pytestmark = pytest.mark.mpi

COLOURS = {"blue": (40, 60, 200), "green": (40, 200, 60), "red": (200, 60, 40)}


def draw(folder, count, *, side=12, seed=0):
    """Images of one colour and noise, `count` of each class."""
    for number, (name, colour) in enumerate(COLOURS.items()):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            noise = np.random.default_rng([seed, number, index]).normal(0, 20, (side, side, 3))
            Image.fromarray((noise + colour).clip(0, 255).astype(np.uint8)).save(folder / name / f"{index}.png")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, train_images):
    """A run that knows three colours and scores a third of its images, held out."""
    folder = tmp_path_factory.mktemp("colours")
    draw(folder / "images", 8)
    dataset = (
        'reader: {kind: ImageFolder, train: ".", eval: null}\nroot: images\nchannels: 3\n'
        "mean: [0.4, 0.4, 0.4]\nstd: [0.3, 0.3, 0.3]\nvalidation: {fraction: 0.25}\n"
    )
    changes = "batch: {global: 6, norm_span: 6}\nepochs: 20\nmodel: {kind: SmallCNN, width: 8}\n"
    return train_images(folder, dataset, f"{changes}learning_rate: {{reference: 0.3}}\n")


def test_a_folder_of_class_folders_is_scored_whole(run, tmp_path, capsys):
    draw(tmp_path / "new", 3, seed=1)
    shutil.rmtree(tmp_path / "new" / "green")
    scored = score_run(run, split="all", data=tmp_path / "new", predictions=tmp_path / "p.csv")
    assert (scored["split"], scored["num_samples"], scored["accuracy"]) == ("all", 6, 1.0)
    assert scored["differences"] == [f"data: all images of {tmp_path / 'new'}"]
    assert scored_text(scored).endswith(f"6 samples, all images of {tmp_path / 'new'}")
    assert capsys.readouterr().err == ""
    with open(tmp_path / "p.csv", newline="") as file:
        assert [(line["label"], line["class"]) for line in csv.DictReader(file)] == [("0", "blue")] * 3 + [
            ("2", "red")
        ] * 3


def test_all_images_of_the_run_s_own_folder_are_those_of_both_its_parts(trained, run):
    assert score_run(run, split="all", data=trained / "images")["num_samples"] == 24
    assert score_run(run)["num_samples"] == 6


def test_what_cannot_be_scored_whole_is_refused_with_a_way_out(run, tmp_path):
    draw(tmp_path / "new" / "val", 1)
    with pytest.raises(InputRefused, match="new holds val/CLASS; name the folder of its classes: --data .*new/val"):
        score_run(run, split="all", data=tmp_path / "new")
    with pytest.raises(InputRefused, match="name it with --data"):
        score_run(run, split="all")
    with pytest.raises(InputRefused, match="nothing/here: no such folder"):
        score_run(run, split="all", data=tmp_path / "nothing/here")
    (tmp_path / "new/val/red").rename(tmp_path / "new/val/rot")
    with pytest.raises(InputRefused, match="was not trained on: 'rot'; it knows 'blue', 'green', 'red'"):
        score_run(run, split="all", data=tmp_path / "new/val")
    with pytest.raises(InputRefused, match="or score every image of CLASS/FILE in it with --split all"):
        score_run(run, data=tmp_path / "new/val")


def test_predictions_are_those_of_the_score_and_need_no_labels(run, tmp_path):
    draw(tmp_path / "new", 2, seed=2)
    score_run(run, split="all", data=tmp_path / "new", predictions=tmp_path / "scored.csv")
    shutil.copytree(tmp_path / "new", tmp_path / "loose/deep")
    first = tmp_path / "first.PNG"
    (tmp_path / "loose/deep/red/1.png").rename(first)
    (tmp_path / "loose/deep/notes.txt").write_text("no image")
    predicted = predict_run(run, [first, tmp_path / "loose"], predictions=tmp_path / "p.csv")
    assert [each["classes"][0] for each in predicted] == ["red", "blue", "blue", "green", "green", "red"]
    assert all(sorted(each["classes"]) == [*COLOURS] for each in predicted)
    assert all(sum(each["probabilities"]) == pytest.approx(1, abs=1e-5) for each in predicted)
    with open(tmp_path / "scored.csv", newline="") as file:
        shares = [float(line["probability"]) for line in csv.DictReader(file)]
    assert [each["probabilities"][0] for each in predicted] == pytest.approx([shares[-1], *shares[:-1]], rel=1e-4)
    with open(tmp_path / "p.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [*lines[0]] == ["sample", "file", "predicted", "predicted_class", "probability"]
    assert [line["file"] for line in lines] == [each["file"] for each in predicted]
    assert predicted_text(predicted).startswith(f"{first}: red ")
    assert Run(run).predict(str(first)) == predict_run(run, [first])


def test_images_that_cannot_be_used_are_named_and_left_out(run, tmp_path, trained, capsys):
    cut, whole = tmp_path / "cut.png", trained / "images/red/0.png"
    cut.write_bytes(whole.read_bytes()[:100])
    draw(tmp_path / "large", 1, side=20)
    (predicted,) = predict_run(run, [cut, tmp_path / "large/green", whole])
    assert predicted["file"] == str(whole)
    error = capsys.readouterr().err
    assert f"passed over {cut}: not a readable image" in error
    assert "large/green/0.png: 20 x 20 pixels as the model gets it, and the run's images are 12 x 12" in error
    assert "on_bad_image" not in error
    with pytest.raises(InputRefused, match="there is no image that can be used"):
        predict_run(run, [cut])


def test_a_folder_is_searched_through_its_links_and_without_waiting_for_pipes(run, tmp_path, trained):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "linked").symlink_to(trained / "images/red")
    (folder / "again").symlink_to(folder)
    os.mkfifo(folder / "pipe.jpg")
    predicted = predict_run(run, [folder])
    assert [each["classes"][0] for each in predicted] == ["red"] * 8
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputRefused, match=r"empty: holds no file called \.bmp, "):
        predict_run(run, [tmp_path / "empty"])
    for nothing in (tmp_path / "nothing.png", folder / "pipe.jpg"):
        with pytest.raises(InputRefused, match="there is no such image or folder"):
            predict_run(run, [nothing])


def test_many_images_are_several_forwards(run, trained):
    images = [trained / f"images/{name}/{index}.png" for name in COLOURS for index in range(8)] * 3
    alone = predict_run(run, images[:24])
    assert [each["classes"] for each in predict_run(run, images)] == [each["classes"] for each in alone] * 3


def test_images_are_classified_where_the_run_s_data_are_gone(run, tmp_path, trained, capsys):
    facts = (run / "dataset.yaml").read_text()
    (run / "dataset.yaml").write_text(facts.replace(str(trained / "images"), str(tmp_path / "gone")))
    draw(tmp_path / "large", 1, side=20)
    (predicted,) = predict_run(run, [trained / "images/green/3.png", tmp_path / "large/red"])
    assert predicted["classes"][0] == "green"
    error = capsys.readouterr().err
    assert "another size than that of the run's images, which are not here, is not noticed" in error
    assert "20 x 20 pixels as the model gets it, and images before it are 12 x 12" in error


def test_a_model_of_more_classes_than_have_names_has_numbers_for_the_others(run, trained):
    record = json.loads((run / "identity.json").read_text())
    write_whole(run / "identity.json", json.dumps({**record, "classes": ["blue"]}))
    (predicted,) = predict_run(run, [trained / "images/red/0.png"])
    assert sorted(predicted["classes"]) == ["1", "2", "blue"]


def test_classes_without_names_are_numbers_or_those_of_the_data_set_s_file(run, trained, capsys):
    record = json.loads((run / "identity.json").read_text())
    write_whole(run / "identity.json", json.dumps({**record, "classes": [], "data": {}}))
    image = trained / "images/red/0.png"
    assert predict_run(run, [image])[0]["classes"][0] == "2"
    assert "no record of the names" in capsys.readouterr().err
    with (run / "dataset.yaml").open("a") as file:
        file.write("classes: [azul, verde, rojo]\n")
    assert predict_run(run, [image])[0]["classes"][0] == "rojo"
    assert capsys.readouterr().err == ""


def test_a_model_of_one_size_refuses_another_in_words(tmp_path, trained, kilobatch, monkeypatch):
    (tmp_path / "fixed_net.py").write_text(
        "import chainer, chainer.links as L\n\n\nclass Net(chainer.Chain):\n"
        "    def __init__(self, num_classes, channels):\n        super().__init__()\n"
        "        with self.init_scope():\n            self.head = L.Linear(144 * channels, num_classes)\n\n"
        "    def forward(self, images_NCHW):\n        return self.head(images_NCHW)\n"
    )
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    words = ("--set", "model={kind: fixed_net.Net}", "--set", "epochs=1", "--allow-code", "--no-report")
    done = kilobatch("train", trained / "recipe.yaml", *words, "--out", out, ranks=1)
    assert done.returncode == 0, done.stderr
    (predicted,) = predict_run(out, [trained / "images/green/3.png"], allow_code=True)
    assert len(predicted["classes"]) == 3
    facts = (out / "dataset.yaml").read_text()
    (out / "dataset.yaml").write_text(facts.replace(os.fspath(trained / "images"), os.fspath(tmp_path / "gone")))
    draw(tmp_path / "large", 1, side=20)
    with pytest.raises(InputRefused, match="the run's model does not take images of 20 x 20 pixels"):
        predict_run(out, [tmp_path / "large"], allow_code=True)
