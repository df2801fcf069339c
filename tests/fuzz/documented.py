"""The differences between targets, and to JAX, that are documented: results that depend on one are not compared.

They are in `docs/differences.md`, row by row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np

_NAMES = re.compile(r"\b[xv]\d+\b")

Values = dict[str, np.ndarray]


class Documented(NamedTuple):
    """A difference of some ways to run programs, in statements, of values."""

    #: Patterns of the names of ways ("gpu jit", "JAX"), and of statements.
    ways: str
    statements: str
    #: Whether it is one for the operands and, last, the result.
    applies: Callable[[Sequence[np.ndarray]], bool]


def _known(value: np.ndarray) -> np.ndarray:
    return value if value.dtype.kind in "biufc" else value.astype(np.float32)  # NumPy knows no bfloat16


def _not_finite(values: Sequence[np.ndarray]) -> bool:
    return any(not np.isfinite(_known(value)).all() for value in values)


def _complex_not_finite(values: Sequence[np.ndarray]) -> bool:
    return _not_finite([value for value in values if value.dtype.kind == "c"])


def _nan(values: Sequence[np.ndarray]) -> bool:
    return any(bool(np.isnan(_known(value)).any()) for value in values if value.dtype.kind not in "biu")


def _zero(values: Sequence[np.ndarray]) -> bool:
    return any(bool((value == 0).any()) for value in values[:-1])


def _zero_or_nan(values: Sequence[np.ndarray]) -> bool:
    return _zero(values) or _nan(values)


def _integer_zero(values: Sequence[np.ndarray]) -> bool:
    return _zero(values) and values[-1].dtype.kind in "iu"


def _masks_not_finite(values: Sequence[np.ndarray]) -> bool:
    return any(value.dtype.kind == "b" for value in values) and _not_finite(values)


def _unsigned_with_signed(values: Sequence[np.ndarray]) -> bool:
    return any(value.dtype == np.uint64 for value in values) and any(value.dtype.kind == "i" for value in values)


def _subnormal(values: Sequence[np.ndarray]) -> bool:
    """Tell whether there are numbers that are, or round to, less than the smallest normal one, but 0."""
    result = False
    for value in (v for v in values if v.dtype.kind not in "biu"):
        sizes = np.abs(np.stack([value.real, value.imag]) if value.dtype.kind == "c" else value)
        result |= bool(((sizes > 0) & (sizes < 2 * float(ml_dtypes.finfo(sizes.dtype).tiny))).any())
    return result


#: Statements whose results are sums of products.
_PRODUCTS = r"@|jnp\.dot|tensordot|conv_general|linalg|fft|prod|associative_scan"

DOCUMENTED = [
    Documented("gpu", "", _complex_not_finite),
    Documented("gpu|native", "conv_general|fft", _not_finite),
    Documented("", r"linalg\.(inv|det)", _not_finite),
    Documented("JAX", "", _complex_not_finite),
    Documented("JAX", _PRODUCTS, _not_finite),
    Documented("JAX", r"min|max|clip|clamp|sort|unique|where", _nan),
    Documented("JAX", "top_k", _zero_or_nan),
    Documented("JAX", r"(grad|jvp|vjp).*abs", _zero_or_nan),
    Documented("JAX", r"lax\.div", _integer_zero),
    Documented("JAX", "digamma", _zero),
    Documented("JAX", "sinc|floor_divide", _not_finite),
    Documented("JAX", r"\*", _masks_not_finite),
    Documented("JAX", r"[+*]", _unsigned_with_signed),
    Documented("JAX", "", _subnormal),
]


def excused(way: str, lines: Sequence[tuple[str, str]], values: Values) -> set[str]:
    """Return the statements of a program to which a documented difference applies, and those that depend on them."""
    results: set[str] = set()
    rules = [rule for rule in DOCUMENTED if re.match(rule.ways, way)]
    for name, text in lines:
        used = _NAMES.findall(text)
        involved = [values[n] for n in used if n in values] + [values[name]]
        if not results.isdisjoint(used) or any(re.search(rule.statements, text) and rule.applies(involved) for rule in rules):
            results.add(name)
    return results
