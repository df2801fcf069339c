"""Loops and branches as commands that need no host, except to end a `while`.

A loop's carry alternates between two buffers, unless an iteration may update it in place. A branch, and an iteration of a `while`, is a
*region*: its dispatches read their grids from a buffer, which a small shader fills with the grids or with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.emission import Block, CarriedValue, Slot, scan_slots, while_slots
from volta_fn.compiler.target import Item
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import Primitive
from volta_fn.primitives.control_flow.loops import cond_p, while_p
from volta_fn.primitives.control_flow.scan import scan_p
from volta_fn.targets.wgsl.plans.commands import BufferRange, Command, Loop, MovingSlot, Region, Run, While, put_row, range_of, take_row
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
    loop = while_slots(item, operands, results)
    for carry in loop.carries:
        writer.copy(carry.result, carry.start, carry.var.aval.nbytes, block)
    region = Region(writer.new_grids(block), 1)
    start_switch = _reserve_switch(writer, region, block, "", (), outer=True)
    around, commands = writer.region, writer.commands
    inner = writer.slots.open_block(block)
    writer.commands, writer.region = [], (region, 0)
    flag = writer.slots.memory(4, inner)
    writer.body(loop.condition, [*loop.condition_constants, *results], [flag], inner)
    choice = "if (grids[0] == 0u || (going[0] & 255u) == 0u) { chosen = 1u; }"  # a bool is the first byte of its word
    iteration_switch = _reserve_switch(writer, region, inner, choice, [(Binding("going", "u32"), flag)], outer=False)
    targets = [None if carry.in_place else writer.slots.memory(carry.var.aval.nbytes, inner) for carry in loop.carries]
    written = [target or carry.result for target, carry in zip(targets, loop.carries, strict=True)]
    writer.body(loop.body, [*loop.body_constants, *results], written, inner)
    for target, carry in zip(targets, loop.carries, strict=True):
        if target is not None:
            writer.copy(carry.result, target, carry.var.aval.nbytes, inner)
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
        self.scan = scan_slots(item, operands, results)
        self.length = self.scan.length
        #: The second buffers of the values of the carry that alternate between two, a result and this one.
        self.alternates = [None if c.in_place else writer.slots.memory(c.var.aval.nbytes, block) for c in self.scan.carries]

    def write(self) -> None:
        """Emit the scan."""
        # The first step reads the initial carry, the others that of the step before; the last one makes the results.
        for carry in self.scan.carries:
            if carry.is_constant or not self.length:
                self.writer.copy(carry.result, carry.start, carry.var.aval.nbytes, self.block)
        if not self.length:
            return
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
        scan = self.scan
        ends = [slot for carry in scan.carries for slot in (carry.result, carry.start)]
        for slot in [*self.alternates, *ends, *[s for s, _ in (*scan.xs, *scan.ys)], *scan.constants]:
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
        carries = [*zip(self.scan.carries, self.alternates, strict=True)]
        now = [carry.start if step == 0 and not carry.is_constant else _slot_of(carry, other, not into_results) for carry, other in carries]
        then = [None if carry.is_constant else _slot_of(carry, other, into_results) for carry, other in carries]
        xs = [self.row(slot, aval, step, stride, loop, block, put=False) for slot, aval in self.scan.xs]
        ys = [self.row(slot, aval, step, stride, loop, block, put=True) for slot, aval in self.scan.ys]
        for row in xs:
            self.emit_copies(row.before)
        writer.body(self.scan.body, [*self.scan.constants, *now, *[x.slot for x in xs]], [*then, *[y.slot for y in ys]], block)
        for row in ys:
            self.emit_copies(row.after)
        writer.touch(block, *[r.slot for r in (*xs, *ys)])
        writer.slots.close_block(block)

    def emit_copies(self, runs: Sequence[Run]) -> None:
        """Emit copies of rows, at one time."""
        for run in runs:
            self.writer.emit_dispatch(run)
        self.writer.slots.time += 1

    def row(self, base: Slot, aval: ShapedArray, step: int, stride: int, loop: int | None, block: Block, *, put: bool) -> _Row:
        """Return one row of an array: a range of it if it can be bound, otherwise a copy."""
        writer, size = self.writer, aval.nbytes
        number, by = (self.length - 1 - step, -stride) if self.scan.reverse else (step, stride)
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


def _slot_of(carry: CarriedValue, other: Slot | None, in_result: bool) -> Slot:
    """Return the slot that a carry has now: its result's, or the other one of the two."""
    return carry.result if other is None or in_result else other


def _scan(writer: Writer, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> None:
    _Scan(writer, item, operands, results, block).write()


CONTROL_FLOW: dict[Primitive, ControlFlow] = {scan_p: _scan, while_p: _while, cond_p: _cond}
