"""Verifiers of memory: no value is overwritten before its last use.

Lifetimes are derived again from the executed commands, independently of buffer assignment. `verify_plan` follows the values in a plan's
registers and buffers. `MemoryVerifier` follows those of lowered programs through slots, item by item; `verify_extents` compares the uses of
slots by commands with the bytes that slots have in blocks of memory.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from volta_fn.compiler.contractions import contraction_of
from volta_fn.compiler.emission import Slot
from volta_fn.compiler.ir.index import row_major
from volta_fn.compiler.ir.kernel import Kernel, Load, stages
from volta_fn.compiler.ir.program import KernelCall
from volta_fn.compiler.plans import Operand, Plan, Step
from volta_fn.compiler.target import Item, LoweredProgram
from volta_fn.compiler.verification import describe, fail_item
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Var
from volta_fn.errors import CompilerError
from volta_fn.primitives.control_flow.loops import while_p
from volta_fn.primitives.control_flow.scan import scan_p

# Plans: registers and buffers.


def verify_plan(plan: Plan, program: ClosedJaxpr, donated: Sequence[bool]) -> None:
    """Raise `CompilerError` if a step of a plan reads or overwrites a wrong value."""
    _PlanVerifier(plan, program, donated).verify()


class _PlanVerifier:
    """Follows the values of a plan through registers and memory.

    Memory is named by the variable that it was made for, or by the number of an array in the plan's block.
    """

    def __init__(self, plan: Plan, program: ClosedJaxpr, donated: Sequence[bool]) -> None:
        self.plan, self.jaxpr = plan, program.jaxpr
        invars, constvars, outvars = self.jaxpr.invars, self.jaxpr.constvars, self.jaxpr.outvars
        #: The variable that each register holds.
        self.held: dict[int, Var] = dict(zip(plan.inputs, invars, strict=True))
        self.held.update(zip([register for register, _ in plan.constants], constvars, strict=True))
        self.last = {v: number for number, step in enumerate(plan.steps) for v in step.eqn.invars if type(v) is Var}
        self.last.update({v: len(plan.steps) for v in outvars if type(v) is Var})
        self.readonly = {*invars, *constvars} - {v for v, is_donated in zip(invars, donated, strict=False) if is_donated}
        #: The memory that values may lie in, unless it is memory of their own, and the last step that reads what lies in memory.
        self.memory: dict[Atom, tuple[Any, ...]] = {}
        self.until: dict[Any, int] = {**self.last}
        self.extents = [(b.offset, b.offset + b.aval.size * b.aval.dtype.itemsize) for b in plan.buffers]
        #: Offset, end and number of the arrays in the block that hold values, in the order of offsets.
        self.block: list[tuple[int, int, int]] = []

    def verify(self) -> None:
        for first, end in self.extents:
            if first < 0 or end > self.plan.block:
                raise CompilerError.of(_PLAN, f"an array lies at bytes {first} to {end} of a block of {self.plan.block}")
        held, last = self.held, self.last
        for number, step in enumerate(self.plan.steps):
            eqn, operands, results, frees, into, buffers = step
            if [held.get(operand) if type(operand) is int else operand for operand in operands] != eqn.invars:
                _fail_step(step, self._wrong_operand(operands, eqn.invars, "the operand"))
            if into is not None or buffers or eqn.primitive.views:
                self._verify_memory(number, step)
            for register, var in zip(results, eqn.outvars, strict=True):
                if register in held and register not in frees and last.get(held[register], -1) > number:
                    _fail_step(step, f"register {register} holds {held[register].aval}, which is read later")
                held[register] = var
            for register in frees:
                held.pop(register, None)
        outputs = self.jaxpr.outvars
        if [held.get(operand) if type(operand) is int else operand for operand in self.plan.outputs] != outputs:
            raise CompilerError.of(_PLAN, self._wrong_operand(self.plan.outputs, outputs, "an output"))
        for atom in outputs:
            if any(type(m) is int for m in self.memory.get(atom, ())):
                raise CompilerError.of(_PLAN, f"an output {atom.aval} lies in the block, which ends with the call")

    def _verify_memory(self, number: int, step: Step) -> None:
        """Find the memory of results, and verify that no value in it is read later."""
        eqn, memory_of, until, into, buffers = step.eqn, self.memory, self.until, step.into, step.buffers
        for position, var in enumerate(eqn.outvars):
            if into is not None and not position:
                operand = eqn.invars[into]
                memory = memory_of.get(operand) or (operand,)
                for m in memory:
                    if m in self.readonly:
                        _fail_step(step, "it overwrites an argument that is not donated, or a constant")
                    if until.get(m, -1) > number:
                        self._fail_overwritten(step, m)
            elif buffers and (buffer := buffers[position]) is not None:
                memory = (buffer,)
                self._store(number, step, buffer)
            elif eqn.primitive.views:
                memory = (var, *[m for operand in eqn.invars if type(operand) is Var for m in memory_of.get(operand) or (operand,)])
            else:
                continue
            memory_of[var] = memory
            last = self.last.get(var, number)
            for m in memory:
                if until.get(m, -1) < last:
                    until[m] = last

    def _store(self, number: int, step: Step, buffer: int) -> None:
        """Store a result in the block, where nothing lies that this or a later step reads."""
        first, end = self.extents[buffer]
        block = self.block
        position = bisect.bisect_left(block, (first,))
        if position and block[position - 1][1] > first:
            position -= 1
        while position < len(block) and block[position][0] < end:
            if self.until[block[position][2]] >= number:
                self._fail_overwritten(step, block[position][2])
            del block[position]
        block.insert(position, (first, end, buffer))

    def _fail_overwritten(self, step: Step, memory: Any) -> NoReturn:
        values: list[Any] = [memory] if type(memory) is Var else []
        values += [v for v, owners in self.memory.items() if memory in owners]
        value = max(values, key=lambda v: self.last.get(v, -1))
        _fail_step(step, f"its result shares memory with {value.aval}, which is read later")

    def _wrong_operand(self, operands: Sequence[Operand], atoms: Sequence[Atom], kind: str) -> str:
        for operand, atom in zip(operands, atoms, strict=True):
            if type(operand) is int and self.held.get(operand) is not atom:
                contents = str(self.held[operand].aval) if operand in self.held else "nothing"
                return f"register {operand} does not hold {kind} {atom.aval}, but {contents}"
        return "a literal is not the one of the program"


_PLAN = "register assignment"


def _fail_step(step: Step, problem: str) -> NoReturn:
    raise CompilerError.of(_PLAN, problem, describe(step.eqn), step.eqn.source)


# Lowered programs: slots.


class MemoryVerifier:
    """Follows the values of programs through slots, while their commands are written.

    A slot holds the roots of the variables that it stands for: several if a caller passes one array twice. Results of an item may be stored
    in the slot of an operand that dies there only where each iteration of the item's kernel reads just the element that it overwrites.
    """

    def __init__(self) -> None:
        #: The item that stored a value in a slot last, with its program.
        self.writers: dict[Slot, tuple[LoweredProgram, Item]] = {}

    def program(self, program: LoweredProgram, inputs: Sequence[Slot], destinations: Sequence[Slot | None]) -> ProgramContents:
        """Return the contents of a program's slots, before its first item.

        It reads `inputs` and stores outputs at `destinations`.
        """
        return ProgramContents(self, program, inputs, destinations)


class ProgramContents:
    """The contents of a program's slots, updated item by item."""

    def __init__(
        self, verifier: MemoryVerifier, program: LoweredProgram, inputs: Sequence[Slot], destinations: Sequence[Slot | None]
    ) -> None:
        self.verifier, self.program, self.destinations = verifier, program, destinations
        self.stage = f"slots for {program.target.name}"
        self.contents: dict[Slot, set[Var]] = {}
        for var, slot in zip(program.closed.jaxpr.invars, inputs, strict=True):
            self.contents.setdefault(slot, set()).add(var)
        self.inputs = frozenset(inputs)
        self.constants = frozenset(program.closed.jaxpr.constvars)
        self.last = {program.root(v): n for n, item in enumerate(program.items) for v in item.operands if isinstance(v, Var)}
        self.last.update({program.root(v): len(program.items) for v in program.closed.jaxpr.outvars if isinstance(v, Var)})

    def item(self, number: int, operands: Sequence[Slot], results: Sequence[Slot]) -> None:
        """Verify the slots of an item, and update their contents."""
        item = self._verify_operands(number, operands)
        for position, slot in enumerate(results):
            if not item.results[position].aval.size:
                continue
            if slot in self.inputs and slot not in self.destinations:
                self._fail(item, f"the result {item.results[position].aval} overwrites an argument")
            for other, held in self.contents.items():
                if other is slot or slot in other.backing or other in slot.backing:
                    self._verify_overwrite(number, position, other, held, operands, results)
            self.contents[slot] = {item.results[position]}
            self.verifier.writers[slot] = self.program, item

    def view(self, number: int, operands: Sequence[Slot], result: Slot) -> None:
        """Verify the slots of an item whose result is a part of an operand's memory."""
        item = self._verify_operands(number, operands)
        self.contents[result] = {item.results[0]}
        self.verifier.writers[result] = self.program, item

    def _verify_operands(self, number: int, operands: Sequence[Slot]) -> Item:
        item = self.program.items[number]
        for atom, slot in zip(item.operands, operands, strict=True):
            if not self._holds(slot, atom):
                self._fail(item, f"the memory of the operand {atom.aval} {self._story(slot)}")
        return item

    def _verify_overwrite(
        self, number: int, position: int, slot: Slot, held: Iterable[Var], operands: Sequence[Slot], results: Sequence[Slot]
    ) -> None:
        item = self.program.items[number]
        new = item.results[position].aval
        for var in held:
            last = self.last.get(var, -1)
            if last > number:
                self._fail(item, f"the result {new} is stored where {var.aval} lies, which {self._reader(last)} reads later")
            if slot is not results[position] or slot in results[:position]:
                self._fail(item, f"the results {new} and {var.aval} are stored in the same memory")
            if last == number:
                reads = [n for n, other in enumerate(operands) if other is slot]
                if not reads or any(not may_overwrite(item, n, position, self.program.target.in_place) for n in reads):
                    self._fail(item, f"the result {new} is stored where the operand {var.aval} lies, before all of that is read")

    def copy(self, destination: Slot, source: Slot, atom: Atom) -> None:
        """Verify and note the copy of an output that has no memory of its own."""
        if not self._holds(source, atom):
            raise CompilerError.of(self.stage, f"the memory of the output {atom.aval} {self._story(source)}")
        self.contents[destination] = {self.program.root(atom)} if isinstance(atom, Var) else set()

    def finish(self) -> None:
        """Verify that all outputs are where they should be."""
        for atom, destination in zip(self.program.closed.jaxpr.outvars, self.destinations, strict=True):
            if (
                isinstance(atom, Var)
                and destination is not None
                and atom.aval.size
                and self.program.root(atom) not in self.contents.get(destination, ())
            ):
                raise CompilerError.of(self.stage, f"the memory of the output {atom.aval} {self._story(destination)}")

    def _holds(self, slot: Slot, atom: Atom) -> bool:
        if not isinstance(atom, Var) or not atom.aval.size:
            return True
        root = self.program.root(atom)
        return root in self.contents.get(slot, ()) or (root in self.constants and slot.array is not None)

    def _story(self, slot: Slot) -> str:
        if not self.contents.get(slot):
            return "holds no value"
        held = " and ".join(str(var.aval) for var in self.contents[slot])
        writer = self.verifier.writers.get(slot)
        return f"holds {held}" + ("" if writer is None else f", which {_name(writer[1])} stored there")

    def _reader(self, number: int) -> str:
        items = self.program.items
        return _name(items[number]) if number < len(items) else "the caller"

    def _fail(self, item: Item, problem: str) -> NoReturn:
        fail_item(self.stage, problem, self.program, item)


