"""How often the host waits for the GPU in an update, and the kernels that it launches: on a stand-in for CuPy."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trainers.runs.mpi_ranks import find_mpiexec

UPDATES = 4
RECIPES = {
    "float32": {},
    "mixed16": {"precision.compute": "mixed16"},
    "noise scale": {"measure_noise": True, "micro_batch_size": 16},
    "AdaScale": {"optimizer": "{kind: AdaScale, momentum: 0.9}", "learning_rate.rule": "none", "micro_batch_size": 16},
    "clip": {"gradient.clip_norm": "1.0"},
}


@pytest.fixture(scope="module")
def on_stand_in(tmp_path_factory):
    """on_stand_in(what, *launcher): what this file prints as a program of its own, of each rank."""
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("needs a C++ compiler")
    folder, root = tmp_path_factory.mktemp("kernels"), Path(__file__).parents[3]

    def run(what, *launcher):
        command = [*launcher, sys.executable, __file__, what, folder]
        environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "KILOBATCH_KERNELS": "numpy"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


@pytest.fixture(scope="module")
def counted(on_stand_in):
    (found,) = on_stand_in("waits")
    return found


@pytest.mark.parametrize(("recipe", "launches"), [("float32", 129), ("mixed16", 131)])
def test_the_host_waits_once_an_update(counted, recipe, launches):
    assert [update["waits"] for update in counted[recipe]] == [1] * UPDATES
    assert [update["launches"] for update in counted[recipe]] == [launches] * UPDATES
    first, *_, last = (update["loss"] for update in counted[recipe])
    assert last < first


@pytest.mark.parametrize("recipe", ["noise scale", "AdaScale", "clip"])
def test_norms_make_the_host_wait_once_more_however_many_micro_batches_there_are(counted, recipe):
    assert [update["waits"] for update in counted[recipe]] == [2] * UPDATES


@pytest.mark.slow
@pytest.mark.mpi
def test_exact_mode_has_the_same_bits_on_two_ranks_that_share_a_gpu(on_stand_in):
    alone = on_stand_in("digests")
    (digest,) = {*alone[0]}
    assert on_stand_in("digests", find_mpiexec(), "-n", "2") == [[digest] * 2] * 2


def updater_of(*overrides, mpi, exact=False, micro_batch_size=32, measure_noise=False):
    """The updater of `kilobatch train`, of SmallResNet on the stand-in; and its model."""
    import chainer

    from recipes.planning.cluster import GradientExchange
    from recipes.planning.stream import Stream
    from trainers.communicators.tree_sum import TreeSum
    from trainers.datasets.loader import StreamIterator
    from trainers.launch.request import TrainRequest, prepare
    from trainers.models.batch_norm import NormGroups
    from trainers.training.build import build, build_exchange, build_feed, ordered
    from trainers.training.updater import RecipeUpdater

    net = ("model={kind: SmallResNet, width: 8}", "learning_rate.warmup=null", "batch.global=64", "batch.norm_span=16")
    how = {"micro_batch_size": micro_batch_size, "exact": exact}
    request = TrainRequest(recipe="digits/large_batch", overrides=(*net, *overrides), **how)
    plan, device = prepare(request, workers=mpi.size).plan, chainer.get_device("@cupy:0")
    recipe = plan.recipe
    parts, groups = ordered(build(recipe, plan.dataset)), NormGroups(recipe.evaluation, TreeSum(mpi) if exact else None)
    groups.install(parts.model)
    parts.model.to_device(device)
    iterator = StreamIterator(
        plan=plan,
        rank=mpi.rank,
        stream=Stream(seed=recipe.seed, num_samples=plan.dataset.num_train),
        load=parts.load_train,
        feed=build_feed(recipe, parts, device),
    )
    exchange = build_exchange(GradientExchange(), parts, mpi, exact=exact)
    given = {"loss": parts.loss, "plan": plan, "exchange": exchange, "mpi": mpi, "norm_groups": groups}
    return RecipeUpdater(iterator, parts.optimizer, measure_noise=measure_noise, **given), parts.model


def waits():
    """Counts of each update of each of RECIPES on one rank."""
    import cupy_stand_in
    from mpi4py import MPI

    found = {}
    for name, changed in RECIPES.items():
        options = {key: value for key, value in changed.items() if key in ("measure_noise", "micro_batch_size")}
        overrides = (f"{key}={value}" for key, value in changed.items() if key not in options)
        cupy_stand_in.counts.clear()
        updater, _ = updater_of(*overrides, mpi=MPI.COMM_SELF, **options)
        assert not cupy_stand_in.counts["launches"]
        found[name] = []
        for _ in range(UPDATES):
            cupy_stand_in.counts.clear()
            updater.update()
            found[name].append({**cupy_stand_in.counts, "loss": updater.record.loss})
    return found


def digests():
    """Of the weights after some updates in exact mode: on these ranks, and with other micro-batches."""
    from mpi4py import MPI

    found = []
    for size in (16, 64):
        updater, model = updater_of(mpi=MPI.COMM_WORLD, exact=True, micro_batch_size=size)
        for _ in range(UPDATES):
            updater.update()
        updater.settle()
        arrays = [*model.params(), *(link.avg_var for link in model.links() if hasattr(link, "avg_var"))]
        every = b"".join(getattr(each, "array", each).get().tobytes() for each in arrays)
        found.append(hashlib.sha256(every).hexdigest())
    return found


if __name__ == "__main__":
    import cupy_stand_in

    cupy_stand_in.install(sys.argv[2])
    found = {"waits": waits, "digests": digests}[sys.argv[1]]()
    os.write(1, f"{json.dumps(found)}\n".encode())  # a line, whole beside those of other ranks
