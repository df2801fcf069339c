"""Python functions that run where devices are.

The names are those of `jax.experimental.colocated_python`. The devices here are those of the process that calls, so a function runs where
it is called, on arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import as_value
from volta_fn.core.arrays.memory import device_put
from volta_fn.core.aval import ShapeDtypeStruct
from volta_fn.core.devices.device import Device, devices, find_device
from volta_fn.core.devices.mesh import Mesh
from volta_fn.errors import ArgumentTypeError

__all__ = ["colocated_cpu_devices", "colocated_python", "colocated_python_class"]


def colocated_cpu_devices(devices_or_mesh: Any) -> Any:
    """Return the CPU's device for each device of a sequence, or of a mesh.

    >>> import volta_fn as vf
    >>> colocated_cpu_devices(vf.devices("cpu"))[0]
    CpuDevice(id=0)
    """
    cpu_devices = devices("cpu")
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

    >>> import volta_fn as vf
    >>> colocated_python(lambda x: x + 1)(vf.numpy.ones(2))
    Array([2., 2.], dtype=float32)
    """
    return ColocatedFunction(fun)


def colocated_python_class(cls: type) -> type:
    """Let objects live where devices are: in this process, so return the class."""
    return cls
