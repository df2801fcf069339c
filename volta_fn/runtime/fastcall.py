"""Programs as built-in functions of Python, in machine code.

A built-in reads NumPy arrays' addresses and executes the program's commands. The program is a *record* of words (`ProgramWord`). A call
needs a table of slots and an arena. The last call's table is kept with the record for the next call; a call that finds none, because
another thread has it, makes another. One arena is kept for all programs of the process.

`enter` takes the caller's arrays, inputs and then outputs, and returns 0 or another `Status`. `apply` takes arrays of this package, and
makes its results. Both release Python's lock if the record says that the program is long.

The built-in (METH_FASTCALL) reads address and flags where NumPy's array object has them: a call of two arrays takes 0.1 µs, and 20 µs by
way of ctypes. `_knows_arrays` checks the layout on real arrays; where it is another one, `make_entry` gives `CtypesEntry`,
which reads addresses by NumPy's public interface.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from volta_fn.core.arrays.array import ArraySpec, ConcreteArray
from volta_fn.runtime import system
from volta_fn.runtime.llvm.text import Function, Module, Value, i64
from volta_fn.runtime.result_allocator import HUGE, numpy_function


class Status(IntEnum):
    """How a call of a program ended."""

    OK = 0
    #: A host function raised an exception, which is kept for the end of the program.
    FAILED = 1
    #: The program did not run: some argument is not contiguous and aligned, or no array.
    NOT_CONTIGUOUS = -1
    #: The program did not run: there is no memory for its values.
    NO_MEMORY = -2
    #: A signal's handler raised: the exception is set, and the call raises it.
    INTERRUPTED = -3


class ProgramWord(IntEnum):
    """Words of a program's record."""

    CODE = 0
    END = 1
    #: Slots: how many in all, the caller's (which come first), the first in the arena, and how many are there.
    SLOTS = 2
    CALLER = 3
    ARENA_FIRST = 4
    ARENA_SLOTS = 5
    ARENA_BYTES = 6
    #: A table with the constants' pointers, and offsets instead of pointers to the arena.
    TEMPLATE = 7
    #: The table kept for the next call, or null.
    TABLE = 8
    LONG = 9


# Offsets in NumPy's array object, in bytes, after what every object begins with.
_HEAD = object.__basicsize__
# The flags come after data, the number of dimensions (padded to a word), dimensions, strides, base and descr.
_DATA, _FLAGS = _HEAD, _HEAD + 6 * 8
#: NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED
_CONTIGUOUS_ALIGNED = 0x001 | 0x100
_METH_FASTCALL = 0x80
#: Bytes before an arena, for its size.
_HEADER = 64
#: Slots of the arena begin at multiples of this many bytes of memory.
_ALIGNMENT = 64
_HUGE_PAGE = 1 << 21
#: PyArray_Empty in NumPy's table of functions for extensions.
_EMPTY = 184
_WORD = ctypes.sizeof(ctypes.c_void_p)
_TYPE = _WORD  # offset of an object's type
P = "ptr"
NULL = Value(P, "null")
_FALSE = Value("i1", "false")


def write_entry_points(module: Module) -> None:
    """Define the built-ins `enter`, of NumPy arrays, and `apply`, of the package's."""
    for declaration in (
        "declare ptr @PyLong_AsVoidPtr(ptr)",
        "declare ptr @PyLong_FromLongLong(i64)",
        "declare ptr @PyEval_SaveThread()",
        "declare void @PyEval_RestoreThread(ptr)",
    ):
        module.declare(declaration, declaration)
    module.declare("spare", "@spare = internal global ptr null")
    _write_table(module)
    _write_arena(module)
    _write_relocate(module)
    _write_fill(module)
    _write_run_program(module)
    _write_enter(module)
    write_apply(module)


def word(f: Function, record: Value, name: IntEnum) -> Value:
    """Read a number of a record."""
    return f.load("i64", f.at(record, "i64", i64(name)), 8)


