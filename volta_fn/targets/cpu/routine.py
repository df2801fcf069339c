"""Routines: machine code generated for a kernel or an equation.

A routine is LLVM IR with entry points, each called a *launch*. A launch does a number of independent *tasks*, which the runtime shares out
to threads; the next launch begins when all are done. The tasks, and so the results, are the same for any number of threads. An entry point
is ``void symbol(ptr buffers, i64 begin, i64 end)``: it does the tasks from `begin` up to `end`. `buffers` is an array of pointers: to the
operands, the results, and (if the routine asks for some) a workspace, in this order. Arrays are contiguous, and aligned to their elements
at least; results and workspaces are uninitialised, and share no memory with operands.
"""

from __future__ import annotations

from dataclasses import dataclass

from volta_fn.runtime.llvm.text import SharedFunction


@dataclass(frozen=True)
class Launch:
    """An entry point: one parallel loop over tasks."""

    symbol: str
    #: The number of independent tasks; each should take 20 µs or more, if there is enough work.
    tasks: int
    #: Estimated nanoseconds of all tasks on one thread; below 20,000 no other thread is woken.
    cost: float


@dataclass(frozen=True)
class Routine:
    """Generated code, to be compiled."""

    text: str
    launches: tuple[Launch, ...]
    #: Bytes of workspace that it needs, aligned to 64.
    workspace: int = 0
    #: Functions that the text declares, and which other routines use, too.
    shared: tuple[SharedFunction, ...] = ()
