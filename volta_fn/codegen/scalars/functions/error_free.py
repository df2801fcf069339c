"""Sums and products with what rounding takes away from them."""

from __future__ import annotations

from typing import TypeVar

from volta_fn.codegen.scalars.values import Values

V = TypeVar("V", bound=Values)


def exact_product(x: V, y: V | float) -> tuple[V, V]:
    """x y rounded, and what was rounded off."""
    product = x * y
    return product, x.fma(y, -product)


def exact_sum(x: V, y: V) -> tuple[V, V]:
    """x + y rounded, and what was rounded off (Knuth)."""
    total = (x + y).held()
    part = (total - x).held()
    return total, (x - (total - part)) + (y - part)


def exact_sum_ordered(x: V | float, y: V) -> tuple[V, V]:
    """The same for |x| >= |y| (Dekker)."""
    total = (x + y).held()
    return total, y - (total - x)
