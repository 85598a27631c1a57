"""The words of other frameworks lead to those of a recipe, and each of these opens."""

import pytest

from recipes.errors import RecipeError
from recipes.reading.open import open_recipe
from recipes.reading.other_frameworks import KEYS, KINDS, VALUES
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
    opened(f"{path}={value}")


@pytest.mark.parametrize(
    ("override", "way_out"),
    [
        ("lr=0.1", "here it is `learning_rate: {reference: 0.1, per: 256}`"),
        ("optimizer.lr=0.1", "here it is `learning_rate: {reference: 0.1, per: 256}`"),
        ("learning_rate=0.2", "here it is `learning_rate: {reference: 0.2, per: 256}`"),
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
