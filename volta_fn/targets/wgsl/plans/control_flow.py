"""Loops and branches as commands that need no host, except to end a `while`.

A loop's carry alternates between two buffers, unless an iteration may update it in place. A branch, and an iteration of a `while`, is a
*region*: its dispatches read their grids from a buffer, which a small shader fills with the grids or with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.emission import Block, Slot, may_share
from volta_fn.compiler.target import Item, LoweredProgram
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Equation
from volta_fn.core.primitive import Primitive
from volta_fn.primitives.control_flow.loops import cond_p, while_p
from volta_fn.primitives.control_flow.scan import scan_p
from volta_fn.targets.wgsl.plans.commands import (
    BufferRange,
    Command,
    Loop,
    MovingSlot,
    Region,
    Run,
    While,
    put_row,
    range_of,
    take_row,
)
from volta_fn.targets.wgsl.plans.writer import ControlFlow, Writer
from volta_fn.targets.wgsl.shader import Binding, hand_written

_THREADS = 64

_GRIDS = """\
  var chosen = 0u;
  CHOICE
  storageBarrier();
  workgroupBarrier();
  for (var i = id; i < BRANCHESu; i += THREADSu) { grids[i] = select(0u, 1u, i == chosen); }
  for (var i = id; i < arrayLength(&table); i += THREADSu) {
    let entry = table[i];
    let on = entry.x == chosen;
    for (var k = 0u; k < 3u; k++) { grids[BRANCHESu + 3u * i + k] = select(0u, entry[k + 1u], on); }
  }
"""


#: Stands for the dispatch of a switch until the dispatches of its region are known.
_RESERVED = Loop(-1, 0, [])


class _Switch(NamedTuple):
    """A shader under construction that fills a region's buffer.

    `bindings`, `choice` and `reads` exclude the enclosing region. `position` is that of its command in `commands`.
    """

    bindings: tuple[Binding, ...]
    choice: str
    reads: tuple[BufferRange, ...]
    commands: list[Command]
    position: int
    #: The enclosing region, and the number of the branch.
    outer: tuple[Region, int] | None


def _reserve_switch(
    writer: Writer, region: Region, block: Block, choice: str, reads: Sequence[tuple[Binding, Slot]], *, outer: bool
) -> _Switch:
    """Reserve a command for a switch.

    `choice` sets `chosen` to the branch to run, or to a number beyond all branches.
    """
    writer.touch(block, region.grids, *[slot for _, slot in reads])
    bindings = tuple([binding for binding, _ in reads])
    switch = _Switch(bindings, choice, tuple([range_of(s, 4) for _, s in reads]), writer.commands, len(writer.commands), None)
    writer.commands.append(_RESERVED)
    writer.slots.time += 1
    if outer and writer.region is not None:
        writer.touch(block, writer.region[0].grids)
        switch = switch._replace(outer=writer.region)
    return switch


def _fill_switch(writer: Writer, region: Region, switch: _Switch) -> None:
    """Emit a switch, now that the region's dispatches are known."""
    bindings, choice, reads = switch.bindings, switch.choice, switch.reads
    if switch.outer is not None:
        around, branch = switch.outer
        bindings = (*bindings, Binding("outer", "u32"))
        choice += f"\n  if (outer[{branch}] == 0u) {{ chosen = {region.branches}u; }}"
        reads = (*reads, BufferRange(around.grids, 0, 4 * around.branches, ()))
    text = _GRIDS.replace("CHOICE", choice).replace("THREADS", str(_THREADS)).replace("BRANCHES", str(region.branches))
    bindings = (Binding("grids", "u32", written=True), Binding("table", "vec4<u32>"), *bindings)
    shader = hand_written(bindings, text, {"local_invocation_index": ("id", "u32")}, _THREADS)
    table = writer.slots.constant(np.array(region.entries or [(region.branches, 0, 0, 0)], np.uint32))
    rows = max(len(region.entries), 1)
    region.grids.size = max(region.grids.size, region.size)
    ranges = (BufferRange(region.grids, 0, region.size, ()), BufferRange(table, 0, 16 * rows, ()), *reads)
    switch.commands[switch.position] = Run(shader, frozenset([0]), ranges, (1, 1, 1))


