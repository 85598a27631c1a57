"""What a feed brings to a GPU is what the CPU gets, whichever of the two streams is late: here both are NumPy's."""

import itertools
import logging
import weakref
from collections import deque
from functools import partial

import numpy as np
import pytest
from mpi4py import MPI

from recipes.planning.cluster import GradientExchange
from recipes.planning.stream import Stream
from trainers.datasets.device_feed import DeviceFeed
from trainers.datasets.loader import StreamIterator
from trainers.gradients.mixed_precision import images_dtype
from trainers.kernels.cuda import launcher
from trainers.launch.request import TrainRequest, prepare
from trainers.models.batch_norm import NormGroups
from trainers.training.build import build, build_exchange
from trainers.training.updater import RecipeUpdater

OWN, CURRENT = "own", "current"
NORMALIZE = "{kind: Normalize, with: synthetic}"
BATCH = "batch={global: [{from: 0, size: 48}, {from: 1, size: 64}], norm_span: 16}"
BYTES = (
    "dataset=synthetic",
    "image_size=[{from: 0, size: 6}, {from: 1, size: 9}]",
    f"augmentation.train=[{{kind: RandomCrop, size: image_size}}, {{kind: HorizontalFlip}}, {NORMALIZE}]",
    f"augmentation.eval=[{{kind: CenterCrop, size: 9}}, {NORMALIZE}]",
    BATCH,
)
RECIPES = {
    "bytes": BYTES,
    "mixed": (*BYTES, "augmentation.mix=[{kind: Mixup, alpha: 1}, {kind: CutMix, alpha: 1}]"),
    "floats": (BATCH,),
}


class Mark:
    """A place in what is asked of a stream."""

    def __init__(self, gpu, stream):
        self.gpu, self.stream, self.reached = gpu, stream, False

    def __call__(self):
        self.reached = True

    def synchronize(self):
        self.gpu.advance(self.stream, until=self)


class Behind:
    """That a stream waits for a mark of the other."""

    def __init__(self, mark):
        self.mark = mark

    def __call__(self):
        assert self.mark.reached


class LateGpu:
    """Two streams over NumPy's memory: one runs as soon as it may, the other as late as it may; or both late, or none.

    Args:
        cpu: runs the kernels.
        soon: names of the streams that run as soon as they may.
        limit: bytes of locked memory that the system allows beside `pin`.
    """

    def __init__(self, cpu, soon, limit=1 << 30):
        self.xp, self._cpu, self._soon = cpu.xp, cpu, soon
        self._asked = {OWN: deque(), CURRENT: deque()}
        self._memory = type("Memory", (np.ndarray,), {"copy": lambda memory: self._copy(memory)})
        self.pinned_blocks = set()
        self._pool, self._limit, self.read_in_place = {}, limit, 0

    def zeros(self, count, dtype):
        made = self.xp.empty(count, dtype).view(self._memory)
        self._ask(CURRENT, partial(np.copyto, made.view(np.ndarray), 0))
        return made

    def launch(self, *given):
        self._ask(CURRENT, partial(self._cpu.launch, *given))

    def pin(self, host):
        assert host.ctypes.data % 4096 == host.nbytes % 4096 == 0
        self.pinned_blocks.add(host.ctypes.data)

    def unpin(self, host):
        copies = [task for task in self._asked[OWN] if isinstance(task, partial)]
        assert not any(np.shares_memory(copy.args[1], host) for copy in copies), "a copy is under way"
        self.pinned_blocks.remove(host.ctypes.data)

    def pinned(self, num_bytes):
        if num_bytes > self._limit:
            raise MemoryError("cudaErrorMemoryAllocation")
        memory = np.empty(num_bytes, np.uint8)
        given, address = np.frombuffer(memoryview(memory), np.uint8), memory.ctypes.data
        self._pool[address] = memory
        weakref.finalize(given, self._given_back, address)
        return given

    def _given_back(self, address):
        self._pool.pop(address).fill(255)  # by whoever takes it next

    def record_event(self):
        return self._ask(CURRENT, Mark(self, CURRENT))

    def send(self, host, values, *, behind):
        assert host.base is not None
        if host.ctypes.data in self._pool:  # a copy holds no reference
            host, self.read_in_place = self._pool[host.ctypes.data], self.read_in_place + 1
        self._ask(OWN, Behind(behind))
        self._ask(OWN, partial(np.copyto, values.view(np.ndarray), host))
        return self._ask(OWN, Mark(self, OWN))

    def wait_event(self, mark):
        self._ask(CURRENT, Behind(mark))

    def advance(self, stream, until=None):
        """Up to a mark, whatever it takes; else as far as it goes without the other stream."""
        asked = self._asked[stream]
        while asked and not (until and until.reached):
            first = asked[0]
            if isinstance(first, Behind) and not first.mark.reached:
                if until is None:
                    return
                first.mark.synchronize()
            asked.popleft()()

    def _ask(self, stream, what):
        self._asked[stream].append(what)
        for _, soon in itertools.product(range(2), self._soon):
            self.advance(soon)
        return what

    def _copy(self, memory):
        copied = np.empty(memory.shape, memory.dtype)
        self._ask(CURRENT, partial(np.copyto, copied, memory.view(np.ndarray)))
        return copied


