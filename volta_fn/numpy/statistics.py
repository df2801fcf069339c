"""Order statistics and correlations: median, quantile, percentile, average, cov, corrcoef, and their forms without NaN."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.numpy import reductions
from volta_fn.numpy.common import (
    INDEX,
    Axis,
    axes_of,
    dtype_or,
    full_like_scalar,
    is_complex,
    no_out,
    operand,
    promote_inexact,
)
from volta_fn.numpy.logic import isnan
from volta_fn.numpy.products import matmul
from volta_fn.primitives.declare import to_dtype
from volta_fn.primitives.movement import broadcast_to

_METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


def quantile(
    a: Any, q: Any, axis: Axis = None, out: None = None, overwrite_input: bool = False, method: str = "linear", keepdims: bool = False
) -> Array:  # fmt: skip
    """The values below which shares `q` (between 0 and 1) of the elements along `axis` lie; NaN where an element is.

    `method` says what lies between two elements: "linear", "lower", "higher", "midpoint", "nearest". The dimensions of `q` come
    first in the result.

    >>> import volta_fn.numpy as jnp
    >>> jnp.quantile(jnp.array([1.0, 2.0, 4.0]), jnp.array([0.25, 0.5]))
    Array([1.5, 2. ], dtype=float32)
    """
    return _quantile("quantile", a, q, axis, out, method, keepdims, skip_nan=False)


def nanquantile(
    a: Any, q: Any, axis: Axis = None, out: None = None, overwrite_input: bool = False, method: str = "linear", keepdims: bool = False
) -> Array:
    """`quantile` of the elements that are not NaN."""
    return _quantile("nanquantile", a, q, axis, out, method, keepdims, skip_nan=True)


def percentile(
    a: Any, q: Any, axis: Axis = None, out: None = None, overwrite_input: bool = False, method: str = "linear", keepdims: bool = False
) -> Array:
    """`quantile` with shares in per cent."""
    (share,) = promote_inexact("percentile", q)
    return quantile(a, lax.div(share, full_like_scalar(share, 100.0)), axis, out, overwrite_input, method, keepdims)


def nanpercentile(
    a: Any, q: Any, axis: Axis = None, out: None = None, overwrite_input: bool = False, method: str = "linear", keepdims: bool = False
) -> Array:
    """`percentile` of the elements that are not NaN."""
    (share,) = promote_inexact("nanpercentile", q)
    return nanquantile(a, lax.div(share, full_like_scalar(share, 100.0)), axis, out, overwrite_input, method, keepdims)


def median(a: Any, axis: Axis = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False) -> Array:
    """The middle element along `axis`, or the mean of the middle two; NaN where an element is.

    >>> import volta_fn.numpy as jnp
    >>> jnp.median(jnp.array([3, 1, 10, 2]))
    Array(2.5, dtype=float32)
    """
    return _quantile("median", a, 0.5, axis, out, "midpoint", keepdims, skip_nan=False)


def nanmedian(a: Any, axis: Axis = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False) -> Array:
    """`median` of the elements that are not NaN."""
    return _quantile("nanmedian", a, 0.5, axis, out, "midpoint", keepdims, skip_nan=True)


def _quantile(function: str, a: Any, q: Any, axis: Axis, out: None, method: str, keepdims: bool, skip_nan: bool) -> Array:
    no_out(function, out)
    if method not in _METHODS:
        raise ArgumentError(f"{function}: method must be one of {', '.join(_METHODS)}, got {method!r}")
    (value,), (share,) = promote_inexact(function, a), promote_inexact(function, q)
    if is_complex(value):
        raise ArgumentTypeError(f"{function}: complex numbers have no order")
    axes = axes_of(function, axis, value.ndim)
    rows, kept = _flattened_last(value, axes)
    if not rows.shape[-1]:
        raise ShapeError(f"{function} of no elements: axis {axes} of shape {value.shape} is empty")
    flat_share = lax.reshape(share, (share.size,))
    result = _along_last(lax.sort(rows, dimension=rows.ndim - 1), flat_share, method, skip_nan)
    shape = tuple([1 if i in axes else n for i, n in enumerate(value.shape)]) if keepdims else kept
    return lax.reshape(result, share.shape + shape)


def _flattened_last(value: Array, axes: tuple[int, ...]) -> tuple[Array, tuple[int, ...]]:
    """The given axes joined into one at the end, and the sizes of the others."""
    others = [i for i in range(value.ndim) if i not in axes]
    kept = tuple([value.shape[i] for i in others])
    count = int(np.prod([value.shape[i] for i in axes], dtype=np.int64))
    return lax.reshape(lax.transpose(value, [*others, *axes]), (*kept, count)), kept


def _along_last(ordered: Array, share: Array, method: str, skip_nan: bool) -> Array:
    """Quantiles of sorted vectors (NaN last): an array of shape (shares, vectors...)."""
    missing = lax.reduce_sum(lax.convert_element_type(isnan(ordered), INDEX), (ordered.ndim - 1,))
    size = ordered.shape[-1]
    work = dtypes.accumulator(ordered.dtype)
    last = lax.convert_element_type(lax.sub(np.int32(size - 1), missing), work)
    shares = lax.reshape(lax.convert_element_type(share, work), (share.size, *(1,) * last.ndim))
    position = lax.mul(shares, lax.max(last, full_like_scalar(last, 0)))
    low, high = lax.floor(position), lax.ceil(position)
    f_low, f_high = _element(ordered, low), _element(ordered, high)
    result = _between(f_low, f_high, lax.convert_element_type(lax.sub(position, low), ordered.dtype), method)
    lost = lax.lt(last, full_like_scalar(last, 0)) if skip_nan else lax.gt(missing, np.int32(0))
    return lax.select(lost, full_like_scalar(result, np.nan), result)


def _element(ordered: Array, position: Array) -> Array:
    """For each share and each vector, the element at a whole position."""
    index = lax.clamp(np.int32(0), lax.convert_element_type(position, INDEX), np.int32(ordered.shape[-1] - 1))
    grid = [lax.broadcasted_iota(INDEX, index.shape, i) for i in range(1, index.ndim)]
    return ordered[(*grid, index)]


def _between(low: Array, high: Array, weight: Array, method: str) -> Array:
    if method == "lower":
        return low
    if method == "higher":
        return lax.select(lax.gt(weight, full_like_scalar(weight, 0)), high, low)
    half = full_like_scalar(weight, 0.5)
    if method == "nearest":
        return lax.select(lax.gt(weight, half), high, low)
    if method == "midpoint":
        weight = lax.select(lax.gt(weight, full_like_scalar(weight, 0)), half, full_like_scalar(weight, 0))
    return lax.add(lax.mul(low, lax.sub(full_like_scalar(weight, 1), weight)), lax.mul(high, weight))


def average(a: Any, axis: Axis = None, weights: Any = None, returned: bool = False, keepdims: bool = False) -> Any:
    """The mean along `axis`, weighted if `weights` are given; with `returned` the pair (mean, sum of weights).

    >>> import volta_fn.numpy as jnp
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
        weight = _spread_weights(weight, value, axes)
        total = reductions.sum(weight, axes, keepdims=keepdims)
        result = lax.div(reductions.sum(lax.mul(value, weight), axes, keepdims=keepdims), total)
    return (result, broadcast_to(total, result.shape)) if returned else result


