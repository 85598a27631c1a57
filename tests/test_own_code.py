"""The examples of docs/own-components.md, written into files, train; beside the recipe and as an installed package."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recipes.errors import RecipeError
from recipes.reading.open import open_recipe
from trainers.launch.vocabulary import vocabulary

pytestmark = pytest.mark.mpi

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "own-components.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The code of the page; blocks of one name are one file."""
    folder = tmp_path_factory.mktemp("own")
    for text in re.findall(r"```(?:python|yaml)\n(.*?)```", PAGE, re.DOTALL):
        name = re.match(r"# (\w+\.\w+)", text)[1]
        with (folder / name).open("a") as file:
            file.write(text)
    return folder


def test_all_components_of_the_page_train_from_another_folder(folder, tmp_path, kilobatch, run_on_ranks):
    words = ["--allow-code", "--no-report", "--out", tmp_path / "runs/a"]
    words += ["--set", "extensions=[{kind: mymodule.LargestWeight}, {kind: mymodule.KeepWeights, every: 2ep}]"]
    done = kilobatch("train", folder / "all.yaml", *words, ranks=2, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "runs/a/metrics.jsonl").read_text().splitlines()]
    rates = [line["learning_rate"] for line in lines if line["key"] == "train_loss"]
    assert (rates[0], rates[-1]) == (0.01, 0.0025)
    assert [line["value"] for line in lines if line["key"] == "eval_accuracy"][-1] > 0.9
    assert [line["update"] for line in lines if line["key"] == "largest_weight"] == [10, 20]
    kept = {path.name for path in (tmp_path / "runs/a/code").iterdir()}
    assert kept == {"mydata.py", "mymodule.py"}
    again = kilobatch("evaluate", tmp_path / "runs/a", "--allow-code", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    scored = run_on_ranks(1, folder / "kept.py", launched=False, strict=False, cwd=tmp_path)
    assert scored.returncode == 0, scored.stderr
    first, last = (line.split() for line in scored.stdout.splitlines())
    assert (first[0], last[0]) == ("update-000016.safetensors", "update-000024.safetensors")
    accuracies = [line["value"] for line in lines if line["key"] == "eval_accuracy"]
    assert [float(first[1]), float(last[1])] == accuracies[-2:]


def test_own_model_of_the_page_validates_and_plans(folder, tmp_path, kilobatch):
    assert kilobatch("recipes", "validate", folder / "mine.yaml", "--allow-code", cwd=tmp_path).returncode == 0
    assert kilobatch("plan", folder / "mine.yaml", "--allow-code", "-n", "2", cwd=tmp_path).returncode == 0
    refused = kilobatch("recipes", "validate", folder / "mine.yaml", cwd=tmp_path)
    assert "pass --allow-code to run it" in refused.stderr


def test_the_test_of_the_page_passes(folder):
    run = "import test_mymodule as it; it.test_the_model_gives_one_logit_a_class()"
    path = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", run], cwd=folder, env=path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_entry_points_offer_names_without_the_flag(folder, monkeypatch):
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    package = folder / "mine-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    points = re.sub(r'\[project.entry-points."(.*?)"\]', r"[\1]", toml).replace('"', "")
    (package / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(folder))
    words = ("model={kind: MyNet}", "optimizer={kind: SignMomentum, momentum: 0.5}")
    opened = open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=words)
    assert (type(opened.recipe.model).__name__, opened.recipe.optimizer.momentum) == ("MyNet", 0.5)
    sys.modules.pop("mymodule", None)


def write_images(folder):
    for split, count in (("train", 200), ("val", 2)):
        for name in ("a", "b"):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(folder / split / name / f"{number}.png")


def test_the_recipe_for_own_images_opens_and_one_with_the_augmentation_of_other_data_is_refused_in_one_line(folder):
    write_images(folder / "photos")
    opened = open_recipe(folder / "mine_photos.yaml", vocabulary=vocabulary())
    assert (opened.dataset.name, opened.recipe.augmentation.eval[-1].with_) == ("photos", "photos")
    assert (opened.recipe.title, opened.recipe.source) == ("", {})
    assert "augmentation.train" not in opened.recipe.assumed
    (folder / "short.yaml").write_text("kilobatch: 1\nextends: goyal2017/256\ndataset: photos.yaml\n")
    with pytest.raises(RecipeError, match=r"short.yaml:3:10: dataset: .*; write `augmentation` anew beside `dataset`$"):
        open_recipe(folder / "short.yaml", vocabulary=vocabulary())


def test_a_subset_of_imagenet_opens_under_a_published_recipe(folder):
    write_images(folder / "imagenet100")
    words = (f"dataset={folder / 'imagenet100.yaml'}",)
    opened = open_recipe("goyal2017/256", vocabulary=vocabulary(), overrides=words)
    assert (opened.dataset.num_train, opened.dataset.num_classes) == (400, 2)
    (folder / "other.yaml").write_text((folder / "imagenet100.yaml").read_text().replace("subset_of: imagenet", ""))
    with pytest.raises(RecipeError, match="or that data set's file says `subset_of: imagenet`"):
        open_recipe("goyal2017/256", vocabulary=vocabulary(), overrides=(f"dataset={folder / 'other.yaml'}",))
