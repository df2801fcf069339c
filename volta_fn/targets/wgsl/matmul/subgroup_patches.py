"""Arrange the invocations of a subgroup in patches of results."""

from __future__ import annotations

from volta_fn.targets.wgsl.matmul.indices import digits, times, total
from volta_fn.targets.wgsl.scalars.shader import Shader


def patch(f: Shader, rows: int, columns: int, across: int) -> tuple[str, str, str, str]:
    """Return the row and column of an invocation's patch, and its own in the patch.

    `across` patches are next to each other; each has `rows` by `columns` invocations.
    """
    lane, number = digits(f, f.local, (0, rows * columns))[::-1]
    pair, x, low = digits(f, lane, (0, columns, min(2, rows)))
    y = total(f, times(pair, 2), low)
    below, right = digits(f, number, (0, across))
    return below, right, y, x
