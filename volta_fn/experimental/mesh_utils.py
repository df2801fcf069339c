"""Arrays of devices for meshes, with the names of JAX's `mesh_utils`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn.core.devices.device import devices as all_devices
from volta_fn.errors import DeviceError


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

    >>> import volta_fn as vf
    >>> vf.experimental.mesh_utils.create_device_mesh((1, 1), vf.devices("cpu")[:1]).shape
    (1, 1)
    """
    device_list = list(all_devices() if devices is None else devices)
    if len(device_list) != math.prod(mesh_shape):
        raise DeviceError(f"a mesh of shape {tuple(mesh_shape)} needs {math.prod(mesh_shape)} devices, but there are {len(device_list)}")
    return np.array(device_list, object).reshape(tuple(mesh_shape))


def create_hybrid_device_mesh(mesh_shape: Sequence[int], dcn_mesh_shape: Sequence[int], devices: Sequence[Any] | None = None) -> np.ndarray:
    """Return an array of devices whose shape is the product of two, axis by axis."""
    return create_device_mesh([a * b for a, b in zip(mesh_shape, dcn_mesh_shape, strict=True)], devices)
