"""Law 2 for mixup, cutmix and repeated augmentation: the same images and weights on any ranks and after a resume."""

import numpy as np
import pytest

pytestmark = pytest.mark.mpi

UPDATES = 4
BOTH = "augmentation.mix=[{kind: Mixup, alpha: 0.4}, {kind: CutMix, alpha: 1.0, probability: 0.8}]"
BINARY = "loss={kind: BinaryCrossEntropy, label_smoothing: 0.1, target_threshold: 0.2, head_bias: -2.2}"
METHODS = {
    "mixup": ("augmentation.mix=[{kind: Mixup, alpha: 0.4}]", "loss.label_smoothing=0.1"),
    "cutmix": ("augmentation.mix=[{kind: CutMix, alpha: 1.0}]",),
    "repeats": ("stream.repeats=4",),
    "all": (BOTH, BINARY, "stream.repeats=3"),
}
# Norm groups are 32. Whole groups on a rank (32, 96); spread over teams of two (16) and, unevenly, of three (11).
SPLITS = [
    ("mixup", 3, 11),
    ("all", 2, 16),
    *(
        pytest.param(*split, marks=pytest.mark.slow)
        for split in [
            ("repeats", 3, 32),
            ("cutmix", 2, 16),
            ("all", 1, 96),
            ("all", 2, 32),
            ("all", 3, 32),
            ("all", 3, 11),
        ]
    ),
]


@pytest.fixture(scope="module")
def run(train):
    """Trains in float64 by one of the methods."""

    def run_method(folder, method, ranks, *options, **named):
        overrides = [word for override in METHODS[method] for word in ("--set", override)]
        return train(folder, ranks, *overrides, *options, dtype="float64", **{"stop_after": UPDATES, **named})

    return run_method


@pytest.fixture(scope="module")
def alone(tmp_path_factory, run):
    """The runs on one rank with micro-batches of one group, each made when it is asked for."""
    made = {}

    def alone_by(method):
        if method not in made:
            made[method] = run(tmp_path_factory.mktemp(method) / "run", method, 1, "--micro-batch-size", 32)
        return made[method]

    return alone_by


@pytest.mark.parametrize(("method", "ranks", "micro_batch_size"), SPLITS)
def test_images_and_weights_are_the_same(alone, run, tmp_path, assert_same_run, method, ranks, micro_batch_size):
    actual = run(tmp_path / "run", method, ranks, "--micro-batch-size", micro_batch_size)
    assert len(actual.trace) == UPDATES
    assert actual.weights["/fc/W"].dtype == np.float64
    assert_same_run(actual, alone(method), loss=1e-13, weights=1e-12)


@pytest.mark.parametrize(
    ("first", "micro_batch_size", "then"), [(2, 16, 3), pytest.param(3, 32, 1, marks=pytest.mark.slow)]
)
def test_a_resumed_run_is_the_uninterrupted_one(alone, run, tmp_path, assert_same_run, first, micro_batch_size, then):
    run(tmp_path / "run", "all", first, "--micro-batch-size", micro_batch_size, stop_after=2)
    assert_same_run(run(tmp_path / "run", "all", then, "--resume"), alone("all"), loss=1e-13, weights=1e-12)


def test_each_method_changes_what_the_model_sees(alone):
    images = [alone(method).trace[0]["images_sha256"] for method in METHODS]
    assert len(set(images)) == len(METHODS)


def test_a_repeated_sample_comes_so_often_in_a_row(alone):
    stream = np.array([index for line in alone("repeats").trace for index in line["sample_ids"]])
    assert (stream.reshape(-1, 4) == stream[::4, None]).all()
    assert len(set(stream)) == UPDATES * 96 // 4
