"""What loops and branches cost: counters prove that nothing is copied, and that only a `while` asks now and then whether it has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn import numpy as jnp
from volta_fn.compiler import pipeline
from volta_fn.targets.gpu.device import Counters
from volta_fn.targets.gpu.program import Program
from volta_fn.targets.wgsl.commands import For

GPU = vf.devices("gpu")[0]
STEPS = 40


@pytest.fixture(autouse=True)
def _on_the_gpu() -> Iterator[None]:
    with vf.default_device(GPU):
        yield


def cost(function: Callable[..., Any], *args: Any) -> Counters:
    """Count what the second call of a jitted function has the device and the host do."""
    run = vf.jit(function)
    vf.block_until_ready(run(*args))
    before = GPU.backend.counters
    vf.block_until_ready(run(*args))
    after = GPU.backend.counters
    assert after.host_steps == before.host_steps
    return Counters(after.reads - before.reads, {}, after.dispatches - before.dispatches, after.submissions - before.submissions)


def test_a_loop_with_its_carry_in_place_is_one_dispatch_a_step() -> None:
    result = cost(lambda x: lax.fori_loop(0, STEPS, lambda i, c: c * 0.5 + 1, x), jnp.ones(1024))
    assert (result.reads, result.dispatches) == (0, STEPS)


def test_a_scan_reads_its_rows_where_they_are() -> None:
    result = cost(lambda xs: lax.scan(lambda c, x: (c * 0.5 + x, None), xs[0], xs)[0], jnp.ones((STEPS, 1024)))
    assert result.reads == 0
    assert result.dispatches <= STEPS + 1  # the carry at first is a row, too


def test_a_branch_is_chosen_without_the_host() -> None:
    result = cost(lambda x: lax.cond(x[0] > 0, lambda x: x + 1, lambda x: x * 2, x), jnp.ones(1024))
    assert result.reads == 0


def test_commands_after_a_loop_of_the_host_are_recorded_without_its_iterations() -> None:
    def step(c: Any, _: Any) -> Any:
        return vf.pure_callback(lambda c: c + 1, vf.ShapeDtypeStruct((4,), "float32"), c * 2), None

    f = vf.jit(lambda x: jnp.sin(lax.scan(step, x, None, length=3)[0])).lower(vf.ShapeDtypeStruct((4,), "float32"))
    program = Program(GPU.backend.gpu, f.jaxpr, (False,), pipeline)
    program(False, GPU.backend.put(np.ones(4, np.float32)))
    *_, loop, after = program.commands
    assert isinstance(loop, For)
    (key,) = after.recordings
    assert len(key) == 1  # the blocks alone


def test_the_end_of_a_while_is_asked_for_ever_less_often() -> None:
    def reads(turns: int) -> int:
        return cost(lambda x: lax.while_loop(lambda c: c[0] < turns, lambda c: (c[0] + 1, c[1] * 0.5 + 1), (0, x))[1], jnp.ones(1024)).reads

    assert reads(4 * STEPS) <= reads(STEPS) + 2 <= 10
