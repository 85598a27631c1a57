import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI

from recipes.errors import InputRefused
from recipes.planning.cluster import GradientExchange
from recipes.reading.open import open_recipe
from trainers.launch.vocabulary import vocabulary
from trainers.training.build import build, build_exchange, build_model

NORMALIZE = "{kind: Normalize, with: digits}"
CENTRE = "augmentation.eval=[{kind: Resize, shorter: 64}, {kind: CenterCrop, size: 48}]"


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
    assert built("model={kind: AlexNetBN}", *growing(48, 48), *sizes(None, 48)).image_size == 48


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
        CENTRE,
        "image_size=[{from: 0, size: 64}, {from: 1, size: 96}]",
    )
    assert model.image_size == 48


def test_the_size_of_a_hole_is_not_that_of_the_image():
    train = "augmentation.train=[{kind: Resize, shorter: 64}, {kind: RandomCrop, size: 48}, {kind: Cutout, size: 16}]"
    assert built("model={kind: AlexNetBN}", train, CENTRE).image_size == 48


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


HALF = """
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class HalfOfThem:
    def __call__(self, image_HWC, draws):
        return image_HWC[::2, ::2].copy()
"""


@pytest.mark.parametrize(
    ("train", "scored", "image_size"),
    [
        ("{kind: RandomCrop, size: 4}", "{kind: CenterCrop, size: 8}, {kind: half.HalfOfThem}", 4),
        ("{kind: RandomCrop, size: 8}, {kind: half.HalfOfThem}", "{kind: CenterCrop, size: 4}", 4),
        ("{kind: RandomCrop, size: 8}, {kind: half.HalfOfThem}", "{kind: CenterCrop, size: 8}", None),
    ],
)
def test_the_data_say_the_size_behind_an_own_augmentation_that_does_not(
    train, scored, image_size, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "half.py").write_text(HALF)
    names = vocabulary(allow_code=True)
    lists = {"train": train, "eval": scored}
    overrides = [f"augmentation.{key}=[{parts}, {NORMALIZE}]" for key, parts in lists.items()]
    overrides.append("model={kind: SimpleCNN, hidden: 8}")
    opened = open_recipe("digits/baseline", vocabulary=names, overrides=overrides, allow_code=True)
    if image_size is None:
        with pytest.raises(InputRefused, match="would be trained on 4x4 and scored on 8x8"):
            build_model(opened.recipe, opened.dataset)
    else:
        assert build_model(opened.recipe, opened.dataset).image_size == image_size


def test_augmentation_may_end_where_the_list_of_training_does_not_end_in_its_normalisation():
    """Both lists normalise before `finish`, which is that of training."""
    train = "augmentation.train=[{kind: Normalize, with: digits}, {kind: RandomErasing, probability: 1}]"
    made = parts(train, "augmentation.eval=[{kind: Normalize, with: digits}]", "augmentation.end={at: 1}")
    late, scored = (
        load(0, 0)[0] for load in (made.load_late, replace(made.load_eval, samples=made.load_train.samples))
    )
    np.testing.assert_allclose(late, scored, rtol=1e-6)
    assert (made.load_train(0, 0)[0] != late).any()


def test_exact_mode_does_not_send_its_gradients_in_single_numbers():
    """Each of its numbers would take an exchange of its own: a run that looks hung."""
    exchange = build_exchange(GradientExchange(bucket_bytes=1), parts(), MPI.COMM_SELF, exact=True)
    assert exchange._tree._piece_bytes == 256_000
    exchange.close()


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


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["model={kind: AlexNetBN}", *sizes(48, 40)], "would be trained on 48x48 and scored on 40x40"),
        (["model={kind: AlexNetBN}", *sizes(48, None)], "would be trained on 48x48 and scored on 8x8"),
        (
            ["augmentation={train: [], eval: [{kind: CenterCrop, size: 7}], end: {at: 1}}"],
            "augmentation.end: makes images of (1, 7, 7) where augmentation.train makes (1, 8, 8); give both one size",
        ),
    ],
    ids=["another size in the file", "another size of the data", "another size after the end of augmentation"],
)
def test_images_of_another_size_are_refused_by_train_before_anything_starts(settings, said, tmp_path):
    options = [word for override in settings for word in ("--set", override)]
    done = kilobatch("train", "digits/baseline", "--out", "run", *options, folder=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert re.match(r"command line:\d+:\d+: augmentation", done.stderr) or "8x8;" in done.stderr
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


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            "BinaryCrossEntropy, label_smoothing: 0.5, target_threshold: 0.04",
            "1:73: loss.target_threshold: is 0.04; ",
        ),
        (
            "SoftmaxCrossEntropy, class_weights: [1, 2]",
            "1:49: loss.class_weights: is a list of 2; must be",
        ),
    ],
)
def test_a_loss_for_other_classes_than_the_data_have_is_refused_where_it_is_written(loss, message):
    with pytest.raises(InputRefused, match=re.escape(f"command line:{message}")):
        open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=(f"loss={{kind: {loss}}}",))
