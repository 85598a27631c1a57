"""PowerSGD and local steps in a run: against loops written by hand, and after a resume."""

import hashlib
import json

import chainer
import numpy as np
import pytest
from safetensors.numpy import load_file

from recipes.errors import InputRefused, RecipeError
from recipes.planning.rates import learning_rate_at
from recipes.planning.stream import Stream
from recipes.reading.open import open_recipe
from trainers.launch.request import TrainRequest, prepare
from trainers.launch.vocabulary import vocabulary
from trainers.training.build import build

BATCH = "batch={global: 64, norm_span: 16}"
LOCAL = "updater.local_steps={every: 4, replicas: 2, from: 0.4}"
MOMENTUM = "optimizer={kind: CorrectedMomentumSGD, momentum: 0.9, weight_decay: 1e-3, no_decay: []}"
SETTINGS = {
    "local": (BATCH, LOCAL, MOMENTUM, "model.width=4"),
    "power": (BATCH, "updater.power_sgd_rank=2", MOMENTUM, "model.width=4"),
}


def words(kind):
    return [word for setting in SETTINGS[kind] for word in ("--set", setting)]


def files_of(run, update):
    """Digests of the files of a checkpoint, its state but for the best one."""
    folder = run.folder / "checkpoints" / f"update-{update:06d}"
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    state = json.loads((folder / "state.json").read_text())
    arrays = {name: digest for name, digest in digests.items() if name not in ("MANIFEST", "state.json")}
    return arrays | {"samples": state["samples"]}


def by_hand(run, replicas=2, updates=50):
    """Weights of all replicas after the updates, in float64: local SGD as Lin et al. 2018 have it."""
    opened = open_recipe(run.folder / "recipe.yaml", vocabulary=vocabulary())
    recipe, num_train = opened.recipe, opened.dataset.num_train
    parts = build(recipe, opened.dataset)
    model, stream = parts.model, Stream(seed=recipe.seed, num_samples=num_train)
    first = {path: parameter.array.copy() for path, parameter in model.namedparams()}
    weights = [{path: array.copy() for path, array in first.items()} for _ in range(replicas)]
    velocity = [dict.fromkeys(first, 0.0) for _ in range(replicas)]
    for update in range(updates):
        epoch = 64 * update / num_train
        for replica in range(replicas):
            for path, parameter in model.namedparams():
                parameter.array[...] = weights[replica][path]
            model.cleargrads()
            for group in range(2):  # norm groups of 16 samples
                epochs, indices = stream.samples(64 * update + 32 * replica + 16 * group, 16)
                loaded = [parts.load_train(int(e), int(i)) for e, i in zip(epochs, indices, strict=True)]
                images, labels = (np.stack(each) for each in zip(*loaded, strict=True))
                with chainer.using_config("train", True):
                    (parts.loss(model(images.astype(np.float64)), labels.astype(np.int32)) / 2).backward()
            for path, parameter in model.namedparams():
                g = parameter.grad + 1e-3 * weights[replica][path]
                velocity[replica][path] = v = 0.9 * velocity[replica][path] + g
                weights[replica][path] = weights[replica][path] - learning_rate_at(recipe, epoch) * v
        if epoch < 0.4 or (update + 1) % 4 == 0:
            mean = {path: sum(each[path] for each in weights) / replicas for path in first}
            weights = [dict(mean) for _ in range(replicas)]
    return weights


@pytest.mark.mpi
def test_50_local_steps_are_those_of_a_loop_by_hand(tmp_path, train):
    run = train(tmp_path / "run", 2, *words("local"), dtype="float64", stop_after=50, recipe="digits/baseline")
    with chainer.using_config("dtype", np.dtype(np.float64)):
        expected = by_hand(run)
    folder = run.folder / "checkpoints/update-000050"
    ranks, averages = load_file(folder / "ranks.safetensors"), load_file(folder / "averages.safetensors")
    for path in expected[0]:
        for rank, weights in enumerate(expected):
            np.testing.assert_allclose(ranks[f"{rank}:weights:{path}"], weights[path], rtol=0, atol=1e-10, err_msg=path)
        mean = (expected[0][path] + expected[1][path]) / 2
        np.testing.assert_allclose(averages[path], mean, rtol=0, atol=1e-10, err_msg=path)
    apart = max(abs(expected[0][path] - expected[1][path]).max() for path in expected[0])
    assert apart > 1e-3, "after update 50 the replicas are on their own"


