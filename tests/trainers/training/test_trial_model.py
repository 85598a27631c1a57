import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import chainer
import chainer.links as L
import pytest

from recipes.errors import InputRefused
from recipes.reading.open import open_recipe
from recipes.schema import Evaluation, Init, NormMomentum, RateFactor
from trainers.datasets.image_folder import ImageFolder
from trainers.launch.model_costs import model_of
from trainers.launch.preflight import require_startable
from trainers.launch.request import TrainRequest
from trainers.launch.start_ranks import start_or_join
from trainers.launch.vocabulary import vocabulary
from trainers.models.batch_norm import NormGroups
from trainers.models.own_models import AsInitialized
from trainers.training.build import build_model, drawn_model
from trainers.training.trial_model import not_as_meant, other_decays, require_parameters, require_trainable

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
            "Own, returns a tuple of two images of 1x8x8 in training, and the logits of 10 classes are (2, 10)",
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
        (
            "self.fc = L.Linear(64, num_classes); self.forward = lambda x, t: self.fc(x)",
            "seed=0",
            "Own: its forward is called with the images alone: missing a required argument: 't'",
        ),
        ("pass", "seed=0", "Own, has no parameters: make its layers within"),
        (
            "self.fc = L.Linear(64, num_classes); self.out = lambda x: self.fc(x).array",
            "seed=0",
            "Own: no gradient reaches its parameters; return the Variable, not its array",
        ),
        (
            "self.fc = L.Linear(9, num_classes); self.layers = [L.Linear(64, 9)]; "
            "self.out = lambda x: self.fc(self.layers[0](x))",
            "seed=0",
            "Own, uses layers that it has not registered, /layers/0: they would be neither drawn by the seed",
        ),
        (
            "self.fc, hidden = L.Linear(9, num_classes), L.Linear(64, 9); self.out = lambda x: self.fc(hidden(x))",
            "seed=0",
            "Own, uses layers that it has not registered, outside of its attributes and lists of them: they would",
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


SIZED = """\
import chainer
import chainer.links as L


class Sized(chainer.Chain):
    def __init__(self, num_classes, channels, image_size):
        super().__init__()
        with self.init_scope():
            self.fc = L.Linear(channels * image_size**2, num_classes)

    def forward(self, x):
        return self.fc(x)
"""


def test_a_size_that_no_augmentation_says_is_that_of_the_images(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine_sized.py").write_text(SIZED)
    plain = "[{kind: Normalize, with: digits}]"
    overrides = ("model={kind: mine_sized.Sized}", f"augmentation={{train: {plain}, eval: {plain}}}")
    words = vocabulary(allow_code=True)
    opened = open_recipe("digits/baseline", vocabulary=words, overrides=overrides, allow_code=True)
    assert require_trainable(opened.recipe, opened.dataset) == []
    assert model_of(opened).num_parameters == 8 * 8 * 10 + 10  # of a plan
    away = replace(opened.dataset, reader=ImageFolder(), root=tmp_path / "away")
    with pytest.raises(
        InputRefused, match=r"Sized, cannot be built: TypeError.*mine_sized.py:9\); .* image_size is None"
    ):
        build_model(opened.recipe, away)


def test_a_model_for_a_gpu_is_not_tried_in_16_bits_on_the_cpu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    layers = "self.fc = L.Linear(64, num_classes); self.out = lambda x: self.fc(x.astype('f'))"
    (tmp_path / "mine_on_gpu.py").write_text(OWN.format(layers=layers))
    overrides = ("model={kind: mine_on_gpu.Own}", "precision={compute: mixed16}")
    words = vocabulary(allow_code=True)
    opened = open_recipe("digits/baseline", vocabulary=words, overrides=overrides, allow_code=True)
    assert require_trainable(opened.recipe, opened.dataset, on_gpu=True) == []
    require_startable(opened, ranks=1, is_new=False, on_gpu=True)
    with pytest.raises(InputRefused, match="its forward in mixed16 fails"):
        require_startable(opened, ranks=1, is_new=False)


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
            "mine_fixed",
            "self.fc, self.known = L.Linear(64, num_classes), []; self.known.append((self.fc, self.known)); "
            "object.__setattr__(self, 'blur', [L.Linear(64, 64, initialW=1), L.Linear(None, 3)]); "
            "self.out = lambda x: self.fc(self.blur[0](x))",
            "kilobatch: warning: /blur/0, /blur/1 will be neither drawn by the seed, trained nor saved; ",
        ),
        (
            "mine_mixed",  # registered and fixed layers in one container
            "self.fc = L.Linear(64, num_classes); "
            "several = chainer.Sequential(L.Linear(None, 64, initialW=0.1), self.fc); self.out = lambda x: several(x)",
            "",
        ),
        (
            "mine_noisy",
            "self.fc, F = L.Linear(64, num_classes), chainer.functions; "
            "self.out = lambda x: self.fc(F.gaussian(F.flatten(x).reshape(-1, 64), x.reshape(-1, 64)))",
            "kilobatch: warning: the model, Own, gives other logits of the same images when it is called again",
        ),
        (
            "mine_moving",  # a persistent value
            "self.fc, self.n = L.Linear(64, num_classes), L.BatchNormalization(1); self.add_persistent('calls', 0); "
            "self.out = lambda x: (setattr(self, 'calls', self.calls + 1), "
            "self.calls * self.fc(chainer.functions.dropout(self.n(x))))[1]",
            "",
        ),
        (
            "mine_slow",
            "self.n, self.fc = L.BatchNormalization(1, decay=0.99), L.Linear(64, num_classes); "
            "self.out = lambda x: self.fc(self.n(x))",
            "kilobatch: warning: /n (decay=0.99): a run takes evaluation.norm_momentum.keep of the recipe inst",
        ),
        (
            "mine_sure",
            "self.fc = L.Linear(64, num_classes); self.out = lambda x: chainer.functions.softmax(self.fc(x))",
            "kilobatch: warning: the model, Own, returns probabilities: ",
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
    require_startable(opened, ranks=1, is_new=True)
    said = capsys.readouterr().err
    assert said.startswith(unreached)
    assert bool(said) == bool(unreached)
    NormGroups(opened.recipe.evaluation).install(drawn_model(opened.recipe, opened.dataset))  # as ranks do


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
        require_startable(opened, ranks=1, is_new=True)
        return
    with pytest.raises(InputRefused, match=r"^command line:2:\d+: " + re.escape(refused)):
        require_startable(opened, ranks=1, is_new=True)
    require_startable(opened, ranks=1, is_new=False)  # a run that was trained so goes on


def test_what_is_frozen_in_vain_or_not_registered_is_named():
    with AsInitialized() as initialized:
        model = chainer.Chain()
        with model.init_scope():
            model.a, model.b = L.Linear(3, 3), L.Linear(3, 3)
        model.b.disable_update()
        model.scale, model.also_W = chainer.Parameter(1.0, (1,)), model.a.W
    how = {"unreached": (), "disabled": initialized.disabled}
    frozen, loose = not_as_meant(model, factors=[RateFactor(parameters=("/b/W",), factor=0)], **how)
    assert "so /b/* are trained; " in frozen
    assert loose.startswith("/scale will be neither drawn by the seed, trained nor saved; ")
    assert not_as_meant(model, factors=[RateFactor(parameters=("/b/*",), factor=0)], **how) == [loose]


@pytest.mark.parametrize(
    ("decay", "evaluation", "is_named"),
    [
        (0.99, Evaluation(), True),
        (0.9, Evaluation(norm_momentum=NormMomentum(keep=0.99)), False),  # Chainer's default
        (0.99, Evaluation(norm_momentum=NormMomentum(keep=0.99)), False),
        (0.99, Evaluation(norm_statistics="last_batch"), False),
    ],
)
def test_a_decay_that_the_recipe_overrules_is_named(decay, evaluation, is_named):
    model = chainer.Sequential(L.Convolution2D(1, 2, 3), L.BatchNormalization(2, decay=decay))
    NormGroups(evaluation).install(model)
    warnings = other_decays(model, evaluation)
    assert len(warnings) == is_named
    if is_named:
        assert warnings[0].startswith("/1 (decay=0.99): a run takes evaluation.norm_momentum.keep of the recipe")
        assert "`evaluation: {norm_momentum: {keep: 0.99}}`" in warnings[0]


@pytest.mark.parametrize(("factors", "is_still"), [('["/*"], factor: 0', True), ("[norm], factor: 0", False)])
def test_a_run_that_trains_nothing_is_a_warning(factors, is_still):
    overrides = [f"learning_rate.factors=[{{parameters: {factors}}}]"]
    opened = open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=overrides)
    warnings = require_parameters(opened.recipe, opened.dataset, opened.reading)
    assert ["so nothing is trained" in warning for warning in warnings] == [True] * is_still
