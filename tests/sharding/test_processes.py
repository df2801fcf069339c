"""Programs over several processes, as they are traced: where values vary, what derivatives do, when sums start; nothing is run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import P, lax
from volta_fn.compiler.passes.dce import overlap_sums
from volta_fn.compiler.pipeline import optimize
from volta_fn.core.devices import device, distribution
from volta_fn.core.devices.device import RemoteDevice
from volta_fn.core.jaxpr import ClosedJaxpr, process_axes
from volta_fn.errors import ArgumentError, DeviceError

Mesh = vf.sharding.Mesh


class Two:
    """The second of two processes, which cannot reach the other."""

    rank, size = 1, 2


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(distribution, "_world", Two())
    monkeypatch.setattr(device, "_rank", Two.rank)
    monkeypatch.setattr(device, "_size", Two.size)
    return vf.make_mesh({"data": 2})


def program(mesh: Any, function: Any, in_specs: Any, out_specs: Any, *arguments: Any) -> ClosedJaxpr:
    return vf.make_jaxpr(vf.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs))(*arguments)


def test_a_mesh_has_one_device_of_each_process(mesh: Any) -> None:
    assert [str(d) for d in mesh.devices] == ["cpu@0", "cpu:0"]
    assert [d.process_index for d in vf.devices()] == [0, 1]
    assert mesh.local_devices == vf.local_devices()
    assert mesh.processes.group(("data",), 1) == (0, 1)
    with pytest.raises(DeviceError, match="cpu@0 belongs to process 0; this is process 1"):
        vf.device_put(1.0, mesh.devices[0])
    with pytest.raises(DeviceError, match="needs 3 devices, but there are 2"):
        vf.make_mesh({"data": 3})
    with pytest.raises(ArgumentError, match="need names"):
        vf.make_mesh((2,))
    with pytest.raises(ArgumentError, match="has no device of process 1"):
        Mesh(np.array([RemoteDevice("cpu", 0), RemoteDevice("cpu", 2)]), "data").processes
    with pytest.raises(ArgumentError, match="with every step or with none"):
        Mesh(np.array([mesh.devices[1], mesh.devices[0], mesh.devices[1]]), "data").processes


def test_each_process_keeps_its_part_of_an_array(mesh: Any) -> None:
    sharding = vf.NamedSharding(mesh, P(None, "data"))
    assert vf.device_put(np.arange(8).reshape(2, 4), sharding).tolist() == [[2, 3], [6, 7]]
    assert vf.make_array_from_process_local_data(sharding, np.ones((2, 2)), (2, 4)).shape == (2, 2)
    with pytest.raises(vf.errors.ShapeError, match=r"has shape \(2, 2\), not \(2, 4\)"):
        vf.make_array_from_process_local_data(sharding, np.ones((2, 4)), (2, 4))
    assert not sharding.is_fully_addressable


def test_collectives_stay_in_programs_of_processes(mesh: Any) -> None:
    result = program(mesh, lambda x: lax.psum(x, "data"), P("data"), P(), np.ones(3, np.float32))
    assert process_axes(result)
    assert "axis_names=(data:2,)" in str(result)
    assert not process_axes(vf.make_jaxpr(lambda x: x + 1)(1.0))


VARYING: list[Any] = [
    lambda x: x,
    lambda x: lax.axis_index("data"),
    lambda x: lax.psum(x, "data") + x,
    lambda x: lax.ppermute(lax.psum(x, "data"), "data", [(0, 1)]),
    lambda x: lax.psum(x, "data", axis_index_groups=[[0], [1]]),
    lambda x: lax.scan(lambda c, _: (c + x, c), 0.0, None, length=2)[0],
    lambda x: lax.cond(x > 0, lambda: 1.0, lambda: 2.0),
    lambda x: lax.while_loop(lambda c: c[0] < x, lambda c: (c[0] + 1, c[1]), (0.0, 1.0))[1],
    lambda x: vf.jit(lambda y: y * 2)(x),
]
SAME: list[Any] = [
    lambda x: lax.psum(x, "data"),
    lambda x: lax.all_gather(x, "data").sum(),
    lambda x: lax.pmax(x, "data") * 2,
    lambda x: lax.scan(lambda c, _: (c + lax.psum(x, "data"), c), 0.0, None, length=2)[0],
    lambda x: lax.cond(lax.psum(x, "data") > 0, lambda: 1.0, lambda: 2.0),
    lambda x: vf.grad(lambda y: lax.psum(y * y, "data"))(2.0),
]


@pytest.mark.parametrize("function", VARYING)
def test_results_that_differ_must_be_split(mesh: Any, function: Any) -> None:
    one = lambda x: function(x[0])
    with pytest.raises(ArgumentError, match="a result differs between the shards along 'data'"):
        program(mesh, one, P("data"), P(), np.ones(1, np.float32))
    program(mesh, lambda x: one(x)[None], P("data"), P("data"), np.ones(1, np.float32))


@pytest.mark.parametrize("function", SAME)
def test_results_that_are_equal_need_not_be_split(mesh: Any, function: Any) -> None:
    program(mesh, lambda x: function(x[0]), P("data"), P(), np.ones(1, np.float32))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: lax.cond(x[0] > 0, lambda: lax.psum(x, "data"), lambda: x),
        lambda x: lax.while_loop(lambda y: y[0] < 3, lambda y: lax.psum(y, "data"), x),
        lambda x: lax.cond(lax.axis_index("data") == 0, lambda: vf.jit(lambda y: lax.ppermute(y, "data", [(0, 1)]))(x), lambda: x),
    ],
)
def test_a_collective_that_only_some_processes_reach_is_an_error(mesh: Any, function: Any) -> None:
    with pytest.raises(ArgumentError, match="runs a collective over 'data' by a condition that differs between the processes"):
        program(mesh, function, P("data"), P("data"), np.ones(1, np.float32))


def names(closed: ClosedJaxpr) -> list[str]:
    return [eqn.primitive.name for eqn in closed.eqns]


@pytest.mark.parametrize("compression", [None, "bfloat16"])
def test_sums_start_where_their_operands_are_computed(mesh: Any, compression: str | None) -> None:
    """Two large gradients: the sum of the later layer's overlaps with the computation of the earlier layer's."""

    def step(a: Any, b: Any, x: Any) -> Any:
        grads = vf.grad(lambda p: vnp.sum(vnp.tanh(vnp.tanh(x @ p[0]) @ p[1])))((a, b))
        return vf.optim.average_gradients(grads, "data", compression=compression)

    ones = np.ones((300, 300), np.float32)
    before = optimize(program(mesh, step, (P(), P(), P("data")), (P(), P()), ones, ones, ones))
    after = overlap_sums(before)
    assert names(before).count("psum") == 1
    order = [name for name in names(after) if name in ("dot_general", "psum_start", "psum_done", "psum")]
    assert order[2:] == ["dot_general", "psum_start", "dot_general", "dot_general", "psum", "psum_done"]
    for name in ("psum", "psum_start"):
        eqn = after.eqns[names(after).index(name)]
        assert (len(eqn.invars), eqn.params["compression"]) == (1, compression)
    vf.check_jaxpr(after)
    assert overlap_sums(after) is after


def test_a_sum_of_sums_starts_after_those_are_awaited(mesh: Any) -> None:
    def step(x: Any, y: Any) -> Any:
        once, squared = lax.psum(x, "data"), y @ y
        return lax.psum(once, "data"), squared @ squared

    ones = np.ones((300, 300), np.float32)
    before = optimize(program(mesh, step, (P("data"), P()), (P(), P()), ones, ones))
    after = overlap_sums(before)
    order = [name for name in names(after) if name in ("dot_general", "psum_start", "psum_done")]
    assert order == ["psum_start", "dot_general", "psum_done", "psum_start", "dot_general", "psum_done"]
    vf.check_jaxpr(after)


def test_gradients_of_casts_are_summed_early(mesh: Any) -> None:
    """Their conversions are the last equations of a gradient, as casts are the first of a function; here they are scaled, too."""

    def step(a: Any, b: Any, x: Any) -> Any:
        def loss(p: Any) -> Any:
            a, b = (w.astype("bfloat16") for w in p)
            return vnp.sum(vnp.tanh(vnp.tanh(x @ a) @ b).astype("float32"))

        grads = vf.tree.map(lambda g: (g * 0.5).reshape(-1), vf.grad(loss)((a, b)))
        return vf.optim.average_gradients(grads, "data")

    ones = np.ones((300, 300), np.float32)
    before = optimize(program(mesh, step, (P(), P(), P("data")), (P(), P()), ones, ones, ones.astype(vf.dtypes.bfloat16)))
    after = overlap_sums(before)
    order = [name for name in names(after) if name in ("dot_general", "psum_start", "psum_done", "psum")]
    assert order[2:] == ["dot_general", "psum_start", "dot_general", "dot_general", "psum", "psum_done"]
    vf.check_jaxpr(after)


def test_sums_without_computation_to_hide_behind_stay_whole(mesh: Any) -> None:
    closed = optimize(program(mesh, lambda x: lax.psum([x, x + 1, x * 2], "data"), P("data"), P(), np.ones((100, 100), np.float32)))
    assert overlap_sums(closed) is closed
    alone = vf.make_jaxpr(lambda x: x + 1)(1.0)
    assert overlap_sums(alone) is alone


def test_compression_is_for_float32(mesh: Any) -> None:
    shrunk = lambda x: vf.vmap(lambda v: vf.optim.average_gradients(v, "i", compression="bfloat16"), axis_name="i")(x)
    result = shrunk(np.array([1.0, 1 + 2**-10], np.float32))
    assert result.tolist() == [1.0, 1.0]
    with pytest.raises(vf.errors.DTypeError, match="only float32 travels as bfloat16, got \\['float16'\\]"):
        shrunk(np.ones(2, np.float16))
    with pytest.raises(ArgumentError, match="compression must be None or"):
        vf.vmap(lambda v: vf.optim.average_gradients(v, "i", compression="int8"), axis_name="i")(np.ones(2))
