"""Distributions by formulas in standard form, and distributions of vectors.

`Continuous` and `Discrete` turn the formulas into SciPy's functions. The sections before them give public functions their signatures, and
compute logarithms of probabilities that would underflow.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.numpy.arguments import strong_array
from volta_fn.primitives.declare import promote_args
from volta_fn.scipy.special.gamma_family import composite, gammaln, log_beta_weight, log_gamma_weight
from volta_fn.source import parameter_names
from volta_fn.source import signature as function_signature

# Public functions: signature, promotion and docstring of a formula.
#
# A distribution's signature is written once, as a function that does nothing, so that type checkers and `help` know the names and
# defaults of its parameters. `ppf` and `isf` take a probability instead of a value, and so have a signature of their own.

P = ParamSpec("P")

SENTENCES = {
    "logpdf": "Return the log of the probability density at `x`.",
    "pdf": "Return the probability density at `x`.",
    "cdf": "Return the probability of at most `{0}`.",
    "sf": "Return the probability of more than `x`, precise where it is small.",
    "logcdf": "Return the log of the probability of at most `x`, precise in both tails.",
    "logsf": "Return the log of the probability of more than `x`, precise in both tails.",
    "ppf": "Return the value that is not exceeded with probability `{0}`.",
    "isf": "Return the value that is exceeded with probability `{0}`.",
    "logpmf": "Return the log of the probability of `k`.",
    "pmf": "Return the probability of `k`.",
}


def value_signature(x: Any, loc: Any = 0, scale: Any = 1) -> None:
    """Take a value, for distributions without shape parameters."""


def probability_signature(q: Any, loc: Any = 0, scale: Any = 1) -> None:
    """Take a probability, for distributions without shape parameters."""


def with_promotion(evaluate: Callable[..., Array], name: str) -> Callable[..., Array]:
    """Return a function that promotes its arguments to one dtype, like `composite`.

    Errors call it `name`. The result is weakly typed if and only if all arguments are, since some of them may only be compared.
    """

    def function(*values: Array) -> Array:
        out = evaluate(*values)
        return lax.convert_element_type(out, values[0].dtype, weak_type=all(v.weak_type for v in values))

    function.__name__ = name
    return composite(function)


C = TypeVar("C")


def distribution(namespace: C) -> C:
    """Return a module with the functions of a class.

    The class is a declaration that type checkers read. The module is registered under its path, so that
    ``from volta_fn.scipy.stats.norm import pdf`` finds it.
    """
    declared: Any = namespace
    module = ModuleType(f"volta_fn.scipy.stats.{declared.__name__}", declared.__doc__)
    sys.modules[module.__name__] = module
    names = [name for name in vars(declared) if not name.startswith("_")]
    for name in names:
        function = getattr(declared, name)
        function.__module__, function.__qualname__ = module.__name__, name
        setattr(module, name, function)
    vars(module)["__all__"] = names
    result: Any = module
    return result


def public_function(
    name: str, evaluate: Callable[..., Array], signature: Callable[P, None], namespace: Mapping[str, Any]
) -> Callable[P, Array]:
    """Return a public function of a distribution.

    Args:
        name: the function's name.
        evaluate: computes the function of arrays of one dtype, float32 or float64, passed by position.
        signature: a function with its parameters.
        namespace: the variables of the distribution's class, whose docstring describes it.
    """
    declared = function_signature(signature)
    compute = with_promotion(evaluate, f"{namespace['__qualname__']}.{name}")

    @functools.wraps(signature)
    def function(*args: P.args, **kwargs: P.kwargs) -> Array:
        bound = declared.bind(*args, **kwargs)
        bound.apply_defaults()
        return strong_array(compute(*bound.args))

    function.__name__ = function.__qualname__ = name
    function.__signature__ = declared.replace(return_annotation="Array")  # type: ignore[attr-defined]
    function.__doc__ = f"{SENTENCES[name].format(next(iter(declared.parameters)))}\n\n{namespace['__doc__'].partition('>>>')[0].rstrip()}\n"
    return function


# Logarithms and exponentials that keep their precision, with finite derivatives.


def log1mexp(y: Array) -> Array:
    """Return log(1 - exp(-y)) for y > 0 (Mächler, "Accurately computing", 2012)."""
    small = y < math.log(2.0)
    near, far = vnp.where(small, y, 1.0), vnp.where(small, 1.0, y)
    return vnp.where(small, vnp.log(-vnp.expm1(-near)), vnp.log1p(-vnp.exp(-far)))


def log1p_square(x: Array) -> Array:
    """Return log(1 + x²), also where x² overflows."""
    large = vnp.abs(x) > 1.0
    near, far = vnp.where(large, 0.0, x), vnp.where(large, x, 1.0)
    return vnp.where(large, 2.0 * vnp.log(vnp.abs(far)) + vnp.log1p((1.0 / far) ** 2), vnp.log1p(near * near))


def exp_or_infinity(x: Array) -> Array:
    """Return exp(x), with derivatives 0 where it overflows."""
    overflows = x > math.log(dtypes.finfo(x.dtype).max)
    return vnp.where(overflows, np.inf, vnp.exp(vnp.where(overflows, 0.0, x)))


def log_power(x: Array, power: Array) -> Array:
    """Return log(x^power) for x >= 0, which is 0 for the zeroth power of 0.

    Where it is infinite, its derivatives are 0.
    """
    at_zero = x == 0
    infinite = vnp.where(power > 0, -np.inf, np.inf)
    return vnp.where(at_zero, vnp.where(power == 0, 0.0, infinite), power * vnp.log(vnp.where(at_zero, 1.0, x)))


def log_probability(p: Array, complement: Array) -> Array:
    """Return log(p) of a probability from p and 1 - p."""
    small = p < 0.5
    none = p <= 0
    low = vnp.log(vnp.where(small & ~none, p, 1.0))
    return vnp.where(none, -np.inf, vnp.where(small, low, vnp.log1p(-vnp.where(small, 0.0, complement))))


# Logs of probabilities that underflow, for the gamma and the beta distribution.
#
# A tail is the density's weight times a continued fraction, of which 32 terms are exact to the last bit of float64 that far out.

_TERMS = 32
#: Probabilities below this are computed as a tail.
_TAIL_PROBABILITY = 1e-30

Term = Callable[[Array, Array], tuple[Array, Array]]


def log_with_tail(p: Array, complement: Array, tail: Callable[..., Array], arguments: tuple[Array, ...], safe: tuple[float, ...]) -> Array:
    """Return log(p), as `tail(*arguments)` where p is tiny.

    Elsewhere the tail is evaluated at the `safe` arguments, where it has no NaN that would spoil the derivatives.
    """
    in_tail = p < _TAIL_PROBABILITY
    out = tail(*[vnp.where(in_tail, argument, value) for argument, value in zip(arguments, safe, strict=True)])
    return vnp.where(in_tail, out, log_probability(vnp.where(in_tail, 0.5, p), vnp.where(in_tail, 0.5, complement)))


def _fraction(first: Array, term: Term) -> Array:
    """Return a_1 / (b_1 + a_2 / (b_2 + …)); `term` maps n and n // 2 to a_n, b_n."""

    def step(i: Any, value: Array) -> Array:
        n = (_TERMS - i).astype(first.dtype)
        numerator, denominator = term(n, vnp.floor(0.5 * n))
        return numerator / (denominator + value)

    return lax.fori_loop(0, _TERMS, step, vnp.zeros_like(first))


