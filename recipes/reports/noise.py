"""Sections of a report on what happens inside updates: loss scale, gradient noise scale, and time by phase."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipes.planning.noise_scale import NoiseScale, Norms, noise_scale
from recipes.planning.phase_times import PHASES, find_straggler, split_exchange
from recipes.reports.html import Markup, joined, table, tag
from recipes.reports.record import Run
from recipes.reports.wording import exchange_words, number

_MAX_WINDOWS = 20
_MIN_UPDATES = 10  # in a window: a standard error from fewer says little
_MAX_ROWS = 64  # workers in the table; of more, only the slowest and the fastest are shown
_PHASES_NOTE = (
    "Means over workers and updates. Exposed is the exchange of gradients as far as nothing hides it: what the worker "
    "that waits least for it spends there. What another worker spends above that is waiting, as is the time in the "
    "loss, the flags and the statistics of norm groups, where all come together."
)
_BARELY = 0.02  # a worker that is less behind than this is not called slow: it may be noise


def loss_scale(run: Run) -> Markup:
    """The loss scale, and which updates were repeated; nothing for a run in float32."""
    known = np.isfinite(run.updates.loss_scale) & np.isfinite(run.updates.overflows)
    if not known.any():
        return Markup("")
    scales, overflows = run.updates.loss_scale[known], run.updates.overflows[known]
    words = f"The scale began at {number(float(scales[0]))} and ended at {number(float(scales[-1]))}, the smallest "
    words += f"being {number(float(scales.min()))} and the largest {number(float(scales.max()))}. "
    again = np.flatnonzero(overflows)
    if len(again):
        at = run.updates.update[known][again]
        words += (
            f"{number(len(again))} of {number(len(scales))} updates overflowed in float16 and were done again at a "
        )
        words += f"smaller scale, {number(int(overflows.sum()))} times in all; the first was update "
        words += f"{number(int(at[0]))}, the last update {number(int(at[-1]))}. "
        words += "Nothing of an attempt that overflowed is in this run but the time it took."
    else:
        words += "No update overflowed."
    return joined([tag("h2", "Loss scale"), tag("p", words)])


@dataclass(frozen=True, kw_only=True)
class Window:
    """Consecutive updates with one global batch; their noise scale, None where the gradient was lost in its noise."""

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
    length = max(_MIN_UPDATES, -(-len(measured) // _MAX_WINDOWS))
    windows = []
    for stretch in np.split(measured, np.flatnonzero(np.diff(run.updates.global_batch_size[measured])) + 1):
        for indices in np.array_split(stretch, max(1, len(stretch) // length)):
            windows.append(_window(run, indices))
    return windows


def noise(run: Run) -> Markup:
    """The noise scale at each batch of the run, and how to interpret it."""
    rows = [(number(size), *_in_words(scale)) for size, scale in _scale_of_each_batch(run)]
    if not rows:
        return Markup("")
    words = (
        "The batch at which the noise of the mean gradient and the gradient itself are equally large, after McCandlish "
        "et al. 2018, for SGD, from the gradients of the micro-batches, loss scale and decay excluded. Well below it "
        "twice the batch nearly halves the updates needed; well above it hardly saves any. It is an order of magnitude "
        "and no promise: it grows while training, and the error given is only that of averaging over updates."
    )
    heads = ("at global batch", "noise scale (samples)", "standard error", "updates")
    return joined([tag("h2", "Noise scale"), table(heads, rows, class_="numbers"), tag("p", words, class_="muted")])


def noise_lines(run: Run) -> list[str]:
    """The noise scale at each batch of the run, in a line each; none if it was not measured."""
    lines = []
    for size, scale in _scale_of_each_batch(run):
        value, error, _ = _in_words(scale)
        lines.append(f"noise scale at batch {number(size)}: {value}" + (f" ± {error} samples" if scale else ""))
    return lines


def _scale_of_each_batch(run: Run) -> list[tuple[int, NoiseScale | None]]:
    measured = np.isfinite(run.updates.gradient_noise) & np.isfinite(run.updates.gradient_signal)
    sizes = run.updates.global_batch_size
    return [
        (size, _window(run, np.flatnonzero(measured & (sizes == size))).scale)
        for size in dict.fromkeys(sizes[measured].tolist())
    ]


def _in_words(scale: NoiseScale | None) -> tuple[str, str, str]:
    if scale is None:
        return "not known: the gradient was lost in its noise", "–", "–"
    return number(scale.value, digits=3), number(scale.standard_error, digits=2), number(scale.num_updates)


def _window(run: Run, indices: np.ndarray) -> Window:
    updates = run.updates
    pairs = zip(updates.gradient_noise[indices], updates.gradient_signal[indices], strict=True)
    return Window(
        first_epoch=float(updates.epoch[indices[0]]),
        last_epoch=float(updates.epoch[indices[-1]]),
        global_batch_size=int(updates.global_batch_size[indices[0]]),
        scale=noise_scale([Norms(noise=float(noise), signal=float(signal)) for noise, signal in pairs]),
    )


def phases(run: Run) -> Markup:
    """The seconds of an update by phase and by worker; nothing if they were not measured."""
    if not len(run.phases):
        return Markup("")
    means = run.phases.seconds.mean(axis=0)
    whole = float(run.phases.update_seconds.mean())
    other = max(0.0, whole - float(means.sum()))
    rows = [(name, *_share(float(value), whole)) for name, value in zip(PHASES, means, strict=True)]
    rows += [("other", *_share(other, whole)), ("an update", *_share(whole, whole))]
    parts = [
        tag("h2", "Where the time goes"),
        table(("phase", "milliseconds an update", "of it"), rows, class_="numbers"),
        tag("p", " ".join(_exchange_words(run))),
    ]
    if run.phases.by_rank is not None and len(run.phases.by_rank) > 1:
        parts += [tag("p", _slowest_words(run)), _by_rank(run)]
    parts.append(tag("p", _PHASES_NOTE, class_="muted"))
    return joined(parts)


def slowest_worker(run: Run) -> str:
    """The slowest worker, its host, and the phase in which it is behind; empty with one worker."""
    worker = None if run.phases.by_rank is None else find_straggler(run.phases.by_rank)
    if worker is None:
        return ""
    name = f"rank {worker.rank}{_host(run, worker.rank)}"
    behind = 100 * worker.behind
    if worker.behind < _BARELY:
        return f"The workers keep step: the slowest, {name}, is {behind:.1f} % behind the median of the others."
    return (
        f"The slowest worker is {name}, {behind:.0f} % behind the median of the others: {worker.phase}, "
        f"{number(1000 * worker.seconds, digits=3)} ms more an update."
    )


def _slowest_words(run: Run) -> str:
    waiting = split_exchange(run.phases.by_rank)[:, PHASES.index("waiting")].mean()
    return f"{slowest_worker(run)} A worker waits {number(1000 * float(waiting), digits=3)} ms an update for others."


def _exchange_words(run: Run) -> list[str]:
    words = [f"Gradients: {exchange_words(run.phases.exchange)}."] if run.phases.exchange else []
    exchange = float(run.phases.exchange_seconds.mean())
    exposed = float(run.phases.seconds[:, PHASES.index("exposed")].mean())
    if exchange > 0:
        hidden = max(0.0, 1 - exposed / exchange)
        share = "" if run.plan.get("exact") is True else f", {100 * hidden:.0f} % hidden"  # exact mode overlaps nothing
        words.append(f"The exchange took {number(1000 * exchange, digits=3)} ms an update{share}.")
    if run.phases.lost is not None:
        overflowed, flushed = run.phases.lost
        words.append(f"On 16 bits {number(overflowed)} numbers overflowed and {number(flushed)} became zero.")
    return words


def _share(seconds: float, whole: float) -> tuple[str, str]:
    return f"{1000 * seconds:.2f}", f"{100 * seconds / whole:.1f} %" if whole > 0 else "–"


def _by_rank(run: Run) -> Markup:
    shown = split_exchange(run.phases.by_rank)
    order = np.arange(len(shown))
    if len(shown) > _MAX_ROWS:  # the slowest workers wait least
        order = np.argsort(shown[:, PHASES.index("waiting")], kind="stable")
        order = np.concatenate([order[: _MAX_ROWS // 2], order[-_MAX_ROWS // 2 :]])
    rows = [(f"{rank}{_host(run, rank)}", *(f"{1000 * value:.2f}" for value in shown[rank])) for rank in order]
    return table(("rank", *(f"{name} (ms)" for name in PHASES)), rows, class_="numbers")


def _host(run: Run, rank: int) -> str:
    ranks = run.environment.get("ranks")
    for known in ranks if isinstance(ranks, list) else ():
        if isinstance(known, dict) and known.get("rank") == rank and known.get("host"):
            return f" on {known['host']}"
    return ""
