"""Functions that make a view again, from its layout in memory.

Some functions of several primitives, such as `rot90`, compute nothing: their result is a view of their argument. Where the elements of an
array of the same type lie one after another, the view of it has the same offset and strides, so it needs none of the function's steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn.core.array import ConcreteArray, wrap
from volta_fn.core.dispatch import available


def repeat_view(function: Callable[..., Any], result: Any, operand: ConcreteArray) -> Callable[[ConcreteArray], Any] | None:
    """Return a function like `function`, whose result for `operand` is a view of it.

    None if `result` is no such view, or one that NumPy cannot make by its layout.
    """
    if type(result) is not ConcreteArray or not _is_by_layout(result._buffer, operand._buffer):
        return None
    shape, dtype, strides, spec = result._buffer.shape, result._buffer.dtype, result._buffer.strides, result._spec
    offset, ndarray, built_ins = _address(result._buffer) - _address(operand._buffer), np.ndarray, available()
    if built_ins is not None:
        return built_ins.of_view(result._buffer, offset, spec, function)

    def view(x: ConcreteArray) -> Any:
        buffer = x._buffer
        if not buffer.flags.c_contiguous:
            return function(x)
        return wrap(ndarray(shape, dtype, buffer, offset, strides), spec)

    return view


def _is_by_layout(view: Any, base: Any) -> bool:
    """Return True if one NumPy array is part of the other, in dtypes of NumPy's own."""
    builtin = isinstance(view, np.ndarray) and view.dtype.isbuiltin == 1 and base.dtype.isbuiltin == 1
    return builtin and view is not base and view.size > 0 and base.flags.c_contiguous and np.may_share_memory(view, base)


def _address(buffer: np.ndarray) -> int:
    address: int = buffer.__array_interface__["data"][0]
    return address
