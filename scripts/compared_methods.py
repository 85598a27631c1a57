"""What `bench_methods.py` compares: settings, methods, and the recipe of a run of one on the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

RECIPE = "digits/baseline"
TUNING_SEED = 100
STEP = 10**0.5  # between neighbours of the grid


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A task: data, model and batch size.

    Args:
        name: in table and JSON.
        overrides: of the recipe: data, model, epochs, augmentation.
        epochs: of every run.
        per: the reference batch, which is the norm span too.
        times: the global batch over it.
        chance: accuracy of guessing.
    """

    name: str
    overrides: tuple[str, ...]
    epochs: float
    per: int
    times: int
    chance: float = 0.1

    @property
    def batch(self) -> int:
        """The global batch, the largest of a ramp."""
        return self.per * self.times

    @property
    def warmup_epochs(self) -> float:
        """A quarter of the run, for every method that has a warmup or a ramp."""
        return self.epochs / 4

    @property
    def reference(self) -> str:
        """Name of the setting with the reference batch on the same data."""
        return self.name.rpartition("-")[0] + "-1x"


DIGITS = ("model={kind: SmallCNN, width: 16}",)
NOISY = (
    "dataset=synthetic_noisy",
    "model={kind: SmallCNN, width: 12, first_stride: 4}",
    "augmentation.train=[{kind: Normalize, with: synthetic_noisy}]",
    "augmentation.eval=[{kind: Normalize, with: synthetic_noisy}]",
)
SETTINGS = {
    setting.name: setting
    for setting in (
        *(Setting(name=f"digits-{k}x", overrides=DIGITS, epochs=10, per=32, times=k) for k in (1, 16)),
        *(Setting(name=f"noisy-{k}x", overrides=NOISY, epochs=2, per=16, times=k) for k in (1, 16, 64)),
    )
}


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method: how batch and rate change, and which optimizer is used.

    Args:
        title: in table and pictures.
        default: setting -> value of `number` without tuning.
        overrides: of the recipe, by setting.
        what: in a sentence.
        number: the key that is tuned.
        added: whether it was added after the others' results were known; such a method is run only if it is named.
    """

    title: str
    default: Callable[[Setting], float]
    overrides: Callable[[Setting], tuple[str, ...]]
    what: str
    number: str = "learning_rate.reference"
    added: bool = False


DECAY = "weight_decay: 1e-4, no_decay: [norm]"


def _warmup(setting: Setting, start: str) -> str:
    epochs = setting.warmup_epochs
    return f"learning_rate.warmup={{kind: GradualWarmup, epochs: {epochs:g}, start: {start}, joins: multiply}}"


def _ramp(setting: Setting) -> str:
    first, boundary = setting.batch // 4, setting.warmup_epochs
    steps = f"[{{from: 0, size: {first}}}, {{from: {boundary:g}, size: {setting.batch}}}]"
    return f"batch={{global: {steps}, norm_span: {setting.per}}}"


def _rmsprop(setting: Setting) -> str:
    ends = setting.warmup_epochs  # at beta_center + beta_period / 2; 10 and 5 of 90 epochs in Akiba et al. 2017
    return f"optimizer={{kind: RmspropWarmup, beta_center: {0.8 * ends:g}, beta_period: {0.4 * ends:g}, {DECAY}}}"


def _lars_rate(setting: Setting) -> float:
    return 7.4 * (setting.batch / 1632) ** 0.30  # MLPerf's smallest point; B^0.30 fits its points


def _lamb_rate(setting: Setting) -> float:
    return 0.04 * (setting.batch / 32768) ** 0.5  # You et al. 2019 at 32,768, square root


METHODS = {
    "plain": Method(
        title="plain scaling",
        default=lambda setting: 0.05,
        overrides=lambda setting: (),
        what="rate times B / per from the first update on, momentum SGD",
    ),
    "warmup": Method(
        title="gradual warmup",
        default=lambda setting: 0.05,
        overrides=lambda setting: (_warmup(setting, "reference"),),
        what="plain scaling, reached from the reference rate over a quarter of the run (Goyal et al. 2017)",
    ),
    "ramp": Method(
        title="batch ramp",
        default=lambda setting: 0.05,
        overrides=lambda setting: (_ramp(setting),),
        what="a quarter of the batch for a quarter of the run, then all of it, the rate with it: more updates",
    ),
    "adascale": Method(
        title="AdaScale",
        default=lambda setting: 0.05,
        overrides=lambda setting: ("learning_rate.rule=none", f"optimizer={{kind: AdaScale, momentum: 0.9, {DECAY}}}"),
        what="the unscaled rate times the gain that the gradients of the norm groups give (Johnson et al. 2020)",
    ),
    "rmsprop": Method(
        title="RMSprop warm-up",
        default=lambda setting: 0.05,
        overrides=lambda setting: (_rmsprop(setting),),
        what="RMSprop that goes over to plain scaling by a quarter of the run (Akiba et al. 2017)",
    ),
    "lars": Method(
        title="LARS",
        default=_lars_rate,
        overrides=lambda setting: (
            "learning_rate.rule=none",
            _warmup(setting, "0"),
            "optimizer={kind: Lars, trust_coefficient: 0.001, weight_decay: 1e-4}",
        ),
        what="LARS with trust coefficient 0.001 and a warmup from 0 over a quarter of the run (You et al. 2017)",
    ),
    "lamb": Method(
        title="LAMB",
        default=_lamb_rate,
        overrides=lambda setting: (
            "learning_rate.rule=none",
            _warmup(setting, "0"),
            "optimizer={kind: Lamb, weight_decay: 1e-4}",
        ),
        what="LAMB with a warmup from 0 over a quarter of the run (You et al. 2019)",
    ),
    "lars-trust": Method(
        title="LARS by trust (added)",
        default=lambda setting: 0.001 * _lars_rate(setting) / (0.05 * setting.times),  # the same product with the rate
        overrides=lambda setting: (_warmup(setting, "0"), "optimizer={kind: Lars, weight_decay: 1e-4}"),
        what="LARS at the linearly scaled rate 0.05: tuned is the trust coefficient, which norm and bias do not see",
        number="optimizer.trust_coefficient",
        added=True,
    ),
    "lamb-up": Method(
        title="LAMB, grid up (added)",
        default=lambda setting: 10 * _lamb_rate(setting),
        overrides=lambda setting: METHODS["lamb"].overrides(setting),
        what="LAMB with its grid moved up by a decade",
        added=True,
    ),
}


def overrides_of(setting: Setting, method: str, *, rate: float, seed: int) -> tuple[str, ...]:
    """The overrides of `kilobatch train digits/baseline --set ...` for one run."""
    return (
        *setting.overrides,
        f"epochs={setting.epochs:g}",
        f"batch={{global: {setting.batch}, norm_span: {setting.per}}}",
        f"learning_rate.per={setting.per}",
        *METHODS[method].overrides(setting),
        f"{METHODS[method].number}={rate:.4g}",
        "evaluation.every=1run",
        f"seed={seed}",
    )


def grid(default: float, trials: int) -> list[float]:
    """`trials` rates around the default, half a decade apart.

    >>> [round(rate, 3) for rate in grid(1.0, 5)]
    [0.1, 0.316, 1.0, 3.162, 10.0]
    """
    return [default * STEP ** (place - trials // 2) for place in range(trials)]


def best_trial(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """The run of the highest accuracy, then of the lowest loss; failed ones last, the lowest rate first."""
    worst = (-1.0, 0.0)
    return max(
        sorted(trials, key=lambda run: run["rate"]),
        key=lambda run: worst if run["failed"] else (run["accuracy"], -run["loss"]),
    )
