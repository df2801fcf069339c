"""The runtime's own machine code, compiled with the first program."""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import NamedTuple

from volta_fn.runtime.internals.fastcall import Addresses, FunctionMaker, make_entry, write_entry
from volta_fn.runtime.internals.result_allocator import FUNCTIONS, Empty, make_empty, write_blocks
from volta_fn.runtime.llvm.machine import compile_object, load_object
from volta_fn.runtime.llvm.text import Module
from volta_fn.targets.cpu.runtime import disk_cache
from volta_fn.targets.cpu.runtime.executor import write_executor
from volta_fn.targets.cpu.runtime.pool import Workers, write_pool

_lock = threading.Lock()


class SupportCode(NamedTuple):
    """What programs share in a process."""

    entry: FunctionMaker
    workers: Workers
    #: `numpy.empty` of large arrays.
    large_empty: Empty


def support_code_of_process() -> SupportCode:
    """Return the process's support code, compiled by whichever thread asks first."""
    with _lock:
        return _compiled()


@functools.cache
def _compiled() -> SupportCode:
    name = disk_cache.name_of("support code")
    found = disk_cache.read_compiled(name)
    if found is None:
        module = Module()
        for write in (write_pool, write_executor, write_entry, write_blocks):
            write(module)
        found = disk_cache.Compiled(compile_object(str(module)))
        disk_cache.write_compiled(name, found)
    work, reset, *others = load_object(found.code, ["work", "reset", *Addresses._fields, *FUNCTIONS])
    addresses, allocator = Addresses(*others[: len(Addresses._fields)]), others[len(Addresses._fields) :]
    return SupportCode(make_entry(addresses), Workers(work, reset), make_empty(allocator))


def libc_free(address: int) -> None:
    """Give back memory of ``malloc``."""
    ctypes.CDLL(None).free(ctypes.c_void_p(address))
