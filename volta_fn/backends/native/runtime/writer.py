"""Bodies as commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from volta_fn.backends.native.runtime.code import Loaded, LoadedPhase
from volta_fn.backends.native.runtime.commands import MOST_BUFFERS, Op
from volta_fn.backends.native.runtime.host import HostCall, equation_call, kernel_call
from volta_fn.backends.native.runtime.slots import Block, Slot, Slots
from volta_fn.compiler.bodies import Body, Item
from volta_fn.compiler.kernels.emit import Fused
from volta_fn.core.jaxpr import Atom, Equation, Literal, Var

#: How control flow is written: (writer, equation, operands' slots, results' slots, block).
ControlFlow = Callable[["Writer", Equation, Sequence[Slot], Sequence[Slot], Block], None]

#: Nanoseconds that a call of NumPy costs at least.
_HOST_COST = 10_000.0


class Writer:
    """The commands of one program, written item by item."""

    def __init__(self, loaded: Mapping[Any, Loaded | None], control_flow: Mapping[str, ControlFlow]) -> None:
        self.loaded = loaded
        self.control_flow = control_flow
        self.slots = Slots()
        self.words: list[int | Slot | LoadedPhase] = []
        self.hosts: list[HostCall] = []
        #: Nanoseconds that the program takes, roughly.
        self.cost = 0.0

    def body(self, body: Body, inputs: Sequence[Slot], targets: Sequence[Slot | None], block: Block) -> None:
        """Write a body that reads its inputs at the given slots and puts its outputs where the targets say (None: nowhere)."""
        places = _Places(self, body, inputs, targets, block)
        for number, item in enumerate(body.items):
            if (isinstance(item.what, Equation) and item.what.primitive.effectful) or any(v.aval.size for v in item.results):
                self.item(item, places.operands(item), places.results(number, item), block)
        done: set[Var] = set()
        for out, target in zip(body.program.jaxpr.outvars, targets, strict=True):
            root = body.root(out) if isinstance(out, Var) else None
            if root is not None and root not in done and places.wanted.get(root) is target:
                done.add(root)
            elif target is not None and out.aval.size:
                self.copy(target, places.operand(out), out.aval.size * out.aval.dtype.itemsize, block)

    def item(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> None:
        """Write an item."""
        loaded = None if item.source is None else self.loaded[item.source.key]
        if loaded is not None and len(operands) + len(results) < MOST_BUFFERS:
            self.run(loaded, [*operands, *results], block)
        elif isinstance(item.what, Fused):
            self.host(kernel_call(item.what.kernel, operands, results), [*operands, *results], block)
        elif item.what.primitive.name in self.control_flow:
            self.control_flow[item.what.primitive.name](self, item.what, operands, results, block)
        else:
            self.host(equation_call(item.what, operands, results), [*operands, *results], block)

    # commands

    def command(self, block: Block, touched: Sequence[Slot], op: Op, *words: int | Slot) -> None:
        """Write a command that uses some slots."""
        for slot in touched:
            self.slots.touch(slot, block)
        self.words += [op, *words]
        self.slots.time += 1

    def run(self, loaded: Loaded, buffers: list[Slot], block: Block) -> None:
        """Do a routine."""
        if loaded.workspace:
            buffers = [*buffers, self.slots.memory(loaded.workspace, block)]
        self.cost += loaded.cost
        for slot in buffers:
            self.slots.touch(slot, block)
        for phase in loaded.phases:
            if phase.tasks:
                self.words += [Op.RUN, phase, phase.tasks, int(phase.shared), len(buffers), *buffers]
        self.slots.time += 1

    def host(self, call: HostCall, touched: Sequence[Slot], block: Block) -> None:
        """Call NumPy."""
        self.hosts.append(call)
        self.cost += _HOST_COST
        self.command(block, touched, Op.HOST, call.address)

    def copy(self, to: Slot, source: Slot, size: int, block: Block) -> None:
        """Copy an array."""
        if to is not source and size:
            self.command(block, [to, source], Op.COPY, to, source, size)

    # the end

    def code(self) -> tuple[np.ndarray, np.ndarray, list[LoadedPhase]]:
        """The commands as words, which words are phases, by number, and the phases; the slots are numbered."""
        phases = {w: i for i, w in enumerate(dict.fromkeys([w for w in self.words if isinstance(w, LoadedPhase)]))}
        places = [i for i, w in enumerate(self.words) if isinstance(w, LoadedPhase)]
        words = [w.number if isinstance(w, Slot) else phases[w] if isinstance(w, LoadedPhase) else w for w in self.words]
        return np.array(words, np.int64), np.array(places, np.int64), list(phases)


class _Places:
    """Where the values of one body are."""

    def __init__(self, writer: Writer, body: Body, inputs: Sequence[Slot], targets: Sequence[Slot | None], block: Block) -> None:
        self.writer = writer
        self.body = body
        self.block = block
        jaxpr = body.program.jaxpr
        self.slots: dict[Var, Slot] = dict(zip(jaxpr.invars, inputs, strict=True))
        for var, value in zip(jaxpr.constvars, body.program.consts, strict=True):
            self.slots[var] = writer.slots.constant(value.buffer())
        #: Values that this body made in memory of its own.
        self.own: set[Var] = set()
        #: Where outputs that this body makes go.
        self.wanted: dict[Var, Slot] = {}
        for out, target in zip(jaxpr.outvars, targets, strict=True):
            if isinstance(out, Var) and target is not None and body.root(out) in body.makers:
                self.wanted.setdefault(body.root(out), target)

    def operand(self, atom: Atom) -> Slot:
        """Where an operand is."""
        if isinstance(atom, Literal):
            return self.writer.slots.constant(atom.val.buffer())
        if not atom.aval.size:
            return self.writer.slots.constant(np.zeros(1, np.int64))
        return self.slots[self.body.root(atom)]

    def operands(self, item: Item) -> list[Slot]:
        """Where an item's operands are."""
        return [self.operand(v) for v in item.operands]

    def results(self, number: int, item: Item) -> list[Slot]:
        """Where an item's results go."""
        taken: set[Var] = set()
        return [self.result(number, item, position, taken) for position in range(len(item.results))]

    def result(self, number: int, item: Item, position: int, taken: set[Var]) -> Slot:
        """A target, or an operand's memory, or new memory."""
        var = item.results[position]
        slot = self.wanted.get(var)
        if slot is None:
            self.own.add(var)
            dying = [v for v in self.own - taken if self.body.last.get(v) == number and v not in self.wanted and v in self.slots]
            old = next((v for v in dying if _fits(v, var) and self.body.overwrites(number, v, var)), None)
            if old is not None:
                taken.add(old)
                slot = self.slots[old]
            else:
                slot = self.writer.slots.memory(var.aval.size * var.aval.dtype.itemsize, self.block)
        self.slots[var] = slot
        return slot


def _fits(old: Var, new: Var) -> bool:
    return (old.aval.size, old.aval.dtype) == (new.aval.size, new.aval.dtype)
