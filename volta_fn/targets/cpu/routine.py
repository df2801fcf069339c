"""Routines: pieces of machine code that programs run.

A routine is LLVM IR with entry points, each called a *phase*. A phase does a number of independent *tasks*, which the runtime shares out to
threads; the next phase begins when all are done. The tasks, and so the results, are the same for any number of threads. An entry point is
``void symbol(ptr buffers, i64 begin, i64 end)``: it does the tasks from `begin` up to `end`. `buffers` is an array of pointers: to the
operands, the results, and (if the routine asks for some) a workspace, in this order. Arrays are contiguous, and aligned to their
elements at least; results and workspaces hold anything at first, and share no memory with operands.
"""

from __future__ import annotations

from dataclasses import dataclass

from volta_fn.runtime.llvm.text import SharedFunction


@dataclass(frozen=True)
class Launch:
    """An entry point."""

    symbol: str
    #: How many independent tasks there are; each should take some 20 µs or more, where there is so much to do.
    tasks: int
    #: About how many nanoseconds all tasks take on one thread: below some 20,000 it is not worth while to wake another.
    cost: float


@dataclass(frozen=True)
class Routine:
    """Machine code to be."""

    text: str
    launches: tuple[Launch, ...]
    #: Bytes of memory that it needs besides operands and results, aligned to 64.
    workspace: int = 0
    #: Functions that the text declares, and which other routines use, too.
    shared: tuple[SharedFunction, ...] = ()
