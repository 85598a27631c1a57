"""Our CUDA kernels against NumPy in float64 on the same rounded inputs: on a GPU, and compiled for the CPU."""

from types import SimpleNamespace

import numpy as np
import pytest

from trainers.kernels.cpu import pooling as cpu_pooling
from trainers.kernels.cuda import elementwise, launcher, normalization, pooling
from trainers.kernels.cuda import loss as cuda_loss
from trainers.kernels.cuda import tensors as cuda_steps
from trainers.kernels.optimizer_steps import StepDecay
from trainers.optimizers import Adam, Lamb, Lars, RmspropWarmup

BOUNDS = {"e": 2e-3, "E": 1e-2, "f": 1e-5, "d": 1e-11}
CHANNELS = [1, 3, 8, 17, 32, 64, 100, 264, 520]


def rounded(values, kind):
    dtype = pytest.importorskip("ml_dtypes").bfloat16 if kind == "E" else kind
    return np.asarray(values).astype(dtype, order="K")


def on(device, values, kind):
    """Values rounded to a type, there, in their order in memory, which `cupy.asarray` keeps only where it is C's."""
    array = rounded(values, kind)
    order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    there = device.xp.asarray(np.asarray(array.transpose(order), order="C"))
    return there.transpose(sorted(range(array.ndim), key=order.__getitem__))


def from_device(array):
    return np.asarray(array.get() if hasattr(array, "get") else array)


def assert_close(actual, expected, *, bound):
    """Norm of the difference over that of the reference, and no element off by more than ten times the largest."""
    actual = from_device(actual)
    assert actual.shape == expected.shape
    difference = actual.astype(np.float64) - expected
    assert np.linalg.norm(difference) <= bound * np.linalg.norm(expected)
    assert np.abs(difference).max() <= 10 * bound * np.abs(expected).max()


class Rows:
    """A case of normalisation: arrays on the device, and the same values in float64."""

    def __init__(self, device, kind, seed):
        random = np.random.RandomState(seed)
        self.shape = (random.randint(1, 5), int(random.choice([1, 2, 7, 60, 700])), int(random.choice(CHANNELS)))
        groups, _, channels = self.shape
        scale, place = random.uniform(0.2, 3, (groups, 1, channels)), random.normal(0, 3, (groups, 1, channels))
        self.x = on(device, random.normal(size=self.shape) * scale + place, kind)
        self.gy, self.plus = (on(device, random.normal(size=self.shape), kind) for _ in range(2))
        vector = launcher.vector_type(self.x)
        self.gamma, self.beta = (on(device, random.normal(0.5, 1, channels), vector) for _ in range(2))

    def wide(self, *names):
        return [from_device(getattr(self, name)).astype(np.float64) for name in names]

    def scales(self, eps=1e-3):
        """What the kernels are given, after asserting that it is right; its parts in float64, (groups, 1, channels)."""
        mean, var = normalization.mean_and_variance(self.x)
        x, gamma, beta = self.wide("x", "gamma", "beta")
        assert_close(mean, x.mean(axis=1), bound=1e-12)
        assert_close(var + eps, x.var(axis=1) + eps, bound=1e-11)
        scales = normalization.scales(self.x, mean, var, self.gamma, self.beta, eps)
        parts = [part.astype(np.float64)[:, None] for part in from_device(scales)]
        inverse = 1 / np.sqrt(from_device(var) + eps)
        for part, expected in zip(
            parts, (from_device(mean), inverse, inverse * gamma, 0 * inverse + beta), strict=True
        ):
            assert_close(part[:, 0], expected, bound=1e-15 if scales.dtype == np.float64 else 2e-7)
        return scales, parts


@pytest.mark.parametrize("seed", range(12))
def test_normalisation_of_groups_with_relu_and_sum(cuda, kind, seed):
    case, relu, adds = Rows(cuda, kind, seed), seed % 2 == 1, seed % 3 == 0
    scales, (mean, _, scale, beta) = case.scales()
    y = normalization.normalized_by(case.x, scales, relu=relu, plus=case.plus if adds else None)
    x, plus = case.wide("x", "plus")
    expected = (x - mean) * scale + beta + (plus if adds else 0)
    assert_close(y, np.maximum(expected, 0) if relu else expected, bound=BOUNDS[kind])


