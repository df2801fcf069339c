"""The memory of arrays: donation, transfers, and sharing with other libraries.

Donated arguments give their memory to results. Trees of arrays move between the host and devices. DLPack and Arrow share memory without a
copy.
"""

from __future__ import annotations

import collections
import ctypes
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array, ConcreteArray, alias, array_spec, as_value, from_host, unmasked, wrap
from volta_fn.core.aval import MemorySpace, ShapedArray, ShapeDtypeStruct
from volta_fn.core.devices.device import Device, current_default_device, find_device
from volta_fn.core.trace import EVAL, Tracer, current_trace
from volta_fn.errors import ArgumentError, ArgumentTypeError, DeviceError, DTypeError, ExportError, ShapeError
from volta_fn.lazy_imports import deferred, load

_structures = deferred("volta_fn.tree.structures")  # which loads optree

# Donation: which arguments give their memory to which results.


class Donations(tuple[bool, ...]):
    """A flag for each argument, and pairs of results and donated arguments.

    The two have equal paths in their trees. A pair is (number of the result, number of the argument). It is a preference: a result that is
    computed while its argument is still needed takes other memory.
    """

    pairs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def paired(cls, donated: Iterable[bool], pairs: Sequence[tuple[int, int]]) -> Donations:
        """Make flags with pairs.

        >>> Donations.paired([True, False], [(1, 0)]).pairs
        ((1, 0),)
        """
        donations = cls(donated)
        donations.pairs = tuple(pairs)
        return donations


def pairs_of(donated: Sequence[bool]) -> tuple[tuple[int, int], ...]:
    """Return the pairs of results and arguments that flags come with, if any."""
    return donated.pairs if isinstance(donated, Donations) else ()


def pair_by_path(
    donated: Sequence[bool], in_tree: Any, in_avals: Sequence[ShapedArray], out_tree: Any, out_avals: Sequence[ShapedArray]
) -> list[tuple[int, int]]:
    """Pair results with donated arguments of the same shape, dtype and path."""
    # In a training step `(model, moments, batch) -> (loss, model, moments)` a parameter's paths in arguments and results differ in their
    # beginnings alone. Paths with the longest common suffix are therefore paired first, equally long ones in order.
    arguments = {i: path for i, path in enumerate(_structures.paths_of(in_tree)) if donated[i]}
    results = dict(enumerate(_structures.paths_of(out_tree)))
    pairs: list[tuple[int, int]] = []
    for length in range(max(map(len, arguments.values()), default=0), 0, -1):
        by_end: dict[Any, list[int]] = {}
        for number, path in arguments.items():
            if len(path) >= length:
                by_end.setdefault((path[-length:], *_type(in_avals[number])), []).append(number)
        for number, path in list(results.items()):
            fitting = by_end.get((path[-length:], *_type(out_avals[number]))) if len(path) >= length else None
            if fitting:
                pairs.append((number, fitting.pop(0)))
                del results[number], arguments[pairs[-1][1]]
    return pairs


def usable(donated: Sequence[bool], in_avals: Sequence[ShapedArray], out_avals: Sequence[ShapedArray]) -> tuple[bool, ...]:
    """Return the flags of the donated arguments whose memory some result can take.

    The other arguments are not donated, as in JAX.

    >>> f32 = lambda n: ShapedArray((n,), "float32")
    >>> usable([True, True], [f32(2), f32(3)], [f32(2)])
    (True, False)
    """
    free = collections.Counter([_type(aval) for aval in out_avals])
    flags = []
    for flag, aval in zip(donated, in_avals, strict=False):
        flags.append(flag and free[_type(aval)] > 0)
        free[_type(aval)] -= flags[-1]
    return tuple(flags)


def _type(aval: ShapedArray) -> tuple[Any, ...]:
    return aval.shape, aval.dtype


# Moving pytrees of arrays between host and devices.

T = TypeVar("T", bound=Any)


