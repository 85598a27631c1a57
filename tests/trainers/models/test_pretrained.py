"""The recipe that a file of a ResNet's weights asks for."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from recipes.errors import InputRefused
from trainers import models
from trainers.models.pretrained import pretrained, resnet_with
from trainers.models.weight_names import torch_names

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def saved(tmp_path, channels=3, **facts):
    """A file with the names of a ResNet-18, and metadata."""
    names = (f"layer{stage}.{block}.conv{place}.weight" for stage in "1234" for block in "01" for place in "12")
    arrays = {name: np.zeros(1, np.float32) for name in names}
    arrays["conv1.weight"] = np.zeros((1, channels, 7, 7), np.float32)
    save_file(arrays, tmp_path / "w.safetensors", metadata={key: json.dumps(value) for key, value in facts.items()})
    return tmp_path / "w.safetensors"


@pytest.mark.parametrize("name", ["ResNet18", "ResNet34", "ResNet50", "ResNet152"])
def test_a_network_is_known_by_the_names_of_its_arrays(name):
    model = getattr(models, name)().build(num_classes=2, channels=3, image_size=None)
    assert resnet_with(torch_names(model).values()) == name


def test_weights_without_metadata_are_torchvision_s(tmp_path):
    known = pretrained(saved(tmp_path))
    assert (known.kind, known.keys) == ("ResNet18", {"padded_pool": True, "blur_pool": False})
    assert (known.channels, (known.mean, known.std), known.size) == (3, IMAGENET, None)


def test_an_export_says_how_its_run_pooled_cropped_and_normalised(tmp_path):
    evaluated = [{"kind": "Resize", "shorter": 40}, {"kind": "CenterCrop", "size": 32}]
    evaluated += [{"kind": "Normalize", "mean": [0.5], "std": [0.25]}]
    facts = {"augmentation.eval": evaluated, "model.padded_pool": False, "model.blur_pool": True}
    known = pretrained(saved(tmp_path, channels=1, **facts))
    assert known.keys == {"padded_pool": False, "blur_pool": True}
    assert (known.channels, known.mean, known.std, known.size) == (1, (0.5,), (0.25,), 32)


@pytest.mark.parametrize(
    ("channels", "evaluated", "message"),
    [
        (1, None, "is for 1 channels, and does not say how they are normalised"),
        (
            3,
            [{"kind": "Normalize", "mean": "}\nkilobatch: 2", "std": [1]}],
            "are not as `kilobatch export` writes them",
        ),
        (3, [{"kind": "CenterCrop", "size": 8}], r"KeyError: 'Normalize'"),
        (3, 7, "TypeError"),
    ],
)
def test_metadata_that_no_export_writes_are_refused(tmp_path, channels, evaluated, message):
    file = saved(tmp_path, channels, **({} if evaluated is None else {"augmentation.eval": evaluated}))
    with pytest.raises(InputRefused, match=message):
        pretrained(file)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(InputRefused, match="gone.safetensors cannot be read: No such file"):
        pretrained(tmp_path / "gone.safetensors")
    (tmp_path / "w.pth").write_bytes(b"\x80\x02pickle of something")
    with pytest.raises(InputRefused, match="w.pth: no file of safetensors"):
        pretrained(tmp_path / "w.pth")
    save_file({"fc.weight": np.zeros(3, np.float32)}, tmp_path / "other.safetensors")
    with pytest.raises(InputRefused, match="other.safetensors holds no ResNet's weights by torchvision's names"):
        pretrained(tmp_path / "other.safetensors")
