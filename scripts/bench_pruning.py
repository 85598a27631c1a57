"""Replays searches over the recorded trials: fair pruning, Optuna's pruners as they come, and random search.

    .venv/bin/python scripts/bench_pruning.py [--json F] [--markdown] [--replays 20] [--budget 30]

A replay takes the recorded configurations in an order of its own, the same for every method, one at a time, until the
device-time of 30 whole runs is spent; a run that is not finished by then does not count. What a method found is the
best whole run that it finished; its regret is how far that lies below the best of the table.

  fair          the pruner as a search of this package has it: reports at equal parts of a run, not before a trial's own
                slow start is over, only trials whose rate has the same shape; rungs are whole compressed runs
  as it comes   Optuna's class with its defaults, told the accuracy after every epoch, with the epoch as the step
  random        every configuration trained whole

Decided before the trials were recorded: the comparison that counts is Median, fair, with Median as it comes and with
random; the other pruners are shown beside it. A one-sided sign test over the replays decides: "better" where p < 0.05,
else "not shown". Replays share a table, so the test is about this table only.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
from optuna.trial import TrialState
from recorded_trials import REPORTS, SHARES, TABLE, Recorded, read_table

ROOT = Path(__file__).parents[1]
KINDS = ("Median", "Percentile", "Wilcoxon", "SuccessiveHalving", "Hyperband")
PRIMARY = "Median"


@dataclass
class TrialResult:
    """What a search found.

    Args:
        accuracy: of the best whole run that was finished; 0 where none was.
        begun: trials.
        whole: runs that were trained to the end of all epochs.
        ended: accuracies that the trials ended on their way would have had.
    """

    accuracy: float = 0.0
    begun: int = 0
    whole: int = 0
    ended: list[float] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """Pruned trials whose whole run would have been better than the best one found."""
        return sum(accuracy > self.accuracy for accuracy in self.ended)

    def take(self, accuracy: float) -> None:
        """Record a finished whole run."""
        self.whole += 1
        self.accuracy = max(self.accuracy, accuracy)


def random_search(order: list[Recorded], budget: float) -> TrialResult:
    """Random search: every run is trained to its end."""
    found, spent = TrialResult(), 0.0
    for trial in order:
        spent += trial.seconds[-1]
        if spent > budget:
            break
        found.begun += 1
        found.take(trial.accuracy())
    return found


def by_reports(
    order: list[Recorded], budget: float, *, pruner: Any, points: Callable[[Recorded], Iterator[tuple[int, int]]]
) -> TrialResult:
    """A search in which a pruner of Optuna ends running trials.

    Args:
        points: of a trial: (step that Optuna is told, number of the report).
    """
    from trainers.search.comparability import COMPARED, first_report

    study = optuna.create_study(direction="maximize", pruner=pruner)
    found, spent = TrialResult(), 0.0
    for recorded in order:
        trial = study.ask()
        found.begun += 1
        first = first_report(recorded.slow_until, recorded.epochs, reports=REPORTS)
        trial.set_user_attr(COMPARED, {"from": first, "shape": recorded.shape})
        state, reached = TrialState.COMPLETE, REPORTS
        for step, number in points(recorded):
            trial.report(recorded.correct[number - 1], step)
            if number < REPORTS and trial.should_prune():
                state, reached = TrialState.PRUNED, number
                break
        spent += recorded.seconds[-1] * reached / REPORTS
        if spent > budget:
            break
        study.tell(trial, recorded.correct[-1] if state == TrialState.COMPLETE else None, state=state)
        if state == TrialState.COMPLETE:
            found.take(recorded.accuracy())
        else:
            found.ended.append(recorded.accuracy())
    return found


class InOrder(optuna.samplers.RandomSampler):
    """A sampler that proposes the configurations in order."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0

    def sample_independent(self, *asked: Any) -> int:
        self._next += 1
        return self._next - 1


def by_rungs(order: list[Recorded], budget: float, *, pruner: Any) -> TrialResult:
    """Whole runs of several lengths, as `trainers/search/successive_halving.py` chooses them."""
    from trainers.search.successive_halving import RUNG, assigned_share, promote

    study, search = optuna.create_study(direction="maximize", sampler=InOrder()), SimpleNamespace(pruner=pruner)
    search.budget = SimpleNamespace(trials=math.inf)
    found, spent = TrialResult(), 0.0
    for _ in range(len(order)):
        promote(study, search)
        trial = study.ask()
        found.begun += 1
        assigned_share(trial, search)
        recorded = order[trial.suggest_int("place", 0, len(order) - 1)]
        at = trial.user_attrs[RUNG]["at"]
        spent += recorded.seconds[at]
        if spent > budget:
            break
        study.tell(trial, recorded.accuracy(at))
        if at == len(SHARES) - 1:
            found.take(recorded.accuracy())
    return found


def at_equal_parts(trial: Recorded) -> Iterator[tuple[int, int]]:
    """Every report, by its number."""
    yield from ((number, number) for number in range(1, REPORTS + 1))


