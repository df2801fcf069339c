"""CPU affinity: workers wake up on another CPU than the thread that wakes them.

Linux may put a thread that wakes up on the CPU of the thread that woke it although another one is idle (of a virtual machine's idle CPUs it
supposes that the host has taken them away). There one of the two waits for the other: with one worker on two CPUs, two threads did the
work of one for up to 10 ms, and a 256³ product took 456 µs instead of 308. So before workers are woken, they are forbidden the CPU that
the waking thread is on. System calls are needed only when that is not the CPU of the last time.

Workers' allowed CPUs are otherwise those that they had when they began: CPUs that are taken from the running process, or given to it
(`taskset -ap`), take effect after the next program. A container's limits hold in any case.

Where the C library lacks these functions (only Linux has them), workers wake up where the system puts them.
"""

from __future__ import annotations

import ctypes
import sys

from volta_fn.runtime.llvm.text import Function, Module, Value, i64

_PTR = "ptr"
#: Words of the record: number of workers; the CPU forbidden now, plus 1; the CPUs they began with, as bits; and their threads.
_COUNT, _FORBIDDEN, _CPUS, _THREADS = 0, 1, 8, 24
_CPU_WORDS, _MOST_THREADS = 16, 256
_WORDS = _THREADS + _MOST_THREADS


def write_affinity(module: Module) -> None:
    """Define ``@enlist()``, which workers call, and ``@make_way()``, for their wakers."""
    module.declare("affinity", f"@affinity = internal global [{_WORDS} x i64] zeroinitializer, align 64")
    enlist, make_way = Function(module, "enlist", []), Function(module, "make_way", [])
    if _is_supported():
        module.declare("pthread_self", "declare i64 @pthread_self()")
        module.declare("sched_getcpu", "declare i32 @sched_getcpu()")
        for name in ("getaffinity", "setaffinity"):
            module.declare(name, f"declare i32 @pthread_{name}_np(i64, i64, ptr)")
        _enlist(enlist)
        _make_way(make_way)
    enlist.finish()
    make_way.finish()


def _is_supported() -> bool:
    names = ("sched_getcpu", "pthread_getaffinity_np", "pthread_setaffinity_np")
    return sys.platform == "linux" and all(hasattr(ctypes.CDLL(None), name) for name in names)


def reset_affinity(f: Function) -> None:
    """Set the record to its state before there are workers."""
    f.run("llvm.memset.p0.i64", Value(_PTR, "@affinity"), Value("i8", "0"), i64(8 * _WORDS), Value("i1", "false"))


def _word(number: int) -> Value:
    return Value(_PTR, f"getelementptr (i64, ptr @affinity, i64 {number})")


def _enlist(f: Function) -> None:
    number = f.let("i64", f"atomicrmw add {_word(_COUNT)}, i64 1 seq_cst")

    def one() -> None:
        thread = f.call("pthread_self", "i64")
        f.call("pthread_getaffinity_np", "i32", thread, i64(8 * _CPU_WORDS), _word(_CPUS))  # the same for all of them
        f.store(thread, f.at(_word(_THREADS), "i64", number), 8)

    f.branch(f.compare("icmp slt", number, i64(_MOST_THREADS)), one)
    f.do(f"store atomic i64 0, {_word(_FORBIDDEN)} seq_cst, align 8")


def _make_way(f: Function) -> None:
    here = f.cast("sext", f.call("sched_getcpu", "i32"), "i64")
    last = f.let("i64", f"atomicrmw xchg {_word(_FORBIDDEN)}, {f.binary('add', here, i64(1))} seq_cst")
    moved = f.compare("icmp ne", last, f.binary("add", here, i64(1)))
    known = f.compare("icmp ult", here, i64(64 * _CPU_WORDS))

    def forbid() -> None:
        others = f.alloca("i64", _CPU_WORDS)

        def word(number: Value, seen: list[Value]) -> list[Value]:
            inside = f.compare("icmp eq", f.binary("lshr", here, i64(6)), number)
            bit = f.select(inside, f.binary("shl", i64(1), f.binary("and", here, i64(63))), i64(0))
            left = f.binary("and", f.load("i64", f.at(_word(_CPUS), "i64", number), 8), f.binary("xor", bit, i64(-1)))
            f.store(left, f.at(others, "i64", number), 8)
            return [f.binary("or", seen[0], left)]

        some = f.loop(i64(0), i64(_CPU_WORDS), 1, [i64(0)], word, once=True)[0]
        f.branch(f.compare("icmp ne", some, i64(0)), lambda: _send(f, others))

    f.branch(f.binary("and", moved, known), forbid)


def _send(f: Function, cpus: Value) -> None:
    """Restrict workers to some CPUs."""
    count = f.intrinsic("llvm.smin.i64", "i64", f.load("i64", _word(_COUNT), 8), i64(_MOST_THREADS))

    def one(number: Value, _: list[Value]) -> None:
        thread = f.load("i64", f.at(_word(_THREADS), "i64", number), 8)

        def send() -> None:
            f.call("pthread_setaffinity_np", "i32", thread, i64(8 * _CPU_WORDS), cpus)

        f.branch(f.compare("icmp ne", thread, i64(0)), send)  # a worker that has just begun is not in the list yet

    f.loop(i64(0), count, 1, [], one)
