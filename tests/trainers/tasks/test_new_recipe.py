"""A first recipe for a folder of images is valid and clean, has what was measured of them, and trains."""

import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from recipes.errors import InputRefused
from recipes.lint import lint_recipe
from recipes.planning.timeline import timeline_of
from recipes.reading.open import open_recipe
from trainers.datasets import ImageFolder
from trainers.datasets.held_out import open_split
from trainers.launch.vocabulary import vocabulary
from trainers.models import ResNet18
from trainers.models.weight_names import to_torch
from trainers.runs.checkpoint import weights_of
from trainers.tasks.new_recipe import write_new_recipe
from trainers.training.trial_model import require_parameters

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


def written(folder, recipe, *, weights=None):
    showing = lambda words, total: nullcontext(lambda done: None)  # noqa: E731
    lines = write_new_recipe(folder, recipe, weights=weights, showing=showing)
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


@pytest.mark.parametrize(("side", "cut"), [(29, "29 x 29 pixels of 33 x 29"), (120, "106 x 106 pixels of 124 x 120")])
def test_what_evaluation_leaves_out_of_images_that_are_not_square_is_said(tmp_path, side, cut):
    folder = made_folder(tmp_path / "photos", side=side, each=8)
    for file in folder.rglob("*.png"):
        Image.open(file).resize((side, side + 4)).save(file)
    _, lines = written(folder, tmp_path / "mine.yaml")
    assert f"images are not square: evaluation scores the middle {cut}" in lines


def test_the_network_follows_from_the_shorter_side_of_each_image(tmp_path):
    folder = made_folder(tmp_path / "photos", side=40)
    for file in sorted((folder / "train").rglob("*.png")):
        upright = int(file.stem) % 2
        Image.open(file).resize((40, 300) if upright else (300, 40)).save(file)
    opened, lines = written(folder, tmp_path / "mine.yaml")
    assert type(opened.recipe.model).__name__ == "CifarResNet"
    assert "median height x width 170 x 170, of the shorter side 40" in lines[0]


def test_without_val_a_tenth_is_scored(tmp_path):
    opened, lines = written(made_folder(tmp_path / "photos", side=32, val=False), tmp_path / "mine.yaml")
    assert (opened.dataset.num_train, opened.dataset.num_eval) == (72, 8)
    assert "72 training images" in lines[0]
    assert "# of 80 images, held-out ones too, on a scale" in (tmp_path / "photos.yaml").read_text()
    assert np.bincount(open_split(opened.dataset, "eval").labels).tolist() == [4, 4]


def test_its_updates_are_those_of_the_plan(tmp_path):
    folder = made_folder(tmp_path / "photos", side=8, each=9)
    (folder / "train/day/0.png").unlink()  # 17 images in batches of 16, for 200 epochs
    opened, _ = written(folder, tmp_path / "mine.yaml")
    assert timeline_of(opened.recipe, opened.dataset).num_updates == 213
    assert "# 213 updates" in (tmp_path / "mine.yaml").read_text()


def test_images_that_exif_turns_are_counted(tmp_path):
    folder = made_folder(tmp_path / "photos", side=8, each=9)
    turned = Image.Exif()
    turned[0x112] = 6
    Image.new("RGB", (8, 8)).save(folder / "train/day/0.png", exif=turned)
    _, lines = written(folder, tmp_path / "mine.yaml")
    assert lines[2].startswith("turned by EXIF, which is not applied: 1 of 18 images looked at")


@pytest.mark.parametrize("name", ["valid", "validation", "test"])
def test_the_folder_of_scored_images_may_be_called_otherwise(tmp_path, name):
    folder = made_folder(tmp_path / "photos", side=8, each=8)
    (folder / "val").rename(folder / name)
    with pytest.raises(ValueError, match=f"if they lie in {name}, write `eval: {name}` in the reader"):
        ImageFolder().facts(folder)
    opened, lines = written(folder, tmp_path / "mine.yaml")
    assert (opened.dataset.reader.eval, opened.dataset.num_train, opened.dataset.num_eval) == (name, 16, 4)
    assert "--split all" not in lines[-1]


def test_a_folder_that_is_not_used_is_left_for_the_end(tmp_path):
    folder = made_folder(tmp_path / "photos", side=8, each=8)
    shutil.copytree(folder / "val", folder / "test")
    _, lines = written(folder, tmp_path / "mine.yaml")
    assert lines[-1] == f"  kilobatch evaluate RUN --data {folder}/test --split all    # once, at the end"


def test_of_classes_without_splits_a_tenth_is_scored(tmp_path):
    made_folder(tmp_path, side=8, val=False)
    folder = (tmp_path / "train").rename(tmp_path / "my: photos")
    said = """needs the keys `reader: {kind: ImageFolder, train: ".", eval: null}` and `validation: {fraction: 0.1}`"""
    with pytest.raises(ValueError, match=re.escape(said)):
        ImageFolder().facts(folder)
    (tmp_path / "recipes").mkdir()
    opened, _ = written(folder, tmp_path / "recipes" / "mine.yaml")
    assert opened.dataset.reader.class_names(opened.dataset.root) == ["day", "night"]
    assert (opened.dataset.num_train, opened.dataset.num_eval) == (72, 8)
    assert opened.dataset.root.resolve() == folder  # so that --data names another copy of it
    assert opened.dataset.reader.fingerprints(folder).keys() == {"day", "night"}
    with pytest.raises(InputRefused, match="give a FILE outside of it"):
        written(folder, folder / "mine.yaml")


