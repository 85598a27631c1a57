"""The gradient noise scale of a run, over its updates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipes.noise_scale import NoiseScale, Norms, noise_scale
from recipes.reports.markup import Markup, joined, table, tag
from recipes.reports.record import Run
from recipes.reports.wording import number

_MOST_WINDOWS = 20
_FEWEST_UPDATES = 10  # in a window: a standard error from fewer says little


@dataclass(frozen=True, kw_only=True)
class Window:
    """Consecutive updates with one global batch, and their noise scale.

    Args:
        first_epoch, last_epoch: starts of the first and of the last update.
        global_batch_size: samples.
        scale: None where the gradient was lost in its noise.
    """

    first_epoch: float
    last_epoch: float
    global_batch_size: int
    scale: NoiseScale | None


def noise_windows(run: Run) -> list[Window]:
    """The measured part of a run in some 20 windows, each of one batch and of 10 updates or more if the batch has them.

    A window ends where the batch changes: noise scales are measured at a batch, though they estimate the same.
    """
    measured = np.flatnonzero(np.isfinite(run.updates.gradient_noise) & np.isfinite(run.updates.gradient_signal))
    if not len(measured):
        return []
    length = max(_FEWEST_UPDATES, -(-len(measured) // _MOST_WINDOWS))
    windows = []
    for stretch in np.split(measured, np.flatnonzero(np.diff(run.updates.global_batch_size[measured])) + 1):
        for places in np.array_split(stretch, max(1, len(stretch) // length)):
            windows.append(_window(run, places))
    return windows


def noise(run: Run) -> Markup:
    """The noise scale at each batch of the run, and how to interpret it."""
    windows = noise_windows(run)
    if not windows:
        return Markup("")
    rows = []
    for size in dict.fromkeys(window.global_batch_size for window in windows):
        known = run.updates.global_batch_size == size
        scale = _window(run, np.flatnonzero(known & np.isfinite(run.updates.gradient_noise))).scale
        rows.append((number(size), *_in_words(scale)))
    words = (
        "The batch at which the noise of the mean gradient and the gradient itself are equally large, after McCandlish "
        "et al. 2018, for SGD, from the gradients of the micro-batches, loss scale and decay excluded. Well below it "
        "twice the batch nearly halves the updates needed; well above it hardly saves any. It is an order of magnitude "
        "and no promise: it grows while training, and the error given is only that of averaging over updates."
    )
    heads = ("at global batch", "noise scale (samples)", "standard error", "updates")
    return joined([tag("h2", "Noise scale"), table(heads, rows, class_="numbers"), tag("p", words, class_="muted")])


def _in_words(scale: NoiseScale | None) -> tuple[str, str, str]:
    if scale is None:
        return "not known: the gradient was lost in its noise", "–", "–"
    return number(scale.value, digits=3), number(scale.standard_error, digits=2), number(scale.num_updates)


def _window(run: Run, places: np.ndarray) -> Window:
    updates = run.updates
    pairs = zip(updates.gradient_noise[places], updates.gradient_signal[places], strict=True)
    return Window(
        first_epoch=float(updates.epoch[places[0]]),
        last_epoch=float(updates.epoch[places[-1]]),
        global_batch_size=int(updates.global_batch_size[places[0]]),
        scale=noise_scale([Norms(noise=float(noise), signal=float(signal)) for noise, signal in pairs]),
    )
