"""NVIDIA's own compiler takes the CUDA source, and makes of it what was meant: no GPU is needed."""

import ctypes
import re
from pathlib import Path

import pytest

from trainers.kernels.cuda import launcher

NARROW = ("totals", "slopes", "cross_entropy", "mean_loss", "not_finite", "narrowed", "gathered")
NARROW += ("momentum", "adam", "rmsprop", "ratios", "finish", "moved_averages")


def nvrtc():
    """NVIDIA's run-time compiler, of any package that has brought it; needs no GPU."""
    import importlib.util

    actual = importlib.util.find_spec("nvidia")
    folders = list(actual.submodule_search_locations) if actual else []
    files = [file for folder in folders for file in Path(folder).glob("*/lib/libnvrtc.so.*")]
    if not files:
        pytest.skip("needs NVRTC, as cupy-cuda13x[ctk] or PyTorch bring it")
    return ctypes.CDLL(str(files[0]))


@pytest.mark.parametrize(("kind", "width"), [("e", 8), ("e", 1), ("E", 8), ("f", 4), ("f", 1), ("d", 2), ("d", 1)])
def test_the_source_compiles_for_hopper_with_wide_accesses_and_no_local_memory(kind, width):
    compiler, program, size = nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    options = [option.encode() for option in ("--std=c++17", "-arch=sm_90", *launcher.definitions(kind, width))]

    def text(word):
        getattr(compiler, f"nvrtcGet{word}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(compiler, f"nvrtcGet{word}")(program, buffer)
        return buffer.value.decode()

    compiler.nvrtcCreateProgram(ctypes.byref(program), launcher.source().encode(), b"kernels.cu", 0, None, None)
    given = (ctypes.c_char_p * len(options))(*options)
    assert compiler.nvrtcCompileProgram(program, len(options), given) == 0, text("ProgramLog")
    kernels = re.split(r"\.visible \.entry ", text("PTX"))[1:]
    assert len(kernels) == 28
    for kernel in kernels:
        assert ".local" not in kernel
        accesses = re.findall(r"(?:ld|st)\.global(?:\.nc)?\.(v\d\.)?", kernel)
        assert width == 1 or kernel.startswith(NARROW) or any(accesses)
