"""What one launch makes of the sums of normalisation's blocks, on a GPU and compiled for the CPU."""

from types import SimpleNamespace

import numpy as np
import pytest

from trainers.kernels.cuda import launcher, normalization


def from_device(array):
    return np.asarray(array.get() if hasattr(array, "get") else array)


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
    found = normalization.whole_scales(x, gamma, beta, eps, seen=(weights, seen[0], 1.25))
    mean, var = normalization.mean_and_variance(x)
    normalization.see(mean, var, weights, seen[1], factor=1.25)
    expected = normalization.scales(x, mean, var, gamma, beta, eps)
    for one, other in ((found, expected), (normalization.whole_scales(x, gamma, beta, eps), expected), seen):
        np.testing.assert_array_equal(from_device(one), from_device(other))
    here, by_a_team = (
        normalization.gradient_by(gy, x, found, relu=True, whole=whole)[:2] for whole in (None, lambda *sums: sums)
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
