"""Programs that note when each of their items begins, for profilers.

Between items stands one more launch, which reads the clock and appends the next item's number and the time to a log. It takes some 30
nanoseconds; programs that are not profiled have none.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from volta_fn.compiler.buffers import Lifetime
from volta_fn.compiler.emission import Block, Slot
from volta_fn.compiler.target import Item, LoweredProgram
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.runtime.compiling import compile_uninterrupted
from volta_fn.runtime.llvm.machine import LoadedCode, compile_object, load_objects
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

#: The words of a command that writes one.
_WORDS = 6

#: ``stamp(buffers, first, number)`` appends (number, nanoseconds) to the log at buffers[0]: the count, the capacity, the entries.
_STAMP = """
declare i32 @clock_gettime(i32, ptr)

define void @volta_fn_stamp(ptr %buffers, i64 %first, i64 %number) {{
entry:
  %time = alloca [2 x i64], align 8
  %log = load ptr, ptr %buffers, align 8
  %count = load i64, ptr %log, align 8
  %most_at = getelementptr i64, ptr %log, i64 1
  %most = load i64, ptr %most_at, align 8
  %room = icmp ult i64 %count, %most
  br i1 %room, label %store, label %end
store:
  %status = call i32 @clock_gettime(i32 {clock}, ptr %time)
  %seconds = load i64, ptr %time, align 8
  %rest_at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %rest_at, align 8
  %scaled = mul i64 %seconds, 1000000000
  %now = add i64 %scaled, %rest
  %double = shl i64 %count, 1
  %offset = add i64 %double, 2
  %entry_at = getelementptr i64, ptr %log, i64 %offset
  store i64 %number, ptr %entry_at, align 8
  %time_at = getelementptr i64, ptr %entry_at, i64 1
  store i64 %now, ptr %time_at, align 8
  %after = add i64 %count, 1
  store i64 %after, ptr %log, align 8
  br label %end
end:
  ret void
}}
"""


@functools.cache
def _stamp() -> LoadedCode:
    """Compile the launch that reads the clock."""
    text = _STAMP.format(clock=time.CLOCK_MONOTONIC)
    return compile_uninterrupted(lambda: load_objects([compile_object(text)], ["volta_fn_stamp"]))


class TimedWriter(CommandWriter):
    """Writes a program's commands with a stamp before each item.

    Item number k of `items` has the stamp k; 0 stands for what is between items.
    """

    def __init__(self, loaded: Mapping[Any, LoadedRoutine | None], log: np.ndarray) -> None:
        super().__init__(loaded, CONTROL_FLOW)
        code = _stamp()
        self.items: list[tuple[LoweredProgram, Item] | None] = [None]
        self._log = log
        self._launch = LoadedLaunch(code.addresses[0], 1, Mode(0), "volta_fn_stamp", "", code)
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
