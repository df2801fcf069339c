"""The dtypes as callables, constants, and the capabilities of the namespace.

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
from volta_fn.core.arrays.array import Array
from volta_fn.core.devices.device import Device, available_devices, current_default_device, find_device
from volta_fn.errors import ArgumentError, DTypeError
from volta_fn.numpy.creation import asarray
from volta_fn.settings import current as settings


class ScalarType(type):
    """The class of dtypes, which are classes without instances.

    Their call converts the argument to an array.

    Programs derive classes from dtypes, for constants of one, and look NumPy's scalar types up among them, with which they are equal:

    >>> class Color(jnp.int8):
    ...     RED = jnp.int8(0)
    >>> Color(3).dtype, np.int32 in {jnp.int32, jnp.int64}
    (dtype('int8'), True)
    """

    #: The NumPy dtype, whichever one stands for it now (`dtypes.set_width`).
    dtype: np.dtype

    def __call__(cls, x: Any = 0) -> Array:
        return asarray(x, dtype=cls.dtype)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, np.generic) and instance.dtype == cls.dtype

    @property
    def __numpy_dtype__(cls) -> np.dtype:
        """The dtype, for NumPy's protocol of classes that stand for one."""
        return cls.dtype

    def __eq__(cls, other: object) -> bool:
        if isinstance(other, ScalarType):
            return cls.dtype == other.dtype
        return isinstance(other, (np.dtype, type)) and cls.dtype == other

    def __hash__(cls) -> int:
        return hash(cls.dtype.type)

    def __repr__(cls) -> str:
        return f"<dtype {cls.dtype.name}>"


class _Unavailable(ScalarType):
    """A dtype that the installed ml_dtypes lacks, as Pyodide's does.

    What needs the dtype raises `DTypeError`.
    """

    @property
    def dtype(cls) -> np.dtype:  # type: ignore[override]
        raise DTypeError(f"{cls.__name__} needs ml_dtypes 0.6 or later")

    def __repr__(cls) -> str:
        return f"<dtype {cls.__name__}, unavailable>"


def _scalar_type(name: str) -> Any:
    """Return the class of the dtype with this name, at which `pickle` finds it."""
    if name in ("int1", "uint1") and not dtypes.ONE_BIT:
        return _Unavailable(name, (), {"__module__": __name__})
    dtype = np.dtype(name.strip("_"))
    doc = f"The dtype {dtype.name}.\n\n>>> jnp.zeros(2, jnp.{name}).dtype.name\n{dtype.name!r}"
    contents = {"dtype": dtype, "__module__": __name__, "__qualname__": name, "__doc__": doc}
    return ScalarType(name.strip("_"), (), contents)


bool_ = _scalar_type("bool_")
int8, int16, int32, int64 = map(_scalar_type, ("int8", "int16", "int32", "int64"))
uint8, uint16, uint32, uint64 = map(_scalar_type, ("uint8", "uint16", "uint32", "uint64"))
float16, bfloat16, float32, float64 = map(_scalar_type, ("float16", "bfloat16", "float32", "float64"))
complex64, complex128 = map(_scalar_type, ("complex64", "complex128"))

# Which only store numbers: convert them to compute.
int2, int4, uint2, uint4 = map(_scalar_type, ("int2", "int4", "uint2", "uint4"))
int1, uint1 = map(_scalar_type, ("int1", "uint1"))
float4_e2m1fn, float6_e2m3fn, float6_e3m2fn = map(_scalar_type, ("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"))
float8_e3m4, float8_e4m3, float8_e4m3b11fnuz = map(_scalar_type, ("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz"))
float8_e4m3fn, float8_e4m3fnuz = map(_scalar_type, ("float8_e4m3fn", "float8_e4m3fnuz"))
float8_e5m2, float8_e5m2fnuz, float8_e8m0fnu = map(_scalar_type, ("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"))

#: NumPy's aliases, and the default dtypes.
half, single, double = float16, float32, float64
csingle, cdouble = complex64, complex128
int_, uint, float_, complex_ = int32, uint32, float32, complex64

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


# The capabilities of the namespace, and the limits of dtypes.

#: The version of the standard.
__array_api_version__ = "2025.12"

#: The versions that arrays answer to: each adds functions to the one before, and 2025.12 made three lists tuples.
VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", __array_api_version__)

