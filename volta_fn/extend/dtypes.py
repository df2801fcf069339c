"""Dtypes and elementwise functions by the names of `jax.dtypes` and `jax.lax`."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.dtypes import ExtendedDType as ExtendedDType
from volta_fn.dtypes import bfloat16 as bfloat16
from volta_fn.dtypes import finfo as finfo
from volta_fn.dtypes import float0 as float0
from volta_fn.dtypes import iinfo as iinfo
from volta_fn.dtypes import promote_types as promote_types
from volta_fn.errors import DTypeError
from volta_fn.errors import TypePromotionError as TypePromotionError
from volta_fn.random.keys import KeyType
from volta_fn.random.keys import extended as extended
from volta_fn.random.keys import prng_key as prng_key

DType = np.dtype | ExtendedDType


def supports_inf(dtype: Any) -> bool:
    """Return True if a floating dtype has infinities."""
    return bool(np.isinf(np.asarray(np.inf, dtypes.as_dtype(dtype)).astype(np.float32)))


def result_type(*arrays_and_dtypes: Any, return_weak_type_flag: bool = False) -> Any:
    """Return the dtype that arrays, dtypes and numbers combine to.

    Keys combine with keys of their type alone. With `return_weak_type_flag` the result is that dtype, and if it gives way to others.

    >>> result_type(vf.random.key(0)), result_type("int8", 1.0)
    (key<fry>, dtype('float32'))
    """
    if return_weak_type_flag:
        return result_type(*arrays_and_dtypes), all(dtypes.dtype_and_weak_type(x)[1] for x in arrays_and_dtypes)
    operand_dtypes = [getattr(x, "dtype", x) for x in arrays_and_dtypes]
    if not any(isinstance(dtype, KeyType) for dtype in operand_dtypes):
        return dtypes.result_type(*arrays_and_dtypes)
    if len(set(operand_dtypes)) > 1:
        raise DTypeError(f"result_type: keys combine with keys of their type alone, got {', '.join(map(str, operand_dtypes))}")
    return operand_dtypes[0]


def issubdtype(a: Any, b: Any) -> bool:
    """Return True if a dtype is, or is of the kind, `b`.

    >>> import jax.numpy as jnp
    >>> issubdtype(vf.random.key(0).dtype, prng_key), issubdtype("float32", np.floating)
    (True, True)
    """
    if isinstance(a, type) and issubclass(a, extended):
        return isinstance(b, type) and issubclass(a, b)
    if isinstance(a, KeyType):
        return b in (extended, prng_key, np.generic) or a == b
    if isinstance(b, KeyType) or (isinstance(b, type) and issubclass(b, extended)):
        return False
    if isinstance(a, type) and a in _KINDS:
        return isinstance(b, type) and issubclass(a, b)
    return dtypes.issubdtype(a, b)


#: NumPy's kinds, which are no dtypes.
_KINDS = (
    np.generic, np.number, np.inexact, np.integer, np.signedinteger, np.unsignedinteger, np.floating, np.complexfloating, np.character,
    np.flexible,
)  # fmt: skip


def canonicalize_dtype(dtype: Any, allow_extended_dtype: bool = False) -> Any:
    """Return the dtype that arrays have where this one is asked for.

    None is NumPy's default.

    >>> canonicalize_dtype(int)
    dtype('int32')
    """
    return dtype if isinstance(dtype, KeyType) else dtypes.as_dtype(np.dtype(None) if dtype is None else dtype)


def scalar_type_of(x: Any) -> type:
    """Return the type of Python's numbers that a value is like.

    >>> scalar_type_of(np.float32(1))
    <class 'float'>
    """
    dtype, _ = dtypes.dtype_and_weak_type(x)
    kinds = ((dtypes.BOOL, bool), (dtypes.INTEGERS | dtypes.STORAGE_INTEGERS, int), (dtypes.COMPLEX, complex))
    return next((kind for members, kind in kinds if dtype in members), float)


def itemsize_bits(dtype: Any) -> int:
    """Return the number of bits of an element.

    >>> itemsize_bits("int4"), itemsize_bits("float32")
    (4, 32)
    """
    element_type = dtypes.as_dtype(dtype)
    if element_type in dtypes.STORAGE_INTEGERS:
        return int(dtypes.iinfo(element_type).bits)
    return int(dtypes.finfo(element_type).bits) if element_type in dtypes.STORAGE_FLOATS else element_type.itemsize * 8


# Functions of `jax.lax` whose dtypes differ from those of `volta_fn.lax`.


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
