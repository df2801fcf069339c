"""Decisions on values that may be traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn import lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, ConcreteArray


def branch(pred: Array, on_true: Callable[[], Any], on_false: Callable[[], Any]) -> Any:
    """``on_true() if pred else on_false()``: at once where `pred` is known, else by `lax.cond`."""
    if isinstance(pred, ConcreteArray):
        return on_true() if bool(pred) else on_false()
    return lax.cond(pred, on_true, on_false)


def where(pred: Array, on_true: Any, on_false: Any) -> Any:
    """The leaves of one tree or of another of the same structure."""
    return tree.map(lambda a, b: vnp.where(pred, a, b), on_true, on_false)
