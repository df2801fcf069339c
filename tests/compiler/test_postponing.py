"""The order of small kernels: side by side, and never behind what reads them."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as vf
from tests.compiler.kernels.oracle import partition_of
from volta_fn.compiler.kernels.emit import Fused, Item
from volta_fn.compiler.postponing import postponed

X = np.ones((4, 4), np.float32)


def order(function: Any, *args: Any) -> list[str]:
    """Which items there are in which order: sums by the dimension that they keep, everything else by its primitive's name."""
    items = postponed(partition_of(function, *args).items, {}, lambda kernel: kernel.outer < len(kernel.sizes))
    check(items)
    return [str(item.results[0].aval.shape) if isinstance(item, Fused) else item.primitive.name for item in items]


def check(items: list[Item]) -> None:
    """Nobody reads what is made later."""
    made = {v: n for n, item in enumerate(items) for v in (item.results if isinstance(item, Fused) else item.outvars)}
    for n, item in enumerate(items):
        assert all(made.get(v, -1) < n for v in (item.operands if isinstance(item, Fused) else item.invars) if v in made)


def test_sums_wait_until_the_end() -> None:
    def function(x: Any) -> Any:
        y = vf.lax.sort(x)
        first = y.sum(0)
        z = vf.lax.sort(y)
        return first, z.sum(0), z

    assert order(function, X) == ["sort", "sort", "(4,)", "(4,)"]


def test_one_that_is_needed_comes_with_those_that_wait_for_as_few() -> None:
    def function(x: Any) -> Any:
        total = x.sum(0)
        extreme = x[:2].max(1)
        again = total.sum()
        return vf.lax.sort(total), extreme, again

    assert order(function, X) == ["(4,)", "(2,)", "sort", "()"]
