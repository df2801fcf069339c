"""Elementwise comparison, logic and bits, which have no derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array
from volta_fn.primitives.declare import Elementwise, elementwise
from volta_fn.primitives.elementwise.complex_components import imag, real
from volta_fn.primitives.formulas import numpy_rules as rules

_BITS = dtypes.INTEGERS | dtypes.BOOL


def _to_bool(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.bool_)


def _comparison(name: str, evaluate: Any, doc: str, operands: frozenset[np.dtype] = dtypes.ALL) -> Elementwise:
    return elementwise(name, evaluate, operands=operands, derivatives=[None, None], result=_to_bool, doc=doc)


_ORDERED = dtypes.ALL - dtypes.COMPLEX

eq = _comparison("eq", np.equal, "x == y, as bool")
ne = _comparison("ne", np.not_equal, "x != y, as bool")
lt = _comparison("lt", np.less, "x < y, as bool", _ORDERED)
le = _comparison("le", np.less_equal, "x <= y, as bool", _ORDERED)
gt = _comparison("gt", np.greater, "x > y, as bool", _ORDERED)
ge = _comparison("ge", np.greater_equal, "x >= y, as bool", _ORDERED)

bitwise_and: Elementwise = elementwise(
    "and", np.bitwise_and, operands=_BITS, derivatives=[None, None], doc="Bitwise (for bool: logical) x & y."
)
bitwise_or: Elementwise = elementwise(
    "or", np.bitwise_or, operands=_BITS, derivatives=[None, None], doc="Bitwise (for bool: logical) x | y."
)
bitwise_xor: Elementwise = elementwise(
    "xor", np.bitwise_xor, operands=_BITS, derivatives=[None, None], doc="Bitwise (for bool: logical) x ^ y."
)
bitwise_not: Elementwise = elementwise("not", np.invert, operands=_BITS, derivatives=[None], doc="Bitwise (for bool: logical) ~x.")


def lexicographic(compare: Elementwise) -> Callable[[Array, Array], Array]:
    """Return a comparison of complex numbers: by real part, then by imaginary part."""

    def compare_complex(x: Array, y: Array) -> Array:
        first, second = compare(real(x), real(y)), compare(imag(x), imag(y))
        tie = eq(real(x), real(y))
        return bitwise_or(bitwise_and(tie, second), bitwise_and(bitwise_not(tie), first))

    return compare_complex


shift_left: Elementwise = elementwise(
    "shift_left", rules.shift_left, operands=dtypes.INTEGERS, derivatives=[None, None],
    doc="x << y; 0 when y is not below the number of bits",
)  # fmt: skip
shift_right_arithmetic: Elementwise = elementwise(
    "shift_right_arithmetic", rules.shift_right_arithmetic, operands=dtypes.INTEGERS, derivatives=[None, None],
    doc="x >> y filling with the sign bit",
)  # fmt: skip
shift_right_logical: Elementwise = elementwise(
    "shift_right_logical", rules.shift_right_logical, operands=dtypes.INTEGERS, derivatives=[None, None], doc="x >> y filling with zeros"
)
population_count: Elementwise = elementwise(
    "population_count", rules.population_count, operands=dtypes.INTEGERS, derivatives=[None], doc="The number of one bits."
)
clz: Elementwise = elementwise("clz", rules.clz, operands=dtypes.INTEGERS, derivatives=[None], doc="The number of leading zero bits.")
is_finite: Elementwise = elementwise(
    "is_finite", np.isfinite, operands=dtypes.FLOATS, derivatives=[None], result=_to_bool, doc="Whether x is neither infinite nor NaN."
)
