import chainer
import numpy as np
import pytest

from trainers.models import SmallCNN
from trainers.models.dropout import Dropout, SampleKeys


def dropped(x, *, epochs, indices, seed=0, path="/dropout", probability=0.5):
    with chainer.using_config("sample_keys", SampleKeys(seed=seed, epochs=epochs, indices=indices)):
        return Dropout(probability, path=path)(x).array


def test_a_sample_has_the_same_mask_in_whatever_micro_batch():
    x = np.ones((6, 3, 4), np.float32)
    whole = dropped(x, epochs=[0, 0, 0, 0, 1, 1], indices=[7, 2, 9, 4, 2, 0])
    parts = [dropped(x[:4], epochs=[0] * 4, indices=[7, 2, 9, 4]), dropped(x[4:], epochs=[1, 1], indices=[2, 0])]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


def test_masks_differ_by_seed_epoch_index_and_layer():
    x = np.ones((1, 64), np.float32)
    key = {"epochs": [3], "indices": [5]}
    changes = [{}, {"seed": 1}, {"epochs": [4]}, {"indices": [6]}, {"path": "/other"}]
    masks = {dropped(x, **{**key, **change}).tobytes() for change in changes}
    assert len(masks) == len(changes)


def test_values_are_dropped_with_the_probability_and_the_mean_stays():
    y = dropped(np.ones((100, 200), np.float32), epochs=[0] * 100, indices=range(100), probability=0.2)
    assert set(np.unique(y)) == {0, np.float32(1.25)}
    assert (y == 0).mean() == pytest.approx(0.2, abs=0.01)  # deviation of the share: 0.003
    assert y.dtype == np.float32


def test_the_gradient_goes_through_what_was_kept():
    x = chainer.Variable(np.full((2, 8), 3, np.float32))
    with chainer.using_config("sample_keys", SampleKeys(seed=0, epochs=[0, 0], indices=[0, 1])):
        y = Dropout(0.5, path="/dropout")(x)
    y.grad = np.ones_like(y.array)
    y.backward()
    np.testing.assert_array_equal(x.grad, y.array / 3)


def test_nothing_is_dropped_in_test_mode_or_at_probability_zero():
    x = np.ones((2, 8), np.float32)
    with chainer.using_config("train", False):
        assert Dropout(0.5, path="/dropout")(x) is x
    assert Dropout(0.0, path="/dropout")(x) is x


def test_samples_that_are_not_named_are_refused():
    x = np.ones((2, 8), np.float32)
    with pytest.raises(RuntimeError, match=r"Dropout '/dropout' needs to know its 2 samples.*is: None"):
        Dropout(0.5, path="/dropout")(x)
    with pytest.raises(RuntimeError, match="needs to know its 2 samples"):
        dropped(x, epochs=[0], indices=[0])


def test_layers_of_a_model_are_keyed_by_their_own_path():
    model = SmallCNN(dropout=0.5).build(num_classes=10, channels=1, image_size=8)
    found = {path: link.path for path, link in model.namedlinks() if isinstance(link, Dropout)}
    assert found == {"/dropout": "/dropout"}
