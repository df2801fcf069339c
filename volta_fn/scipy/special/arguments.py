"""Promotion of the arguments of special functions that are composed of others."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from volta_fn import dtypes, lax
from volta_fn.core.array import Array
from volta_fn.errors import DTypeError
from volta_fn.jit.fused import fused
from volta_fn.primitives.declare import promote_args

Function = Callable[..., Array]


def composite(function: Function) -> Function:
    """Let a function of float arrays of one dtype take arrays and scalars of any.

    It is `fused`. Integers become floats. float16 and bfloat16 compute in float32, so that rounding errors do not accumulate.
    """
    names = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]

    @fused
    @functools.wraps(function)
    def promoting(*args: Any, **options: Any) -> Array:
        while len(args) < len(names) and names[len(args)] in options:
            args += (options.pop(names[len(args)]),)
        if not args:
            return function(**options)  # which says what is missing
        name = function.__name__.lstrip("_")
        values = promote_args(name, args, dtypes.FLOATS)
        dtype = values[0].dtype
        if dtype in dtypes.COMPLEX:
            raise DTypeError(f"{name} is not defined for {dtype.name}; it takes real numbers")
        wide = dtypes.accumulator(dtype)
        if dtype == wide:
            return function(*values, **options)
        return lax.convert_element_type(function(*[lax.convert_element_type(v, wide) for v in values], **options), dtype)

    return promoting
