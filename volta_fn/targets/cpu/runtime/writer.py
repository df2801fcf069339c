"""Bodies as commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from volta_fn.compiler.buffers.buffer_assignment import Block, Slot
from volta_fn.compiler.buffers.emit import ProgramWriter
from volta_fn.compiler.ir.nodes import KernelCall
from volta_fn.compiler.program import Item
from volta_fn.targets.cpu.runtime.code_cache import Loaded, LoadedPhase
from volta_fn.targets.cpu.runtime.commands import MOST_BUFFERS, Op
from volta_fn.targets.cpu.runtime.host import HostCall, equation_call, kernel_call

#: How control flow is written: (writer, item, operands' slots, results' slots, block).
ControlFlow = Callable[["Writer", Item, Sequence[Slot], Sequence[Slot], Block], None]

#: Nanoseconds that a call of NumPy costs at least.
_HOST_COST = 10_000.0


class Writer(ProgramWriter):
    """The commands of one program, written item by item."""

    def __init__(self, loaded: Mapping[Any, Loaded | None], control_flow: Mapping[str, ControlFlow]) -> None:
        super().__init__()
        self.loaded = loaded
        self.control_flow = control_flow
        self.words: list[int | Slot | LoadedPhase] = []
        self.hosts: list[HostCall] = []
        #: Nanoseconds that the program takes, roughly.
        self.cost = 0.0

    def item(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> None:
        """Write an item."""
        loaded = None if item.key is None else self.loaded[item.key.key]
        if loaded is not None and len(operands) + len(results) < MOST_BUFFERS:
            self.run(loaded, [*operands, *results], block)
        elif isinstance(item.node, KernelCall):
            self.host(item, kernel_call(item.node.kernel, operands, results), [*operands, *results], block)
        elif item.node.primitive.name in self.control_flow:
            self.control_flow[item.node.primitive.name](self, item, operands, results, block)
        else:
            self.host(item, equation_call(item.node, operands, results), [*operands, *results], block)

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

    def host(self, item: Item, call: HostCall, touched: Sequence[Slot], block: Block) -> None:
        """Call NumPy."""
        self.on_host.append(item)
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
