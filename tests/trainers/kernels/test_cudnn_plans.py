"""Which failures of cuDNN's front end leave a shape without a plan; the front end and CuPy are stand-ins."""

import importlib.util
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

import trainers.kernels.cuda

FORWARD = ("forward", "f", ((2, 4, 8, 8), (4, 4, 3, 3), (2, 4, 8, 8)), (1, 1), (1, 1), (False, False), 0, 0)
FULL = "No valid execution plans built. CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"


@pytest.fixture
def convolution(monkeypatch):
    """The module over stand-ins; `build_plans` of its graphs has the effects that it is given."""
    front_end = MagicMock()
    front_end.cudnnGraphNotSupportedError = type("cudnnGraphNotSupportedError", (Exception,), {})
    monkeypatch.setitem(sys.modules, "cudnn", front_end)
    monkeypatch.setitem(sys.modules, "cupy", MagicMock())
    file = Path(trainers.kernels.cuda.__file__).parent / "convolution.py"
    spec = importlib.util.spec_from_file_location("convolution_over_stand_ins", file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["RuntimeError", "cudnnGraphNotSupportedError"])
def test_memory_that_runs_out_while_a_plan_is_built_leaves_its_shape_for_the_next_call(convolution, kind):
    error = getattr(convolution.cudnn, kind)(FULL) if kind.startswith("cudnn") else RuntimeError(FULL)
    convolution.cudnn.pygraph().build_plans.side_effect = [error, None]
    with pytest.raises(MemoryError, match="DEVICE_ALLOCATION_FAILED"):
        convolution._plan(*FORWARD)
    assert convolution._plan(*FORWARD) is not None


def test_a_shape_that_cudnn_does_not_support_is_asked_for_once(convolution):
    unsupported = convolution.cudnn.cudnnGraphNotSupportedError("No valid engine configs")
    convolution.cudnn.pygraph().build_plans.side_effect = [unsupported, None]
    assert convolution._plan(*FORWARD) is convolution._plan(*FORWARD) is None
