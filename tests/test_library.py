"""Every file of the library opens by its name: recipes, data sets, clusters."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from recipes.reading.open import open_cluster, open_dataset, open_recipe
from recipes.reading.registry import names
from trainers.launch.vocabulary import vocabulary

ROOT = Path(__file__).parent.parent
FOLDERS = {"recipes": "recipes/papers", "datasets": "configs/datasets", "clusters": "configs/clusters"}


def files_of(kind):
    folder = ROOT / FOLDERS[kind]
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}


@pytest.mark.parametrize("kind", FOLDERS)
def test_every_file_is_found_by_its_name(kind):
    assert files_of(kind)
    assert set(files_of(kind)) <= set(names(kind))


@pytest.mark.parametrize("name", files_of("recipes"))
def test_recipe_opens_and_says_where_its_numbers_come_from(name):
    recipe = open_recipe(name, vocabulary=vocabulary()).recipe
    assert recipe.name == name.replace("/", "-")
    assert recipe.title
    assert recipe.source["title"]
    assert {claim.status for claim in recipe.claims} <= {"reproduced", "predicted", "not run"}
    assert all(claim.source and claim.on for claim in recipe.claims)
    assert sorted(recipe.assumed) == list(recipe.assumed)
    assert recipe.card is not None, f"{name}: recipes in recipes/papers need a `card`; copy that of ying2018.yaml"
    assert recipe.card.changed
    assert recipe.card.hardware
    assert recipe.card.evidence.verified
    # What nobody checked is named twice: in words here, key by key in `assumed`.
    assert bool(recipe.card.evidence.not_checked) == bool(recipe.assumed)


@pytest.mark.parametrize("name", [name for name in files_of("recipes") if not name.startswith(("digits/", "fashion/"))])
def test_published_recipe_has_a_year_an_address_claims_and_what_it_assumes(name):
    recipe = open_recipe(name, vocabulary=vocabulary()).recipe
    if re.fullmatch(r"[a-z]+[0-9]{4}", first := re.split("[-/]", name)[0]):
        assert first.endswith(str(recipe.source["year"]))
    assert recipe.source["url"].startswith("https://")
    assert recipe.assumed
    assert recipe.claims or any("no claim" in text for text in recipe.card.deviations)


@pytest.mark.parametrize("name", files_of("recipes"))
def test_resolved_recipe_opens_to_the_same_recipe(name, tmp_path):
    opened = open_recipe(name, vocabulary=vocabulary())
    copy = tmp_path / "copy.yaml"
    copy.write_text(yaml.safe_dump(opened.tree, sort_keys=False))
    assert open_recipe(copy, vocabulary=vocabulary()).recipe == opened.recipe


@pytest.mark.parametrize("name", files_of("datasets"))
def test_dataset_opens_with_its_facts_and_their_source(name):
    dataset = open_dataset(name, vocabulary=vocabulary())
    assert dataset.name == name
    assert dataset.title
    assert dataset.source
    assert (dataset.reader is None) == bool(dataset.lacks)
    assert len(dataset.mean) == len(dataset.std) == dataset.channels


@pytest.mark.parametrize("name", ["digits", "synthetic", "synthetic_noisy"])
def test_facts_of_a_dataset_are_those_of_its_reader(name):
    dataset = open_dataset(name, vocabulary=vocabulary())
    counts = ("num_train", "num_eval", "num_classes")
    assert dataset.reader.facts(None) == {key: getattr(dataset, key) for key in counts}
    samples = dataset.reader.open(None, "train")
    images_NHWC = np.stack([samples[index][0] for index in range(len(samples))]).astype(np.float64) / 255
    assert images_NHWC.mean(axis=(0, 1, 2)) == pytest.approx(dataset.mean, abs=5e-5)
    assert images_NHWC.std(axis=(0, 1, 2)) == pytest.approx(dataset.std, abs=5e-5)


@pytest.mark.parametrize("name", files_of("clusters"))
def test_cluster_opens(name):
    cluster = open_cluster(name, vocabulary=vocabulary())
    assert cluster.name == name
    assert cluster.title
    assert cluster.source


def test_mn1_holds_akiba2017_in_one_micro_batch_a_gpu():
    cluster = open_cluster("mn1", vocabulary=vocabulary())
    recipe = open_recipe("akiba2017", vocabulary=vocabulary()).recipe
    assert cluster.num_workers * cluster.micro_batch_size == recipe.batch.global_(0.0) == 32768


def test_recipes_that_cannot_be_trained_are_these():
    opened = {name: open_recipe(name, vocabulary=vocabulary()) for name in files_of("recipes")}
    assert not [name for name, one in opened.items() if one.recipe.lacks + one.dataset.lacks]
    assert {name for name, one in opened.items() if one.recipe.open} == {"mikami2018", "you2017/resnet50_32768"}


def test_imagenet_facts():
    dataset = open_dataset("imagenet", vocabulary=vocabulary())
    assert (dataset.num_train, dataset.num_eval, dataset.num_classes) == (1_281_167, 50_000, 1000)
    assert dataset.mean == (0.485, 0.456, 0.406)
    assert dataset.std == (0.229, 0.224, 0.225)
    assert repr(dataset.reader) == "ImageFolder(train='train', eval='val', channels=3)"
    assert dataset.root is None
