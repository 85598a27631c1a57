"""Schedule-free SGD in a run: evaluated, kept and resumed at its average, with running statistics of that."""

import hashlib
import json

import chainer
import chainer.links as L
import numpy as np
import pytest
from safetensors.numpy import load_file

from recipes.errors import InputRefused
from recipes.planning.stream import Stream
from recipes.reading.open import open_recipe
from trainers.launch.vocabulary import vocabulary
from trainers.runs.checkpoint import weights_of
from trainers.training.build import build

SETTINGS = (
    "optimizer={kind: ScheduleFreeSGD, beta: 0.9, weight_decay: 1e-4, no_decay: [norm]}",
    "learning_rate={reference: 0.5, per: 32, rule: linear, warmup: {kind: GradualWarmup, epochs: 0.2, start: 0}}",
    "batch={global: 96, norm_span: 32}",
    "evaluation={every: 4up, norm_statistics: moving_average}",
    "seed=1",
)
WORDS = [word for setting in SETTINGS for word in ("--set", setting)]


def bits(run, update):
    folder = run.folder / "checkpoints" / f"update-{update:06d}"
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    scores = [(line["update"], line["value"]) for line in lines if line["key"] in ("eval_loss", "eval_accuracy")]
    return scores, {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory, train):
    return train(tmp_path_factory.mktemp("alone") / "run", 1, "--exact", *WORDS, stop_after=12)


@pytest.mark.mpi
def test_ranks_micro_batches_and_a_resume_on_others_do_not_change_a_bit(alone, tmp_path, train):
    options = ("--exact", *WORDS)
    train(tmp_path / "run", 3, *options, stop_after=6)
    actual = train(tmp_path / "run", 2, *options, "--resume", "--micro-batch-size", 32, stop_after=12)
    assert bits(actual, 12) == bits(alone, 12)
    assert len(bits(alone, 12)[0]) == 6, "evaluated three times"


@pytest.mark.mpi
def test_with_teams_and_no_exact_mode_the_scores_are_the_same_up_to_rounding(alone, tmp_path, train, assert_same_run):
    actual = train(tmp_path / "run", 3, "--fast", *WORDS, "--micro-batch-size", 16, stop_after=12)
    assert_same_run(actual, alone, loss=1e-5, weights=1e-4)
    for (update, value), (other, expected) in zip(bits(actual, 12)[0], bits(alone, 12)[0], strict=True):
        assert (update, value) == (other, pytest.approx(expected, rel=1e-4))


@pytest.mark.mpi
def test_a_checkpoint_has_the_average_and_its_statistics_and_evaluate_scores_it(alone, kilobatch):
    opened = open_recipe(alone.folder / "recipe.yaml", vocabulary=vocabulary(), overrides=())
    parts = build(opened.recipe, opened.dataset)
    checkpoint = alone.folder / "checkpoints/update-000012"
    point, state = load_file(checkpoint / "averages.safetensors"), load_file(checkpoint / "optimizer.safetensors")
    for path, parameter in parts.model.namedparams():
        x = alone.weights[path] + (1 - 1 / 0.9) * state[f"{path}:d"]
        np.testing.assert_allclose(point[path], x, atol=1e-6)
        parameter.array[...] = point[path]
    assert max(abs(point[path] - alone.weights[path]).max() for path in point) > 1e-3
    norms = [link for link in parts.model.links() if isinstance(link, L.BatchNormalization)]
    stream = Stream(seed=1, num_samples=opened.dataset.num_train)
    for group in range(12 * 96 // 32):  # Chainer's own averages, which here keep all groups alike
        epochs, indices = stream.samples(32 * group, 32)
        images = [parts.load_train(int(e), int(i))[0] for e, i in zip(epochs, indices, strict=True)]
        for norm in norms:
            norm.decay = group / (group + 1)
        with chainer.using_config("train", True):
            parts.model(np.stack(images).astype(np.float32))
    running = {path: array for path, array in weights_of(parts.model).items() if "/avg_" in path}
    assert running
    for path, array in running.items():
        np.testing.assert_allclose(point[path], array, rtol=1e-4, atol=1e-5, err_msg=path)
    scored = json.loads(kilobatch("evaluate", alone.folder, "--json").stdout)
    assert dict(bits(alone, 12)[0])[12] == pytest.approx(scored["loss"], rel=1e-6)


def test_an_average_of_averages_is_refused():
    overrides = (*SETTINGS, "weight_average={keep: 0.9, per: 96}")
    with pytest.raises(InputRefused, match="weight_average: ScheduleFreeSGD has an average of its own, which is eval"):
        open_recipe("digits/ramp", vocabulary=vocabulary(), overrides=overrides)
