"""Functions of `jax.lax` whose dtypes differ from those of `volta_fn.lax`."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array, as_value


def conj(x: Any) -> Array:
    """Return the complex conjugate, as a complex array even for real numbers.

    >>> conj(2.0)
    Array(2.+0.j, dtype=complex64, weak_type=True)
    """
    value = as_value(x)
    if value.dtype in dtypes.COMPLEX:
        return lax.conj(value)
    return lax.convert_element_type(value, dtypes.promote_types(value.dtype, np.complex64), weak_type=value.weak_type)


def mul(x: Any, y: Any, *, out_dtype: Any = None) -> Array:
    """Return the product, computed in `out_dtype` if that is given.

    >>> mul(np.int8(100), np.int8(100), out_dtype="int32")
    Array(10000, dtype=int32)
    """
    if out_dtype is None:
        return lax.mul(x, y)
    return lax.mul(lax.convert_element_type(x, out_dtype), lax.convert_element_type(y, out_dtype))


mul.primitive = lax.mul.primitive  # type: ignore[attr-defined]  # by which reductions know it


def convert_element_type(operand: Any, new_dtype: Any) -> Array:
    """Return the elements as `new_dtype`; Python's integers wrap around.

    >>> convert_element_type(2**32 + 1, "int32")
    Array(1, dtype=int32)
    """
    return lax.convert_element_type(operand, new_dtype)
