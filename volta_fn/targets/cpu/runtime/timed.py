"""Programs that note when each of their items begins, for profilers.

Between items stands one more launch, which reads the clock and appends the next item's number and the time to a log. It takes some 30
nanoseconds; programs that are not profiled have none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from volta_fn.compiler.buffers import Lifetime
from volta_fn.compiler.emission import Block, Slot
from volta_fn.compiler.target import Item, LoweredProgram
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.runtime.compiling import compile_uninterrupted
from volta_fn.runtime.internals.system import nanoseconds
from volta_fn.runtime.llvm.machine import LoadedCode, compile_object, load_objects
from volta_fn.runtime.llvm.text import Function, Module, Value, i64
from volta_fn.targets.cpu.runtime.compile import CONTROL_FLOW, CommandWriter, LoadedLaunch, LoadedRoutine, assemble, loaded_routines
from volta_fn.targets.cpu.runtime.executor import Mode, Op
from volta_fn.targets.cpu.runtime.program import Program
from volta_fn.targets.cpu.target import TARGET

if TYPE_CHECKING:
    from volta_fn.compiler.target import Pipeline

#: The numbers of the items, begin and end.
Span = tuple[tuple[int, ...], int, int]

#: Entries of a log. What a call notes after that many is lost, and `Log.is_full` says so.
_CAPACITY = 1 << 18

#: The words of a command that writes one, and the launch's name.
_WORDS, _STAMP = 6, "volta_fn_stamp"


@functools.cache
def _stamp() -> LoadedCode:
    """Compile the launch that reads the clock.

    ``stamp(buffers, first, number)`` appends (number, nanoseconds) to the log at buffers[0]: the count, the capacity, the entries.
    """
    module, buffers, first, number = Module(), Value("ptr", "%buffers"), Value("i64", "%first"), Value("i64", "%number")
    f = Function(module, _STAMP, [buffers, first, number])
    log = f.load("ptr", buffers, 8)
    count, capacity = f.load("i64", log, 8), f.load("i64", f.at(log, "i64", i64(1)), 8)

    def append() -> None:
        entry = f.at(log, "i64", f.plus(f.times(count, 2), i64(2)))
        f.store(number, entry, 8)
        f.store(nanoseconds(f), f.at(entry, "i64", i64(1)), 8)
        f.store(f.plus(count, i64(1)), log, 8)

    f.branch(f.compare("icmp ult", count, capacity), append)
    f.finish()
    return compile_uninterrupted(lambda: load_objects([compile_object(str(module))], [_STAMP]))


class TimedWriter(CommandWriter):
    """Writes a program's commands with a stamp before each item.

    Item number k of `items` has the stamp k; 0 stands for what is between items.
    """

    def __init__(self, loaded: Mapping[Any, LoadedRoutine | None], log: np.ndarray) -> None:
        super().__init__(loaded, CONTROL_FLOW)
        code = _stamp()
        self.items: list[tuple[LoweredProgram, Item] | None] = [None]
        self._log = log
        self._launch = LoadedLaunch(code.addresses[0], 1, Mode(0), _STAMP, "", code)
        #: The numbers of the items that are being written, from the outermost to the innermost, and the programs that they belong to.
        self._outer = [0]
        self._programs: list[LoweredProgram] = []
        #: How many words there were after the stamp at an item's end, if it is one of the program that is being written.
        self._after_end = -1

    def body(self, program: LoweredProgram, inputs: Sequence[Slot], destinations: Sequence[Slot | None], block: Block) -> None:
        """Write a program; its time outside of items is that of the item that holds it."""
        self._programs.append(program)
        self._after_end = -1
        super().body(program, inputs, destinations, block)
        self._programs.pop()

    def item(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> None:
        """Write an item between two stamps."""
        number = len(self.items)
        self.items.append((self._programs[-1], item))
        if self._after_end == len(self.words):  # nothing is between this item and the one before: one stamp does for both
            del self.words[-_WORDS:]
        self._write_stamp(number, block)
        self._outer.append(number)
        super().item(item, operands, results, block)
        self._outer.pop()
        self._write_stamp(self._outer[-1], block)
        self._after_end = len(self.words)

    def _write_stamp(self, number: int, block: Block) -> None:
        slot = self.slots.constant(self._log)
        self.slots.touch(slot, block)
        stamp: list[int | Slot | LoadedLaunch] = [Op.RUN, self._launch, number, 0, 1, slot]
        assert len(stamp) == _WORDS, "as many are taken back"
        self.words += stamp


class TimedProgram:
    """A compiled program of the CPU that notes the time of each item.

    Attributes:
        items: the item of each number in `times`; the first, None, stands for the time between items.
        lifetimes: when each value between arguments and results is needed, by the number of the command.
    """

    #: The device of the times, which are those of single items.
    device = "cpu"

    def __init__(self, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Pipeline) -> None:
        self._log = np.zeros(2 + 2 * _CAPACITY, np.int64)
        self._log[1] = _CAPACITY
        program = pipeline.lower(closed, TARGET)
        writer = TimedWriter(loaded_routines(program), self._log)
        built = assemble(program, donated, writer)
        self.items, self.lowered = writer.items, program
        self.lifetimes: list[Lifetime] = writer.slots.lifetimes()
        codes = [launch.code for launch in built.launches]
        self._program = Program(built.artifact, [launch.address for launch in built.launches], codes, built.hosts)
        self._run = self._program.executable().run
        self.temporaries = self._program.temporaries

    def __call__(self, donate: bool, *buffers: Any) -> Sequence[Any]:
        """Run the program on arrays, and note the times of this call alone."""
        self._log[0] = 0
        return self._run(donate, *buffers)

    def times(self) -> list[Span]:
        """Return (numbers of items, begin, end) in nanoseconds, as `perf_counter_ns`."""
        return self.noted()()

    def noted(self) -> Callable[[], list[Span]]:
        """Return what `times` would, as a function: a copy of the log costs little."""
        count = int(self._log[0])
        return functools.partial(_spans, self._log[2 : 2 + 2 * count].copy())

    def settle(self) -> None:
        """Do nothing: the code is final."""

    @property
    def is_full(self) -> bool:
        """Whether the last call had more items than its log."""
        return bool(self._log[0] >= _CAPACITY)


def _spans(entries: np.ndarray) -> list[Span]:
    numbers, moments = entries[::2].tolist(), entries[1::2].tolist()
    return [((n,), a, b) for n, a, b in zip(numbers, moments, moments[1:], strict=False)]
