"""Define epilogues, which make results of sums and store them.

The plain one stores the sums themselves; `fused` has one that is a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.contractions.index_maps import IndexedContraction
from volta_fn.targets.wgsl.matmul.compute_dtype import Working
from volta_fn.targets.wgsl.matmul.indices import digits, total, walked
from volta_fn.targets.wgsl.scalars.shader import Shader


class SumIndex(NamedTuple):
    """The position of sums: product, row, and the first column, as u32."""

    stack: str
    row: str
    column: str


class ResultStore(NamedTuple):
    """How results are stored: `store` takes the sums of 1 or 4 consecutive columns."""

    together: int
    store: Callable[[SumIndex, Sequence[str]], None]


#: Given a shader, the type of the sums, the contraction, the number of the result's buffer, and the most consecutive columns.
Epilogue = Callable[[Shader, Working, IndexedContraction, int, int], ResultStore]


def rounded(dtype: np.dtype) -> Epilogue:
    """Return the epilogue that stores the sums as numbers of a dtype."""

    def declare(f: Shader, work: Working, c: IndexedContraction, number: int, lanes: int) -> ResultStore:
        target, fours = c.target, c.target.fours and lanes == 4
        array = f.buffer(number, dtype, True, target.elements if fours else 0)

        def store(index: SumIndex, sums: Sequence[str]) -> None:
            numbers = [work.number(f, x, dtype) for x in sums]
            ways = [target.stack, target.rows, target.columns]
            at = total(f, target.start, *[walked(f, digits(f, x, way.sizes), way.strides) for x, way in zip(index, ways, strict=True)])
            if fours:
                array.store4(f.let("u32", f"{at} / 4u"), numbers)
            else:
                array.store(at, numbers[0])

        return ResultStore(4 if fours else 1, store)

    return declare
