import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recipes.errors import InputRefused
from recipes.reading.open import open_recipe
from recipes.schema import Init
from trainers.launch.preflight import require_startable
from trainers.launch.request import TrainRequest, prepare
from trainers.launch.start_ranks import start_or_join
from trainers.launch.vocabulary import vocabulary
from trainers.models.batch_norm import NormGroups
from trainers.training.build import build, build_model, drawn_model, require_trainable

NORMALIZE = "{kind: Normalize, with: digits}"


def sizes(train, evaluation):
    """Augmentations that end in images of these sides; None leaves the data set's 8x8."""
    return [
        f"augmentation.{split}=[{{kind: Resize, shorter: 64}}, {{kind: {crop}, size: {size}}}, {NORMALIZE}]"
        if size
        else "seed=0"
        for split, crop, size in (("train", "RandomCrop", train), ("eval", "CenterCrop", evaluation))
    ]


def built(*overrides):
    opened = open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=overrides)
    return build_model(opened.recipe, opened.dataset)


def test_a_model_of_one_size_is_built_for_the_images_it_is_trained_on():
    assert built("model={kind: AlexNetBN}", *sizes(48, 48)).image_size == 48
    assert built("model={kind: AlexNetBN}", *sizes(48, None)).image_size == 48


def test_a_model_of_one_size_is_refused_where_it_would_be_scored_at_another():
    message = "AlexNetBN takes images of one size, and would be trained on 48x48 and scored on 40x40; give both"
    with pytest.raises(InputRefused, match=message):
        built("model={kind: AlexNetBN}", *sizes(48, 40))


def test_a_model_that_averages_may_be_scored_at_another_size():
    assert built(*sizes(48, 40)).count_params() > 0


@pytest.mark.parametrize("name", ["AlexNetBN", "VGG16"])
def test_images_too_small_for_a_model_are_refused(name):
    with pytest.raises(InputRefused, match=f"{name} needs larger images: nothing is left of 8x8 pixels"):
        built(f"model={{kind: {name}}}")


def growing(*steps):
    """An image size that moves at epoch 1, 2 and so on, and a crop that takes it."""
    ramp = ", ".join(f"{{from: {place}, size: {size}}}" for place, size in enumerate(steps))
    train = "[{kind: Resize, shorter: 64}, {kind: RandomCrop, size: image_size}, {kind: Normalize, with: digits}]"
    return [f"augmentation.train={train}", f"image_size=[{ramp}]"]


def test_a_model_that_averages_takes_images_that_grow():
    assert built("model={kind: SmallCNN}", *growing(16, 24)).count_params() > 0


def test_a_model_of_one_size_takes_an_image_size_that_does_not_move():
    assert built("model={kind: AlexNetBN}", *growing(48, 48)).image_size == 48


@pytest.mark.parametrize("steps", [(48, 64), (64, 48)])
def test_a_model_of_one_size_is_refused_where_images_grow(steps):
    message = f"image_size moves, and AlexNetBN does not take images of {steps[0]}x{steps[0]}; write one number"
    with pytest.raises(InputRefused, match=message):
        built("model={kind: AlexNetBN}", *growing(*steps))


def test_only_the_size_that_reaches_the_model_counts():
    train = "augmentation.train=[{kind: Resize, shorter: image_size}, {kind: RandomCrop, size: 48}]"
    model = built(
        "model={kind: AlexNetBN}",
        train,
        "augmentation.eval=[]",
        "image_size=[{from: 0, size: 64}, {from: 1, size: 96}]",
    )
    assert model.image_size == 48


def test_the_size_of_a_hole_is_not_that_of_the_image():
    train = "augmentation.train=[{kind: Resize, shorter: 64}, {kind: RandomCrop, size: 48}, {kind: Cutout, size: 16}]"
    assert built("model={kind: AlexNetBN}", train, "augmentation.eval=[]").image_size == 48


def test_the_size_of_a_crop_that_is_resized_is_that_of_the_image():
    train = "augmentation.train=[{kind: RandomCrop, size: 8}, {kind: Resize, shorter: 48}]"
    assert built("model={kind: AlexNetBN}", train, "augmentation.eval=[{kind: Resize, shorter: 48}]").image_size == 48


def parts(*overrides):
    opened = open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=overrides)
    return build(opened.recipe, opened.dataset)


def test_a_model_of_one_size_is_built_for_the_images_that_are_loaded_where_no_crop_says_their_size():
    lists = [f"augmentation.{name}=[{{kind: Normalize, with: digits}}]" for name in ("train", "eval")]
    assert parts("model={kind: SimpleCNN, hidden: 8}", *lists).model.image_size == 8
    scored = "augmentation.eval=[{kind: Resize, shorter: 12}, {kind: Normalize, with: digits}]"
    message = "SimpleCNN takes images of one size, and would be trained on 8x8 and scored on 12x12"
    with pytest.raises(InputRefused, match=message):
        parts("model={kind: SimpleCNN, hidden: 8}", lists[0], scored)


