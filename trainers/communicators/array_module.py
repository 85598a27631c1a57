"""The library of an array: NumPy's and CuPy's formulas are the same, their memory is not."""

from __future__ import annotations

from typing import Any

import numpy as np


def array_module(values: Any) -> Any:
    """NumPy, or CuPy for an array in the memory of a GPU."""
    if isinstance(values, np.ndarray):
        return np
    import cupy

    return cupy
