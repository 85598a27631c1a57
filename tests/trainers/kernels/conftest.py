"""Kinds of kernels; where CUDA kernels run in the tests: compiled for the CPU, from the same source, and on a GPU."""

import ctypes
import platform
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from trainers import kernels
from trainers.kernels import chainer_hooks
from trainers.kernels.cpu import compiled_normalization, convolution
from trainers.kernels.cuda import elementwise, launcher, loss, normalization, pooling, tensors
from trainers.training.device import has_gpu

COMPILER = shutil.which("g++") or shutil.which("clang++")
HEADER = Path(__file__).with_name("cuda_on_cpu.h")
LAST_SEED = 2  # on a GPU


class Poisoned:
    """An array module, but for memory that holds NaN, or 255, where it would be unknown."""

    def __init__(self, module):
        self._module = module

    def __getattr__(self, name):
        return getattr(self._module, name)

    def empty(self, shape, dtype=np.float64):
        return self._module.full(shape, 255 if np.dtype(dtype).kind == "u" else np.nan, dtype)


class Cpu:
    """Runs the kernels' own source on NumPy's arrays, block after block."""

    rehearses = False

    def __init__(self, folder):
        self.xp = Poisoned(np)
        self._folder, self._libraries = folder, {}

    def launch(self, name, kind, width, grid, arguments):
        library = self._library(kind, width)
        kernel = getattr(library, name)
        block, size = ((ctypes.c_uint * 3).in_dll(library, word) for word in ("blockIdx", "gridDim"))
        size[:] = (*grid, 1, 1)[:3]
        converted = [self._converted(argument) for argument in arguments]
        for place in np.ndindex(*size):
            block[:] = place
            kernel(*converted)

    def _converted(self, argument):
        if argument is None:
            return ctypes.c_void_p(None)
        if isinstance(argument, launcher.ByValue):
            numbers = argument.numbers
            return type("Numbers", (ctypes.Structure,), {"_fields_": [("at", ctypes.c_longlong * numbers.size)]})(
                tuple(numbers.tolist())
            )
        if isinstance(argument, np.ndarray):
            assert argument.flags.c_contiguous
            return ctypes.c_void_p(argument.ctypes.data)
        return ctypes.c_double(argument) if isinstance(argument, float) else ctypes.c_longlong(argument)

    def _library(self, kind, width):
        if (kind, width) not in self._libraries:
            target = self._folder / f"{kind}{width}.so"
            command = [COMPILER, "-x", "c++", "-std=c++17", "-O0", "-shared", "-fPIC", "-Wall", "-Werror"]
            command += ["-Wno-unknown-pragmas", "-Wno-unused-function", "-include", str(HEADER), "-o", str(target), "-"]
            machine = ["-mf16c", "-mfma"] if platform.machine() == "x86_64" else []
            command += [*machine, *launcher.definitions(kind, width)]
            subprocess.run(command, input=launcher.source(), text=True, check=True)
            self._libraries[kind, width] = ctypes.CDLL(str(target))
        return self._libraries[kind, width]


class PoisonedGpu(launcher.Launcher):
    """CuPy's device, memory poisoned."""

    @property
    def xp(self):
        import cupy

        return Poisoned(cupy)


@pytest.fixture
def poisoned_numpy():
    """NumPy, its memory poisoned."""
    return Poisoned(np)


def pytest_collection_modifyitems(items):
    """On a GPU only the first seeds run: compiled for the CPU, all have run from the same source."""
    params = {item: item.callspec.params for item in items if hasattr(item, "callspec")}
    on_gpu = {item for item, given in params.items() if given.get("cuda") == "gpu" and given.get("seed", 0) > LAST_SEED}
    items[:] = [item for item in items if item not in on_gpu]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """The kernels, compiled for the CPU."""
    if COMPILER is None:
        pytest.skip("needs a C++ compiler")
    return Cpu(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(
    params=[
        pytest.param("e", marks=pytest.mark.skipif(platform.machine() != "x86_64", reason="no F16C")),
        pytest.param("E", id="bfloat16", marks=pytest.mark.bfloat16),
        "f",
        "d",
    ]
)
def kind(request):
    """The character of a type that CUDA kernels serve; E is bfloat16, which NumPy has from ml_dtypes."""
    return request.param


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def cuda(request, monkeypatch):
    """The device that the kernels run on, its memory poisoned."""
    if request.param == "gpu":
        if not has_gpu():
            pytest.skip("needs a GPU with CuPy")
        device = PoisonedGpu()
    else:
        device = request.getfixturevalue("compiled")
    monkeypatch.setattr(launcher, "device", device)
    return device


@pytest.fixture
def cuda_on_cpu(compiled, monkeypatch):
    """Called, our CUDA kernels serve NumPy's arrays, but for convolutions; it gives the names of what is launched."""
    modules = (convolution, tensors, elementwise, loss, normalization, pooling)
    operators = SimpleNamespace(**{name: value for module in modules for name, value in vars(module).items()})
    launched = []

    def launch(name, *given):
        launched.append(name)
        compiled.launch(name, *given)

    monkeypatch.setattr(launcher, "device", SimpleNamespace(xp=compiled.xp, launch=launch, rehearses=False))

    def serve():
        monkeypatch.setattr(chainer_hooks, "operators", operators)
        return launched

    return serve


@pytest.fixture(params=["numpy", "numpy, nothing compiled", pytest.param("torch", marks=pytest.mark.torch)])
def each_kind(request, monkeypatch):
    """Every test once by each kind of kernels on the CPU."""
    kind, _, nothing_compiled = request.param.partition(", ")
    if kind == "torch":
        pytest.importorskip("torch")
    if nothing_compiled:
        monkeypatch.setattr(compiled_normalization, "COMPILED", None)
    before = kernels.in_use()
    kernels.use(kind)
    yield
    kernels.use(before)


@pytest.fixture
def assert_as_exact():
    """Asserts the same bits; the same up to rounding, where one of both was normalised by what is compiled."""

    def compare(actual, expected, *, dtype, path):
        if compiled_normalization.COMPILED is None or dtype != np.float32:
            np.testing.assert_array_equal(actual, expected, err_msg=path)
        else:
            assert np.linalg.norm(actual - expected) <= 2e-5 * np.linalg.norm(expected), path

    return compare