def _name(item: Item) -> str:
    return "a kernel" if isinstance(item.node, KernelCall) else str(item.node.primitive)


def may_overwrite(item: Item, operand: int, result: int, in_place: Mapping[str, int]) -> bool:
    """Return True if an item may store a result in the memory of an operand."""
    if isinstance(item.node, Equation):
        params, primitive = item.node.params, item.node.primitive
        if primitive is scan_p and item.programs:  # the steps of the body are verified by themselves
            return result < params["num_carry"] and operand == params["num_consts"] + result
        if primitive is while_p and item.programs:
            return operand == params["cond_nconsts"] + params["body_nconsts"] + result
        return result == 0 and item.key is not None and in_place.get(primitive.name) == operand
    kernel = item.node.kernel
    passes = stages(kernel)
    return passes[kernel.stores[result].value] == max(passes) and all(  # no pass over a row follows that reads it
        not load.mask and row_major(load.index, load.shape) == _offset(kernel, result)
        for load in kernel.nodes
        if isinstance(load, Load) and load.input == operand
    )


def _offset(kernel: Kernel, result: int) -> Any:
    store = kernel.stores[result]
    axes = {axis for affine in store.index for axis in affine.axes}
    # A contraction reads what is no operand of its products, and writes results, once for each of its sums.
    iterated = kernel.sizes if contraction_of(kernel) is None else kernel.sizes[: kernel.parallel]
    is_own = all(size == 1 or axis in axes for axis, size in enumerate(iterated))  # no other iteration writes the element
    return row_major(store.index, store.shape) if is_own else None


