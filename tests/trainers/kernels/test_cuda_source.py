"""NVIDIA's own compiler and assembler make of the CUDA source what was meant; no GPU is needed.

.venv/bin/pip install nvidia-cuda-nvrtc nvidia-cuda-nvdisasm
"""

import ctypes
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from trainers.kernels.cuda import launcher

KINDS = [("e", 8), ("e", 1), ("E", 8), ("f", 4), ("f", 1), ("d", 2), ("d", 1)]
STREAMS = ("moments", "normalized", "gradient_sums", "input_gradient")  # nine tenths of the bytes of our kernels
WITH_FULL_SMS = ("relu", "relu_gradient", "add", "add_to")  # 2,048 threads of an SM hide what one of them waits for
NEEDED_BYTES = 24 * 1024  # in flight on each of 132 SMs for 4.6 TB/s at a latency of 0.7 us, which is assumed
SM_REGISTERS, SM_BLOCKS = 1 << 16, 8  # of sm_90; blocks of 256 threads


def from_nvidia(pattern):
    """A file of any of NVIDIA's packages."""
    found = importlib.util.find_spec("nvidia")
    folders = list(found.submodule_search_locations) if found else []
    return next((str(file) for folder in folders for file in Path(folder).glob(pattern)), None)


def compiled(kind, width):
    """The kernels of one type as PTX and as a binary for sm_90."""
    library = from_nvidia("*/lib/libnvrtc.so.*")
    if library is None:
        pytest.skip("needs NVRTC, as nvidia-cuda-nvrtc, cupy-cuda13x[ctk] or PyTorch bring it")
    compiler, program, size = ctypes.CDLL(library), ctypes.c_void_p(), ctypes.c_size_t()
    options = [option.encode() for option in ("--std=c++17", "-arch=sm_90", *launcher.definitions(kind, width))]

    def result(word):
        getattr(compiler, f"nvrtcGet{word}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(compiler, f"nvrtcGet{word}")(program, buffer)
        return buffer.raw

    compiler.nvrtcCreateProgram(ctypes.byref(program), launcher.source().encode(), b"kernels.cu", 0, None, None)
    given = (ctypes.c_char_p * len(options))(*options)
    assert compiler.nvrtcCompileProgram(program, len(options), given) == 0, result("ProgramLog").decode()
    return result("PTX").decode(), result("CUBIN")


def test_the_source_compiles_for_hopper_and_kernels_keep_enough_bytes_in_flight(tmp_path):
    disassembler = shutil.which("nvdisasm") or from_nvidia("*/bin/nvdisasm")
    if disassembler is None:
        pytest.skip("needs nvdisasm, as nvidia-cuda-nvdisasm brings it")
    for kind, width in KINDS:
        text, binary = compiled(kind, width)
        kernels = re.split(r"\.visible \.entry ", text)[1:]
        assert len(kernels) == 28
        assert not any(".local" in kernel for kernel in kernels)
        if width > 1:
            (tmp_path / "kernels.cubin").write_bytes(binary)
            assert_streams_well(disassembler, tmp_path / "kernels.cubin")


def assert_streams_well(disassembler, binary):
    """Nothing spills, and what streams over arrays has enough loads in flight."""
    text = subprocess.run([disassembler, "-c", binary], capture_output=True, text=True, check=True).stdout
    kernels = dict(re.findall(r"\.section\s+\.text\.(\w+),(.*?)(?=\.section|\Z)", text, re.DOTALL))
    assert len(kernels) == 28
    for name, kernel in kernels.items():
        lines = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", kernel)
        if name != "gradient_sums":  # which is faster with three blocks and a few registers in memory
            assert not [line for line in lines if re.search(r"\b(LDL|STL)\b", line)], f"{name} spills registers"
        if name in STREAMS + WITH_FULL_SMS:
            registers = 1 + max(int(number) for number in re.findall(r"\bR(\d+)\b", kernel))
            blocks = min(SM_BLOCKS, SM_REGISTERS // (-(-registers // 8) * 8 * launcher.THREADS))
            in_flight = blocks * launcher.THREADS * 16 * loads_in_flight(lines)
            assert in_flight >= NEEDED_BYTES, f"{name}: {in_flight} bytes, {registers} registers"


def loads_in_flight(lines):
    """The most loads of 16 bytes that are issued before the first of their values is read."""
    waiting, most = set(), 0
    for line in lines:
        load = re.match(r"(?:@\S+ )?LDG\S*\.128\S* R(\d+), (.*)", line)
        read = {int(number) for number in re.findall(r"\bR(\d+)\b", load[2] if load else line)}
        waiting = {first for first in waiting if not read & set(range(first, first + 4))}
        if load:
            waiting.add(int(load[1]))
        most = max(most, len(waiting))
    return most


def test_loads_in_flight_are_counted_up_to_their_first_use():
    one = "LDG.E.128.CONSTANT R4, desc[UR4][R2.64]"
    other = "@!P0 LDG.E.128 R8, desc[UR4][R2.64]"
    assert loads_in_flight([one, "IADD3 R20, R21, R22, RZ", other, "FADD R1, R9, R5"]) == 2
    assert loads_in_flight([one, "FADD R1, R6, R6", other]) == 1
