"""What kernels for GPUs are written with, as Triton has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.refs import Ref
from volta_fn.dtypes import INTEGERS, promote_types
from volta_fn.errors import UnsupportedError
from volta_fn.experimental.pallas.kernels import masked_read, masked_write
from volta_fn.experimental.pallas.specs import CompilerParams as CompilerParamsBase
from volta_fn.numpy.products import dot as _dot
from volta_fn.primitives.array_operations.ref_views import RefView
from volta_fn.primitives.elementwise import arithmetic
from volta_fn.primitives.elementwise.selection import bitwise_and, bitwise_or, bitwise_xor, eq, select


@dataclass(frozen=True)
class TritonCompilerParams(CompilerParamsBase):
    """Parameters of Triton's compiler, which have no effect here."""

    num_warps: int | None = None
    num_stages: int | None = None


CompilerParams = TritonCompilerParams


def load(
    ref: Ref | RefView,
    *,
    mask: Any = None,
    other: Any = None,
    cache_modifier: str | None = None,
    eviction_policy: str | None = None,
    volatile: bool = False,
) -> Array:
    """Return the elements of a reference or view, and `other` where `mask` is False.

    A block at a traced position is not moved inside the array: what lies beyond is NaN, the smallest integer or False. The other arguments
    are accepted for compatibility.
    """
    return masked_read(ref, mask, other)


def store(ref: Ref | RefView, val: Any, *, mask: Any = None, eviction_policy: str | None = None) -> None:
    """Write elements where `mask` is True; what lies beyond the array is dropped."""
    masked_write(ref, val, mask)


def _atomic(name: str, verb: str, combine: Callable[[Array, Array], Array] | None, method: str = "set") -> Callable[..., Array]:
    def atomic(x_ref_or_view: Ref | RefView, idx: Any, val: Any, *, mask: Any = None) -> Array:
        is_whole = idx is None or (isinstance(idx, tuple) and not idx)
        return masked_write(x_ref_or_view.at[... if is_whole else idx], val, mask, combine, method)

    atomic.__name__ = atomic.__qualname__ = name
    atomic.__doc__ = f"{verb} the elements at `idx` where `mask` is True; return the old ones."
    return atomic


atomic_add = _atomic("atomic_add", "Add `val` to", arithmetic.add, "add")
atomic_max = _atomic("atomic_max", "Keep the larger of `val` and", arithmetic.max, "max")
atomic_min = _atomic("atomic_min", "Keep the smaller of `val` and", arithmetic.min, "min")
atomic_and = _atomic("atomic_and", "Combine by bitwise and `val` and", bitwise_and)
atomic_or = _atomic("atomic_or", "Combine by bitwise or `val` and", bitwise_or)
atomic_xor = _atomic("atomic_xor", "Combine by bitwise exclusive or `val` and", bitwise_xor)
atomic_xchg = _atomic("atomic_xchg", "Replace by `val`", None)


def atomic_cas(ref: Ref | RefView, cmp: Any, val: Any) -> Array:
    """Replace a scalar by `val` if it equals `cmp`; return the old one."""
    expected = as_value(cmp).astype(ref.dtype)
    return masked_write(ref, val, combine=lambda old, new: select(eq(old, expected), new, old))


def dot(a: Any, b: Any, trans_a: bool = False, trans_b: bool = False, allow_tf32: bool | None = None, precision: Any = None) -> Array:
    """Return the product of two matrices, each transposed if asked for.

    Sums are float32, of integers int32.
    """
    left, right = as_value(a), as_value(b)
    left, right = left.T if trans_a else left, right.T if trans_b else right
    dtype = np.int32 if promote_types(left.dtype, right.dtype) in INTEGERS else np.float32
    return _dot(left, right, precision=precision, preferred_element_type=dtype)


def approx_tanh(x: Any) -> Array:
    """Return tanh, which is exact to rounding here."""
    return arithmetic.tanh(x)


def max_contiguous(x: Any, values: Any) -> Any:
    """Return `x`, whose elements are said to be contiguous."""
    return x


def debug_barrier() -> None:
    """Do nothing: the steps of a kernel do not run at once."""


def elementwise_inline_asm(asm: str, *, args: Sequence[Any], constraints: str, pack: int, result_shape_dtypes: Sequence[Any]) -> Any:
    """Raise `UnsupportedError`: programs cannot have instructions of a GPU here."""
    raise UnsupportedError("elementwise_inline_asm: kernels have no instructions of a GPU here; write the function in jax.numpy")