def test_a_folder_of_hundreds_of_images_gets_a_clean_recipe(tmp_path):
    opened, _ = written(made_folder(tmp_path / "photos", side=8, each=300), tmp_path / "mine.yaml")
    assert opened.recipe.batch.global_.sizes == (32,)


def test_small_folders_have_a_batch_that_can_be_normalised(tmp_path):
    opened, _ = written(made_folder(tmp_path / "2024", side=16, each=25), tmp_path / "mine.yaml")
    assert (opened.recipe.batch.global_.sizes, opened.recipe.batch.norm_span.sizes) == ((16,), (16,))
    assert "# lint: ignore batch-over-tenth " in (tmp_path / "mine.yaml").read_text()
    assert opened.recipe.evaluation.norm_momentum.keep == 0.68  # 16 / 0.32 = 50 samples, an epoch
    assert opened.dataset.name == "2024"


def test_files_that_are_no_images_are_passed_over_and_counted(tmp_path):
    folder = made_folder(tmp_path / "photos", side=16)
    (folder / "train" / "day" / "Thumbs.db").write_bytes(b"")
    opened, lines = written(folder, tmp_path / "mine.yaml")
    assert lines[0].endswith("; passed over: 1 other file")
    assert opened.dataset.reader.others == "skip"


def test_a_class_called_train_and_a_folder_of_images_without_classes_are_no_splits(tmp_path):
    folder = made_folder(tmp_path / "photos", side=16, val=False) / "train"
    (folder / "day").rename(folder / "train")
    assert written(folder, tmp_path / "mine.yaml")[0].dataset.reader.class_names(folder) == ["night", "train"]
    folder = made_folder(tmp_path / "more", side=16, val=False)
    (folder / "test").mkdir()
    (folder / "train" / "day" / "1.png").rename(folder / "test" / "1.png")
    assert written(folder, tmp_path / "other.yaml")[0].dataset.reader.eval is None


@pytest.mark.parametrize(
    ("classes", "pixels", "message"),
    [
        (("a",), None, "there is one class, a, and nothing to tell apart"),
        (("a", "b"), 9, r"all pixels of a channel are the same, \[0\.0353"),
        (("a", "b"), None, "a tenth of 4 images is none to score; add some, or a folder val"),
    ],
)
def test_folders_that_nothing_can_be_learned_from_are_refused_in_words(tmp_path, classes, pixels, message):
    for name in classes:
        (tmp_path / "photos" / "train" / name).mkdir(parents=True)
        for number in range(2 if pixels is None else 8):
            image = np.full((8, 8, 3), number if pixels is None else pixels, np.uint8)
            Image.fromarray(image).save(tmp_path / "photos" / "train" / name / f"{number}.png")
    with pytest.raises(InputRefused, match=message):
        written(tmp_path / "photos", tmp_path / "mine.yaml")


def test_uneven_classes_get_weights(tmp_path):
    folder = made_folder(tmp_path / "photos", side=32)
    for file in sorted((folder / "train" / "night").iterdir())[10:]:
        file.unlink()
    opened, _ = written(folder, tmp_path / "mine.yaml")
    assert opened.recipe.loss.class_weights == (0.625, 2.5)  # day, night: 40 and 10 of 50


def test_given_weights_choose_network_normalisation_and_rate(tmp_path):
    model = ResNet18(padded_pool=True).build(num_classes=7, channels=3, image_size=None)
    arrays = {name: np.asarray(array, order="C") for name, array in to_torch(model, weights_of(model)).items()}
    save_file(arrays, tmp_path / "resnet18.safetensors")
    folder = made_folder(tmp_path / "photos", side=16, grey=True)
    (tmp_path / "recipes").mkdir()
    opened, _ = written(folder, tmp_path / "recipes" / "mine.yaml", weights=tmp_path / "resnet18.safetensors")
    recipe = opened.recipe
    assert (recipe.model, recipe.init.except_) == (ResNet18(padded_pool=True), ("fc",))
    assert opened.dataset.channels == 3  # grey images too
    for normalize in (recipe.augmentation.train[-1], recipe.augmentation.eval[-1]):
        assert (normalize.mean, normalize.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert recipe.learning_rate.reference < 0.1
    require_parameters(recipe, opened.dataset, opened.reading)  # the weights fit


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


def test_a_folder_of_classes_is_read_at_a_url_too(tmp_path):
    folder = made_folder(tmp_path, side=8, val=False, each=10) / "train"
    reader = ImageFolder(train=".", eval=None)
    here, there = (reader.open(root, "train") for root in (folder, Path(f"file:{folder}")))
    assert [here.encoded(index) for index in range(20)] == [there.encoded(index) for index in range(20)]
