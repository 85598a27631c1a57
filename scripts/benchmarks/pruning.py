"""Replays searches over recorded trials: fair pruning, Optuna's pruners with their defaults, and random search.

    .venv/bin/python scripts/benchmarks/pruning.py [--json F] [--replays 20] [--budget 30]
    OMP_NUM_THREADS=1 .venv/bin/python scripts/benchmarks/pruning.py --record 200

A replay takes the recorded configurations in an order of its own, the same for every method, one at a time, until the
device-time of 30 whole runs is spent; a run that is not finished by then does not count. A method's result is the best
whole run that it finished; its regret is how far that lies below the best of the table.

  fair          the pruner as a search of this package has it: reports at equal parts of a run, not before a trial's own
                slow start is over, only trials whose rate has the same shape; rungs are whole compressed runs
  as it comes   Optuna's class with its defaults; it gets the accuracy after every epoch, with the epoch as the step
  random        every configuration trained whole

Decided before the trials were recorded: the comparison that counts is Median, fair, with Median as it comes and with
random; the other pruners are shown beside it. A one-sided sign test over the replays decides: "better" where p < 0.05,
else "not shown". Replays share a table, so the test is about this table only.

The table has 200 configurations of the digits recipe, drawn once; each is trained whole, and compressed to a third and
a ninth. Batches are 64 to 192 of 1,500 samples, warmups up to three epochs, runs 5 or 10 epochs, with two schedules.
Every epoch ends at one of the twenty reports of a whole run, so the same numbers can be compared at equal parts of the
run and at equal epochs. The design was chosen before any run; only the seconds of five runs were looked at.

`--record N` trains the first N configurations that the table lacks, in this process, without MPI ranks. Each is in the
file as soon as it is finished. Seconds are processor time of this process; those up to a report are in proportion to
the samples.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
from methods import train
from optuna.trial import TrialState
from timing import head, parser_of, row, write_json

from recipes.search_space.ranges import Categorical, Float

TABLE = Path(__file__).parents[2] / "tests" / "golden" / "recorded_trials.json"
RECIPE = "digits/baseline"
CONFIGURATIONS, REPORTS = 200, 20
SHARES = (Fraction(1, 9), Fraction(1, 3), Fraction(1))
EVALUATED = 297  # samples of the evaluation split
KINDS = ("Median", "Percentile", "Wilcoxon", "SuccessiveHalving", "Hyperband")
_SMALL = ("model={kind: SmallCNN, width: 8}", "augmentation.train=[{kind: Normalize, with: digits}]")
_SCHEDULES = ("{kind: Cosine}", "{kind: MultiStep, boundaries: [0.5run, 0.75run], factor: 0.1}")
SPACE = {
    "epochs": Categorical(choices=(5, 10)),
    "batch.global": Categorical(choices=(64, 128, 192)),
    "learning_rate.reference": Float(low=0.003, high=0.6, log=True),  # at 32 samples, scaled linearly
    "learning_rate.warmup": Categorical(choices=(0, 0.5, 1.5, 3)),  # epochs, 0 for none
    "learning_rate.schedule": Categorical(choices=_SCHEDULES),
    "optimizer.momentum": Categorical(choices=(0.8, 0.9, 0.95)),
    "optimizer.weight_decay": Float(low=1e-5, high=1e-2, log=True),
    "loss.label_smoothing": Categorical(choices=(0.0, 0.1)),
}


def values_of(number: int) -> dict[str, Any]:
    """The values of a configuration, by their paths in the recipe: independent even draws, keyed by its number."""
    draws = np.random.Generator(np.random.Philox(key=number)).random(len(SPACE))
    return {path: _at(range_, draw) for (path, range_), draw in zip(SPACE.items(), draws, strict=True)}


def _at(range_: Float | Categorical, draw: float) -> Any:
    if isinstance(range_, Categorical):
        return range_.choices[int(draw * len(range_.choices))]
    return float(f"{range_.low * (range_.high / range_.low) ** draw:.4g}")


def overrides_of(values: dict[str, Any]) -> tuple[str, ...]:
    """The overrides of `kilobatch train digits/baseline --set ...` for the whole run of a configuration."""
    warmup = values["learning_rate.warmup"]
    made = {**values, "learning_rate.warmup": "null"}
    if warmup:
        made["learning_rate.warmup"] = f"{{kind: GradualWarmup, epochs: {warmup}, start: reference, joins: multiply}}"
    return (*_SMALL, *(f"{path}={value}" for path, value in made.items()), "claims=[]")


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A configuration as it was trained.

    Args:
        number: of its draw.
        values: see `values_of`.
        shape: of its rate, see `recipes.planning.rates`.
        slow_until: epochs, likewise.
        correct: of the evaluation samples, at each report of the whole run.
        short: the same at the end of the compressed runs, the shortest first.
        seconds: processor time of the runs, the shortest first and the whole last.
    """

    number: int
    values: dict[str, Any]
    shape: str
    slow_until: float
    correct: tuple[int, ...]
    short: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def epochs(self) -> int:
        """Length of the whole run."""
        return self.values["epochs"]

    def accuracy(self, rung: int = len(SHARES) - 1) -> float:
        """Accuracy at the end of a run: 0 is the shortest, 2 the whole."""
        return (*self.short, self.correct[-1])[rung] / EVALUATED


