"""Functions that run beside devices: where they are called."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn.errors import ArgumentTypeError
from volta_fn.experimental.colocated_python import colocated_cpu_devices, colocated_python, colocated_python_class


def test_a_function_runs_on_arrays_and_sees_their_values() -> None:
    seen: list[float] = []

    @colocated_python
    def f(x: vf.Array, y: vf.Array) -> vf.Array:
        seen.append(float(x))
        return x + y

    assert float(f(2.0, y=vnp.float32(3))) == 5.0
    assert seen == [2.0]
    assert colocated_cpu_devices(vf.devices("cpu")) == vf.devices("cpu")
    mesh = vf.sharding.Mesh(np.array(vf.devices("cpu")[:1]).reshape(1, 1), ("a", "b"))
    assert colocated_cpu_devices(mesh) == mesh
    assert colocated_python_class(dict) is dict


def test_a_specialised_function_checks_arguments_and_results() -> None:
    spec = vf.ShapeDtypeStruct((2,), "float32")
    f = colocated_python(lambda x: x * 2).specialize(in_specs=((spec,), {}), out_specs_fn=lambda x: x, devices=vf.devices("cpu"))
    assert f(vnp.ones(2)).device == vf.devices("cpu")[0]
    with pytest.raises(ArgumentTypeError, match="arguments must be"):
        f(vnp.ones(3))
    with pytest.raises(ArgumentTypeError, match="results must be"):
        f.specialize(out_specs_fn=lambda x: vf.ShapeDtypeStruct((3,), "float32"))(vnp.ones(2))
