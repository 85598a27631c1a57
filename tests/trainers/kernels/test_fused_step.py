"""A step of all parameters at once, by our CUDA kernels or by what is compiled, is Chainer's parameter by parameter."""

import weakref
from types import SimpleNamespace

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer.backends.cuda import to_cpu

from recipes.schema import WeightAverage
from trainers import kernels, optimizers
from trainers.gradients.norms import first_not_finite
from trainers.kernels import chainer_hooks, threads
from trainers.kernels.cpu import compiled
from trainers.kernels.cpu.compiled import Threads
from trainers.optimizers.fused_step import FusedStep
from trainers.optimizers.hyperparameters import Hyperparameters, set_hyperparameters
from trainers.optimizers.weight_average import AveragedWeights
from trainers.optimizers.weight_decay import decay_parameters
from trainers.runs.checkpoint import load_into, optimizer_arrays, read_checkpoint, write_checkpoint
from trainers.training.device import has_gpu

WARMUP = {"beta_center": 1.0, "beta_period": 2.0, "rmsprop_learning_rate": 0.01}
FORMS = [
    optimizers.SGD(weight_decay=0.1),
    optimizers.SGD(weight_decay=0.1, decay="times_relative_rate", no_decay=("norm", "bias")),
    optimizers.MomentumSGD(momentum=0),
    optimizers.MomentumSGD(weight_decay=0.1, no_decay=("norm", "bias")),
    optimizers.MomentumSGD(weight_decay=0.1, decay="times_rate"),
    optimizers.CorrectedMomentumSGD(weight_decay=0.1, no_decay=("norm",)),
    optimizers.CorrectedMomentumSGD(weight_decay=0.1, decay="times_relative_rate"),
    optimizers.AdaScale(weight_decay=0.1),
    optimizers.NesterovAG(weight_decay=0.1, no_decay=("bias",)),
    optimizers.CorrectedNesterovAG(weight_decay=0.1, decay="times_rate"),
    optimizers.Lars(weight_decay=0.1),
    optimizers.Lars(weight_decay=0.1, no_decay=(), rate="outside", decay_in_trust=False, eps=0.1),
    optimizers.Lars(weight_decay=0.1, nesterov=True, clip=True, trust_coefficient=0.3),
    optimizers.Adam(),
    optimizers.Adam(weight_decay=1, no_decay=("norm", "bias"), eps=1, beta1=0),
    optimizers.Adam(weight_decay=0.1, decay="times_rate", beta1=0.5),
    optimizers.Adam(weight_decay=0.1, decay="times_relative_rate", no_decay=("norm",)),
    optimizers.Lamb(weight_decay=0.1),
    optimizers.Lamb(weight_decay=0.1, no_decay=(), bias_correction=False, trust_bounds=(0.5, 2.0), beta2=0.9),
    optimizers.RmspropWarmup(**WARMUP),
    optimizers.RmspropWarmup(**WARMUP, weight_decay=0.1, no_decay=("norm", "bias"), transition="printed", mu2=0.9),
]
STEPS = weakref.WeakKeyDictionary()


class Model(chainer.Chain):
    """Tensors of several blocks, of one value, and one that starts at zero."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.large = L.Linear(300, 150)
            self.bn = L.BatchNormalization(33)
            self.small = L.Linear(1, 1)

    def weights(self):
        return {path: parameter.array for path, parameter in sorted(self.namedparams())}


def set_up(component, dtype=np.float32, device="@numpy"):
    """The component's optimizer, with the model there."""
    random, model = np.random.RandomState(0), Model()
    optimizer = component.build()
    optimizer.setup(model)
    decay_parameters(optimizer, component)
    for _, parameter in sorted(model.namedparams()):
        zero = parameter.size == 33
        parameter.array = (0 if zero else 1) * random.normal(size=parameter.shape).astype(dtype)
    model.to_device(device)
    return optimizer


def step_of(optimizer, component):
    """One and the same in all updates."""
    if optimizer not in STEPS:
        STEPS[optimizer] = FusedStep(optimizer)
    return STEPS[optimizer]