#: The dtypes that the standard names, in its order.
_NAMES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128".split()

#: The default dtypes, the same on every device.
_DEFAULTS = {"real floating": "float32", "complex floating": "complex64", "integral": "int32", "indexing": "int32"}


class NamespaceInfo:
    """The result of `__array_namespace_info__`: capabilities, devices and dtypes."""

    def capabilities(self) -> dict[str, Any]:
        """Return what the standard leaves to libraries.

        Traced programs have no data-dependent shapes: masks and functions such as `nonzero` need `size=` there.

        >>> jnp.__array_namespace_info__().capabilities()
        {'boolean indexing': True, 'data-dependent shapes': True, 'max dimensions': 64}
        """
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Device:
        """Return the device of new arrays."""
        return current_default_device()

    def devices(self) -> tuple[Device, ...]:
        """Return the devices of this machine, of all platforms."""
        return available_devices()

    def default_dtypes(self, *, device: str | Device | None = None) -> dict[str, np.dtype]:
        """Return the dtypes of new arrays and of indices, by kind.

        They are the same on all devices. Raises `DeviceError` for a device that does not exist.

        >>> jnp.__array_namespace_info__().default_dtypes()["indexing"]
        dtype('int32')
        """
        if device is not None:
            find_device(device)
        return {kind: dtypes.default(np.dtype(name)) for kind, name in _DEFAULTS.items()}

    def dtypes(self, *, device: str | Device | None = None, kind: Any = None) -> dict[str, np.dtype]:
        """Return the standard's dtypes that a device has, by name.

        The device is by default that of new arrays. `kind` restricts them: a kind that `isdtype` knows, or a tuple of kinds. Raises
        `ArgumentError` for an unknown kind.

        >>> list(jnp.__array_namespace_info__().dtypes(device="cpu", kind=("bool", "complex floating")))
        ['bool', 'complex64', 'complex128']
        """
        kinds = dtypes.KINDS if kind is None else (kind,) if isinstance(kind, str) else tuple(kind)
        if unknown := [k for k in kinds if k not in dtypes.KINDS]:
            raise ArgumentError(f"dtypes: {unknown[0]!r} is no kind; the kinds are {', '.join(dtypes.KINDS)}")
        backend = (current_default_device() if device is None else find_device(device)).backend
        by_name = {name: np.dtype(name) for name in _NAMES}
        return {name: d for name, d in by_name.items() if backend.supports(d) and any(d in dtypes.KINDS[k] for k in kinds)}


def __array_namespace_info__() -> NamespaceInfo:  # the standard's name
    """Return what this namespace supports, for programs written to the Array API."""
    return NamespaceInfo()


class finfo:  # NumPy's name
    """The limits of a float or complex dtype, or of an array's, as Python numbers.

    In programs that are written for JAX they are, as there, numbers of the dtype. The attributes are `bits`, `eps`, `max`, `min`,
    `smallest_normal`, `dtype` (of the components, if complex) and NumPy's others.

    >>> jnp.finfo(jnp.float32).eps
    1.1920928955078125e-07

    Raises `DTypeError` for other dtypes.
    """

    __slots__ = ("_info",)

    def __init__(self, dtype: Any) -> None:
        self._info = dtypes.finfo(_dtype_of(dtype))

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._info, name)
        return float(value) if isinstance(value, np.generic) and not settings.permissive else value

    def __repr__(self) -> str:
        return repr(self._info)

    def __reduce__(self) -> tuple[Any, ...]:
        return finfo, (self.dtype,)


class iinfo:  # NumPy's name
    """The limits of an integer dtype, or of an array's: `bits`, `min`, `max`.

    >>> jnp.iinfo("uint8").max
    255

    Raises `DTypeError` for other dtypes.
    """

    __slots__ = ("_info",)

    def __init__(self, int_type: Any) -> None:
        self._info = dtypes.iinfo(_dtype_of(int_type))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._info, name)

    def __repr__(self) -> str:
        return repr(self._info)

    def __reduce__(self) -> tuple[Any, ...]:
        return iinfo, (self.dtype,)


def _dtype_of(value: Any) -> Any:
    return value.dtype if isinstance(value, (Array, np.ndarray, np.generic)) else value
