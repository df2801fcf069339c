"""`shard_map` and `pmap`, compared with loops and with JAX on one device."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.jax.programs import output_of
from volta_fn import P, lax
from volta_fn.errors import ArgumentError, DeviceError, ShapeError

CPU = vf.devices("cpu")[0]
MESH = vf.sharding.Mesh(np.full((2, 3), CPU), ("a", "b"))
X = np.arange(4 * 6.0, dtype=np.float32).reshape(4, 6)


@pytest.mark.parametrize("spec", [P(), P("a"), P(None, "b"), P("a", "b"), P("b", "a"), P(None, ("a", "b")), P(None, ("b", "a"))])
def test_shards_are_those_of_a_loop(spec: Any) -> None:
    x = np.arange(12 * 6.0, dtype=np.float32).reshape(12, 6)
    shards = []
    result = vf.shard_map(lambda s: (shards.append(s.shape), s * 2.0)[1], mesh=MESH, in_specs=spec, out_specs=spec)(x)
    np.testing.assert_array_equal(result, 2 * x)
    assert shards == [vf.NamedSharding(MESH, spec).shard_shape(x.shape)]


def test_each_shard_is_where_the_spec_says() -> None:
    number = lambda s: s[:0].sum() + lax.axis_index("a") * 10.0 + lax.axis_index("b")
    result = vf.shard_map(lambda s: vnp.full(s.shape, number(s)), mesh=MESH, in_specs=P("b", "a"), out_specs=P("b", "a"))(np.zeros((3, 2)))
    assert result.tolist() == [[0.0, 10.0], [1.0, 11.0], [2.0, 12.0]]
    joined = vf.shard_map(lambda s: number(s)[None], mesh=MESH, in_specs=P(), out_specs=P(("a", "b")))(np.zeros(2))
    assert joined.tolist() == [0.0, 1.0, 2.0, 10.0, 11.0, 12.0]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_product_of_split_matrices(compiled: bool) -> None:
    w = np.linspace(-1.0, 1.0, 6 * 5, dtype=np.float32).reshape(6, 5)
    product = vf.shard_map(lambda x, w: lax.psum(x @ w, "b"), mesh=MESH, in_specs=(P("a", "b"), P("b", None)), out_specs=P("a"))
    run = vf.jit(product) if compiled else product
    np.testing.assert_allclose(run(X, w), X @ w, rtol=1e-5, atol=1e-5)
    gradient = vf.grad(lambda w: (product(X, w) ** 2).sum())(w)
    np.testing.assert_allclose(gradient, 2 * X.T @ (X @ w), rtol=1e-4, atol=1e-3)


def test_collectives_over_shards() -> None:
    ring = lambda x: lax.ppermute(x, "a", [(0, 1), (1, 0)])
    assert vf.shard_map(ring, mesh=MESH, in_specs=P("a"), out_specs=P("a"))(vnp.arange(4.0)).tolist() == [2.0, 3.0, 0.0, 1.0]
    gathered = vf.shard_map(lambda x: lax.all_gather(x, "b", tiled=True), mesh=MESH, in_specs=P("b"), out_specs=P())
    assert gathered(vnp.arange(3.0)).tolist() == [0.0, 1.0, 2.0]


def test_results_that_vary_must_be_named() -> None:
    with pytest.raises(ArgumentError, match="differs between the shards along 'a'"):
        vf.shard_map(lambda x: x, mesh=MESH, in_specs=P("a"), out_specs=P())(X)
    first = vf.shard_map(lambda x: x, mesh=MESH, in_specs=P("a"), out_specs=P(), check_vma=False)(X)
    np.testing.assert_array_equal(first, X[:2])


def test_trees_and_the_current_mesh() -> None:
    with vf.set_mesh(MESH):
        total = vf.shard_map(in_specs=({"x": P("a"), "y": None},), out_specs={"sum": P(), "x": P("a")}, axis_names={"a"})(
            lambda tree: {"sum": lax.psum(tree["x"].sum() + tree["y"], "a"), "x": tree["x"]}
        )({"x": X, "y": np.float32(1.0)})
    assert float(total["sum"]) == X.sum() + 2
    np.testing.assert_array_equal(total["x"], X)


def test_axes_that_do_not_divide_raise() -> None:
    with pytest.raises(ShapeError, match="does not divide"):
        vf.shard_map(lambda x: x, mesh=MESH, in_specs=P("b"), out_specs=P("b"))(X)
    with pytest.raises(ArgumentError, match="'c'"):
        vf.shard_map(lambda x: x, mesh=MESH, in_specs=P("c"), out_specs=P())(X)
    with pytest.raises(ShapeError, match="more dimensions"):
        vf.shard_map(lambda x: x.sum(), mesh=MESH, in_specs=P(), out_specs=P("a"))(X)


def test_pmap_is_jaxs_on_one_device() -> None:
    def step(x: Any, scale: Any, kind: str, ja: Any) -> Any:
        return ja.lax.psum(x * scale, "i") if kind == "sum" else x

    results = []
    for ja in (vf, jax):
        run = ja.pmap(lambda x, scale, kind, ja=ja: step(x, scale, kind, ja), "i", in_axes=(0, None, None), static_broadcasted_argnums=2)
        results.append([np.asarray(run(X[:1], 2.0, kind)) for kind in ("sum", "none")])
    np.testing.assert_array_equal(*results)
    with pytest.raises(DeviceError, match="needs as many devices"):
        vf.pmap(lambda x: x, devices=[CPU])(X)


ABSTRACT = vf.sharding.AbstractMesh((2, 3), ("a", "b"))


def test_an_abstract_mesh_stands_for_the_current_mesh_or_that_of_an_argument() -> None:
    mean = vf.shard_map(lambda x: lax.pmean(x, "a"), mesh=ABSTRACT, in_specs=P("a"), out_specs=P())
    expected = X.reshape(2, 2, 6).mean(0)
    with vf.set_mesh(MESH):
        np.testing.assert_array_equal(mean(X), expected)
        np.testing.assert_array_equal(vf.jit(mean)(X), expected)
    placed = vf.device_put(X, vf.NamedSharding(MESH, P("a")))
    np.testing.assert_array_equal(mean(placed), expected)
    np.testing.assert_array_equal(vf.jit(mean)(placed), expected)
    np.testing.assert_array_equal(vf.jacobian(lambda x: mean(x).sum())(placed), np.full_like(X, 0.5))


def test_a_trace_needs_no_devices() -> None:
    """As in JAX: shapes on meshes larger than this machine."""
    axis = vf.sharding.AbstractMesh((64,), ("a",))
    shape = vf.eval_shape(vf.shard_map(lambda x: lax.psum(x, "a"), mesh=axis, in_specs=P("a"), out_specs=P()), vnp.ones((128, 3)))
    assert shape.shape == (2, 3)


def test_maps_without_devices_raise() -> None:
    add = lambda mesh: vf.shard_map(lambda x: lax.psum(x, "a"), mesh=mesh, in_specs=P("a"), out_specs=P())(X)
    with pytest.raises(ArgumentError, match="needs a mesh"):
        add(None)
    with pytest.raises(ArgumentError, match="needs a mesh"):
        add(vf.sharding.get_abstract_mesh())
    with pytest.raises(ArgumentError, match="AbstractMesh.*has no devices"):
        add(ABSTRACT)
    with vf.set_mesh(vf.sharding.Mesh(np.full(4, CPU), "a")), pytest.raises(ArgumentError, match="the current mesh is Mesh.'a': 4"):
        add(ABSTRACT)
    with pytest.raises(ArgumentError, match="needs a mesh"):
        vf.sharding.smap(lambda x: x, in_axes=0, out_axes=0, axis_name="a")(X)


def test_results_of_a_compiled_map_over_an_abstract_mesh_stay_split() -> None:
    checks = """
import numpy as np, volta_fn as vf
from volta_fn import P
vf.set_cpu_devices(4)
mesh = vf.make_mesh((4,), "a")
x = vf.device_put(np.arange(8.0, dtype=np.float32), vf.NamedSharding(mesh, P("a")))
double = vf.shard_map(lambda x: 2 * x, mesh=mesh.abstract_mesh, in_specs=P("a"), out_specs=P("a"))
for y in (double(x), vf.jit(double)(x), vf.jit(lambda x: double(double(x)))(x)):
    assert y.sharding == x.sharding, y.sharding
"""
    assert output_of(checks) == ""