def update(optimizer, component, number):
    """One update at a rate that moves, and is 0 once where that may be."""
    random = np.random.RandomState(number)
    for _, parameter in sorted(optimizer.target.namedparams()):
        parameter.grad = parameter.device.send(random.normal(size=parameter.shape).astype(parameter.dtype))
    rate = 0.0 if number == 1 and not isinstance(component, optimizers.RmspropWarmup) else 0.1 / (number + 1)
    moment = Hyperparameters(update=number, epoch=number / 2, global_batch_size=8, learning_rate=rate, full_rate=0.2)
    set_hyperparameters(component, optimizer, moment)
    step_of(optimizer, component)()


def arrays_of(optimizer):
    weights = {path: parameter.array for path, parameter in optimizer.target.namedparams()}
    return {path: to_cpu(array) for path, array in {**weights, **optimizer_arrays(optimizer)}.items()}


def after_updates(component, dtype, *, count=3, device="@numpy"):
    optimizer = set_up(component, dtype, device)
    for number in range(count):
        update(optimizer, component, number)
    assert optimizer.t == count
    return arrays_of(optimizer)


def assert_alike(actual, expected, *, bound):
    assert actual.keys() == expected.keys()
    for path, values in expected.items():
        assert actual[path].dtype == values.dtype
        largest = max(np.abs(values).max(), 1e-3)
        np.testing.assert_allclose(actual[path], values, rtol=0, atol=bound * largest, err_msg=path)


def test_no_optimizer_is_missing_here():
    have = {name for name in optimizers.__all__ if hasattr(getattr(optimizers, name), "fused_step")}
    assert {type(component).__name__ for component in FORMS} == have


@pytest.fixture(autouse=True)
def _chainers_step(monkeypatch):
    monkeypatch.setattr(chainer_hooks, "operators", None)


@pytest.fixture(params=[1, 2])
def compiled_step(request, monkeypatch):
    """Called, compiled steps serve, on so many threads; it gives the names of those that were done."""
    if not compiled.STEPS:
        pytest.skip("needs what a C compiler makes at the installation, and AVX2")
    steps, served = compiled.Steps(Threads(lambda: request.param, threads.THREADS.parallel)), []

    def optimizer_step(form, *given):
        served.append(form.kernels)
        steps.optimizer_step(form, *given)

    operators = SimpleNamespace(STEPS=steps.types, optimizer_step=optimizer_step, finite=steps.finite)

    def serve():
        monkeypatch.setattr(chainer_hooks, "operators", operators)
        return served

    return serve


@pytest.mark.parametrize("component", FORMS, ids=repr)
def test_compiled_it_is_the_step_of_chainer(compiled_step, component):
    expected = after_updates(component, np.float32)
    served = compiled_step()
    actual = after_updates(component, np.float32)
    assert len(served) == 3
    assert_alike(actual, expected, bound=1e-5)


def test_compiled_it_has_the_same_bits_on_any_number_of_threads(monkeypatch):
    actual = []
    for count in (1, 2, 3):
        steps = compiled.Steps(Threads(lambda count=count: count, threads.THREADS.parallel))
        monkeypatch.setattr(chainer_hooks, "operators", steps)
        monkeypatch.setattr(steps, "STEPS", compiled.STEPS, raising=False)
        actual.append([after_updates(component, np.float32) for component in FORMS])
    for other in actual[1:]:
        for one, same in zip(actual[0], other, strict=True):
            for path, values in one.items():
                np.testing.assert_array_equal(same[path], values, err_msg=path)


def test_what_is_compiled_leaves_float64_to_chainer(compiled_step):
    expected = after_updates(FORMS[-1], np.float64)
    served = compiled_step()
    assert_alike(after_updates(FORMS[-1], np.float64), expected, bound=0)
    assert served == []


@pytest.mark.parametrize("component", FORMS, ids=repr)
@pytest.mark.parametrize(("dtype", "bound"), [(np.float64, 1e-12), (np.float32, 1e-5)])
def test_it_is_the_step_of_chainer(cuda_on_cpu, component, dtype, bound):
    expected = after_updates(component, dtype)
    served = cuda_on_cpu()
    actual = after_updates(component, dtype)
    assert sum(name.endswith("_step") for name in served) == 3
    clips = getattr(component, "clip", False)
    has_ratio = isinstance(component, optimizers.Lars | optimizers.Lamb)
    assert served.count("ratios") == (2 if clips else 3 if has_ratio else 0)
    assert_alike(actual, expected, bound=bound)


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="needs a GPU with CuPy")
@pytest.mark.parametrize("component", FORMS, ids=repr)
def test_on_a_gpu_it_is_that_of_the_cpu(component):
    expected = after_updates(component, np.float32)
    kernels.use_on_gpu("cudnn")
    actual = after_updates(component, np.float32, device="@cupy:0")
    assert_alike(actual, expected, bound=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="needs a GPU with CuPy")
