"""The dtypes as callables, and constants.

`float32` stands for the dtype wherever one is expected, and `float32(x)` converts `x`.

>>> import volta_fn.numpy as jnp
>>> jnp.zeros(2, jnp.bfloat16).dtype == jnp.bfloat16
True
>>> jnp.float32(3)
Array(3., dtype=float32)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array
from volta_fn.errors import DTypeError
from volta_fn.numpy.creation import asarray


class ScalarType:
    """A dtype that converts the argument it is called with to an array."""

    __slots__ = ("dtype",)

    def __init__(self, spec: Any) -> None:
        #: The NumPy dtype, whichever one stands for it now (`dtypes.set_width`).
        self.dtype: np.dtype = np.dtype(spec)

    def __call__(self, x: Any = 0) -> Array:
        return asarray(x, dtype=self.dtype)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, np.generic) and instance.dtype == self.dtype

    @property
    def __name__(self) -> str:
        return self.dtype.name

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ScalarType):
            return self.dtype == other.dtype
        return isinstance(other, (np.dtype, type)) and self.dtype == other

    def __hash__(self) -> int:
        return hash(self.dtype)

    def __repr__(self) -> str:
        return f"<dtype {self.dtype.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return ScalarType, (self.dtype,)


class _Unavailable(ScalarType):
    """A dtype that the installed ml_dtypes lacks, as Pyodide's does.

    What needs the dtype raises `DTypeError`.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def dtype(self) -> np.dtype:  # type: ignore[override]
        raise DTypeError(f"{self._name} needs ml_dtypes 0.6 or later")

    def __repr__(self) -> str:
        return f"<dtype {self._name}, unavailable>"


bool_ = ScalarType(dtypes.bool_)
int8, int16, int32, int64 = map(ScalarType, (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64))
uint8, uint16, uint32, uint64 = map(ScalarType, (dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64))
float16, bfloat16, float32, float64 = map(ScalarType, (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64))
complex64, complex128 = map(ScalarType, (dtypes.complex64, dtypes.complex128))

# Which only store numbers: convert them to compute.
int2, int4, uint2, uint4 = map(ScalarType, ("int2", "int4", "uint2", "uint4"))
int1, uint1 = map(ScalarType if dtypes.ONE_BIT else _Unavailable, ("int1", "uint1"))
float4_e2m1fn, float6_e2m3fn, float6_e3m2fn = map(ScalarType, ("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"))
float8_e3m4, float8_e4m3, float8_e4m3b11fnuz = map(ScalarType, ("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz"))
float8_e4m3fn, float8_e4m3fnuz = map(ScalarType, ("float8_e4m3fn", "float8_e4m3fnuz"))
float8_e5m2, float8_e5m2fnuz, float8_e8m0fnu = map(ScalarType, ("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"))

#: NumPy's aliases, and the default dtypes.
half, single, double = float16, float32, float64
csingle, cdouble = complex64, complex128
int_, uint, float_, complex_ = int32, ScalarType(dtypes.uint32), float32, complex64

# NumPy's hierarchy of kinds, for `issubdtype`.
generic, number, inexact = np.generic, np.number, np.inexact
integer, signedinteger, unsignedinteger = np.integer, np.signedinteger, np.unsignedinteger
floating, complexfloating = np.floating, np.complexfloating
flexible, character, object_ = np.flexible, np.character, np.object_  # which no array here has

ComplexWarning = np.exceptions.ComplexWarning

dtype = np.dtype
e, pi, euler_gamma = np.e, np.pi, np.euler_gamma
inf, nan = np.inf, np.nan
newaxis = None