def test_augmentation_may_end_where_the_list_of_training_does_not_end_in_its_normalisation():
    """Both lists normalise before `finish`, which is that of training."""
    train = "augmentation.train=[{kind: Normalize, with: digits}, {kind: RandomErasing, probability: 1}]"
    made = parts(train, "augmentation.eval=[{kind: Normalize, with: digits}]", "augmentation.end={at: 1}")
    late, scored = (
        load(0, 0)[0] for load in (made.load_late, replace(made.load_eval, samples=made.load_train.samples))
    )
    np.testing.assert_allclose(late, scored, rtol=1e-6)
    assert (made.load_train(0, 0)[0] != late).any()


FLATTENING = """\
import chainer
import chainer.functions as F
import chainer.links as L


class Flat(chainer.Chain):
    def __init__(self, num_classes, channels, image_size):
        super().__init__()
        with self.init_scope():
            self.fc = L.Linear(channels * image_size**2, num_classes)

    def forward(self, images):
        return self.fc(images)
"""


def kilobatch(*arguments, folder):
    command = [sys.executable, "-P", "-m", "kilobatch", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120)


def test_a_model_of_one_size_is_refused_by_train_before_anything_starts(tmp_path):
    options = [word for override in ("model={kind: AlexNetBN}", *sizes(48, 40)) for word in ("--set", override)]
    done = kilobatch("train", "digits/baseline", "--out", "run", *options, folder=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "would be trained on 48x48 and scored on 40x40" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["plan", "train"])
def test_own_code_that_flattens_its_images_is_refused_by_plan_and_train_where_they_grow(tmp_path, command):
    (tmp_path / "mine.py").write_text(FLATTENING)
    options = [word for override in ("model={kind: mine.Flat}", *growing(8, 12)) for word in ("--set", override)]
    arguments = [command, "digits/baseline", "--allow-code", "-n", "1", *options]
    done = kilobatch(*arguments, folder=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "image_size moves, and Flat does not take images of 8x8; write one number" in done.stderr
    assert "Traceback" not in done.stderr


HUGE = """\
import chainer
import chainer.links as L


class Huge(chainer.Chain):
    def __init__(self, num_classes, channels, image_size):
        super().__init__()
        with self.init_scope():
            self.fc = L.Linear(10**8, 10**8)
"""


def test_a_model_that_no_machine_holds_is_refused_by_name(tmp_path):
    (tmp_path / "mine.py").write_text(HUGE)
    done = kilobatch("plan", "digits/ramp", "--allow-code", "--set", "model={kind: mine.Huge}", folder=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "the model, Huge, has no room in this machine's memory: Unable to" in done.stderr


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (f"{{kind: SmallResNet, width: {10**15}}}", "SmallResNet.width and .blocks must give at most 1,000,000,000 we"),
        (f"{{kind: SmallResNet, blocks: [1, {10**9}]}}", "SmallResNet.width and .blocks must give at most 1,000,000,0"),
        ("{kind: SmallResNet, width: 1, blocks: [2001]}", "must give at most 2,000 blocks, not 2,001; make it smaller"),
        (f"{{kind: SmallResNet, blocks: {[1] * 300}}}", "at most 1,000,000,000 weights, not more than 10^18; make it"),
        ("{kind: SmallCNN, width: 3334}", "must give at most 1,000,000,000 weights, not 1,000,400,040; make it"),
        (
            f"{{kind: WideResNet, depth: {6 * 10**9 + 4}}}",
            "WideResNet.depth and .widen must give at most 1,000,000,000",
        ),
        (
            f"{{kind: WideResNet, widen: {10**9}}}",
            "WideResNet.depth and .widen must give at most 1,000,000,000 weights",
        ),
    ],
)
def test_a_network_that_nobody_can_mean_is_refused_where_it_is_written(model, message):
    with pytest.raises(InputRefused, match=rf"command line:1:\d+: model.*{re.escape(message)}"):
        open_recipe("digits/ramp", vocabulary=vocabulary(), overrides=(f"model={model}",))


OWN = """\
import chainer
import chainer.links as L


class Own(chainer.Chain):
    def __init__(self, num_classes):
        super().__init__()
        with self.init_scope():
            {layers}

    def forward(self, x):
        return self.out(x) if hasattr(self, "out") else self.fc(x)
"""
HEAD = "self.out = L.Linear(64, num_classes)"
HEAD_BIAS = "loss={kind: BinaryCrossEntropy, head_bias: -2.0}"


