"""What becomes of the sums: an *epilogue* writes the code that turns them into results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from volta_fn.backends.wgsl.matmul.working import Working
from volta_fn.backends.wgsl.scalars.number import Number
from volta_fn.backends.wgsl.scalars.shader import Shader


class Place(NamedTuple):
    """Which sums: the number of the product, the row, and the first of neighbouring columns, as u32."""

    stack: str
    row: str
    column: str


#: From the sums of neighbouring columns, as numbers of the working dtype, to the results.
Finish = Callable[[Place, Sequence[Number]], list[Number]]

#: Given a shader and the type of the sums, declares what it reads, and tells how sums become results.
Epilogue = Callable[[Shader, Working], Finish]


def rounded(dtype: np.dtype) -> Epilogue:
    """The sums themselves, as numbers of a dtype."""

    def declare(f: Shader, work: Working) -> Finish:
        return lambda _, sums: [work.number(f, x.text, dtype) for x in sums]

    return declare
