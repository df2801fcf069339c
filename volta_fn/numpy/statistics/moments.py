"""Averages, covariances and correlations."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentTypeError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.numpy.arguments import Axis, axes_of, dtype_or, full_like_scalar, is_complex, narrowed, operand, promote_inexact, wide
from volta_fn.numpy.products import matmul
from volta_fn.numpy.statistics import reductions
from volta_fn.primitives.data_movement.movement import broadcast_to
from volta_fn.primitives.declare import to_dtype


@overload
def average(a: Any, axis: Axis = None, weights: Any = None, returned: Literal[False] = False, keepdims: bool = False) -> Array: ...
@overload
def average(a: Any, axis: Axis = None, weights: Any = None, *, returned: Literal[True], keepdims: bool = False) -> tuple[Array, Array]: ...
@fused
def average(a: Any, axis: Axis = None, weights: Any = None, returned: bool = False, keepdims: bool = False) -> Any:
    """Return the (weighted) mean along `axis`; if `returned`, also the weights' sum.

    >>> jnp.average(jnp.array([1.0, 3.0]), weights=jnp.array([3.0, 1.0]))
    Array(1.5, dtype=float32)
    """
    if weights is None:
        value = operand("average", "a", a)
        axes = axes_of("average", axis, value.ndim)
        result = reductions.mean(value, axes, keepdims=keepdims)
        total: Array = full_like_scalar(result, reductions.element_count(value, axes, None))
    else:
        value, weight = promote_inexact("average", a, weights)
        axes = axes_of("average", axis, value.ndim)
        weight = spread_weights("average", weight, value, axes)
        full = wide(weight)
        sums = [reductions.sum(x, axes, keepdims=keepdims) for x in (full, lax.mul(wide(value), full))]
        total, result = narrowed(sums[0], value), narrowed(lax.div(sums[1], sums[0]), value)
    return (result, broadcast_to(total, result.shape)) if returned else result


def spread_weights(function: str, weight: Array, value: Array, axes: tuple[int, ...]) -> Array:
    """Return weights in the shape of `value`, or expanded to it from those of `axes`.

    The dimensions of the latter come in the order in which `axes` names them.
    """
    if weight.shape == value.shape:
        return weight
    if weight.ndim != len(axes) or weight.shape != tuple([value.shape[i] for i in axes]):
        raise ShapeError(f"{function}: weights of shape {weight.shape} fit neither shape {value.shape} nor its axes {axes}")
    order = sorted(range(len(axes)), key=lambda k: axes[k])
    return lax.broadcast_in_dim(lax.transpose(weight, order), value.shape, sorted(axes))


@fused
def cov(
    m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None, fweights: Any = None, aweights: Any = None,
    *, dtype: Any = None,
) -> Array:  # fmt: skip
    """Return the covariance matrix of variables in rows (columns if not `rowvar`).

    Args:
        m: the observations, a vector or matrix.
        y: more variables of the same form.
        rowvar: whether rows are the variables.
        bias: whether to divide by n rather than n - 1 (`ddof`, if given, overrides it).
        fweights: how often each observation was made.
        aweights: the weight of each observation.
        dtype: of the result.

    >>> jnp.cov(jnp.array([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]))
    Array([[ 1., -1.],
           [-1.,  1.]], dtype=float32)
    """
    result, wanted = _covariance("cov", m, y, rowvar, bias, ddof, fweights, aweights, dtype)
    return lax.convert_element_type(result, wanted, result.weak_type)


def _covariance(
    function: str, m: Any, y: Any, rowvar: bool, bias: bool, ddof: int | None, fweights: Any, aweights: Any, dtype: Any
) -> tuple[Array, np.dtype]:
    """Return the covariances in the accumulation dtype, and the dtype of the result."""
    variables = promote_inexact(function, *[v for v in (m, y) if v is not None])
    if any(p.ndim > 2 for p in variables):
        raise ShapeError(f"{function}: m and y must have at most two dimensions, got shapes {[p.shape for p in variables]}")
    alone = len(variables) == 1 and fweights is aweights is None
    in_columns = alone and not rowvar and variables[0].ndim == 2 and variables[0].shape[0] != 1
    value = variables[0] if in_columns else lax.concatenate([_as_rows(p, rowvar) for p in variables], 0)
    wanted = dtype_or(dtype, value.dtype)
    value = lax.convert_element_type(value, dtypes.accumulator(wanted))
    removed = (0 if bias else 1) if ddof is None else ddof
    if in_columns:  # which are summed where they are, without a transpose
        centered = lax.sub(value, reductions.mean(value, 0, keepdims=True))
        product = lax.dot_general(centered, lax.conj(centered), (((0,), (0,)), ((), ())))
        result = lax.div(product, full_like_scalar(value, max(value.shape[0] - removed, 0)))
        return (lax.reshape(result, ()) if result.shape == (1, 1) else result), wanted
    weight = _observation_weights(value, fweights, aweights)
    if weight is None:
        center, factor = reductions.mean(value, 1, keepdims=True), full_like_scalar(value, max(value.shape[1] - removed, 0))
    else:
        center = lax.div(reductions.sum(lax.mul(value, weight), 1, keepdims=True), reductions.sum(weight))
        factor = _weighted_count(weight, removed, aweights, value)
    centered = lax.sub(value, center)
    other = centered if weight is None else lax.mul(centered, weight)
    result = lax.div(matmul(centered, lax.transpose(lax.conj(other), (1, 0))), factor)
    return (lax.reshape(result, ()) if result.shape == (1, 1) else result), wanted


def _as_rows(value: Array, rowvar: bool) -> Array:
    matrix = lax.broadcast_to_rank(value, 2)
    return matrix if rowvar or value.ndim < 2 or matrix.shape[0] == 1 else lax.transpose(matrix, (1, 0))


def _observation_weights(value: Array, fweights: Any, aweights: Any) -> Array | None:
    weight = None
    for name, given in (("fweights", fweights), ("aweights", aweights)):
        if given is None:
            continue
        counts = operand("cov", name, given)
        if counts.shape != value.shape[1:]:
            raise ShapeError(f"cov: {name} must have shape {value.shape[1:]}, got {counts.shape}")
        if name == "fweights" and counts.dtype not in dtypes.INTEGERS:
            raise ArgumentTypeError(f"cov: fweights must be integers, got {counts.dtype.name}")
        counts = lax.convert_element_type(counts, value.dtype)
        weight = counts if weight is None else lax.mul(weight, counts)
    return weight


def _weighted_count(weight: Array, removed: int, aweights: Any, value: Array) -> Array:
    total = reductions.sum(weight)
    if not removed:
        return total
    if aweights is None:
        return lax.sub(total, full_like_scalar(total, removed))
    again = lax.convert_element_type(operand("cov", "aweights", aweights), value.dtype)
    return lax.sub(total, lax.div(lax.mul(full_like_scalar(total, removed), reductions.sum(lax.mul(weight, again))), total))


@fused
def corrcoef(x: Any, y: Any = None, rowvar: bool = True, dtype: Any = None) -> Array:
    """Return Pearson's correlation coefficients of variables in rows; see `cov`.

    >>> jnp.corrcoef(jnp.array([0.0, 1.0, 2.0]), jnp.array([1.0, 3.0, 5.0]))
    Array([[1., 1.],
           [1., 1.]], dtype=float32)
    """
    c, wanted = _covariance("corrcoef", x, y, rowvar, False, None, None, None, dtype)
    return lax.convert_element_type(_correlations(c), wanted, c.weak_type)


def _correlations(c: Array) -> Array:
    """Return covariances divided by both standard deviations."""
    if not c.ndim:
        return lax.div(c, c)
    n = c.shape[0]
    variance = lax.slice_in_dim(lax.reshape(lax.real(c) if is_complex(c) else c, (n * n,)), 0, n * n, n + 1)
    deviation = lax.sqrt(variance)
    rows, columns = (lax.broadcast_in_dim(deviation, (n, n), (d,)) for d in (0, 1))
    result = lax.div(lax.div(c, to_dtype(rows, c.dtype)), to_dtype(columns, c.dtype))
    if is_complex(result):
        return lax.complex(*[_unit(counts) for counts in (lax.real(result), lax.imag(result))])
    return _unit(result)


def _unit(x: Array) -> Array:
    """Clip to [-1, 1], which rounding may exceed."""
    return lax.clamp(full_like_scalar(x, -1), x, full_like_scalar(x, 1))