@pytest.mark.mpi
@pytest.mark.parametrize("kind", ["local", pytest.param("power", marks=pytest.mark.slow)])
def test_a_run_resumed_on_as_many_ranks_has_the_bits_of_the_uninterrupted_one(kind, tmp_path, train, kilobatch):
    how = {"recipe": "digits/baseline"}
    whole = train(tmp_path / "whole", 2, *words(kind), stop_after=27, **how)
    train(tmp_path / "run", 2, *words(kind), stop_after=14, **how)
    resumed = train(tmp_path / "run", 2, *words(kind), "--resume", stop_after=27, **how)
    assert files_of(resumed, 27) == files_of(whole, 27)
    assert "ranks.safetensors" in files_of(whole, 27)
    scored = json.loads(kilobatch("evaluate", whole.folder, "--json").stdout)
    assert scored["accuracy"] > 0.3


@pytest.mark.mpi
@pytest.mark.slow
def test_power_sgd_on_other_ranks_and_resumed_on_others_differs_by_rounding_alone(tmp_path, train, assert_same_run):
    how = {"recipe": "digits/baseline", "dtype": "float64"}
    alone = train(tmp_path / "alone", 1, *words("power"), **how)
    three = train(tmp_path / "three", 3, *words("power"), **how)
    assert_same_run(three, alone, loss=1e-9, weights=1e-9)
    train(tmp_path / "run", 3, *words("power"), stop_after=11, **how)
    actual = train(tmp_path / "run", 2, *words("power"), "--resume", **how)
    assert_same_run(actual, alone, loss=1e-9, weights=1e-9)
    plain = train(tmp_path / "plain", 1, *words("power"), "--set", "updater.power_sgd_rank=null", **how)
    assert max(abs(plain.weights[path] - array).max() for path, array in alone.weights.items()) > 1e-2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("updater={power_sgd_rank: 2, double_buffering: true}",), "power_sgd_rank: cannot be one update late"),
        (("updater.power_sgd_rank=0",), "updater.power_sgd_rank: is 0; must be at least 1"),
        (("updater.power_sgd_rank=2", "optimizer={kind: AdaScale}"), "AdaScale measures the gradients that this"),
        ((LOCAL, "optimizer={kind: Muon}"), "Muon computes a layer's step from all of its gradient, which no worker"),
        ((LOCAL, "optimizer={kind: ScheduleFreeSGD}"), "evaluates the mean over the workers, where this"),
        ((LOCAL, "weight_average={keep: 0.9, per: 64}"), "remove it, or change `weight_average`"),
        ((LOCAL, "updater.power_sgd_rank=1"), "sends no gradients, which power_sgd_rank compresses"),
        ((LOCAL, "updater.local_steps.every=1"), "updater.local_steps.every: is 1; must be at least 2"),
        ((LOCAL, "batch.norm_span=96"), "a batch of 96 in norm groups of 96 cannot be shared evenly by 2 replicas"),
    ],
)
def test_refused_by_line(settings, message):
    with pytest.raises(RecipeError, match=message):
        open_recipe("digits/ramp", vocabulary=vocabulary(), overrides=settings)


@pytest.mark.parametrize(
    ("options", "workers", "message"),
    [
        ({}, 3, "the recipe trains 2 replicas .*; write -n 2"),
        ({"micro_batch_size": 8}, 2, "share a norm group of 16 .*; write at least 16"),
        ({"overrides": (BATCH, LOCAL, "cluster.exchange.wire=float16")}, 2, "weights cross here .*, and float16 would"),
        ({"exact": True}, 2, "--exact cannot be held: updater.local_steps trains each worker's own weights"),
        ({"measure_noise": True}, 2, "--noise-scale: updater.local_steps"),
    ],
)
def test_refused_for_these_workers_or_options(options, workers, message):
    request = TrainRequest(recipe="digits/baseline", **{"overrides": (BATCH, LOCAL), **options})
    with pytest.raises(InputRefused, match=message):
        prepare(request, workers=workers)


@pytest.mark.mpi
def test_a_replica_whose_weights_are_not_finite_ends_the_run_on_all_ranks(tmp_path, kilobatch):
    options = (*words("local"), "--set", "learning_rate={reference: 1e30, warmup: null}", "--no-report", "--fast")
    done = kilobatch("train", "digits/baseline", *options, "--out", tmp_path / "run", ranks=2, timeout=60)
    assert done.returncode == 3
    assert "not finite" in done.stdout + done.stderr or "finite" in (tmp_path / "run/log.txt").read_text()
