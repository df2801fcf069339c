"""Comparison, logic, choice between operands, and components of complex numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import Linear, Primitive, Zero
from volta_fn.core.trace import bind
from volta_fn.errors import DTypeError, ShapeError
from volta_fn.primitives.data_movement.movement import broadcast_to, no_tangents
from volta_fn.primitives.declare import Domain, Elementwise, batch_aligned, broadcast_shapes, elementwise, unbroadcast, weakly_promoted
from volta_fn.primitives.formulas import numpy_values as rules

# Elementwise comparison, logic and bits, which have no derivatives.

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
    """Return a comparison of complex numbers: by real part, then by imaginary part.

    Operands of other dtypes are compared by `compare`, which refuses those that it is not defined for.
    """

    def compare_complex(x: Array, y: Array) -> Array:
        if x.dtype not in dtypes.COMPLEX:
            return compare(x, y)
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


# Complex numbers and their components.
#
# These maps are real-linear, so their transposes are declared, not derived.


def _as_complex(re: Any) -> Array:
    return complex(re, as_value(np.zeros((), re.dtype)))


real: Elementwise = elementwise(
    "real", np.real, operands=dtypes.COMPLEX, derivatives=[lambda g, out, x: real(g)], result=dtypes.real_dtype,
    transpose=lambda ct, operand: [_as_complex(ct)], doc="The real part.",
)  # fmt: skip

# JAX's convention: a transpose pairs without conjugation, so i * y picks up -ct in the imaginary direction.
imag: Elementwise = elementwise(
    "imag", np.imag, operands=dtypes.COMPLEX, derivatives=[lambda g, out, x: imag(g)], result=dtypes.real_dtype,
    transpose=lambda ct, operand: [complex(as_value(np.zeros((), ct.dtype)), -ct)], doc="The imaginary part.",
)  # fmt: skip


def _join(re: np.ndarray, im: np.ndarray) -> np.ndarray:
    out = np.empty(np.broadcast_shapes(re.shape, im.shape), np.result_type(re.dtype, np.complex64))
    out.real, out.imag = re, im
    return out


complex: Elementwise = elementwise(
    "complex", _join, operands=frozenset({np.dtype(np.float32), np.dtype(np.float64)}),
    derivatives=[lambda g, out, x, y: _as_complex(g), lambda g, out, x, y: complex(as_value(np.zeros((), g.dtype)), g)],
    result=dtypes.complex_dtype,
    transpose=lambda ct, x, y: [
        unbroadcast(real(ct), x.shape) if type(x) is Linear else None, unbroadcast(-imag(ct), y.shape) if type(y) is Linear else None
    ],
    doc="The complex numbers x + iy from real parts and imaginary parts.",
)  # fmt: skip

_conj_complex: Elementwise = elementwise(
    "conj", np.conjugate, operands=dtypes.COMPLEX, derivatives=[lambda g, out, x: _conj_complex(g)],
    transpose=lambda ct, operand: [_conj_complex(ct)], doc="The complex conjugate.",
)  # fmt: skip


def conj(x: Any) -> Array:
    """Return the complex conjugate; real arrays are returned as they are.

    >>> vf.lax.conj(vf.numpy.array([1 + 2j, 3j]))
    Array([1.-2.j, 0.-3.j], dtype=complex64)
    """
    value = as_value(x)
    return _conj_complex(value) if value.dtype in dtypes.COMPLEX else value


# Choosing between operands element by element: select_n, clamp.


def _select_abstract(which: ShapedArray, *cases: ShapedArray) -> ShapedArray:
    if not cases:
        raise ShapeError("select_n needs at least one case")
    if which.dtype != np.bool_ and which.dtype != np.int32:
        raise DTypeError(f"select_n chooses by a bool or int32 array, got {which}")
    if which.dtype == np.bool_ and len(cases) > 2:
        raise ShapeError(f"select_n by a bool array chooses between two cases, got {len(cases)}")
    if len({c.dtype for c in cases}) > 1:
        raise DTypeError(f"select_n needs cases of one dtype, got {', '.join(c.dtype.name for c in cases)}")
    shape = broadcast_shapes(which.shape, *[c.shape for c in cases])
    return ShapedArray(shape, cases[0].dtype, all(c.weak_type for c in cases))


#: With fewer elements than this the setting up of several operations takes longer than `np.where`.
_FEW = 1 << 12


def choose(which: np.ndarray, *cases: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Evaluate `select_n` on NumPy arrays."""
    if which.dtype == np.bool_ and len(cases) == 2:
        return _choose_by_bool(which, *cases, out)
    out = np.empty(np.broadcast_shapes(which.shape, *[c.shape for c in cases]), cases[0].dtype) if out is None else out
    np.copyto(out, cases[0])
    for i, case in enumerate(cases[1:], 1):
        np.copyto(out, case, where=which >= i)
    return out


