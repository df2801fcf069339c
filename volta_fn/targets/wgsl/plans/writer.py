"""The writer of commands: routines, and loops and branches without the host.

Only the end of a `while` needs the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.emission import Block, ProgramWriter, Slot, may_share
from volta_fn.compiler.ir.axes import largest, windowed
from volta_fn.compiler.ir.kernel import KernelCall
from volta_fn.compiler.ir.specification import interpret
from volta_fn.compiler.target import Item, LoweredProgram, RoutineKey, TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Equation
from volta_fn.core.primitive import Primitive
from volta_fn.primitives.barriers import optimization_barrier_p
from volta_fn.primitives.control_flow.loops import cond_p, while_p
from volta_fn.primitives.control_flow.scan import scan_p
from volta_fn.runtime.internals.threads import silenced
from volta_fn.targets.numpy.backend import make_kernel
from volta_fn.targets.wgsl.loops.routine import is_small
from volta_fn.targets.wgsl.plans.commands import (
    BufferRange,
    Command,
    EmittedKernel,
    Host,
    Loop,
    MergedKernels,
    MovingSlot,
    Region,
    Run,
    Submit,
    While,
    check_elements,
    copy,
    in_portions,
    in_sections,
    put_row,
    range_of,
    stays_alone,
    subrange,
    take_row,
)
from volta_fn.targets.wgsl.routine import Routine
from volta_fn.targets.wgsl.shader import Binding, hand_written
from volta_fn.targets.wgsl.target import kernel_routine

# Emit the commands of programs.

#: The fewest index constants of a program, so that short loops share them.
_FEWEST_INDICES = 16

#: A function that emits control flow: (writer, item, operands' slots, results' slots, block).
ControlFlow = Callable[["Writer", Item, Sequence[Slot], Sequence[Slot], Block], None]


class Writer(ProgramWriter):
    """The commands of one program, emitted item by item."""

    def __init__(
        self,
        capabilities: TargetCapabilities,
        routines: Callable[[RoutineKey], Routine | None],
        control_flow: Mapping[Primitive, ControlFlow],
        start_compiling: Callable[[str, int, frozenset[int]], None],
        most_characters: int,
        *,
        on_device: bool = True,
    ) -> None:
        super().__init__()
        #: Whether constants that are on a device stay there.
        self.on_device = on_device
        self.capabilities = capabilities
        #: Gives the routine of a key.
        self.routines = routines
        self.control_flow = control_flow
        #: Starts compiling a pipeline, given by its key, on another thread.
        self.start_compiling = start_compiling
        #: The most characters of a shader that may be fused.
        self.most_characters = most_characters
        #: The commands emitted so far; loops have lists of their own.
        self.commands: list[Command] = []
        #: The number of the next loop.
        self.loops = 0
        #: The region and the branch of conditional commands.
        self.region: tuple[Region, int] | None = None
        #: Slots of regions' buffers.
        self.regions: list[Slot] = []
        #: The small kernels that the last command computes, to which the next one may be added.
        self.merged: MergedKernels | None = None
        #: The item that is being emitted.
        self.current: Item | None = None

    def new_grids(self, block: Block) -> Slot:
        """Return a slot for a region's buffer."""
        self.regions.append(Slot(block))
        return self.regions[-1]

    def index_constants(self, length: int) -> Slot:
        """Return the slot of an array of the numbers below `length`, and perhaps more.

        They are at offsets that can be bound. Raises `OutOfMemoryError` if they are too many, as those of a very long loop are.
        """
        return self.slots.constant(
            _index_constants(1 << max(length - 1, _FEWEST_INDICES - 1).bit_length(), self.capabilities.alignment // 4)
        )

    def constant(self, value: Any) -> Slot:
        """Return the slot of a constant array, which may be on the device."""
        buffer = value.buffer()
        is_on_host = getattr(buffer, "host_values", buffer) is not None  # NumPy's arrays, and copies of what is on the device
        return self.slots.constant(np.asarray(value)) if is_on_host or not self.on_device else self.slots.held(buffer)

    def item(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> None:
        """Emit an item."""
        outer, self.current = self.current, item
        self._emit(item, operands, results, block)
        self.current = outer

    def _emit(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> None:
        check_elements([v.aval.size for v in (*item.operands, *item.results)])
        if isinstance(item.node, KernelCall):
            if largest(item.node.kernel) > self.capabilities.binding and self.emit_in_chunks(item, operands, results, block):
                return
            if self.merge_into_last(item, operands, results, block):
                return
        routine = self.routine_of(item, operands, results)
        if routine is not None:
            before = len(self.commands)
            self.emit_routine(routine, item, operands, results, block)
            self.merged = self.begin_merging(item, operands, results, block)
            if self.merged is None:  # otherwise the shader may still grow
                for run in self.commands[before:]:
                    if isinstance(run, Run) and stays_alone(run, run.deferred, self.most_characters):
                        self.start_compiling(*run.key)
        elif isinstance(item.node, Equation) and item.node.primitive in self.control_flow:
            self.control_flow[item.node.primitive](self, item, operands, results, block)
        elif isinstance(item.node, Equation) and item.node.primitive is optimization_barrier_p:
            for result, operand, var in zip(results, operands, item.results, strict=True):
                self.copy(result, operand, var.aval.nbytes, block)
        else:
            self.emit_host_step(item, operands, results, block)

    def routine_of(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot]) -> Routine | None:
        """Return an item's routine, if any; results may share the memory of operands."""
        if isinstance(item.node, KernelCall):
            shared = {i: operands.index(slot) for i, slot in enumerate(results) if slot in operands and item.results[i].aval.size}
            if shared:
                return kernel_routine(item.node.kernel, self.capabilities, shared)
        routine = None if item.key is None else self.routines(item.key)
        if routine is not None and isinstance(item.node, Equation) and results[0] in operands:
            return replace(routine, dispatches=routine.dispatches[1:])  # the first one copies the operand
        return routine

    def touch(self, block: Block, *slots: Slot) -> None:
        """Mark slots as used by the next command."""
        for slot in slots:
            self.slots.touch(slot, block)

    def emit_routine(self, routine: Routine, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> None:
        """Emit a routine's dispatches."""
        workspaces = [self.slots.memory(size, block) for size in routine.workspaces]
        slots = [*operands, *results, *workspaces]
        sizes = [v.aval.nbytes for v in (*item.operands, *item.results)] + list(routine.workspaces)
        ranges = [range_of(slot, size) for slot, size in zip(slots, sizes, strict=True)]
        self.touch(block, *slots)
        for number, dispatch in enumerate(routine.dispatches):
            self.emit_dispatch(Run.of(dispatch, ranges, deferred=item.is_deferred and number == 0), dispatch.work)
        self.slots.time += 1

    def merge_into_last(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> bool:
        """Merge an item into the last command, if both are small, independent kernels."""
        merged = self.merged
        if merged is None or merged.commands is not self.commands or merged.block is not block or merged.run is not self.commands[-1]:
            return False
        kernel = self.mergeable(item, operands, results)
        run = None if kernel is None else merged.extended(kernel, self.capabilities)
        if kernel is None or run is None:
            return False
        self.slots.time -= 1  # kernels of a dispatch run concurrently: none may write memory that another one reads
        self.touch(block, *operands, *results)
        self.slots.time += 1
        run.items = (*self.commands[-1].items, item)
        self.commands[-1] = run
        return True

    def begin_merging(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> MergedKernels | None:
        """Return the last item as the first of merged kernels, if it is small."""
        kernel = self.mergeable(item, operands, results)
        last = self.commands[-1] if self.commands else None
        return MergedKernels(kernel, last, self.commands, block) if kernel is not None and isinstance(last, Run) else None

    def mergeable(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot]) -> EmittedKernel | None:
        """Return an item as a kernel that may be merged with others; None if it is not."""
        plain = self.region is None and all(type(slot) is Slot for slot in (*operands, *results))
        if not plain or not isinstance(item.node, KernelCall) or not is_small(item.node.kernel, self.capabilities):
            return None
        sizes = tuple([v.aval.nbytes for v in (*item.operands, *item.results)])
        return EmittedKernel(item.node.kernel, tuple(operands), tuple(results), sizes)

    def emit_in_chunks(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> bool:
        """Emit a kernel of arrays larger than one binding in chunks.

        Each chunk sees a window of the arrays. Returns whether it was possible.
        """
        assert isinstance(item.node, KernelCall)
        chunks = None if set(results) & set(operands) else windowed(item.node.kernel, self.capabilities.binding)
        if chunks is None:
            return False
        slots = [*operands, *results]
        for kernel, windows in chunks:
            routine = kernel_routine(kernel, self.capabilities)
            workspaces = [self.slots.memory(size, block) for size in routine.workspaces]
            self.touch(block, *slots, *workspaces)
            sizes = [b.dtype.itemsize for b in (*kernel.inputs, *kernel.outputs)]
            ranges = [subrange(s, w.first * n, w.size * n) for s, w, n in zip(slots, windows, sizes, strict=True)]
            ranges += [range_of(slot, size) for slot, size in zip(workspaces, routine.workspaces, strict=True)]
            for dispatch in routine.dispatches:
                self.emit_dispatch(Run.of(dispatch, ranges), dispatch.work)
            self.slots.time += 1
        return True

    def emit_dispatch(self, run: Run, work: int = 0) -> None:
        """Emit a dispatch, in portions if it has very many multiplications (`work`)."""
        portions = in_portions(in_sections(run, self.capabilities), work, self.index_constant, self.capabilities)
        for portion in portions:
            portion.items = () if self.current is None else (self.current,)
            if self.region is not None:
                region, branch = self.region
                portion.region, portion.entry = region, len(region.entries)
                region.entries.append((branch, *portion.groups))
            self.commands.append(portion)
            if len(portions) > 1:
                self.commands.append(Submit())

    def index_constant(self, number: int, length: int) -> BufferRange:
        """Return a binding range whose first word is `number`, less than `length`."""
        return range_of(self.index_constants(length), 4)._replace(offset=number * self.capabilities.alignment)

    def copy(self, to: Slot, source: Slot, size: int, block: Block) -> None:
        """Emit a copy of an array of `size` bytes."""
        if to is not source and size:
            self.touch(block, to, source)
            self.emit_dispatch(copy(range_of(to, size), range_of(source, size), self.capabilities))
            self.slots.time += 1

    def emit_host_step(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> None:
        """Emit a call of NumPy."""
        self.on_host.append(item)
        self.touch(block, *operands, *results)
        node = item.node
        if isinstance(node, KernelCall):
            name, compute = "kernel", silenced(partial(interpret, node.kernel))
            kinds: list[tuple[tuple[int, ...], Any]] = [((b.size,), b.dtype) for b in node.kernel.inputs]
        else:
            name, compute = node.primitive.name, _equation(node)
            kinds = [(v.aval.shape, v.aval.dtype) for v in node.invars]
        sources = tuple([(range_of(slot, v.aval.nbytes), *kind) for slot, v, kind in zip(operands, item.operands, kinds, strict=True)])
        targets = tuple([(range_of(s, v.aval.nbytes), v.aval.shape, v.aval.dtype) for s, v in zip(results, item.results, strict=True)])
        flag = None
        if self.region is not None:
            region, branch = self.region
            self.touch(block, region.grids)
            flag = region.flag(branch)
        self.commands.append(Host(name, compute, sources, targets, flag))
        self.slots.time += 1


@lru_cache(maxsize=32)
def _index_constants(length: int, spacing: int) -> np.ndarray:
    """Return 0, 1, 2, … in words `spacing` words apart."""
    check_elements([length * spacing])
    numbers = np.zeros((length, spacing), np.uint32)
    numbers[:, 0] = np.arange(length)
    return numbers


def _equation(eqn: Equation) -> Callable[..., Any]:
    """Return an equation as a function of NumPy arrays."""
    compute = silenced(make_kernel(eqn.primitive, tuple([v.aval for v in eqn.invars]), eqn.params))
    return compute if eqn.primitive.multiple_results else lambda *arrays: (compute(*arrays),)


# Emit loops and branches as commands that need no host, except to end a `while`.
#
# A loop's carry alternates between two buffers, unless an iteration may update it in place. A branch, and an iteration of a `while`, is a
# *region*: its dispatches read their grids from a buffer, which a small shader fills with the grids or with zeros.

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