def pointer(f: Function, record: Value, name: IntEnum) -> Value:
    """Read an address of a record."""
    return f.load(P, f.at(record, "i64", i64(name)), 8)


def _exchange(f: Function, pointer: Value, value: Value) -> Value:
    return f.let(P, f"atomicrmw xchg {pointer}, {value} seq_cst")


def _is_null(f: Function, pointer: Value) -> Value:
    return f.compare("icmp eq", pointer, NULL)


def _write_table(module: Module) -> None:
    """Define ``ptr @table(record)``: a table with its constants.

    The word before the first slot is the arena that its slots point into.
    """
    record = Value(P, "%record")
    f = Function(module, "table", [record], P)
    spare = _exchange(f, f.at(record, "i64", i64(ProgramWord.TABLE)), NULL)

    def make() -> list[Value]:
        bytes_ = f.binary("shl", word(f, record, ProgramWord.SLOTS), i64(3))
        block = system.allocate(f, f.binary("add", bytes_, i64(8)))

        def fill() -> list[Value]:
            f.store(NULL, block, 8)
            table = f.at(block, "i64", i64(1))
            template = f.cast("inttoptr", word(f, record, ProgramWord.TEMPLATE), P)
            f.memcpy(table, template, bytes_)
            return [table]

        return f.branch(_is_null(f, block), lambda: [NULL], fill)

    f.finish(f.branch(_is_null(f, spare), make, lambda: [spare])[0])


def _write_arena(module: Module) -> None:
    """Define ``ptr @arena(bytes)``: the kept arena if large enough, else a new one.

    Its header holds its size.
    """
    byte_count = Value("i64", "%bytes")
    f = Function(module, "arena", [byte_count], P)
    spare = _exchange(f, Value(P, "@spare"), NULL)

    def large(size: Value) -> Value:
        rounded = f.binary("and", f.binary("add", size, i64(_HUGE_PAGE - 1)), i64(-_HUGE_PAGE))
        return system.allocate_pages(f, rounded, _HUGE_PAGE)

    def make() -> list[Value]:
        system.release(f, spare)
        size = f.binary("add", byte_count, i64(_ALIGNMENT))  # room to align the first slot
        block = f.branch(f.compare("icmp uge", size, i64(HUGE)), lambda: [large(size)], lambda: [system.allocate(f, size)])[0]
        f.branch(_is_null(f, block), lambda: None, lambda: f.store(byte_count, block, 8))
        return [block]

    enough = f.branch(
        _is_null(f, spare), lambda: [Value("i1", "false")], lambda: [f.compare("icmp uge", f.load("i64", spare, 8), byte_count)]
    )[0]
    f.finish(f.branch(enough, lambda: [spare], make)[0])


def _write_relocate(module: Module) -> None:
    """Define ``@relocate(record, table, arena)``: point the arena's slots into it."""
    record, table, arena = Value(P, "%record"), Value(P, "%table"), Value(P, "%arena")
    f = Function(module, "relocate", [record, table, arena])
    owner = f.at(table, "i64", i64(-1))

    def point() -> None:
        base = f.at(arena, "i8", i64(_HEADER))
        address = f.cast("ptrtoint", base, "i64")
        misfit = f.binary("and", f.binary("sub", i64(0), address), i64(_ALIGNMENT - 1))
        base = f.at(base, "i8", misfit)
        first = word(f, record, ProgramWord.ARENA_FIRST)
        template = f.cast("inttoptr", word(f, record, ProgramWord.TEMPLATE), P)

        def slot(i: Value, _: list[Value]) -> None:
            number = f.binary("add", first, i)
            offset = f.load("i64", f.at(template, "i64", number), 8)
            f.store(f.at(base, "i8", offset), f.at(table, P, number), 8)

        f.loop(i64(0), word(f, record, ProgramWord.ARENA_SLOTS), 1, [], slot)
        f.store(arena, owner, 8)

    f.branch(f.compare("icmp ne", f.load(P, owner, 8), arena), point)
    f.finish()