def log_lower_gamma(a: Array, x: Array) -> Array:
    """Return the log of gammainc(a, x) for x far below a (DLMF 8.9.1)."""
    a, x = vnp.broadcast_arrays(a, x)

    def term(n: Array, half: Array) -> tuple[Array, Array]:
        return vnp.where(n % 2 == 1, -(a + half) * x, half * x), a + n

    return log_gamma_weight(a, x) - vnp.log(a + _fraction(a, term))


def log_upper_gamma(a: Array, x: Array) -> Array:
    """Return the log of gammaincc(a, x) for x far above a (DLMF 8.9.2)."""
    a, x = vnp.broadcast_arrays(a, x)

    def term(n: Array, half: Array) -> tuple[Array, Array]:
        return n * (a - n), x + 2.0 * n + 1.0 - a

    return log_gamma_weight(a, x) - vnp.log(x + 1.0 - a + _fraction(a, term))


def log_lower_beta(a: Array, b: Array, x: Array) -> Array:
    """Return the log of betainc(a, b, x) for x far below a / (a + b)."""
    return log_beta_weight(a, b, x) + _log_beta_ratio(a, b, x)


def log_upper_beta(a: Array, b: Array, x: Array) -> Array:
    """Return the log of 1 - betainc(a, b, x) for x far above a / (a + b)."""
    return log_beta_weight(a, b, x) + _log_beta_ratio(b, a, 1.0 - x)


