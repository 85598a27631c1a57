"""What a file of weights says of its classes and its images is compared with the data and the recipe."""

import json
import re
from dataclasses import replace

import chainer
import chainer.links as L
import numpy as np
import pytest
from safetensors.numpy import save_file

from recipes.errors import RecipeError
from recipes.reading.open import open_recipe
from trainers.launch.preflight import require_fit
from trainers.launch.vocabulary import vocabulary
from trainers.models.weight_file_facts import warn_of_normalisation
from trainers.models.weight_names import head_paths
from trainers.runs.checkpoint import weights_of
from trainers.training.build import drawn_model

CLASSES = [f"class {number}" for number in range(10)]


@pytest.fixture
def begins_with(tmp_path):
    """Opens a recipe that begins with its own weights, of a file with these metadata."""

    def opened(facts, *, except_=(), classes=CLASSES):
        own = open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=["model={kind: SmallCNN, width: 2}"])
        arrays = weights_of(drawn_model(own.recipe, own.dataset))
        save_file(dict(arrays), tmp_path / "w.safetensors", metadata=facts)
        overrides = [
            f"init={{weights: {tmp_path}/w.safetensors, except: [{except_}]}}"
            if except_
            else f"init={{weights: {tmp_path}/w.safetensors}}",
            "model={kind: SmallCNN, width: 2}",
        ]
        fine = open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=overrides)
        return replace(fine, dataset=replace(fine.dataset, classes=tuple(classes)))

    return opened


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (
            ["aardvark", *CLASSES[1:]],
            "are aardvark, class 1, class 2, class 3, class 4 and 5 more, and those of",
        ),
        (CLASSES[::-1], "w.safetensors are in another order, class 9, class 8,"),
    ],
)
def test_the_last_layer_of_other_classes_is_refused_unless_it_is_drawn_anew(begins_with, theirs, message):
    facts = {"classes": json.dumps(theirs)}
    with pytest.raises(RecipeError, match=r"init\.except: .*" + re.escape(message) + ".*name the last layer here"):
        require_fit(begins_with(facts))
    require_fit(begins_with(facts, except_="fc"))


@pytest.mark.parametrize(("theirs", "ours"), [(CLASSES, CLASSES), (None, CLASSES), (["a", "b"], ())])
def test_classes_that_are_the_same_or_have_no_names_are_no_fault(begins_with, theirs, ours):
    require_fit(begins_with({"classes": json.dumps(theirs)} if theirs else None, classes=ours))


def test_the_last_layer_of_a_model_without_fc_is_that_with_a_row_for_each_class():
    model = chainer.Chain(a=L.Convolution2D(3, 64, 3), b=L.Linear(8, 64), c=L.Linear(64, 8))
    assert head_paths(model, 64) == {"/b/W"}
    assert head_paths(chainer.Chain(a=L.Linear(8, 64), fc=L.Linear(64, 64)), 64) == {"/fc/W", "/fc/b"}


def normalised(mean, std):
    return {"augmentation.eval": json.dumps([{"kind": "Normalize", "with": "x", "mean": mean, "std": std}])}


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (normalised([0.3056], [0.3763]), ""),
        (None, ""),
        ({"augmentation.eval": "[]"}, ""),
        (
            normalised([0.5], [0.3763]),
            "by mean [0.5] and std [0.3763], and augmentation.eval takes mean [0.305622] and std",
        ),
        (
            normalised([0.3] * 3, [0.4] * 3),
            "write {kind: Normalize, mean: [0.3, 0.3, 0.3], std: [0.4, 0.4, 0.4]} at its",
        ),
    ],
)
def test_another_normalisation_than_that_of_the_weights_is_a_warning(begins_with, facts, said, capsys):
    require_fit(begins_with(facts))
    printed = capsys.readouterr().err
    assert said in printed
    assert bool(said) == ("kilobatch: warning: command line:1:" in printed)


def test_weights_with_torchvisions_names_want_its_normalisation(begins_with, tmp_path):
    opened = begins_with(None)
    save_file({"conv1.weight": np.zeros(1, "f")}, tmp_path / "w.safetensors")
    (warning,) = warn_of_normalisation(opened.recipe, opened.dataset, opened.reading, {})
    assert "write {kind: Normalize, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]} at its end" in warning
