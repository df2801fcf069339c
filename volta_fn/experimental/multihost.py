"""Several processes and devices: communication, meshes, functions on devices.

The names are those of JAX's `multihost_utils`, `mesh_utils` and `colocated_python`, by which they are imported.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import as_value
from volta_fn.core.arrays.memory import device_get, device_put
from volta_fn.core.aval import ShapeDtypeStruct
from volta_fn.core.devices import distribution
from volta_fn.core.devices.device import Device, find_device, synchronize
from volta_fn.core.devices.device import devices as find_devices
from volta_fn.core.devices.sharding import Mesh
from volta_fn.errors import ArgumentTypeError, DeviceError, DistributedError

# Communication between processes.


def _everyone() -> distribution.Communicator:
    return distribution.current().communicator(tuple(range(distribution.current().size)))


def _in_all(one: Callable[[np.ndarray], np.ndarray], values: Any) -> Any:
    return tree.map(lambda x: one(np.asarray(x)), device_get(values))


def process_allgather(in_tree: Any, tiled: bool = False) -> Any:
    """Return the arrays of all processes, as NumPy arrays.

    They are stacked along a new axis 0, one row for each process, or joined along the first axis if `tiled`.

    >>> vf.experimental.multihost_utils.process_allgather(vf.numpy.ones(2))
    array([[1., 1.]], dtype=float32)
    """

    def gathered(x: np.ndarray) -> np.ndarray:
        rows = x[None] if distribution.current().size == 1 else _everyone().gather(x, "process_allgather")
        return np.concatenate([np.atleast_1d(row) for row in rows]) if tiled else rows

    return _in_all(gathered, in_tree)


def broadcast_one_to_all(in_tree: Any, is_source: bool | None = None) -> Any:
    """Return the values of the first process, or of the one that is the source."""
    if distribution.current().size == 1:
        return device_get(in_tree)
    sources = process_allgather(np.array(distribution.current().rank == 0 if is_source is None else is_source))
    if sources.sum() != 1:
        raise DistributedError(f"broadcast_one_to_all: one process is the source, not {np.flatnonzero(sources).tolist()}")
    return _in_all(lambda x: _everyone().gather(x, "broadcast_one_to_all")[int(np.argmax(sources))], in_tree)


def sync_global_devices(name: str) -> None:
    """Wait until all processes have called this, and their devices are idle."""
    synchronize()
    if distribution.current().size > 1:
        _everyone().gather(np.zeros(1, np.uint8), f"sync_global_devices({name!r})")


def assert_equal(in_tree: Any, fail_message: str = "") -> None:
    """Check that all processes have the same values.

    Raises `DistributedError`, in all of them, if not.
    """
    for rows in tree.leaves(process_allgather(in_tree)):
        if any(row.tobytes() != rows[0].tobytes() for row in rows):
            raise DistributedError(f"the values of the processes differ. {fail_message}".strip())


def host_local_array_to_global_array(local_inputs: Any, global_mesh: Any, pspecs: Any) -> Any:
    """Return the arrays: a process holds its part of an array, and no more."""
    return local_inputs


def global_array_to_host_local_array(global_inputs: Any, global_mesh: Any, pspecs: Any) -> Any:
    """Return the arrays: a process holds its part of an array, and no more."""
    return global_inputs


# Arrays of devices for meshes.


def create_device_mesh(
    mesh_shape: Sequence[int],
    devices: Sequence[Any] | None = None,
    *,
    contiguous_submeshes: bool = False,
    allow_split_physical_axes: bool = False,
) -> np.ndarray:
    """Return an array of devices of this shape; their order does not matter here.

    The options are accepted for compatibility.

    Raises `DeviceError` unless there are as many devices.

    >>> vf.experimental.mesh_utils.create_device_mesh((1, 1), vf.devices("cpu")[:1]).shape
    (1, 1)
    """
    device_list = list(find_devices() if devices is None else devices)
    if len(device_list) != math.prod(mesh_shape):
        raise DeviceError(f"a mesh of shape {tuple(mesh_shape)} needs {math.prod(mesh_shape)} devices, but there are {len(device_list)}")
    return np.array(device_list, object).reshape(tuple(mesh_shape))


def create_hybrid_device_mesh(
    mesh_shape: Sequence[int],
    dcn_mesh_shape: Sequence[int],
    devices: Sequence[Any] | None = None,
    *,
    process_is_granule: bool = False,
    should_sort_granules_by_key: bool = True,
    allow_split_physical_axes: bool = False,
) -> np.ndarray:
    """Return an array of devices whose shape is the product of two, axis by axis.

    The options are about networks of TPUs, and change nothing here.
    """
    return create_device_mesh([a * b for a, b in zip(mesh_shape, dcn_mesh_shape, strict=True)], devices)


# Python functions that run where devices are.
#
# The names are those of `jax.experimental.colocated_python`. The devices here are those of the process that calls, so a function runs where
# it is called, on arrays.


def colocated_cpu_devices(devices_or_mesh: Any) -> Any:
    """Return the CPU's device for each device of a sequence, or of a mesh.

    >>> colocated_cpu_devices(vf.devices("cpu"))[0]
    CpuDevice(id=0)
    """
    cpu_devices = find_devices("cpu")
    if isinstance(devices_or_mesh, Mesh):
        grid = np.empty(devices_or_mesh.devices.shape, object)
        grid.flat[:] = colocated_cpu_devices(devices_or_mesh.devices.flat)
        return Mesh(grid, devices_or_mesh.axis_names, axis_types=devices_or_mesh.axis_types)
    return [cpu_devices[device.id % len(cpu_devices)] if device.platform != "cpu" else device for device in devices_or_mesh]


class ColocatedFunction:
    """A Python function of arrays, from `colocated_python`."""

    def __init__(self, fun: Callable[..., Any], in_specs: Any = None, out_specs_fn: Any = None, devices: Any = None) -> None:
        functools.update_wrapper(self, fun)
        self._fun, self._in_specs, self._out_specs_fn, self._devices = fun, in_specs, out_specs_fn, devices

    def specialize(self, in_specs: Any = None, out_specs_fn: Any = None, devices: Sequence[Device] | None = None) -> Self:
        """Return the function for arguments and results of some types, on some devices.

        Args:
            in_specs: a pair of the types of positional arguments and of those by name, which calls are checked for.
            out_specs_fn: the types of the results, as a function of those of the arguments, which results are checked for.
            devices: the devices.
        """
        return type(self)(
            self._fun,
            self._in_specs if in_specs is None else in_specs,
            self._out_specs_fn if out_specs_fn is None else out_specs_fn,
            self._devices if devices is None else [find_device(d) for d in devices],
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function.

        Raises `ArgumentTypeError` for arguments and results of other types than it is specialised for.
        """
        args, kwargs = tree.map(as_value, (args, kwargs))
        specs = tree.map(ShapeDtypeStruct.like, (args, kwargs))
        if self._in_specs is not None:
            _check(specs, self._in_specs, "arguments")
        result = self._fun(*args, **kwargs)
        if self._out_specs_fn is not None:
            result = tree.map(as_value, result)
            _check(tree.map(ShapeDtypeStruct.like, result), self._out_specs_fn(*specs[0], **specs[1]), "results")
        return device_put(result, self._devices[0]) if self._devices and tree.leaves(result) else result


def _check(actual: Any, promised: Any, label: str) -> None:
    got, expected = [[(s.shape, str(s.dtype)) for s in tree.leaves(side)] for side in (actual, promised)]
    if got != expected:
        raise ArgumentTypeError(f"colocated_python: the {label} must be {expected}, got {got}")


def colocated_python(fun: Callable[..., Any]) -> ColocatedFunction:
    """Let a function run where the devices of its arguments are: in this process.

    >>> colocated_python(lambda x: x + 1)(vf.numpy.ones(2))
    Array([2., 2.], dtype=float32)
    """
    return ColocatedFunction(fun)


def colocated_python_class(cls: type) -> type:
    """Let objects live where devices are: in this process, so return the class."""
    return cls
