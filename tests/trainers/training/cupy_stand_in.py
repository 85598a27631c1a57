"""CuPy's names over NumPy, for a process of its own: counts how often the host waits for the GPU, and launches.

Arrays are NumPy's in a class of their own, our kernels are compiled for the CPU, convolutions are NumPy's. What makes
CuPy wait (a number that Python reads, a copy to the host, `synchronize`) is counted. A stream's order is Python's.
"""

import contextlib
import functools
import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np

counts = Counter()


class Array(np.ndarray):
    """cupy.ndarray."""

    def __array_wrap__(self, array, context=None, return_scalar=False):
        return array.view(Array)

    def __getitem__(self, key):
        found = super().__getitem__(key)
        return found if isinstance(found, np.ndarray) else np.asarray(found).view(Array)

    def _read(name):
        def reads(self, *given):
            counts["waits"] += 1
            return getattr(np.ndarray, name)(self.view(np.ndarray), *given)

        return reads

    tolist, item, __float__, __int__, __bool__, __index__ = map(
        _read, ("tolist", "item", "__float__", "__int__", "__bool__", "__index__")
    )

    def get(self, stream=None, order="C", out=None, blocking=True):
        counts["waits"] += blocking
        if out is None:
            return np.array(self)
        out[...] = self
        return out

    def set(self, array, stream=None):
        self[...] = array

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data, device_id=0)

    @property
    def device(self):
        return Device(0)


class Device:
    """cupy.cuda.Device."""

    def __init__(self, number=0):
        self.id = number

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def __eq__(self, other):
        return self.id == other.id

    __hash__ = None
    use = __enter__

    def synchronize(self):
        counts["waits"] += 1


class Stream:
    """cupy.cuda.Stream."""

    ptr = 0

    def __init__(self, **how):
        pass

    __enter__, __exit__ = Device.__enter__, Device.__exit__
    synchronize = Device.synchronize

    def wait_event(self, event):
        pass

    def record(self, event=None):
        return event or Event()


class Event(Stream):
    """cupy.cuda.Event. Only the feed of images waits for one: for a copy to the GPU, two micro-batches ago."""

    def synchronize(self):
        counts["waits for copies"] += 1


def _on_gpu(function):
    def call(*given, **how):
        found = function(*given, **how)
        return found.view(Array) if isinstance(found, np.ndarray) else found

    return call


def _kernel(*given, **how):
    """cupy.ElementwiseKernel, ReductionKernel: of Chainer's own a run launches none."""


class _Module(ModuleType):
    """NumPy's functions, whose results are on the GPU."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(np, name, _kernel)
        return found if isinstance(found, type) or not callable(found) else _on_gpu(found)


class _Anything(ModuleType):
    """A module of which nothing is called."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Exception,), {})


def install(folder):
    """Put the stand-in in place of CuPy, before Chainer is imported, and our kernels on it.

    Args:
        folder: for the kernels compiled for the CPU.
    """
    cupy, stream = _Module("cupy"), Stream()
    cupy.ndarray, cupy.__version__ = Array, "14.2"
    cupy.get_array_module = lambda *arrays: cupy if any(isinstance(one, Array) for one in arrays) else np
    cupy.fuse = lambda **how: lambda function: function
    cupy.memoize = lambda for_each_device=False: functools.cache
    cupy.asnumpy = lambda array, **how: array.get()
    pool = SimpleNamespace(free_all_blocks=int, total_bytes=int)
    cupy.get_default_memory_pool = cupy.get_default_pinned_memory_pool = lambda: pool
    cuda = _Anything("cupy.cuda")
    vars(cuda).update(Device=Device, Stream=Stream, Event=Event, get_device_id=lambda: 0)
    cuda.alloc_pinned_memory = bytearray
    cuda.get_current_stream, cuda.using_allocator = lambda: stream, lambda allocator: contextlib.nullcontext()
    cuda.runtime = SimpleNamespace(hostRegister=lambda *given: None, hostUnregister=lambda *given: None)
    cupy.cuda = cuda
    names = ("cupy.cuda.cublas", "cupy._util", "cupyx", "cupyx.scipy")
    names += ("cupyx.scipy.linalg", "cupyx.scipy.special")
    sys.modules |= {"cupy": cupy, "cupy.cuda": cuda, **{name: _Anything(name) for name in names}}
    for name in names:
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, sys.modules[name])

    from trainers.kernels import chainer_hooks
    from trainers.kernels.cpu import convolution
    from trainers.kernels.cuda import elementwise, launcher, loss, normalization, pooling, tensors

    spec = importlib.util.spec_from_file_location("on_cpu", Path(__file__).parents[1] / "kernels" / "conftest.py")
    on_cpu = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(on_cpu)
    compiled = on_cpu.Cpu(Path(folder))

    def launch(name, *given):
        counts["launches"] += 1
        compiled.launch(name, *given)

    modules = (tensors, elementwise, loss, normalization, pooling)
    operators = {name: value for module in modules for name, value in vars(module).items()}
    for name in ("convolution", "convolution_data", "convolution_weights"):
        operators[name] = _on_gpu(getattr(convolution, name))
    launcher.device = SimpleNamespace(xp=cupy, launch=launch, rehearses=False)
    chainer_hooks.gpu_operators = SimpleNamespace(**operators)