def _write_fill(module: Module) -> None:
    """Define ``i64 @fill(table, args, count)``: put arrays in slots; 1 if contiguous."""
    table, args, count = Value(P, "%table"), Value(P, "%args"), Value("i64", "%count")
    f = Function(module, "fill", [table, args, count], "i64")

    def fill_slot(i: Value, carried: list[Value]) -> list[Value]:
        array = f.load(P, f.at(args, P, i), 8)
        f.store(f.load(P, f.at(array, "i8", i64(_DATA)), 8), f.at(table, P, i), 8)
        flags = f.load("i32", f.at(array, "i8", i64(_FLAGS)), 4)
        return [f.binary("and", carried[0], flags)]

    flags = f.loop(i64(0), count, 1, [Value("i32", str(_CONTIGUOUS_ALIGNED))], fill_slot)[0]
    f.finish(f.cast("zext", f.compare("icmp eq", flags, Value("i32", str(_CONTIGUOUS_ALIGNED))), "i64"))


def _write_enter(module: Module) -> None:
    """Define ``PyObject* @enter(self, args, count)``; `self` is the record's address."""
    self_, args, count = Value(P, "%self"), Value(P, "%args"), Value("i64", "%count")
    f = Function(module, "enter", [self_, args, count], P)
    status = f.call("run_program", "i64", f.call("PyLong_AsVoidPtr", P, self_), args, count)
    interrupted = f.compare("icmp eq", status, i64(Status.INTERRUPTED))
    f.finish(f.branch(interrupted, lambda: [NULL], lambda: [f.call("PyLong_FromLongLong", P, status)])[0])


def _write_run_program(module: Module) -> None:
    """Define ``i64 @run_program(record, args, count)``, which returns the status."""
    record, args, count = Value(P, "%record"), Value(P, "%args"), Value("i64", "%count")
    f = Function(module, "run_program", [record, args, count], "i64")
    table = f.call("table", P, record)
    bytes_ = word(f, record, ProgramWord.ARENA_BYTES)
    without = f.compare("icmp eq", bytes_, i64(0))
    arena = f.branch(without, lambda: [NULL], lambda: [f.call("arena", P, f.binary("add", bytes_, i64(_HEADER)))])[0]

    def run() -> list[Value]:
        f.branch(without, lambda: None, lambda: f.run("relocate", record, table, arena))
        code = f.cast("inttoptr", word(f, record, ProgramWord.CODE), P)
        end = f.cast("inttoptr", word(f, record, ProgramWord.END), P)
        long = f.compare("icmp ne", word(f, record, ProgramWord.LONG), i64(0))
        state = f.branch(long, unlock, lambda: [NULL])[0]
        status = f.call("execute", "i64", code, end, table)
        f.branch(long, lambda: lock(state))
        return [status]

    def for_all(function: str) -> None:
        f.loop(i64(0), count, 1, [], lambda i, _: f.run(function, f.load(P, f.at(args, P, i), 8)))

    def unlock() -> list[Value]:
        for_all("Py_IncRef")  # other threads may delete arrays meanwhile
        return [f.call("PyEval_SaveThread", P)]

    def lock(state: Value) -> None:
        f.run("PyEval_RestoreThread", state)
        for_all("Py_DecRef")

    def filled() -> list[Value]:
        contiguous = f.compare("icmp eq", f.call("fill", "i64", table, args, count), i64(1))
        return f.branch(contiguous, run, lambda: [i64(Status.NOT_CONTIGUOUS)])

    missing = f.binary("or", _is_null(f, table), f.binary("and", _is_null(f, arena), f.binary("xor", without, Value("i1", "true"))))
    status = f.branch(missing, lambda: [i64(Status.NO_MEMORY)], filled)[0]
    f.branch(without, lambda: None, lambda: system.release(f, _exchange(f, Value(P, "@spare"), arena)))
    other = _exchange(f, f.at(record, "i64", i64(ProgramWord.TABLE)), table)
    f.branch(_is_null(f, other), lambda: None, lambda: system.release(f, f.at(other, "i64", i64(-1))))
    f.finish(status)


