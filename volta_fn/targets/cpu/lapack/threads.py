"""The number of OpenBLAS's threads, in machine code.

While routines share out matrices to threads, OpenBLAS computes each on one: threads of two pools would only wait for each other. The first
routine to begin limits OpenBLAS, and the last one to end restores its number of threads.
"""

from __future__ import annotations

from collections.abc import Callable

from volta_fn.runtime.llvm.lapack import GET_THREADS, SET_THREADS, THREADS
from volta_fn.runtime.llvm.text import Function, Value, i64

_LOCK, _COUNT, _BEFORE = (Value("ptr", f"getelementptr (i64, ptr @{THREADS}, i64 {word})") for word in range(3))


def limit_threads(f: Function, pointers: list[Value], task: Value) -> None:
    """Emit the beginning of a routine that has threads of its own."""

    def limit() -> None:
        f.module.declare(GET_THREADS, f"declare i32 @{GET_THREADS}()")
        f.store(f.cast("sext", f.call(GET_THREADS, "i32"), "i64"), _BEFORE, 8)
        _set_threads(f, Value("i32", "1"))

    def count() -> None:
        routines = f.load("i64", _COUNT, 8)
        f.branch(f.compare("icmp eq", routines, i64(0)), limit)
        f.store(f.binary("add", routines, i64(1)), _COUNT, 8)

    _locked(f, count)


def restore_threads(f: Function, pointers: list[Value], task: Value) -> None:
    """Emit the end of a routine that has threads of its own."""

    def count() -> None:
        routines = f.binary("sub", f.load("i64", _COUNT, 8), i64(1))
        f.store(routines, _COUNT, 8)
        f.branch(f.compare("icmp eq", routines, i64(0)), lambda: _set_threads(f, f.cast("trunc", f.load("i64", _BEFORE, 8), "i32")))

    _locked(f, count)


def _set_threads(f: Function, count: Value) -> None:
    f.module.declare(SET_THREADS, f"declare void @{SET_THREADS}(i32)")
    f.run(SET_THREADS, count)


def _locked(f: Function, work: Callable[[], None]) -> None:
    """Emit work that one thread does at a time."""
    f.module.declare(THREADS, f"@{THREADS} = external global [3 x i64]")
    wait, done = f.fresh("wait"), f.fresh("locked")
    f.do(f"br label %{wait}")
    f.label(wait)
    pair = f.let("{ i64, i1 }", f"cmpxchg {_LOCK}, i64 0, i64 1 seq_cst seq_cst")
    f.do(f"br {f.let('i1', f'extractvalue {pair}, 1')}, label %{done}, label %{wait}")
    f.label(done)
    work()
    f.do(f"store atomic i64 0, {_LOCK} seq_cst, align 8")
