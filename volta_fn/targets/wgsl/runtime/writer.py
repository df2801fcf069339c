"""Emit the commands of programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from volta_fn.compiler.buffers.buffer_assignment import Block, Slot
from volta_fn.compiler.buffers.emit import ProgramWriter
from volta_fn.compiler.buffers.plan import bytes_of
from volta_fn.compiler.ir.interpret import interpret
from volta_fn.compiler.ir.nodes import KernelCall
from volta_fn.compiler.ir.window import largest, windowed
from volta_fn.compiler.program import Item, RoutineKey
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.jaxpr import Equation
from volta_fn.runtime.internals.errstate import silenced
from volta_fn.targets.numpy.backend import make_kernel
from volta_fn.targets.wgsl.loops.horizontal import is_small
from volta_fn.targets.wgsl.routine import Routine
from volta_fn.targets.wgsl.routines import kernel_routine
from volta_fn.targets.wgsl.runtime.commands import BufferRange, Command, Host, Region, Run, Submit, range_of, subrange
from volta_fn.targets.wgsl.runtime.device.memory import Buffer
from volta_fn.targets.wgsl.runtime.horizontal_fusion import stays_alone
from volta_fn.targets.wgsl.runtime.limits import check_elements, in_portions, in_sections
from volta_fn.targets.wgsl.runtime.merge_small import Batch, Written
from volta_fn.targets.wgsl.runtime.submission import copying

#: How control flow is written: (writer, item, operands' slots, results' slots, block).
ControlFlow = Callable[["Writer", Item, Sequence[Slot], Sequence[Slot], Block], None]


class Writer(ProgramWriter):
    """The commands of one program, emitted item by item."""

    def __init__(
        self,
        capabilities: TargetCapabilities,
        made: Callable[[RoutineKey], Routine | None],
        control_flow: Mapping[str, ControlFlow],
        begin: Callable[[str, int, frozenset[int]], None],
        longest: int,
        *,
        on_device: bool = True,
    ) -> None:
        super().__init__()
        #: Whether constants that are on a device stay there.
        self.on_device = on_device
        self.capabilities = capabilities
        #: Gives the routine of a key.
        self.made = made
        self.control_flow = control_flow
        #: Starts compiling a pipeline, given by its key, on another thread.
        self.begin = begin
        #: The most characters of a shader that may be fused.
        self.longest = longest
        #: The commands emitted so far; loops have lists of their own.
        self.commands: list[Command] = []
        #: The number of the next loop.
        self.loops = 0
        #: The region and the branch of conditional commands.
        self.region: tuple[Region, int] | None = None
        #: Slots of regions' buffers.
        self.regions: list[Slot] = []
        #: The small kernels of the last command, if it computes any.
        self.batch: Batch | None = None
        #: The item that is being emitted.
        self.current: Item | None = None

    def grids(self, block: Block) -> Slot:
        """Return a slot for a region's buffer."""
        self.regions.append(Slot(block))
        return self.regions[-1]

    def ladder(self, length: int) -> Slot:
        """Return the slot of a constant with at least `length` numbers that can be bound.

        Raises `OutOfMemoryError` if they are too many, as those of a very long loop are.
        """
        return self.slots.constant(_ladder(1 << max(length - 1, 15).bit_length(), self.capabilities.alignment // 4))

    def constant(self, value: Any) -> Slot:
        """Return the slot of a constant array, which may be on the device."""
        buffer = value.buffer()
        if not self.on_device or not isinstance(buffer, Buffer) or buffer.known is not None:
            return self.slots.constant(np.asarray(value))
        return self.slots.held(buffer)

    def item(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> None:
        """Emit an item."""
        outer, self.current = self.current, item
        self._item(item, operands, results, block)
        self.current = outer

    def _item(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> None:
        check_elements([v.aval.size for v in (*item.operands, *item.results)])
        if isinstance(item.node, KernelCall):
            if largest(item.node.kernel) > self.capabilities.binding and self.chunks(item, operands, results, block):
                return
            if self.small(item, operands, results, block):
                return
        routine = self.routine_of(item, operands, results)
        if routine is not None:
            before = len(self.commands)
            self.routine(routine, item, operands, results, block)
            self.batch = self.new_batch(item, operands, results, block)
            for run in self.commands[before:]:
                if self.batch is None and isinstance(run, Run) and stays_alone(run, run.deferred, self.longest):
                    self.begin(*run.key)
        elif isinstance(item.node, Equation) and item.node.primitive.name in self.control_flow:
            self.control_flow[item.node.primitive.name](self, item, operands, results, block)
        elif isinstance(item.node, Equation) and item.node.primitive.name == "optimization_barrier":
            for result, operand, var in zip(results, operands, item.results, strict=True):
                self.copy(result, operand, bytes_of(var.aval), block)
        else:
            self.host(item, operands, results, block)

    def routine_of(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot]) -> Routine | None:
        """Return an item's routine, if any; results may share the memory of operands."""
        if isinstance(item.node, KernelCall):
            shared = {i: operands.index(slot) for i, slot in enumerate(results) if slot in operands and item.results[i].aval.size}
            if shared:
                return kernel_routine(item.node.kernel, self.capabilities, shared)
        routine = None if item.key is None else self.made(item.key)
        if routine is not None and isinstance(item.node, Equation) and results[0] in operands:
            return replace(routine, dispatches=routine.dispatches[1:])  # the first one copies the operand
        return routine

    def touch(self, block: Block, *slots: Slot) -> None:
        """Mark slots as used by the next command."""
        for slot in slots:
            self.slots.touch(slot, block)

    def routine(self, routine: Routine, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> None:
        """Emit a routine's dispatches."""
        workspaces = [self.slots.memory(size, block) for size in routine.workspaces]
        slots = [*operands, *results, *workspaces]
        sizes = [bytes_of(v.aval) for v in (*item.operands, *item.results)] + list(routine.workspaces)
        ranges = [range_of(slot, size) for slot, size in zip(slots, sizes, strict=True)]
        self.touch(block, *slots)
        for number, dispatch in enumerate(routine.dispatches):
            self.run(Run.of(dispatch, ranges, deferred=item.is_batched and number == 0), dispatch.work)
        self.slots.time += 1

    def small(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> bool:
        """Merge an item into the last command, if both are small, independent kernels."""
        batch = self.batch
        if batch is None or batch.commands is not self.commands or batch.block is not block or batch.run is not self.commands[-1]:
            return False
        written = self.written(item, operands, results)
        run = None if written is None else batch.extended(written, self.capabilities)
        if written is None or run is None:
            return False
        self.slots.time -= 1  # they run concurrently: none may write memory that another one reads
        self.touch(block, *operands, *results)
        self.slots.time += 1
        run.items = (*self.commands[-1].items, item)
        self.commands[-1] = run
        return True

    def new_batch(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> Batch | None:
        """Return a batch that begins with the last item, if that is a small kernel."""
        written = self.written(item, operands, results)
        last = self.commands[-1] if self.commands else None
        return Batch(written, last, self.commands, block) if written is not None and isinstance(last, Run) else None

    def written(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot]) -> Written | None:
        """Return an item as a member of a batch; None if it cannot be one."""
        plain = self.region is None and all(type(slot) is Slot for slot in (*operands, *results))
        if not plain or not isinstance(item.node, KernelCall) or not is_small(item.node.kernel, self.capabilities):
            return None
        sizes = tuple([bytes_of(v.aval) for v in (*item.operands, *item.results)])
        return Written(item.node.kernel, tuple(operands), tuple(results), sizes)

    def chunks(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> bool:
        """Emit a kernel of arrays larger than one binding in chunks.

        Each chunk sees a window of the arrays. Returns whether it was possible.
        """
        assert isinstance(item.node, KernelCall)
        found = None if set(results) & set(operands) else windowed(item.node.kernel, self.capabilities.binding)
        if found is None:
            return False
        slots = [*operands, *results]
        for kernel, windows in found:
            routine = kernel_routine(kernel, self.capabilities)
            workspaces = [self.slots.memory(size, block) for size in routine.workspaces]
            self.touch(block, *slots, *workspaces)
            sizes = [b.dtype.itemsize for b in (*kernel.inputs, *kernel.outputs)]
            ranges = [subrange(s, w.first * n, w.size * n) for s, w, n in zip(slots, windows, sizes, strict=True)]
            ranges += [range_of(slot, size) for slot, size in zip(workspaces, routine.workspaces, strict=True)]
            for dispatch in routine.dispatches:
                self.run(Run.of(dispatch, ranges), dispatch.work)
            self.slots.time += 1
        return True

    def run(self, run: Run, work: int = 0) -> None:
        """Emit a dispatch, in portions if it has very many multiplications (`work`)."""
        portions = in_portions(in_sections(run, self.capabilities), work, self.rung, self.capabilities)
        for one in portions:
            one.items = () if self.current is None else (self.current,)
            if self.region is not None:
                region, branch = self.region
                one.region, one.entry = region, len(region.entries)
                region.entries.append((branch, *one.groups))
            self.commands.append(one)
            if len(portions) > 1:
                self.commands.append(Submit())

    def rung(self, number: int, length: int) -> BufferRange:
        """Return the range of a word that holds `number`, which is less than `length`."""
        return range_of(self.ladder(length), 4)._replace(offset=number * self.capabilities.alignment)

    def copy(self, to: Slot, source: Slot, size: int, block: Block) -> None:
        """Emit a copy of an array of `size` bytes."""
        if to is not source and size:
            self.touch(block, to, source)
            self.run(copying.copy(range_of(to, size), range_of(source, size), self.capabilities))
            self.slots.time += 1

    def host(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> None:
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
        sources = tuple([(range_of(slot, bytes_of(v.aval)), *kind) for slot, v, kind in zip(operands, item.operands, kinds, strict=True)])
        targets = tuple([(range_of(s, bytes_of(v.aval)), v.aval.shape, v.aval.dtype) for s, v in zip(results, item.results, strict=True)])
        flag = None
        if self.region is not None:
            region, branch = self.region
            self.touch(block, region.grids)
            flag = range_of(region.grids, 4)._replace(offset=4 * branch)
        self.commands.append(Host(name, compute, sources, targets, flag))
        self.slots.time += 1


@lru_cache(maxsize=32)
def _ladder(length: int, spacing: int) -> np.ndarray:
    check_elements([length * spacing])
    numbers = np.zeros((length, spacing), np.uint32)
    numbers[:, 0] = np.arange(length)
    return numbers


def _equation(eqn: Equation) -> Callable[..., Any]:
    """Return an equation as a function of NumPy arrays."""
    compute = silenced(make_kernel(eqn.primitive, tuple([v.aval for v in eqn.invars]), eqn.params))
    return compute if eqn.primitive.multiple_results else lambda *arrays: (compute(*arrays),)
