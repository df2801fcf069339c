"""Patches of results: which of them an invocation of a subgroup computes."""

from __future__ import annotations

from volta_fn.targets.wgsl.matmul.indices import digits, times, total
from volta_fn.targets.wgsl.scalars.shader import Shader


def patch(f: Shader, rows: int, columns: int, across: int) -> tuple[str, str, str, str]:
    """The row and the column of an invocation's patch, `across` of which are side by side, and its own in the patch, which has so many.

    Invocations side by side are two rows by some columns: what eight of them read of either operand is in different banks of memory.
    """
    lane, number = digits(f, f.local, (0, rows * columns))[::-1]
    pair, x, low = digits(f, lane, (0, columns, min(2, rows)))
    y = total(f, times(pair, 2), low)
    below, right = digits(f, number, (0, across))
    return below, right, y, x
