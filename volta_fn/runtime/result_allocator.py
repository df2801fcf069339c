"""An allocator of large results, which reuses the memory of arrays that died.

The C library returns large blocks to the kernel, and a program that is called again waits for the kernel to clear fresh pages: for 32 MiB,
8 ms, longer than for the results. Without this allocator a jitted sum of two arrays of 64 MiB takes 24 instead of 4.7 ms, and an eager
square root 20 instead of 2.8; below 32 MiB there is no difference. So large results are arrays that NumPy allocates (they own their
memory, as any array of NumPy's) through an allocator in machine code that keeps blocks for a while. What it holds, free and in use
together, is at most `_SPARE` bytes more than the most that was in use at once, so that it hardly adds to the process's peak; free are at
most `_MOST_KEPT` bytes, and what was free for `_SECONDS` goes when the next block is freed. Other arrays of the process are not affected:
the allocator is NumPy's only while a result is made.

The allocator is set through a context variable of NumPy's, found by PyDataMem_SetHandler's position in NumPy's table of C functions (fixed
since NumPy 1.22). `make_empty` checks that an array made so names this allocator, and else gives `numpy.empty`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextvars import Context

import numpy as np
from numpy._core import multiarray  # which has NumPy's table of C functions

from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, sub_jaxprs
from volta_fn.errors import OutOfMemoryError
from volta_fn.runtime import system
from volta_fn.runtime.llvm.text import Function, Module, Value, i64, locked

# NumPy's MemoryError as an error of this package.


def out_of_memory(error: MemoryError) -> OutOfMemoryError:
    """Return an error as an `OutOfMemoryError`, with what NumPy says of the array."""
    if isinstance(error, OutOfMemoryError):
        return error
    reason = str(error) or "an allocation failed"
    return OutOfMemoryError(f"the memory is exhausted: {reason}; use smaller batches, or free arrays that are not needed")


def explained(error: MemoryError, closed: ClosedJaxpr) -> OutOfMemoryError:
    """Return the error of a program with its largest array and the user's line."""
    largest = largest_value(closed)
    message = out_of_memory(error).message
    return OutOfMemoryError(message if largest is None else f"{message}. The largest array that the program computes is {largest}")


def largest_value(closed: ClosedJaxpr) -> str | None:
    """Return a description of the largest array of a program, with the user's line."""
    values: list[tuple[int, ShapedArray, Equation]] = []
    pending = [closed]
    while pending:
        for eqn in pending.pop().eqns:
            values += [(v.aval.nbytes, v.aval, eqn) for v in eqn.outvars]
            pending += sub_jaxprs(eqn.params)
    if not values:
        return None
    _, aval, eqn = max(values, key=lambda entry: entry[0])
    return f"{aval}, of {eqn.primitive}" + ("" if eqn.source is None else f" at {eqn.source}")


# The allocator.

#: Results of at least this many bytes use the allocator: from this size on the C library, too, may ask the kernel for each block.
LARGE = 1 << 17
#: Limits of the free list: blocks, bytes, bytes held beyond the most that was in use at once, and seconds.
_MOST_BLOCKS, _MOST_KEPT, _SPARE, _SECONDS = 64, 1 << 28, 1 << 26, 10
#: A block begins with its size; the memory given out begins a cache line later. Blocks are multiples of a page, huge ones from `HUGE` on.
_HEADER, _PAGE, HUGE = 64, 1 << 12, 1 << 22
#: A free block is used for a request if it is larger by at most one in this many bytes.
_WASTE = 8

_PTR, _NULL = "ptr", Value("ptr", "null")
#: Words of the record: lock, bytes in use, the most there were, free bytes, number of free blocks; then their addresses, sizes,
#: and the seconds when they were freed, oldest first.
_LOCK, _USED, _MOST, _KEPT, _COUNT, _BLOCKS = 0, 1, 2, 3, 4, 8
_ENTRY = 3


def write_blocks(module: Module) -> None:
    """Define the functions of a NumPy allocator, which `FUNCTIONS` names."""
    module.declare("blocks", f"@blocks = internal global [{_BLOCKS + _ENTRY * _MOST_BLOCKS} x i64] zeroinitializer, align 64")
    for declaration in (
        "declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)",
        "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
    ):
        module.declare(declaration.split("@")[1].split("(")[0], declaration)
    _write_drop(module)
    _write_find(module)
    _write_fresh(module)
    _write_malloc(module)
    _write_free(module)
    _write_calloc(module)
    _write_realloc(module)


def _word(number: int) -> Value:
    return Value(_PTR, f"getelementptr (i64, ptr @blocks, i64 {number})")


def _get(f: Function, number: int) -> Value:
    return f.load("i64", _word(number), 8)


def _add(f: Function, number: int, value: Value) -> None:
    f.store(f.binary("add", _get(f, number), value), _word(number), 8)


def _negative(f: Function, value: Value) -> Value:
    return f.binary("sub", i64(0), value)