def _choose_by_bool(which: np.ndarray, off: np.ndarray, on: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    if out is None and max(which.size, off.size, on.size) < _FEW:
        return np.where(which, on, off)  # before the shape is read, which takes longer than choosing a few numbers
    shape = np.broadcast_shapes(which.shape, off.shape, on.shape)
    if math.prod(shape) >= _FEW and off.dtype.itemsize in _WORDS:
        return _select_bits(which, off, on, np.empty(shape, off.dtype) if out is None else out)
    if out is None:
        return np.where(which, on, off)
    np.copyto(out, off)
    np.copyto(out, on, where=which)
    return out


_WORDS = {size: np.dtype(f"i{size}") for size in (1, 2, 4, 8)}


def _select_bits(which: np.ndarray, off: np.ndarray, on: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Select by integers, several times as fast as `np.where`."""
    # It is `off ^ ((off ^ on) * which)`, or `on * which` if off is 0.
    word = _WORDS[out.dtype.itemsize]
    off, on, target = off.view(word), on.view(word), out.view(word)
    if off.ndim == 0 and not off:
        np.multiply(on, which.view(np.int8), out=target, dtype=word)
        return out
    np.bitwise_xor(off, on, out=target)
    np.multiply(target, which.view(np.int8), out=target, dtype=word)
    np.bitwise_xor(target, off, out=target)
    return out


def _select_jvp(primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[Array, Any]:
    out = bind(select_n_p, *primals)
    case_tangents = tangents[1:]
    if all(type(t) is Zero for t in case_tangents):
        return no_tangents(out)
    zero = as_value(np.zeros((), out.aval.tangent_aval().dtype))
    out_tangent = bind(select_n_p, primals[0], *[zero if type(t) is Zero else t for t in case_tangents])
    return out, broadcast_to(out_tangent, out.shape)


def _select_transpose(ct: Any, which: Any, *cases: Any) -> list[Any]:
    zero = as_value(np.zeros((), ct.dtype))
    results: list[Any] = [None]
    for i, case in enumerate(cases):
        if type(case) is not Linear:
            results.append(None)
            continue
        case_cotangents = [ct if j == i else zero for j in range(len(cases))]
        results.append(unbroadcast(broadcast_to(bind(select_n_p, which, *case_cotangents), ct.shape), case.shape))
    return results


select_n_p = Primitive("select_n", _select_abstract, evaluate=choose, jvp=_select_jvp, transpose=_select_transpose, batch=batch_aligned)


def select_n(which: Any, *cases: Any) -> Array:
    """Return ``cases[which]`` element by element.

    `which` is bool (two cases) or int32. Operands broadcast.

    >>> vf.lax.select_n(vf.numpy.array([True, False]), vf.numpy.array([1, 2]), vf.numpy.array([10, 20]))
    Array([10,  2], dtype=int32)
    """
    return bind(select_n_p, as_value(which), *weakly_promoted("select_n", cases))


def select(pred: Any, on_true: Any, on_false: Any) -> Array:
    """Return `on_true` where `pred`, else `on_false`, element by element.

    >>> vf.lax.select(vf.numpy.array([True, False]), vf.numpy.array([1, 2]), vf.numpy.array([8, 9]))
    Array([1, 9], dtype=int32)
    """
    return select_n(pred, on_false, on_true)


def _inside(g: Array, out: Any, low: Array, x: Array, high: Array) -> Array:
    return select(bind(bitwise_and.primitive, bind(gt.primitive, x, low), bind(lt.primitive, x, high)), g, as_value(np.zeros((), g.dtype)))


def _at_bound(comparison: Elementwise, position: int) -> Any:
    def derivative(g: Array, out: Any, low: Array, x: Array, high: Array) -> Array:
        bound = (low, high)[position]
        is_at_bound = bind(comparison.primitive, x, bound)
        if position == 0:  # the upper bound takes precedence
            is_at_bound = bind(bitwise_and.primitive, is_at_bound, bind(lt.primitive, low, high))
        return select(is_at_bound, g, as_value(np.zeros((), g.dtype)))

    return derivative


_clamp: Elementwise = elementwise(
    "clamp", lambda low, x, high: np.minimum(np.maximum(x, low), high), operands=dtypes.ALL - dtypes.COMPLEX,
    derivatives=[_at_bound(lt, 0), _inside, _at_bound(gt, 1)],
    domain=Domain(-3.0, 3.0, operands={0: (-1.5, -0.5), 2: (0.5, 1.5)}),
)  # fmt: skip


def clamp(min: Any, x: Any, max: Any) -> Array:
    """Return `x` where it is between `min` and `max`, else the bound it exceeds.

    >>> vf.lax.clamp(0.0, vf.numpy.array([-1.0, 0.5, 2.0]), 1.0)
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    return _clamp(min, x, max)
