"""Which NumPy function evaluates which primitive, for the families whose kernels are too long to stand at the declaration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn.backends.numpy import control_flow as _control_flow  # noqa: F401  # registers its kernels
from volta_fn.backends.numpy import contraction, indexing
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.primitives import contraction as _contraction  # noqa: F401  # declared before their kernels are attached
from volta_fn.primitives import dynamic_slicing, scatter  # noqa: F401  # declared before their kernels are attached

KERNELS: dict[str, Callable[..., Any]] = {
    # contraction
    "dot_general": contraction.dot_general,
    # indexing
    "gather": indexing.gather,
    "scatter": indexing.scatter,
    "scatter_add": indexing.scatter_add,
    "scatter_mul": indexing.scatter_mul,
    "scatter_min": indexing.scatter_min,
    "scatter_max": indexing.scatter_max,
    "dynamic_slice": indexing.dynamic_slice,
    "dynamic_update_slice": indexing.dynamic_update_slice,
}

for _name, _function in KERNELS.items():
    PRIMITIVES[_name].evaluate = _function
