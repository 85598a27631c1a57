"""The time of a run's updates by phase, in words and tables."""

from __future__ import annotations

import numpy as np

from recipes.phases import PHASES, parted, slowest
from recipes.reports.markup import Markup, joined, table, tag
from recipes.reports.record import Run
from recipes.reports.wording import exchange_words, number

_MOST_ROWS = 64  # workers in the table; of more, only the slowest and the fastest are shown
_BARELY = 0.02  # a worker that is less behind than this is not called slow: it may be noise


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
    parts.append(tag("p", _NOTE, class_="muted"))
    return joined(parts)


_NOTE = (
    "Means over workers and updates. Exposed is the exchange of gradients as far as nothing hides it: what the worker "
    "that waits least for it spends there. What another worker spends above that is waiting, as is the time in the "
    "loss, the flags and the statistics of norm groups, where all come together."
)


def slowest_worker(run: Run) -> str:
    """The slowest worker, its host, and the phase in which it is behind; empty with one worker."""
    found = None if run.phases.by_rank is None else slowest(run.phases.by_rank)
    if found is None:
        return ""
    place = f"rank {found.rank}{_host(run, found.rank)}"
    behind = 100 * found.behind
    if found.behind < _BARELY:
        return f"The workers keep step: the slowest, {place}, is {behind:.1f} % behind the median of the others."
    return (
        f"The slowest worker is {place}, {behind:.0f} % behind the median of the others: {found.phase}, "
        f"{number(1000 * found.seconds, digits=3)} ms more an update."
    )


def _slowest_words(run: Run) -> str:
    waiting = parted(run.phases.by_rank)[:, PHASES.index("waiting")].mean()
    return f"{slowest_worker(run)} A worker waits {number(1000 * float(waiting), digits=3)} ms an update for others."


def _exchange_words(run: Run) -> list[str]:
    words = [f"Gradients: {exchange_words(run.phases.exchange)}."] if run.phases.exchange else []
    exchange = float(run.phases.exchange_seconds.mean())
    exposed = float(run.phases.seconds[:, PHASES.index("exposed")].mean())
    if exchange > 0:
        hidden = max(0.0, 1 - exposed / exchange)
        words.append(
            f"The exchange took {number(1000 * exchange, digits=3)} ms an update, {100 * hidden:.0f} % hidden."
        )
    if run.phases.lost is not None:
        overflowed, flushed = run.phases.lost
        words.append(f"On 16 bits {number(overflowed)} numbers overflowed and {number(flushed)} became zero.")
    return words


def _share(seconds: float, whole: float) -> tuple[str, str]:
    return f"{1000 * seconds:.2f}", f"{100 * seconds / whole:.1f} %" if whole > 0 else "–"


def _by_rank(run: Run) -> Markup:
    shown = parted(run.phases.by_rank)
    order = np.arange(len(shown))
    if len(shown) > _MOST_ROWS:  # the slowest workers wait least
        order = np.argsort(shown[:, PHASES.index("waiting")], kind="stable")
        order = np.concatenate([order[: _MOST_ROWS // 2], order[-_MOST_ROWS // 2 :]])
    rows = [(f"{rank}{_host(run, rank)}", *(f"{1000 * value:.2f}" for value in shown[rank])) for rank in order]
    return table(("rank", *(f"{name} (ms)" for name in PHASES)), rows, class_="numbers")


def _host(run: Run, rank: int) -> str:
    ranks = run.environment.get("ranks")
    for known in ranks if isinstance(ranks, list) else ():
        if isinstance(known, dict) and known.get("rank") == rank and known.get("host"):
            return f" on {known['host']}"
    return ""
