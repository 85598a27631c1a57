"""Weights of a file become those of a model, by the names of a checkpoint and by torchvision's."""

import json
import re
from contextlib import nullcontext

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainercv.links.model.resnet import ResNet
from safetensors import TensorSpec, serialize
from safetensors.numpy import save_file

from recipes.errors import InputRefused
from recipes.schema import Init
from trainers.models import ResNet18, ResNet50, SmallCNN
from trainers.models.weight_names import begin_with, pooling_of, to_torch, torch_names
from trainers.runs.checkpoint import weights_of


def small(num_classes=10, seed=0):
    np.random.seed(seed)
    return SmallCNN(width=2).build(num_classes=num_classes, channels=1, image_size=8)


def resnet(kind=ResNet18, *, num_classes=5, seed=0, **options):
    """A ResNet whose scales and running statistics are not those of a fresh one."""
    np.random.seed(seed)
    model = kind(zero_last_gamma=False, **options).build(num_classes=num_classes, channels=3, image_size=None)
    draws = np.random.default_rng(seed)
    for path, array in weights_of(model).items():
        if path.endswith(("gamma", "avg_var")):
            array[...] = draws.uniform(0.5, 1.0, array.shape)
        elif path.endswith(("beta", "avg_mean")):
            array[...] = draws.normal(0, 0.1, array.shape)
    return model


def logits(model, size=64):
    images_NCHW = np.random.default_rng(1).standard_normal((2, 3, size, size)).astype(np.float32)
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        return model(images_NCHW).array


def saved(tmp_path, arrays, facts=None):
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    save_file(arrays, tmp_path / "w.safetensors", metadata=facts)
    return str(tmp_path / "w.safetensors")


@pytest.mark.parametrize("layer", ["fc", "/fc/*"])
def test_weights_of_a_checkpoint_are_taken_but_for_the_excepted_layer(tmp_path, layer):
    source, model = small(num_classes=10), small(num_classes=3, seed=1)
    before = model.fc.W.array.copy()
    begin_with(model, Init(weights=saved(tmp_path, weights_of(source)), except_=(layer,)))
    assert (model.conv2.W.array == source.conv2.W.array).all()
    assert (model.bn1.avg_var == source.bn1.avg_var).all()
    assert (model.fc.W.array == before).all()


class WithHead(ResNet):
    """ChainerCV's ResNet-50 with two layers in place of its last."""

    def __init__(self):
        super().__init__(50, n_class=10, arch="fb", fc_kwargs={})
        self.pick = "pool5"
        del self.fc6
        with self.init_scope():
            self.hidden, self.out = L.Linear(2048, 8), L.Linear(8, 10)
            self.gate = chainer.Sequential(chainer.Sequential(L.Linear(10, 10)))


def test_a_model_derived_from_a_resnet_keeps_its_own_names():
    assert torch_names(WithHead()) == {}


