"""The operating system's functions that machine code calls.

These are memory, locks and clocks. POSIX and Windows have different ones. Those of Windows are from kernel32.dll, which every process has
loaded, and Python's `PyMem_RawMalloc`, as a process there may have several C libraries, each with memory of its own.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import time

from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Value, i64

_PTR, _NULL = "ptr", Value("ptr", "null")
_ADVISE_HUGE = 14
#: MEM_COMMIT | MEM_RESERVE, MEM_RELEASE, PAGE_READWRITE and INFINITE of Windows.
_RESERVED, _RELEASED, _READ_WRITE, _INFINITE = 0x3000, 0x8000, 4, -1


def _call(f: Function, result: str, name: str, *args: Value) -> Value:
    """Append a call of a function, and declare it."""
    f.module.declare(name, f"declare {result} @{name}({', '.join(a.type for a in args)})")
    if result == "void":
        f.run(name, *args)
        return _NULL
    return f.call(name, result, *args)


def _i32(number: int) -> Value:
    return Value("i32", str(number))


# Memory.


def allocate(f: Function, size: Value) -> Value:
    """Append an allocation for `release`, and return its address or null."""
    return _call(f, _PTR, "PyMem_RawMalloc" if host().is_windows else "malloc", size)


def allocate_pages(f: Function, size: Value, alignment: int) -> Value:
    """Append an allocation for `release` of large pages, where the system has them.

    Its address is a multiple of `alignment`, as the size must be, or null.
    """
    if not has_huge_pages():
        return allocate(f, size)
    block = _call(f, _PTR, "aligned_alloc", i64(alignment), size)
    f.branch(f.compare("icmp eq", block, _NULL), lambda: None, lambda: ask_for_huge_pages(f, block, size))
    return block


def release(f: Function, block: Value) -> None:
    """Append the end of an allocation, or of none if it is null."""
    _call(f, "void", "PyMem_RawFree" if host().is_windows else "free", block)


def release_from_python(address: int) -> None:
    """Free what machine code has allocated."""
    free = ctypes.pythonapi.PyMem_RawFree if sys.platform == "win32" else ctypes.CDLL(None).free
    free(ctypes.c_void_p(address))


def map_pages(f: Function, size: Value) -> Value:
    """Append a reservation of zeroed pages, and return its address or null."""
    if host().is_windows:
        return _call(f, _PTR, "VirtualAlloc", _NULL, size, _i32(_RESERVED), _i32(_READ_WRITE))
    flags = [_i32(number) for number in (mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)]
    block = _call(f, _PTR, "mmap", _NULL, size, *flags, i64(0))
    return f.select(f.compare("icmp eq", block, Value(_PTR, "inttoptr (i64 -1 to ptr)")), _NULL, block)


def unmap_pages(f: Function, block: Value, size: Value) -> None:
    """Append the end of a reservation."""
    if host().is_windows:
        _call(f, "i32", "VirtualFree", block, i64(0), _i32(_RELEASED))
    else:
        _call(f, "i32", "munmap", block, size)


def has_huge_pages() -> bool:
    """Return True if the system takes advice on which memory shall have huge pages."""
    return not host().is_windows and hasattr(mmap, "MADV_HUGEPAGE")


def ask_for_huge_pages(f: Function, block: Value, size: Value) -> None:
    """Ask the kernel for huge pages, where it has them."""
    # It then clears 2 MiB at once instead of 4 KiB in each of 512 page faults.
    if has_huge_pages():
        _call(f, "i32", "madvise", block, size, _i32(_ADVISE_HUGE))


# Clocks.


def seconds(f: Function) -> Value:
    """Append a reading of a clock that counts seconds."""
    if host().is_windows:
        return f.binary("udiv", _call(f, "i64", "GetTickCount64"), i64(1000))
    return _call(f, "i64", "time", _NULL)


def nanoseconds(f: Function) -> Value:
    """Append a reading of the clock of `time.perf_counter_ns`."""
    first = f.alloca("i64", 2, 8)
    if not host().is_windows:
        _call(f, "i32", "clock_gettime", _i32(time.CLOCK_MONOTONIC), first)
        whole, rest = f.load("i64", first, 8), f.load("i64", f.at(first, "i64", i64(1)), 8)
        return f.binary("add", f.binary("mul", whole, i64(10**9)), rest)
    second = f.at(first, "i64", i64(1))
    _call(f, "i32", "QueryPerformanceCounter", first)
    _call(f, "i32", "QueryPerformanceFrequency", second)
    ticks, frequency = f.load("i64", first, 8), f.load("i64", second, 8)
    # Ticks times 10^9 exceed 64 bits after some hours of a machine's run: seconds and their rest apart.
    rest = f.binary("udiv", f.binary("mul", f.binary("urem", ticks, frequency), i64(10**9)), frequency)
    return f.binary("add", f.binary("mul", f.binary("udiv", ticks, frequency), i64(10**9)), rest)


# Locks, on which threads sleep. Both systems' locks and conditions fit the words that `LOCK_WORDS` and `CONDITION_WORDS` count.

LOCK_WORDS, CONDITION_WORDS = 16, 24


def initialize_lock(f: Function, lock: Value, condition: Value) -> None:
    """Append the initialisation of a lock and a condition whose words are 0."""
    if not host().is_windows:  # where words of 0 are what an SRWLOCK and a CONDITION_VARIABLE begin with
        _call(f, "i32", "pthread_mutex_init", lock, _NULL)
        _call(f, "i32", "pthread_cond_init", condition, _NULL)


def lock(f: Function, lock: Value) -> None:
    """Append the wait for a lock."""
    _call_either(f, "AcquireSRWLockExclusive", "pthread_mutex_lock", lock)


def unlock(f: Function, lock: Value) -> None:
    """Append the release of a lock."""
    _call_either(f, "ReleaseSRWLockExclusive", "pthread_mutex_unlock", lock)


def wait(f: Function, condition: Value, lock: Value) -> None:
    """Append a sleep until the condition is announced, without the lock meanwhile."""
    if host().is_windows:
        _call(f, "i32", "SleepConditionVariableSRW", condition, lock, _i32(_INFINITE), _i32(0))
    else:
        _call(f, "i32", "pthread_cond_wait", condition, lock)


def wake_all(f: Function, condition: Value) -> None:
    """Append an announcement to all threads that wait for a condition."""
    _call_either(f, "WakeAllConditionVariable", "pthread_cond_broadcast", condition)


def _call_either(f: Function, windows: str, posix: str, word: Value) -> None:
    """Append a call of the system's function."""
    if host().is_windows:
        _call(f, "void", windows, word)
    else:
        _call(f, "i32", posix, word)