# Blocks of memory: the bytes of slots.


class Extent(NamedTuple):
    """The bytes of a slot, in a block of memory of some number."""

    block: int
    offset: int
    size: int


class SlotUses:
    """The commands that use each slot, by their numbers, and the loops among these."""

    def __init__(self) -> None:
        self.time = 0
        self.times: dict[Slot, list[int]] = {}
        self.loops: list[tuple[int, int]] = []

    def command(self, slots: Iterable[Slot]) -> None:
        """Count a command that uses some slots, and those that they may point into."""
        pending = [*slots]
        while pending:
            slot = pending.pop()
            self.times.setdefault(slot, []).append(self.time)
            pending.extend(slot.backing)
        self.time += 1

    def loop(self, begin: int) -> None:
        """Note that the commands since `begin` repeat."""
        self.loops.append((begin, self.time - 1))

    def lifetimes(self) -> dict[Slot, tuple[int, int]]:
        """Return the first and last time at which each slot holds its value.

        A slot that is also used outside of a loop holds its value in all iterations.
        """
        lifetimes = {slot: (times[0], times[-1]) for slot, times in self.times.items()}
        for begin, end in self.loops:  # inner loops first
            for slot, (first, last) in lifetimes.items():
                if first <= end and last >= begin and not (begin <= first and last <= end):
                    lifetimes[slot] = min(first, begin), max(last, end)
        return lifetimes


