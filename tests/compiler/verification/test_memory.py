"""Memory: a plan's registers, programs' slots, and blocks of memory. Overlapping lifetimes, lost values and early overwrites are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.compiler.verification.planting import X, refused
from volta_fn import lax
from volta_fn.compiler import buffers, emission, pipeline
from volta_fn.compiler.buffers import Lifetime
from volta_fn.compiler.emission import CommandScope, Slot, Slots
from volta_fn.compiler.plans import BlockBuffer, Plan
from volta_fn.compiler.target import LoweredProgram
from volta_fn.compiler.verification import Extent, SlotUses, may_overwrite, verify_extents, verify_plan
from volta_fn.core.jaxpr import ClosedJaxpr, Literal, Var
from volta_fn.errors import CompilerError
from volta_fn.targets.cpu.runtime import artifact
from volta_fn.targets.cpu.runtime.compile import CONTROL_FLOW, CommandWriter, assemble, loaded_routines
from volta_fn.targets.cpu.target import TARGET, CpuTarget
from volta_fn.targets.numpy.backend import out_results as writes

LARGE = vf.ShapeDtypeStruct((64, 128), "float32")

# plans


def steps(x: Any) -> Any:
    y = lax.sin(x)
    z = lax.cos(y)
    return lax.exp(z * y) + z


def planned(function: Callable[..., Any] = steps, *args: Any, donated: Sequence[bool] = ()) -> tuple[Plan, ClosedJaxpr]:
    program = pipeline.optimize(vf.make_jaxpr(function)(*args or (LARGE,)))
    return pipeline.plan(program, donated, writes), program


def with_step(plan: Plan, number: int, **fields: Any) -> Plan:
    changed = [*plan.steps]
    changed[number] = changed[number]._replace(**fields)
    return plan._replace(steps=tuple(changed))


def fails(plan: Plan, program: ClosedJaxpr, problem: str, equation: str, donated: Sequence[bool] = ()) -> None:
    with pytest.raises(CompilerError, match=f"(?s)register assignment: .*{problem}.*in {equation}.*test_memory.py.* in steps"):
        verify_plan(plan, program, donated)


def test_registers_hold_the_operands() -> None:
    plan, program = planned()
    assert [s.eqn.primitive.name for s in plan.steps] == ["sin", "cos", "mul", "exp", "add"]
    verify_plan(plan, program, ())
    freed = with_step(plan, 1, frees=(*plan.steps[1].frees, plan.steps[0].results[0]))
    fails(freed, program, "does not hold the operand f32.64,128., but nothing", "mul")
    fails(with_step(plan, 1, results=plan.steps[0].results), program, "holds f32.64,128., which is read later", "cos")
    fails(with_step(plan, 3, operands=plan.steps[4].operands[1:]), program, "does not hold the operand", "exp")


def test_overwrites_come_after_the_last_use() -> None:
    plan, program = planned()
    assert plan.steps[3].into == 0 and plan.steps[1].into is None  # exp(z * y) in the memory of z * y; y is read again
    fails(with_step(plan, 1, into=0), program, "shares memory with f32.64,128., which is read later", "cos")
    fails(with_step(plan, 0, into=0), program, "overwrites an argument that is not donated", "sin")
    verify_plan(with_step(plan, 0, into=0, buffers=()), program, (True,))


def test_buffers_of_the_block_do_not_overlap() -> None:
    plan, program = planned()
    assert len(plan.buffers) >= 2 and plan.block
    together = plan._replace(buffers=tuple([BlockBuffer(64, b.aval) for b in plan.buffers]))
    fails(together, program, "shares memory with", "cos")
    verify_plan(plan, program, ())
    with pytest.raises(CompilerError, match="bytes .* of a block of"):
        verify_plan(plan._replace(block=64), program, ())


def test_a_result_does_not_lie_where_an_operand_that_dies_is_still_read() -> None:
    plan, program = planned(lambda x, w: lax.exp(lax.sin(x) @ w) + 1.0, LARGE, vf.ShapeDtypeStruct((128, 128), "float32"))
    assert [(s.eqn.primitive.name, s.buffers) for s in plan.steps[:2]] == [("sin", (0,)), ("dot_general", (1,))]
    verify_plan(plan, program, ())
    together = plan._replace(buffers=(plan.buffers[0], plan.buffers[0]))
    with pytest.raises(CompilerError, match=r"(?s)shares memory with f32.64,128., which is read later.*in dot_general"):
        verify_plan(together, program, ())


def test_operands_and_outputs_are_those_of_the_program() -> None:
    plan, program = planned(lambda x: (x * 2.0 + 3.0, x))
    assert [type(s.operands[1]) for s in plan.steps] == [Literal, Literal]
    verify_plan(plan, program, ())
    with pytest.raises(CompilerError, match="a literal is not the one of the program"):
        verify_plan(with_step(plan, 0, operands=(plan.steps[0].operands[0], plan.steps[1].operands[1])), program, ())
    with pytest.raises(CompilerError, match="does not hold an output"):
        verify_plan(plan._replace(outputs=plan.outputs[::-1]), program, ())


def test_views_share_memory() -> None:
    def function(x: Any) -> Any:
        y = lax.sin(x)
        v = y.T
        return lax.cos(y), v

    plan, program = planned(function)
    cosine = [s.eqn.primitive.name for s in plan.steps].index("cos")
    assert plan.steps[cosine].into is None
    with pytest.raises(CompilerError, match=r"(?s)shares memory with f32.128,64., which is read later.*in cos"):
        verify_plan(with_step(plan, cosine, into=0, buffers=()), program, ())


# slots


def model(x: Any) -> Any:
    y = lax.sort(jnp.tanh(x))
    z = lax.cumsum(y)
    return lax.sort(z * y) + y.sum()


def lowered(function: Callable[..., Any] = model, *args: Any) -> LoweredProgram:
    return pipeline.lower(vf.make_jaxpr(function)(*args or (LARGE,)), TARGET)


def write(program: LoweredProgram) -> Any:
    return assemble(program, (False,) * len(program.closed.invars), CommandWriter(loaded_routines(program), CONTROL_FLOW))


def test_programs_as_they_are_pass() -> None:
    write(lowered())
    write(lowered(lambda x: lax.scan(lambda c, r: (c @ x[:4, :4] + r[:4], c * r[4:8]), x[0, :4], x)))
    write(lowered(lambda x: lax.while_loop(lambda c: c[0].sum() < 9, lambda c: (c[1] + 1, c[0] * 2), (x, x + 1))))
    write(lowered(lambda x: lax.cond(x[0, 0] > 0, lambda x: (lax.sort(x), x), lambda x: (x, lax.cumsum(x)), x)))


class Shared(emission._Values):
    """An assignment that takes the memory of an operand whether it is read later or not."""

    def result(self, number: int, item: Any, position: int, taken: set[Var]) -> Slot:
        slot = super().result(number, item, position, taken)
        own_operands = [v for v in item.operands if isinstance(v, Var) and self.program.root(v) in self.computed]
        if own_operands and item.results[position] not in self.output_slots:
            slot = self.slots[item.results[position]] = self.slots[self.program.root(own_operands[0])]
        return slot


class Lost(emission._Values):
    """An assignment that gives an operand memory of its own, which nothing writes."""

    def operand(self, atom: Any) -> Slot:
        slot = super().operand(atom)
        root = self.program.root(atom) if isinstance(atom, Var) else None
        return self.writer.slots.memory(slot.size, self.scope) if root in self.computed else slot


class Overwriting(emission._Values):
    """An assignment that stores results in the memory of the program's argument."""

    def result(self, number: int, item: Any, position: int, taken: set[Var]) -> Slot:
        var = item.results[position]
        if var in self.output_slots:
            return super().result(number, item, position, taken)
        slot = self.slots[var] = self.slots[self.program.closed.invars[0]]
        return slot


