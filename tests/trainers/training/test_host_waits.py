"""How often the host waits for the GPU in an update, and how many kernels it launches: counted on a stand-in for CuPy."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UPDATES = 4
RECIPES = {
    "float32": [],
    "mixed16": ["precision.compute=mixed16"],
}


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """For each of RECIPES the counts of each update, from one process."""
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("needs a C++ compiler")
    root = Path(__file__).parents[3]
    command = [sys.executable, __file__, tmp_path_factory.mktemp("kernels")]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "KILOBATCH_KERNELS": "numpy"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_host_waits_once_an_update(counted, recipe):
    assert [update["waits"] for update in counted[recipe]] == [1] * UPDATES


def updates(overrides):
    """Counts of each update of SmallResNet on one rank, by the updater of `kilobatch train`."""
    import chainer
    import cupy_stand_in
    from mpi4py import MPI

    from recipes.planning.cluster import GradientExchange
    from recipes.planning.stream import Stream
    from trainers.datasets.loader import StreamIterator
    from trainers.launch.request import TrainRequest, prepare
    from trainers.models.batch_norm import NormGroups
    from trainers.training.build import build, build_exchange, build_feed
    from trainers.training.updater import RecipeUpdater

    net = ("model={kind: SmallResNet, width: 8}", "learning_rate.warmup=null", "batch.global=64", "batch.norm_span=32")
    request = TrainRequest(recipe="digits/large_batch", overrides=(*net, *overrides), micro_batch_size=32, exact=False)
    plan = prepare(request, workers=1).plan
    recipe, mpi = plan.recipe, MPI.COMM_SELF
    parts, groups, device = build(recipe, plan.dataset), NormGroups(recipe.evaluation), chainer.get_device("@cupy:0")
    groups.install(parts.model)
    parts.model.to_device(device)
    updater = RecipeUpdater(
        StreamIterator(
            plan=plan,
            rank=0,
            stream=Stream(seed=recipe.seed, num_samples=plan.dataset.num_train),
            load=parts.load_train,
            feed=build_feed(recipe, parts, device),
        ),
        parts.optimizer,
        loss=parts.loss,
        plan=plan,
        exchange=build_exchange(GradientExchange(), parts, mpi),
        mpi=mpi,
        norm_groups=groups,
    )
    found = []
    for _ in range(UPDATES):
        cupy_stand_in.counts.clear()
        updater.update()
        found.append({**cupy_stand_in.counts, "loss": updater.record.loss})
    return found


if __name__ == "__main__":
    import cupy_stand_in

    cupy_stand_in.install(sys.argv[1])
    print(json.dumps({name: updates(overrides) for name, overrides in RECIPES.items()}))