def at_epochs(trial: Recorded) -> Iterator[tuple[int, int]]:
    """The reports that fall on a whole epoch, by the epoch."""
    yield from ((epoch, epoch * REPORTS // trial.epochs) for epoch in range(1, trial.epochs + 1))


def methods() -> dict[str, Callable[[list[Recorded], float], TrialResult]]:
    """Name -> search."""
    from trainers.search import pruners

    theirs = {
        "Median": optuna.pruners.MedianPruner,
        "Percentile": lambda: optuna.pruners.PercentilePruner(25.0),
        "Wilcoxon": optuna.pruners.WilcoxonPruner,
        "SuccessiveHalving": optuna.pruners.SuccessiveHalvingPruner,
        "Hyperband": optuna.pruners.HyperbandPruner,
    }
    found: dict[str, Callable[[list[Recorded], float], TrialResult]] = {"random": random_search}
    for kind in KINDS:
        ours = getattr(pruners, kind)()
        if hasattr(ours, "shares"):
            found[f"{kind}, fair"] = partial(by_rungs, pruner=ours)
        else:
            found[f"{kind}, fair"] = lambda order, budget, ours=ours: by_reports(
                order, budget, pruner=ours.build(), points=at_equal_parts
            )
        found[f"{kind}, as it comes"] = lambda order, budget, make=theirs[kind]: by_reports(
            order, budget, pruner=make(), points=at_epochs
        )
    return found


def sign_test(ours: list[float], theirs: list[float]) -> tuple[int, int, float]:
    """Replays in which our regret is lower, those in which it is higher, and the one-sided p of that many wins or more.

    Ties are left out.

    >>> sign_test([0.0, 0.0, 0.0, 0.0, 0.5], [0.1, 0.1, 0.1, 0.1, 0.5])
    (4, 0, 0.0625)
    """
    pairs = list(zip(ours, theirs, strict=True))
    wins, losses = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
    number = wins + losses
    p = sum(math.comb(number, count) for count in range(wins, number + 1)) / 2**number
    return wins, losses, p


def replay(table: list[Recorded], *, replays: int, budget: float) -> dict[str, list[dict[str, Any]]]:
    """Method -> what it found in each replay."""
    seconds = budget * statistics.fmean(trial.seconds[-1] for trial in table)
    best = max(trial.accuracy() for trial in table)
    found: dict[str, list[dict[str, Any]]] = {}
    for name, search in methods().items():
        found[name] = []
        for number in range(replays):
            order = np.random.Generator(np.random.Philox(key=number)).permutation(len(table))
            outcome = search([table[place] for place in order], seconds)
            kept = {key: getattr(outcome, key) for key in ("accuracy", "begun", "whole", "lost")}
            found[name].append({"regret": best - outcome.accuracy, "ended": len(outcome.ended), **kept})
        print(f"{name}: done", file=sys.stderr, flush=True)
    return found


def rows_of(found: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    """The table."""
    regrets = {name: [one["regret"] for one in outcomes] for name, outcomes in found.items()}
    rows = []
    for name, outcomes in found.items():
        mean = {key: statistics.fmean(one[key] for one in outcomes) for key in ("begun", "whole", "ended", "lost")}
        kind, _, how = name.partition(", ")
        theirs = f"{kind}, as it comes" if how == "fair" else None
        said = [_said(regrets, name, other) for other in (theirs, "random" if how else None)]
        low, middle, high = (100 * value for value in statistics.quantiles(regrets[name], n=4, method="inclusive"))
        regret = f"{middle:.2f} ({low:.2f} to {high:.2f})"
        rows.append([name, regret, *(f"{mean[key]:.1f}" for key in mean), *said])
    return rows


def _said(regrets: dict[str, list[float]], name: str, other: str | None) -> str:
    if other is None:
        return ""
    wins, losses, p = sign_test(regrets[name], regrets[other])
    return f"{'better' if p < 0.05 else 'not shown'} ({wins} : {losses}, p = {p:.2g})"


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replays", type=int, default=20)
    parser.add_argument("--budget", type=float, default=30, help="device-time, in mean whole runs")
    parser.add_argument("--table", type=Path, default=TABLE, metavar="F")
    parser.add_argument("--json", type=Path, metavar="F")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")  # experimental classes; steps that the best trial of another length has not
    table = read_table(options.table)
    found = replay(table, replays=options.replays, budget=options.budget)
    if options.json:
        options.json.write_text(json.dumps({"budget": options.budget, "found": found}, indent=1) + "\n")
    heads = ["search", "median regret, points (quartiles)", "trials", "whole", "ended", "of them better"]
    heads += ["than as it comes", "than random"]
    for row in [heads, *([["---"] * len(heads)] if options.markdown else []), *rows_of(found)]:
        print(f"| {' | '.join(row)} |" if options.markdown else "  ".join(row))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