@pytest.mark.parametrize(
    ("layers", "override", "message"),
    [
        (
            HEAD,
            HEAD_BIAS,
            "Own, cannot be trained: BinaryCrossEntropy.head_bias is -2.0, but Own has no link `fc` with",
        ),
        (
            "self.fc = L.Linear(None, 2)",
            "seed=0",
            "Own, makes (2, 2) of two images of 1x8x8, and the logits of 10 classes are (2, 10); let its",
        ),
        (
            "self.n, self.fc = L.BatchRenormalization(2), L.Linear(None, num_classes)",
            "seed=0",
            "Own, cannot be trained: /n is a BatchRenormalization: its sta",
        ),
        (
            "self.out, self.lost = L.Linear(64, num_classes), L.Linear(None, 3)",
            "seed=0",
            "Own, cannot be trained: parameter /lost/W has no shape yet: give its l",
        ),
        (
            "self.fc = self.again = L.Linear(64, num_classes)",
            "seed=0",
            "Own, cannot be trained: /fc/W is also /again/W, and would be",
        ),
        (
            "self.fc = L.Linear(64, num_classes); self.fc.b.array[...] = -5",
            "seed=0",
            "Own: its constructor sets values of /fc/b, which the recipe's seed would draw again; give the layer an",
        ),
        (
            "self.fc = L.Linear(64, num_classes); self.add_persistent('note', 'hello')",
            "seed=0",
            "Own, cannot be trained: the persistent value /note, of str, is no number and no array of numbers, which",
        ),
        ("self.fc = L.Linear(3, num_classes)", "seed=0", "Own: its forward fails on images of 1x8x8, channels, height"),
        (
            "self.fc = L.Linear(64, num_classes); "
            "self.out = lambda x: (self.fc(x), 0) if chainer.config.train else self.fc(x)",
            "seed=0",
            "Own, makes tuple of two images of 1x8x8 in training, and the logits of 10 classes are (2, 10)",
        ),
        (
            "self.fc, F = L.Linear(64, num_classes), chainer.functions; "
            "self.out = lambda x: self.fc(F.reshape(F.dropout(F.reshape(x, (-1, 8))), (-1, 64)))",
            "seed=0",
            "Own: its forward in training fails on images of 1x8x8, channels, height and width: ValueError: dropout in",
        ),
        ("self.fc, self.forward = L.Linear(64, num_classes), None", "seed=0", "Own, has no method `forward(self"),
        (
            "self.fc = L.Linear(64, num_classes); self.out = lambda x: self.fc(x.astype('f'))",
            "precision={compute: mixed16}",
            "Own: its forward in mixed16 fails on images of 1x8x8, channels, height and width: InvalidType",
        ),
        ("import os; os.environ['NOT']", "seed=0", "Own, cannot be built: KeyError: 'NOT' (HERE/NAME.py:9)"),
        ("pass", "seed=0", "Own, has no parameters: make its layers within"),
        (
            "self.fc = L.Linear(64, num_classes); self.out = lambda x: self.fc(x).array",
            "seed=0",
            "Own: no gradient reaches its parameters; return the Variable, not its array",
        ),
    ],
)
def test_a_model_of_ones_own_that_cannot_be_trained_is_refused_at_once(
    layers, override, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    name = f"mine_{abs(hash(layers))}"  # Python keeps what it has imported
    (tmp_path / f"{name}.py").write_text(OWN.format(layers=layers))
    overrides = (f"model={{kind: {name}.Own}}", override)
    message = message.replace("HERE/NAME", str(tmp_path / name))
    with pytest.raises(InputRefused, match=re.escape(message)):
        start_or_join(TrainRequest(recipe="digits/baseline", overrides=overrides, allow_code=True, out=Path("run")))
    assert not Path("run").exists()


def test_a_model_for_a_gpu_is_not_tried_in_16_bits_on_the_cpu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    layers = "self.fc = L.Linear(64, num_classes); self.out = lambda x: self.fc(x.astype('f'))"
    (tmp_path / "mine_on_gpu.py").write_text(OWN.format(layers=layers))
    overrides = ("model={kind: mine_on_gpu.Own}", "precision={compute: mixed16}")
    words = vocabulary(allow_code=True)
    opened = open_recipe("digits/baseline", vocabulary=words, overrides=overrides, allow_code=True)
    assert require_trainable(opened.recipe, opened.dataset, on_gpu=True) == []
    require_startable(opened, ranks=1, files=False, device="gpu")
    with pytest.raises(InputRefused, match="its forward in mixed16 fails"):
        require_startable(opened, ranks=1, files=False)


@pytest.mark.parametrize(("init", "named"), [(None, "/a/b, /fc/b"), (("fc",), "/fc/b"), ((), None)])
def test_values_of_the_constructor_may_be_those_that_a_file_or_a_checkpoint_replaces(
    init, named, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    layers = "self.a, self.fc = L.Linear(64, 64), L.Linear(64, 10); self.a.b.array[...] = self.fc.b.array[...] = 1"
    (tmp_path / "mine_set.py").write_text(OWN.format(layers=f"{layers}; self.out = lambda x: self.fc(self.a(x))"))
    how = {"vocabulary": vocabulary(allow_code=True), "overrides": ["model={kind: mine_set.Own}"], "allow_code": True}
    opened = open_recipe("digits/baseline", **how)
    recipe = opened.recipe if init is None else replace(opened.recipe, init=Init(weights="w.safetensors", except_=init))
    assert require_trainable(recipe, opened.dataset, is_new=False) == []
    with pytest.raises(InputRefused, match=f"sets values of {named}, which") if named else nullcontext():
        require_trainable(recipe, opened.dataset)


@pytest.mark.parametrize(
    ("name", "layers", "unreached"),
    [
        ("mine_whole", "self.fc = L.Linear(64, num_classes)", ""),
        (
            "mine_cut",
            "self.a, self.fc = L.Linear(64, 9), L.Linear(9, 10); self.out = lambda x: self.fc(self.a(x).array)",
            "kilobatch: warning: no gradient reaches /a/W, /a/b: at most weight decay",
        ),
        (
            "mine_frozen",
            "self.a, self.fc = L.Linear(64, 9), L.Linear(9, 10); self.out = lambda x: self.fc(self.a(x)); "
            "self.a.disable_update()",
            "kilobatch: warning: disable_update() in a constructor changes nothing, so /a/* are trained; ",
        ),
        (
            "mine_normal",
            "self.n = L.BatchNormalization(axis=(0, 2, 3), use_gamma=False, use_beta=False); "
            "self.fc = L.Linear(64, num_classes); self.out = lambda x: self.fc(self.n(x))",
            "",
        ),
    ],
)
def test_a_model_of_ones_own_is_let_through_and_what_it_does_not_train_is_named(
    name, layers, unreached, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{name}.py").write_text(OWN.format(layers=layers))
    overrides = (f"model={{kind: {name}.Own}}", HEAD_BIAS)
    opened = open_recipe(
        "digits/baseline", vocabulary=vocabulary(allow_code=True), overrides=overrides, allow_code=True
    )
    require_startable(opened, ranks=1, files=True)
    said = capsys.readouterr().err
    assert said.startswith(unreached)
    assert bool(said) == bool(unreached)
    NormGroups(opened.recipe.evaluation).install(drawn_model(opened.recipe, opened.dataset))  # as ranks do


def test_a_threshold_below_what_smoothing_gives_every_class_is_refused_at_once():
    loss = "loss={kind: BinaryCrossEntropy, label_smoothing: 0.5, target_threshold: 0.04}"
    with pytest.raises(InputRefused, match=r"each of 10 classes 0\.05: every target would be 1; raise the threshold"):
        prepare(TrainRequest(recipe="digits/baseline", overrides=(loss,)), workers=1)


FACTORS = "learning_rate.factors=[{parameters: [bias], factor: 2}, {parameters: [%s], factor: 0.5}]"
MUON = "optimizer={kind: Muon, others: [/fc/*, %s]}"


@pytest.mark.parametrize(
    ("override", "refused"),
    [
        (FACTORS % "/head/*", "learning_rate.factors.1.parameters: /head/* names no parameter of the model, Simple"),
        (FACTORS % "norm", "learning_rate.factors.1.parameters: norm names no parameter of the model, SimpleCNN; "),
        (FACTORS % "/fc/*, /conv9/*", "learning_rate.factors.1.parameters: /conv9/* names no parameter of the model, "),
        (FACTORS % "norm, /fc/*", None),
        (MUON % "/head/*", "optimizer.others.1: /head/* names no matrix of the model, SimpleCNN; write what it has, "),
        (MUON % "/fc/b", "optimizer.others.1: /fc/b names no matrix of the model, SimpleCNN; write what it has, "),
        (MUON % "/hidden/*", None),
        ("optimizer={kind: Muon}", None),  # whose default has /fc6/*, for any model
    ],
)
def test_parameters_that_the_model_does_not_have_are_refused_before_anything_starts(override, refused):
    how = {"overrides": ("model={kind: SimpleCNN}", override)}
    opened = open_recipe("digits/baseline", vocabulary=vocabulary(), **how)
    if refused is None:
        require_startable(opened, ranks=1, files=True)
        return
    with pytest.raises(InputRefused, match=r"^command line:2:\d+: " + re.escape(refused)):
        require_startable(opened, ranks=1, files=True)
    require_startable(opened, ranks=1, files=False)  # a run that was trained so goes on
