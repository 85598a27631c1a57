"""What the words of PyTorch, timm and Keras are called here, for the ways out of unknown keys, kinds and values.

Each is a path and a value that a recipe may have; the tests open a recipe with every one. In a value `<0.1>` is the
user's number where there is one, else 0.1; BATCH is the recipe's batch, and DATASET its data set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import PurePath
from shlex import quote
from typing import Any

from recipes.reading.yaml import line_text

_RATE = ("learning_rate", "{reference: <0.1>, per: BATCH}")
_BATCH = ("batch", "{global: <256>}")
_STEPS = ("learning_rate.schedule", "{kind: MultiStep, boundaries: [30, 60, 80], factor: 0.1}")
_DECAY = ("optimizer.weight_decay", "<1e-4>")
_EPOCHS = ("epochs", "<90>")
_SMOOTHING = ("loss", "{kind: SoftmaxCrossEntropy, label_smoothing: <0.1>}")
_CLIP = ("gradient.clip_norm", "<1.0>")
_WARMUP = ("learning_rate.warmup", "{kind: GradualWarmup, epochs: 5, start: 0, joins: multiply}")
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
    "warmup_epochs": ("learning_rate.warmup", _WARMUP[1].replace("5", "<5>")),
    "warmup_lr": _WARMUP,
    "batch_size": _BATCH,
    "bs": _BATCH,
    "batch.size": _BATCH,
    "wd": _DECAY,
    "l2": _DECAY,
    "betas": ("optimizer", "{kind: Adam, beta1: 0.9, beta2: 0.999}"),
    "nesterov": ("optimizer", "{kind: NesterovAG, momentum: 0.9}"),
    "opt": ("optimizer", "{kind: MomentumSGD, momentum: 0.9}"),
    "num_epochs": _EPOCHS,
    "max_epochs": _EPOCHS,
    "arch": ("model", "{kind: SmallResNet}"),
    "smoothing": _SMOOTHING,
    "label_smoothing": _SMOOTHING,
    "criterion": ("loss", "{kind: SoftmaxCrossEntropy}"),
    "amp": _HALF,
    "fp16": _HALF,
    "clip_grad": _CLIP,
    "grad_clip": _CLIP,
    "ema": _AVERAGE,
    "model_ema": _AVERAGE,
    "weight_average.decay": _AVERAGE,
    "weight_average.kind": _AVERAGE,
    "random_seed": ("seed", "<0>"),
    "transforms": ("augmentation.train", "[{kind: Normalize, with: DATASET}]"),
    "mixup": ("augmentation.mix", "[{kind: Mixup, alpha: 0.2}]"),
    "pretrained": ("init", "{weights: F.safetensors, except: [fc]}"),
}
KINDS = {
    "nesterov": ("optimizer", "{kind: NesterovAG, momentum: 0.9}"),
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
    "randomhorizontalflip": ("", "{kind: HorizontalFlip}"),
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
# Options of training scripts for which a recipe has one value.
OPTIONS = {
    **dict.fromkeys(("lr", "base_lr", "learning_rate"), "learning_rate.reference"),
    **dict.fromkeys(("batch", "batch_size", "bs", "global_batch_size"), "batch.global"),
    **dict.fromkeys(("weight_decay", "wd", "l2"), "optimizer.weight_decay"),
    **dict.fromkeys(("label_smoothing", "smoothing"), "loss.label_smoothing"),
    "momentum": "optimizer.momentum",
}
_SINGLE_VALUES = ("dataset", "epochs", "image_size", "seed")  # keys of a recipe that hold no mapping
_NUMBERS = {"batch": _BATCH, "learning_rate": _RATE}

# An optimizer's words of PyTorch that `_optimizer_here` translates, and those of its kinds that another kind is here.
_WORDS_OF_OPTIMIZERS = ("lr", "base_lr", "momentum", "nesterov", "betas", "alpha", "wd", "l2")
_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"kind": "Adam", "decay": "times_rate", "weight_decay": 0.05},
    "rmsprop": {"kind": "Adam", "beta1": 0, "beta2": 0.99},
}
_MOMENTUM = "; or CorrectedMomentumSGD, which as in PyTorch scales the whole buffer by the newest rate"
_RMSPROP = "; this is RMSprop with bias correction, and RmspropWarmup another method: it ends as momentum SGD"


def key_here(path: str, section: Mapping[str, Any], tree: Mapping[str, Any]) -> str:
    """A way out of an unknown key, at a dotted path, that another framework has; empty for any other.

    Args:
        path: of the key.
        section: the mapping that has it.
        tree: the whole recipe.
    """
    place, _, key = path.rpartition(".")
    value, key, path = section.get(key), key.replace("-", "_").lower(), path.replace("-", "_").lower()
    if place == "optimizer" and key in _WORDS_OF_OPTIMIZERS and isinstance(section.get("kind"), str):
        here, rate = _optimizer_here(section)
        if rate is not None and here == {name: value for name, value in section.items() if name != key}:
            return f"here it is `{advice(_RATE, rate, tree)}`" + _whose_batch(tree)
        if key not in here or here["kind"] != section["kind"]:
            way_out = _optimizer_in_words(here, rate, tree)
            return way_out + (_MOMENTUM if section["kind"] != here["kind"] == "MomentumSGD" else "")
    found = KEYS.get(path) or KEYS.get(key)
    return _words(found, value, tree)


def kind_here(kind: str, section: Mapping[str, Any], tree: Mapping[str, Any], *, word: str) -> str:
    """The same for an unknown kind of a schedule, a warmup or what else `word` says, in a mapping with other keys."""
    if word == "optimizer" and kind.lower() in _OPTIMIZERS:
        way_out = _optimizer_in_words(*_optimizer_here({"kind": kind, **section}), tree)
        return way_out + (_RMSPROP if kind.lower() == "rmsprop" else "")
    return _words(KINDS.get(f"{word} {kind.lower()}") or KINDS.get(kind.lower()), None, tree)


def value_here(path: str, value: Any, tree: Mapping[str, Any]) -> str:
    """The same for a value that does not belong at a dotted path, such as `batch: 32`."""
    if isinstance(value, str):
        here = VALUES.get((path, value.lower()))
        return _words(here and (path, here), None, tree)
    return _words(_NUMBERS.get(path) if _is_number(value) else None, value, tree)


def option_here(option: str, value: str) -> str:
    """The `--set` that does what an unknown option such as `--lr` is to do; empty for any other.

    >>> option_here("--epochs", "5"), option_here("--colour", "red")
    ('`--set epochs=5`', '')
    >>> option_here("--lr", "0.1")
    '`--set learning_rate.reference=0.1`, the rate at a batch of `learning_rate.per`'
    """
    key = option.removeprefix("--").replace("-", "_").lower()
    path, form = KEYS.get(key, (key, ""))
    if path == "augmentation.train":  # which a word of another program says too little of
        return ""
    if "{" in form and key not in OPTIONS:
        number = _number_in(value)
        setting = quote(f"{path}={advice(('', form), number)}")
        return "" if number is None and value != "..." else f"`--set {setting}`"  # a text means another form
    if key not in (*OPTIONS, *KEYS, *_SINGLE_VALUES):
        return ""
    path = OPTIONS.get(key, path)
    setting = f"`--set {quote(f'{path}={value}')}`"
    return f"{setting}, the rate at a batch of `learning_rate.per`" if path == "learning_rate.reference" else setting


def advice(found: tuple[str, str], value: Any = None, tree: Mapping[str, Any] | None = None) -> str:
    """A path and a value of the tables above as a recipe may have them.

    >>> advice(("learning_rate", "{reference: <0.1>, per: BATCH}"), 0.4, {"batch": {"global": 32}})
    'learning_rate: {reference: 0.4, per: 32}'
    """
    path, form = found
    tree = tree or {}
    name = tree.get("dataset")
    text = re.sub("<(.*?)>", lambda usual: line_text(value) if _is_number(value) else usual[1], form)
    text = text.replace("BATCH", str(_batch_of(tree) or 256))
    text = text.replace("DATASET", PurePath(name).stem if isinstance(name, str) else "imagenet")
    return f"{path}: {text}" if path else text


def _optimizer_here(given: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """An optimizer's mapping without PyTorch's words, and the rate that stood in it, or None."""
    rest = dict(given)
    kind = rest.pop("kind")
    is_sgd = kind.lower() in ("sgd", "momentumsgd", "correctedmomentumsgd")
    here = dict(_OPTIMIZERS.get(kind.lower(), {"kind": kind}))
    rates = [rest.pop(name) for name in ("lr", "base_lr") if name in rest]
    for name in ("wd", "l2"):
        if name in rest:
            rest["weight_decay"] = rest.pop(name)
    if kind.lower() == "sgd" and "momentum" in rest:
        here["kind"] = "MomentumSGD"
    if is_sgd and isinstance(rest.get("nesterov"), bool) and rest.pop("nesterov"):
        here["kind"] = "NesterovAG"
    if kind.lower() in ("adam", "adamw") and isinstance(rest.get("betas"), list) and len(rest["betas"]) == 2:
        here["beta1"], here["beta2"] = rest.pop("betas")
    if kind.lower() == "rmsprop" and "alpha" in rest:
        here["beta2"] = rest.pop("alpha")
    return here | rest, next(iter(rates), None)


def _optimizer_in_words(here: Mapping[str, Any], rate: Any, tree: Mapping[str, Any]) -> str:
    way_out = f"here it is `optimizer: {line_text(here)}`"
    return way_out if rate is None else f"{way_out} and `{advice(_RATE, rate, tree)}`" + _whose_batch(tree)


def _words(found: tuple[str, str] | None, value: Any, tree: Mapping[str, Any]) -> str:
    if found is None:
        return ""
    return f"here it is `{advice(found, value, tree)}`" + (_whose_batch(tree) if found == _RATE else "")


def _batch_of(tree: Mapping[str, Any]) -> int | None:
    """The global batch that a recipe begins with; None where it gives none."""
    batch = tree.get("batch", tree.get("batch_size"))
    batch = batch.get("global") if isinstance(batch, dict) else batch
    if isinstance(batch, list) and batch and isinstance(batch[0], dict):
        batch = batch[0].get("size")
    return batch if isinstance(batch, int) and not isinstance(batch, bool) else None


def _whose_batch(tree: Mapping[str, Any]) -> str:
    return "" if _batch_of(tree) else ", where `per` is the batch that this rate is for"


def _number_in(text: str) -> int | float | None:
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