def _entry(f: Function, number: Value) -> Value:
    """Return the address of a free block's entry."""
    return f.at(_word(_BLOCKS), "i64", f.binary("mul", number, i64(_ENTRY)))


def _write_drop(module: Module) -> None:
    """Define ``ptr @drop(number)``, which takes a block out of the free list."""
    number = Value("i64", "%number")
    f = Function(module, "drop", [number], _PTR)
    entry = _entry(f, number)
    block = f.load(_PTR, entry, 8)
    _add(f, _KEPT, _negative(f, f.load("i64", f.at(entry, "i64", i64(1)), 8)))
    _add(f, _COUNT, i64(-1))
    moved = f.binary("mul", f.binary("sub", _get(f, _COUNT), number), i64(8 * _ENTRY))
    f.run("llvm.memmove.p0.p0.i64", entry, f.at(entry, "i64", i64(_ENTRY)), moved, Value("i1", "false"))
    f.finish(block)


def _give_back_oldest(f: Function) -> None:
    size = f.load("i64", _word(_BLOCKS + 1), 8)
    system.unmap_pages(f, f.call("drop", _PTR, i64(0)), size)


def _write_find(module: Module) -> None:
    """Define ``ptr @find(bytes)``: the newest free block that fits, or null."""
    byte_count = Value("i64", "%bytes")
    f = Function(module, "find", [byte_count], _PTR)
    most = f.binary("add", byte_count, f.binary("lshr", byte_count, i64(_WASTE.bit_length() - 1)))

    def choose(number: Value, best: list[Value]) -> list[Value]:
        size = f.load("i64", f.at(_entry(f, number), "i64", i64(1)), 8)
        fits = f.binary("and", f.compare("icmp uge", size, byte_count), f.compare("icmp ule", size, most))
        return [f.select(fits, number, best[0])]

    newest = f.loop(i64(0), _get(f, _COUNT), 1, [i64(-1)], choose)[0]
    f.finish(f.branch(f.compare("icmp slt", newest, i64(0)), lambda: [_NULL], lambda: [f.call("drop", _PTR, newest)])[0])


def _write_fresh(module: Module) -> None:
    """Define ``ptr @fresh(bytes)``: a block from the kernel, or null."""
    # Free ones are returned to the kernel until the total is within bounds.
    size = Value("i64", "%bytes")
    f = Function(module, "fresh", [size], _PTR)

    def too_many() -> Value:
        held = f.binary("add", f.binary("add", _get(f, _USED), _get(f, _KEPT)), size)
        return f.binary(
            "and", f.compare("icmp sgt", _get(f, _COUNT), i64(0)), f.compare("icmp ugt", held, f.binary("add", _get(f, _MOST), i64(_SPARE)))
        )

    f.repeat_while(too_many, lambda: _give_back_oldest(f))
    block = system.map_pages(f, size)

    def prepare() -> None:
        f.branch(f.compare("icmp uge", size, i64(HUGE)), lambda: system.ask_for_huge_pages(f, block, size))
        f.store(size, block, 8)

    f.branch(f.compare("icmp ne", block, _NULL), prepare)
    f.finish(block)


def _write_malloc(module: Module) -> None:
    context, size = Value(_PTR, "%context"), Value("i64", "%size")
    f = Function(module, "block_malloc", [context, size], _PTR)
    page_aligned = f.binary("and", f.binary("add", size, i64(_HEADER + _PAGE - 1)), i64(-_PAGE))

    def work() -> Value:
        reused = f.call("find", _PTR, page_aligned)
        block = f.branch(f.compare("icmp eq", reused, _NULL), lambda: [f.call("fresh", _PTR, page_aligned)], lambda: [reused])[0]

        def count() -> None:
            _add(f, _USED, f.load("i64", block, 8))
            used, most = _get(f, _USED), _get(f, _MOST)
            f.store(f.select(f.compare("icmp ugt", used, most), used, most), _word(_MOST), 8)

        f.branch(f.compare("icmp ne", block, _NULL), count)
        return block

    # Threads hold Python's lock where there is one, so that none waits for long.
    block = locked(f, _word(_LOCK), work)
    f.finish(f.branch(f.compare("icmp eq", block, _NULL), lambda: [_NULL], lambda: [f.at(block, "i8", i64(_HEADER))])[0])