@pytest.mark.parametrize("seed", range(12))
def test_gradients_of_normalisation_with_relu_and_sum(cuda, kind, seed):
    case, relu = Rows(cuda, kind, seed), seed % 3 > 0
    scales, (mean, inverse, scale, _) = case.scales()
    plus = case.plus if seed % 3 == 2 else None
    y = normalization.normalized_by(case.x, scales, relu=relu, plus=plus)
    gx, gradients, last = normalization.gradient_by(case.gy, case.x, scales, relu=relu, y=None if plus is None else y)
    gy, x = case.wide("gy", "x")
    counted = gy * (from_device(y) > 0) if relu else gy
    x_hat, count = (x - mean) * inverse, case.shape[1]
    ggamma, gbeta = ((counted * factor).sum(axis=1, keepdims=True) for factor in (x_hat, 1))
    expected = scale * (counted - (x_hat * ggamma + gbeta) / count)
    bound, terms = BOUNDS[kind], scale * counted  # what cancels, where there are few rows
    assert np.abs(from_device(gx) - expected).max() <= 10 * bound * np.abs(terms).max()
    assert np.linalg.norm(from_device(gx) - expected) <= bound * np.linalg.norm(terms)
    for actual, of, each in ((gradients[0], ggamma, counted * x_hat), (gradients[1], gbeta, counted)):
        assert np.abs(from_device(actual) - of.sum(axis=(0, 1))).max() <= bound * np.abs(each).sum(axis=(0, 1)).max()
    if plus is not None:
        np.testing.assert_array_equal(from_device(last), rounded(counted, kind))


def test_gradients_of_a_part_of_a_group_use_the_sums_of_the_whole(cuda):
    case = Rows(cuda, "d", 1)
    scales, _ = case.scales()
    half = case.shape[1] // 2
    gx, gradients, _ = normalization.gradient_by(case.gy, case.x, scales, relu=False)
    (gy, x), mean, inv_std = case.wide("gy", "x"), *(from_device(part)[:, None] for part in scales[:2])
    of_gamma, of_beta = ((gy * factor).sum(axis=1) for factor in ((x - mean) * inv_std, 1))
    assert_close(gradients, np.stack([of_gamma, of_beta]).sum(axis=1), bound=1e-11)
    parts = [tuple(cuda.xp.ascontiguousarray(a[:, part]) for a in (case.gy, case.x)) for part in np.s_[:half, half:]]
    whole = {"whole": lambda *_: (of_gamma, of_beta, case.shape[1])}
    for (gy, x), part in zip(parts, np.s_[:half, half:], strict=True):
        actual = normalization.gradient_by(gy, x, scales, relu=False, **whole)
        assert_close(actual[0], from_device(gx)[:, part], bound=1e-11)