def _log_beta_ratio(a: Array, b: Array, x: Array) -> Array:
    """Return log(betainc(a, b, x) B(a, b) / (x^a (1 - x)^b)) (DLMF 8.17.22)."""
    a, b, x = vnp.broadcast_arrays(a, b, x)

    def term(n: Array, half: Array) -> tuple[Array, Array]:
        odd = -(a + half) * (a + b + half) / ((a + n - 1.0) * (a + n))
        even = half * (b - half) / ((a + n - 1.0) * (a + n))
        return vnp.where(n % 2 == 1, odd, even) * x, vnp.ones_like(x)

    return -vnp.log(a) - vnp.log1p(_fraction(x, term))


# Continuous distributions, declared by formulas in standard form.
#
# A formula is a function of z = (x - loc) / scale inside the support, and of the shape parameters. `Continuous` derives SciPy's
# function from it: with `loc` and `scale`, with values outside the support, and with NaN for parameters outside their domain.

Q = ParamSpec("Q")
Formula = Callable[..., Array]


class Interval(NamedTuple):
    """A support, and a point inside.

    Where z lies outside, formulas are evaluated at that point: a NaN would spoil the derivatives.
    """

    low: Any
    high: Any
    point: Any


REAL = Interval(-np.inf, np.inf, 1.0)
POSITIVE = Interval(0.0, np.inf, 1.0)
UNIT = Interval(0.0, 1.0, 0.5)


class _Standard(NamedTuple):
    """Arguments in standard form."""

    z: Array
    shapes: Sequence[Array]
    loc: Any
    scale: Any
    support: Interval
    valid: Any

    def checked(self, value: Array) -> Array:
        """Return `value`, or NaN where the arguments are NaN or not valid."""
        return vnp.where(self.valid & ~vnp.isnan(self.z), value, np.nan)