def device_put(x: Any, device: Any = None, *, src: Any = None, donate: Any = False, may_alias: Any = None) -> Any:
    """Move a pytree of arrays and scalars to a device.

    `device` is a device, its name, a sharding, a `PartitionSpec` of the current mesh, or a `MemorySpace`, by which arrays stay where they
    are; or a pytree of these that is a prefix of `x`. By a sharding over a mesh of several processes, each keeps its shard of the arrays.

    By default arrays stay where they are, and other values go to the default device. `src`, `donate` and `may_alias` are accepted for
    compatibility.

    Dtypes stay as they are: NumPy's float64 arrays become float64 arrays, which the result's repr shows. Convert data for a float32
    network before, by ``x.astype("float32")``.

    Values that are being traced pass through: the program runs where its arguments are.
    Raises `DeviceError` for an unknown device.

    >>> import numpy as np
    >>> vf.device_put({"w": np.ones(2, np.float32)}, "cpu")
    {'w': Array([1., 1.], dtype=float32)}
    """
    if device is None or isinstance(device, (str, Device, MemorySpace)):
        target = None if device is None or isinstance(device, MemorySpace) else find_device(device)
        return tree.map(lambda leaf: _put(leaf, target), x)
    placement = load("volta_fn.core.devices.placement")
    leaves, structure = tree.flatten(x)
    destinations = tree.broadcast_prefix(device, x, is_leaf=lambda s: s is None)
    return tree.unflatten(structure, [_put_split(leaf, d, placement) for leaf, d in zip(leaves, destinations, strict=True)])


def _put_split(leaf: Any, destination: Any, placement: Any) -> Array:
    """Move a value to a device, or split it by a sharding."""
    if destination is None or isinstance(destination, (str, Device, MemorySpace)):
        return _put(leaf, None if destination is None or isinstance(destination, MemorySpace) else find_device(destination))
    sharding = placement.sharding_for(destination)
    if isinstance(leaf, Tracer):
        traced: Array = placement.split(leaf, sharding)
        return traced
    local_shard = getattr(sharding, "own_shard", None)
    if local_shard is None or sharding.mesh.processes is None:
        sharding.shard_shape(np.shape(leaf))
    array = _put(leaf if local_shard is None else local_shard(as_value(leaf)), placement.group_of(sharding))
    result: Array = placement.with_named_sharding(array, sharding)
    return result


def _put(leaf: Any, target: Device | None) -> Array:
    if isinstance(leaf, Tracer) or (isinstance(leaf, ConcreteArray) and target in (None, leaf.device)):
        return leaf
    if isinstance(leaf, ConcreteArray):
        if target is not None and target.backend is leaf.device.backend:
            return wrap(leaf.buffer(), array_spec(leaf.aval, target))
        return alias(leaf, target)
    if isinstance(leaf, (np.ndarray, np.generic)):
        return from_host(np.asarray(unmasked(leaf)), device=target)
    return _put(as_value(leaf), target)


def constrained(x: T, sharding: Any) -> T:
    """Return a result, constrained to `out_sharding` unless that is None.

    The sharding may be a `PartitionSpec` of the current mesh; see `lax.with_sharding_constraint`.
    """
    if sharding is None:
        return x
    result: T = load("volta_fn.core.devices.placement").with_sharding_constraint(x, sharding)
    return result


def beside(x: T, template: Any) -> T:
    """Return an array on the device of another one.

    It stays where it is if one of them is traced, or the other one split.
    """
    if type(x) is not ConcreteArray or type(template) is not ConcreteArray:
        return x
    if x.device is template.device or template.device.sharding is not None:
        return x
    moved: T = device_put(x, template.device)
    return moved


