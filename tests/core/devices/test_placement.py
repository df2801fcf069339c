"""Arrays that are split between several devices of the CPU, compared with JAX on as many."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import P
from volta_fn.core.devices import device as core_device
from volta_fn.core.devices.placement import placed_aval
from volta_fn.errors import ArgumentError, DeviceError, ShapeError

ROOT = Path(__file__).resolve().parents[3]

#: Prints what a library tells of arrays on a mesh of 4 x 2 devices.
FACTS = """
import json, sys
if sys.argv[1] == "volta_fn":
    import volta_fn.jax
    volta_fn.jax.install()
import jax, jax.numpy as jnp, numpy as np
from jax import P
jax.config.update("jax_num_cpu_devices", 8)
facts = {}

def note(name, x):
    facts[name] = [str(tuple(x.sharding.spec)), sorted(d.id for d in x.devices()), np.asarray(x).tolist(),
                   [[s.device.id, str(s.index), s.replica_id, np.asarray(s.data).tolist()] for s in x.addressable_shards]]

mesh = jax.make_mesh((4, 2), ("X", "Y"))
with jax.set_mesh(mesh):
    x = jax.device_put(jnp.arange(32.0).reshape(8, 4), P("X", "Y"))
    w = jax.device_put(jnp.ones((4, 6)), P(None, "Y"))
    rows = jax.device_put(x, P("X", None))
    note("x", x)
    note("joint", jax.device_put(x, P(("X", "Y"))))
    note("copies", jax.device_put(x, P()))
    note("zeros", jnp.zeros((8, 4), device=jax.NamedSharding(mesh, P("X", "Y"))))
    note("like", jnp.ones_like(rows, device=jax.NamedSharding(mesh, P("Y"))))
    note("negated", -x)
    note("transposed", x.T)
    note("sum", x.sum(0))
    note("rows", rows * 2 + 1)
    note("product", jnp.dot(rows, w))
    note("broadcast", x[:, None] + jnp.ones((8, 3, 4)))
    note("jit", jax.jit(lambda a: (a * 2).T)(x))
    note("constraint", jax.jit(lambda a: jax.reshard(a * 2, P("Y", None)))(x))
    note("out_sharding", jnp.dot(x, x.T, out_sharding=P("X", None)))
    note("gradient", jax.grad(lambda a: (a ** 2).sum())(x))
    note("out_shardings", jax.jit(lambda a: a + 1, out_shardings=jax.NamedSharding(mesh, P("Y")))(x))
    note("shard_map", jax.shard_map(lambda a: jax.lax.psum(a, "Y"), out_specs=P("X", None))(x))
    facts["types"] = [str(jax.typeof(v)) for v in (x, x.T, rows)] + [str(jax.typeof(x).sharding.spec)]
    seen = []
    jax.jit(lambda a: seen.append(str(jax.typeof(a.T * 2))) or a)(x)
    jax.shard_map(lambda a: seen.append(str(jax.typeof(a))) or a, in_specs=P("X", "Y"), out_specs=P("X", "Y"))(x)
    facts["types in functions"] = seen
x = jnp.ones(4)
unsplit = jax.typeof(x).sharding
key = jax.random.key(0)
for name, make in [("zeros", lambda: jnp.zeros(4, device=unsplit)), ("arange", lambda: jnp.arange(4, out_sharding=unsplit)),
                   ("like", lambda: jnp.zeros_like(x, out_sharding=unsplit)),
                   ("jitted", jax.jit(lambda: jax.random.normal(key, (4,), out_sharding=jax.typeof(x).sharding))),
                   ("normal", lambda: jax.random.normal(key, (4,), out_sharding=unsplit))]:
    facts["unsplit " + name] = [type(make().sharding).__name__, np.round(make(), 5).tolist()]
facts["pmap"] = np.asarray(jax.pmap(lambda a: jax.lax.psum(a, "i"), axis_name="i")(jnp.arange(8.0))).tolist()
sharding = jax.NamedSharding(mesh, P("X", None))
facts["map"] = {d.id: str(i) for d, i in sharding.devices_indices_map((8, 2)).items()}
note("callback", jax.make_array_from_callback((8, 2), sharding, lambda i: np.arange(16.0, dtype="float32").reshape(8, 2)[i]))
facts["device"] = [d.id for d in (jax.device_put(jnp.ones(2), jax.devices()[1]) + 1).devices()]
print(json.dumps(facts))
"""


def facts_of(library: str) -> dict[str, Any]:
    """Return the facts, from a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", FACTS, library],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1].replace("float32", "f32"))  # in the texts of types
    return result