def verify_extents(stage: str, uses: SlotUses, extents: Mapping[Slot, Extent], writers: Mapping[Slot, tuple[LoweredProgram, Item]]) -> None:
    """Raise `CompilerError` if slots share bytes while both hold values."""
    lifetimes = uses.lifetimes()
    ends: list[tuple[int, int, Extent]] = []
    living: list[tuple[Extent, int]] = []  # disjoint, in the order of memory
    slots = sorted((slot for slot in extents if slot in lifetimes), key=lambda slot: lifetimes[slot][0])
    for number, slot in enumerate(slots):
        first, last = lifetimes[slot]
        while ends and ends[0][0] < first:
            _, dead, extent = heapq.heappop(ends)
            living.pop(bisect.bisect_left(living, (extent, dead)))
        extent = extents[slot]
        position = bisect.bisect_left(living, (extent, number))
        for other, owner in living[max(position - 1, 0) : position + 1]:
            if other.block == extent.block and other.offset < extent.offset + extent.size and extent.offset < other.offset + other.size:
                _fail_extents(stage, slots[owner], slot, writers)
        living.insert(position, (extent, number))
        heapq.heappush(ends, (last, number, extent))


def _fail_extents(stage: str, old: Slot, new: Slot, writers: Mapping[Slot, tuple[LoweredProgram, Item]]) -> NoReturn:
    problem = f"{new.size} bytes share memory with {old.size} bytes that are needed later"
    for slot, whose in ((new, ""), (old, ": those of ")):
        if slot in writers:
            program, item = writers[slot]
            fail_item(stage, problem + (whose + _name(item) if whose else ""), program, item)
    raise CompilerError.of(stage, problem)
