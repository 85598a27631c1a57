import chainer
import numpy as np
import pytest

from trainers.models import ResNet50


@pytest.fixture(scope="module")
def model():
    return ResNet50().build(num_classes=1000, channels=3, image_size=224)


def test_it_has_the_published_number_of_weights(model):
    assert model.count_params() == 25_557_032
    assert len(list(model.params())) == 161


def test_the_stride_is_on_the_3x3_convolution(model):
    for stage in (model.res3, model.res4, model.res5):
        assert [stage.a[name].conv.stride for name in ("conv1", "conv2", "conv3")] == [(1, 1), (2, 2), (1, 1)]


def test_only_the_last_scale_of_a_bottleneck_starts_at_zero(model):
    gammas = {path: array.array for path, array in model.namedparams() if path.endswith("gamma")}
    zero = {path for path, gamma in gammas.items() if not gamma.any()}
    assert zero == {path for path in gammas if "/conv3/" in path}
    assert len(zero) == 3 + 4 + 6 + 3
    assert all((gammas[path] == 1).all() for path in gammas.keys() - zero)


def test_initial_weights_are_goyals(model):
    assert model.fc6.W.array.std() == pytest.approx(0.01, rel=0.01)
    assert not model.fc6.b.array.any()
    assert model.res2.a.conv2.conv.W.array.std() == pytest.approx(np.sqrt(2 / (64 * 9)), rel=0.02)
    convolutions = [link for link in model.links() if hasattr(link, "ksize")]
    assert len(convolutions) == 53
    assert all(link.b is None for link in convolutions)


def test_building_leaves_the_running_statistics_alone(model):
    assert not model.conv1.bn.avg_mean.any()
    assert (model.conv1.bn.avg_var == 1).all()


def test_grey_images_are_served():
    model = ResNet50(zero_last_gamma=False).build(num_classes=7, channels=1, image_size=64)
    assert model.conv1.conv.W.shape == (64, 1, 7, 7)
    assert model.fc6.W.shape == (7, 2048)
    assert all(gamma.array.all() for path, gamma in model.namedparams() if path.endswith("gamma"))


def test_it_computes_in_the_type_that_chainer_is_told():
    with chainer.using_config("dtype", np.float64), chainer.using_config("train", False), chainer.no_backprop_mode():
        model = ResNet50().build(num_classes=2, channels=3, image_size=32)
        assert model(np.zeros((1, 3, 32, 32))).dtype == np.float64
