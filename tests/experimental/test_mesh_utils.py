"""Names for several devices and processes, where there is one; refusals."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn.errors import DeviceError
from volta_fn.experimental import mesh_utils, multihost_utils

CPU = vf.devices("cpu")[0]


def test_arrays_of_devices() -> None:
    assert mesh_utils.create_device_mesh((2, 3), [CPU] * 6).shape == (2, 3)
    assert mesh_utils.create_hybrid_device_mesh((2, 1), (1, 3), [CPU] * 6).tolist() == [[CPU] * 3] * 2
    with pytest.raises(DeviceError, match="needs 4 devices"):
        mesh_utils.create_device_mesh((4,), [CPU])


def test_one_process_has_all_values() -> None:
    values = {"x": vf.numpy.arange(2.0), "y": 3.0}
    gathered = multihost_utils.process_allgather(values)
    assert (gathered["x"].tolist(), gathered["y"].tolist()) == ([[0.0, 1.0]], [3.0])
    assert multihost_utils.process_allgather(values, tiled=True)["x"].tolist() == [0.0, 1.0]
    np.testing.assert_array_equal(multihost_utils.broadcast_one_to_all(values)["x"], [0.0, 1.0])
    multihost_utils.sync_global_devices("here")
    multihost_utils.assert_equal(values)
    global_array = multihost_utils.host_local_array_to_global_array(values, None, None)
    assert multihost_utils.global_array_to_host_local_array(global_array, None, None) is values


def test_refusals_name_a_remedy() -> None:
    with pytest.raises(vf.errors.UnsupportedError, match="register_ffi_target"):
        vf.ffi.ffi_call("no_such_target", vf.ShapeDtypeStruct((), "float32"))(1.0)