def test_weights_of_two_types_are_moved_and_checked_one_by_one_on_a_gpu():
    kernels.use_on_gpu("cudnn")
    model, component = chainer.Sequential(L.Linear(40, 40), L.Linear(40, 40)), optimizers.MomentumSGD(momentum=0.0)
    for parameter in model[0].params():
        parameter.array = parameter.array.astype("e")
    model.to_device("@cupy:0")
    optimizer = component.build().setup(model)
    optimizer.lr, optimizer.hyperparam.component = 1.0, component
    expected = {}
    for path, parameter in model.namedparams():
        parameter.grad = parameter.xp.full_like(parameter.array, 0.5)
        expected[path] = to_cpu(parameter.array) - parameter.dtype.type(0.5)
    FusedStep(optimizer)()
    for path, parameter in model.namedparams():
        np.testing.assert_allclose(to_cpu(parameter.array), expected[path], rtol=1e-3)
    arrays = {path: parameter.array for path, parameter in sorted(model.namedparams())}
    assert first_not_finite(arrays) is None
    arrays["/1/W"][20, 39] = np.inf
    assert first_not_finite(arrays) == "/1/W"


@pytest.mark.parametrize("fused_first", [True, False])
@pytest.mark.parametrize("component", [FORMS[11], FORMS[16], FORMS[17], FORMS[20]], ids=repr)
def test_a_run_goes_on_with_the_other_kind_of_step(cuda_on_cpu, monkeypatch, tmp_path, component, fused_first):
    expected = after_updates(component, np.float64, count=4)
    plain, served = chainer_hooks.operators, []
    optimizer = set_up(component, np.float64)
    for half in (0, 1):
        if fused_first == (half == 0):
            served = cuda_on_cpu()
        else:
            monkeypatch.setattr(chainer_hooks, "operators", plain)
        for number in (2 * half, 2 * half + 1):
            update(optimizer, component, number)
        kept = write_checkpoint(tmp_path, model=optimizer.target, optimizer=optimizer, state={"update": 2 * half + 2})
        optimizer = set_up(component, np.float64)
        load_into(optimizer.target, optimizer, read_checkpoint(kept))
    assert sum(name.endswith("_step") for name in served) == 2
    assert_alike(arrays_of(optimizer), expected, bound=1e-12)


def lies_otherwise(optimizer):
    weights = optimizer.target.large.W
    weights.array = np.asfortranarray(weights.array)


def has_a_hook(optimizer):
    optimizer.target.small.W.update_rule.add_hook(chainer.optimizer_hooks.GradientNoise(0.1), timing="post")


def is_behind(optimizer):
    optimizer.target.small.W.update_rule.t = 1


def came_later(optimizer):
    optimizer.target.small.W.update_rule = None


def has_two_names(optimizer):
    with optimizer.target.init_scope():
        optimizer.target.again = optimizer.target.small


def has_states_that_lie_otherwise(optimizer):
    weights = optimizer.target.large.W
    weights.update_rule._state = {"m": np.asfortranarray(0 * weights.array), "v": np.zeros_like(weights.array)}


ODD = [lies_otherwise, has_a_hook, is_behind, came_later, has_states_that_lie_otherwise]


@pytest.mark.parametrize(("odd", "before"), [(has_two_names, 0), *((odd, count) for odd in ODD for count in (0, 3))])
def test_what_the_kernels_do_not_cover_goes_parameter_by_parameter(cuda_on_cpu, odd, before):
    served, component = cuda_on_cpu(), optimizers.Adam()
    optimizer = set_up(component)
    for number in range(before):
        update(optimizer, component, number)
    odd(optimizer)
    update(optimizer, component, before)
    assert served == ["adam_step"] * before


def test_states_of_another_shape_are_refused_as_chainer_does(compiled_step):
    served, component = compiled_step(), optimizers.Adam()
    optimizer = set_up(component)
    update(optimizer, component, 0)
    optimizer.target.small.W.array = np.ones((2, 3), np.float32)
    with pytest.raises(ValueError, match="broadcast"):
        update(optimizer, component, 1)
    assert len(served) == 1