#: Makes the buffer of a result, given `numpy.empty` or the like, with its shape and dtype.
Make = functools.partial[np.ndarray]


class Addresses(NamedTuple):
    """Where the functions are: built-ins, and what executes programs."""

    enter: int
    apply: int
    execute: int


class _MethodDef(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("method", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


class FastcallEntry:
    """Makes Python functions of programs: built-in ones, which call ``enter``.

    Their definitions are never freed: the garbage collector reads them from each function, also when it collects what a process leaves.
    """

    def __init__(self, addresses: Addresses) -> None:
        self._enter = _MethodDef(b"program", addresses.enter, _METH_FASTCALL, None)
        self._apply = _MethodDef(b"program of arrays", addresses.apply, _METH_FASTCALL, None)
        for definition in (self._enter, self._apply):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(definition))
        self._layout = find_layout()
        self._new = ctypes.pythonapi.PyCFunction_NewEx
        self._new.restype = ctypes.py_object
        self._new.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]

    def function(self, record: np.ndarray) -> Callable[..., int]:
        """Return the function that calls a program, whose record must live as long."""
        return self._new(ctypes.addressof(self._enter), record.ctypes.data, None)

    def of_arrays(
        self,
        program: Any,
        record: np.ndarray,
        makes: Sequence[Make],
        specs: Sequence[ArraySpec],
        within: type[tuple] | type[list] | None,
        fallback: Callable[..., Any],
    ) -> Callable[..., Any]:
        """Return the function of arrays that calls a program.

        It returns one array, or several `within` a tuple or a list; `call_record` explains the arguments. The function keeps them, and so
        the program, whose memory its record refers to.
        """
        if self._layout is None:
            return fallback
        words, sizes = call_record(record, self._layout, makes, specs, within, fallback)
        owners = (words, (sizes, program, record, makes, specs, fallback))  # of the memory that the words point to
        function: Callable[..., Any] = self._new(ctypes.addressof(self._apply), owners, None)
        return function


class CtypesEntry:
    """Makes the functions of `FastcallEntry` from calls of ``execute`` by ctypes."""

    def __init__(self, execute: int) -> None:
        self._execute = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(execute)

    def function(self, record: np.ndarray) -> Callable[..., int]:
        """Return the function that calls a program, whose record must live as long."""
        words = {name: int(record[name]) for name in ProgramWord}
        template = np.ctypeslib.as_array((ctypes.c_int64 * words[ProgramWord.SLOTS]).from_address(words[ProgramWord.TEMPLATE]))
        in_arena = slice(words[ProgramWord.ARENA_FIRST], words[ProgramWord.ARENA_FIRST] + words[ProgramWord.ARENA_SLOTS])

        def call(*arrays: np.ndarray) -> int:
            if not all(array.flags.c_contiguous and array.flags.aligned for array in arrays):
                return Status.NOT_CONTIGUOUS
            table = template.copy()
            try:
                arena = np.empty(words[ProgramWord.ARENA_BYTES] + _ALIGNMENT, np.uint8)
            except MemoryError:
                return Status.NO_MEMORY
            table[in_arena] += arena.ctypes.data + -arena.ctypes.data % _ALIGNMENT
            table[: len(arrays)] = [array.ctypes.data for array in arrays]
            try:
                return self._execute(words[ProgramWord.CODE], words[ProgramWord.END], table.ctypes.data)
            except SystemError as error:  # CPython's, of a function that returns while the exception of a signal's handler is set
                raise error.__cause__ or error from None

        return call

    def of_arrays(
        self,
        program: Any,
        record: np.ndarray,
        makes: Sequence[Make],
        specs: Sequence[ArraySpec],
        within: type[tuple] | type[list] | None,
        fallback: Callable[..., Any],
    ) -> Callable[..., Any]:
        """Return `fallback`: ctypes takes longer than Python's frames."""
        return fallback


def make_entry(addresses: Addresses) -> FastcallEntry | CtypesEntry:
    """Return a `FastcallEntry`, or a `CtypesEntry` if arrays have another layout."""
    return FastcallEntry(addresses) if _knows_arrays() else CtypesEntry(addresses.execute)


