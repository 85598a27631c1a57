"""A search over runs of several lengths, on real ranks."""

from fractions import Fraction

import pytest
import yaml
from optuna.trial import TrialState

from trainers.search.successive_halving import RUNG

pytestmark = pytest.mark.mpi
TEXT = """\
space: {learning_rate.reference: {kind: Float, low: 0.005, high: 0.5, log: true}}
fixed:
  {epochs: 8, batch.global: 128, model: {kind: SmallCNN, width: 2, first_stride: 2}, learning_rate.warmup.epochs: 2}
pruner: {kind: SuccessiveHalving, reduction: 2, rungs: 2}
budget: {trials: 5}
reports: 4
"""


def test_the_best_of_the_short_runs_are_trained_whole_and_one_of_them_is_the_best(searching):
    search = searching(TEXT, "-n", 2)
    code, said = search.run()
    assert code == 0, said
    trials = search.trials()
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 5
    whole = [trial for trial in trials if trial.user_attrs[RUNG]["whole"]]
    assert len(whole) in (1, 2)
    for trial in trials:
        run = yaml.safe_load((search.run_folder(trial.number) / "run.yaml").read_text())["recipe"]
        share = Fraction(1) if trial in whole else Fraction(1, 2)
        assert run["epochs"] == 8 * share
        assert run["learning_rate"]["warmup"]["epochs"] == 2 * share
        assert run["learning_rate"]["reference"] == trial.params["learning_rate.reference"]
        assert sorted(trial.intermediate_values) == ([1, 2, 3, 4] if trial in whole else [4])
    for trial in whole:
        assert trials[trial.user_attrs[RUNG]["of"]].params == trial.params
    best = max(whole, key=lambda trial: trial.value)
    assert f"# search mine trial {best.number}\n" in (search.folder / "best.yaml").read_text()
    assert yaml.safe_load((search.folder / "best.yaml").read_text())["epochs"] == 8
    samples, hours = zip(*best.user_attrs["costs"].values(), strict=True)
    assert list(samples) == [3072, 6016, 9088, 12032]  # 24, 47, 71 and 94 updates of 128
    assert sorted(hours) == list(hours)
    assert 0 < hours[-1] < 0.1
