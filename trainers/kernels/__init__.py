"""What computes convolutions, normalisation, ReLU and pooling under Chainer's own function nodes.

On the CPU:

    chainer     Chainer's own: im2col through `numpy.pad` and `numpy.tensordot`
    numpy       the same sums by NumPy alone, images with their channels last in memory from end to end
    torch       PyTorch's CPU operators on the same memory, no copies; the default where PyTorch is installed, as by the
                extra `torch`

On a GPU:

    cudnn       cuDNN's convolutions and CUDA kernels of ours, on CuPy's arrays with their channels last in memory;
                needs nvidia-cudnn-frontend and cuDNN, and is the default where they are
    torch       PyTorch's operators on CuPy's arrays by DLPack: a second, independent set
    chainer     Chainer's own: im2col and cuBLAS, kernels of one operation each

Chainer's function nodes stay, and with them type checks and gradients of gradients; our kernels replace what they
compute forward, and the gradients of a convolution. What a kernel does not cover (groups, dilation, cover_all, float16
on the CPU) Chainer computes. Three nodes are ours, and use Chainer's for gradients of gradients: normalisation with a
sum and ReLU (`normalized`), on the CPU the same with the convolution before it (`convolved`), and the loss
(`fused_loss`). Optimizers move all parameters at once (`trainers.optimizers.fused_step`), on the CPU in float32. The
compiled `normalization.c`, `pooling.c` and `steps.c` serve both `numpy` and `torch`, on the threads of each.

`trainers/__init__.py` installs the `HOOKS`, each when its module of Chainer is imported. Which kernels serve is looked
up at each call; the default is the environment's, `KILOBATCH_KERNELS`. Nothing is loaded here, not even NumPy.

Operators of a device enter here, and the hooks by which Chainer's nodes use them. This room imports from runs only.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from recipes.extras import install
from trainers.kernels import chainer_convolution, chainer_hooks
from trainers.runs.memory import keep_freed_memory

KINDS = ("numpy", "torch", "chainer")
GPU_KINDS = ("cudnn", "torch", "chainer")
_MODULES = {"numpy": "trainers.kernels.cpu.operators", "torch": "trainers.kernels.torch"}
_GPU_MODULES = {"cudnn": "trainers.kernels.cuda.operators", "torch": "trainers.kernels.cuda.torch_operators"}
_COMPILED = ("numpy", "torch")  # kinds that also use compiled passes
VARIABLE = "KILOBATCH_KERNELS"  # of the environment: the default kernels of a process


def _hook_convolution(module: ModuleType) -> None:
    in_use()  # chooses the environment's kernels, unless others were chosen
    chainer_convolution.hook_convolution(module)


def _hook_batch_normalization(module: ModuleType) -> None:
    chainer_hooks.hook_batch_normalization(module, lambda: _channels_last_impl()())


@functools.cache
def _channels_last_impl() -> type:
    from trainers.kernels.chainer_nodes import ChannelsLastImpl  # needs all of Chainer, which is only being imported

    return ChannelsLastImpl


HOOKS: tuple[tuple[str, Callable[[ModuleType], None]], ...] = (
    ("chainer.variable", chainer_hooks.hook_gradient_check),
    ("chainer.functions.connection.convolution_2d", _hook_convolution),
    ("chainer.functions.connection.deconvolution_2d", chainer_convolution.hook_deconvolution),
    ("chainer.functions.connection.linear", chainer_hooks.hook_linear),
    ("chainer.functions.activation.relu", chainer_hooks.hook_relu),
    ("chainer.functions.math.basic_math", chainer_hooks.hook_add),
    ("chainer.functions.pooling.max_pooling_nd", chainer_hooks.hook_max_pooling),
    ("chainer.functions.pooling.average_pooling_2d", chainer_hooks.hook_average_pooling),
    ("chainer.functions.normalization.batch_normalization", _hook_batch_normalization),
)

_in_use: str | None = None
_in_use_on_gpu: str | None = None


def use(kind: str | None) -> str:
    """Compute by these kernels on the CPU from now on.

    Args:
        kind: one of `KINDS`; None for what the environment says, else the default.
    Returns:
        the kind.
    Raises:
        ValueError: there is no such kind, or it lacks something on this machine.
    """
    global _in_use
    kind = kind or of_the_cpu(asked())
    if (lacks := missing(kind)) is not None:
        raise ValueError(f"{'; '.join(lacks)} ({VARIABLE})")
    chainer_hooks.operators = None
    if kind != "chainer":
        chainer_hooks.operators = importlib.import_module(_MODULES[kind])
        keep_freed_memory()
    _in_use = kind
    return kind


def of_runs() -> str:
    """The kernels of a run on a CPU: what the environment asks for, else PyTorch's where it is installed."""
    return asked() if os.environ.get(VARIABLE) or missing("torch") else "torch"


def settle() -> None:
    """Before a run on a CPU: change from the default to the kernels of runs, unless PyTorch does not load."""
    if _in_use_on_gpu is None and in_use() == KINDS[0]:
        with contextlib.suppress(ImportError, OSError):  # of PyTorch, and of the loader
            use(of_runs())