def _spread_weights(weight: Array, value: Array, axes: tuple[int, ...]) -> Array:
    if weight.shape == value.shape:
        return weight
    if weight.ndim != len(axes) or weight.shape != tuple([value.shape[i] for i in axes]):
        raise ShapeError(f"average: weights of shape {weight.shape} fit neither shape {value.shape} nor its axes {axes}")
    order = sorted(range(len(axes)), key=lambda k: axes[k])
    return lax.broadcast_in_dim(lax.transpose(weight, order), value.shape, sorted(axes))


def cov(
    m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None, fweights: Any = None, aweights: Any = None,
    *, dtype: Any = None,
) -> Array:  # fmt: skip
    """The covariance matrix of variables in rows (columns if not `rowvar`), each with observations along the other dimension.

    Args:
        m: the observations, a vector or matrix.
        y: more variables of the same form.
        rowvar: whether rows are the variables.
        bias: whether to divide by n rather than n - 1 (`ddof`, if given, overrides it).
        fweights: how often each observation was made.
        aweights: how much each observation weighs.
        dtype: of the result.

    >>> import volta_fn.numpy as jnp
    >>> jnp.cov(jnp.array([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]))
    Array([[ 1., -1.],
           [-1.,  1.]], dtype=float32)
    """
    parts = promote_inexact("cov", *[v for v in (m, y) if v is not None])
    if any(p.ndim > 2 for p in parts):
        raise ShapeError(f"cov: m and y must have at most two dimensions, got shapes {[p.shape for p in parts]}")
    value = lax.concatenate([_as_rows(p, rowvar) for p in parts], 0)
    value = lax.convert_element_type(value, dtype_or(dtype, value.dtype))
    removed = (0 if bias else 1) if ddof is None else ddof
    weight = _observation_weights(value, fweights, aweights)
    if weight is None:
        center, factor = reductions.mean(value, 1, keepdims=True), full_like_scalar(value, max(value.shape[1] - removed, 0))
    else:
        center = lax.div(reductions.sum(lax.mul(value, weight), 1, keepdims=True), reductions.sum(weight))
        factor = _weighted_count(weight, removed, aweights, value)
    apart = lax.sub(value, center)
    other = apart if weight is None else lax.mul(apart, weight)
    result = lax.div(matmul(apart, lax.transpose(lax.conj(other), (1, 0))), factor)
    return lax.reshape(result, ()) if result.shape == (1, 1) else result


