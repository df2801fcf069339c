"""Kernels over meshes of cores, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import numpy as vnp
from volta_fn.errors import ArgumentError, AxisNameError
from volta_fn.experimental import pallas as pl

draw = np.random.default_rng(5)


def struct(*shape: int, dtype: str = "float32") -> vf.ShapeDtypeStruct:
    return vf.ShapeDtypeStruct(shape, dtype)


@pytest.mark.parametrize("jitted", [False, True])
def test_each_core_does_its_part(jitted: bool) -> None:
    @pl.kernel(
        out_type=struct(6, 3),
        mesh=pl.tpu.create_tensorcore_mesh("core", num_cores=3),
        scratch_types={"memory": pl.tpu.VMEM((2, 3), "float32")},
    )
    def scaled(x_ref: Any, y_ref: Any, memory: Any) -> None:
        assert vf.lax.axis_size("core") == pl.num_programs(0) == 3
        part = pl.ds(2 * vf.lax.axis_index("core"), 2)
        memory[...] = x_ref[part] * (pl.program_id(0) + 1)
        y_ref[part] = memory[...] + 1.0

    x = draw.normal(size=(6, 3)).astype("float32")
    function = vf.jit(scaled) if jitted else scaled
    assert np.allclose(function(x), x * np.repeat([1, 2, 3], 2)[:, None] + 1, rtol=1e-6)
    assert np.allclose(vf.vmap(function)(np.stack([x, -x])), [function(x), function(-x)], rtol=1e-6)


def test_meshes_of_two_axes_and_references_of_the_caller() -> None:
    mesh = pl.tpu.TensorCoreMesh((2, 3), ("rows", "columns"))

    def fill(ref: Any) -> None:
        @pl.core_map(mesh, scratch_shapes=[pl.tpu.SMEM((1,), "int32")])
        def _(scratch: Any) -> None:
            scratch[0] = 10 * vf.lax.axis_index("rows") + vf.lax.axis_index("columns")
            ref[pl.program_id(0), pl.program_id(1)] = scratch[0] + 100 * vf.lax.axis_index(("rows", "columns"))

    expected = 10 * np.arange(2)[:, None] + np.arange(3) + 100 * np.arange(6).reshape(2, 3)
    assert np.array_equal(pl.run_state(fill)(vnp.zeros((2, 3), "int32")), expected)
    ref = vf.new_ref(vnp.zeros(2))
    assert pl.kernel(lambda r: r.__setitem__(0, r[0] + 2.0), mesh=mesh)(ref) == ()
    assert np.array_equal(ref[...], [12.0, 0.0])


def test_several_kernels_run_in_their_order() -> None:
    mesh = pl.tpu.create_tensorcore_mesh("core")
    write = lambda x, y: y.__setitem__(..., x[...] + 1)
    double = lambda x, y: y.__setitem__(..., y[...] * 2)
    (y,) = pl.kernel([write, double], [struct(2)], mesh=[mesh, mesh])(np.array([1.0, 2.0], "float32"))
    assert np.array_equal(y, [4.0, 6.0])


def test_names_of_a_grid_are_the_steps_indices() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 10 * vf.lax.axis_index("i") + vf.lax.axis_index("j") + 100 * vf.lax.axis_size(("i", "j"))

    block = pl.BlockSpec((1, 1), lambda i, j: (i, j))
    x = draw.normal(size=(2, 3)).astype("float32")
    out = pl.pallas_call(kernel, struct(2, 3), grid=(("i", 2), ("j", 3)), in_specs=[block], out_specs=block)(x)
    assert np.allclose(out, x + 10 * np.arange(2)[:, None] + np.arange(3) + 600, rtol=1e-6)


def test_mistakes_are_named() -> None:
    mesh = pl.tpu.create_tensorcore_mesh("core", num_cores=2)
    with pytest.raises(ArgumentError, match="sequences of equal lengths, got 2 and 1"):
        pl.kernel([print, print], (), mesh=[mesh])
    with pytest.raises(ArgumentError, match="both devices and num_cores"):
        pl.tpu.create_tensorcore_mesh("core", vf.devices(), 2)
    with pytest.raises(ArgumentError, match="should return None, but returned 3"):
        pl.core_map(mesh)(lambda: 3)
    with pytest.raises(AxisNameError, match="'core' run one after another"):
        pl.core_map(mesh)(lambda: vf.lax.psum(1.0, "core"))
