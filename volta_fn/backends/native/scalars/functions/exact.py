"""Sums and products with what rounding takes away from them."""

from __future__ import annotations

from volta_fn.backends.native.scalars.lanes import Lanes


def exact_product(x: Lanes, y: Lanes | float) -> tuple[Lanes, Lanes]:
    """x y rounded, and what was rounded off."""
    product = x * y
    return product, x.fma(y, -product)


def exact_sum(x: Lanes, y: Lanes) -> tuple[Lanes, Lanes]:
    """x + y rounded, and what was rounded off (Knuth)."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def exact_sum_ordered(x: Lanes | float, y: Lanes) -> tuple[Lanes, Lanes]:
    """The same for |x| >= |y| (Dekker)."""
    total = x + y
    return total, y - (total - x)
