"""A live search over the space of the recorded trials: TPE with fair pruning and without.

    OMP_NUM_THREADS=1 .venv/bin/python scripts/bench_live_search.py --json F [--seeds 5] [--budget 40]

What is proposed is trained, in this process. A run is trained to its end and charged up to the report at which it was
ended: training is deterministic, so that is what the search would have found in that time. The best whole run of each
search is then trained from three other seeds, and their mean is what counts. Finished searches are in the JSON and are
not done again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import warnings
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState
from record_trials import train
from recorded_trials import EVALUATED, RECIPE, REPORTS, SPACE, overrides_of

ROOT = Path(__file__).parents[1]
FRESH_SEEDS = range(100, 103)


def live(seed: int, seconds: float, *, pruner: Any) -> dict[str, Any]:
    """One search."""
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed), pruner=pruner)
    spent, best, begun, ended = 0.0, (-1, None), 0, 0
    while True:
        trial = study.ask()
        values = {path: range_.suggest(trial, path) for path, range_ in SPACE.items()}
        correct, cost = train(overrides_of(values), reports=REPORTS)
        reached = _judged(trial, values, correct)
        spent += cost * reached / REPORTS
        if spent > seconds:
            break
        begun, ended = begun + 1, ended + (reached < REPORTS)
        if reached < REPORTS:
            study.tell(trial, state=TrialState.PRUNED)
            continue
        study.tell(trial, correct[-1])
        best = max(best, (correct[-1], values), key=lambda pair: pair[0])
    fresh = [train((*overrides_of(best[1]), f"seed={number}"), reports=1)[0][-1] for number in FRESH_SEEDS]
    return {"seed": seed, "best": best[0], "values": best[1], "fresh": fresh, "trials": begun, "ended": ended}


def _judged(trial: optuna.Trial, values: dict[str, Any], correct: list[int]) -> int:
    """Report to a trial one by one; returns the report at which it ends."""
    from recipes.reading.open import open_recipe
    from recipes.search_space.comparable import rate_shape, slow_until
    from trainers.launch.vocabulary import vocabulary
    from trainers.search.comparability import COMPARED, first_report

    recipe = open_recipe(RECIPE, vocabulary=vocabulary(), overrides=overrides_of(values)).recipe
    first = first_report(slow_until(recipe), recipe.epochs, reports=REPORTS)
    trial.set_user_attr(COMPARED, {"from": first, "shape": rate_shape(recipe)})
    for number, value in enumerate(correct, 1):
        trial.report(value, number)
        if number < REPORTS and trial.should_prune():
            return number
    return REPORTS


def main() -> None:
    """Search what is missing, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, metavar="F")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=40, help="device-seconds of a search: processor time")
    options = parser.parse_args()
    from trainers.search.pruners import Median

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    methods = {
        "Median, fair": Median(startup_trials=3).build,
        "no pruning": optuna.pruners.NopPruner,
    }
    known = json.loads(options.json.read_text()) if options.json.exists() else {}
    for seed in range(options.seeds):
        for name, make in methods.items():
            runs = known.setdefault(name, [])
            if all(run["seed"] != seed for run in runs):
                runs.append(live(seed, options.budget, pruner=make()))
                options.json.write_text(json.dumps(known, indent=1) + "\n")
                print(name, runs[-1], file=sys.stderr, flush=True)
    print("| search | accuracy from fresh seeds, %, each search | mean | found | trials | ended |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, runs in known.items():
        means = [100 * statistics.fmean(run["fresh"]) / EVALUATED for run in runs]
        found = statistics.fmean(100 * run["best"] / EVALUATED for run in runs)
        counts = (f"{statistics.fmean(run[key] for run in runs):.1f}" for key in ("trials", "ended"))
        each = ", ".join(f"{mean:.2f}" for mean in means)
        print(f"| {name} | {each} | {statistics.fmean(means):.2f} | {found:.2f} | {' | '.join(counts)} |")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
