"""Residual connections around the parts of a transformer's layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn.core.array import Array


def residual(
    x: Array,
    part: Callable[[Array], tuple[Array, Any]],
    norm: Callable[[Array], Array],
    drop: Callable[[Array], Array],
    norm_first: bool,
) -> tuple[Array, Any]:
    """x + drop(part(norm(x))), or if not `norm_first` norm(x + drop(part(x))); and what else the part gives."""
    added, extra = part(norm(x) if norm_first else x)
    total = x + drop(added)
    return total if norm_first else norm(total), extra