class Continuous(Generic[P]):
    """A continuous distribution, whose methods return its public functions.

    Args:
        signature: the parameters: x, the shape parameters, and `loc` and `scale` if it has them.
        support: an interval of z, or a function of the shape parameters that returns one.
        valid: a function of the shape parameters that returns where they are valid (default: everywhere).
    """

    def __init__(
        self,
        signature: Callable[P, None],
        support: Interval | Callable[..., Interval] = REAL,
        valid: Callable[..., Any] = lambda *shapes: True,
    ) -> None:
        self._signature = signature
        self._support: Callable[..., Interval] = (lambda *shapes: support) if isinstance(support, Interval) else support
        self._valid = valid
        self._namespace = sys._getframe(1).f_locals
        self._formulas: dict[str, Formula] = {}
        self._is_scaled = parameter_names(signature)[-2:] == ["loc", "scale"]

    def logpdf(self, formula: Formula) -> Callable[P, Array]:
        """Return the log density with this formula."""
        self._formulas["logpdf"] = formula
        return self._public("logpdf", self._log_density)

    def pdf(self, formula: Formula | None = None) -> Callable[P, Array]:
        """Return the density with this formula.

        By default it is the exponential of the log density. A formula is a function of x, the shape parameters, and `loc` and `scale` if
        there are any. It is more precise: the relative error of the exponential of a rounded logarithm, or of a rounded z, grows with the
        size of that number.
        """
        if formula is None:
            return self._public("pdf", lambda *args: vnp.exp(self._log_density(*args)))
        return self._public("pdf", lambda *args: self._density(formula, *args))

    def cdf(self, formula: Formula) -> Callable[P, Array]:
        """Return the distribution function with this formula."""
        return self._cumulative("cdf", formula, 0.0, 1.0)

    def sf(self, formula: Formula) -> Callable[P, Array]:
        """Return the survival function with this formula."""
        return self._cumulative("sf", formula, 1.0, 0.0)

    def logcdf(self, formula: Formula | None = None) -> Callable[P, Array]:
        """Return the log of the distribution function, by default from `cdf` and `sf`."""
        return self._cumulative("logcdf", formula or self._log_of("cdf", "sf"), -np.inf, 0.0)

    def logsf(self, formula: Formula | None = None) -> Callable[P, Array]:
        """Return the log of the survival function, by default from `cdf` and `sf`."""
        return self._cumulative("logsf", formula or self._log_of("sf", "cdf"), 0.0, -np.inf)

    def ppf(self, formula: Formula, signature: Callable[Q, None]) -> Callable[Q, Array]:
        """Return the inverse of the distribution function with this formula."""
        return self._quantile("ppf", formula, signature, lambda support: (support.low, support.high))

    def isf(self, formula: Formula, signature: Callable[Q, None]) -> Callable[Q, Array]:
        """Return the inverse of the survival function with this formula."""
        return self._quantile("isf", formula, signature, lambda support: (support.high, support.low))

    def _public(self, name: str, evaluate: Formula) -> Callable[P, Array]:
        return public_function(name, evaluate, self._signature, self._namespace)

    def _log_of(self, name: str, complement: str) -> Formula:
        return lambda z, *shapes: log_probability(self._formulas[name](z, *shapes), self._formulas[complement](z, *shapes))

    def _standardize(self, *args: Array) -> _Standard:
        x, *shapes = args
        loc, scale = (shapes[-2], shapes[-1]) if self._is_scaled else (0.0, 1.0)
        if not self._is_scaled:
            return _Standard(x, shapes, loc, scale, self._support(*shapes), self._valid(*shapes))
        shapes = shapes[:-2]
        return _Standard((x - loc) / scale, shapes, loc, scale, self._support(*shapes), self._valid(*shapes) & (scale > 0))

    def _log_density(self, *args: Array) -> Array:
        standard = self._standardize(*args)
        z, (low, high, point) = standard.z, standard.support
        inside = (z >= low) & (z <= high) & vnp.isfinite(z)
        value = self._formulas["logpdf"](vnp.where(inside, z, point), *standard.shapes)
        return standard.checked(vnp.where(inside, value, -np.inf) - (vnp.log(standard.scale) if self._is_scaled else 0.0))

    def _density(self, formula: Formula, *args: Array) -> Array:
        standard = self._standardize(*args)
        z, (low, high, point) = standard.z, standard.support
        inside = (z >= low) & (z <= high) & vnp.isfinite(z)
        x = vnp.where(inside, args[0], point * standard.scale + standard.loc)
        return standard.checked(vnp.where(inside, formula(x, *args[1:]), 0.0))

    def _cumulative(self, name: str, formula: Formula, below: float, above: float) -> Callable[P, Array]:
        def evaluate(*args: Array) -> Array:
            standard = self._standardize(*args)
            z, (low, high, point) = standard.z, standard.support
            inside = (z > low) & (z < high)
            value = formula(vnp.where(inside, z, point), *standard.shapes)
            return standard.checked(vnp.where(inside, value, vnp.where(z <= low, below, above)))

        self._formulas[name] = formula
        return self._public(name, evaluate)

    def _quantile(
        self, name: str, formula: Formula, signature: Callable[Q, None], ends: Callable[[Interval], tuple[Any, Any]]
    ) -> Callable[Q, Array]:
        def evaluate(q: Array, *rest: Array) -> Array:
            standard = self._standardize(q, *rest)
            inside = (q > 0) & (q < 1)
            first, last = ends(standard.support)
            value = formula(vnp.where(inside, q, 0.5), *standard.shapes)
            end = vnp.where(q == 0, first, vnp.where(q == 1, last, np.nan))
            return standard.checked(vnp.where(inside, value, end) * standard.scale + standard.loc)

        return public_function(name, evaluate, signature, self._namespace)


# Distributions of integers, declared by formulas for `loc` 0.


def nonnegative_support(*shapes: Array) -> tuple[Any, Any]:
    """Return the support 0, 1, 2, …."""
    return 0.0, np.inf


