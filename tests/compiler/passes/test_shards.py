"""The programs of devices: what is split, what is whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import P, lax
from volta_fn.compiler import pipeline
from volta_fn.compiler.passes.shards import LocalProgram, local_program
from volta_fn.core.devices.device import Device
from volta_fn.core.jaxpr import check_jaxpr, sub_jaxprs


@pytest.fixture
def mesh() -> Any:
    """A mesh of two devices with memories of their own, on which nothing runs."""
    backends: list[Any] = [object(), object()]
    return vf.sharding.Mesh(np.array([Device("gpu", i, "gpu", backend) for i, backend in enumerate(backends)], object), "i")


def local(function: Callable[..., Any], mesh: Any, *shapes: tuple[int, ...], specs: tuple[Any, ...] = ()) -> LocalProgram:
    """Return the program of each device, for arguments with specs, or of no sharding."""
    traced = vf.jit(function).trace(*[vf.ShapeDtypeStruct(shape, "float32") for shape in shapes]).jaxpr
    shardings = tuple([None if spec is None else vf.NamedSharding(mesh, spec) for spec in specs or [None] * len(shapes)])
    return local_program(traced, tuple(mesh.devices.flat), shardings)


def names(closed: Any) -> Counter[str]:
    """Count the equations of a program by their primitives."""
    count = Counter([eqn.primitive.name for eqn in closed.eqns])
    return sum([names(inner) for eqn in closed.eqns for inner in sub_jaxprs(eqn.params)], count)


def test_arguments_and_results_of_a_mapped_function_are_shards(mesh: Any) -> None:
    loss = lambda w, x: vnp.mean(vnp.tanh(x @ w))
    step = lambda w, x: w - lax.pmean(vf.grad(loss)(w, x), "i")
    program = local(vf.shard_map(step, mesh=mesh, in_specs=(P(), P("i")), out_specs=P()), mesh, (4, 3), (8, 4))
    check_jaxpr(program.closed)
    assert [aval.shape for aval in program.closed.in_avals] == [(4, 3), (4, 4)]
    assert not {"shard", "whole", "all_gather"} & set(names(program.at(mesh.devices[1])))
    assert [s.spec for s in program.in_shardings] == [P(), P("i")]
    assert program.out_shardings[0].is_fully_replicated


def test_elementwise_operations_on_shards_stay_there(mesh: Any) -> None:
    mapped = vf.shard_map(lambda x: x + lax.axis_index("i"), mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    program = local(lambda x, y: mapped(vnp.tanh(mapped(x)) * y + 1.0), mesh, (8,), (8,), specs=(P("i"), P("i")))
    assert [aval.shape for aval in (*program.closed.in_avals, *program.closed.out_avals)] == [(4,)] * 3
    assert not {"shard", "whole", "all_gather", "dynamic_slice", "axis_index"} & set(names(program.at(mesh.devices[0])))


def test_other_operations_have_whole_values(mesh: Any) -> None:
    mapped = vf.shard_map(lambda x: x * 2.0, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    program = local(lambda x: mapped(vnp.cumsum(mapped(x))), mesh, (8,))
    assert [aval.shape for aval in (*program.closed.in_avals, *program.closed.out_avals)] == [(4,)] * 2
    assert names(program.closed)["whole"] == names(program.closed)["shard"] == 1
    count = names(program.at(mesh.devices[1]))
    assert count["all_gather"] == 1
    assert not {"shard", "whole"} & set(count)


def test_programs_of_control_flow_have_a_device_s_positions(mesh: Any) -> None:
    mapped = vf.shard_map(lambda x: x * lax.axis_index("i"), mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    program = local(lambda x: lax.fori_loop(0, 3, lambda _, x: mapped(x), x), mesh, (8,))
    assert [aval.shape for aval in program.closed.in_avals] == [(8,)]
    first, second = (names(program.at(device)) for device in mesh.devices)
    assert first == second
    assert first["all_gather"] == 1
    assert not {"shard", "whole"} & set(first)


def test_a_position_drops_no_collective_on_one_device_only(mesh: Any) -> None:
    """The first device of a pipeline reads nothing that arrives, and the last sends nothing on."""

    def results(x: Any) -> Any:
        def step(arriving: Any, x: Any) -> Any:
            out = vnp.tanh(vnp.where(lax.axis_index("i") == 0, x, arriving))
            return lax.ppermute(out, "i", [(0, 1)]), out

        return vnp.where(lax.axis_index("i") == 1, lax.scan(step, vnp.zeros(3), x)[1], 0)

    program = local(vf.shard_map(results, mesh=mesh, in_specs=P(), out_specs=P("i")), mesh, (4, 3))
    first, second = (names(pipeline.optimize(program.at(device))) for device in mesh.devices)
    assert first == second
    assert first["ppermute"] == 1


def test_positions_are_constants_without_collectives(mesh: Any) -> None:
    mapped = vf.shard_map(
        lambda x: lax.fori_loop(0, 3, lambda _, x: x * lax.axis_index("i"), x), mesh=mesh, in_specs=P("i"), out_specs=P("i")
    )
    program = local(mapped, mesh, (8,), specs=(P("i"),))
    assert all("axis_index" not in names(program.at(device)) for device in mesh.devices)


def test_an_argument_that_is_split_in_two_ways_is_whole(mesh: Any) -> None:
    rows, columns = (vf.shard_map(vnp.sin, mesh=mesh, in_specs=spec, out_specs=spec) for spec in (P("i"), P(None, "i")))
    program = local(lambda x: (rows(x), columns(x)), mesh, (4, 6))
    assert [aval.shape for aval in (*program.closed.in_avals, *program.closed.out_avals)] == [(4, 6), (2, 6), (4, 3)]
    assert [s.spec for s in program.out_shardings] == [P("i"), P(None, "i")]
    split = local(lambda x: (rows(x), columns(x)), mesh, (4, 6), specs=(P("i"),))
    assert [aval.shape for aval in split.closed.in_avals] == [(2, 6)]
    assert names(split.closed)["whole"] == 1
