"""Logs of probabilities that underflow, for the gamma and the beta distribution.

A tail is the density's weight times a continued fraction. So far out 32 terms of it are exact to the last bit of float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.scipy.special.stirling import log_beta_weight, log_gamma_weight
from volta_fn.scipy.stats.declarations.logarithms import log_probability

_TERMS = 32
#: Probabilities below this are those of a tail.
_DEEP = 1e-30

Term = Callable[[Array, Array], tuple[Array, Array]]


def log_or_tail(p: Array, complement: Array, tail: Callable[..., Array], arguments: tuple[Array, ...], typical: tuple[float, ...]) -> Array:
    """Return log(p), by `tail(*arguments)` where p is tiny.

    Elsewhere the tail is evaluated at the `typical` arguments, which are in one.
    """
    deep = p < _DEEP
    out = tail(*[vnp.where(deep, argument, value) for argument, value in zip(arguments, typical, strict=True)])
    return vnp.where(deep, out, log_probability(vnp.where(deep, 0.5, p), vnp.where(deep, 0.5, complement)))


def _fraction(first: Array, term: Term) -> Array:
    """Return a_1 / (b_1 + a_2 / (b_2 + …)), given a_n and b_n by n and by n // 2."""

    def step(i: Any, value: Array) -> Array:
        n = (_TERMS - i).astype(first.dtype)
        top, bottom = term(n, vnp.floor(0.5 * n))
        return top / (bottom + value)

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
