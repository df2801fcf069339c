"""How a special function made of other functions takes its arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from volta_fn import dtypes, lax
from volta_fn.core.array import Array
from volta_fn.primitives.declare import promote_args

Function = Callable[..., Array]


def composite(function: Function) -> Function:
    """`function`, which is one of real floating arrays of one dtype, as one of arrays and scalars of any.

    Integers become floats. float16 and bfloat16 compute in float32, so that errors do not pile up from step to step.
    """

    @functools.wraps(function)
    def promoting(*args: Any, **options: Any) -> Array:
        values = promote_args(function.__name__.lstrip("_"), args, dtypes.FLOATS)
        dtype = values[0].dtype
        wide = dtypes.accumulator(dtype)
        if dtype == wide:
            return function(*values, **options)
        return lax.convert_element_type(function(*[lax.convert_element_type(v, wide) for v in values], **options), dtype)

    return promoting
