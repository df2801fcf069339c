"""The writer of commands: dispatches, steps on the host, copies, control flow.

It splits dispatches that exceed a limit of the device, and merges small kernels that follow each other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.emission import CarriedValue, CommandScope, ProgramWriter, Slot, scan_slots, while_slots
from volta_fn.compiler.ir.axes import largest, windowed
from volta_fn.compiler.ir.kernel import Kernel, KernelCall, interpret
from volta_fn.compiler.target import Item, RoutineKey, TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Equation
from volta_fn.core.primitive import Primitive
from volta_fn.errors import OutOfMemoryError
from volta_fn.primitives.call import optimization_barrier_p
from volta_fn.primitives.loops import cond_p, while_p
from volta_fn.primitives.scan import scan_p
from volta_fn.runtime.native_calls import silenced
from volta_fn.targets.numpy.backend import make_kernel
from volta_fn.targets.wgsl.commands import (
    BufferRange,
    Command,
    For,
    Host,
    MovingSlot,
    Region,
    Run,
    Submit,
    While,
    copy,
    put_row,
    range_of,
    stays_alone,
    subrange,
    take_row,
)
from volta_fn.targets.wgsl.loops.emit_values import Buffers
from volta_fn.targets.wgsl.loops.routine import FusedKernels, Member, is_small
from volta_fn.targets.wgsl.routine import Dispatch, Routine
from volta_fn.targets.wgsl.shader import Binding, hand_written
from volta_fn.targets.wgsl.target import WgslTarget, kernel_routine
from volta_fn.targets.wgsl.transforms import can_run_in_portions, portion, split_bindings

# Dispatches that exceed a limit, split: large arrays, and long work.
#
# Four things may be too large, and each is split in its own way:
#
# - the arrays of a kernel, which no shader can bind as a whole: into *chunks*, kernels of some of its rows (`Writer.emit_in_chunks`);
# - an array for one binding: into *sections* of one dispatch, several bindings of it (`in_sections`);
# - the work of one dispatch: into *portions* of its workgroups, dispatches that are submitted one by one (`in_portions`);
# - the rows of a reduction for one workgroup: into chunks of each row, by the kernel's routine (`loops.rows.Split`).
#
# A device limits the bytes of one binding, to 128 MiB by default, though its buffers may be larger: such a buffer is bound several
# times. And drivers reset a GPU that is busy with one dispatch for seconds, 2 of them on Windows: a dispatch with very many
# multiplications becomes several, each with some of its workgroups and submitted by itself. They share a shader, which reads the number
# of its portion from the index constants.

#: Multiplications in a portion: half a second on a GPU of 0.5 Tflop/s, a few milliseconds on a large one. Portions are large, so that
#: waiting for the last workgroup of each costs little.
MOST_WORK = 1 << 38


#: The most elements of an array: shaders index them, and the invocations of all workgroups, in 32 bits.
ELEMENTS = (1 << 32) - (1 << 17)


def check_elements(counts: Iterable[int]) -> None:
    """Raise `OutOfMemoryError` for arrays that 32-bit indices cannot address."""
    if (most := max(counts, default=0)) > ELEMENTS:
        raise OutOfMemoryError(f"an array of {most} elements is more than a GPU's shader can number, {ELEMENTS}; split it")


def in_sections(run: Run, capabilities: TargetCapabilities) -> Run:
    """Bind large arrays of a dispatch in sections.

    Kernels that are not WGSL bind arrays of any size. Raises `OutOfMemoryError` if that takes more bindings than the device has.
    """
    size = capabilities.binding // capabilities.alignment * capabilities.alignment
    counts = [max(-(-p.size // size), 1) for p in run.ranges]
    if max(counts) == 1 or not run.shader.is_rewritable:
        return run
    if sum(counts) > capabilities.buffers:
        raise OutOfMemoryError(
            f"an array of {max(p.size for p in run.ranges)} bytes is larger than a shader of this GPU can see: "
            f"{capabilities.binding} bytes at once, {capabilities.buffers} times, and this step needs "
            f"{sum(counts)} times. Split it, for example into smaller batches"
        )
    ranges, written = list[BufferRange](), set[int]()
    for number, (span, count) in enumerate(zip(run.ranges, counts, strict=True)):
        if number in run.written_bindings:
            written.update(range(len(ranges), len(ranges) + count))
        ranges += [span._replace(offset=span.offset + k * size, size=min(size, span.size - k * size)) for k in range(count)]
    changed = functools.partial(split_bindings, counts=tuple(counts), size=size)
    return replace(run.changed(changed), ranges=tuple(ranges), written_bindings=frozenset(written))


def in_portions(run: Run, work: int, index_constant: Callable[[int, int], BufferRange], capabilities: TargetCapabilities) -> list[Run]:
    """Split a dispatch into portions of its workgroups.

    ``index_constant(k, n)`` is a binding range whose first word is k, which is less than n.
    """
    across, down, _ = run.workgroups
    length, each = (down, across) if down > 1 else (across, 1)
    size = -(-length // -(-work // MOST_WORK)) if work > MOST_WORK else length
    if size == length or len(run.ranges) == capabilities.buffers or not can_run_in_portions(run.shader):
        return [run]
    run = run.changed(functools.partial(portion, groups=size * each))
    count = -(-length // size)
    lengths = [min(size, length - k * size) for k in range(count)]
    groups = [(across, n, 1) if down > 1 else (n, 1, 1) for n in lengths]
    return [replace(run, ranges=(*run.ranges, index_constant(k, count)), workgroups=g) for k, g in enumerate(groups)]


# Small, independent kernels that follow each other, as one dispatch.

#: The most buffers that a dispatch of several kernels binds.
_MERGED_BUFFERS = 64


class EmittedKernel(NamedTuple):
    """An emitted kernel, with the slots that it reads and writes, and their bytes."""

    kernel: Kernel
    reads: tuple[Slot, ...]
    writes: tuple[Slot, ...]
    sizes: tuple[int, ...]

    def is_independent(self, others: Sequence[EmittedKernel]) -> bool:
        """Return whether no kernel writes a slot that another one reads or writes."""
        writes = {slot for other in others for slot in other.writes}
        uses = writes.union(*[other.reads for other in others])
        return writes.isdisjoint(self.reads) and uses.isdisjoint(self.writes)


class MergedKernels:
    """The kernels that the last command computes, in a list of commands of a scope."""

    def __init__(self, kernel: EmittedKernel, run: Run, commands: list[Command], scope: CommandScope) -> None:
        self.kernels, self.run, self.commands, self.scope = [kernel], run, commands, scope
        self._several: FusedKernels | None = None
        #: The binding numbers of slots, and their bytes.
        self._numbers: dict[Slot, int] = {}
        self._sizes: list[int] = []

    def extended(self, kernel: EmittedKernel, capabilities: TargetCapabilities) -> Run | None:
        """Return the command with one more kernel; None if it cannot be extended further."""
        if not kernel.is_independent(self.kernels):
            return None
        new = [kernel]
        if self._several is None:
            self._several = FusedKernels(capabilities)
            new = [*self.kernels, kernel]
        dispatch = None
        for added in new:
            dispatch = self._add(added)
            if dispatch is None:
                return None
        assert dispatch is not None
        slots = list(self._numbers)
        self.kernels.append(kernel)
        self.run = Run.of(dispatch, [range_of(slot, size) for slot, size in zip(slots, self._sizes, strict=True)])
        return self.run

    def _add(self, kernel: EmittedKernel) -> Dispatch | None:
        assert self._several is not None
        for slot, size in zip((*kernel.reads, *kernel.writes), kernel.sizes, strict=True):
            if self._numbers.setdefault(slot, len(self._sizes)) == len(self._sizes):
                self._sizes.append(size)
            elif self._sizes[self._numbers[slot]] != size:
                return None
        if len(self._sizes) > _MERGED_BUFFERS:
            return None
        inputs, outputs = [tuple([self._numbers[s] for s in slots]) for slots in (kernel.reads, kernel.writes)]
        return self._several.add(Member(kernel.kernel, Buffers(inputs, outputs)))


# The commands of programs.

#: The fewest index constants of a program, so that short loops share them.
_FEWEST_INDICES = 16

#: A function that emits control flow: (writer, item, operands' slots, results' slots, scope).
ControlFlow = Callable[["Writer", Item, Sequence[Slot], Sequence[Slot], CommandScope], None]


class Writer(ProgramWriter):
    """The commands of one program, emitted item by item.

    `ProgramWriter.write` (`compiler.emission`) gives each value its slot, and calls `item` for each item and `copy`.
    """

    def __init__(
        self,
        target: WgslTarget,
        routines: Callable[[RoutineKey], Routine | None],
        start_compiling: Callable[[str, int, frozenset[int], bool], None],
        most_characters: int,
        *,
        on_device: bool = True,
    ) -> None:
        super().__init__()
        #: Whether constants that are on a device stay there.
        self.on_device = on_device
        self.target, self.capabilities = target, target.capabilities
        #: Gives the routine of a key.
        self.routines = routines
        #: Starts compiling a shader, given by the key of its compute pipeline, on another thread.
        self.start_compiling = start_compiling
        #: The most characters of a shader that may be fused.
        self.most_characters = most_characters
        #: The commands emitted so far; loops have lists of their own.
        self.commands: list[Command] = []
        #: The number of loops so far: they are numbered from 1.
        self.loops = 0
        #: The region and the branch of conditional commands.
        self.region: tuple[Region, int] | None = None
        #: Slots of regions' buffers.
        self.regions: list[Slot] = []
        #: The small kernels that the last command computes, to which the next one may be added.
        self.merged: MergedKernels | None = None
        #: The item that is being emitted.
        self.current: Item | None = None

    def new_grids(self, scope: CommandScope) -> Slot:
        """Return a slot for a region's buffer."""
        self.regions.append(Slot(scope))
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
        return self.slots.constant(np.asarray(value)) if is_on_host or not self.on_device else self.slots.device_constant(buffer)

    def item(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], scope: CommandScope) -> None:
        """Emit an item."""
        outer, self.current = self.current, item
        self._emit(item, operands, results, scope)
        self.current = outer

    def _emit(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], scope: CommandScope) -> None:
        # Kernels number elements; the shaders of equations may number words.
        is_kernel = isinstance(item.node, KernelCall)
        check_elements([v.aval.size if is_kernel else max(v.aval.size, v.aval.nbytes // 4) for v in (*item.operands, *item.results)])
        if isinstance(item.node, KernelCall):
            if self.exceeds_bindings(item, operands, results) and self.emit_in_chunks(item, operands, results, scope):
                return
            if self.merge_into_last(item, operands, results, scope):
                return
        routine = self.routine_of(item, operands, results)
        if routine is not None:
            before = len(self.commands)
            self.emit_routine(routine, item, operands, results, scope)
            self.merged = self.begin_merging(item, operands, results, scope)
            if self.merged is None:  # otherwise the shader may still grow
                for run in self.commands[before:]:
                    if isinstance(run, Run) and stays_alone(run, run.deferred, self.most_characters):
                        self.start_compiling(*run.key)
        elif isinstance(item.node, Equation) and item.node.primitive in _CONTROL_FLOW:
            _CONTROL_FLOW[item.node.primitive](self, item, operands, results, scope)
        elif isinstance(item.node, Equation) and item.node.primitive is optimization_barrier_p:
            for result, operand, var in zip(results, operands, item.results, strict=True):
                self.copy(result, operand, var.aval.nbytes, scope)
        else:
            self.emit_host_step(item, operands, results, scope)

    def routine_of(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot]) -> Routine | None:
        """Return an item's routine, if any; results may share the memory of operands."""
        if isinstance(item.node, KernelCall):
            shared = {i: operands.index(slot) for i, slot in enumerate(results) if slot in operands and item.results[i].aval.size}
            if shared:  # only loops overwrite operands (`overwritable`), whose code is the same on all GPUs
                return kernel_routine(item.node.kernel, self.capabilities, shared)
        routine = None if item.key is None else self.routines(item.key)
        if routine is not None and isinstance(item.node, Equation) and results[0] in operands:
            return replace(routine, dispatches=routine.dispatches[1:])  # the first one copies the operand
        return routine

    def touch(self, scope: CommandScope, *slots: Slot) -> None:
        """Mark slots as used by the next command."""
        for slot in slots:
            self.slots.touch(slot, scope)

    def emit_routine(self, routine: Routine, item: Item, operands: Sequence[Slot], results: Sequence[Slot], scope: CommandScope) -> None:
        """Emit a routine's dispatches."""
        workspaces = [self.slots.memory(size, scope) for size in routine.workspaces]
        slots = [*operands, *results, *workspaces]
        sizes = [v.aval.nbytes for v in (*item.operands, *item.results)] + list(routine.workspaces)
        ranges = [range_of(slot, size) for slot, size in zip(slots, sizes, strict=True)]
        self.touch(scope, *slots)
        for number, dispatch in enumerate(routine.dispatches):
            self.emit_dispatch(Run.of(dispatch, ranges, deferred=item.is_deferred and number == 0), dispatch.work)
        self.slots.time += 1

    def merge_into_last(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], scope: CommandScope) -> bool:
        """Merge an item into the last command, if both are small, independent kernels."""
        merged = self.merged
        if merged is None or merged.commands is not self.commands or merged.scope is not scope or merged.run is not self.commands[-1]:
            return False
        kernel = self.mergeable(item, operands, results)
        run = None if kernel is None else merged.extended(kernel, self.capabilities)
        if kernel is None or run is None:
            return False
        self.slots.time -= 1  # kernels of a dispatch run concurrently: none may write memory that another one reads
        self.touch(scope, *operands, *results)
        self.slots.time += 1
        run.items = (*self.commands[-1].items, item)
        self.commands[-1] = run
        return True

    def begin_merging(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], scope: CommandScope) -> MergedKernels | None:
        """Return the last item as the first of merged kernels, if it is small."""
        kernel = self.mergeable(item, operands, results)
        last = self.commands[-1] if self.commands else None
        return MergedKernels(kernel, last, self.commands, scope) if kernel is not None and isinstance(last, Run) else None

    def mergeable(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot]) -> EmittedKernel | None:
        """Return an item as a kernel that may be merged with others; None if it is not."""
        plain = self.region is None and all(type(slot) is Slot for slot in (*operands, *results))
        if not plain or not isinstance(item.node, KernelCall) or not is_small(item.node.kernel, self.capabilities):
            return None
        sizes = tuple([v.aval.nbytes for v in (*item.operands, *item.results)])
        return EmittedKernel(item.node.kernel, tuple(operands), tuple(results), sizes)

    def exceeds_bindings(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot]) -> bool:
        """Return whether shaders of a kernel cannot bind one of its arrays as a whole.

        Code that is not WGSL binds arrays of any size.
        """
        if not isinstance(item.node, KernelCall) or largest(item.node.kernel) <= self.capabilities.binding:
            return False
        routine = self.routine_of(item, operands, results)
        return routine is None or any(dispatch.shader.is_rewritable for dispatch in routine.dispatches)

    def emit_in_chunks(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], scope: CommandScope) -> bool:
        """Emit a kernel of arrays larger than one binding in chunks.

        Each chunk sees a window of the arrays. Returns whether it was possible.
        """
        assert isinstance(item.node, KernelCall)
        chunks = None if set(results) & set(operands) else windowed(item.node.kernel, self.capabilities.binding)
        if chunks is None:
            return False
        slots = [*operands, *results]
        for kernel, windows in chunks:
            routine = self.target.kernel_routine(kernel)
            workspaces = [self.slots.memory(size, scope) for size in routine.workspaces]
            self.touch(scope, *slots, *workspaces)
            sizes = [b.dtype.itemsize for b in (*kernel.inputs, *kernel.outputs)]
            ranges = [subrange(s, w.first * n, w.size * n) for s, w, n in zip(slots, windows, sizes, strict=True)]
            ranges += [range_of(slot, size) for slot, size in zip(workspaces, routine.workspaces, strict=True)]
            for dispatch in routine.dispatches:
                self.emit_dispatch(Run.of(dispatch, ranges), dispatch.work)
            self.slots.time += 1
        return True

    def emit_dispatch(self, run: Run, work: int = 0) -> None:
        """Emit a dispatch, in portions if it has very many multiplications (`work`)."""
        dispatches = in_portions(in_sections(run, self.capabilities), work, self.index_constant, self.capabilities)
        for dispatch in dispatches:
            dispatch.items = () if self.current is None else (self.current,)
            if self.region is not None:
                region, branch = self.region
                dispatch.region, dispatch.entry = region, len(region.entries)
                region.entries.append((branch, *dispatch.workgroups))
            self.commands.append(dispatch)
            if len(dispatches) > 1:
                self.commands.append(Submit())

    def index_constant(self, number: int, length: int) -> BufferRange:
        """Return a binding range whose first word is `number`, less than `length`."""
        return range_of(self.index_constants(length), 4)._replace(offset=number * self.capabilities.alignment)

    def copy(self, to: Slot, source: Slot, size: int, scope: CommandScope) -> None:
        """Emit a copy of an array of `size` bytes."""
        if to is not source and size:
            check_elements([size // 4])
            self.touch(scope, to, source)
            self.emit_dispatch(copy(range_of(to, size), range_of(source, size), self.capabilities))
            self.slots.time += 1

    def emit_host_step(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], scope: CommandScope) -> None:
        """Emit a call of NumPy."""
        self.on_host.append(item)
        self.touch(scope, *operands, *results)
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
            self.touch(scope, region.grids)
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


# Loops and branches.
#
# A loop's carry alternates between two buffers, unless an iteration may update it in place. A conditional
# with all its branches, and the iterations of a `while`, which count as one branch, are a *region*: its dispatches read their grids from a
# buffer, which a small shader fills with the grids or with zeros.

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
_RESERVED = For(-1, 0, [])


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
    writer: Writer, region: Region, scope: CommandScope, choice: str, reads: Sequence[tuple[Binding, Slot]], *, outer: bool
) -> _Switch:
    """Reserve a command for a switch.

    `choice` sets `chosen` to the branch to run, or to a number beyond all branches.
    """
    writer.touch(scope, region.grids, *[slot for _, slot in reads])
    bindings = tuple([binding for binding, _ in reads])
    switch = _Switch(bindings, choice, tuple([range_of(s, 4) for _, s in reads]), writer.commands, len(writer.commands), None)
    writer.commands.append(_RESERVED)
    writer.slots.time += 1
    if outer and writer.region is not None:
        writer.touch(scope, writer.region[0].grids)
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


