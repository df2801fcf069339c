"""Meshes and shardings: they tell what JAX's tell on one device."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import numpy as np
import pytest

import volta_fn as vf
from volta_fn import P
from volta_fn.errors import ArgumentError, DeviceError, ShapeError
from volta_fn.settings import current as settings

CPU = vf.devices("cpu")[0]


def parameters(function: Any) -> set[str]:
    """Return the names of a function's parameters."""
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a class of NumPy
        return set()


def facts(ja: Any) -> list[Any]:
    """Return what a namespace like jax tells of a mesh and its shardings."""
    mesh = ja.make_mesh((1, 1), ("data", "model"), devices=ja.devices("cpu")[:1])
    spec = ja.P("data", None, ("model",))
    sharding = ja.NamedSharding(mesh, spec)
    x = ja.device_put(np.ones((4, 2, 3), np.float32), sharding)
    one = ja.sharding.SingleDeviceSharding(ja.devices("cpu")[0])
    return [
        dict(mesh.shape), mesh.axis_names, mesh.size, mesh.empty, mesh.devices.shape, tuple(mesh.axis_sizes), len(mesh.axis_types),
        tuple(spec), len(spec), spec[2], spec == ja.P("data", None, "model"), spec == ja.P("data"),
        hash(spec) == hash(ja.P("data", None, "model")), sharding.spec == spec, sharding.mesh == mesh, sharding.shard_shape((4, 2, 3)),
        len(sharding.device_set), sharding.is_fully_addressable, sharding == ja.NamedSharding(mesh, spec),
        sharding == ja.NamedSharding(mesh, ja.P()), sharding.is_fully_replicated, sharding.is_equivalent_to(one, 3),
        one.is_fully_replicated, one == one, x.shape, len(x.devices()), x.is_fully_addressable, x.is_fully_replicated,
        len(x.addressable_shards), x.addressable_shards[0].data.shape, x.addressable_shards[0].replica_id, ja.process_index(),
        ja.process_count(), ja.local_device_count() == len(ja.local_devices()),
    ]  # fmt: skip


def test_one_device_is_described_as_by_jax() -> None:
    assert facts(vf) == facts(jax)


def abstract_facts(ja: Any) -> list[Any]:
    """Return what a namespace like jax tells of a mesh without devices."""
    mesh = ja.sharding.AbstractMesh((2, 4), ("data", "model"))
    sharding = ja.NamedSharding(mesh, ja.P("model"))
    return [
        dict(mesh.shape), mesh.axis_names, mesh.size, mesh.empty, len(mesh.axis_types),
        mesh == ja.sharding.AbstractMesh((2, 4), ("a", "b")), mesh == ja.make_mesh((1,), ("data",)),
        mesh.abstract_mesh == mesh, hash(mesh) == hash(mesh.abstract_mesh),
        sharding.shard_shape((8, 2)), ja.sharding.get_abstract_mesh().empty,
    ]  # fmt: skip


def test_a_mesh_may_have_no_devices() -> None:
    assert abstract_facts(vf) == abstract_facts(jax)
    with pytest.raises(ArgumentError, match="has no devices"):
        _ = vf.sharding.AbstractMesh((2,), "data").devices
    with vf.make_mesh((1,), ("data",)) as mesh:
        assert (
            vf.sharding.get_abstract_mesh() == mesh.abstract_mesh == vf.sharding.AbstractMesh((1,), "data", vf.sharding.AxisType.Explicit)
        )
        assert mesh.abstract_mesh != vf.sharding.AbstractMesh((1,), "data")


def test_sharding_of_arrays() -> None:
    x = vf.device_put(np.ones(3), vf.sharding.SingleDeviceSharding("cpu"))
    assert x.sharding == vf.sharding.SingleDeviceSharding(CPU)
    assert x.copy_to_host_async() is None
    from_callback = vf.make_array_from_callback((2, 3), x.sharding, lambda index: np.arange(6.0, dtype="float32").reshape(2, 3)[index])
    assert from_callback.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert vf.make_array_from_single_device_arrays((2, 3), x.sharding, [from_callback]).tolist() == from_callback.tolist()


#: The functions of JAX that say how their results are split.
SHARDED = [
    (module, name)
    for module in ("lax", "numpy", "random")
    for name in dir(getattr(jax, module))
    if not name.startswith("_") and callable(f := getattr(getattr(jax, module), name)) and {"out_sharding", "sharding"} & parameters(f)
]


