"""Complex numbers and their components.

These maps are real-linear, so their transposes are declared, not derived.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array, as_value
from volta_fn.core.primitive import Linear
from volta_fn.primitives.declare import Elementwise, elementwise, unbroadcast


def _transpose_is(function: Elementwise, rule: Callable[[Any], Any]) -> None:
    """Declare the transpose of a primitive of one operand."""
    function.primitive.transpose = lambda ct, operand, **params: [rule(ct)]


def _as_complex(re: Any) -> Array:
    return complex(re, as_value(np.zeros((), re.dtype)))


real: Elementwise = elementwise(
    "real", np.real, operands=dtypes.COMPLEX, derivatives=[lambda g, out, x: real(g)], result=dtypes.real_dtype, doc="The real part."
)
_transpose_is(real, _as_complex)

imag: Elementwise = elementwise(
    "imag", np.imag, operands=dtypes.COMPLEX, derivatives=[lambda g, out, x: imag(g)], result=dtypes.real_dtype, doc="The imaginary part."
)
# JAX's convention: a transpose pairs without conjugation, so i * y picks up -ct in the imaginary direction.
_transpose_is(imag, lambda ct: complex(as_value(np.zeros((), ct.dtype)), -ct))


def _join(re: np.ndarray, im: np.ndarray) -> np.ndarray:
    out = np.empty(np.broadcast_shapes(re.shape, im.shape), np.result_type(re.dtype, np.complex64))
    out.real, out.imag = re, im
    return out


complex: Elementwise = elementwise(
    "complex", _join, operands=frozenset({np.dtype(np.float32), np.dtype(np.float64)}),
    derivatives=[lambda g, out, x, y: _as_complex(g), lambda g, out, x, y: complex(as_value(np.zeros((), g.dtype)), g)],
    result=dtypes.complex_dtype, doc="The complex numbers x + iy from real parts and imaginary parts.",
)  # fmt: skip


def _complex_transpose(ct: Any, x: Any, y: Any) -> list[Any]:
    return [unbroadcast(real(ct), x.shape) if type(x) is Linear else None, unbroadcast(-imag(ct), y.shape) if type(y) is Linear else None]


complex.primitive.transpose = _complex_transpose

_conj_complex: Elementwise = elementwise(
    "conj", np.conjugate, operands=dtypes.COMPLEX, derivatives=[lambda g, out, x: _conj_complex(g)], doc="The complex conjugate."
)
_transpose_is(_conj_complex, lambda ct: _conj_complex(ct))


def conj(x: Any) -> Array:
    """Return the complex conjugate; real arrays are returned as they are.

    >>> import volta_fn as vf
    >>> vf.lax.conj(vf.numpy.array([1 + 2j, 3j]))
    Array([1.-2.j, 0.-3.j], dtype=complex64)
    """
    value = as_value(x)
    return _conj_complex(value) if value.dtype in dtypes.COMPLEX else value
