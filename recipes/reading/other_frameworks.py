"""What the words of PyTorch, timm and Keras are called here, for the ways out of unknown keys, kinds and values.

Each is a path and a value that a recipe may have; the tests open a recipe with every one.
"""

from __future__ import annotations

from typing import Any

_RATE = ("learning_rate", "{reference: 0.1, per: 256}")
_BATCH = ("batch", "{global: 256}")
_STEPS = ("learning_rate.schedule", "{kind: MultiStep, boundaries: [30, 60, 80], factor: 0.1}")
_WARMUP = ("learning_rate.warmup", "{kind: GradualWarmup, epochs: 5, start: reference, joins: multiply}")
_ONE_CYCLE = ("learning_rate.schedule", "{kind: PiecewiseLinear, points: [[0, 0.04], [0.3run, 1], [1run, 0]]}")
_HALF = ("precision", "{compute: mixed16}")
_AVERAGE = ("weight_average", "{keep: 0.9999, per: 4096}")

KEYS = {
    "lr": _RATE,
    "base_lr": _RATE,
    "milestones": _STEPS,
    "decay_epochs": _STEPS,
    "gamma": _STEPS,
    "step_size": _STEPS,
    "scheduler": _STEPS,
    "lr_scheduler": _STEPS,
    "sched": _STEPS,
    "warmup": _WARMUP,
    "warmup_epochs": _WARMUP,
    "warmup_lr": _WARMUP,
    "batch_size": _BATCH,
    "bs": _BATCH,
    "size": _BATCH,
    "wd": ("optimizer.weight_decay", "1e-4"),
    "l2": ("optimizer.weight_decay", "1e-4"),
    "betas": ("optimizer", "{kind: Adam, beta1: 0.9, beta2: 0.999}"),
    "nesterov": ("optimizer", "{kind: NesterovAG, momentum: 0.9}"),
    "opt": ("optimizer", "{kind: MomentumSGD, momentum: 0.9}"),
    "num_epochs": ("epochs", "90"),
    "max_epochs": ("epochs", "90"),
    "arch": ("model", "{kind: SmallResNet}"),
    "smoothing": ("loss", "{kind: SoftmaxCrossEntropy, label_smoothing: 0.1}"),
    "label_smoothing": ("loss", "{kind: SoftmaxCrossEntropy, label_smoothing: 0.1}"),
    "criterion": ("loss", "{kind: SoftmaxCrossEntropy}"),
    "amp": _HALF,
    "fp16": _HALF,
    "clip_grad": ("gradient.clip_norm", "1.0"),
    "grad_clip": ("gradient.clip_norm", "1.0"),
    "ema": _AVERAGE,
    "model_ema": _AVERAGE,
    "weight_average.decay": _AVERAGE,
    "weight_average.kind": _AVERAGE,
    "random_seed": ("seed", "0"),
    "transforms": ("augmentation.train", "[{kind: Normalize, with: digits}]"),
    "mixup": ("augmentation.mix", "[{kind: Mixup, alpha: 0.2}]"),
    "pretrained": ("init", "{weights: F.safetensors, except: [fc]}"),
}
KINDS = {
    "adamw": ("optimizer", "{kind: Adam, decay: times_rate, weight_decay: 0.05}"),
    "nesterov": ("optimizer", "{kind: NesterovAG, momentum: 0.9}"),
    "rmsprop": ("optimizer", "{kind: RmspropWarmup}"),
    "cosineannealinglr": ("learning_rate.schedule", "{kind: Cosine}"),
    "cosineannealingwarmrestarts": ("learning_rate.schedule", "{kind: CosineRestarts, first: 10}"),
    "cosinedecay": ("learning_rate.schedule", "{kind: Cosine}"),
    "multisteplr": _STEPS,
    "steplr": _STEPS,
    "exponentiallr": ("learning_rate.schedule", "{kind: Exponential, ratio: 0.97}"),
    "polynomiallr": ("learning_rate.schedule", "{kind: Polynomial, power: 2}"),
    "constantlr": ("learning_rate.schedule", "{kind: Constant}"),
    "linearlr": _WARMUP,
    "warmup linear": _WARMUP,
    **dict.fromkeys(("linearwarmup", "cosinewarmup", "exponentialwarmup"), _WARMUP),
    "schedule linear": ("learning_rate.schedule", "{kind: Polynomial, power: 1}"),
    "wsd": ("learning_rate.schedule", "{kind: StableDecay, decay_from: 0.8run}"),
    **dict.fromkeys(("onecycle", "onecyclelr"), _ONE_CYCLE),
    "reducelronplateau": _STEPS,  # a schedule sees no loss
    "crossentropyloss": ("loss", "{kind: SoftmaxCrossEntropy}"),
    "randomhorizontalflip": ("augmentation.train", "[{kind: HorizontalFlip}, {kind: Normalize, with: digits}]"),
}
VALUES = {
    ("precision", "fp16"): "{compute: mixed16}",
    ("precision", "float16"): "{compute: mixed16}",
    ("precision", "half"): "{compute: mixed16}",
    ("precision", "amp"): "{compute: mixed16}",
    ("precision", "16-mixed"): "{compute: mixed16}",
    ("precision", "bf16"): "{compute: bfloat16}",
    ("precision", "bf16-mixed"): "{compute: bfloat16}",
    ("precision", "fp32"): "{compute: float32}",
    ("precision.compute", "fp16"): "mixed16",
    ("precision.compute", "float16"): "mixed16",
    ("precision.compute", "bf16"): "bfloat16",
    ("precision.compute", "fp32"): "float32",
}
_NUMBERS = {"batch": "{{global: {}}}", "learning_rate": "{{reference: {}, per: 256}}"}


def key_here(path: str) -> str:
    """A way out of an unknown key, at a dotted path, that another framework has; empty for any other."""
    path = path.replace("-", "_").lower()
    return _words(KEYS.get(path) or KEYS.get(path.rpartition(".")[2]))


def kind_here(kind: str, *, word: str) -> str:
    """The same for an unknown kind of a schedule, a warmup or what else `word` says."""
    return _words(KINDS.get(f"{word} {kind.lower()}") or KINDS.get(kind.lower()))


def value_here(path: str, value: Any) -> str:
    """The same for a value that does not belong at a dotted path, such as `batch: 32`."""
    if isinstance(value, str):
        return _words((path, VALUES.get((path, value.lower()))))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    form = _NUMBERS.get(path) if is_number else None
    return _words((path, form and form.format(value)))


def _words(found: tuple[str, str | None] | None) -> str:
    return "" if found is None or found[1] is None else f"here it is `{found[0]}: {found[1]}`"
