"""Bodies written as a lane's commands: what is the same for every lane is which slot each value is in."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from volta_fn.compiler.lowering.buffer_assignment import Block, Slot, Slots
from volta_fn.compiler.lowering.output_specs import Output
from volta_fn.compiler.lowering.program import Body, Item, fits, kind_of
from volta_fn.core.array import host_buffer
from volta_fn.core.jaxpr import Atom, Equation, Literal, Var


class BodyWriter:
    """The commands of one program, written item by item. A lane says how an item and a copy are written."""

    def __init__(self) -> None:
        self.slots = Slots()

    def item(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> None:
        """Write an item."""
        raise NotImplementedError

    def copy(self, to: Slot, source: Slot, size: int, block: Block) -> None:
        """Copy an array of so many bytes."""
        raise NotImplementedError

    def constant(self, value: Any) -> Slot:
        """The slot of a constant array."""
        return self.slots.constant(host_buffer(value))

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


class _Places:
    """Where the values of one body are."""

    def __init__(self, writer: BodyWriter, body: Body, inputs: Sequence[Slot], targets: Sequence[Slot | None], block: Block) -> None:
        self.writer = writer
        self.body = body
        self.block = block
        jaxpr = body.program.jaxpr
        self.slots: dict[Var, Slot] = dict(zip(jaxpr.invars, inputs, strict=True))
        for var, value in zip(jaxpr.constvars, body.program.consts, strict=True):
            self.slots[var] = writer.constant(value)
        #: Values that this body made in memory of its own.
        self.own: set[Var] = set()
        #: Where outputs that this body makes go, and what is made in their memory before.
        self.wanted: dict[Var, Slot] = {}
        for out, target in zip(jaxpr.outvars, targets, strict=True):
            if isinstance(out, Var) and target is not None and body.root(out) in body.makers:
                self.wanted.setdefault(body.root(out), target)
        for made, target in list(self.wanted.items()):
            for var in itertools.takewhile(lambda v: v not in self.wanted, body.before(made)):
                self.wanted[var] = target

    def operand(self, atom: Atom) -> Slot:
        """Where an operand is."""
        if isinstance(atom, Literal):
            return self.writer.constant(atom.val)
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
            read = dict.fromkeys([self.body.root(v) for v in item.operands if isinstance(v, Var)])
            mine = [v for v in read if v in self.own and v not in taken and v in self.slots]
            dying = [v for v in mine if self.body.last.get(v) == number and v not in self.wanted]
            old = next((v for v in dying if fits(v, var) and self.body.overwrites(number, v, var)), None)
            if old is not None:
                taken.add(old)
                slot = self.slots[old]
            else:
                slot = self.writer.slots.memory(var.aval.size * var.aval.dtype.itemsize, self.block)
        self.slots[var] = slot
        return slot


def made_by(body: Body) -> list[Var]:
    """The variables that are results and made by the program, each once: arguments and constants are not."""
    return list(dict.fromkeys([body.root(v) for v in body.program.jaxpr.outvars if isinstance(v, Var) and body.root(v) in body.makers]))


def write_program(writer: BodyWriter, body: Body, made: Sequence[Var], reuse: Mapping[int, int] = {}) -> None:  # never changed
    """Write a program's commands.

    The caller gives memory for the arguments, then for the variables that the program makes, but those that `reuse` maps to arguments,
    whose memory they take.
    """
    jaxpr = body.program.jaxpr
    inputs = [writer.slots.caller() for _ in jaxpr.invars]
    targets = {var: inputs[reuse[number]] if number in reuse else writer.slots.caller() for number, var in enumerate(made)}
    places: list[Slot | None] = [targets.get(body.root(v)) if isinstance(v, Var) else None for v in jaxpr.outvars]
    once: set[Slot] = set()
    for number, place in enumerate(places):
        if place in once:
            places[number] = None
        elif place is not None:
            once.add(place)
    writer.body(body, inputs, places, writer.slots.outermost)


def outputs_of(body: Body, made: list[Var]) -> list[Output]:
    """What the program's results are."""
    return [_output(body, v, made) for v in body.program.jaxpr.outvars]


def _output(body: Body, atom: Atom, made: list[Var]) -> Output:
    if isinstance(atom, Literal):
        return Output(None, None, atom.val, atom.aval.shape)
    root, jaxpr = body.root(atom), body.program.jaxpr
    if root in body.makers:
        return Output(made.index(root), None, None, atom.aval.shape)
    if root in jaxpr.constvars:
        return Output(None, None, body.program.consts[jaxpr.constvars.index(root)], atom.aval.shape)
    return Output(None, jaxpr.invars.index(root), None, atom.aval.shape)


def reusable(body: Body, made: list[Var], donated: Sequence[bool]) -> tuple[tuple[int, int], ...]:
    """Results that go into the memory of donated arguments: pairs of their numbers."""
    invars = body.program.jaxpr.invars
    free: dict[tuple[int, np.dtype], list[int]] = {}
    for i in [i for i, d in enumerate(donated) if d]:
        free.setdefault(kind_of(invars[i]), []).append(i)
    pairs = []
    for number, var in enumerate(made):
        fitting = free.get(kind_of(var), [])
        found = next((i for i in fitting if body.may_share(invars[i], var)), None)
        if found is not None:
            fitting.remove(found)
            pairs.append((number, found))
    return tuple(pairs)
