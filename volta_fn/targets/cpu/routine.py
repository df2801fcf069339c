"""Routines: machine code generated for a kernel or an equation.

A routine is LLVM IR with entry points, each called a *launch*. A launch does a number of independent *tasks*, which the runtime shares out
to threads; the next launch begins when all are done. The tasks, and so the results, are the same for any number of threads. An entry point
is ``void symbol(ptr buffers, i64 begin, i64 end)``: it does the tasks from `begin` up to `end`. `buffers` is an array of pointers: to the
operands, the results, and (if the routine asks for some) a workspace, in this order. Arrays are contiguous, and aligned to their elements
at least; results and workspaces are uninitialised, and share no memory with operands. The pointer before the first one is that to the
call's `SignalWord` record, for tasks that may take long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from volta_fn.compiler.target import RoutineKey
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Module, SharedFunction, Value, element_of, i64

#: The parameters of an entry point.
BUFFERS, BEGIN, END = Value("ptr", "%buffers"), Value("i64", "%begin"), Value("i64", "%end")


def entry_point(module: Module, symbol: str) -> Function:
    """Begin an entry point, whose parameters are `BUFFERS`, `BEGIN` and `END`."""
    return Function(module, symbol, [BUFFERS, BEGIN, END])


def buffer_pointer(f: Function, number: int, buffers: Value = BUFFERS) -> Value:
    """Emit the pointer to a buffer, an operand, a result or the workspace."""
    return f.load("ptr", f.at(buffers, "ptr", i64(number)), 8)


class SignalWord(IntEnum):
    """Words of a call's record of signals."""

    #: ``i64 handle(ptr record)`` has Python handle signals, at most once a second, and returns the status.
    HANDLE = 0
    #: 0 unless the program is to end.
    STATUS = 1
    #: The second in which signals were last handled.
    SECOND = 2


def signals_of(f: Function, buffers: Value) -> Value:
    """Emit the address of the record of signals of the call whose buffers these are."""
    return buffer_pointer(f, -1, buffers)


def signal_status(f: Function, signals: Value) -> Value:
    """Emit the status of a call, which another thread may have set."""
    return f.let("i64", f"load atomic i64, {f.at(signals, 'i64', i64(SignalWord.STATUS))} monotonic, align 8")


def handle_signals(f: Function, signals: Value) -> Value:
    """Emit the handling of signals; return the status.

    Unless it is 0, the routine ends without its results.
    """
    return f.let("i64", f"call i64 {f.load('ptr', signals, 8).name}({signals})")


@dataclass(frozen=True)
class Launch:
    """An entry point: one parallel loop over tasks."""

    symbol: str
    #: The number of independent tasks; each should take 20 µs or more, if there is enough work.
    tasks: int
    #: Estimated nanoseconds of all tasks on one thread; below 20,000 no other thread is woken.
    cost: float
    #: Whether it restores what an earlier launch has changed outside of the program, and so runs even if a signal's handler has raised.
    restores: bool = False


@dataclass(frozen=True)
class Routine:
    """Generated code, to be compiled."""

    text: str
    launches: tuple[Launch, ...]
    #: Bytes of workspace that it needs, aligned to 64.
    workspace: int = 0
    #: Functions that the text declares, and which other routines use, too.
    shared: tuple[SharedFunction, ...] = ()
    #: Whether it has numbers of float16, which some machines cannot convert.
    has_float16: bool = False

    @classmethod
    def of(cls, module: Module, launches: Sequence[Launch], workspace: int = 0) -> Routine:
        """Return the routine of a module."""
        has_float16 = any(element_of(type_) == "half" for type_ in module.types)
        return cls(str(module), tuple(launches), workspace, tuple(module.shared.values()), has_float16)


def routine_of(key: RoutineKey) -> Routine | None:
    """Generate a routine; None if the target has none.

    Nor has it one of float16 on a machine that converts none.
    """
    # LLVM would call functions that no library has, and never ends on WebAssembly's vectors of them.
    routine: Routine | None = key.make()
    return routine if routine is None or host().converts_float16 or not routine.has_float16 else None