def test_shards_specs_and_types_are_those_of_jax() -> None:
    ours, theirs = facts_of("volta_fn"), facts_of("jax")
    assert ours.keys() == theirs.keys()
    for name, fact in theirs.items():
        assert ours[name] == fact, name


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> list[vf.Device]:
    """Let the CPU be eight devices while a test runs."""
    monkeypatch.setitem(core_device._devices_by_platform, "cpu", vf.devices("cpu"))
    vf.set_cpu_devices(8)
    return vf.devices("cpu")


def test_the_number_of_devices_is_checked(eight: list[vf.Device]) -> None:
    assert [d.id for d in eight] == list(range(8))
    assert str(eight[3]) == "cpu:3"
    wrong: Any
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(ArgumentError, match="positive integer"):
            vf.set_cpu_devices(wrong)
    with pytest.raises(ArgumentError, match="in use already"):
        vf.set_cpu_devices(4)


def test_programs_of_split_arrays_give_the_same_bits(eight: list[vf.Device]) -> None:
    mesh = vf.make_mesh((8,), ("data",))
    x = vnp.asarray(np.random.default_rng(0).normal(size=(16, 5)).astype("float32"))
    w = vnp.asarray(np.random.default_rng(1).normal(size=(5, 3)).astype("float32"))
    loss = vf.jit(lambda w, x: vnp.tanh(x @ w).sum())
    split = vf.device_put(x, vf.NamedSharding(mesh, P("data")))
    assert loss(w, split) == loss(w, x)
    np.testing.assert_array_equal(vf.grad(loss)(w, split), vf.grad(loss)(w, x))
    np.testing.assert_array_equal(vf.vmap(lambda row: row * 2)(split), 2 * x)


def test_an_abstract_mesh_stands_for_the_current_one(eight: list[vf.Device]) -> None:
    mesh = vf.make_mesh((4, 2), ("data", "model"))
    split = vf.NamedSharding(mesh, P("data", "model"))
    abstract = vf.NamedSharding(mesh.abstract_mesh, split.spec)
    constrain = lambda x: vf.lax.with_sharding_constraint(x, abstract)
    with pytest.raises(ArgumentError, match="has no devices"):
        constrain(vnp.ones((8, 4)))
    with mesh:
        assert constrain(vnp.ones((8, 4))).sharding == vf.jit(constrain)(vnp.ones((8, 4))).sharding == split
        assert vf.device_put(vnp.ones((8, 4)), abstract).sharding == split


def test_programs_that_read_the_current_mesh_are_for_it_alone(eight: list[vf.Device]) -> None:
    meshes = [vf.make_mesh((8,), ("data",)), vf.make_mesh((4, 2), ("data", "model")), vf.make_mesh((2, 4), ("data", "model"))]
    split = vf.jit(lambda x: vf.lax.with_sharding_constraint(x, P("data")))
    axes = vf.jit(lambda x, sign: x * sign * vf.sharding.get_mesh().size, static_argnums=1)
    outer = vf.jit(lambda x: axes(x, 1) + axes(x, 1))
    plain = vf.jit(lambda x: x + 1)
    x = vnp.ones((8, 4))
    assert plain(x)[0, 0] == 2 and outer(x)[0, 0] == 2
    for mesh in [*meshes, *meshes[::-1]]:
        with mesh:
            for _ in range(2):  # the second call finds the program faster
                assert split(x).sharding == vf.NamedSharding(mesh, P("data"))
                assert [axes(x, -1)[0, 0], outer(x)[0, 0], plain(x)[0, 0]] == [-8, 16, 2]
    assert [f.cache_info().programs for f in (split, axes, outer, plain)] == [3, 7, 4, 1]


@pytest.mark.parametrize("static", [{"static_argnums": 1}, {"static_argnames": "twice"}])
def test_static_arguments_have_no_shardings(eight: list[vf.Device], static: dict[str, Any]) -> None:
    split = vf.NamedSharding(vf.make_mesh((8,), ("data",)), P("data"))

    def function(x: Any, twice: bool, y: Any) -> Any:
        return (2 * x if twice else x), y

    result, other = vf.jit(function, in_shardings=(split, None), **static)(vnp.ones(8), True, vnp.ones(8))
    assert result.tolist() == [2.0] * 8
    assert result.sharding == split
    assert other.sharding == split.update(spec=P())