def _knows_arrays() -> bool:
    """Tell whether tuples and arrays are laid out as built-ins expect."""
    # These read an object's type, a tuple's first entry, and an array's address and flags. In a free-threaded Python, which has the type
    # elsewhere, no lock would keep other threads from a call's buffers either.
    pair = (object(), 1)
    if ctypes.c_size_t.from_address(id(pair) + _TYPE).value != id(tuple):
        return False
    if ctypes.c_size_t.from_address(id(pair) + tuple.__basicsize__).value != id(pair[0]):
        return False
    for array in (np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32).T):
        if type(array).__basicsize__ < _FLAGS + 4:
            return False
        data = ctypes.c_size_t.from_address(id(array) + _DATA).value
        flags = ctypes.c_int.from_address(id(array) + _FLAGS).value
        expected = _CONTIGUOUS_ALIGNED if array.flags.c_contiguous else _CONTIGUOUS_ALIGNED & ~1
        if data != array.ctypes.data or flags & _CONTIGUOUS_ALIGNED != expected:
            return False
    return True


def release(record: np.ndarray) -> None:
    """Free a record's table."""
    table = int(record[ProgramWord.TABLE])
    if table:
        record[ProgramWord.TABLE] = 0
        system.release_from_python(table - 8)


# Built-in functions of arrays, which call programs.
#
# The built-in above is of NumPy arrays, some of which the caller has made for the results. Around it a call in Python takes two or
# three frames, to read the operands' buffers, make the results and wrap them, which takes longer than small programs. So a program has a
# built-in that does all of this: it takes `ConcreteArray`s and returns one, or a tuple or list of some.
#
# Its `self` is a tuple of a record (`CallWord`), a NumPy array, and whatever the record points to. It makes the results first, so that no
# code of Python's runs between reading the operands' buffers and the program, which keeps Python's lock or holds references to them.
# Anything unsupported is passed to a fallback, a function of the same arrays: operands that are not contiguous, and programs that fail.
#
# It reads and writes the attributes of arrays where `find_layout` finds them.


#: The most operands and results that a built-in takes.
MOST_OPERANDS, MOST_RESULTS = 15, 8


class CallWord(IntEnum):
    """Words of a built-in's record."""

    #: The record of the program (`ProgramWord`).
    PROGRAM = 0
    #: The types of arrays and of their buffers, and where an array has its buffer and its spec.
    ARRAY = 1
    NDARRAY = 2
    BUFFER = 3
    SPEC = 4
    #: The function for all other calls.
    FALLBACK = 5
    #: How many results there are, whether they are returned in a tuple (1), in a list (2) or alone (0), and the words of each.
    COUNT = 6
    WITHIN = 7
    RESULTS = 8


class ResultWord(IntEnum):
    """Words of a result."""

    #: Its spec, and a function that makes its buffer.
    SPEC = 0
    MAKE = 1
    #: NumPy's function that makes an array, or 0 to call `MAKE`: and its arguments, the dimensions, their sizes and the dtype.
    EMPTY = 2
    DIMENSIONS = 3
    SIZES = 4
    DTYPE = 5


class Layout(NamedTuple):
    """Offsets of an array's attributes, in bytes."""

    buffer: int
    spec: int


