"""The words of other frameworks lead to those of a recipe, and each of these opens."""

import re
import shlex

import pytest

from recipes.errors import RecipeError
from recipes.reading.open import open_recipe
from recipes.reading.other_frameworks import KEYS, KINDS, OPTIONS, VALUES, advice, option_here
from trainers.launch.vocabulary import vocabulary

ADVICE = sorted({*KEYS.values(), *KINDS.values(), *((path, value) for (path, _), value in VALUES.items())})


def opened(*overrides):
    return open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=("epochs=90", *overrides))


def refusal(override):
    with pytest.raises(RecipeError) as refused:
        opened(override)
    return str(refused.value)


@pytest.mark.parametrize(("path", "value"), ADVICE)
def test_every_advice_opens(path, value, tmp_path, monkeypatch):
    (tmp_path / "F.safetensors").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    value = advice(("", value), tree={"dataset": "digits"})
    if not path:  # one entry of `augmentation.train`
        path, value = "augmentation.train", f"[{value}, {{kind: Normalize, with: digits}}]"
    opened(f"{path}={value}")


@pytest.mark.parametrize(
    ("override", "way_out"),
    [
        ("lr=0.3", "here it is `learning_rate: {reference: 0.3, per: 32}`"),
        ("optimizer.lr=0.003", "here it is `learning_rate: {reference: 0.003, per: 32}`"),
        ("learning_rate=0.2", "here it is `learning_rate: {reference: 0.2, per: 32}`"),
        ("learning_rate.schedule.milestones=[3]", "here it is `learning_rate.schedule: {kind: MultiStep, bounda"),
        ("learning_rate.schedule.gamma=0.1", "here it is `learning_rate.schedule: {kind: MultiStep"),
        (
            "weight_average={decay: 0.9}",
            "here it is `weight_average: {keep: 0.9999, per: 4096}`",
        ),
        ("batch=32", "here it is `batch: {global: 32}`"),
        ("precision=fp16", "here it is `precision: {compute: mixed16}`"),
        ("precision.compute=bf16", "here it is `precision.compute: bfloat16`"),
        ("optimizer={kind: AdamW}", "here it is `optimizer: {kind: Adam, decay: times_rate, weight_decay: 0.05}`"),
        ("optimizer.weight-decay=1e-4", "did you mean weight_decay?"),
        ("optimizer=sgd", "write `{kind: SGD}`"),
        ("model=resnet50", "write `{kind: ResNet50}`"),
        ("optimizer=adamw", "here it is `optimizer: {kind: Adam, decay"),
        ("learning_rate.schedule={kind: Linear}", "here it is `learning_rate.schedule: {kind: Polynomial, power: 1}`"),
        ("learning_rate.warmup={kind: Linear}", "here it is `learning_rate.warmup: {kind: GradualWarmup"),
        ("learning_rate.warmup={kind: CosineWarmup}", "here it is `learning_rate.warmup: {kind: GradualWarmup"),
        ("learning_rate.schedule={kind: OneCycleLR}", "here it is `learning_rate.schedule: {kind: PiecewiseLinear"),
        ("learning_rate.schedule={kind: CosineAnnealingLR}", "here it is `learning_rate.schedule: {kind: Cosine}`"),
    ],
)
def test_words_of_other_frameworks_name_what_is_written_here(override, way_out):
    assert way_out in refusal(override)


@pytest.mark.parametrize(
    ("written", "here"),
    [
        ("{kind: SGD, momentum: 0.8}", {"optimizer={kind: MomentumSGD, momentum: 0.8}"}),
        (
            "{kind: SGD, lr: 0.003, momentum: 0.9, weight_decay: 0.0005, no_decay: [bias]}",
            {
                "optimizer={kind: MomentumSGD, momentum: 0.9, weight_decay: 0.0005, no_decay: [bias]}",
                "learning_rate={reference: 0.003, per: 32}",
            },
        ),
        ("{kind: SGD, momentum: 0.9, nesterov: true}", {"optimizer={kind: NesterovAG, momentum: 0.9}"}),
        ("{kind: SGD, nesterov: false}", {"optimizer={kind: SGD}"}),
        ("{kind: SGD, wd: 1e-3}", {"optimizer={kind: SGD, weight_decay: 0.001}"}),
        (
            "{kind: AdamW, betas: [0.9, 0.95], weight_decay: 0.1, no_decay: [norm]}",
            {"optimizer={kind: Adam, decay: times_rate, weight_decay: 0.1, beta1: 0.9, beta2: 0.95, no_decay: [norm]}"},
        ),
        ("{kind: Adam, betas: [0.8, 0.95]}", {"optimizer={kind: Adam, beta1: 0.8, beta2: 0.95}"}),
        ("{kind: RMSprop, alpha: 0.9}", {"optimizer={kind: Adam, beta1: 0, beta2: 0.9}"}),
    ],
)
def test_an_optimizer_of_pytorch_keeps_its_numbers_and_other_keys(written, here):
    told = refusal(f"optimizer={written}")
    advised = {it.replace(": ", "=", 1) for it in re.findall("`([a-z_]+: {.*?})`", told)}
    assert advised == here
    assert "remove it" not in told
    opened(*here)


def test_a_rate_without_a_batch_says_what_its_batch_is(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("kilobatch: 1\nlr: 0.1\n")
    with pytest.raises(RecipeError, match="per: 256}`, where `per` is the batch that this rate is for"):
        open_recipe(file, vocabulary=vocabulary())


def test_rmsprop_is_not_called_what_becomes_momentum_sgd():
    assert "RmspropWarmup another method" in refusal("optimizer={kind: RMSprop}")


def test_momentum_of_sgd_names_the_kind_that_is_pytorchs():
    assert "or CorrectedMomentumSGD, which as in PyTorch" in refusal("optimizer={kind: SGD, momentum: 0.9}")


def test_one_word_of_an_augmentation_leaves_the_others_alone():
    told = refusal("augmentation.train=[{kind: RandomHorizontalFlip}, {kind: Normalize, with: digits}]")
    assert "here it is `{kind: HorizontalFlip}`" in told


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_a_training_script_is_a_set_that_opens(option):
    value = "64" if "batch" in OPTIONS[option] else "0.5"
    first, setting = shlex.split(option_here(f"--{option}", value).partition(", the rate")[0].strip("`"))
    assert first == "--set"
    opened(setting)


def test_an_option_for_a_mapping_is_one_word_of_the_shell():
    here = option_here("--label-smoothing", "0.2"), option_here("--warmup-epochs", "3"), option_here("--colour", "red")
    warmup = "learning_rate.warmup={kind: GradualWarmup, epochs: 3, start: 0, joins: multiply}"
    assert here == ("`--set loss.label_smoothing=0.2`", f"`--set '{warmup}'`", "")
    texts = (("--scheduler", "cosine"), ("--optimizer", "adam"), ("--model", "resnet"))
    assert [option_here(*words) for words in texts] == ["", "", ""]
