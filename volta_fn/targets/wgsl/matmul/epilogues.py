"""What becomes of the sums: an *epilogue* writes the code that turns them into results, and stores these.

The plain one stores the sums themselves; `fused` has one that is a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.contractions.index_maps import Contraction
from volta_fn.targets.wgsl.matmul.compute_dtype import Working
from volta_fn.targets.wgsl.matmul.indices import digits, total, walked
from volta_fn.targets.wgsl.scalars.shader import Shader


class SumPlace(NamedTuple):
    """Which sums: the number of the product, the row, and the first of neighbouring columns, as u32."""

    stack: str
    row: str
    column: str


class Results(NamedTuple):
    """How results are written: `store` writes those of the sums of so many neighbouring columns, given as expressions, 1 or 4."""

    together: int
    store: Callable[[SumPlace, Sequence[str]], None]


#: Given a shader, the type of the sums, the contraction, the number of the result's buffer, and how many neighbours there may be together.
Epilogue = Callable[[Shader, Working, Contraction, int, int], Results]


def rounded(dtype: np.dtype) -> Epilogue:
    """The sums themselves, as numbers of a dtype, where the contraction has its results."""

    def declare(f: Shader, work: Working, c: Contraction, number: int, lanes: int) -> Results:
        target, fours = c.target, c.target.fours and lanes == 4
        array = f.buffer(number, dtype, True, target.elements if fours else 0)

        def store(place: SumPlace, sums: Sequence[str]) -> None:
            numbers = [work.number(f, x, dtype) for x in sums]
            ways = [target.stack, target.rows, target.columns]
            at = total(f, target.start, *[walked(f, digits(f, x, way.sizes), way.strides) for x, way in zip(place, ways, strict=True)])
            if fours:
                array.store4(f.let("u32", f"{at} / 4u"), numbers)
            else:
                array.store(at, numbers[0])

        return Results(4 if fours else 1, store)

    return declare