def find_layout() -> Layout | None:
    """Return where arrays have their attributes; None if they cannot be found."""
    array, marks = ConcreteArray(), (np.zeros(1), ArraySpec())
    array._buffer, array._spec = marks
    words = list((ctypes.c_size_t * (type(array).__basicsize__ // _WORD)).from_address(id(array)))
    if any(words.count(id(mark)) != 1 for mark in marks):
        return None
    return Layout(*[words.index(id(mark)) * _WORD for mark in marks])


def declare_python(module: Module) -> None:
    """Declare the functions of Python's that built-ins call."""
    for declaration in (
        "declare ptr @PyTuple_New(i64)",
        "declare i32 @PyTuple_SetItem(ptr, i64, ptr)",
        "declare ptr @PyList_New(i64)",
        "declare i32 @PyList_SetItem(ptr, i64, ptr)",
        "declare ptr @PyObject_CallNoArgs(ptr)",
        "declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)",
        "declare ptr @PyType_GenericAlloc(ptr, i64)",
        "declare void @Py_IncRef(ptr)",
        "declare void @Py_DecRef(ptr)",
    ):
        module.declare(declaration, declaration)


@functools.cache
def empty_of_numpy() -> int:
    """Return the address of NumPy's PyArray_Empty; 0 if it is not where it should be."""
    try:
        address = numpy_function(_EMPTY)
    except (AttributeError, LookupError, TypeError, ValueError):
        return 0
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_int, ctypes.c_void_p, ctypes.py_object, ctypes.c_int)
    sizes, dtype = np.array([2, 3], np.intp), np.dtype(np.int16)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(dtype))
    array = kind(address)(2, sizes.ctypes.data, dtype, 0)
    return address if type(array) is np.ndarray and (array.shape, array.dtype) == ((2, 3), dtype) and array.flags.c_contiguous else 0


def record_of(f: Function, self_: Value) -> Value:
    """Return the address of a built-in's record, given its `self`."""
    array = f.load(P, f.at(self_, "i8", i64(tuple.__basicsize__)), 8)
    return f.load(P, f.at(array, "i8", i64(_DATA)), 8)


def is_a(f: Function, thing: Value, type_: Value) -> Value:
    """Compare the type of an object."""
    return f.compare("icmp eq", f.load(P, f.at(thing, "i8", i64(_TYPE)), 8), type_)


def write_apply(module: Module) -> None:
    """Define ``PyObject* @apply(self, args, count)``, which calls ``run_program``."""
    declare_python(module)
    _write_read(module)
    _write_make(module)
    _write_wrap(module)
    _write_wrap_all(module)
    self_, args, count = Value(P, "%self"), Value(P, "%args"), Value("i64", "%count")
    f = Function(module, "apply", [self_, args, count], P)
    record = record_of(f, self_)
    buffers = f.alloca(P, MOST_OPERANDS + MOST_RESULTS)
    addresses = f.alloca(P, MOST_OPERANDS)
    results, outputs = word(f, record, CallWord.COUNT), f.at(buffers, P, count)

    def run() -> list[Value]:
        return [f.call("run_program", "i64", pointer(f, record, CallWord.PROGRAM), buffers, f.binary("add", count, results))]

    def computed() -> list[Value]:
        are_arrays = f.compare("icmp ne", f.call("read_buffers", "i64", record, args, count, buffers), i64(0))
        status = f.branch(are_arrays, run, lambda: [i64(Status.NOT_CONTIGUOUS)])[0]
        return f.branch(f.compare("icmp eq", status, i64(0)), lambda: [f.call("wrap_buffers", P, record, outputs)], lambda: failed(status))

    def dropped() -> list[Value]:
        f.loop(i64(0), results, 1, [], lambda i, _: f.run("Py_DecRef", f.load(P, f.at(outputs, P, i), 8)))
        return [NULL]

    def failed(status: Value) -> list[Value]:
        dropped()
        return f.branch(f.compare("icmp eq", status, i64(Status.INTERRUPTED)), lambda: [NULL], fall_back)

    def fall_back() -> list[Value]:
        return [f.call("PyObject_Vectorcall", P, pointer(f, record, CallWord.FALLBACK), args, count, NULL)]

    def with_results() -> list[Value]:
        return f.branch(f.compare("icmp eq", f.call("make_buffers", "i64", record, outputs), i64(0)), dropped, computed)

    # There are as many operands as the program has, since it was found by their types. They are checked first, as results are made only for
    # a program that will run; and read again afterwards, as making results may run Python code that replaces buffers. `fill` is called for
    # its answer alone.
    are_arrays = f.compare("icmp ne", f.call("read_buffers", "i64", record, args, count, buffers), i64(0))
    fitting = f.branch(are_arrays, lambda: [f.call("fill", "i64", addresses, buffers, count)], lambda: [i64(0)])[0]
    f.finish(f.branch(f.compare("icmp ne", fitting, i64(0)), with_results, fall_back)[0])


def _write_read(module: Module) -> None:
    """Define ``i64 @read_buffers(record, args, count, buffers)``: 1 if all are arrays."""
    record, args, count, buffers = Value(P, "%record"), Value(P, "%args"), Value("i64", "%count"), Value(P, "%buffers")
    f = Function(module, "read_buffers", [record, args, count, buffers], "i64")
    array, ndarray, offset = pointer(f, record, CallWord.ARRAY), pointer(f, record, CallWord.NDARRAY), word(f, record, CallWord.BUFFER)

    def read_buffer(i: Value, carried: list[Value]) -> list[Value]:
        operand = f.load(P, f.at(args, P, i), 8)

        def check() -> list[Value]:
            buffer = f.load(P, f.at(operand, "i8", offset), 8)
            f.store(buffer, f.at(buffers, P, i), 8)
            is_array = f.branch(f.compare("icmp eq", buffer, NULL), lambda: [_FALSE], lambda: [is_a(f, buffer, ndarray)])[0]
            return [f.binary("and", carried[0], f.cast("zext", is_array, "i64"))]

        return f.branch(is_a(f, operand, array), check, lambda: [i64(0)])

    f.finish(f.loop(i64(0), count, 1, [i64(1)], read_buffer)[0])


def _result(f: Function, record: Value, number: Value) -> Value:
    """Return the address of the words of a result."""
    return f.at(f.at(record, "i64", i64(CallWord.RESULTS)), "i64", f.binary("mul", number, i64(len(ResultWord))))


def _write_make(module: Module) -> None:
    """Define ``i64 @make_buffers(record, made)``: new arrays; 0 if one is null."""
    record, outputs = Value(P, "%record"), Value(P, "%made")
    f = Function(module, "make_buffers", [record, outputs], "i64")

    def make_buffer(i: Value, carried: list[Value]) -> list[Value]:
        result = _result(f, record, i)
        empty = pointer(f, result, ResultWord.EMPTY)

        def by_numpy() -> list[Value]:
            dtype = pointer(f, result, ResultWord.DTYPE)
            f.run("Py_IncRef", dtype)  # the function keeps the reference
            count = f.cast("trunc", word(f, result, ResultWord.DIMENSIONS), "i32")
            return [f.let(P, f"call ptr {empty.name}({count}, {pointer(f, result, ResultWord.SIZES)}, {dtype}, i32 0)")]

        def by_python() -> list[Value]:
            return [f.call("PyObject_CallNoArgs", P, pointer(f, result, ResultWord.MAKE))]

        def make() -> list[Value]:
            return f.branch(f.compare("icmp eq", empty, NULL), by_python, by_numpy)

        array = f.branch(f.compare("icmp ne", carried[0], i64(0)), make, lambda: [NULL])[0]
        f.store(array, f.at(outputs, P, i), 8)
        return [f.cast("zext", f.compare("icmp ne", array, NULL), "i64")]

    f.finish(f.loop(i64(0), word(f, record, CallWord.COUNT), 1, [i64(1)], make_buffer)[0])


def _write_wrap(module: Module) -> None:
    """Define ``ptr @wrap_buffer(record, spec, buffer)``: a new array, or null.

    It takes the reference to the buffer.
    """
    record, spec, buffer = Value(P, "%record"), Value(P, "%spec"), Value(P, "%buffer")
    f = Function(module, "wrap_buffer", [record, spec, buffer], P)
    array = f.call("PyType_GenericAlloc", P, pointer(f, record, CallWord.ARRAY), i64(0))

    def fill() -> None:
        f.run("Py_IncRef", spec)
        f.store(buffer, f.at(array, "i8", word(f, record, CallWord.BUFFER)), 8)
        f.store(spec, f.at(array, "i8", word(f, record, CallWord.SPEC)), 8)

    f.branch(f.compare("icmp eq", array, NULL), lambda: f.run("Py_DecRef", buffer), fill)
    f.finish(array)


def _write_wrap_all(module: Module) -> None:
    """Define ``ptr @wrap_buffers(record, made)``: what the call returns, or null."""
    record, outputs = Value(P, "%record"), Value(P, "%made")
    f = Function(module, "wrap_buffers", [record, outputs], P)
    within, count = word(f, record, CallWord.WITHIN), word(f, record, CallWord.COUNT)
    in_tuple = f.compare("icmp eq", within, i64(1))

    def wrapped(i: Value) -> Value:
        return f.call("wrap_buffer", P, record, pointer(f, _result(f, record, i), ResultWord.SPEC), f.load(P, f.at(outputs, P, i), 8))

    def several() -> list[Value]:
        sequence = f.branch(in_tuple, lambda: [f.call("PyTuple_New", P, count)], lambda: [f.call("PyList_New", P, count)])[0]
        has_sequence = f.cast("zext", f.compare("icmp ne", sequence, NULL), "i64")

        def set_item(i: Value, carried: list[Value]) -> list[Value]:
            array = wrapped(i)  # of each, so that it takes all references

            def store_array() -> list[Value]:
                f.branch(
                    in_tuple,
                    lambda: [f.call("PyTuple_SetItem", "i32", sequence, i, array)],
                    lambda: [f.call("PyList_SetItem", "i32", sequence, i, array)],
                )
                return [carried[0]]

            def drop_array() -> list[Value]:
                f.run("Py_DecRef", array)
                return [i64(0)]

            has_all = f.binary("and", carried[0], f.cast("zext", f.compare("icmp ne", array, NULL), "i64"))
            return f.branch(f.compare("icmp ne", has_all, i64(0)), store_array, drop_array)

        complete = f.loop(i64(0), count, 1, [has_sequence], set_item)[0]

        def drop_all() -> list[Value]:
            f.run("Py_DecRef", sequence)
            return [NULL]

        return f.branch(f.compare("icmp ne", complete, i64(0)), lambda: [sequence], drop_all)

    f.finish(f.branch(f.compare("icmp eq", within, i64(0)), lambda: [wrapped(i64(0))], several)[0])


def call_record(
    program: np.ndarray,
    layout: Layout,
    makes: Sequence[functools.partial[np.ndarray]],
    specs: Sequence[ArraySpec],
    within: type[tuple] | type[list] | None,
    fallback: Callable[..., Any],
) -> tuple[np.ndarray, Any]:
    """Return a built-in's record, and the memory that it points to.

    That and all arguments must live as long. Of each result there is `numpy.empty`, or another function that does the same, with its shape
    and dtype, and its spec.
    """
    sizes = [np.array(make.args[0], np.intp) for make in makes]
    words = {
        CallWord.PROGRAM: program.ctypes.data,
        CallWord.ARRAY: id(ConcreteArray),
        CallWord.NDARRAY: id(np.ndarray),
        CallWord.BUFFER: layout.buffer,
        CallWord.SPEC: layout.spec,
        CallWord.FALLBACK: id(fallback),
        CallWord.COUNT: len(makes),
        CallWord.WITHIN: (None, tuple, list).index(within),
    }
    results = [_result_words(*result) for result in zip(makes, specs, sizes, strict=True)]
    return np.array([*[words[name] for name in CallWord if name is not CallWord.RESULTS], *itertools.chain(*results)], np.int64), sizes


def _result_words(make: functools.partial[np.ndarray], spec: ArraySpec, sizes: np.ndarray) -> list[int]:
    words = {
        ResultWord.SPEC: id(spec),
        ResultWord.MAKE: id(make),
        ResultWord.EMPTY: empty_of_numpy() if make.func is np.empty else 0,
        ResultWord.DIMENSIONS: sizes.size,
        ResultWord.SIZES: sizes.ctypes.data,
        ResultWord.DTYPE: id(make.args[1]),
    }
    return [words[name] for name in ResultWord]
