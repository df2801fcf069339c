"""Programs of one of two processes whose GPUs share memory, planned without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.targets.nvidia.planning import HOPPER
from volta_fn import P, lax
from volta_fn.compiler import pipeline
from volta_fn.core.devices import distribution
from volta_fn.targets.nvidia.kernel import header_of
from volta_fn.targets.nvidia.target import NvidiaTarget
from volta_fn.targets.wgsl.commands import Run, runs
from volta_fn.targets.wgsl.program_plan import ProgramPlan, plan_program
from volta_fn.targets.wgsl.target import RoutineCache


def be(rank: int) -> None:
    """Be one of two processes."""
    world: Any = SimpleNamespace(rank=rank, size=2, drivers=("nvidia", "nvidia"), limit=300.0, check_program=lambda closed, driver: None)
    distribution.set_current(world)


@pytest.fixture(autouse=True)
def two_processes() -> Iterator[None]:
    """Be the second of two processes."""
    be(1)
    yield
    distribution.set_current(distribution.ALONE)


def planned(f: Callable[..., Any], *shapes: tuple[int, ...], connects: bool = True, dtype: str = "float32") -> ProgramPlan:
    """Return the plan of a function of a process's arrays."""
    shared: Any = SimpleNamespace(connect=lambda ranks: connects)
    mapped = vf.shard_map(f, mesh=vf.make_mesh({"i": 2}), in_specs=P(), out_specs=P("i"), check_vma=False)
    traced = vf.jit(mapped).trace(*[vf.ShapeDtypeStruct(shape, dtype) for shape in shapes]).jaxpr
    return plan_program(traced, [False] * len(shapes), pipeline, NvidiaTarget(HOPPER, shared), RoutineCache())


def exchanges(plan: ProgramPlan) -> list[Run]:
    """Return the dispatches that talk to other processes."""
    headers = [(run, header_of(run.source)) for run in runs(plan.commands)]
    return [run for run, header in headers if header is not None and header.peers == (0, 1)]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: lax.psum(x, "i"),
        lambda x: lax.pmax(x, "i"),
        lambda x: lax.pmin(x, "i"),
        lambda x: lax.all_gather(x, "i", axis=1),
        lambda x: lax.psum_scatter(x, "i"),
        lambda x: lax.all_to_all(x, "i", 0, 1),
        lambda x: lax.ppermute(x, "i", [(0, 1)]),
    ],
)
def test_every_collective_is_a_dispatch(function: Callable[..., Any]) -> None:
    plan = planned(function, (2, 24))
    assert len(exchanges(plan)) == 1
    assert not plan.on_host


def test_processes_without_shared_memory_go_through_the_host() -> None:
    plan = planned(lambda x: lax.psum(x, "i") + lax.axis_index("i"), (3,), connects=False)
    assert not exchanges(plan)
    assert [item.node.primitive.name for item in plan.on_host] == ["psum"]  # type: ignore[union-attr]


def test_a_position_is_a_constant() -> None:
    plan = planned(lambda x: x + lax.axis_index("i"), (3,))
    assert not plan.on_host
    assert "1.0f" in "".join(plan.shaders())


def pipelined(w: Any, x: Any) -> Any:
    """Return the loss of two stages, of which the second one has the results, and its gradients."""
    position = lax.axis_index("i")

    def loss(w: Any, x: Any) -> Any:
        def step(arriving: Any, x: Any) -> Any:
            out = vnp.tanh(vnp.where(position == 0, x, arriving) @ w)
            return lax.ppermute(out, "i", [(0, 1)]), out

        outs = lax.scan(step, vnp.zeros_like(x[0]), vnp.concatenate([x, vnp.zeros_like(x[:1])]))[1]
        return vnp.sum(vnp.where(position == 1, outs[1:], 0) ** 2)

    value, (first, second) = vf.value_and_grad(loss, (0, 1))(w, x)
    return lax.psum(value, "i")[None], first, lax.psum(second, "i")


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (pipelined, [(3, 3), (4, 2, 3)]),
        (lambda x: vnp.where(lax.axis_index("i") == 0, lax.psum(x, "i"), x), [(5,)]),
        (lambda x: lax.cond(lax.axis_index("i") == 0, lambda x, y: x, lambda x, y: y, x, lax.pmax(x, "i")), [(5,)]),
        (lambda x: lax.dynamic_index_in_dim(vnp.stack([lax.psum(x, "i"), lax.pmax(x, "i")]), lax.axis_index("i"), keepdims=False), [(5,)]),
    ],
    ids=["pipeline", "where", "cond", "slice"],
)
def test_all_processes_have_the_same_collectives_in_the_same_order(function: Any, shapes: list[tuple[int, ...]]) -> None:
    collectives = []
    for rank in (0, 1):
        be(rank)
        plan = planned(function, *shapes)
        assert not plan.on_host
        collectives.append([(run.source, [span.size for span in run.ranges]) for run in exchanges(plan)])
    assert collectives[0]
    assert collectives[0] == collectives[1]


