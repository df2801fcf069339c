"""Matrices as operands of linear algebra, and elementwise helpers."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ShapeError
from volta_fn.numpy.arguments import promote_inexact
from volta_fn.primitives.elementwise.complex_components import conj


def matrices(function: str, argument: str, value: Any, square: bool = False) -> Array:
    """Return `value` as (square) inexact matrices; raise `ShapeError` if it is none."""
    (a,) = promote_inexact(function, value)
    if a.ndim < 2:
        raise ShapeError(f"{function}: {argument} must be a matrix or a stack of matrices, got shape {a.shape}")
    if square and a.shape[-1] != a.shape[-2]:
        raise ShapeError(f"{function}: {argument} must have square matrices in its last two dimensions, got shape {a.shape}")
    return a


def squared(x: Array) -> Array:
    """Return the square of each element's absolute value, real."""
    return lax.real(conj(x) * x) if x.dtype.kind == "c" else x * x


def safe_root(x: Array) -> Array:
    """Return the square root with derivative 0, rather than infinity, at 0."""
    zero = lax.eq(x, 0)
    return lax.select(zero, as_value(np.zeros((), x.dtype)), lax.sqrt(lax.select(zero, as_value(np.ones((), x.dtype)), x)))


def identity_like(a: Array) -> Array:
    """Return the identity matrix of the size and dtype of the square matrices `a`."""
    return as_value(np.eye(a.shape[-1], dtype=a.dtype))


def last_axis(x: Array, index: int) -> Array:
    """Return the elements at an index of the last axis."""
    return lax.index_in_dim(x, index, -1, keepdims=False)
