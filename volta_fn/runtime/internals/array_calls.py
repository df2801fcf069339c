"""Built-in functions of arrays, in machine code, that call programs.

`fastcall` makes a built-in of NumPy arrays, some of which the caller has made for the results. Around it a call in Python takes two or
three frames, to read the operands' buffers, make the results and wrap them, which takes longer than small programs. So a program has a
built-in that does all of this: it takes `ConcreteArray`s and returns one, or a tuple or list of some.

Its `self` is a tuple of a record (`CallWord`), a NumPy array, and whatever the record points to. It makes the results first, so that no
code of Python's runs between reading the operands' buffers and the program, which keeps Python's lock or holds references to them. Anything
unsupported is passed to a fallback, a function of the same arrays: operands that are not contiguous, and programs that fail.

It reads and writes the attributes of arrays where `find_layout` finds them.
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
from volta_fn.runtime.internals.result_allocator import numpy_function
from volta_fn.runtime.llvm.text import Function, Module, Value, i64


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


#: The most operands and results that a built-in takes.
MOST_OPERANDS, MOST_RESULTS = 15, 8

#: PyArray_Empty in NumPy's table of functions for extensions.
_EMPTY = 184
_WORD = ctypes.sizeof(ctypes.c_void_p)
_TYPE = _WORD  # offset of an object's type
_DATA = object.__basicsize__  # offset of the address of a NumPy array's elements, which `fastcall` checks
P = "ptr"
NULL = Value(P, "null")
_FALSE = Value("i1", "false")


class CallWord(IntEnum):
    """Words of a built-in's record."""

    #: The record of the program (`fastcall.ProgramWord`).
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


def word(f: Function, record: Value, name: IntEnum) -> Value:
    """Read a number of a record."""
    return f.load("i64", f.at(record, "i64", i64(name)), 8)


def pointer(f: Function, record: Value, name: IntEnum) -> Value:
    """Read an address of a record."""
    return f.load(P, f.at(record, "i64", i64(name)), 8)


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