@pytest.fixture
def gpu_on_cpu(compiled, monkeypatch):
    """gpu_on_cpu(soon): a `LateGpu` where the kernels run."""

    def made(*given):
        gpu = LateGpu(compiled, *given)
        monkeypatch.setattr(launcher, "device", gpu)
        return gpu

    return made


def prepared(overrides, micro_batch_size):
    how = {"micro_batch_size": micro_batch_size, "exact": False}
    return prepare(TrainRequest(recipe="digits/ramp", overrides=overrides, **how), workers=1)


def iterators(actual, gpu, *, load=None, update=0):
    """The iterator of the CPU, and one that feeds a GPU."""
    recipe, parts = actual.opened.recipe, build(actual.opened.recipe, actual.opened.dataset)
    stream = Stream(seed=recipe.seed, num_samples=actual.opened.dataset.num_train)
    feed = DeviceFeed(gpu, load=load or parts.load_pixels, finish=parts.finish, dtype=images_dtype(recipe.precision))
    made = []
    for each in (None, feed):
        kept = {"plan": actual.plan, "rank": 0, "stream": stream, "load": parts.load_train, "mixing": parts.mixing}
        made.append(StreamIterator(**kept, trace=True, feed=each))
        made[-1].update = update
    return made


def assert_same_micro_batch(actual, expected):
    assert actual.part == expected.part
    for name in ("images_NCHW", "targets", "epochs", "indices"):
        np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name), err_msg=name)
    assert actual.targets.dtype == expected.targets.dtype
    assert actual.images_NCHW.dtype == np.float32


@pytest.mark.parametrize("soon", [(), (OWN,), (CURRENT,), (OWN, CURRENT)], ids=str)
@pytest.mark.parametrize("recipe", RECIPES)
def test_micro_batches_are_those_of_the_cpu(gpu_on_cpu, recipe, soon):
    actual, gpu = prepared(RECIPES[recipe], 32), gpu_on_cpu(soon)
    of_cpu, of_gpu = iterators(actual, gpu, update=actual.plan.timeline.segments[1].update - 2)
    pairs = []

    def collect(ask):
        share, other = ask(of_gpu), ask(of_cpu)
        assert other.prefetch is None
        pairs.extend(zip(share.micro_batches, other.micro_batches, strict=True))
        share.prefetch()
        assert share.seen == other.seen
        assert len(share.seen) == share.segment.global_batch_size

    for attempt in range(4):
        collect(next)
        if attempt == 1:
            collect(StreamIterator.again)  # the loss scale was halved
        if attempt == 2:
            for iterator in (of_cpu, of_gpu):
                iterator.limit(16)  # memory ran out
            collect(StreamIterator.again)
    of_gpu.finalize()
    assert not gpu.pinned_blocks
    gpu.record_event().synchronize()
    assert [micro_batch.part.size for micro_batch, _ in pairs] == [32, 16] * 3 + [32, 32] + [16] * 8
    for micro_batch, other in pairs:
        assert_same_micro_batch(micro_batch, other)
    assert (gpu.read_in_place > 0) == (recipe != "mixed")
    assert not gpu._pool


def test_pixels_are_copied_where_memory_cannot_be_pinned(gpu_on_cpu, caplog):
    gpu, pairs = gpu_on_cpu((), 0), []
    of_cpu, of_gpu = iterators(prepared(BYTES, 16), gpu)
    with caplog.at_level(logging.WARNING, "kilobatch"):
        for _ in range(2):
            pairs += zip(next(of_gpu).micro_batches, next(of_cpu).micro_batches, strict=True)
    gpu.record_event().synchronize()
    for micro_batch, other in pairs:
        assert_same_micro_batch(micro_batch, other)
    assert gpu.read_in_place == 0
    assert caplog.messages == [
        "pixels are not loaded into pinned memory, but copied there: MemoryError: cudaErrorMemoryAllocation"
    ]


