"""The device that a worker computes on: chosen and checked before the ranks start, then taken by each rank."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError, refused
from recipes.extras import install
from recipes.planning.cluster import Cluster
from recipes.reading.read import Reading
from trainers import kernels
from trainers.communicators.mpi_messages import first_message
from trainers.runs.errors import RunFailed, one_line

DEVICES = ("cpu", "gpu", "auto")
_UNCAPTURED = ("torch", "chainer")  # PyTorch may free memory that a graph writes again; CuPy refuses cuBLAS
_TF32_SINCE = 80  # compute capability of NVIDIA's Ampere
_DRIVER = ("/dev/nvidiactl", "/dev/dxg")  # Linux; Linux under Windows


def has_gpu(environment: Mapping[str, str] = os.environ, driver: tuple[str, ...] = _DRIVER) -> bool:
    """Whether this machine has an NVIDIA driver, and CUDA_VISIBLE_DEVICES leaves a GPU; CuPy need not be installed."""
    hidden = environment.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1")
    return not hidden and any(Path(file).exists() for file in driver)


def gpu_trouble() -> tuple[str, str] | None:
    """Why Chainer cannot use a GPU here, and a way out; None if it can.

    Chainer itself falls back to the CPU without a message if a library is missing.
    """
    from chainer.backends import cuda

    if not cuda.available:
        reason = " ".join(str(cuda._resolution_error).strip().splitlines()[-1:])
        return f"Chainer can use no GPU here: {reason}", f"{install('gpu')}, or train on the CPU"
    try:
        if cuda.cuda.runtime.getDeviceCount() > 0:
            return None
        reason = "there is none"
    except cuda.cuda.runtime.CUDARuntimeError as error:
        reason = str(error)
    return f"CuPy finds no GPU: {reason}", "see whether nvidia-smi shows it, or train on the CPU"


def settled(asked: str | None, otherwise: str) -> str:
    """`cpu` or `gpu`; `auto` means gpu if `has_gpu`, even if that GPU then turns out to be unusable.

    Args:
        asked: the value of `--device`.
        otherwise: the default without `--device`.
    Raises:
        RecipeError: `asked` is another word.
    """
    if asked not in (None, *DEVICES):
        raise refused("--device", f"is {asked}", f"write {', '.join(DEVICES[:-1])} or {DEVICES[-1]}")
    return ("gpu" if has_gpu() else "cpu") if asked == "auto" else asked or otherwise


def require_asked(kind: str) -> None:
    """Refuse `gpu` on a machine where Chainer cannot use one.

    Raises:
        RecipeError: with a way out.
    """
    if kind == "gpu" and (trouble := gpu_trouble()):
        raise refused("--device", *trouble)


def require_device(cluster: Cluster, reading: Reading, *, workers: int) -> None:
    """Refuse a device that is not here, and a communicator that does not fit the device or the number of workers.

    A communicator may have a method `misfit(workers)`, which returns why it cannot serve that many, or nothing.

    Args:
        cluster: with the device from `settled`.
        workers: number of workers that will exchange.
        reading: of the cluster's file, for the places of its values.
    Raises:
        RecipeError: with file, line and a way out.
    """
    component, wire = cluster.exchange.communicator, cluster.exchange.wire
    kind, needs_gpu = type(component).__name__, getattr(component, "needs_gpu", False)
    trouble = gpu_trouble() if cluster.device == "gpu" else None
    if trouble:
        reading.refuse(("device",), *trouble)
    elif needs_gpu and cluster.device == "cpu":
        what = f"{kind} sums in the memory of GPUs, and the device is cpu"
        reading.refuse(("exchange", "communicator"), what, "leave communicator out, or train with --device gpu")
    elif needs_gpu and (missing := component.missing()):
        reading.refuse(("exchange", "communicator"), *missing)
    if cluster.cuda_graph and cluster.device == "cpu":
        what = "is true, and the device is cpu"
        reading.refuse(("cuda_graph",), what, "leave cuda_graph out, or train with --device gpu")
    elif cluster.cuda_graph and (asked := kernels.asked()) in _UNCAPTURED:
        what = f"is true, and the kernels are {asked}, whose work is not captured"
        reading.refuse(("cuda_graph",), what, "leave cuda_graph out, or train with --kernels cudnn")
    if hasattr(component, "misfit") and (misfit := component.misfit(workers)):
        reading.refuse(("exchange", "communicator"), f"{kind}: {misfit}", "change it, or the number of workers")
    if wire != "float32" and not getattr(component, "sums_16_bits", True):
        what = f"is {wire}, of which {kind} has no sum"
        reading.refuse(("exchange", "wire"), what, "leave wire out, or take Direct, Ring, HalvingDoubling or Nccl")
    if reading.problems:
        raise RecipeError(reading.problems)


def require_numbers(compute: str, reading: Reading) -> None:
    """Refuse a number format that the installed packages cannot compute with.

    Args:
        compute: the recipe's `precision.compute`.
        reading: of the recipe's file, for the places of its values.
    Raises:
        RecipeError: with file, line and a way out.
    """
    if compute == "bfloat16" and importlib.util.find_spec("ml_dtypes") is None:
        what = "is bfloat16, which NumPy and CuPy have from ml_dtypes, and that is not installed"
        reading.refuse(("precision", "compute"), what, "pip install ml_dtypes, or write mixed16, tf32 or float32")
        raise RecipeError(reading.problems)


_gpu_number: int | None = None  # this process's number among all that share the machine's GPUs, if several runs do


def choose_gpu(number: int) -> None:
    """Make the runs of this process compute on GPU `number` modulo the number of GPUs, whatever their local rank."""
    global _gpu_number
    _gpu_number = number


def chosen_gpu(environment: Mapping[str, str] = os.environ) -> str:
    """The GPU of `choose_gpu` as CUDA_VISIBLE_DEVICES names it, or its number; empty if this process has none."""
    visible, number = environment.get("CUDA_VISIBLE_DEVICES", "").split(","), _gpu_number or 0
    name = visible[number % len(visible)] or (str(number) if has_gpu(environment) else "")
    return "" if name == "-1" else name


def local_rank_of(mpi: Any) -> int:
    """This process's rank among those of `mpi` on its machine.

    Bytes on the wire: those of MPI_Comm_split_type.
    """
    from mpi4py import MPI

    node = mpi.Split_type(MPI.COMM_TYPE_SHARED, mpi.rank)
    local_rank = node.rank
    node.Free()
    return local_rank


def take_device(kind: str, mpi: Any) -> Any:
    """Make this worker's device current: the CPU, or the GPU of its local rank modulo their number (see `choose_gpu`).

    Bytes on the wire: about 40 from each worker to each, and those of `local_rank_of` and `first_message`.

    Args:
        kind: cpu or gpu.
        mpi: communicator of all workers, which call this together.
    Returns:
        Chainer's device.
    Raises:
        RunFailed: on all workers: they ask for different kinds of device, or a test computation on one's GPU fails.
    """
    import chainer

    kinds_and_hosts = mpi.allgather((kind, socket.gethostname()))
    (first_kind, first_host), *_ = kinds_and_hosts
    if odd := sorted({host for other, host in kinds_and_hosts if other != first_kind}):
        raise RunFailed(
            f"rank 0 on {first_host} computes on {first_kind} and {', '.join(odd)} does not: say --device cpu or gpu"
        )
    if kind == "cpu":
        return chainer.get_device("@numpy")
    device, trouble = _tested_gpu(local_rank_of(mpi) if _gpu_number is None else _gpu_number)
    if (first := first_message(mpi, trouble)) is not None:
        rank, reason = first
        raise RunFailed(f"rank {rank} on {kinds_and_hosts[rank][1]} cannot compute on its GPU: {reason}")
    return device


def _tested_gpu(number: int) -> tuple[Any, str | None]:
    """The GPU of this number modulo their count, made current, and in words what is wrong with it, else None."""
    import chainer

    try:
        device = chainer.get_device(f"@cupy:{number % chainer.backends.cuda.cuda.runtime.getDeviceCount()}")
        device.use()
        kernels.use_on_gpu(None)
        ones = device.xp.ones((2, 2), dtype="float32")
        computed = float((ones @ ones).sum())  # by a kernel that is compiled here, and by cuBLAS
    except Exception as error:  # of any kind: a missing library must show now, not in the middle of a run
        return None, one_line(error)
    return device, None if computed == 8.0 else f"{device} computes {computed:g} where 8 is right"


def gpu_facts(device: Any) -> dict[str, str]:
    """A worker's GPU, for the run's record; empty on a CPU."""
    if device.name == "@numpy":
        return {}
    properties = device.xp.cuda.runtime.getDeviceProperties(device.device.id)
    return {"gpu": f"{properties['name'].decode()} {device.device.pci_bus_id}"}


def notes_on(device: Any, compute: str = "float32") -> list[str]:
    """Lines for the user about rank 0's device, and about `precision.compute` if the device does not use it."""
    permitted = "precision.compute is tf32, a permission that only GPUs since Ampere use: this is float32"
    if device.name == "@numpy":
        return [permitted] if compute == "tf32" else []
    too_old = int(device.device.compute_capability) < _TF32_SINCE
    kind, why_not = kernels.use_on_gpu(None)
    slow = "" if kind != "chainer" else ", convolutions go by im2col and cuBLAS" + (f": {why_not}" if why_not else "")
    notes = [f"rank 0 computes on {gpu_facts(device)['gpu']}, {kind} kernels{slow}"]
    return [*notes, permitted] if compute == "tf32" and too_old else notes