def _write_free(module: Module) -> None:
    context, memory, size = Value(_PTR, "%context"), Value(_PTR, "%memory"), Value("i64", "%size")
    f = Function(module, "block_free", [context, memory, size])

    def work() -> Value:
        block = f.at(memory, "i8", i64(-_HEADER))
        size = f.load("i64", block, 8)
        now = system.seconds(f)
        _add(f, _USED, _negative(f, size))

        def crowded() -> Value:
            full = f.compare("icmp eq", _get(f, _COUNT), i64(_MOST_BLOCKS))
            heavy = f.compare("icmp ugt", f.binary("add", _get(f, _KEPT), size), i64(_MOST_KEPT))
            oldest = f.load("i64", _word(_BLOCKS + 2), 8)
            stale = f.compare("icmp sgt", f.binary("sub", now, oldest), i64(_SECONDS))
            some = f.compare("icmp sgt", _get(f, _COUNT), i64(0))
            return f.binary("and", some, f.binary("or", stale, f.binary("or", full, heavy)))

        f.repeat_while(crowded, lambda: _give_back_oldest(f))

        def keep() -> None:
            entry = _entry(f, _get(f, _COUNT))
            for number, word in enumerate((f.cast("ptrtoint", block, "i64"), size, now)):
                f.store(word, f.at(entry, "i64", i64(number)), 8)
            _add(f, _COUNT, i64(1))
            _add(f, _KEPT, size)

        def give_back() -> None:
            system.unmap_pages(f, block, size)

        f.branch(f.compare("icmp ule", size, i64(_MOST_KEPT)), keep, give_back)
        return block

    f.branch(f.compare("icmp ne", memory, _NULL), lambda: [locked(f, _word(_LOCK), work)][:0])
    f.finish()


def _write_calloc(module: Module) -> None:
    context, count, size = Value(_PTR, "%context"), Value("i64", "%count"), Value("i64", "%size")
    f = Function(module, "block_calloc", [context, count, size], _PTR)
    bytes_ = f.binary("mul", count, size)
    memory = f.call("block_malloc", _PTR, context, bytes_)

    def clear() -> None:
        f.run("llvm.memset.p0.i64", memory, Value("i8", "0"), bytes_, Value("i1", "false"))

    f.branch(f.compare("icmp ne", memory, _NULL), clear)
    f.finish(memory)


def _write_realloc(module: Module) -> None:
    context, old, size = Value(_PTR, "%context"), Value(_PTR, "%old"), Value("i64", "%size")
    f = Function(module, "block_realloc", [context, old, size], _PTR)
    new = f.call("block_malloc", _PTR, context, size)

    def move() -> None:
        held = f.binary("sub", f.load("i64", f.at(old, "i8", i64(-_HEADER)), 8), i64(_HEADER))
        bytes_ = f.select(f.compare("icmp ult", held, size), held, size)
        f.run("llvm.memmove.p0.p0.i64", new, old, bytes_, Value("i1", "false"))
        f.run("block_free", context, old, size)

    some = f.binary("and", f.compare("icmp ne", new, _NULL), f.compare("icmp ne", old, _NULL))
    f.branch(some, move)
    f.finish(new)


#: The functions, in the order of NumPy's PyDataMem_Handler.
FUNCTIONS = ("block_malloc", "block_calloc", "block_realloc", "block_free")


class _Handler(ctypes.Structure):
    """NumPy's PyDataMem_Handler."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        ("functions", ctypes.c_void_p * 4),
    )


#: PyDataMem_SetHandler in NumPy's table of functions for extensions.
_SET_HANDLER = 304
#: The major version of NumPy whose table that is.
_KNOWN_MAJOR = 2
_CAPSULE, _NAME = b"mem_handler", b"volta_fn"


Empty = Callable[[tuple[int, ...], np.dtype], np.ndarray]


def make_empty(addresses: list[int]) -> Empty:
    """Return `numpy.empty` with the allocator whose `FUNCTIONS` are at `addresses`.

    Where NumPy has no such hook, use its own allocator. NumPy's MemoryError becomes an `OutOfMemoryError`.
    """
    try:
        handler = _Handler(_NAME, 1, None, (ctypes.c_void_p * 4)(*addresses))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(handler))  # arrays that outlive everything else still use it to free their memory
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        capsule = new(ctypes.addressof(handler), _CAPSULE, None)
        # The one variable that setting an allocator sets in an empty context.
        context = Context()
        context.run(ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(numpy_function(_SET_HANDLER)), capsule)
        ((variable, _),) = context.items()
        enter, leave = variable.set, variable.reset

        def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
            token = enter(capsule)
            try:
                return np.empty(shape, dtype)
            except MemoryError as error:
                raise out_of_memory(error) from None
            finally:
                leave(token)

        if multiarray.get_handler_name(empty((LARGE,), np.dtype(np.uint8))) == _NAME.decode():
            return empty
    except (AttributeError, LookupError, TypeError, ValueError):
        pass
    return _numpy_empty


def _numpy_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    try:
        return np.empty(shape, dtype)
    except MemoryError as error:
        raise out_of_memory(error) from None


def numpy_function(number: int) -> int:
    """Return the address of a function in NumPy's table of functions for extensions.

    Raises `LookupError` for a NumPy whose table is not known.
    """
    if np.lib.NumpyVersion(np.__version__).major != _KNOWN_MAJOR:
        raise LookupError
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = pointer(multiarray._ARRAY_API, None)
    return ctypes.c_size_t.from_address(table + number * ctypes.sizeof(ctypes.c_size_t)).value
