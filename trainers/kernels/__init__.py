"""What computes convolutions, normalisation, ReLU and pooling on the CPU, under Chainer's own function nodes.

    chainer     Chainer's own: im2col through `numpy.pad` and `numpy.tensordot`
    numpy       the same sums by NumPy alone, images with their channels last in memory from end to end; the default
    torch       PyTorch's CPU operators on the same memory, no copies; needs the extra `kilobatch[torch]`

Only what a node computes forward is replaced. Chainer's gradients are nodes themselves, so gradients of gradients and
type checks stay, and what a kernel does not cover (groups, dilation, cover_all, float16, GPUs) is Chainer's as before.

`SEAMS` are armed by `trainers/__init__.py`, and wait for the modules of Chainer they belong to. Which kernels serve is
looked up at each call, first in the environment: `KILOBATCH_KERNELS`. Nothing is loaded here, not even NumPy.
"""

from __future__ import annotations

import importlib
import importlib.util
import os

from trainers.kernels import seams
from trainers.kernels.seams import SEAMS
from trainers.memory import keep_what_is_freed

__all__ = ["KINDS", "SEAMS", "VARIABLE", "ask_for", "asked", "in_use", "missing", "use"]

KINDS = ("numpy", "torch", "chainer")
VARIABLE = "KILOBATCH_KERNELS"  # of the environment: the kernels of a process that was not told otherwise

_in_use: str | None = None


def use(kind: str | None) -> str:
    """Compute by these kernels from now on.

    Args:
        kind: one of `KINDS`; None for what the environment says, else the default.
    Returns:
        the kind.
    Raises:
        ValueError: there are none of this kind, or not here.
    """
    global _in_use
    kind = kind or asked()
    if (lacks := missing(kind)) is not None:
        raise ValueError(f"{'; '.join(lacks)} ({VARIABLE})")
    seams.operators = None
    if kind != "chainer":
        seams.operators = importlib.import_module(f"trainers.kernels.{kind}_operators")
        keep_what_is_freed()
    _in_use = kind
    return kind


def ask_for(kind: str | None) -> None:
    """Have this process and those that it starts compute by these kernels; None leaves that to the environment.

    Must run before Chainer is imported.
    """
    if kind is not None:
        os.environ[VARIABLE] = kind


def asked() -> str:
    """What the environment asks for, else the default."""
    return os.environ.get(VARIABLE) or KINDS[0]


def in_use() -> str:
    """The kind of kernels that serve."""
    return _in_use or use(None)


def missing(kind: str) -> tuple[str, str] | None:
    """Why kernels cannot serve here, and a way out; None where they can."""
    if kind not in KINDS:
        return f"no kernels are called {kind}", f"there are {', '.join(KINDS)}"
    if kind == "torch" and importlib.util.find_spec("torch") is None:
        return "torch kernels need PyTorch, which is not installed", 'pip install "kilobatch[torch]", or take numpy'
    return None