@pytest.mark.parametrize(
    "assignment, problem, equation",
    [
        (Shared, "is stored where .* lies, which .* reads later|before all of that is read", "sort|cumsum"),
        (Lost, "the memory of the operand .* holds no value", "sort"),
        (Overwriting, "overwrites an argument", "tanh"),
    ],
)
def test_wrong_slots_are_found(assignment: type, problem: str, equation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = lowered()
    monkeypatch.setattr(emission, "_Values", assignment)
    with pytest.raises(CompilerError, match=f"(?s)slots for cpu: .*({problem}).*({equation}).*test_memory.py:.* in model"):
        write(program)


def test_in_loops_too(monkeypatch: pytest.MonkeyPatch) -> None:
    program = lowered(lambda x: lax.scan(lambda c, r: (lax.sort((s := lax.sort(c + r)) * lax.cumsum(s)), r), x[0], x))
    monkeypatch.setattr(emission, "_Values", Shared)
    with pytest.raises(CompilerError, match="(?s)slots for cpu: the result .* is stored where"):
        write(program)


def test_an_output_that_is_not_stored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = lowered(lambda x: (lax.sort(x), x))
    monkeypatch.setattr(CommandWriter, "copy", lambda *args: None)
    write(program)  # the copies are the target's
    item = program.items[0]
    monkeypatch.setattr(type(item), "is_needed", property(lambda self: False))
    with pytest.raises(CompilerError, match="slots for cpu: the memory of the output .* holds no value"):
        write(program)


def test_kernels_overwrite_what_no_later_iteration_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = lambda f: lowered(f, X).items[0]
    assert may_overwrite(inside(lambda x: jnp.tanh(x) * 2), 0, 0, TARGET)
    assert not may_overwrite(inside(lambda x: jnp.tanh(x[::-1]) * 2), 0, 0, TARGET)
    assert not may_overwrite(inside(lambda x: x + x[::-1]), 0, 0, TARGET)
    assert may_overwrite(inside(lambda x: x - x.sum(1, keepdims=True)), 0, 0, TARGET)
    assert not may_overwrite(inside(lambda x: (x * 2, x - x.sum(1, keepdims=True))), 0, 0, TARGET)
    assert not may_overwrite(inside(lambda x: x + jnp.pad(x, ((1, 0), (0, 0)))[:-1]), 0, 0, TARGET)
    sort = inside(lax.sort)
    assert not may_overwrite(sort, 0, 0, TARGET)
    monkeypatch.setattr(CpuTarget, "in_place", {"sort": 0})
    assert may_overwrite(sort, 0, 0, TARGET) and not may_overwrite(sort, 0, 1, TARGET)


# blocks of memory


def test_a_layout_that_forgets_lifetimes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def overlapping(values: Sequence[Lifetime]) -> tuple[list[int], int]:
        return [0] * len(values), max([v.bytes for v in values], default=0)

    program = lowered()
    monkeypatch.setattr(artifact, "arrange", overlapping)
    with pytest.raises(CompilerError, match=r"(?s)layout of the arena: .* share memory with .* needed later.*test_memory.py:.* in model"):
        write(program)


def test_a_lifetime_that_ends_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a loop: what an iteration reads that was computed before it is needed until the last one."""

    def function(x: Any) -> Any:
        s = lax.sort(x)
        return lax.scan(lambda c, r: (lax.cumsum(lax.sort(c + s)), lax.sort(r)), s[:, ::-1], jnp.stack([x, x]))

    program = lowered(function)
    write(program)
    monkeypatch.setattr(Slots, "close_scope", lambda self, scope: None)
    with pytest.raises(CompilerError, match="layout of the arena"):
        write(program)


def test_uses_of_loops_extend_lifetimes() -> None:
    scope = CommandScope(None)
    outer, inner, pointer = Slot(scope, 64), Slot(scope, 64), Slot(scope)
    pointer.backing = (outer,)
    uses = SlotUses()
    uses.command([outer])
    begin = uses.time
    uses.command([pointer])
    uses.command([inner])
    uses.loop(begin)
    assert uses.lifetimes() == {outer: (0, 2), pointer: (1, 1), inner: (2, 2)}
    verify_extents("a layout", uses, {outer: Extent(0, 0, 64), inner: Extent(0, 64, 64)}, {})
    verify_extents("a layout", uses, {outer: Extent(0, 0, 64), inner: Extent(1, 0, 64)}, {})
    for offset in (0, 63):
        refused(
            lambda offset=offset: verify_extents("a layout", uses, {outer: Extent(0, 0, 64), inner: Extent(0, offset, 64)}, {}),
            "a layout",
            "64 bytes share memory with 64 bytes",
        )


def test_as_many_layouts_as_one_likes() -> None:
    """`arrange` gives layouts that pass; moving one value by a line does not, where it meets another."""
    rng, result = np.random.default_rng(0), 0
    for _ in range(40):
        scope, uses, slots = CommandScope(None), SlotUses(), []
        spans = [sorted(map(int, rng.integers(0, 30, 2))) for _ in range(20)]
        slots = [Slot(scope, int(rng.integers(1, 400))) for _ in spans]
        for time in range(30):
            uses.command([slot for slot, (first, last) in zip(slots, spans, strict=True) if first <= time <= last])
        lifetimes = [Lifetime(first, last, slot.size) for slot, (first, last) in zip(slots, spans, strict=True)]
        offsets, _ = buffers.arrange(lifetimes)
        extents = {slot: Extent(0, offset, slot.size) for slot, offset in zip(slots, offsets, strict=True)}
        verify_extents("a layout", uses, extents, {})
        moved = slots[int(rng.integers(20))]
        extents[moved] = extents[moved]._replace(offset=offsets[int(rng.integers(20))])
        meet = [
            s
            for s, (first, last) in zip(slots, spans, strict=True)
            if s is not moved
            and first <= spans[slots.index(moved)][1]
            and last >= spans[slots.index(moved)][0]
            and extents[s].offset < extents[moved].offset + moved.size
            and extents[moved].offset < extents[s].offset + s.size
        ]
        if meet:
            result += 1
            with pytest.raises(CompilerError, match="share memory"):
                verify_extents("a layout", uses, extents, {})
        else:
            verify_extents("a layout", uses, extents, {})
    assert result > 10