def _as_rows(value: Array, rowvar: bool) -> Array:
    matrix = lax.reshape(value, (1,) * (2 - value.ndim) + value.shape)
    return matrix if rowvar or value.ndim < 2 or matrix.shape[0] == 1 else lax.transpose(matrix, (1, 0))


def _observation_weights(value: Array, fweights: Any, aweights: Any) -> Array | None:
    weight = None
    for name, given in (("fweights", fweights), ("aweights", aweights)):
        if given is None:
            continue
        part = operand("cov", name, given)
        if part.shape != value.shape[1:]:
            raise ShapeError(f"cov: {name} must have shape {value.shape[1:]}, got {part.shape}")
        if name == "fweights" and part.dtype not in dtypes.INTEGERS:
            raise ArgumentTypeError(f"cov: fweights must be integers, got {part.dtype.name}")
        part = lax.convert_element_type(part, value.dtype)
        weight = part if weight is None else lax.mul(weight, part)
    return weight


def _weighted_count(weight: Array, removed: int, aweights: Any, value: Array) -> Array:
    total = reductions.sum(weight)
    if not removed:
        return total
    if aweights is None:
        return lax.sub(total, full_like_scalar(total, removed))
    again = lax.convert_element_type(operand("cov", "aweights", aweights), value.dtype)
    return lax.sub(total, lax.div(lax.mul(full_like_scalar(total, removed), reductions.sum(lax.mul(weight, again))), total))


def corrcoef(x: Any, y: Any = None, rowvar: bool = True, dtype: Any = None) -> Array:
    """Pearson's correlation coefficients of variables in rows; see `cov`.

    >>> import volta_fn.numpy as jnp
    >>> jnp.corrcoef(jnp.array([0.0, 1.0, 2.0]), jnp.array([1.0, 3.0, 5.0]))
    Array([[1., 1.],
           [1., 1.]], dtype=float32)
    """
    c = cov(x, y, rowvar, dtype=dtype)
    if not c.ndim:
        return lax.div(c, c)
    n = c.shape[0]
    spread = lax.sqrt(lax.real(c) if is_complex(c) else c)
    deviation = lax.slice_in_dim(lax.reshape(spread, (n * n,)), 0, n * n, n + 1)
    rows, columns = (lax.broadcast_in_dim(deviation, (n, n), (d,)) for d in (0, 1))
    result = lax.div(lax.div(c, to_dtype(rows, c.dtype)), to_dtype(columns, c.dtype))
    if is_complex(result):
        return lax.complex(*[_unit(part) for part in (lax.real(result), lax.imag(result))])
    return _unit(result)


def _unit(x: Array) -> Array:
    """Limited to [-1, 1], which rounding may have left."""
    return lax.clamp(full_like_scalar(x, -1), x, full_like_scalar(x, 1))
