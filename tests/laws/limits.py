"""What the Array API standard says of functions at zero and infinity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

INF, NAN = np.inf, np.nan

#: By function, arguments (real, imaginary) and results (real, imaginary), as the Array API standard has them.
COMPLEX: dict[str, list[tuple[float, float, float, float]]] = {
    "expm1": [
        (0.0, 0.0, 0.0, 0.0), (-0.0, 0.0, 0.0, 0.0), (INF, 0.0, INF, 0.0), (-INF, INF, -1.0, 0.0), (INF, INF, INF, NAN),
        (-INF, NAN, -1.0, 0.0), (INF, NAN, INF, NAN), (NAN, 0.0, NAN, 0.0), (NAN, 1.0, NAN, NAN), (1.0, INF, NAN, NAN),
        (-INF, 1.0, -1.0, 0.0),
    ],
    "tanh": [
        (0.0, 0.0, 0.0, 0.0), (1.0, INF, NAN, NAN), (0.0, INF, 0.0, NAN), (0.0, NAN, 0.0, NAN), (INF, 2.0, 1.0, 0.0),
        (INF, -2.0, 1.0, -0.0), (-INF, 2.0, -1.0, 0.0), (INF, INF, 1.0, 0.0), (INF, NAN, 1.0, 0.0), (NAN, 0.0, NAN, 0.0),
        (NAN, 1.0, NAN, NAN), (300.0, INF, NAN, NAN), (-300.0, NAN, NAN, NAN),
    ],
    "atanh": [
        (0.0, 0.0, 0.0, 0.0), (NAN, 1.0, NAN, NAN), (NAN, -1e30, NAN, NAN), (1.0, NAN, NAN, NAN), (1e30, NAN, NAN, NAN),
        (0.0, NAN, 0.0, NAN), (INF, NAN, 0.0, NAN), (1.0, 0.0, INF, 0.0),
    ],
    "tan": [(2.0, INF, 0.0, 1.0), (-2.0, INF, -0.0, 1.0), (2.0, -INF, 0.0, -1.0), (0.0, 0.0, 0.0, 0.0)],
}  # fmt: skip


def check_divisions(divmod: Callable[[Any, Any], Any], dtype: Any) -> None:
    """Check quotients and remainders of all pairs of special numbers.

    Quotients with an infinity are floor(x / y), which the standard prefers; all else is NumPy's, signs of zeros too.
    """
    special = np.array([0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 5.5, -5.5, 2.0, -4.0], dtype)
    x, y = special[:, None], special
    with np.errstate(all="ignore"):
        quotient, rest = np.floor_divide(x, y), np.remainder(x, y)
        quotient = np.where(np.isinf(x) | np.isinf(y), np.floor(x / y), quotient)
    for got, wanted in zip(map(np.asarray, divmod(x, y)), (quotient, rest), strict=True):
        _assert_same(got.astype(np.float64), wanted.astype(np.float64), ~np.isnan(wanted))


def check_sign(sign: Callable[[Any], Any], dtype: Any) -> None:
    """Check that signs of zeros are 0.0, not -0.0."""
    x = np.array([0.0, -0.0, INF, -INF, NAN, 2.5, -1e-3], dtype)
    wanted = np.array([0.0, 0.0, 1.0, -1.0, NAN, 1.0, -1.0])
    _assert_same(np.asarray(sign(x)).astype(np.float64), wanted, ~np.isnan(wanted))


def check_complex(name: str, function: Callable[[Any], Any], dtype: Any) -> None:
    """Check a function at the arguments of `COMPLEX`.

    A zero has a sign where the argument's component is finite.
    """
    real, imaginary, *wanted = np.array(COMPLEX[name]).T
    z = np.empty(real.shape, dtype)
    z.real, z.imag = real, imaginary
    out = np.asarray(function(z))
    for got, want, argument in zip((out.real, out.imag), wanted, (real, imaginary), strict=True):
        _assert_same(got, want, ~np.isnan(want) & np.isfinite(argument))


def _assert_same(got: np.ndarray, wanted: np.ndarray, signed: np.ndarray) -> None:
    """Compare numbers, and where `signed` the signs of zeros."""
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(np.signbit(got)[signed], np.signbit(wanted)[signed])
