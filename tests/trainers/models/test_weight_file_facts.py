"""What a file of weights says of its classes and its images is compared with the data and the recipe."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import chainer
import chainer.links as L
import numpy as np
import pytest
from safetensors.numpy import save_file

from recipes.errors import InputRefused, RecipeError
from recipes.reading.open import open_recipe
from recipes.schema import Init
from trainers.launch.preflight import require_fit
from trainers.launch.vocabulary import vocabulary
from trainers.losses import head_paths
from trainers.models.weight_file_facts import pretrained, require_classes, warn_of_normalisation
from trainers.models.weight_names import UnfitWeights
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


def test_the_last_layer_of_a_model_without_fc_may_be_each_that_has_a_row_for_each_class():
    model = chainer.Chain(a=L.Convolution2D(3, 64, 3), b=L.Linear(8, 64), c=L.Linear(64, 8))
    assert head_paths(model, 64) == {"/a/W", "/b/W"}
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


def torch_arrays(channels=3):
    """Small arrays with names of a ResNet-18."""
    names = (f"layer{stage}.{block}.conv{place}.weight" for stage in "1234" for block in "01" for place in "12")
    return {name: np.zeros(1, np.float32) for name in names} | {
        "conv1.weight": np.zeros((1, channels, 7, 7), np.float32)
    }


def resnet_file(tmp_path, channels=3, **facts):
    """A file with the names of a ResNet-18, and metadata."""
    save_file(
        torch_arrays(channels),
        tmp_path / "w.safetensors",
        metadata={key: json.dumps(value) for key, value in facts.items()},
    )
    return tmp_path / "w.safetensors"


def test_weights_without_metadata_are_torchvision_s(tmp_path):
    known = pretrained(resnet_file(tmp_path))
    assert (known.kind, known.keys) == ("ResNet18", {"padded_pool": True, "blur_pool": False})
    assert (known.mean, known.std) == ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    assert (known.channels, known.size) == (3, None)


def test_an_export_says_how_its_run_pooled_cropped_and_normalised(tmp_path):
    evaluated = [{"kind": "Resize", "shorter": 40}, {"kind": "CenterCrop", "size": 32}]
    evaluated += [{"kind": "Normalize", "mean": [0.5], "std": [0.25]}]
    facts = {"augmentation.eval": evaluated, "model.padded_pool": False, "model.blur_pool": True}
    known = pretrained(resnet_file(tmp_path, channels=1, **facts))
    assert known.keys == {"padded_pool": False, "blur_pool": True}
    assert (known.channels, known.mean, known.std, known.size) == (1, [0.5], [0.25], 32)


@pytest.mark.parametrize(
    ("channels", "evaluated", "message"),
    [
        (1, None, "is for 1 channels, and does not say how they are normalised"),
        (3, [{"kind": "Normalize", "mean": "}\nkilobatch: 2", "std": [1]}], "does not say how they"),
        (3, [{"kind": "CenterCrop", "size": 8}], "does not say how they"),
        (3, 7, "does not say how they"),
    ],
)
def test_metadata_that_no_export_writes_are_refused(tmp_path, channels, evaluated, message):
    file = resnet_file(tmp_path, channels, **({} if evaluated is None else {"augmentation.eval": evaluated}))
    with pytest.raises(InputRefused, match=message):
        pretrained(file)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(InputRefused, match="there is no file .*gone.safetensors"):
        pretrained(tmp_path / "gone.safetensors")
    (tmp_path / "w.pth").write_bytes(b"\x80\x02pickle of something")
    with pytest.raises(InputRefused, match="w.pth is a pickle or a zip file"):
        pretrained(tmp_path / "w.pth")
    save_file({"fc.weight": np.zeros(3, np.float32)}, tmp_path / "other.safetensors")
    with pytest.raises(InputRefused, match="other.safetensors holds no ResNet's weights by torchvision's names"):
        pretrained(tmp_path / "other.safetensors")
    save_file({f"module.{name}": array for name, array in torch_arrays().items()}, tmp_path / "m.safetensors")
    with pytest.raises(InputRefused, match="names that begin with `module.`"):
        pretrained(tmp_path / "m.safetensors")
    whole = {name: array.astype(np.int8) for name, array in torch_arrays().items()}
    save_file(whole, tmp_path / "i8.safetensors")
    with pytest.raises(InputRefused, match="i8.safetensors is not in floating point"):
        pretrained(tmp_path / "i8.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((0x1280).to_bytes(8, "little") + b"{" + b" " * 9)
    with pytest.raises(InputRefused, match="cut.safetensors: no file of safetensors"):
        pretrained(tmp_path / "cut.safetensors")
    with pytest.raises(InputRefused, match="https://x.org/r.safetensors: is a URL; download"):
        pretrained(Path("https://x.org/r.safetensors"))


def test_nothing_is_refused_if_one_that_may_be_the_last_layer_is_drawn():
    model = chainer.Chain(l1=L.Linear(8, 64), l2=L.Linear(64, 64))
    data = SimpleNamespace(name="own", num_classes=64, class_names=lambda: [f"class {each}" for each in range(64)])
    facts = {"classes": json.dumps(["other"] * 64)}
    head = head_paths(model, 64)
    require_classes(model, Init(weights="w.safetensors", except_=("l2",)), data, head=head, facts=facts)
    with pytest.raises(UnfitWeights, match="name the last layer here"):
        require_classes(model, Init(weights="w.safetensors"), data, head=head, facts=facts)