def test_every_function_with_a_sharding_in_jax_has_one() -> None:
    assert len(SHARDED) > 50
    missing = [
        f"{module}.{name}"
        for module, name in SHARDED
        if not {"out_sharding", "sharding"} & parameters(getattr(getattr(vf, module), name, None) or SHARDED.append)
    ]
    assert missing == []


def test_shardings_of_results_are_checked() -> None:
    x = vf.numpy.arange(12.0).reshape(4, 3)
    mesh = vf.sharding.Mesh(np.full(2, CPU), "data")
    split = vf.NamedSharding(mesh, P("data"))
    calls: list[Any] = [
        lambda s: vf.lax.dot_general(x, x, (((1,), (1,)), ((), ())), out_sharding=s),
        lambda s: vf.numpy.einsum("ij,kj->ik", x, x, out_sharding=s),
        lambda s: vf.jit(lambda v: vf.numpy.matmul(v, v.T, out_sharding=s))(x),
        lambda s: vf.random.normal(vf.random.key(0), (4, 3), out_sharding=s),
        lambda s: vf.numpy.zeros((4, 3), out_sharding=s),
        lambda s: vf.lax.full((4,), 1.0, sharding=s),
        lambda s: vf.nn.initializers.he_normal()(vf.random.key(0), (4, 3), out_sharding=s),
    ]
    for call in calls:
        np.testing.assert_array_equal(call(split), call(None))
        with mesh:
            np.testing.assert_array_equal(call(P("data")), call(None))
        with pytest.raises(ArgumentError, match="'model'"):
            call(P("model"))
    with pytest.raises(ShapeError, match="does not divide"):
        vf.numpy.reshape(x, (3, 4), out_sharding=split)


def test_shardings_of_products_of_integers_of_4_bits_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "permissive", True)  # in which there are such products
    x = vf.numpy.arange(3).astype("int4")
    assert vf.lax.dot_general(x, x, (((0,), (0,)), ((), ()))) == 5
    with pytest.raises(ArgumentError, match="'model'"):
        vf.lax.dot_general(x, x, (((), ()), ((), ())), out_sharding=P("model"))


def test_constraints_are_checked() -> None:
    mesh = vf.sharding.Mesh(np.full(2, CPU), "data")
    run = vf.jit(lambda x: vf.lax.with_sharding_constraint(x * 2, vf.NamedSharding(mesh, P("data"))))
    assert run(vf.numpy.ones(4)).tolist() == [2.0] * 4
    with pytest.raises(ShapeError, match="does not divide"):
        run(vf.numpy.ones(3))
    with mesh:
        assert vf.sharding.get_mesh() is mesh
        tree = vf.reshard({"x": vf.numpy.ones(2), "y": 1.0}, {"x": P("data"), "y": None})
        assert tree["x"].tolist() == [1.0, 1.0]
        with pytest.raises(ArgumentError, match="'model'"):
            vf.lax.with_sharding_constraint(1.0, P("model"))
    assert vf.sharding.get_mesh().empty


def test_an_array_has_a_shard_on_each_device() -> None:
    with pytest.raises(DeviceError, match="one shard on each"):
        vf.make_array_from_single_device_arrays((2,), vf.sharding.SingleDeviceSharding(CPU), [vf.numpy.ones(1)] * 2)
    with pytest.raises(DeviceError, match="needs 4 devices"):
        vf.make_mesh((4,), ("data",), devices=[CPU])


def test_meshes_need_names_of_their_own() -> None:
    with pytest.raises(ArgumentError, match="a name of its own"):
        vf.sharding.Mesh(np.full((2, 2), CPU), ("x", "x"))
    with pytest.raises(ArgumentError, match="names an axis twice"):
        vf.NamedSharding(vf.sharding.Mesh(np.full(2, CPU), "x"), P("x", "x"))


def test_entries_of_specs_have_no_tuples_in_tuples() -> None:
    for entries in (("x", ("z", ("a",))), ((("a", "b"), "c"),)):
        with pytest.raises(ValueError, match="tuples in it"):
            P(*entries)


def test_a_device_is_a_placement_of_local_data() -> None:
    tree = vf.make_array_from_process_local_data(vf.devices("cpu")[0], {"a": np.arange(6).reshape(2, 3)}, (2, 3))
    np.testing.assert_array_equal(tree["a"], np.arange(6).reshape(2, 3))


def test_arrays_tell_whether_they_are_ready() -> None:
    mesh = vf.sharding.Mesh(np.full(2, vf.devices("cpu")[0]), "x")
    for x in (vf.numpy.ones(4) + 1.0, vf.device_put(vf.numpy.ones(4), vf.NamedSharding(mesh, P("x")))):
        x.block_until_ready()
        assert x.is_ready() is True