def common_device(arrays: Sequence[Any]) -> Device:
    """Return the device that holds all `arrays` (the default device for none).

    Numbers of Python and arrays on the default device go where the others are, and all go to the home of a group of devices. Raises
    `DeviceError` if the others are on several devices.
    """
    if not arrays:
        return current_default_device()
    device: Device = arrays[0].device
    if all(a.device is device for a in arrays):
        return device
    if (group := next((a.device for a in arrays if a.device.sharding is not None), None)) is not None:
        home: Device = group.home
        return home
    default, fixed = current_default_device(), [a.device for a in arrays if a.shape or not a.weak_type]
    devices = {d for d in fixed if d is not default} or {*fixed} or {device}
    if len(devices) > 1:
        counts = Counter(str(a.device) for a in arrays)
        where = ", ".join(f"{count} on {name}" for name, count in counts.items())
        raise DeviceError(f"the arguments are on different devices ({where}); move them with device_put")
    return devices.pop()


def beside_indices(x: T, index: Any) -> T:
    """Return an array on the common device of it and its arrays of integer indices.

    Boolean masks are read on the host, and do not count. The array stays where it is while tracing, and if one of them is split.
    """
    items = index if type(index) is tuple else (index,)
    indices = [i for i in items if type(i) is ConcreteArray and i.dtype != np.bool_]
    if type(x) is not ConcreteArray or all(i.device is x.device for i in indices) or current_trace() is not EVAL:
        return x
    arrays = [x, *indices]
    return x if any(a.device.sharding is not None for a in arrays) else cast(T, device_put(x, common_device(arrays)))


def split_like(x: T, template: Any) -> T:
    """Return an array, split as another one of its shape is."""
    if type(template) is ConcreteArray:
        return constrained(x, template.device.sharding)
    return constrained(x, template.sharding) if isinstance(template, ShapeDtypeStruct) else x


def device_get(x: Any) -> Any:
    """Return `x` with every array replaced by a NumPy array of its elements.

    Traced arrays have no elements yet, and stay as they are.

    >>> vf.device_get([vf.numpy.arange(2), 1.5])
    [array([0, 1], dtype=int32), 1.5]
    """
    return tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, Array) and not isinstance(leaf, Tracer) else leaf, x)


def copy_to_host_async(x: T) -> T:
    """Return `x` as it is: arrays are copied to the host when they are read.

    Calls the method `copy_to_host_async` of other leaves that have one.

    >>> vf.copy_to_host_async({"x": vf.numpy.ones(2)})
    {'x': Array([1., 1.], dtype=float32)}
    """
    for leaf in tree.leaves(x):
        if not isinstance(leaf, Array) and hasattr(leaf, "copy_to_host_async"):
            leaf.copy_to_host_async()
    return x


def block_until_ready(x: T) -> T:
    """Return `x` once all of its arrays are computed.

    >>> vf.block_until_ready({"x": vf.numpy.ones(2) + 1})
    {'x': Array([2., 2.], dtype=float32)}
    """
    for leaf in (x,) if type(x) is ConcreteArray else tree.leaves(x):
        if isinstance(leaf, ConcreteArray):
            leaf.block_until_ready()
    return x


# Memory shared with other libraries by DLPack.
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


def dlpack_device(device: Device) -> tuple[int, int]:
    """Return a device's type and number in DLPack's numbering."""
    return HOST if device.platform == "cpu" else (_WEBGPU, device.id)


def dlpack_capsule(
    device: Device, buffer: Any, stream: Any, max_version: tuple[int, int] | None, dl_device: tuple[int, int] | None, copy: bool | None
) -> Any:
    """Return a capsule with a buffer's elements in host memory.

    It shares memory unless `copy` is true or the buffer is on a GPU, and is then marked read-only if the consumer reads version 1 of the
    protocol. For others, of which JAX is one, memory with gaps or repetitions is copied, too. Raises `ExportError` if memory cannot be
    shared as asked, and `ArgumentError` for a stream.
    """
    location = dlpack_device(device)
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


def dlpack_values(x: Any, copy: bool | None, to_host: bool) -> np.ndarray:
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


# Columns of Arrow.
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