X, FACTOR, HALF = [np.arange(8, dtype=np.float32), np.full(8, 2, np.float32), np.arange(4, dtype=np.float32)]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda split, c, k: split + c, X + FACTOR),
        (lambda split, c, k: vf.jit(lambda a: a * c)(split), X * FACTOR),
        (lambda split, c, k: vf.grad(lambda a: (a * c).sum())(split), FACTOR),
        (lambda split, c, k: vf.jit(lambda a: vf.lax.scan(lambda s, _: (s + c, None), a, None, length=2)[0])(split), X + 2 * FACTOR),
        (lambda split, c, k: split.at[:4].set(k), np.concatenate([HALF, X[4:]])),
        (lambda split, c, k: vnp.concatenate([split, c]), np.concatenate([X, FACTOR])),
        (lambda split, c, k: split[vnp.arange(3)], X[:3]),
    ],
)
def test_arrays_on_the_default_device_go_to_a_mesh_of_other_devices(eight: list[vf.Device], function: Any, expected: np.ndarray) -> None:
    mesh = vf.sharding.Mesh(np.array(eight[2:4]), ("i",))
    result = function(vf.device_put(X, vf.NamedSharding(mesh, P("i"))), vnp.asarray(FACTOR), vnp.asarray(HALF))
    assert result.devices() == set(eight[2:4])
    np.testing.assert_array_equal(result, expected)


