"""Windows of segments of signals: Hann's, SciPy's others, or given numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import lazy_imports
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import MissingDependencyError, ShapeError


def window_of(function: str, window: Any, length: int, dtype: np.dtype) -> Array:
    """Return a window of a length: by its name, as SciPy's `get_window`, or as given."""
    if isinstance(window, str) and window == "hann":
        return vnp.asarray((np.sin(np.pi * np.arange(length) / length) ** 2 if length > 1 else np.ones(length)).astype(dtype))
    if isinstance(window, (str, tuple)):
        if not lazy_imports.is_installed("scipy"):
            raise MissingDependencyError(f"{function}: the window {window!r} needs SciPy: pip install scipy; 'hann' does not")
        return vnp.asarray(lazy_imports.load("scipy.signal").get_window(window, length).astype(dtype))
    given = vnp.asarray(window)
    if given.shape != (length,):
        raise ShapeError(f"{function}: a window of {length} numbers is needed, as nperseg says, got shape {given.shape}")
    return given.astype(dtype)
