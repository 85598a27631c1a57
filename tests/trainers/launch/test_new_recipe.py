"""A first recipe for a folder of images is valid and clean, has what was measured of them, and trains."""

import re
from contextlib import nullcontext

import numpy as np
import pytest
from PIL import Image

from recipes.errors import InputRefused
from recipes.lint import lint_recipe
from recipes.reading.open import open_recipe
from trainers.datasets import ImageFolder
from trainers.launch.new_recipe import write_new_recipe
from trainers.launch.vocabulary import vocabulary

COLOURS = {"night": (40, 80, 120), "day": (200, 180, 160)}


def made_folder(root, *, side, grey=False, val=True, each=40, sides=(0, 0)):
    """Two classes of plain images with noise; `sides` are added to height and width of every second one."""
    random = np.random.default_rng(0)
    for split, count in (("train", each), ("val", 2 if val else 0)):
        for name, colour in COLOURS.items():
            (root / split / name).mkdir(parents=True, exist_ok=True) if count else None
            for number in range(count):
                height, width = (side + number % 2 * more for more in sides)
                pixels = colour + random.integers(-20, 21, (height, width, 3))
                pixels = pixels.astype(np.uint8)
                Image.fromarray(pixels[..., 0] if grey else pixels).save(root / split / name / f"{number}.png")
    return root


def written(folder, recipe):
    lines = write_new_recipe(folder, recipe, showing=lambda words, total: nullcontext(lambda done: None))
    assert lint_recipe(str(recipe), vocabulary=vocabulary()) == []
    return open_recipe(str(recipe), vocabulary=vocabulary()), lines


def test_mean_and_deviation_are_those_of_the_pixels(tmp_path):
    folder = made_folder(tmp_path / "my photos", side=32)
    opened, lines = written(folder, tmp_path / "mine.yaml")
    files = sorted((folder / "train").rglob("*.png"))
    pixels = np.stack([np.asarray(Image.open(file)) for file in files]).reshape(-1, 3) / 255
    np.testing.assert_allclose(opened.dataset.mean, pixels.mean(axis=0), atol=6e-5)
    np.testing.assert_allclose(opened.dataset.std, pixels.std(axis=0), atol=6e-5)
    assert (opened.dataset.name, opened.dataset.num_train, opened.dataset.num_eval) == ("my_photos", 80, 4)
    assert opened.dataset.root == folder
    assert lines[0] == "2 classes, 80 training images, median height x width 32 x 32"


@pytest.mark.parametrize(
    ("folder", "kinds", "model"),
    [
        ({"side": 32}, ["RandomCrop", "HorizontalFlip", "Normalize"], "CifarResNet"),
        ({"side": 32, "sides": (3, 5)}, ["RandomResizedCrop", "HorizontalFlip", "Normalize"], "CifarResNet"),
        ({"side": 120, "each": 8}, ["RandomResizedCrop", "HorizontalFlip", "Normalize"], "ResNet50"),
    ],
    ids=["small", "small of many sizes", "large"],
)
def test_model_and_crops_follow_from_the_sizes(tmp_path, folder, kinds, model):
    opened, _ = written(made_folder(tmp_path / "photos", **folder), tmp_path / "mine.yaml")
    assert [type(part).__name__ for part in opened.recipe.augmentation.train] == kinds
    assert type(opened.recipe.model).__name__ == model


def test_without_val_a_tenth_is_scored(tmp_path):
    opened, lines = written(made_folder(tmp_path / "photos", side=32, val=False), tmp_path / "mine.yaml")
    assert (opened.dataset.num_train, opened.dataset.num_eval) == (72, 8)
    assert "72 training images" in lines[0]


@pytest.mark.parametrize("name", ["valid", "validation", "test"])
def test_the_folder_of_scored_images_may_be_called_otherwise(tmp_path, name):
    folder = made_folder(tmp_path / "photos", side=8, each=8)
    (folder / "val").rename(folder / name)
    with pytest.raises(ValueError, match=f"if they lie in {name}, write `eval: {name}` in the reader"):
        ImageFolder().facts(folder)
    opened, _ = written(folder, tmp_path / "mine.yaml")
    assert (opened.dataset.reader.eval, opened.dataset.num_train, opened.dataset.num_eval) == (name, 16, 4)


def test_of_classes_without_splits_a_tenth_is_scored(tmp_path):
    made_folder(tmp_path, side=8, val=False)
    folder = (tmp_path / "train").rename(tmp_path / "my: photos")
    said = f'write `root: "{tmp_path}"`, `reader: {{kind: ImageFolder, train: "my: photos", eval: null}}` and `val'
    with pytest.raises(ValueError, match=re.escape(said)):
        ImageFolder().facts(folder)
    (tmp_path / "recipes").mkdir()
    opened, _ = written(folder, tmp_path / "recipes" / "mine.yaml")
    assert opened.dataset.reader.class_names(opened.dataset.root) == ["day", "night"]
    assert (opened.dataset.num_train, opened.dataset.num_eval) == (72, 8)


def test_uneven_classes_get_weights(tmp_path):
    folder = made_folder(tmp_path / "photos", side=32)
    for file in sorted((folder / "train" / "night").iterdir())[10:]:
        file.unlink()
    opened, _ = written(folder, tmp_path / "mine.yaml")
    assert opened.recipe.loss.class_weights == (0.625, 2.5)  # day, night: 40 and 10 of 50


def test_what_is_written_trains(tmp_path, kilobatch):
    written(made_folder(tmp_path / "photos", side=16, grey=True), tmp_path / "mine.yaml")
    out = ("--out", tmp_path / "run", "--no-report", "--stop-after", "2up")
    done = kilobatch("train", tmp_path / "mine.yaml", *out, ranks=1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "channels: 1" in (tmp_path / "run" / "dataset.yaml").read_text()


@pytest.mark.parametrize("name", ["mine.yaml", "photos.yaml"])
def test_nothing_is_overwritten(tmp_path, name):
    folder = made_folder(tmp_path / "photos", side=8, each=1)
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputRefused, match=f"{name} exists"):
        written(folder, tmp_path / "mine.yaml")
    assert [file.read_text() for file in tmp_path.glob("*.yaml")] == ["mine"]


def test_what_is_not_valid_is_not_left_behind(tmp_path):
    folder = made_folder(tmp_path / "photos", side=8, each=1)
    (folder / "train" / "day" / "0.png").write_text("no image")
    with pytest.raises(InputRefused, match=r"0\.png"):
        written(folder, tmp_path / "mine.yaml")
    (folder / "train").rename(folder / "other")
    with pytest.raises(InputRefused, match="it must hold CLASS/FILE, or train/CLASS/FILE"):
        written(folder, tmp_path / "mine.yaml")
    assert not list(tmp_path.glob("*.yaml"))
