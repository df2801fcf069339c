"""Memory shared with other libraries: DLPack, and columns of Arrow."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.devices.device import Device
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ExportError, ShapeError
from volta_fn.lazy_imports import load

# DLPack.
#
# NumPy makes and reads the capsules. It has no bfloat16, so that those elements pass as 16-bit integers whose dtype is changed in the
# capsule. The layout of capsules is that of dlpack.h, version 1.0.

#: The device of host memory, and the device type of GPUs (kDLWebGPU), whose buffers other libraries cannot read.
HOST = (1, 0)
_WEBGPU = 15

#: Where a capsule holds its dtype's code, by its name; and the codes.
_CODE_AT = {b"dltensor": 20, b"dltensor_versioned": 52}
_UNSIGNED, _BFLOAT = 1, 4

_name_of, _pointer_in = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
_name_of.argtypes, _name_of.restype = [ctypes.py_object], ctypes.c_char_p
_pointer_in.argtypes, _pointer_in.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p

_BFLOAT16 = np.dtype(dtypes.bfloat16)


def device_of(device: Device) -> tuple[int, int]:
    """Return a device's type and number in DLPack's numbering."""
    return HOST if device.platform == "cpu" else (_WEBGPU, device.id)


def export(
    device: Device, buffer: Any, stream: Any, max_version: tuple[int, int] | None, dl_device: tuple[int, int] | None, copy: bool | None
) -> Any:
    """Return a capsule with a buffer's elements in host memory.

    It shares memory unless `copy` is true or the buffer is on a GPU, and is then marked read-only if the consumer reads version 1 of the
    protocol. For others, of which JAX is one, memory with gaps or repetitions is copied, too. Raises `ExportError` if memory cannot be
    shared as asked, and `ArgumentError` for a stream.
    """
    location = device_of(device)
    destination = location if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
    if stream is not None:
        raise ArgumentError(f"__dlpack__: arrays are in host memory, which has no streams, got stream={stream!r}; pass None")
    if destination != HOST:
        raise ExportError(
            f"__dlpack__: an array on {device} cannot be shared with DLPack device {destination}; other libraries read only host memory: "
            "let them ask for device (1, 0), or pass x.to_device('cpu')"
        )
    if copy is False and location != HOST:
        raise ExportError(f"__dlpack__: copy=False, but the array is on {device}: reading it on the host copies it")
    versioned = max_version is not None and tuple(max_version) >= (1, 0)
    values = device.backend.get(buffer)
    copied = bool(copy) or location != HOST or not (versioned or copy is False or _is_compact(values))
    elements = values.view(np.uint16) if values.dtype == _BFLOAT16 else values
    shared = elements if copied else _view(elements, readonly=versioned)
    capsule = shared.__dlpack__(max_version=max_version, copy=copied or None)
    if values.dtype == _BFLOAT16:
        _code(capsule).value = _BFLOAT
    return capsule


class _Memory:
    """An array's memory as NumPy's array interface describes it."""

    def __init__(self, values: np.ndarray, readonly: bool) -> None:
        self._values = values
        interface = values.__array_interface__
        self.__array_interface__ = interface | {"data": (interface["data"][0], readonly)}


def _is_compact(values: np.ndarray) -> bool:
    """Return True if elements fill memory without gaps, in any order of axes."""
    order = np.argsort(values.strides)[::-1]
    return values.transpose(order).flags.c_contiguous


def _view(values: np.ndarray, readonly: bool) -> np.ndarray:
    """Return an array in the same memory, read-only or not."""
    # Consumers of the first version of the protocol, which has no read-only memory, are trusted not to write.
    return np.asarray(_Memory(values, readonly))


def _code(capsule: Any) -> ctypes.c_uint8:
    """Return a mutable view of the code of a capsule's dtype."""
    name = _name_of(capsule)
    return ctypes.c_uint8.from_address(_pointer_in(capsule, name) + _CODE_AT[name])


class _Producer:
    """Another library's array, with bfloat16 passed on as 16-bit integers."""

    def __init__(self, x: Any) -> None:
        self._x = x
        self.is_bfloat16 = False

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._capsule(options)
        code = _code(capsule)
        self.is_bfloat16 = code.value == _BFLOAT
        if self.is_bfloat16:
            code.value = _UNSIGNED
        return capsule

    def _capsule(self, options: dict[str, Any]) -> Any:
        try:
            return self._x.__dlpack__(**options)
        except TypeError:  # a producer of the first version, which knows no options
            if options.get("copy"):
                raise
            return self._x.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._x.__dlpack_device__()


def imported(x: Any, copy: bool | None, to_host: bool) -> np.ndarray:
    """Return another library's array as a NumPy array in the same memory, if possible.

    With `to_host`, an array elsewhere is asked to be copied to the host. Raises `ArgumentTypeError` for an object without the protocol,
    `ExportError` for memory that the host cannot read, and `DTypeError` for dtypes that arrays here cannot have.
    """
    if not hasattr(x, "__dlpack__"):
        raise ArgumentTypeError(f"from_dlpack: x must have the method __dlpack__, got {type(x).__name__}; use asarray")
    producer = _Producer(x)
    try:
        values = np.from_dlpack(producer, device="cpu" if to_host else None, copy=copy)
    except (BufferError, RuntimeError, ValueError) as error:
        raise ExportError(f"from_dlpack: the array cannot be shared: {error}") from error
    values = values.view(_BFLOAT16) if producer.is_bfloat16 else values
    if values.dtype not in dtypes.ALL:
        raise DTypeError(f"from_dlpack: arrays of dtype {values.dtype} are not supported")
    return values


# Arrow.
#
# A column of Arrow has one axis. Arrays of more are lists of a fixed size, as polars has them for NumPy's arrays. The elements are shared
# where Arrow lays them out in the same way: for all dtypes but bool, whose elements are bits there.


def arrow_array(values: np.ndarray, type: Any = None) -> Any:
    """Return elements on the host as an array of pyarrow.

    Args:
        values: at least one axis, the first of which numbers the elements of the column.
        type: pyarrow's type of the result (default: that of the dtype).

    Raises:
        ShapeError: there is no axis, or one of the lists has no elements. DTypeError: Arrow has no such dtype.
    """
    if values.ndim == 0:
        raise ShapeError("a column of Arrow needs an axis, got an array of shape (); use x.item() or x.reshape(1)")
    if 0 in values.shape[1:]:
        raise ShapeError(f"lists of Arrow's fixed size have at least one element, got an array of shape {values.shape}")
    if values.dtype.kind not in "biuf":
        raise DTypeError(f"Arrow has no elements of {values.dtype}: convert them, as by x.astype('float32') or x.real and x.imag")
    pyarrow = load("pyarrow")
    column = pyarrow.array(values.reshape(-1))
    for axis in range(values.ndim - 1, 0, -1):
        column = pyarrow.FixedSizeListArray.from_arrays(column, values.shape[axis])
    return column if type is None else column.cast(type)