def test_a_step_that_is_refused_changes_nothing(cuda_on_cpu):
    component = optimizers.RmspropWarmup()
    cuda_on_cpu()
    optimizer = set_up(component)
    set_hyperparameters(
        component,
        optimizer,
        Hyperparameters(update=0, epoch=0.0, global_batch_size=8, learning_rate=0.0, full_rate=0.2),
    )
    for parameter in optimizer.target.params():
        parameter.grad = parameter.array
    with pytest.raises(ValueError, match="divides its RMSprop rate by the learning rate, which is 0 at epoch 0"):
        step_of(optimizer, component)()
    assert optimizer.t == 0


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_compiled_the_first_parameter_that_is_not_finite_is_found(compiled_step, dtype, bad):
    model, _ = Model(), compiled_step()
    for parameter in model.params():
        parameter.array = np.full(parameter.shape, np.finfo(dtype).max, dtype)
    assert first_not_finite(model.weights()) is None
    for path, place in (("/small/W", 0), ("/large/W", 44_999), ("/bn/gamma", 32)):
        dict(model.namedparams())[path].array.flat[place] = bad
        assert first_not_finite(model.weights()) == path


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_the_first_parameter_that_is_not_finite_is_found(cuda_on_cpu, bad):
    model, served = Model(), cuda_on_cpu()
    assert first_not_finite(model.weights()) is None
    for path, place in (("/small/W", 0), ("/large/W", 44_999), ("/bn/gamma", 32)):
        dict(model.namedparams())[path].array.flat[place] = bad
    assert first_not_finite(model.weights()) == "/bn/gamma"
    assert served == ["not_finite"] * 2


@pytest.mark.parametrize("served", [True, False])
def test_arrays_that_are_weights_no_longer_are_not_kept(cuda_on_cpu, monkeypatch, served):
    component, launched = optimizers.MomentumSGD(momentum=0.9), cuda_on_cpu()
    model, optimizer = L.Linear(3, 2), component.build()
    optimizer.setup(model)
    optimizer.lr, optimizer.hyperparam.component = 0.1, component
    step = FusedStep(optimizer)
    model.W.grad, model.b.grad = np.ones((2, 3), "f"), np.ones(2, "f")
    step()
    weights = weakref.ref(model.W.array)
    monkeypatch.setattr(chainer_hooks, "operators", chainer_hooks.operators if served else None)
    for parameter in model.params():  # as on another device
        parameter.array = parameter.array.copy()
    step()
    assert weights() is None
    assert len(launched) == 1 + served


def followed(*, otherwise=False):
    """The averages behind some updates, the first of them before the start."""
    random, model = np.random.RandomState(0), chainer.Sequential(L.Linear(300, 150), L.BatchNormalization(33))
    averaged = AveragedWeights(model, WeightAverage(keep=0.9, per=64, start=0.5))
    for epoch in range(4):
        for parameter in model.params():
            parameter.array = random.normal(size=parameter.shape).astype(np.float32)
        model[1].avg_var = random.uniform(1, 2, 33).astype(np.float32)
        if otherwise:
            model[0].W.array = np.asfortranarray(model[0].W.array)
        averaged.move(epoch=epoch, global_batch_size=32)
        if epoch == 0:
            for path, array in averaged._current().items():
                np.testing.assert_array_equal(averaged.arrays[path], array, err_msg=path)
    return averaged.arrays


@pytest.fixture
def one_by_one(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(chainer_hooks, "operators", None)
        return followed()


def test_averages_follow_all_at_once_on_a_gpu(one_by_one, cuda_on_cpu):
    launched = cuda_on_cpu()
    assert_alike(followed(), one_by_one, bound=1e-6)
    assert launched == ["momentum_step"] * 4


def test_averages_follow_all_at_once_by_what_is_compiled(one_by_one, compiled_step):
    served = compiled_step()
    assert_alike(followed(), one_by_one, bound=1e-6)
    assert len(served) == 4


def test_averages_that_lie_otherwise_follow_one_by_one(one_by_one, cuda_on_cpu):
    launched = cuda_on_cpu()
    assert_alike(followed(otherwise=True), one_by_one, bound=1e-6)
    assert launched == []
