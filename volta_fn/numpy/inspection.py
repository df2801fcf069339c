"""What programs may ask: what the namespace supports, and the limits of dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array
from volta_fn.core.device import Device, available_devices, current_default_device, find_device
from volta_fn.errors import ArgumentError

#: The version of the standard.
__array_api_version__ = "2025.12"

#: The versions that arrays answer to: each adds functions to the one before, and 2025.12 made three lists tuples.
VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", __array_api_version__)

#: The dtypes that the standard names, in its order.
_NAMES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128".split()

#: The default dtypes, the same on every device.
_DEFAULTS = {"real floating": "float32", "complex floating": "complex64", "integral": "int32", "indexing": "int32"}


class NamespaceInfo:
    """What `__array_namespace_info__` returns: capabilities, devices and dtypes."""

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

        >>> jnp.__array_namespace_info__().default_dtypes()["indexing"]
        dtype('int32')
        """
        return {kind: np.dtype(name) for kind, name in _DEFAULTS.items()}

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
        found = {name: np.dtype(name) for name in _NAMES}
        return {name: d for name, d in found.items() if backend.supports(d) and any(d in dtypes.KINDS[k] for k in kinds)}


def __array_namespace_info__() -> NamespaceInfo:  # the standard's name
    """Return what this namespace supports, for programs written to the Array API."""
    return NamespaceInfo()


class FloatInfo:
    """The limits of a floating-point dtype: NumPy's attributes, as Python numbers."""

    __slots__ = ("_info",)

    def __init__(self, info: Any) -> None:
        self._info = info

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._info, name)
        return float(value) if isinstance(value, np.generic) else value

    def __repr__(self) -> str:
        return repr(self._info)

    def __reduce__(self) -> tuple[Any, ...]:
        return finfo, (self.dtype,)


def finfo(dtype: Any, /) -> FloatInfo:
    """Return the limits of a float or complex dtype, or of an array's.

    The attributes are `bits`, `eps`, `max`, `min`, `smallest_normal`, `dtype` (of the components, if complex) and NumPy's others.

    >>> jnp.finfo(jnp.float32).eps
    1.1920928955078125e-07

    Raises `DTypeError` for other dtypes.
    """
    return FloatInfo(dtypes.finfo(_dtype_of(dtype)))


def iinfo(dtype: Any, /) -> np.iinfo:
    """Return the limits of an integer dtype, or of an array's: `bits`, `min`, `max`.

    >>> jnp.iinfo("uint8").max
    255

    Raises `DTypeError` for other dtypes.
    """
    return dtypes.iinfo(_dtype_of(dtype))


def _dtype_of(value: Any) -> Any:
    return value.dtype if isinstance(value, (Array, np.ndarray, np.generic)) else value
