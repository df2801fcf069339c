"""Loops and branches as commands. A carry is updated in place where a step may do so; else it goes back and forth between two places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from volta_fn.compiler.buffers.buffer_assignment import Block, Slot
from volta_fn.compiler.program import Item, LoweredProgram
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Equation
from volta_fn.targets.cpu.runtime.commands import Op
from volta_fn.targets.cpu.runtime.writer import ControlFlow, Writer


def _bytes(aval: ShapedArray) -> int:
    return aval.size * aval.dtype.itemsize


class _Carry(NamedTuple):
    """Where a step reads a part of the carry, and where it puts the next."""

    now: Slot
    next: Slot


def _carries(
    writer: Writer, body: LoweredProgram, first: int, initial: Sequence[Slot], results: Sequence[Slot], block: Block, steps: int
) -> list[_Carry]:
    """Begin a loop of some number of steps: the initial carry is put where the final one will be at the end."""
    jaxpr = body.closed.jaxpr
    carries = []
    for position, (start, result) in enumerate(zip(initial, results, strict=True)):
        var, out = jaxpr.invars[first + position], jaxpr.outvars[position]
        size = _bytes(var.aval)
        if out is var or body.may_share(var, out):
            writer.copy(result, start, size, block)
            carries.append(_Carry(result, result))
            continue
        other = writer.slots.memory(size, block)
        now, then = (result, other) if steps % 2 == 0 else (other, result)
        writer.copy(now, start, size, block)
        carry = _Carry(writer.slots.pointer(block, result, other), writer.slots.pointer(block, result, other))
        writer.command(block, [now, carry.now], Op.POINT, carry.now, now)
        writer.command(block, [then, carry.next], Op.POINT, carry.next, then)
        carries.append(carry)
    return carries


def _turn(writer: Writer, carries: Sequence[_Carry], block: Block) -> None:
    """What was next is now."""
    for now, then in carries:
        if now is not then:
            writer.command(block, [now, then], Op.SWAP, now, then)


def _scan(writer: Writer, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> None:
    (body,), params = item.programs, _params(item)
    length, consts, carry = params["length"], params["num_consts"], params["num_carry"]
    carries = _carries(writer, body, consts, operands[consts : consts + carry], results[:carry], block, length)
    counter = writer.slots.pointer(block)
    first, step = (length - 1, -1) if params["reverse"] else (0, 1)
    cost = writer.cost
    inner = writer.slots.begin(block)
    writer.command(block, [counter], Op.LOOP, length, counter, first, step, 0)
    start = len(writer.words)

    def row(base: Slot, aval: ShapedArray) -> Slot:
        slot = writer.slots.pointer(inner, base)
        writer.command(inner, [base, slot], Op.ROW, slot, base, _bytes(aval), counter)
        return slot

    jaxpr = body.closed.jaxpr
    rows = [row(base, v.aval) for base, v in zip(operands[consts + carry :], jaxpr.invars[consts + carry :], strict=True)]
    ys = [row(base, v.aval) for base, v in zip(results[carry:], jaxpr.outvars[carry:], strict=True)]
    writer.body(body, [*operands[:consts], *[c.now for c in carries], *rows], [*[c.next for c in carries], *ys], inner)
    _turn(writer, carries, inner)
    writer.words[start - 1] = len(writer.words) - start
    writer.slots.touch(counter, inner)
    writer.slots.finish(inner)
    writer.cost = cost + length * (writer.cost - cost)


def _while(writer: Writer, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> None:
    condition, body = item.programs
    first, second = _params(item)["cond_nconsts"], _params(item)["body_nconsts"]
    carries = _carries(writer, body, second, operands[first + second :], results, block, 0)
    flag = writer.slots.memory(1, block)
    inner = writer.slots.begin(block)
    writer.command(block, [flag], Op.WHILE, flag, 0, 0)
    start = len(writer.words)
    now = [c.now for c in carries]
    writer.body(condition, [*operands[:first], *now], [flag], inner)
    middle = len(writer.words)
    writer.body(body, [*operands[first : first + second], *now], [c.next for c in carries], inner)
    _turn(writer, carries, inner)
    writer.words[start - 2 : start] = [middle - start, len(writer.words) - middle]
    writer.slots.touch(flag, inner)
    writer.slots.finish(inner)
    writer.cost = float("inf")
    for carry, result, out in zip(carries, results, item.results, strict=True):
        writer.copy(result, carry.now, _bytes(out.aval), block)


def _cond(writer: Writer, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> None:
    branches = item.programs
    index, *arguments = operands
    writer.command(block, [index], Op.SWITCH, index, len(branches), *[0] * len(branches))
    place = len(writer.words) - len(branches)
    for number, branch in enumerate(branches):
        start = len(writer.words)
        inner = writer.slots.begin(block)
        writer.body(branch, arguments, results, inner)
        writer.slots.finish(inner)
        writer.words[place + number] = len(writer.words) - start


def _params(item: Item) -> dict[str, Any]:
    assert isinstance(item.node, Equation)
    return item.node.params


CONTROL_FLOW: dict[str, ControlFlow] = {"scan": _scan, "while": _while, "cond": _cond}