class Discrete(Generic[P]):
    """A distribution of integers, whose methods return its public functions.

    Args:
        signature: the parameters: k, the shape parameters, and `loc` if it has one.
        support: a function of the shape parameters that returns the least and the largest integer.
        valid: a function of the shape parameters that returns where they are valid.
    """

    def __init__(self, signature: Callable[P, None], support: Callable[..., tuple[Any, Any]], valid: Callable[..., Any]) -> None:
        self._signature = signature
        self._support = support
        self._valid = valid
        self._namespace = sys._getframe(1).f_locals
        self._has_loc = parameter_names(signature)[-1] == "loc"
        self._formula: Formula

    def logpmf(self, formula: Formula) -> Callable[P, Array]:
        """Return the log of the probability function with this formula."""
        self._formula = formula
        return self._public("logpmf", self._log_mass)

    def pmf(self, formula: Formula | None = None) -> Callable[P, Array]:
        """Return the probability function, by default the exponential of its log."""
        if formula is None:
            return self._public("pmf", lambda *args: vnp.exp(self._log_mass(*args)))
        return self._public("pmf", lambda *args: self._mass(formula, 0.0, *args))

    def cdf(self, formula: Formula) -> Callable[P, Array]:
        """Return the distribution function with this formula."""

        def evaluate(*args: Array) -> Array:
            k, shapes = self._without_loc(*args)
            low, high = self._support(*shapes)
            inside = (k >= low) & (k < high)
            value = formula(vnp.where(inside, vnp.floor(k), low), *shapes)
            return self._checked(k, shapes, vnp.where(inside, value, vnp.where(k < low, 0.0, 1.0)))

        return self._public("cdf", evaluate)

    def _public(self, name: str, evaluate: Formula) -> Callable[P, Array]:
        return public_function(name, evaluate, self._signature, self._namespace)

    def _without_loc(self, *args: Array) -> tuple[Array, list[Array]]:
        """Return k - loc and the shape parameters."""
        k, *shapes = args
        return (k - shapes[-1], shapes[:-1]) if self._has_loc else (k, shapes)

    def _checked(self, k: Array, shapes: list[Array], value: Array) -> Array:
        return vnp.where(self._valid(*shapes) & ~vnp.isnan(k), value, np.nan)

    def _log_mass(self, *args: Array) -> Array:
        return self._mass(self._formula, -np.inf, *args)

    def _mass(self, formula: Formula, outside: float, *args: Array) -> Array:
        k, shapes = self._without_loc(*args)
        low, high = self._support(*shapes)
        inside = (k >= low) & (k <= high) & (k == vnp.floor(k)) & vnp.isfinite(k)
        value = formula(vnp.where(inside, k, low), *shapes)
        return self._checked(k, shapes, vnp.where(inside, value, outside))


# Distributions of vectors: `multivariate_normal`, `multinomial`, `dirichlet`.


@composite
def _multivariate_normal_log_density(x: Any, mean: Any, cov: Any) -> Array:
    if mean.ndim == 0:
        return -0.5 * ((x - mean) ** 2 / cov + vnp.log(2.0 * math.pi * cov))
    size = mean.shape[-1]
    if x.ndim == 0 or x.shape[-1] not in (1, size) or (cov.ndim and cov.shape[-2:] != (size, size)):
        shapes = f"{x.shape}, {mean.shape} and {cov.shape}"
        raise ShapeError(f"multivariate_normal.logpdf: x, mean and cov must have shapes (..., n), (..., n) and (..., n, n), got {shapes}")
    y = x - mean
    if cov.ndim == 0:
        return -0.5 * (vnp.sum(y * y, -1) / cov + size * vnp.log(2.0 * math.pi * cov))
    factor = lax.linalg.cholesky(cov)
    half_log_det = vnp.sum(vnp.log(vnp.diagonal(factor, axis1=-2, axis2=-1)), -1)
    whitened = whiten(factor, y)
    return -0.5 * vnp.sum(whitened * whitened, -1) - half_log_det - 0.5 * size * math.log(2.0 * math.pi)