def read_table(path: Path = TABLE) -> list[Recorded]:
    """All recorded configurations; a run that diverged has 0 correct samples from there on."""
    trials = json.loads(path.read_text(encoding="utf-8"))["trials"]
    return [Recorded(**{key: tuple(v) if isinstance(v, list) else v for key, v in one.items()}) for one in trials]


def record(number: int) -> dict[str, Any]:
    """A line of the table: one configuration, trained in a ninth, a third and all of its epochs."""
    from recipes.planning.rates import rate_shape, slow_until
    from recipes.reading.open import open_recipe
    from recipes.search_space.open_search import assignments
    from recipes.search_space.shorter_runs import compressed
    from trainers.launch.vocabulary import vocabulary

    values = values_of(number)
    overrides = overrides_of(values)
    opened = open_recipe(RECIPE, vocabulary=vocabulary(), overrides=overrides)
    correct, seconds = [], []
    for share in SHARES:
        more = assignments(compressed(opened, share)) if share < 1 else []
        found, spent = correct_by_report((*overrides, *more), reports=REPORTS if share == 1 else 1)
        correct.append(found)
        seconds.append(spent)
    return {
        "number": number,
        "values": values,
        "shape": rate_shape(opened.recipe),
        "slow_until": slow_until(opened.recipe),
        "correct": correct[-1],
        "short": [found[-1] for found in correct[:-1]],
        "seconds": seconds,
    }


def correct_by_report(overrides: tuple[str, ...], *, reports: int) -> tuple[list[int], float]:
    """Correct samples at each report, and seconds; a run that diverges has 0 correct from there on."""
    run = train((*overrides, f"evaluation.every={1 / reports!r}run"))
    opened, found = run.prepared.opened, [0] * reports
    for line in run.lines:
        if line["key"] == "eval_accuracy":
            whole = line["update"] == run.prepared.plan.timeline.num_updates
            epochs = Fraction(line["samples"], opened.dataset.num_train)
            passed = int(epochs / Fraction(opened.recipe.evaluation.every) + 1e-9)
            found[(reports if whole else min(passed, reports)) - 1] = round(line["value"] * EVALUATED)
    return found, round(run.seconds, 3)


def record_missing(path: Path, first: int) -> None:
    """Add those of the first configurations to the file that it lacks."""
    known = json.loads(path.read_text(encoding="utf-8"))["trials"] if path.exists() else []
    for number in range(len(known), first):
        known.append(record(number))
        lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in known)
        path.write_text(f'{{"trials": [\n{lines}\n]}}\n', encoding="utf-8")
        last = known[-1]
        print(f"{number:4} {last['correct'][-1]:4} {last['short']} {last['seconds']}", file=sys.stderr, flush=True)


