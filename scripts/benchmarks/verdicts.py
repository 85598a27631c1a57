"""How often `kilobatch reproduce` gives each verdict, over simulated reruns with early stops. No training: seconds.

The accuracies are drawn from a normal distribution and counted over the samples of an evaluation split.
"""

import argparse

import numpy as np

from trainers.tasks.verdict import AS_GOOD, UNDECIDED, WORSE, Claimed, judge, level_of_look


def shares_of_verdicts(difference, *, seeds, runs, deviation, rerun_deviation, samples, margin, number):
    """Share of each verdict where reruns are better than the claim's runs by `difference`, and the seeds used."""
    random = np.random.default_rng(0)
    counts, used = dict.fromkeys((AS_GOOD, WORSE, UNDECIDED), 0), 0
    for _ in range(number):
        claimed = np.round(random.normal(0.97, deviation, runs) * samples) / samples
        reruns = np.round(random.normal(0.97 + difference, rerun_deviation, seeds) * samples) / samples
        spread = claimed.std(ddof=1)
        claim = Claimed(value=claimed.mean(), deviation=spread, runs=runs, margin=margin, resolution=1 / samples)
        for look in range(1, seeds + 1):
            verdict = judge(claim, reruns[:look].tolist(), level=level_of_look(look, looks=seeds)).verdict
            if verdict != UNDECIDED:
                break
        counts[verdict] += 1
        used += look
    return {verdict: count / number for verdict, count in counts.items()}, used / number


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=10_000, help="simulated reruns of each row")
    parser.add_argument("--rerun-deviation", type=float, default=0.006, help="of accuracies where it is rerun")
    asked = parser.parse_args()
    print("| runs claimed | seeds | true difference | as good | worse | undecided | seeds used |")
    print("|---|---|---|---|---|---|---|")
    for runs, seeds in ((5, 5), (10, 5), (5, 10), (10, 10)):
        for difference in (0.0, -0.005, -0.01, -0.015, -0.02):
            shares, used = shares_of_verdicts(
                difference,
                deviation=0.006,
                rerun_deviation=asked.rerun_deviation,
                seeds=seeds,
                runs=runs,
                samples=297,
                margin=0.01,
                number=asked.number,
            )
            cells = " | ".join(f"{100 * shares[verdict]:.1f} %" for verdict in (AS_GOOD, WORSE, UNDECIDED))
            print(f"| {runs} | {seeds} | {100 * difference:+.1f} points | {cells} | {used:.1f} |")


if __name__ == "__main__":
    main()
