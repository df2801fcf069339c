"""The number of OpenBLAS's threads, in machine code.

It is one number for a process. A routine that shares out matrices to threads has OpenBLAS compute each on one: threads of two pools
would only wait for each other. One of a single large matrix has it use as many threads as the program has, unless OpenBLAS has fewer. While
there are routines of both kinds, the number is one. The last routine to end restores what was before the first.
"""

from __future__ import annotations

from collections.abc import Callable

from volta_fn.runtime.llvm.index_arith import least
from volta_fn.runtime.llvm.lapack import GET_THREADS, SET_THREADS, THREADS, WORDS
from volta_fn.runtime.llvm.text import Function, Value, i64

_LOCK, _BEFORE, _MOST, _ON_ONE, _ON_MANY = (Value("ptr", f"getelementptr (i64, ptr @{THREADS}, i64 {word})") for word in range(WORDS))


class Threads:
    """Begins and ends a routine with one OpenBLAS thread, or many."""

    def __init__(self, *, many: bool) -> None:
        self._mine = _ON_MANY if many else _ON_ONE

    def begin(self, f: Function, pointers: list[Value], task: Value) -> None:
        """Emit the beginning."""

        def count() -> None:
            f.branch(f.compare("icmp eq", _running(f), i64(0)), lambda: f.store(_threads(f), _BEFORE, 8))
            f.store(f.binary("add", f.load("i64", self._mine, 8), i64(1)), self._mine, 8)
            _set_threads(f)

        _locked(f, count)

    def end(self, f: Function, pointers: list[Value], task: Value) -> None:
        """Emit the end."""

        def count() -> None:
            f.store(f.binary("sub", f.load("i64", self._mine, 8), i64(1)), self._mine, 8)
            _set_threads(f)

        _locked(f, count)


def _running(f: Function) -> Value:
    return f.binary("add", f.load("i64", _ON_ONE, 8), f.load("i64", _ON_MANY, 8))


def _threads(f: Function) -> Value:
    f.module.declare(GET_THREADS, f"declare i32 @{GET_THREADS}()")
    return f.cast("sext", f.call(GET_THREADS, "i32"), "i64")


def _set_threads(f: Function) -> None:
    """Emit the setting of the number that the routines at work want."""
    before = f.load("i64", _BEFORE, 8)
    many = least(f, before, f.load("i64", _MOST, 8))
    wanted = f.select(f.compare("icmp eq", f.load("i64", _ON_ONE, 8), i64(0)), many, i64(1))
    wanted = f.select(f.compare("icmp eq", _running(f), i64(0)), before, wanted)
    f.module.declare(SET_THREADS, f"declare void @{SET_THREADS}(i32)")
    f.run(SET_THREADS, f.cast("trunc", wanted, "i32"))


def _locked(f: Function, work: Callable[[], None]) -> None:
    """Emit work that one thread does at a time."""
    f.module.declare(THREADS, f"@{THREADS} = external global [{WORDS} x i64]")
    wait, done = f.fresh("wait"), f.fresh("locked")
    f.do(f"br label %{wait}")
    f.label(wait)
    pair = f.let("{ i64, i1 }", f"cmpxchg {_LOCK}, i64 0, i64 1 seq_cst seq_cst")
    f.do(f"br {f.let('i1', f'extractvalue {pair}, 1')}, label %{done}, label %{wait}")
    f.label(done)
    work()
    f.do(f"store atomic i64 0, {_LOCK} seq_cst, align 8")