def _cond(writer: Writer, item: Item, operands: Sequence[Slot], results: Sequence[Slot], scope: CommandScope) -> None:
    branches = item.programs
    index, *arguments = operands
    region = Region(writer.new_grids(scope), len(branches))
    choice = f"chosen = u32(clamp(index[0], 0, {len(branches) - 1}));"
    switch = _reserve_switch(writer, region, scope, choice, [(Binding("index", "i32"), index)], outer=True)
    around = writer.region
    for number, branch in enumerate(branches):
        writer.region = (region, number)
        inner = writer.slots.open_scope(scope)
        writer.body(branch, arguments, results, inner)
        writer.slots.close_scope(inner)
    writer.region = around
    writer.touch(scope, region.grids)
    _fill_switch(writer, region, switch)


def _while(writer: Writer, item: Item, operands: Sequence[Slot], results: Sequence[Slot], scope: CommandScope) -> None:
    loop = while_slots(item, operands, results)
    for carry in loop.carries:
        writer.copy(carry.result, carry.start, carry.var.aval.nbytes, scope)
    region = Region(writer.new_grids(scope), 1)
    start_switch = _reserve_switch(writer, region, scope, "", (), outer=True)
    around, commands = writer.region, writer.commands
    inner = writer.slots.open_scope(scope)
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
    writer.slots.close_scope(inner)
    iteration = writer.commands
    writer.commands, writer.region = commands, around
    writer.touch(scope, region.grids)
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

    def __init__(self, writer: Writer, item: Item, operands: Sequence[Slot], results: Sequence[Slot], scope: CommandScope) -> None:
        self.writer, self.scope = writer, scope
        self.scan = scan_slots(item, operands, results)
        self.length = self.scan.length
        #: The second buffers of the values of the carry that alternate between two, a result and this one.
        self.alternates = [None if c.in_place else writer.slots.memory(c.var.aval.nbytes, scope) for c in self.scan.carries]

    def write(self) -> None:
        """Emit the scan."""
        # The first step reads the initial carry, the others that of the step before; the last one makes the results.
        for carry in self.scan.carries:
            if carry.is_constant or not self.length:
                self.writer.copy(carry.result, carry.start, carry.var.aval.nbytes, self.scope)
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
        inner = writer.slots.open_scope(self.scope)
        for step in range(steps):
            self.emit_step(first + step, steps, number, inner)
        scan = self.scan
        ends = [slot for carry in scan.carries for slot in (carry.result, carry.start)]
        for slot in [*self.alternates, *ends, *[s for s, _ in (*scan.xs, *scan.ys)], *scan.constants]:
            if slot is not None:
                writer.touch(inner, slot)
        writer.slots.close_scope(inner)
        body, writer.commands = writer.commands, commands
        writer.commands.append(For(number, iterations, body))

    def emit_step(self, step: int, stride: int, loop: int | None, outer: CommandScope | None = None) -> None:
        """Emit one step, whose index grows by `stride` with each iteration of a loop."""
        writer = self.writer
        scope = writer.slots.open_scope(outer or self.scope)
        into_results = (self.length - 1 - step) % 2 == 0  # so that the last step is one of these
        carries = [*zip(self.scan.carries, self.alternates, strict=True)]
        now = [carry.start if step == 0 and not carry.is_constant else _slot_of(carry, other, not into_results) for carry, other in carries]
        then = [None if carry.is_constant else _slot_of(carry, other, into_results) for carry, other in carries]
        xs = [self.row(slot, aval, step, stride, loop, scope, put=False) for slot, aval in self.scan.xs]
        ys = [self.row(slot, aval, step, stride, loop, scope, put=True) for slot, aval in self.scan.ys]
        for row in xs:
            self.emit_copies(row.before)
        writer.body(self.scan.body, [*self.scan.constants, *now, *[x.slot for x in xs]], [*then, *[y.slot for y in ys]], scope)
        for row in ys:
            self.emit_copies(row.after)
        writer.touch(scope, *[r.slot for r in (*xs, *ys)])
        writer.slots.close_scope(scope)

    def emit_copies(self, runs: Sequence[Run]) -> None:
        """Emit copies of rows, at one time."""
        for run in runs:
            self.writer.emit_dispatch(run)
        self.writer.slots.time += 1

    def row(self, base: Slot, aval: ShapedArray, step: int, stride: int, loop: int | None, scope: CommandScope, *, put: bool) -> _Row:
        """Return one row of an array: a range of it if it can be bound, otherwise a copy."""
        writer, size = self.writer, aval.nbytes
        number, by = (self.length - 1 - step, -stride) if self.scan.reverse else (step, stride)
        alignment = writer.capabilities.alignment
        strides = () if loop is None else ((loop, by),)
        if not size:
            return _Row(base, (), ())
        if size % alignment == 0:
            return _Row(MovingSlot(scope, base, size, number * size, tuple([(n, b * size) for n, b in strides])), (), ())
        constants, moves = writer.index_constants(self.length), tuple([(n, b * alignment) for n, b in strides])
        index = range_of(MovingSlot(scope, constants, 4, number * alignment, moves), 4)
        copy = writer.slots.memory(size, scope)
        writer.touch(scope, base, copy)
        rows, row = range_of(base, size * self.length), range_of(copy, size)
        if put:
            return _Row(copy, (), (put_row(rows, row, index, size, writer.capabilities),))
        return _Row(copy, (take_row(row, rows, index, size, writer.capabilities),), ())


def _slot_of(carry: CarriedValue, other: Slot | None, in_result: bool) -> Slot:
    """Return the slot that a carry has now: its result's, or the other one of the two."""
    return carry.result if other is None or in_result else other


def _scan(writer: Writer, item: Item, operands: Sequence[Slot], results: Sequence[Slot], scope: CommandScope) -> None:
    _Scan(writer, item, operands, results, scope).write()


_CONTROL_FLOW: dict[Primitive, ControlFlow] = {scan_p: _scan, while_p: _while, cond_p: _cond}