class OneByOne:
    """Samples as a function gives them."""

    def __init__(self, load):
        self._load = load

    def several(self, wanted, image_size, moved):
        return [self._load(*each, image_size) for each in wanted]


def test_an_update_begins_with_what_was_loaded_during_the_one_before(gpu_on_cpu):
    actual, asked = prepared(BYTES, 32), []
    parts = build(actual.opened.recipe, actual.opened.dataset)

    def load(epoch, index, image_size):
        asked.append(index)
        return parts.load_pixels(epoch, index, image_size)

    _, iterator = iterators(actual, gpu_on_cpu((OWN, CURRENT)), load=OneByOne(load))

    def loaded_by(do):
        before = len(asked)
        do()
        return len(asked) - before

    for _ in range(2):
        share = next(iterator)
        first, rest = next(share.micro_batches), share.micro_batches
        assert first.indices.tolist() == asked[:32]
        assert loaded_by(partial(deque, rest)) == 16
        asked.clear()
        assert loaded_by(share.prefetch) == 32
        assert loaded_by(share.prefetch) == 0
    iterator.limit(16)
    asked.clear()
    assert loaded_by(lambda: deque(iterator.again().micro_batches)) == 48
    assert loaded_by(share.prefetch) == 16
    iterator.update = actual.plan.timeline.num_updates
    iterator.finalize()
    assert loaded_by(share.prefetch) == 0, "nothing comes after the last update"


def test_what_goes_wrong_ahead_is_raised_by_the_update_that_needs_it(gpu_on_cpu):
    actual = prepared(BYTES, 48)
    parts = build(actual.opened.recipe, actual.opened.dataset)
    broken = Stream(seed=0, num_samples=1024).samples(48, 48)[1][40]

    def load(epoch, index, image_size):
        if index == broken:
            raise ValueError("the file is damaged")
        return parts.load_pixels(epoch, index, image_size)

    _, iterator = iterators(actual, gpu_on_cpu(()), load=OneByOne(load))
    for _ in range(2):  # an update that is done again does not need it either
        share = next(iterator) if iterator.update == 0 else iterator.again()
        assert len(list(share.micro_batches)) == 1
        share.prefetch()
    with pytest.raises(ValueError, match="the file is damaged"):
        next(next(iterator).micro_batches)


@pytest.mark.parametrize(
    ("recipe", "precision"),
    [
        *((name, "float32") for name in RECIPES),
        pytest.param("bytes", "mixed16, loss_scale: 67108864", marks=pytest.mark.slow),
    ],
)
def test_updates_are_those_without_a_feed(gpu_on_cpu, recipe, precision):
    """Also where the loss scale is halved, and where memory runs out for more than one norm group at once."""
    small = (f"precision={{compute: {precision}}}", "model={kind: SmallCNN, width: 4}")
    actual, weights, halved = prepared((*RECIPES[recipe], *small), 48), [], 0
    for fed in (False, True):
        parts, mpi = build(actual.opened.recipe, actual.opened.dataset), MPI.COMM_SELF
        groups = NormGroups(actual.opened.recipe.evaluation)
        groups.install(parts.model)
        calls = itertools.count()

        def loss(logits, targets, of=parts.loss, calls=calls):
            if next(calls) > 1 and len(targets) > 16:
                raise MemoryError
            return of(logits, targets)

        updater = RecipeUpdater(
            iterators(actual, gpu_on_cpu((OWN, CURRENT)))[fed],
            parts.optimizer,
            loss=loss,
            plan=actual.plan,
            exchange=build_exchange(GradientExchange(), parts, mpi),
            mpi=mpi,
            norm_groups=groups,
        )
        for _ in range(4):
            updater.update()
            halved += updater.record.overflows or 0
        updater.finalize()
        updater.close()
        weights.append({path: parameter.array for path, parameter in parts.model.namedparams()})
        assert next(calls) >= 10
    assert (halved > 0) == (precision != "float32")
    for path, array in weights[0].items():
        np.testing.assert_allclose(weights[1][path], array, rtol=1e-5, atol=1e-6, err_msg=path)