def test_sums_begin_when_their_operands_are_computed() -> None:
    """Large arrays are summed one by one, the last one of the program first, and small ones together."""

    def gradients(w: Any, v: Any, b: Any) -> Any:
        return lax.psum(vf.grad(lambda p: vnp.sum(vnp.tanh(vnp.tanh(vnp.ones((8, 2100)) @ p[0]) @ p[1] + p[2])))((w, v, b)), "i")

    plan = planned(gradients, (2100, 2100), (2100, 2100), (2100,))
    assert not plan.on_host
    dispatches = exchanges(plan)
    assert len(dispatches) == 2
    numbers = [list(plan.commands).index(run) for run in dispatches]
    assert numbers[0] < len(plan.commands) - 2, "the first sum waits for all gradients"
    assert sorted(len(run.ranges) for run in dispatches) in ([2, 4], [4, 2])


def test_gradients_of_casts_travel_in_16_bits() -> None:
    """No kernel converts what is only summed, whose sum is of float32."""

    def gradients(w: Any, b: Any) -> Any:
        cast = lambda p: [x.astype("bfloat16") for x in p]
        loss = lambda p: vnp.sum(vnp.tanh(vnp.ones((8, 1024), "bfloat16") @ cast(p)[0] + cast(p)[1]).astype("float32"))
        return lax.pmean(vf.grad(loss)((w, b)), "i")

    plan = planned(gradients, (1024, 256), (256,))
    (dispatch,) = exchanges(plan)
    assert [p.size for p in dispatch.ranges] == [2 * 256, 2 * 1024 * 256, 4 * 256, 4 * 1024 * 256]


def test_the_sum_of_a_loss_does_not_wait_for_gradients() -> None:
    def step(w: Any) -> Any:
        loss = lambda w: vnp.sum(vnp.tanh(vnp.ones((64, 1024), "bfloat16") @ w.astype("bfloat16")).astype("float32"))
        value, gradient = lax.pmean(vf.value_and_grad(loss)(w), "i")
        return value[None], gradient

    plan = planned(step, (1024, 512))
    commands = list(runs(plan.commands))
    first, second = exchanges(plan)
    assert [span.size for span in (*first.ranges, *second.ranges)] == [4, 4, 2 * 1024 * 512, 4 * 1024 * 512]
    assert commands.index(second) - commands.index(first) > 1, "the gradient is computed after the loss is sent"


def test_a_value_that_is_also_read_elsewhere_travels_in_16_bits() -> None:
    def function(x: Any) -> Any:
        wide = (x * x).astype("float32")
        return lax.psum(wide, "i"), vnp.cumsum(wide), lax.psum((x + 1).astype("float16").astype("float32"), "i")

    plan = planned(function, (64,), dtype="bfloat16")
    assert sorted(tuple([p.size for p in run.ranges]) for run in exchanges(plan)) == [(128, 256)] * 2


def test_gradients_of_gathered_parameters_are_summed_early() -> None:
    """They are gathered first, so their gradients are summed last in the program that derivatives give."""

    def gradients(w: Any, v: Any) -> Any:
        def loss(rows: Any) -> Any:
            w, v = (lax.all_gather(row.astype("bfloat16"), "i", tiled=True) for row in rows)
            return vnp.sum(vnp.tanh(vnp.tanh(vnp.ones((64, 1024), "bfloat16") @ w) @ v).astype("float32"))

        return vf.grad(loss)((w, v))

    plan = planned(gradients, (512, 1024), (512, 1024))
    assert not plan.on_host
    commands = list(runs(plan.commands))
    scattered, *_ = [commands.index(run) for run in exchanges(plan)][2:]
    products = [k for k, run in enumerate(commands) if (header := header_of(run.source)) is not None and not header.peers]
    assert len(exchanges(plan)) == 4
    assert scattered < products[-1], "the sum of the second gradient waits for the first"


def test_parameters_are_gathered_in_the_order_of_their_use() -> None:
    def product(first: Any, second: Any, third: Any) -> Any:
        a, b, c = (lax.all_gather(row.astype("bfloat16"), "i", tiled=True).reshape(-1, 64) for row in (first, second, third))
        return vnp.tanh(vnp.tanh(vnp.ones((8, 96), "bfloat16") @ c) @ b) @ a.T

    plan = planned(product, (1024,), (2048,), (3072,))
    assert [run.ranges[0].size for run in exchanges(plan)] == [2 * 3072, 2 * 2048, 2 * 1024]


def test_collectives_in_loops_and_branches() -> None:
    def function(x: Any) -> Any:
        def step(c: Any, k: Any) -> Any:
            return lax.cond(lax.psum(k, "i") > 0, lambda y: lax.psum(y, "i"), lambda y: lax.pmax(y, "i"), c), k

        return lax.scan(step, x, vnp.arange(100.0))[0]

    plan = planned(function, (5,))
    assert not plan.on_host
    dispatches = exchanges(plan)
    assert dispatches, "collectives are dispatches"
    assert len(dispatches) % 3 == 0, "an iteration has a sum, and one collective in each branch"
    assert sum([run.region is not None for run in dispatches]) == len(dispatches) * 2 // 3


def test_what_has_no_kernel_goes_through_the_host() -> None:
    plan = planned(lambda x: lax.psum(x, "i"), (0, 3))
    assert not exchanges(plan)
    assert np.prod([aval.size for aval in plan.computed]) == 0