@dataclass
class Outcome:
    """The result of a search.

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


def random_search(order: list[Recorded], budget: float) -> Outcome:
    """Random search: every run is trained to its end."""
    found, spent = Outcome(), 0.0
    for trial in order:
        spent += trial.seconds[-1]
        if spent > budget:
            break
        found.begun += 1
        found.take(trial.accuracy())
    return found


def by_reports(
    order: list[Recorded], budget: float, *, pruner: Any, points: Callable[[Recorded], Iterator[tuple[int, int]]]
) -> Outcome:
    """A search in which a pruner of Optuna ends running trials.

    Args:
        points: of a trial: (step for Optuna, number of the report).
    """
    from trainers.search.comparability import COMPARED, first_report

    study = optuna.create_study(direction="maximize", pruner=pruner)
    found, spent = Outcome(), 0.0
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


def by_rungs(order: list[Recorded], budget: float, *, pruner: Any) -> Outcome:
    """Whole runs of several lengths, as `trainers/search/successive_halving.py` chooses them."""
    from trainers.search.successive_halving import RUNG, assigned_share, promote

    study, search = optuna.create_study(direction="maximize", sampler=InOrder()), SimpleNamespace(pruner=pruner)
    search.budget = SimpleNamespace(trials=math.inf)
    found, spent = Outcome(), 0.0
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


def methods() -> dict[str, Callable[[list[Recorded], float], Outcome]]:
    """Name -> search."""
    from trainers.search import pruners

    theirs = {
        "Median": optuna.pruners.MedianPruner,
        "Percentile": lambda: optuna.pruners.PercentilePruner(25.0),
        "Wilcoxon": optuna.pruners.WilcoxonPruner,
        "SuccessiveHalving": optuna.pruners.SuccessiveHalvingPruner,
        "Hyperband": optuna.pruners.HyperbandPruner,
    }
    found: dict[str, Callable[[list[Recorded], float], Outcome]] = {"random": random_search}
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
    """Method -> its outcome in each replay."""
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
    """The rows of the table."""
    regrets = {name: [one["regret"] for one in outcomes] for name, outcomes in found.items()}
    rows = []
    for name, outcomes in found.items():
        means = [statistics.fmean(one[key] for one in outcomes) for key in ("begun", "whole", "ended", "lost")]
        kind, _, how = name.partition(", ")
        others = (f"{kind}, as it comes" if how == "fair" else None, "random" if how else None)
        low, middle, high = (100 * value for value in statistics.quantiles(regrets[name], n=4, method="inclusive"))
        regret = f"{middle:.2f} ({low:.2f} to {high:.2f})"
        verdicts = [_verdict(regrets[name], regrets[other]) if other else "" for other in others]
        rows.append([name, regret, *(f"{mean:.1f}" for mean in means), *verdicts])
    return rows


def _verdict(ours: list[float], theirs: list[float]) -> str:
    wins, losses, p = sign_test(ours, theirs)
    return f"{'better' if p < 0.05 else 'not shown'} ({wins} : {losses}, p = {p:.2g})"


def main() -> None:
    """Replay and print, or record."""
    parser = parser_of(__doc__)
    parser.add_argument("--replays", type=int, default=20)
    parser.add_argument("--budget", type=float, default=30, help="device-time, in mean whole runs")
    parser.add_argument("--table", type=Path, default=TABLE, metavar="F")
    parser.add_argument("--record", type=int, metavar="N", help="train the first N configurations instead")
    options = parser.parse_args()
    if options.record is not None:
        return record_missing(options.table, options.record)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")  # experimental classes; steps that the best trial of another length has not
    found = replay(read_table(options.table), replays=options.replays, budget=options.budget)
    write_json(options.json, {"budget": options.budget, "found": found})
    heads = ["search", "median regret, points (quartiles)", "trials", "whole", "ended", "of them better"]
    heads += ["than as it comes", "than random"]
    print("\n".join([head(heads), *map(row, rows_of(found))]))


if __name__ == "__main__":
    main()