def windows(random):
    kernel = tuple(map(int, random.randint(1, 5, 2)))
    pad = tuple(int(random.randint(0, k)) for k in kernel)
    stride = tuple(map(int, random.randint(1, 4, 2)))
    size = tuple(k + int(random.randint(0, 9)) for k in kernel)
    reach = int(random.randint(0, 2))  # windows over the border, as cover_all has them
    out = tuple((s + 2 * p - k) // step + 1 + reach for s, p, k, step in zip(size, pad, kernel, stride, strict=True))
    return size, out, {"kernel": kernel, "stride": stride, "pad": pad}


@pytest.mark.parametrize("seed", range(15))
def test_max_pooling_is_that_of_the_cpu_to_the_bit(cuda, kind, seed):
    random = np.random.RandomState(seed)
    size, out, how = windows(random)
    x = random.normal(size=(random.randint(1, 4), *size, random.choice(CHANNELS))).transpose(0, 3, 1, 2)
    x = rounded(x.round() if seed % 2 else x, kind)  # equal values: the first one counts
    expected, expected_places = cpu_pooling.max_pooling(x, out=out, **how)
    y, places = pooling.max_pooling(on(cuda, x, kind), out=out, **how)
    np.testing.assert_array_equal(from_device(y), expected)
    np.testing.assert_array_equal(from_device(places), expected_places)
    gy = rounded(random.normal(size=y.shape), kind)
    gx = pooling.max_pooling_gradient(on(cuda, gy, kind), places, size=size, **how)
    expected = cpu_pooling.max_pooling_gradient(gy.astype(np.float64), expected_places, size=size, **how)
    assert_close(gx, expected, bound=BOUNDS[kind])


def test_pooling_of_more_values_than_the_kernels_count_runs_out_of_memory(monkeypatch):
    launched, as_it_is = [], SimpleNamespace(ascontiguousarray=lambda array: array)
    device = SimpleNamespace(xp=as_it_is, launch=lambda *given: launched.append(given[3]))
    monkeypatch.setattr(launcher, "device", device)
    images = np.broadcast_to(np.float16(0), (1 << 16, 1 << 8, 1 << 8, 1))  # nobody reads them: they take no memory
    how = {"kernel": (1, 1), "stride": (1, 1), "pad": (0, 0)}
    with pytest.raises(MemoryError, match="4294967296 threads"):
        pooling._launch("average_pooled", (images.transpose(0, 3, 1, 2),), size=(256, 256), out=(256, 256), **how)
    pooling._launch("average_pooled", (images[1:].transpose(0, 3, 1, 2),), size=(256, 256), out=(256, 256), **how)
    assert launched == [((1 << 24) - (1 << 8),)]


@pytest.mark.parametrize("seed", range(10))
def test_average_pooling_and_its_gradient(cuda, kind, seed):
    random = np.random.RandomState(seed)
    size, out, how = windows(random)
    (top, left), (down, across) = how["pad"], how["stride"]
    x = rounded(random.normal(size=(2, int(random.choice(CHANNELS)), *size)), kind)
    gy = rounded(random.normal(size=(*x.shape[:2], *out)), kind)
    over = [o * step + k for o, step, k in zip(out, how["stride"], how["kernel"], strict=True)]
    padded, gradient = (np.zeros((*x.shape[:2], *(s + o for s, o in zip(size, over, strict=True)))) for _ in range(2))
    padded[:, :, top : top + size[0], left : left + size[1]] = x
    expected = np.zeros(gy.shape)
    for j, i in np.ndindex(*out):
        window = np.s_[:, :, j * down : j * down + how["kernel"][0], i * across : i * across + how["kernel"][1]]
        expected[:, :, j, i] = padded[window].mean(axis=(2, 3))
        gradient[window] += gy[:, :, j, i][:, :, None, None] / np.prod(how["kernel"])
    assert_close(pooling.average_pooling(on(cuda, x, kind), out=out, **how), expected, bound=BOUNDS[kind])
    actual = pooling.average_pooling_gradient(on(cuda, gy, kind), size=size, **how)
    assert_close(actual, gradient[:, :, top : top + size[0], left : left + size[1]], bound=BOUNDS[kind])


@pytest.mark.parametrize("shape", [(3,), (2, 8, 3, 5), (2, 64, 9, 8), (2, 3, 4, 5, 2)])
def test_relu_and_sums_keep_the_order_in_memory(cuda, kind, shape):
    random = np.random.RandomState(0)
    order = random.permutation(len(shape))
    x, other = (
        rounded(random.normal(size=np.array(shape)[order]), kind).transpose(np.argsort(order)) for _ in range(2)
    )
    last = np.ascontiguousarray(other)
    values, others, lasts = (on(cuda, array, kind) for array in (x, other, last))
    for y in (others, lasts):
        assert elementwise.add(values, y).strides == x.strides
        np.testing.assert_array_equal(from_device(elementwise.add(values, y)), x + other)
        into = on(cuda, x, kind)
        assert elementwise.add_to(into, y)
        np.testing.assert_array_equal(from_device(into), x + other)
        actual = from_device(elementwise.relu_gradient(values, y))
        np.testing.assert_array_equal(actual, np.where(x > 0, other, 0 * other))
    np.testing.assert_array_equal(from_device(elementwise.relu(values)), np.where(x > 0, x, 0 * x))
    assert elementwise.relu(values[..., ::2]) is None or shape[-1] <= 2
    assert elementwise.add(values, others.astype("f" if kind == "d" else "d")) is None


def test_arrays_without_axes_are_left_to_chainer(cuda, kind):
    x, into = on(cuda, 2.0, kind), on(cuda, 2.0, kind)
    assert elementwise.add(x, x) is elementwise.relu(x) is elementwise.relu_gradient(x, x) is None
    assert not elementwise.add_to(into, x)
    np.testing.assert_array_equal(from_device(into), 2.0)


@pytest.mark.parametrize("start", range(3))
def test_parts_of_arrays_are_read_value_by_value_unless_they_begin_at_16_bytes(cuda, monkeypatch, kind, start):
    widths, launch = [], cuda.launch
    monkeypatch.setattr(cuda, "launch", lambda *given: (widths.append(given[2]), launch(*given)))
    values = rounded(np.random.RandomState(0).normal(size=40), kind)
    whole = on(cuda, values, kind)
    part, other, first = whole[start : start + 16], whole[24:], start * whole.itemsize
    for x, y in ((part, other), (other, part)):
        np.testing.assert_array_equal(from_device(elementwise.add(x, y)), values[start : start + 16] + values[24:])
    np.testing.assert_array_equal(from_device(elementwise.relu(part)), np.maximum(values[start : start + 16], 0))
    assert launcher.address(whole) % 16 == 0
    assert widths == 3 * [1 if first % 16 else 16 // whole.itemsize]


@pytest.mark.parametrize("start", range(3))
def test_a_part_that_does_not_begin_at_16_bytes_is_copied_in_its_order(cuda, kind, start):
    whole = on(cuda, np.arange(3 * 5 * 7 * 3).reshape(3, 5, 7, 3) % 9, kind)
    part = whole[start:].transpose(0, 3, 1, 2)
    actual = launcher.aligned(part)
    assert launcher.address(actual) % 16 == 0
    assert (actual is part) == (start * whole[0].nbytes % 16 == 0)
    assert actual.strides == part.strides
    np.testing.assert_array_equal(from_device(actual), from_device(part))


@pytest.mark.parametrize("targets", ["i", "q", "mixtures"])
@pytest.mark.parametrize("shape", [(1, 3), (300, 2), (9, 10), (17, 65), (3, 1000), (2, 1001)])
def test_cross_entropy_and_its_gradient(cuda, kind, targets, shape):
    random, smoothing = np.random.RandomState(sum(shape)), 0.1 * (sum(shape) % 2)
    logits, (samples, classes) = rounded(random.normal(100, 5, shape), kind), shape
    labels = random.randint(0, classes, samples)
    given, share = labels.astype(targets[0] if targets in "iq" else "q"), np.eye(classes)[labels]
    if targets == "mixtures":
        given = (0.7 * share + 0.3 * share[::-1]).astype("f")
        share = given.astype("d")
    x, t, gy = on(cuda, logits, kind), cuda.xp.asarray(given), on(cuda, 3.0, launcher.vector_type(logits))
    loss, kept = cuda_loss.cross_entropy(x, t, label_smoothing=smoothing)
    gx = cuda_loss.cross_entropy_gradient(x, t, kept, gy, label_smoothing=smoothing)
    q, log_p = (1 - smoothing) * share + smoothing / classes, logits.astype("d")
    log_p -= log_p.max(axis=1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(axis=1, keepdims=True))
    assert (loss.dtype.char, gx.dtype) == ("d" if kind == "d" else "f", logits.dtype)
    expected = -(q * log_p).sum() / samples
    assert_close(loss, expected, bound=1e-5 if kind in "eE" else BOUNDS[kind])  # 16 bits are only read
    assert_close(gx, 3 / samples * (np.exp(log_p) * q.sum(axis=1, keepdims=True) - q), bound=BOUNDS[kind])


@pytest.mark.parametrize("label", [-1, 5, 2**31 - 1, -(2**31), 2**40])
def test_a_label_of_no_class_reads_nothing_and_makes_nan(cuda, label):
    x = on(cuda, np.random.RandomState(0).normal(size=(3, 5)), "f")
    labels = cuda.xp.asarray(np.array([1, label, 4], "q" if label > 2**31 else "i"))
    loss, kept = cuda_loss.cross_entropy(x, labels, label_smoothing=0.1)
    gx = cuda_loss.cross_entropy_gradient(x, labels, kept, on(cuda, 1.0, "f"), label_smoothing=0.1)
    assert np.isnan(from_device(loss))
    np.testing.assert_array_equal(np.isnan(from_device(gx)).all(axis=1), [False, True, False])


@pytest.mark.parametrize("component", [Lars(), Adam(), Lamb(), RmspropWarmup()])
def test_a_step_of_all_parameters_is_that_in_float64(cuda, kind, component):
    random, at = np.random.RandomState(0), SimpleNamespace(lr=0.1, alpha=0.1, base_rate=0.1, epoch=9.0)
    form, shapes = component.fused_step(at, 3), [(1,), (33, 5), (130, 129), (7, 3, 3), (16384,)]
    decay = StepDecay(coupled=True, shrink=0.05, lambdas=(0.1, 0.0, 0.2, -1.0, 0.1))
    tensors = [[rounded(random.uniform(0.1, 1, shape), kind) for shape in shapes] for _ in range(4)]
    actual, expected = ([[on(cuda, tensor, k) for tensor in each] for each in tensors] for k in (kind, "d"))
    for weights, gradients, *states in (actual, expected):
        cuda_steps.optimizer_step(form, decay, weights, gradients, states[: len(form.states)])
    for one, other in zip(sum(actual, []), sum(expected, []), strict=True):
        assert_close(one, from_device(other), bound=BOUNDS[kind])


@pytest.mark.parametrize("groups", [1, 2, 3, 64, 65, 150])
@pytest.mark.parametrize("channels", [1, 6, 300])
def test_statistics_of_groups_are_added_to_those_seen(cuda, groups, channels):
    random = np.random.RandomState(groups)
    mean, var = random.normal(size=(2, groups, channels))
    weights, seen = random.uniform(size=groups), random.normal(size=1 + 3 * channels)
    given = [cuda.xp.array(array) for array in (mean, var, weights, seen)]
    normalization.see(*given, factor=1.25)
    parts = (weights @ mean, weights @ var * 1.25, weights @ mean**2)
    expected = seen + np.concatenate([[weights.sum()], *parts])
    np.testing.assert_allclose(from_device(given[-1]), expected, rtol=0, atol=1e-14 * np.abs(expected).max())


@pytest.mark.parametrize("kind", ["f", "d"])
@pytest.mark.parametrize("shape", [(1, 900, 6), (3, 60, 17), (8, 60, 64), (65, 3, 8), (140, 2, 5)])
def test_whole_groups_get_in_one_launch_what_several_give(cuda, kind, shape):
    random, eps, (groups, _, channels) = np.random.RandomState(0), 1e-3, shape
    x, gy = (cuda.xp.asarray(random.normal(2, 1, shape).astype(kind)) for _ in range(2))
    gamma, beta = cuda.xp.asarray(random.normal(size=(2, channels)).astype(launcher.vector_type(x)))
    weights, *seen = (cuda.xp.asarray(random.uniform(size=size)) for size in (groups, *[1 + 3 * channels] * 2))
    seen[1][...] = seen[0]
    actual = normalization.whole_scales(x, gamma, beta, eps, seen=(weights, seen[0], 1.25))
    mean, var = normalization.mean_and_variance(x)
    normalization.see(mean, var, weights, seen[1], factor=1.25)
    expected = normalization.scales(x, mean, var, gamma, beta, eps)
    for one, other in ((actual, expected), (normalization.whole_scales(x, gamma, beta, eps), expected), seen):
        np.testing.assert_array_equal(from_device(one), from_device(other))
    here, by_a_team = (
        normalization.gradient_by(gy, x, actual, relu=True, whole=whole)[:2] for whole in (None, lambda *sums: sums)
    )
    for one, other in zip(map(from_device, here), map(from_device, by_a_team), strict=True):
        bound = 1e-14 if kind == "d" else 1e-6  # of a quotient multiplied again
        np.testing.assert_allclose(one, other, rtol=0, atol=bound * np.abs(other).max())


@pytest.mark.parametrize("groups", [2, 8])
@pytest.mark.parametrize("kind", ["e", "f"])
@pytest.mark.parametrize(
    ("side", "channels"), [(112, 64), (56, 64), (56, 256), (28, 512), (14, 1024), (7, 512), (7, 2048)]
)
def test_a_layer_of_resnet50_fills_a_large_gpu_and_leaves_few_sums(monkeypatch, groups, kind, side, channels):
    blocks = {}

    def launch(name, kind, width, grid, arguments):
        blocks[name] = int(np.prod(grid))

    monkeypatch.setattr(launcher, "device", SimpleNamespace(xp=np, launch=launch))
    x = np.empty((groups, 32 * side * side, channels), kind)  # nobody writes or reads it: it takes no memory
    vector = np.empty(channels, "f")
    scales = normalization.whole_scales(x, vector, vector, 1e-3)
    normalization.normalized_by(x, scales, relu=True)
    normalization.gradient_by(x, x, scales, relu=True)
    assert blocks.pop("totals") == blocks.pop("slopes") == channels // 4
    for name in ("moments", "gradient_sums"):
        assert 132 <= blocks.pop(name) <= 528
    assert blocks.keys() == {"normalized", "input_gradient"}
    assert all(132 <= number <= 1584 for number in blocks.values())
