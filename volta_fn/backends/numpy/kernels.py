"""Which NumPy function evaluates which primitive, for the families whose kernels are too long to stand at the declaration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn.core.primitive import PRIMITIVES

KERNELS: dict[str, Callable[..., Any]] = {}

for _name, _function in KERNELS.items():
    PRIMITIVES[_name].evaluate = _function