def test_mapped_functions_on_some_devices_take_constants_from_the_default_one(eight: list[vf.Device]) -> None:
    mesh, k = vf.sharding.Mesh(np.array(eight[2:4]), ("i",)), vnp.asarray(HALF)
    mapped = vf.shard_map(lambda a: a * 2 + k, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    for function in (mapped, vf.jit(mapped)):
        result = function(vnp.asarray(X))
        assert result.devices() == set(eight[2:4])
        np.testing.assert_array_equal(result, X * 2 + np.tile(HALF, 2))
    rows = vf.pmap(lambda a: vf.lax.psum(a, "i") + k, axis_name="i", devices=eight[2:4])(X.reshape(2, 4))
    np.testing.assert_array_equal(rows, np.tile(X.reshape(2, 4).sum(0) + HALF, (2, 1)))


def test_donated_arrays_that_are_split_are_gone(eight: list[vf.Device]) -> None:
    x = vf.device_put(vnp.ones((8, 2)), vf.NamedSharding(vf.make_mesh((8,), ("data",)), P("data")))
    step = vf.jit(lambda x: x + 1, donate_argnums=0)
    y = step(x)
    assert x.is_deleted()
    assert y.sharding.spec == P("data", None)
    np.testing.assert_array_equal(step(y), np.full((8, 2), 3.0))


def test_sizes_that_do_not_divide_are_refused(eight: list[vf.Device]) -> None:
    with pytest.raises(ShapeError, match="does not divide"):
        vf.device_put(vnp.ones(6), vf.NamedSharding(vf.make_mesh((4,), ("data",)), P("data")))


def test_arrays_are_joined_of_one_shard_on_each_device(eight: list[vf.Device]) -> None:
    sharding = vf.NamedSharding(vf.make_mesh((8,), ("data",)), P("data"))
    parts = [vf.device_put(vnp.full((1, 2), i), device) for i, device in enumerate(eight)]
    x = vf.make_array_from_single_device_arrays((8, 2), sharding, parts)
    np.testing.assert_array_equal(x, np.repeat(np.arange(8)[:, None], 2, 1))
    assert [s.device for s in x.addressable_shards] == eight
    np.testing.assert_array_equal(x.addressable_data(3), [[3, 3]])
    with pytest.raises(DeviceError, match="one shard on each"):
        vf.make_array_from_single_device_arrays((8, 2), sharding, parts[:7])
    with pytest.raises(ShapeError, match="not \\(1, 3\\)"):
        vf.make_array_from_single_device_arrays((8, 3), sharding, parts)


@pytest.mark.parametrize("transform", [lambda f: f, vf.grad, vf.value_and_grad, lambda f: lambda w: vf.jvp(f, (w,), (w,))])
def test_a_constraint_holds_for_values_that_are_differentiated(eight: list[vf.Device], transform: Any) -> None:
    mesh = vf.make_mesh((4, 2), ("data", "model"))
    rows, columns = vf.NamedSharding(mesh, P("data", None)), vf.NamedSharding(mesh, P(None, "model"))
    x, w = vf.device_put(vnp.ones((4, 3)), rows), vf.device_put(vnp.ones((3, 2)), columns)
    shardings: list[Any] = []

    def loss(w: Any, x: Any) -> Any:
        product = x @ w
        vf.debug.inspect_array_sharding(product, callback=shardings.append)
        vf.debug.inspect_array_sharding(vf.lax.with_sharding_constraint(product, rows) + 1, callback=shardings.append)
        return product.sum()

    vf.jit(lambda w, x: transform(lambda w: loss(w, x))(w))(w, x)
    assert [s.spec for s in shardings[:2]] == [P("data", "model"), P("data", None)]


def test_local_data_of_the_only_process_are_split_between_its_devices(eight: list[vf.Device]) -> None:
    mesh = vf.make_mesh((4, 2), ("data", "model"))
    rows, columns = vf.NamedSharding(mesh, P("data")), vf.NamedSharding(mesh, P(None, "model"))
    x, single = np.arange(16.0, dtype=np.float32).reshape(8, 2), vf.sharding.SingleDeviceSharding(eight[3])
    batch = vf.make_array_from_process_local_data((rows, columns, single, rows), ((x, None), {"a": x}, x, None))
    assert batch[0][1] is None and batch[3] is None
    for array, sharding in ((batch[0][0], rows), (batch[1]["a"], columns), (batch[2], single)):
        assert array.sharding == sharding
        for shard in array.addressable_shards:
            np.testing.assert_array_equal(shard.data, x[shard.index])
    with vf.set_mesh(mesh):
        assert vf.make_array_from_process_local_data(P("data"), x, (8, 2)).sharding.spec == P("data")
    assert vf.make_array_from_process_local_data(rows, [x, x[:4]], [(8, 2), None])[1].shape == (4, 2)
    for sharding in (rows, single):
        with pytest.raises(ShapeError, match=r"has shape \(8, 3\), not \(8, 2\)"):
            vf.make_array_from_process_local_data(sharding, x, (8, 3))


def test_a_type_tells_explicit_axes_only(eight: list[vf.Device]) -> None:
    kinds = [vf.sharding.AxisType.Explicit, vf.sharding.AxisType.Auto]
    mesh = vf.make_mesh((4, 2), ("X", "Y"), kinds)
    assert str(placed_aval(vf.device_put(vnp.ones((8, 4)), vf.NamedSharding(mesh, P("X", "Y"))))) == "f32[8@X,4]"
    assert placed_aval(vnp.ones(3)) is None


def test_a_type_tells_the_axes_along_which_a_value_varies() -> None:
    seen: list[Any] = []

    def note(x: vf.Array) -> vf.Array:
        seen.append(placed_aval(x))
        return x

    vf.vmap(note, axis_name="i")(vnp.ones((2, 3)))
    assert str(seen[0]) == "f32[3]{V:i}" and seen[0].manual_axis_type.varying == {"i"}


def test_a_sharding_tells_the_kind_of_memory_that_was_asked_for() -> None:
    plain = vf.sharding.SingleDeviceSharding(vf.devices("cpu")[0])
    pinned = plain.with_memory_kind("pinned_host")
    assert (plain.memory_kind, pinned.memory_kind) == ("device", "pinned_host") and pinned.device_set == plain.device_set


def test_axes_of_another_type_for_a_while(eight: list[vf.Device], capsys: pytest.CaptureFixture[str]) -> None:
    with vf.set_mesh(vf.make_mesh((4, 2), ("X", "Y"))):
        x = vf.device_put(vnp.ones((8, 4)), P("X", "Y"))
        types = []

        @vf.sharding.auto_axes
        def f(x: vf.Array) -> vf.Array:
            types.append(vf.sharding.get_abstract_mesh().axis_types)
            return x.T

        assert f(x, out_sharding=P("X", None)).sharding.spec == P("X", None)
        assert set(types[0]) == {vf.sharding.AxisType.Auto}
        g = vf.sharding.explicit_axes(lambda x: x + 1, axes="X")
        assert g(x, in_sharding=P("Y", None)).sharding.spec == P("Y", None)
        with vf.sharding.use_abstract_mesh(vf.sharding.AbstractMesh((8,), ("A",))):
            assert vf.reshard(x, P("A")).sharding.mesh.axis_names == ("A",)
        with pytest.raises(ArgumentError, match="6 positions"), vf.sharding.use_abstract_mesh(vf.sharding.AbstractMesh((6,), ("A",))):
            pass
        vf.debug.visualize_array_sharding(vf.device_put(x, P("X", None)))
    assert capsys.readouterr().out.splitlines()[1::2] == [f"| CPU {2 * i},{2 * i + 1} |" for i in range(4)]


def test_groups_of_several_memories_are_refused() -> None:
    one, other = (core_device.Device("cpu", i, "cpu", vf.devices("cpu")[0].backend) for i in range(2))
    other.backend = object()  # type: ignore[assignment]
    elsewhere = core_device.Device("gpu", 0, "gpu", other.backend)
    for devices in ([one, other, one, other], [one, elsewhere]):
        mesh = vf.sharding.Mesh(np.array(devices, object), "data")
        with pytest.raises(DeviceError, match="several memories"):
            vf.device_put(vnp.ones(4), vf.NamedSharding(mesh, P("data")))


def test_an_array_tells_the_mesh_of_one_device_that_it_was_put_on() -> None:
    mesh = vf.make_mesh((1,), ("data",))
    split = vf.NamedSharding(mesh, P("data"))
    x = vnp.arange(4.0)
    put = vf.device_put({"x": x}, split)["x"]
    assert put.sharding == split and put.sharding.spec == P("data") and put.device is x.device
    assert put.tolist() == [0, 1, 2, 3] and x.sharding == vf.sharding.SingleDeviceSharding(vf.devices("cpu")[0])
    assert (put + 1).tolist() == [1, 2, 3, 4]
    assert repr(mesh.axis_types) == "(Explicit,)"


@pytest.mark.parametrize("spec", [P(), P(None), P("x")], ids=str)
def test_specs_need_a_mesh(spec: P) -> None:
    x = np.ones(4, np.float32)
    for place in (lambda: vf.device_put(x, spec), lambda: vf.jit(lambda x: x + 1, in_shardings=spec)(x)):
        with pytest.raises(ArgumentError, match="no mesh is set"):
            place()


def _put(values: Any, device: vf.Device) -> Any:
    return vf.device_put(vnp.asarray(values), device)


#: Functions of an array, and of indices that may lie on another device.
READS: dict[str, Any] = {
    "x[i]": lambda x, i: x[i],
    "x[i, i]": lambda x, i: vnp.outer(x, x)[i, i],
    "x[:, i]": lambda x, i: vnp.outer(x, x)[:, i],
    "x[0, i]": lambda x, i: vnp.outer(x, x)[0, i],
    "x[-i]": lambda x, i: x[-i],
    "x[many]": lambda x, i: vnp.tile(x, 5000)[vnp.repeat(i, 10000)],
    "x[scalar]": lambda x, i: x[i[0]],
    "set": lambda x, i: x.at[i].set(5.0),
    "add": lambda x, i: x.at[i[0]].add(1.0),
    "get": lambda x, i: x.at[i].get(mode="clip"),
    "take": vnp.take,
    "take rows": lambda x, i: vnp.take(vnp.outer(x, x), i, 1),
    "take_along_axis": lambda x, i: vnp.take_along_axis(x, i, 0),
    "segment_sum": lambda x, i: vf.ops.segment_sum(x[:2], i, 4),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_an_index_on_another_device_is_an_argument_as_others_are(eight: list[vf.Device], read: Any) -> None:
    x, index = vnp.arange(4, dtype="float32"), np.array([2, 1], "int32")
    expected = read(x, vnp.asarray(index))
    for array, place, where in ((x, eight[1], eight[1]), (_put(x, eight[2]), eight[0], eight[2]), (_put(x, eight[2]), eight[2], eight[2])):
        result = read(array, _put(index, place))
        assert result.devices() == {where}
        np.testing.assert_array_equal(result, expected)
    with pytest.raises(DeviceError, match="different devices"):
        read(_put(x, eight[2]), _put(index, eight[1]))


def test_masks_are_read_wherever_they_are(eight: list[vf.Device]) -> None:
    x, mask = vnp.arange(4), _put([True, False, True, False], eight[1])
    assert x[mask].devices() == {eight[0]}
    assert _put(x, eight[2])[mask].devices() == {eight[2]}
    assert vnp.extract(mask, x).devices() == {eight[0]}
    assert vnp.repeat(x, _put([1, 0, 2, 1], eight[1])).devices() == {eight[0]}


def test_indices_of_nonzero_elements_are_where_the_elements_are(eight: list[vf.Device]) -> None:
    x = _put([0, 3, 0, 5], eight[1])
    results = [*vnp.nonzero(x), vnp.flatnonzero(x), vnp.argwhere(x), *vnp.where(x > 0), vnp.bincount(x), vnp.histogram(x)[0]]
    assert [result.device for result in results] == [eight[1]] * len(results)
    np.testing.assert_array_equal(results[0], [1, 3])
