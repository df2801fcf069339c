"""Emission: the commands of a lowered program.

The assignment of slots to values is the same for all targets; a target's subclass writes the commands.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from volta_fn.compiler.buffers import Block, Slot, Slots
from volta_fn.compiler.target import CALLS_PROCESSES, CALLS_PYTHON, HostStep, Item, LoweredProgram, fits
from volta_fn.core.array import host_buffer
from volta_fn.core.jaxpr import Atom, Literal, Var
from volta_fn.lazy_imports import deferred
from volta_fn.settings import current as settings

_MEMORY_VERIFICATION = deferred("volta_fn.compiler.memory_verification")
_LOG = logging.getLogger("volta_fn")


#: No result takes the memory of an argument.
NO_REUSE: Mapping[int, int] = MappingProxyType({})


class ProgramWriter:
    """Writes the commands of one program, item by item.

    A target's subclass says how an item and a copy are written.
    """

    def __init__(self) -> None:
        self.slots = Slots()
        #: The items that run on the host, in NumPy.
        self.on_host: list[Item] = []
        #: Follows values through slots, if the compiler verifies its results.
        self.verifier = _MEMORY_VERIFICATION.MemoryVerifier() if settings.verify else None

    def item(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> None:
        """Write an item."""
        raise NotImplementedError

    def copy(self, to: Slot, source: Slot, size: int, block: Block) -> None:
        """Copy an array of `size` bytes."""
        raise NotImplementedError

    def view(self, item: Item, operands: Sequence[Slot], block: Block) -> Slot | None:
        """Return the slot of a result that is a part of an operand's memory.

        None if it is not, or if that memory may be overwritten.
        """
        return None

    def constant(self, value: Any) -> Slot:
        """Return the slot of a constant array."""
        return self.slots.constant(host_buffer(value))

    def write(self, program: LoweredProgram, reuse: Mapping[int, int] = NO_REUSE) -> None:
        """Write a complete program.

        The caller gives memory for the arguments, then for the program's results; those that `reuse` maps to arguments take their memory.
        """
        jaxpr = program.closed.jaxpr
        inputs = [self.slots.caller() for _ in jaxpr.invars]
        results = {var: inputs[reuse[n]] if n in reuse else self.slots.caller() for n, var in enumerate(program.results)}
        destinations: list[Slot | None] = [results.get(program.root(v)) if isinstance(v, Var) else None for v in jaxpr.outvars]
        seen: set[Slot] = set()
        for number, slot in enumerate(destinations):
            if slot in seen:
                destinations[number] = None
            elif slot is not None:
                seen.add(slot)
        self.body(program, inputs, destinations, self.slots.outermost)
        steps = [HostStep.of(item, program.target.explain_host(item)) for item in self.on_host]
        if steps := [step for step in steps if step.reason not in (CALLS_PYTHON, CALLS_PROCESSES)]:
            _LOG.log(program.target.host_log_level, "a program for the %s target: %s", program.target.name, "; ".join(map(str, steps)))

    def body(self, program: LoweredProgram, inputs: Sequence[Slot], destinations: Sequence[Slot | None], block: Block) -> None:
        """Write a program that reads `inputs` and stores outputs at `destinations`.

        An output without a destination is not stored.
        """
        values = _Values(self, program, inputs, destinations, block)
        contents = None if self.verifier is None else self.verifier.program(program, inputs, destinations)
        for number, item in enumerate(program.items):
            if item.is_needed:
                operands = values.operands(item)
                if (view := values.view(item, operands)) is not None:
                    if contents is not None:
                        contents.view(number, operands, view)
                    continue
                results = values.results(number, item)
                if contents is not None:
                    contents.item(number, operands, results)
                self.item(item, operands, results, block)
        stored: set[Var] = set()
        for out, destination in zip(program.closed.jaxpr.outvars, destinations, strict=True):
            root = program.root(out) if isinstance(out, Var) else None
            if root is not None and root not in stored and values.output_slots.get(root) is destination:
                stored.add(root)
            elif destination is not None and out.aval.size:
                source = values.operand(out)
                if contents is not None:
                    contents.copy(destination, source, out)
                self.copy(destination, source, out.aval.nbytes, block)
        if contents is not None:
            contents.finish()


class _Values:
    """The slots of the values of one program."""

    def __init__(
        self, writer: ProgramWriter, program: LoweredProgram, inputs: Sequence[Slot], destinations: Sequence[Slot | None], block: Block
    ) -> None:
        self.writer = writer
        self.program = program
        self.block = block
        jaxpr = program.closed.jaxpr
        self.outputs = [v for v in jaxpr.outvars if isinstance(v, Var)]
        self.slots: dict[Var, Slot] = dict(zip(jaxpr.invars, inputs, strict=True))
        for var, value in zip(jaxpr.constvars, program.closed.consts, strict=True):
            self.slots[var] = writer.constant(value)
        #: Values that this program computes in memory of its own.
        self.computed: set[Var] = set()
        #: The slots of outputs that this program computes, and of the values that these overwrite.
        self.output_slots: dict[Var, Slot] = {}
        for out, destination in zip(jaxpr.outvars, destinations, strict=True):
            if isinstance(out, Var) and destination is not None and program.root(out) in program.producers:
                self.output_slots.setdefault(program.root(out), destination)
        for result, slot in list(self.output_slots.items()):
            for var in itertools.takewhile(lambda v: v not in self.output_slots, program.overwritten_before(result)):
                self.output_slots[var] = slot

    def operand(self, atom: Atom) -> Slot:
        if isinstance(atom, Literal):
            return self.writer.constant(atom.val)
        if not atom.aval.size:
            return self.writer.slots.constant(np.zeros(1, np.int64))
        return self.slots[self.program.root(atom)]

    def operands(self, item: Item) -> list[Slot]:
        return [self.operand(v) for v in item.operands]

    def results(self, number: int, item: Item) -> list[Slot]:
        overwritten: set[Var] = set()
        return [self.result(number, item, position, overwritten) for position in range(len(item.results))]

    def view(self, item: Item, operands: Sequence[Slot]) -> Slot | None:
        """Assign the slot of a result that is a part of an operand's memory.

        Return None if it is not.
        """
        if len(item.results) != 1 or item.results[0] in map(self.program.root, self.outputs):
            return None
        slot = self.writer.view(item, operands, self.block)
        if slot is not None:
            self.slots[item.results[0]] = slot
        return slot

    def result(self, number: int, item: Item, position: int, overwritten: set[Var]) -> Slot:
        """Assign a slot to a result: an output's, a dying operand's, or a new one."""
        var = item.results[position]
        slot = self.output_slots.get(var)
        if slot is None:
            self.computed.add(var)
            read = dict.fromkeys([self.program.root(v) for v in item.operands if isinstance(v, Var)])
            computed = [v for v in read if v in self.computed and v not in overwritten and v in self.slots]
            dying = [v for v in computed if self.program.last_use.get(v) == number and v not in self.output_slots]
            old = next((v for v in dying if fits(v, var) and self.program.can_overwrite(number, v, var)), None)
            if old is not None:
                overwritten.add(old)
                slot = self.slots[old]
            else:
                slot = self.writer.slots.memory(var.aval.nbytes, self.block)
        self.slots[var] = slot
        return slot
