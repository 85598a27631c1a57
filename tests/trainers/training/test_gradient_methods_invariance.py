"""Law 2 for what looks at the gradient beside the optimizer, and for averaged weights."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

pytestmark = pytest.mark.mpi

METHODS = (
    "--set",
    "optimizer={kind: AdaScale, momentum: 0.9, clock: gain, weight_decay: 1e-4}",
    "--set",
    "learning_rate={reference: 0.05, per: 32, rule: none}",
    "--set",
    "gradient.clip_norm=0.2",
    "--set",
    "weight_average={keep: 0.9, per: 96, start: 0.5}",
)
NORMS = {"gradient_noise", "gradient_signal"}


@pytest.fixture(scope="module")
def methods_alone(tmp_path_factory, train):
    return train(tmp_path_factory.mktemp("methods") / "run", 1, *METHODS, dtype="float64")


def measured(run, keys=NORMS | {"gain", "gradient_norm"}):
    """What only these methods write of an update, an entry an update."""
    lines = map(json.loads, (run.folder / "metrics.jsonl").read_text().splitlines())
    return [{key: line[key] for key in keys} for line in lines if line["key"] == "train_loss"]


def averages(run):
    return load_file(next((run.folder / "checkpoints").glob("update-*24/averages.safetensors")))


def assert_same_methods(actual, expected):
    for line, other in zip(measured(actual), measured(expected), strict=True):
        assert line == pytest.approx(other, rel=1e-9)
    for path, array in averages(actual).items():
        np.testing.assert_allclose(array, averages(expected)[path], rtol=0, atol=1e-12, err_msg=path)


def test_the_methods_do_something(methods_alone):
    lines = measured(methods_alone)
    assert 1.0 < min(line["gain"] for line in lines) < max(line["gain"] for line in lines) < 6.0
    assert max(line["gradient_norm"] for line in lines) > 0.2 > min(line["gradient_norm"] for line in lines)
    moved = {path: abs(array - methods_alone.weights[path]).max() for path, array in averages(methods_alone).items()}
    assert min(moved.values()) > 0


@pytest.mark.parametrize(("ranks", "micro_batch_size"), [(3, 96), pytest.param(5, 96, marks=pytest.mark.slow)])
def test_gain_clipping_and_average_are_the_same_on_any_ranks(
    methods_alone, tmp_path, train, assert_same_run, ranks, micro_batch_size
):
    actual = train(tmp_path / "run", ranks, *METHODS, "--micro-batch-size", micro_batch_size, dtype="float64")
    assert_same_run(actual, methods_alone, loss=1e-12, weights=1e-12, rate=1e-12)
    assert_same_methods(actual, methods_alone)


def test_gain_clipping_and_average_go_on_after_a_resume(methods_alone, tmp_path, train, assert_same_run):
    train(tmp_path / "run", 2, *METHODS, stop_after=13, dtype="float64")
    actual = train(tmp_path / "run", 3, *METHODS, "--resume", dtype="float64")
    assert_same_run(actual, methods_alone, loss=1e-12, weights=1e-12, rate=1e-12)
    assert_same_methods(actual, methods_alone)


def test_a_clock_of_gains_goes_on_while_an_update_is_one_group_of_the_reference_batch(tmp_path, train):
    """The first updates of a ramp that begins at `per`: their gain is 1, so both clocks read the same."""
    batch = "batch={global: [{from: 0, size: 32}, {from: 4up, size: 96}], norm_span: 32}"
    rate = "learning_rate={reference: 0.05, per: 32, rule: none, schedule: {kind: Cosine}}"
    rates = {}
    for clock in ("gain", "samples"):
        options = ("--set", batch, "--set", rate, "--set", f"optimizer={{kind: AdaScale, clock: {clock}}}")
        actual = train(tmp_path / clock, 1, *options, stop_after=5, recipe="digits/baseline")
        rates[clock] = [line["learning_rate"] for line in actual.trace[:4]]
    assert rates["gain"] == pytest.approx(rates["samples"], rel=1e-12)
    assert len(set(rates["gain"])) == 4, "the rate moves"


@pytest.mark.slow
def test_noise_scale_of_a_micro_batch_size_is_the_same_on_any_ranks(tmp_path, train):
    options = ("--micro-batch-size", 32)
    one, three = (
        train(tmp_path / str(ranks), ranks, "--noise-scale", *options, stop_after=17, dtype="float64")
        for ranks in (1, 3)
    )
    for line, other in zip(measured(one, NORMS), measured(three, NORMS), strict=True):
        assert line == pytest.approx(other, rel=1e-9)
    unmeasured = train(tmp_path / "unmeasured", 1, *options, stop_after=17, dtype="float64")
    for line, other in zip(one.trace, unmeasured.trace, strict=True):
        assert line["loss"] == pytest.approx(other["loss"], rel=1e-13), "measuring changes nothing"