def _cond(writer: Writer, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> None:
    branches = item.programs
    index, *arguments = operands
    region = Region(writer.new_grids(block), len(branches))
    choice = f"chosen = u32(clamp(index[0], 0, {len(branches) - 1}));"
    switch = _reserve_switch(writer, region, block, choice, [(Binding("index", "i32"), index)], outer=True)
    around = writer.region
    for number, branch in enumerate(branches):
        writer.region = (region, number)
        inner = writer.slots.open_block(block)
        writer.body(branch, arguments, results, inner)
        writer.slots.close_block(inner)
    writer.region = around
    writer.touch(block, region.grids)
    _fill_switch(writer, region, switch)


def _while(writer: Writer, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> None:
    condition, body = item.programs
    condition_constants, body_constants = _params(item)["cond_nconsts"], _params(item)["body_nconsts"]
    jaxpr = body.closed.jaxpr
    for result, start, out in zip(results, operands[condition_constants + body_constants :], item.results, strict=True):
        writer.copy(result, start, out.aval.nbytes, block)
    region = Region(writer.new_grids(block), 1)
    start_switch = _reserve_switch(writer, region, block, "", (), outer=True)
    around, commands = writer.region, writer.commands
    inner = writer.slots.open_block(block)
    writer.commands, writer.region = [], (region, 0)
    flag = writer.slots.memory(4, inner)
    writer.body(condition, [*operands[:condition_constants], *results], [flag], inner)
    choice = "if (grids[0] == 0u || (going[0] & 255u) == 0u) { chosen = 1u; }"  # a bool is the first byte of its word
    iteration_switch = _reserve_switch(writer, region, inner, choice, [(Binding("going", "u32"), flag)], outer=False)
    targets: list[Slot | None] = []
    for position, result in enumerate(results):
        var, next_var = jaxpr.invars[body_constants + position], jaxpr.outvars[position]
        same = next_var is var or may_share(body, var, next_var)
        targets.append(result if same else writer.slots.memory(var.aval.nbytes, inner))
    writer.body(body, [*operands[condition_constants : condition_constants + body_constants], *results], targets, inner)
    for result, target, out in zip(results, targets, item.results, strict=True):
        if target is not None:
            writer.copy(result, target, out.aval.nbytes, inner)
    writer.touch(inner, region.grids, *results)
    writer.slots.close_block(inner)
    iteration = writer.commands
    writer.commands, writer.region = commands, around
    writer.touch(block, region.grids)
    writer.commands.append(While(region.flag(0), iteration))
    _fill_switch(writer, region, start_switch)
    _fill_switch(writer, region, iteration_switch)


class _Row(NamedTuple):
    """The slot of one row in an iteration, and the copies into and out of it."""

    slot: Slot
    before: tuple[Run, ...]
    after: tuple[Run, ...]


class _Scan:
    """A scan under construction."""

    def __init__(self, writer: Writer, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> None:
        self.writer, self.block = writer, block
        self.body: LoweredProgram = item.programs[0]
        params = _params(item)
        self.length: int = params["length"]
        self.reverse: bool = params["reverse"]
        consts, carry = params["num_consts"], params["num_carry"]
        jaxpr = self.body.closed.jaxpr
        self.consts = list(operands[:consts])
        self.starts = list(operands[consts : consts + carry])
        self.xs = list(zip(operands[consts + carry :], [v.aval for v in jaxpr.invars[consts + carry :]], strict=True))
        self.results = list(results[:carry])
        self.ys = list(zip(results[carry:], [v.aval for v in jaxpr.outvars[carry:]], strict=True))
        self.carried = list(zip(jaxpr.invars[consts : consts + carry], jaxpr.outvars[:carry], strict=True))
        #: The second buffers of the values of the carry that alternate between two, a result and this one.
        self.alternates = [
            None if out is var or may_share(self.body, var, out) else writer.slots.memory(var.aval.nbytes, block)
            for var, out in self.carried
        ]

    def write(self) -> None:
        """Emit the scan."""
        # The first step reads the initial carry, the others that of the step before; the last one makes the results.
        if not self.length:
            for (var, _), result, start in zip(self.carried, self.results, self.starts, strict=True):
                self.writer.copy(result, start, var.aval.nbytes, self.block)
            return
        for position, (carried, next_var) in enumerate(self.carried):
            if next_var is carried:
                self.writer.copy(self.results[position], self.starts[position], carried.aval.nbytes, self.block)
        self.emit_step(0, 0, None)
        rest = self.length - 1
        steps_per_iteration = 2 if any(other is not None for other in self.alternates) else 1
        if rest // steps_per_iteration > 1:
            self.emit_loop(1, rest // steps_per_iteration, steps_per_iteration)
            done = rest // steps_per_iteration * steps_per_iteration
        else:
            done = 0
        for step in range(1 + done, self.length):
            self.emit_step(step, 0, None)

    def emit_loop(self, first: int, iterations: int, steps: int) -> None:
        """Emit a loop of `iterations` iterations, each of several steps of the scan."""
        writer = self.writer
        writer.loops += 1
        number, commands = writer.loops, writer.commands
        writer.commands = []
        inner = writer.slots.open_block(self.block)
        for step in range(steps):
            self.emit_step(first + step, steps, number, inner)
        for slot in [*self.alternates, *self.results, *self.starts, *[s for s, _ in (*self.xs, *self.ys)], *self.consts]:
            if slot is not None:
                writer.touch(inner, slot)
        writer.slots.close_block(inner)
        body, writer.commands = writer.commands, commands
        writer.commands.append(Loop(number, iterations, body))

    def emit_step(self, step: int, stride: int, loop: int | None, outer: Block | None = None) -> None:
        """Emit one step, whose index grows by `stride` with each iteration of a loop."""
        writer = self.writer
        block = writer.slots.open_block(outer or self.block)
        into_results = (self.length - 1 - step) % 2 == 0  # so that the last step is one of these
        now = [self._carry_in(i, step, into_results) for i in range(len(self.starts))]
        then = [self._carry_out(i, into_results) for i in range(len(self.starts))]
        xs = [self.row(slot, aval, step, stride, loop, block, put=False) for slot, aval in self.xs]
        ys = [self.row(slot, aval, step, stride, loop, block, put=True) for slot, aval in self.ys]
        for row in xs:
            self.emit_copies(row.before)
        writer.body(self.body, [*self.consts, *now, *[x.slot for x in xs]], [*then, *[y.slot for y in ys]], block)
        for row in ys:
            self.emit_copies(row.after)
        writer.touch(block, *[r.slot for r in (*xs, *ys)])
        writer.slots.close_block(block)

    def _carry_in(self, position: int, step: int, into_results: bool) -> Slot:
        var, out = self.carried[position]
        other = self.alternates[position]
        if step == 0 and out is not var:
            return self.starts[position]
        return other if other is not None and into_results else self.results[position]

    def _carry_out(self, position: int, into_results: bool) -> Slot | None:
        var, out = self.carried[position]
        other = self.alternates[position]
        if out is var:
            return None
        return other if other is not None and not into_results else self.results[position]

    def emit_copies(self, runs: Sequence[Run]) -> None:
        """Emit copies of rows, at one time."""
        for run in runs:
            self.writer.emit_dispatch(run)
        self.writer.slots.time += 1

    def row(self, base: Slot, aval: ShapedArray, step: int, stride: int, loop: int | None, block: Block, *, put: bool) -> _Row:
        """Return one row of an array: a range of it if it can be bound, otherwise a copy."""
        writer, size = self.writer, aval.nbytes
        number, by = (self.length - 1 - step, -stride) if self.reverse else (step, stride)
        alignment = writer.capabilities.alignment
        strides = () if loop is None else ((loop, by),)
        if not size:
            return _Row(base, (), ())
        if size % alignment == 0:
            return _Row(MovingSlot(block, base, size, number * size, tuple([(n, b * size) for n, b in strides])), (), ())
        constants, moves = writer.index_constants(self.length), tuple([(n, b * alignment) for n, b in strides])
        index = range_of(MovingSlot(block, constants, 4, number * alignment, moves), 4)
        copy = writer.slots.memory(size, block)
        writer.touch(block, base, copy)
        rows, row = range_of(base, size * self.length), range_of(copy, size)
        if put:
            return _Row(copy, (), (put_row(rows, row, index, size, writer.capabilities),))
        return _Row(copy, (take_row(row, rows, index, size, writer.capabilities),), ())


def _scan(writer: Writer, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> None:
    _Scan(writer, item, operands, results, block).write()


def _params(item: Item) -> dict[str, Any]:
    assert isinstance(item.node, Equation)
    return item.node.params


CONTROL_FLOW: dict[Primitive, ControlFlow] = {scan_p: _scan, while_p: _while, cond_p: _cond}
