"""`data bench` times what a run does, and computes cores from it."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import kilobatch
from recipes.errors import InputRefused
from recipes.reading.open import open_recipe
from trainers.augmentations import decoders
from trainers.datasets.input_rates import measure_input, rates_text
from trainers.datasets.inspection import dataset_of_folder
from trainers.launch.vocabulary import vocabulary


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    for split in ("train", "val"):
        (root / split / "cat").mkdir(parents=True)
        for number in range(5):
            Image.fromarray(pixels).save(root / split / "cat" / f"{number}.jpg")
    return root


@pytest.fixture(scope="module")
def rates(folder):
    return measure_input(dataset_of_folder(folder), None, target=6300, rounds=2, num_images=4)


def test_every_stage_has_a_rate_on_one_core_and_on_all(rates):
    assert [*rates["stages"]] == ["read", "decode", "augment", "finish", "whole batches"]
    assert all(each["one_core"] > 0 and each["all_cores"] > 0 for each in rates["stages"].values())


def test_the_slowest_part_bounds_and_cores_follow_from_whole_batches(rates):
    parts = {name: each["one_core"] for name, each in rates["stages"].items() if name != "whole batches"}
    assert rates["bound"] == min(parts, key=parts.get)
    a_core = rates["stages"]["whole batches"]["all_cores"] / rates["cores"]
    assert rates["cores_for_target"] == pytest.approx(6300 / a_core)
    assert f"{rates['bound']} takes longest" in rates_text(rates)


def test_another_data_sets_normalisation_is_refused_with_a_way_out(folder):
    recipe = open_recipe("goyal2017", vocabulary=vocabulary()).recipe
    with pytest.raises(InputRefused, match="does not fit .*name the recipe's data set, and the folder"):
        measure_input(dataset_of_folder(folder), recipe, target=6300)


def test_the_command_takes_the_augmentation_of_a_recipe(folder):
    words = ["data", "bench", "imagenet", "--data", str(folder), "--recipe", "goyal2017", "--json"]
    result = CliRunner().invoke(kilobatch.app, words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["recipe"] == "goyal2017"


def test_samples_in_memory_have_nothing_to_decode():
    result = CliRunner().invoke(kilobatch.app, ["data", "bench", "digits", "--recipe", "digits/large_batch", "--json"])
    assert [*json.loads(result.stdout)["stages"]] == ["read", "augment", "finish", "whole batches"]


def test_an_image_that_cannot_be_read_is_named(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "photos")
    for path in (tmp_path / "photos/train/cat").iterdir():
        path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(InputRefused, match=r"train/cat/.\.jpg: .*`kilobatch data verify` names all"):
        measure_input(dataset_of_folder(tmp_path / "photos"), None, target=6300, rounds=1)


def test_images_that_the_data_set_says_to_skip_are_skipped(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "photos")
    for number in (0, 2):
        (tmp_path / f"photos/train/cat/{number}.jpg").write_bytes(b"no image")
    dataset = replace(dataset_of_folder(tmp_path / "photos"), on_bad_image="skip")
    assert measure_input(dataset, None, target=6300, rounds=2, num_images=3)["stages"]["decode"]["one_core"] > 0
    for path in (tmp_path / "photos/train/cat").iterdir():
        path.write_bytes(b"no image")
    with pytest.raises(InputRefused, match="no image of train can be decoded"):
        measure_input(dataset, None, target=6300, rounds=1)


def test_a_family_of_decoders_can_be_chosen(folder, monkeypatch):
    monkeypatch.setattr(decoders, "_in_use", None)  # and as before afterwards
    result = CliRunner().invoke(kilobatch.app, ["data", "bench", str(folder), "--decoder", "pillow", "--json"])
    assert json.loads(result.stdout)["decoder"] == "pillow"