@pytest.mark.parametrize(
    ("change", "except_", "message"),
    [
        (
            {},
            (),
            "has in another shape /fc/W (10x8, here 3x8), /fc/b (10, here 3); name their layers in",
        ),
        ({"/conv2/W": None}, ("fc",), "lacks /conv2/W; name"),
        ({"/conv9/W": np.zeros(1)}, ("fc",), "has, and the model lacks, /conv9/W"),
        ({}, ("head",), "init.except: there is no layer head in the model"),
        ({}, ("f",), "there is no layer f in"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path, change, except_, message):
    arrays = {**weights_of(small()), **change}
    file = saved(tmp_path, {name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(InputRefused, match="init") as refusal:
        begin_with(small(num_classes=3), Init(weights=file, except_=except_))
    assert message in str(refusal.value)


def test_chainers_counters_may_be_missing_as_in_the_averages_of_a_checkpoint(tmp_path):
    source, model = small(), small(seed=1)
    arrays = {path: array for path, array in weights_of(source).items() if not path.endswith("/N")}
    begin_with(model, Init(weights=saved(tmp_path, arrays)))
    assert all((weights_of(model)[path] == array).all() for path, array in arrays.items())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "/conv2/W",
            np.int8(1),
            "does not have in floating point /conv2/W (int8); give weights that are not",
        ),
        ("/conv2/W", np.float32("nan"), "has NaN or numbers beyond float32 in /conv2/W; "),
        ("/conv2/W", np.float64(1e300), "has NaN or numbers beyond float32 in /conv2/W; "),
        ("/bn1/avg_var", np.float32(-0.1), "has negative variances in /bn1/avg_var; "),
        ("/bn1/avg_mean", np.float32(-0.1), None),
        ("/bn1/N", np.int64(7), None),
    ],
)
def test_numbers_that_are_no_weights_are_refused_by_name(tmp_path, name, value, message):
    arrays = weights_of(small())
    file = saved(tmp_path, {**arrays, name: np.full(arrays[name].shape, value)})
    with pytest.raises(InputRefused, match=re.escape(message)) if message else nullcontext():
        begin_with(small(), Init(weights=file))


def test_bfloat16_weights_are_widened(tmp_path):
    source, model = small(), small(seed=1)
    arrays = {path: array for path, array in weights_of(source).items() if not path.endswith("/N")}
    halves = {path: (array.view("<u4") >> 16).astype("<u2") for path, array in arrays.items()}
    specs = {
        path: TensorSpec(dtype="bfloat16", shape=half.shape, data_ptr=half.ctypes.data, data_len=half.nbytes)
        for path, half in halves.items()
    }
    (tmp_path / "w.safetensors").write_bytes(serialize(specs))
    begin_with(model, Init(weights=str(tmp_path / "w.safetensors")))
    for path, array in arrays.items():
        assert (weights_of(model)[path].view("u4") == array.view("u4") & 0xFFFF0000).all()


@pytest.mark.parametrize("begin", [b"PK\x03\x04 a zip file", b"\x80\x02 a pickle"])
def test_a_pickle_is_never_opened(tmp_path, begin):
    (tmp_path / "w.pth").write_bytes(begin)
    with pytest.raises(InputRefused, match=r"a pickle or a zip file.*; write .* safetensors\.torch\.save_file"):
        begin_with(small(), Init(weights=str(tmp_path / "w.pth")))


def test_a_file_that_is_not_of_safetensors_is_refused(tmp_path):
    (tmp_path / "w.pt").write_bytes(b"nothing that is known")
    with pytest.raises(InputRefused, match="not a file of safetensors"):
        begin_with(small(), Init(weights=str(tmp_path / "w.pt")))


def test_the_names_of_torchvision_carry_a_resnet_there_and_back(tmp_path):
    source = resnet(padded_pool=True)
    arrays = to_torch(source, weights_of(source))
    assert {"conv1.weight", "bn1.running_var", "layer4.0.downsample.1.weight", "fc.bias"} < {*arrays}
    assert (arrays["bn1.running_var"] > source.conv1.bn.avg_var).all()
    model = resnet(num_classes=3, seed=2, padded_pool=True)
    with pytest.raises(InputRefused, match=r"another shape /fc/W \(5x512, here 3x512\), /fc/b"):
        begin_with(model, Init(weights=saved(tmp_path, arrays)))
    prefixed = {f"module.{name}": array for name, array in arrays.items()}
    with pytest.raises(InputRefused, match=r"names that begin with `module\.`; save it without that"):
        begin_with(model, Init(weights=saved(tmp_path, prefixed)))
    arrays["bn1.num_batches_tracked"] = np.array(7)
    model = resnet(seed=2, padded_pool=True)
    begin_with(model, Init(weights=saved(tmp_path, arrays)))
    np.testing.assert_allclose(logits(model), logits(source), rtol=1e-5, atol=1e-5)


@pytest.mark.slow  # three of them, drawn
def test_the_last_layer_of_a_deep_resnet_is_excepted_by_either_name(tmp_path):
    source = resnet(ResNet50, num_classes=7, padded_pool=True)
    file = saved(tmp_path, to_torch(source, weights_of(source)))
    for name in ("fc", "fc6"):
        model = resnet(ResNet50, seed=2, padded_pool=True)
        begin_with(model, Init(weights=file, except_=(name,)))
        assert (model.res5.b2.conv3.conv.W.array == source.res5.b2.conv3.conv.W.array).all()


def test_torchvisions_weights_are_refused_where_the_logits_would_be_others(tmp_path):
    source = resnet(padded_pool=True)
    file = saved(tmp_path, to_torch(source, weights_of(source)))
    with pytest.raises(InputRefused, match="write `padded_pool: true` into `model`; of an older export"):
        begin_with(resnet(), Init(weights=file))
    with pytest.raises(InputRefused, match="write `padded_pool: true, blur_pool: false` into `model`"):
        begin_with(resnet(blur_pool=True), Init(weights=file))
    with pytest.raises(InputRefused, match="write `blur_pool: false` into `model`"):
        begin_with(resnet(padded_pool=True, blur_pool=True), Init(weights=file))


@pytest.mark.parametrize(
    ("trained", "begun", "message"),
    [
        ({}, {}, None),
        ({}, {"padded_pool": True}, "trained with another pooling; write `padded_pool: false` into `model`"),
        ({"blur_pool": True}, {"padded_pool": True}, "write `padded_pool: false, blur_pool: true` into `model`"),
    ],
)
def test_weights_of_ones_own_resnet_need_the_pooling_that_their_file_says(tmp_path, trained, begun, message):
    source, model = resnet(**trained), resnet(seed=2, **begun)
    facts = {f"model.{key}": json.dumps(value) for key, value in pooling_of(source).items()}
    init = Init(weights=saved(tmp_path, to_torch(source, weights_of(source)), facts))
    if message:
        with pytest.raises(InputRefused, match=re.escape(message)):
            begin_with(model, init)
    else:
        begin_with(model, init)
        np.testing.assert_allclose(logits(model), logits(source), rtol=1e-5, atol=1e-5)


def test_the_weights_of_another_resnet_are_named(tmp_path):
    names = [f"layer{stage}.{block}.conv1.weight" for stage in (1, 2, 3, 4) for block in range((0, 3, 4, 6, 3)[stage])]
    file = saved(tmp_path, dict.fromkeys([*names, "layer1.0.conv3.weight"], np.zeros(1, "f")))
    with pytest.raises(InputRefused, match="has the weights of a ResNet50; write `kind: ResNet50` into `model`"):
        begin_with(resnet(padded_pool=True), Init(weights=file))


def test_only_resnets_have_names_in_torchvision():
    assert torch_names(small()) == {}


@pytest.mark.torch
@pytest.mark.parametrize("library", ["timm", "torchvision"])
@pytest.mark.parametrize("kind", [ResNet18, ResNet50])
def test_torchvision_and_timm_give_the_logits_of_the_exported_weights_and_back(tmp_path, kind, library):
    torch, models = pytest.importorskip("torch"), pytest.importorskip(library)
    create = models.create_model if library == "timm" else models.models.get_model
    from safetensors.torch import load_file
    from safetensors.torch import save_file as save_torch

    source = resnet(kind, num_classes=1000, padded_pool=True)
    theirs = create(kind.__name__.lower()).eval()
    theirs.load_state_dict(load_file(saved(tmp_path, to_torch(source, weights_of(source)))))
    images_NCHW = np.random.default_rng(1).standard_normal((2, 3, 224, 224)).astype(np.float32)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(images_NCHW)).numpy()
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        ours = source(images_NCHW).array
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5 * abs(expected).max())

    fresh = create(kind.__name__.lower()).eval()
    save_torch(fresh.state_dict(), tmp_path / "theirs.safetensors")
    model = resnet(kind, num_classes=1000, seed=3, padded_pool=True)
    begin_with(model, Init(weights=str(tmp_path / "theirs.safetensors")))
    with torch.no_grad():
        expected = fresh(torch.from_numpy(images_NCHW)).numpy()
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        np.testing.assert_allclose(model(images_NCHW).array, expected, rtol=0, atol=1e-5 * abs(expected).max())