def whiten(factor: Array, y: Array) -> Array:
    """Return L⁻¹ y for lower triangular factors (..., n, n) and vectors (..., n)."""
    if factor.ndim == 2:
        columns = lax.linalg.triangular_solve(factor, y.reshape(-1, y.shape[-1]).T, left_side=True, lower=True)
        return columns.T.reshape(y.shape)
    batch = lax.broadcast_shapes(factor.shape[:-2], y.shape[:-1])
    factors, vectors = vnp.broadcast_to(factor, batch + factor.shape[-2:]), vnp.broadcast_to(y, batch + y.shape[-1:])
    return lax.linalg.triangular_solve(factors, vectors[..., None], left_side=True, lower=True)[..., 0]


@distribution
class multivariate_normal:
    """The normal distribution of vectors, with a mean and a covariance matrix.

    >>> vf.scipy.stats.multivariate_normal.pdf(vf.numpy.zeros(2), vf.numpy.zeros(2), vf.numpy.eye(2)).round(4)
    Array(0.1592, dtype=float32)
    """

    @staticmethod
    def logpdf(x: Any, mean: Any, cov: Any, allow_singular: bool | None = None) -> Array:
        """Return the log of the density.

        The density is exp(-yᵀ cov⁻¹ y / 2) / sqrt((2π)ⁿ |cov|) for y = x - mean.

        Args:
            x: points, of shape (..., n); of any shape if `mean` is a scalar.
            mean: of shape (..., n), or a scalar for the distribution of numbers.
            cov: of shape (..., n, n), symmetric and positive definite (NaN for others), or a scalar, the variance of every component.
            allow_singular: not supported; the covariance must be regular.

        Returns an array of shape (...), to which the batch shapes broadcast. Raises `ShapeError` if the shapes do not fit, `ArgumentError`
        for `allow_singular`.

        >>> vf.scipy.stats.multivariate_normal.logpdf(vf.numpy.ones((3, 2)), vf.numpy.zeros(2), 2.0).round(4)
        Array([-3.031, -3.031, -3.031], dtype=float32)
        """
        if allow_singular:
            raise ArgumentError("multivariate_normal.logpdf: singular covariances are not supported; add a small multiple of the identity")
        return _multivariate_normal_log_density(x, mean, cov)

    @staticmethod
    def pdf(x: Any, mean: Any, cov: Any) -> Array:
        """Return the density, of which `logpdf` is the log.

        >>> vf.scipy.stats.multivariate_normal.pdf(vf.numpy.zeros(2), vf.numpy.zeros(2), 2.0).round(4)
        Array(0.0796, dtype=float32)
        """
        return vnp.exp(multivariate_normal.logpdf(x, mean, cov))


def _is_no_probability(p: Array) -> Array:
    return ~((p >= 0) & (p <= 1))


@composite
def _multinomial_log_mass(x: Any, p: Any) -> Array:
    out = gammaln(vnp.sum(x, -1) + 1.0) + vnp.sum(log_power(p, x) - gammaln(x + 1.0), -1)
    return vnp.where(vnp.any(_is_no_probability(p), -1), np.nan, out)


@distribution
class multinomial:
    """The multinomial distribution of counts of outcomes with probabilities `p`.

    >>> vf.scipy.stats.multinomial.pmf(vf.numpy.array([1, 1]), 2, vf.numpy.array([0.5, 0.5])).round(4)
    Array(0.5, dtype=float32)
    """

    @staticmethod
    def logpmf(x: Any, n: Any, p: Any) -> Array:
        """Return the log of the probability n! Π p^x / x!.

        Args:
            x: counts of the k outcomes, integers of shape (..., k). Where they are negative or do not sum to n, the probability is 0.
            n: the number of trials, an integer or integers of shape (...).
            p: the outcomes' probabilities, of shape (..., k); NaN if one is not between 0 and 1.

        Returns an array of shape (...), of p's dtype. Raises `DTypeError` for counts that are not integers.

        >>> vf.scipy.stats.multinomial.logpmf(vf.numpy.array([1, 1]), 2, vf.numpy.array([0.5, 0.5])).round(4)
        Array(-0.6931, dtype=float32)
        """
        counts, trials = promote_args("multinomial.logpmf", (x, n), dtypes.ALL)
        if counts.dtype not in dtypes.INTEGERS:
            raise DTypeError(f"multinomial.logpmf: x and n must be integers, got {counts.dtype.name}; convert them with astype")
        (probabilities,) = promote_args("multinomial.logpmf", (p,), dtypes.FLOATS)
        possible = vnp.all(counts >= 0, -1) & (vnp.sum(counts, -1) == trials)
        safe = vnp.where(possible[..., None], counts, 0).astype(dtypes.accumulator(probabilities.dtype))
        return vnp.where(possible | vnp.any(_is_no_probability(probabilities), -1), _multinomial_log_mass(safe, probabilities), -np.inf)

    @staticmethod
    def pmf(x: Any, n: Any, p: Any) -> Array:
        """Return the probability, of which `logpmf` is the log.

        >>> vf.scipy.stats.multinomial.pmf(vf.numpy.array([2, 0]), 2, vf.numpy.array([0.5, 0.5])).round(4)
        Array(0.25, dtype=float32)
        """
        return vnp.exp(multinomial.logpmf(x, n, p))


