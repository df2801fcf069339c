"""Commands for GPUs, planned without a device: violations of bindings, limits, order and lifetimes are found; commands as they are pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.targets.wgsl.test_program_plan import WEBGPU
from volta_fn import lax
from volta_fn.compiler import pipeline
from volta_fn.compiler.emission import Slots
from volta_fn.errors import CompilerError
from volta_fn.targets.wgsl import commands as horizontal_fusion
from volta_fn.targets.wgsl import program_plan
from volta_fn.targets.wgsl.commands import Command, For, Run, runs
from volta_fn.targets.wgsl.program_plan import ProgramPlan, plan_program, uses_of, verify_commands, verify_order
from volta_fn.targets.wgsl.target import RoutineCache, WgslTarget

TARGET = WgslTarget(WEBGPU.capabilities)
X = vf.ShapeDtypeStruct((64, 128), "float32")


def model(x: Any) -> Any:
    y = lax.sort(jnp.tanh(x))
    z = lax.cumsum(y)
    return lax.sort(z * y) + y.sum(), lax.sort(z)


def plan(function: Any = model) -> ProgramPlan:
    return plan_program(vf.make_jaxpr(function)(X), (False,), pipeline, TARGET, RoutineCache())


def with_run(commands: Sequence[Command], **fields: Any) -> list[Command]:
    """Commands whose first dispatch has changed fields."""
    first = next(runs(commands))
    changed = {name: value(first) if callable(value) else value for name, value in fields.items()}
    return [replace(first, **changed) if command is first else command for command in commands]


def moved(offset: int, size: int = 0) -> Any:
    return lambda run: (*run.ranges[:-1], run.ranges[-1]._replace(offset=offset, size=run.ranges[-1].size + size))


@pytest.mark.parametrize(
    "problem, fields",
    [
        ("2 bindings are bound to 1 ranges", {"ranges": lambda run: run.ranges[:1]}),
        ("are written, but .* are said to be", {"written_bindings": frozenset()}),
        (r"\(1, 70000, 1\) workgroups exceed", {"workgroups": (1, 70000, 1)}),
        ("which is not aligned", {"ranges": moved(4)}),
        ("bytes 0 to .* are bound of a slot of", {"ranges": moved(0, 4)}),
        ("bytes 256 to .* are bound of a slot of", {"ranges": moved(256)}),
        ("is written and bound twice", {"ranges": lambda run: (run.ranges[-1],) * 2}),
        ("invocations exceed", {"shader": lambda run: replace(run.shader, invocations=2048)}),
    ],
)
def test_a_dispatch_binds_what_its_shader_declares(problem: str, fields: dict[str, Any]) -> None:
    commands = plan().commands
    verify_commands(TARGET.capabilities, commands)
    with pytest.raises(CompilerError, match=f"(?s)dispatches: .*{problem}.*in (a kernel of f32|sort)"):
        verify_commands(TARGET.capabilities, with_run(commands, **fields))


def test_ranges_stay_in_their_slots_in_all_iterations_of_a_loop() -> None:
    commands = plan(lambda x: lax.scan(lambda c, r: (lax.sort(c + r), c), x[0], lax.sort(x))).commands
    verify_commands(TARGET.capabilities, commands)
    (loop,) = [command for command in commands if isinstance(command, For)]
    longer = [replace(loop, iterations=loop.iterations + 9) if command is loop else command for command in commands]
    with pytest.raises(CompilerError, match="are bound of a slot of"):
        verify_commands(TARGET.capabilities, longer)


# order


def test_dispatches_that_depend_on_each_other_keep_their_order() -> None:
    commands = [command for command in plan().commands if isinstance(command, Run)]
    assert len(commands) > 3
    verify_order("a pass", commands, commands)
    wrong = 0
    for number in range(len(commands) - 1):
        swapped = [*commands[:number], commands[number + 1], commands[number], *commands[number + 2 :]]
        slots = [{span.slot for span in run.ranges} for run in commands[number : number + 2]]
        written = [{run.ranges[b].slot for b in run.written_bindings} for run in commands[number : number + 2]]
        if (slots[0] & written[1]) | (written[0] & slots[1]):
            wrong += 1
            with pytest.raises(
                CompilerError,
                match="(?s)a pass: a dispatch was moved before, or fused with, one that it depends on.*in (a kernel|sort|cumsum)",
            ):
                verify_order("a pass", commands, swapped)
        else:
            verify_order("a pass", commands, swapped)
    assert wrong > 1
    with pytest.raises(CompilerError, match="a pass: a dispatch was lost"):
        verify_order("a pass", commands, commands[:-1])
    with pytest.raises(CompilerError, match="a pass: a new dispatch binds what none did before"):
        verify_order("a pass", commands, [*commands, replace(commands[0])])


def test_horizontal_fusion_that_forgets_a_dependence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def joined(groups: list[list[Run]], run: Run, first: int, *limits: Any) -> int:
        return original(groups, run, 0, *limits)

    original = horizontal_fusion._join
    small = vf.ShapeDtypeStruct((16, 8), "float32")
    closed = vf.make_jaxpr(lambda x: lax.cumsum(lax.cumsum(jnp.tanh(x), 1) * x, 0))(small)
    target = WgslTarget(WEBGPU.capabilities._replace(buffers=64))
    plan_program(closed, (False,), pipeline, target, RoutineCache())
    monkeypatch.setattr(horizontal_fusion, "_join", joined)
    with pytest.raises(CompilerError, match="horizontal fusion: a dispatch was moved before, or fused with, one"):
        plan_program(closed, (False,), pipeline, target, RoutineCache())


# blocks


def test_blocks_shared_too_early_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_plan, "share_blocks", lambda lifetimes: ([max(x.bytes for x in lifetimes)], [0] * len(lifetimes)))
    with pytest.raises(CompilerError, match=r"(?s)blocks of memory: .* share memory with .*test_verification.py:.* in model"):
        plan()


def test_lifetimes_that_end_too_early_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Any) -> Any:
        s = lax.sort(x)
        return lax.scan(lambda c, r: (lax.cumsum(lax.sort(c + s)), lax.sort(r)), s[:, ::-1], jnp.stack([x] * 6))

    plan(function)
    monkeypatch.setattr(Slots, "touch", lambda self, slot, block: self.__dict__.setdefault("_", slot) and _once(self, slot))
    with pytest.raises(CompilerError, match="blocks of memory"):
        plan(function)


def _once(slots: Slots, slot: Any) -> None:
    """Note only the first use of a slot."""
    slot.begin = slots.time if slot.begin is None else slot.begin
    slot.end = slot.begin


def test_uses_follow_the_order_of_commands() -> None:
    commands = plan().commands
    uses = uses_of(commands)
    assert uses.time == len(commands) and not uses.loops
    first = commands[0]
    assert isinstance(first, Run)
    assert all(uses.times[span.slot][0] == 0 for span in first.ranges)
