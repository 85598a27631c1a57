"""What a feed brings to a GPU is what the CPU gets, and it comes beside what the GPU computes."""

import numpy as np
import pytest
from chainer.backends.cuda import to_cpu

from recipes.planning.stream import Stream
from trainers.datasets.loader import StreamIterator
from trainers.launch.request import TrainRequest, prepare
from trainers.training.build import build, build_feed
from trainers.training.device import has_gpu, take_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_gpu(), reason="needs a GPU with CuPy"),
]
NORMALIZE = "{kind: Normalize, with: synthetic}"
PIXELS = (
    "dataset=synthetic",
    f"augmentation.train=[{{kind: RandomCrop, size: image_size, padding: 2}}, {{kind: HorizontalFlip}}, {NORMALIZE}]",
    f"augmentation.eval=[{NORMALIZE}]",
    "image_size=[{from: 0, size: 24}, {from: 1, size: 32}]",
    "batch={global: [{from: 0, size: 96}, {from: 1, size: 192}], norm_span: 32}",
)
RECIPES = {"bytes": PIXELS, "mixed": (*PIXELS, "augmentation.mix=[{kind: Mixup, alpha: 1}]"), "floats": ()}


@pytest.fixture
def device():
    from mpi4py import MPI

    return take_device("gpu", MPI.COMM_SELF)


def iterator(recipe, device):
    """Two updates before the batch grows, and with it perhaps the images; None as device for the CPU."""
    actual = prepare(TrainRequest(recipe="digits/ramp", overrides=recipe, micro_batch_size=64), workers=1)
    recipe, parts = actual.opened.recipe, build(actual.opened.recipe, actual.opened.dataset)
    made = StreamIterator(
        plan=actual.plan,
        rank=0,
        stream=Stream(seed=recipe.seed, num_samples=actual.opened.dataset.num_train),
        load=parts.load_train,
        mixing=parts.mixing,
        feed=device and build_feed(recipe, parts, device),
    )
    made.update = actual.plan.timeline.segments[1].update - 2
    return made


class Work:
    """Something that keeps the stream that computes busy for about a second."""

    def __init__(self, xp):
        self._matrix = xp.zeros((4096, 4096), "f")
        self._matrix @ self._matrix
        self._event = xp.cuda.Event(disable_timing=True)

    def ask(self, products=200):
        for _ in range(products):
            self._matrix @ self._matrix
        self._event.record()

    @property
    def done(self):
        return self._event.done


def assert_same(micro_batch, other):
    np.testing.assert_array_equal(to_cpu(micro_batch.images_NCHW), other.images_NCHW)
    np.testing.assert_array_equal(to_cpu(micro_batch.targets), other.targets)


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("recipe", RECIPES)
def test_micro_batches_are_those_of_the_cpu_with_and_without_one_ahead(device, recipe, ahead):
    of_cpu, of_gpu = (iterator(RECIPES[recipe], each) for each in (None, device))
    work, pairs = Work(device.xp), []
    for _ in range(6):
        share = next(of_gpu)
        for micro_batch, other in zip(share.micro_batches, next(of_cpu).micro_batches, strict=True):
            work.ask(20)  # before what is made of the next one: the host comes far ahead of the GPU
            pairs.append((micro_batch, other))
        if ahead:
            share.prefetch()
    for micro_batch, other in pairs:
        assert_same(micro_batch, other)
    of_gpu.finalize()


def test_the_copy_ahead_ends_while_the_gpu_computes(device):
    of_cpu, of_gpu, work = iterator(PIXELS, None), iterator(PIXELS, device), Work(device.xp)
    for _ in range(5):  # the last three have the largest images: after them no memory is taken any more
        share = next(of_gpu)
        for _ in share.micro_batches:
            pass
        share.prefetch()
    list(next(of_gpu).micro_batches)
    device.xp.cuda.get_current_stream().synchronize()
    work.ask()
    share.prefetch()
    of_gpu._feed._prefetched.sent.block._copied.synchronize()
    assert not work.done
    of_cpu.update = of_gpu.update
    first, expected = next(next(of_gpu).micro_batches), next(next(of_cpu).micro_batches)
    assert not work.done, "nothing waits for the kernel either"
    assert_same(first, expected)
    assert work.done
    of_gpu.finalize()
