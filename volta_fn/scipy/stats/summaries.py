"""Statistics of samples: ranks, modes, errors, densities, and the nearest codes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from volta_fn import dtypes, lax, random, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import check_option
from volta_fn.errors import ArgumentError, ImmutableError, ShapeError
from volta_fn.numpy.arguments import axis_of, is_inexact, operand
from volta_fn.numpy.linalg import inv
from volta_fn.primitives.declare import promote_args
from volta_fn.scipy.special.exponential import logsumexp, ndtr
from volta_fn.scipy.stats.declarations import whiten

# Ranks, the most common value and the standard error of the mean.


class ModeResult(NamedTuple):
    """The most common values, and how often they occur."""

    mode: Array
    count: Array  # type: ignore[assignment]  # it hides the method of tuples, as in SciPy


class _Runs(NamedTuple):
    """Sorted vectors (along the last axis), and the runs of equal elements in them."""

    values: Array
    order: Array
    first: Array
    last: Array
    number: Array


def _check_policy(function: str, policy: str) -> None:
    if policy not in ("propagate", "omit"):
        advice = "a program cannot look for NaN: check the array before" if policy == "raise" else f"got {policy!r}"
        raise ArgumentError(f"{function}: nan_policy must be 'propagate' or 'omit'; {advice}")


def _is_nan(a: Array) -> Array:
    return vnp.isnan(a) if is_inexact(a) else vnp.zeros(a.shape, np.bool_)


def _runs(a: Array) -> _Runs:
    """Sort vectors and find the runs; NaN are equal to one another."""
    index = lax.broadcasted_iota(np.int32, a.shape, a.ndim - 1)
    values, order = lax.sort_key_val(a, index)
    before, after = values[..., :-1], values[..., 1:]
    differs = (before != after) & ~(_is_nan(before) & _is_nan(after))
    end = vnp.ones((*a.shape[:-1], min(a.shape[-1], 1)), np.bool_)
    begins, ends = vnp.concatenate([end, differs], -1), vnp.concatenate([differs, end], -1)
    axis = a.ndim - 1
    first = lax.cummax(vnp.where(begins, index, 0), axis)
    last = lax.cummin(vnp.where(ends, index, a.shape[-1]), axis, reverse=True)
    return _Runs(values, order, first, last, vnp.cumsum(begins, axis, dtype=np.int32))


def rankdata(a: Any, method: str = "average", *, axis: int | None = None, nan_policy: str = "propagate") -> Array:
    """Return the ranks of the elements, beginning with 1 for the smallest.

    Args:
        a: an array of real numbers.
        method: the rank of equal elements: the "average", "min" or "max" of the ranks that they would have in a row; with "dense" the
            next larger element follows without a gap; with "ordinal" equal elements have different ranks, in their order.
        axis: rank along this axis, by default among all elements, whose ranks are a vector.
        nan_policy: "propagate": all ranks along an axis with a NaN are NaN. "omit": only that of NaN is.

    Returns float32, or float64 for dtypes of 64 bits and where `jax_enable_x64` is set. Raises `ArgumentError` for other methods or
    policies.

    >>> vf.scipy.stats.rankdata(vf.numpy.array([10, 30, 20, 30]))
    Array([1. , 3.5, 2. , 3.5], dtype=float32)
    """
    _check_policy("rankdata", nan_policy)
    check_option(method, "rankdata: method", ("average", "min", "max", "dense", "ordinal"))
    values = operand("rankdata", "a", a)
    values = vnp.ravel(values) if axis is None else vnp.moveaxis(values, axis_of("rankdata", axis, values.ndim), -1)
    dtype = dtypes.default(dtypes.accumulator(dtypes.to_inexact(values.dtype)))
    is_nan = _is_nan(values)
    if nan_policy == "propagate":
        is_nan = vnp.any(is_nan, -1, keepdims=True)
    ranks = vnp.where(is_nan, np.nan, _ranks(_runs(values), method, dtype))
    return ranks if axis is None else vnp.moveaxis(ranks, -1, axis)


def _ranks(runs: _Runs, method: str, dtype: np.dtype) -> Array:
    axis = runs.order.ndim - 1
    _, position = lax.sort_key_val(runs.order, lax.broadcasted_iota(np.int32, runs.order.shape, axis))
    if method == "ordinal":
        return (position + 1).astype(dtype)
    if method == "average":
        sorted_ranks = 0.5 * (runs.first.astype(dtype) + runs.last.astype(dtype)) + 1.0
    else:
        sorted_ranks = {"min": runs.first + 1, "max": runs.last + 1, "dense": runs.number}[method].astype(dtype)
    return vnp.take_along_axis(sorted_ranks, position, axis)


def mode(a: Any, axis: int | None = 0, nan_policy: str = "propagate", keepdims: bool = False) -> ModeResult:
    """Return the most common value along an axis, the smallest of several such.

    Args:
        a: an array of real numbers; a scalar counts as one element.
        axis: the axis; None for all elements.
        nan_policy: "propagate": NaN is a value like others. "omit": NaN is not counted.
        keepdims: whether the axis stays, with size 1.

    Returns the values and, as int32, how often they occur: NaN and 0 where there are none. Raises `ArgumentError` for other policies.

    >>> vf.scipy.stats.mode(vf.numpy.array([2, 4, 1, 1, 3, 4, 4]))
    ModeResult(mode=Array(4, dtype=int32), count=Array(3, dtype=int32))
    """
    _check_policy("mode", nan_policy)
    values = vnp.atleast_1d(operand("mode", "a", a))
    ndim = values.ndim
    values = vnp.ravel(values) if axis is None else vnp.moveaxis(values, axis_of("mode", axis, ndim), -1)
    result = _most_common(values, nan_policy == "omit")
    if not keepdims:
        return result
    axes = tuple(range(ndim)) if axis is None else axis
    return ModeResult(vnp.expand_dims(result.mode, axes), vnp.expand_dims(result.count, axes))


def _most_common(values: Array, omits_nan: bool) -> ModeResult:
    if values.shape[-1] == 0:
        dtype = values.dtype if is_inexact(values) else dtypes.to_inexact(values.dtype)
        return ModeResult(vnp.full(values.shape[:-1], np.nan, dtype), vnp.zeros(values.shape[:-1], int))
    runs = _runs(values)
    counts = (runs.last - runs.first + 1).astype(int)
    if omits_nan:
        counts = vnp.where(_is_nan(runs.values), 0, counts)
    best = vnp.argmax(counts, -1, keepdims=True)
    return ModeResult(*[vnp.take_along_axis(v, best, -1)[..., 0] for v in (runs.values, counts)])


def sem(a: Any, axis: int | None = 0, ddof: int = 1, nan_policy: str = "propagate", *, keepdims: bool = False) -> Array:
    """Return the standard error of the mean: the standard deviation over sqrt(n).

    Args:
        a: an array of numbers.
        axis: the axis; None for all elements.
        ddof: what is subtracted from n in the standard deviation.
        nan_policy: "propagate": NaN gives NaN. "omit": NaN is not counted.
        keepdims: whether the axis stays, with size 1.

    Raises `ArgumentError` for other policies.

    >>> vf.scipy.stats.sem(vf.numpy.array([2.0, 4.0, 1.0, 1.0, 3.0])).round(4)
    Array(0.5831, dtype=float32)
    """
    _check_policy("sem", nan_policy)
    (values,) = promote_args("sem", (a,), dtypes.INEXACT)
    if nan_policy == "omit":
        count = vnp.sum(~vnp.isnan(values), axis, keepdims=keepdims, dtype=dtypes.real_dtype(dtypes.accumulator(values.dtype)))
        deviation = vnp.nanstd(values, axis, ddof=ddof, keepdims=keepdims)
        return deviation / vnp.sqrt(count).astype(deviation.dtype)
    size = values.size if axis is None else values.shape[axis_of("sem", axis, values.ndim)]
    return vnp.std(values, axis, ddof=ddof, keepdims=keepdims) / float(np.sqrt(size))


# Density estimation by a sum of normal densities, one for each data point.

BandwidthMethod = str | float | Array | Callable[["gaussian_kde"], Any] | None


@tree.register_pytree_node_class
@dataclasses.dataclass(frozen=True, init=False, eq=False)
class gaussian_kde:  # SciPy's name
    """An estimate of a probability density by Gaussian kernels.

    An immutable pytree. The kernels' covariance is that of the data times the square of a factor.

    Args:
        dataset: n points of d dimensions, of shape (d, n) or, for d = 1, (n,).
        bw_method: the factor: "scott" (the default), neff^(-1/(d+4)); "silverman", (neff (d+2)/4)^(-1/(d+4)); a number; or a function
            that returns one, given the estimate with its attributes `dataset`, `weights`, `neff`, `n` and `d`.
        weights: of the points, of shape (n,), by default equal.

    Attributes:
        dataset, weights: the points (d, n), and their weights with sum 1.
        neff: the effective number of points, 1 / Σ weights².
        covariance, inv_cov: the kernels' covariance (d, d) and its inverse.

    Raises:
        ShapeError: the shapes do not fit, or there are less than two numbers. ArgumentError: another method.

    >>> kde = vf.scipy.stats.gaussian_kde(vf.numpy.array([-1.0, 0.0, 0.0, 1.0]))
    >>> kde(vf.numpy.array([0.0, 3.0])).round(4)
    Array([0.4097, 0.0009], dtype=float32)
    """

    neff: Any
    dataset: Any
    weights: Any
    covariance: Any
    inv_cov: Any

    def __init__(self, dataset: Any, bw_method: BandwidthMethod = None, weights: Any = None) -> None:
        points, shares = _points_and_weights(dataset, weights)
        self._set(dataset=points, weights=shares, neff=1.0 / vnp.sum(shares * shares))
        factor = self._factor("scott" if bw_method is None else bw_method)
        covariance = vnp.atleast_2d(vnp.cov(points, rowvar=True, bias=False, aweights=shares))
        self._set(covariance=covariance * factor**2, inv_cov=inv(covariance) / factor**2)

    def _set(self, **fields: Any) -> None:
        """Set fields of the frozen object under construction."""
        self.__dict__.update(fields)

    def _factor(self, method: Any) -> Any:
        if isinstance(method, str):
            if method not in ("scott", "silverman"):
                raise ArgumentError(f"gaussian_kde: bw_method must be 'scott', 'silverman', a number or a function, got {method!r}")
            size = self.neff if method == "scott" else self.neff * (self.d + 2) / 4.0
            return size ** (-1.0 / (self.d + 4))
        return method(self) if callable(method) else method

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """Return the fields as children."""
        return (self.neff, self.dataset, self.weights, self.covariance, self.inv_cov), None

    @classmethod
    def tree_unflatten(cls, aux_data: None, children: Sequence[Any]) -> gaussian_kde:
        """Rebuild the estimate from its fields."""
        estimate = object.__new__(cls)
        estimate._set(**dict(zip(("neff", "dataset", "weights", "covariance", "inv_cov"), children, strict=True)))
        return estimate

    @property
    def d(self) -> int:
        """The number of dimensions."""
        return self.dataset.shape[0]

    @property
    def n(self) -> int:
        """The number of points."""
        return self.dataset.shape[1]

    def evaluate(self, points: Any) -> Array:
        """Return the density at points of shape (d, m), (d,) or, for d = 1, (m,)."""
        return vnp.exp(self.logpdf(points))

    __call__ = evaluate

    def pdf(self, x: Any) -> Array:
        """Return the density, as `evaluate` does."""
        return self.evaluate(x)

    def logpdf(self, x: Any) -> Array:
        """Return the log of the density at points, also where the density underflows."""
        points = vnp.atleast_2d(promote_args("gaussian_kde.logpdf", (x, self.dataset), dtypes.FLOATS)[0])
        if points.shape[0] != self.d:
            if points.shape != (1, self.d):
                raise ShapeError(f"gaussian_kde: the points have {points.shape[0]} dimensions, the data {self.d}")
            points = points.T
        return _log_mixture(self.covariance, points, self.dataset, self.weights)

    def integrate_gaussian(self, mean: Any, cov: Any) -> Array:
        """Return the integral of the density times a normal one.

        `mean` has shape (d,) and `cov` (d, d); for d = 1 both may be scalars.
        """
        centre, spread = promote_args("gaussian_kde.integrate_gaussian", (mean, cov, self.dataset), dtypes.FLOATS)[:2]
        centre, spread = vnp.atleast_1d(vnp.squeeze(centre)), vnp.atleast_2d(spread)
        if centre.shape != (self.d,) or spread.shape != (self.d, self.d):
            shapes = f"{centre.shape} and {spread.shape}"
            raise ShapeError(f"integrate_gaussian: mean and cov must have shapes ({self.d},) and ({self.d}, {self.d}), got {shapes}")
        return vnp.exp(_log_mixture(self.covariance + spread, centre[:, None], self.dataset, self.weights))[0]

    def integrate_box_1d(self, low: Any, high: Any) -> Array:
        """Return the probability of the interval from `low` to `high`, scalars, for d = 1."""
        if self.d != 1:
            raise ShapeError(f"integrate_box_1d: the data have {self.d} dimensions instead of 1")
        start, end, points = promote_args("gaussian_kde.integrate_box_1d", (low, high, self.dataset[0]), dtypes.FLOATS)
        if start.ndim or end.ndim:
            raise ShapeError(f"integrate_box_1d: the limits must be scalars, got shapes {start.shape} and {end.shape}")
        deviation = vnp.sqrt(self.covariance[0, 0])
        return vnp.sum(self.weights * (ndtr((end - points) / deviation) - ndtr((start - points) / deviation)))

    def integrate_kde(self, other: gaussian_kde) -> Array:
        """Return the integral of the product of two estimates."""
        if other.d != self.d:
            raise ShapeError(f"integrate_kde: the estimates have {self.d} and {other.d} dimensions")
        overlaps = _log_mixture(self.covariance + other.covariance, other.dataset, self.dataset, self.weights)
        return vnp.sum(vnp.exp(overlaps) * other.weights)

    def resample(self, key: Any, shape: Sequence[int] = ()) -> Array:
        """Sample points from the estimate, as an array of shape (d, *shape)."""
        first, second = random.split(key)
        chosen = random.choice(first, self.n, shape=shape, p=self.weights)
        zero = vnp.zeros(self.d, self.covariance.dtype)
        steps = random.multivariate_normal(second, zero, self.covariance, shape=shape, dtype=self.dataset.dtype)
        return self.dataset[:, chosen] + vnp.moveaxis(steps, -1, 0)

    def set_bandwidth(self, bw_method: BandwidthMethod = None) -> NoReturn:
        """Raise `ImmutableError`: make another estimate with that bandwidth."""
        raise ImmutableError("gaussian_kde is immutable: gaussian_kde(dataset, bw_method) makes an estimate of another bandwidth")


def _points_and_weights(dataset: Any, weights: Any) -> tuple[Array, Array]:
    values = promote_args("gaussian_kde", (dataset,) if weights is None else (dataset, weights), dtypes.FLOATS)
    wide = dtypes.accumulator(values[0].dtype)
    points, *rest = (lax.convert_element_type(v, wide) for v in values)
    points = vnp.atleast_2d(points)
    if points.ndim != 2 or points.size < 2:
        raise ShapeError(f"gaussian_kde: dataset must have shape (d, n) or (n,) and several elements, got {points.shape}")
    count = points.shape[1]
    if not rest:
        return points, vnp.full(count, 1.0 / count, wide)
    if rest[0].shape != (count,):
        raise ShapeError(f"gaussian_kde: weights must have shape ({count},), got {rest[0].shape}")
    return points, rest[0] / vnp.sum(rest[0])


def _log_mixture(covariance: Array, points: Array, centres: Array, weights: Array) -> Array:
    """Return the log of a sum of weighted normal densities at points (d, m).

    Their means are `centres` (d, n), and they have one covariance (d, d).
    """
    factor = lax.linalg.cholesky(covariance)
    x, y = whiten(factor, points.T), whiten(factor, centres.T)
    distances = vnp.zeros((x.shape[0], y.shape[0]), x.dtype)
    for axis in range(x.shape[1]):  # a difference of squares would cancel
        distances = distances + (x[:, axis, None] - y[None, :, axis]) ** 2
    log_constant = vnp.sum(vnp.log(vnp.diagonal(factor))) + 0.5 * x.shape[1] * math.log(2.0 * math.pi)
    return logsumexp(-0.5 * distances, 1, b=weights) - log_constant


def vq(obs: Any, code_book: Any, check_finite: bool = True) -> tuple[Array, Array]:
    """Return the nearest code of each observation, and its Euclidean distance.

    Args:
        obs: observations, of shape (m, n), or (m,) for numbers.
        code_book: codes, of shape (k, n) or (k,), at least one.
        check_finite: ignored, as programs cannot check; NaN have the distance NaN.

    Returns the indices of the codes, int32 of shape (m,), the first of several as near, and the distances, floats of shape (m,). These are
    differentiable, with derivative 0 where they are 0. Raises `ShapeError` if the shapes do not fit.

    >>> vf.scipy.cluster.vq.vq(vf.numpy.array([0.0, 4.0]), vf.numpy.array([1.0, 3.5]))
    (Array([0, 1], dtype=int32), Array([1. , 0.5], dtype=float32))
    """
    observations, codes = promote_args("vq", (obs, code_book), dtypes.FLOATS)
    shapes = f"{observations.shape} and {codes.shape}"
    if observations.ndim != codes.ndim or observations.ndim not in (1, 2):
        raise ShapeError(f"vq: obs and code_book must both be vectors, or both matrices, got shapes {shapes}")
    dtype = observations.dtype
    x, y = (lax.convert_element_type(v[:, None] if v.ndim == 1 else v, dtypes.accumulator(dtype)) for v in (observations, codes))
    if x.shape[1] != y.shape[1] or not y.shape[0]:
        raise ShapeError(f"vq: obs and code_book must have shapes (m, n) and (k, n) with k >= 1, got {shapes}")
    code = vnp.argmin(vnp.sum((x[:, None] - y[None]) ** 2, -1), -1)
    square = vnp.sum((x - y[code]) ** 2, -1)
    distance = vnp.where(square == 0, 0.0, vnp.sqrt(vnp.where(square == 0, 1.0, square)))
    return code, lax.convert_element_type(distance, dtype)