def follow(kind: str | None) -> None:
    """Use the kernels of a run on the CPU, where they work here and the environment asks for no others."""
    use(None)
    settle()
    if not os.environ.get(VARIABLE) and kind in KINDS and not missing(kind):
        with contextlib.suppress(ImportError, OSError):  # of PyTorch, and of the loader
            use(kind)


def use_on_gpu(kind: str | None) -> tuple[str, str | None]:
    """Compute by these kernels on GPUs from now on.

    Args:
        kind: one of `GPU_KINDS`; None for what the environment says, else cudnn where it is installed.
    Returns:
        the kind; why it is not cudnn, where that was the default and cannot serve, else None.
    Raises:
        ValueError: there is no such kind, or it lacks something on this machine.
    """
    global _in_use_on_gpu
    kind = kind or (asked() if asked() in GPU_KINDS else None)
    lacks = missing(kind or "cudnn", device="gpu")
    if kind is not None and lacks is not None:
        raise ValueError(f"{'; '.join(lacks)} ({VARIABLE})")
    kind = kind or ("cudnn" if lacks is None else "chainer")
    chainer_hooks.gpu_operators = None
    if kind != "chainer":
        chainer_hooks.gpu_operators = importlib.import_module(_GPU_MODULES[kind])
    if kind == "torch":
        chainer_hooks.gpu_operators.share_memory()
    _in_use_on_gpu = kind
    return kind, lacks and "; ".join(lacks)


def ask_for(kind: str | None) -> None:
    """Make these kernels the default of this process and those that it starts; None leaves the environment as it is.

    Must run before Chainer is imported.
    """
    if kind is not None:
        os.environ[VARIABLE] = kind


def asked() -> str:
    """What the environment asks for, else the CPU's default."""
    return os.environ.get(VARIABLE) or KINDS[0]


def in_use() -> str:
    """The kind of kernels in use: the GPU's, where one was chosen for GPUs."""
    if _in_use is None:
        use(None)
    return _in_use_on_gpu or _in_use


def details() -> dict[str, str]:
    """What the bits of the kernels in use depend on beside versions."""
    if _in_use_on_gpu is not None:
        cuda = importlib.import_module("cupy").cuda
        name = cuda.runtime.getDeviceProperties(cuda.get_device_id())["name"].decode()
        return {"gpu": name, **_libraries(cuda)}
    return {"passes": "compiled"} if has_compiled(in_use()) else {}


def _libraries(cuda: Any) -> dict[str, str]:
    """Versions of the loaded libraries that compute on a GPU, of those that say it; they need not come from packages.

    Args:
        cuda: the module `cupy.cuda`.
    """
    versions: dict[str, Callable[[], Any]] = {
        "driver": lambda: cuda.runtime.driverGetVersion(),
        "runtime": lambda: cuda.runtime.runtimeGetVersion(),
        "nvrtc": lambda: ".".join(map(str, cuda.nvrtc.getVersion())),
        "cublas": lambda: cuda.cublas.getVersion(cuda.device.get_cublas_handle()),
    }
    if _in_use_on_gpu == "cudnn":
        versions["cudnn"] = lambda: importlib.import_module("cudnn").backend_version()
    known = {}
    for library, version in versions.items():
        with contextlib.suppress(Exception):
            known[library] = str(version())
    return known


def described(kind: str) -> str:
    """A kind of CPU kernels in words, with whether its compiled passes are here."""
    try:
        with_them = "with" if has_compiled(kind) else "without"
    except (ImportError, OSError) as error:  # of PyTorch, and of the loader
        return f"{kind}, which does not load: {error}"
    return f"{kind}, {with_them} compiled passes" if kind in _COMPILED else kind


def has_compiled(kind: str) -> bool:
    """Whether compiled passes serve beside these kernels, on as many threads as these have."""
    return kind in _COMPILED and bool(importlib.import_module(_MODULES[kind]).STEPS)


def missing(kind: str, *, device: str = "cpu") -> tuple[str, str] | None:
    """Why kernels cannot serve on a device, and a way out; None where they can."""
    kinds = KINDS if device == "cpu" else GPU_KINDS
    if kind not in kinds:
        return f"no kernels{'' if device == 'cpu' else ' of GPUs'} are called {kind}", f"there are {', '.join(kinds)}"
    if kind == "torch" and importlib.util.find_spec("torch") is None:
        return "torch kernels need PyTorch, not installed", f"{install('torch')}, or take numpy"
    if kind == "cudnn":
        try:
            importlib.import_module("trainers.kernels.cuda.operators")
        except Exception as error:  # of the loader as well, where a library does not fit
            way_out = f"{install('gpu')}, or take chainer"
            return f"cudnn kernels need NVIDIA's front end of cuDNN: {type(error).__name__}: {error}", way_out
    return None


def of_the_cpu(kind: str) -> str:
    """The CPU kernels for a kind that may be one of GPU kernels only."""
    return KINDS[0] if kind in GPU_KINDS and kind not in KINDS else kind