def _dirichlet_log_density(x: Array, alpha: Array, tolerance: float) -> Array:
    if x.shape[0] < alpha.shape[0]:
        x = vnp.concatenate([x, 1.0 - vnp.sum(x, 0, keepdims=True)])
    inside = vnp.all(x >= 0, 0) & (vnp.abs(vnp.sum(x, 0) - 1.0) < tolerance)
    powers = alpha.reshape(-1, *(1,) * (x.ndim - 1)) - 1.0
    out = vnp.sum(log_power(vnp.where(inside, x, 0.5), powers), 0) + gammaln(vnp.sum(alpha)) - vnp.sum(gammaln(alpha))
    is_nan = vnp.any(vnp.isnan(x), 0) | ~vnp.all(alpha > 0)
    return vnp.where(is_nan, np.nan, vnp.where(inside, out, -np.inf))


@distribution
class dirichlet:
    """The Dirichlet distribution of shares that sum to 1, with concentrations `alpha`.

    >>> vf.scipy.stats.dirichlet.pdf(vf.numpy.array([0.2, 0.3, 0.5]), vf.numpy.array([1.0, 2.0, 3.0])).round(3)
    Array(4.5, dtype=float32)
    """

    @staticmethod
    def logpdf(x: Any, alpha: Any) -> Array:
        """Return the log of the density Γ(Σ alpha) Π x^(alpha-1) / Γ(alpha).

        Args:
            x: shares, of shape (k, ...) or (k - 1, ...), to which the last share is added. Where they are negative or do not sum to 1
                (within 1e-6, or twice their dtype's precision), the density is 0.
            alpha: positive numbers, of shape (k,); NaN for others.

        Returns an array of shape (...). Raises `ShapeError` if the shapes do not fit.

        >>> vf.scipy.stats.dirichlet.logpdf(vf.numpy.array([0.2, 0.3]), vf.numpy.array([1.0, 2.0, 3.0])).round(3)
        Array(1.504, dtype=float32)
        """
        shares, concentration = promote_args("dirichlet.logpdf", (x, alpha), dtypes.FLOATS)
        dtype = shares.dtype
        if concentration.ndim != 1:
            raise ShapeError(f"dirichlet.logpdf: alpha must have one dimension, got shape {concentration.shape}")
        size = concentration.shape[0]
        if shares.ndim == 0 or shares.shape[0] not in (size, size - 1):
            raise ShapeError(f"dirichlet.logpdf: x must have shape ({size}, ...) or ({size - 1}, ...), got {shares.shape}")
        wide = dtypes.accumulator(dtype)
        shares, concentration = (lax.convert_element_type(v, wide) for v in (shares, concentration))
        tolerance = max(1e-6, 2 * float(dtypes.finfo(dtype).eps))
        return lax.convert_element_type(_dirichlet_log_density(shares, concentration, tolerance), dtype)

    @staticmethod
    def pdf(x: Any, alpha: Any) -> Array:
        """Return the density, of which `logpdf` is the log.

        >>> vf.scipy.stats.dirichlet.pdf(vf.numpy.array([0.5, 0.5]), vf.numpy.array([1.0, 1.0])).round(3)
        Array(1., dtype=float32)
        """
        return vnp.exp(dirichlet.logpdf(x, alpha))
