"""Built-in functions of arrays, in machine code: programs, and what finds them.

`fastcall` makes a built-in of NumPy arrays, one of which the caller has made for the result. Around it a call in Python takes two or three
frames, to read the operands' buffers, make the result and wrap it, which takes longer than small programs. So a program with one result
has a built-in that does all of this: it takes `ConcreteArray`s and returns one.

Its `self` is a tuple of a record's address (`Call`) and whatever the record points to. It makes the result first, so that no code of
Python's runs between reading the operands' buffers and the end of the program, which keeps Python's lock. What it does not know it leaves
to another function of the same arrays: operands whose elements do not lie one after another, and programs that fail.

Another built-in (`find`) runs what a dict has for the specs of its arguments, as `core/dispatch.py` wants it.

Both read and write the attributes of arrays where `find_layout` finds them.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from volta_fn.core.array import ArraySpec, ConcreteArray
from volta_fn.core.trace import EVAL, current_trace
from volta_fn.runtime.internals.result_allocator import numpy_function
from volta_fn.runtime.llvm.text import Function, Module, Value, i64

#: The status of a program in which a signal's handler raised: the exception is set, and the call raises it.
INTERRUPTED = -3

#: The most operands that a built-in takes.
MOST_OPERANDS = 15

#: PyArray_Empty in NumPy's table of functions for extensions.
_EMPTY = 184
_WORD = ctypes.sizeof(ctypes.c_void_p)
_TYPE = _WORD  # offset of an object's type
_P = "ptr"
_NULL = Value(_P, "null")
_FALSE = Value("i1", "false")


class Call(IntEnum):
    """Words of a built-in's record."""

    #: The record of the program (`fastcall.Record`).
    PROGRAM = 0
    #: The types of arrays and of their buffers, and where an array has its buffer and its spec.
    ARRAY = 1
    NDARRAY = 2
    BUFFER = 3
    SPEC = 4
    #: A function that makes the result's buffer, the result's spec, and the function for all other calls.
    MAKE = 5
    RESULT = 6
    OTHERWISE = 7
    #: NumPy's function that makes an array, or 0 to call `MAKE`: and its arguments, the dimensions, their sizes and the dtype.
    EMPTY = 8
    DIMENSIONS = 9
    SIZES = 10
    DTYPE = 11


class Find(IntEnum):
    """Words of a finder's record."""

    #: The type of arrays, and where an array has its spec.
    ARRAY = 0
    SPEC = 1
    #: The context variable of the current trace, and its value in eager code.
    VARIABLE = 2
    EVAL = 3
    #: The functions by tuples of specs, and the function for all other calls.
    FUNCTIONS = 4
    OTHERWISE = 5


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


def _declare(module: Module) -> None:
    for declaration in (
        "declare ptr @PyTuple_GetItem(ptr, i64)",
        "declare ptr @PyTuple_New(i64)",
        "declare i32 @PyTuple_SetItem(ptr, i64, ptr)",
        "declare ptr @PyDict_GetItem(ptr, ptr)",
        "declare i32 @PyContextVar_Get(ptr, ptr, ptr)",
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
    made = kind(address)(2, sizes.ctypes.data, dtype, 0)
    return address if type(made) is np.ndarray and (made.shape, made.dtype) == ((2, 3), dtype) and made.flags.c_contiguous else 0


def write_apply(module: Module) -> None:
    """Define ``PyObject* @apply(self, args, count)``, which calls ``run_program``."""
    _declare(module)
    _write_read(module)
    _write_wrap(module)
    _write_make(module)
    self_, args, count = Value(_P, "%self"), Value(_P, "%args"), Value("i64", "%count")
    f = Function(module, "apply", [self_, args, count], _P)
    record = f.call("PyLong_AsVoidPtr", _P, f.call("PyTuple_GetItem", _P, self_, i64(0)))
    buffers = f.alloca(_P, MOST_OPERANDS + 1)
    made = f.call("make_buffer", _P, record)

    def run() -> list[Value]:
        f.store(made, f.at(buffers, _P, count), 8)
        number = f.binary("add", count, i64(1))
        return [f.call("run_program", "i64", _pointer(f, record, Call.PROGRAM), buffers, number)]

    def computed() -> list[Value]:
        known = f.compare("icmp ne", f.call("read_buffers", "i64", record, args, count, buffers), i64(0))
        status = f.branch(known, run, lambda: [i64(-1)])[0]
        return f.branch(f.compare("icmp eq", status, i64(0)), lambda: [f.call("wrap_buffer", _P, record, made)], lambda: failed(status))

    def failed(status: Value) -> list[Value]:
        f.run("Py_DecRef", made)
        return f.branch(f.compare("icmp eq", status, i64(INTERRUPTED)), lambda: [_NULL], otherwise)

    def otherwise() -> list[Value]:
        return [f.call("PyObject_Vectorcall", _P, _pointer(f, record, Call.OTHERWISE), args, count, _NULL)]

    f.finish(f.branch(f.compare("icmp eq", made, _NULL), lambda: [_NULL], computed)[0])


def write_find(module: Module) -> None:
    """Define ``PyObject* @find_function(self, args, count)``, which `Find` describes."""
    _declare(module)
    _write_is_eager(module)
    _write_specs(module)
    _write_found(module)
    self_, args, count = Value(_P, "%self"), Value(_P, "%args"), Value("i64", "%count")
    f = Function(module, "find_function", [self_, args, count], _P)
    record = f.call("PyLong_AsVoidPtr", _P, f.call("PyTuple_GetItem", _P, self_, i64(0)))
    eager = f.compare("icmp ne", f.call("is_eager", "i64", record), i64(0))
    known = f.branch(eager, lambda: [f.call("look_up", _P, record, args, count)], lambda: [_NULL])[0]

    def run() -> list[Value]:
        result = f.call("PyObject_Vectorcall", _P, known, args, count, _NULL)
        f.run("Py_DecRef", known)
        return [result]

    def otherwise() -> list[Value]:
        return [f.call("PyObject_Vectorcall", _P, _pointer(f, record, Find.OTHERWISE), args, count, _NULL)]

    f.finish(f.branch(f.compare("icmp eq", known, _NULL), otherwise, run)[0])


def _write_is_eager(module: Module) -> None:
    """Define ``i64 @is_eager(record)``: 1 if the current trace evaluates."""
    record = Value(_P, "%record")
    f = Function(module, "is_eager", [record], "i64")
    current = f.alloca(_P)
    f.store(_NULL, current, 8)
    f.call("PyContextVar_Get", "i32", _pointer(f, record, Find.VARIABLE), _NULL, current)
    trace = f.load(_P, current, 8)
    f.branch(f.compare("icmp eq", trace, _NULL), lambda: None, lambda: f.run("Py_DecRef", trace))
    f.finish(f.cast("zext", f.compare("icmp eq", trace, _pointer(f, record, Find.EVAL)), "i64"))


def _write_specs(module: Module) -> None:
    """Define ``i64 @fill_specs(record, args, count, key)``: 1 if all are arrays."""
    record, args, count, key = Value(_P, "%record"), Value(_P, "%args"), Value("i64", "%count"), Value(_P, "%key")
    f = Function(module, "fill_specs", [record, args, count, key], "i64")
    array, offset = _pointer(f, record, Find.ARRAY), _word(f, record, Find.SPEC)

    def one(i: Value, carried: list[Value]) -> list[Value]:
        operand = f.load(_P, f.at(args, _P, i), 8)

        def put() -> list[Value]:
            spec = f.load(_P, f.at(operand, "i8", offset), 8)
            f.run("Py_IncRef", spec)
            f.call("PyTuple_SetItem", "i32", key, i, spec)
            return [carried[0]]

        return f.branch(_is_a(f, operand, array), put, lambda: [i64(0)])

    f.finish(f.loop(i64(0), count, 1, [i64(1)], one)[0])


def _write_found(module: Module) -> None:
    """Define ``ptr @look_up(record, args, count)``: a new reference, or null."""
    record, args, count = Value(_P, "%record"), Value(_P, "%args"), Value("i64", "%count")
    f = Function(module, "look_up", [record, args, count], _P)
    key = f.call("PyTuple_New", _P, count)

    def looked_up() -> list[Value]:
        function = f.call("PyDict_GetItem", _P, _pointer(f, record, Find.FUNCTIONS), key)
        f.branch(f.compare("icmp eq", function, _NULL), lambda: None, lambda: f.run("Py_IncRef", function))
        return [function]

    def search() -> list[Value]:
        complete = f.compare("icmp ne", f.call("fill_specs", "i64", record, args, count, key), i64(0))
        function = f.branch(complete, looked_up, lambda: [_NULL])
        f.run("Py_DecRef", key)
        return function

    f.finish(f.branch(f.compare("icmp eq", key, _NULL), lambda: [_NULL], search)[0])


def _word(f: Function, record: Value, name: IntEnum) -> Value:
    return f.load("i64", f.at(record, "i64", i64(name)), 8)


def _pointer(f: Function, record: Value, name: IntEnum) -> Value:
    return f.load(_P, f.at(record, "i64", i64(name)), 8)


def _is_a(f: Function, thing: Value, type_: Value) -> Value:
    return f.compare("icmp eq", f.load(_P, f.at(thing, "i8", i64(_TYPE)), 8), type_)


def _write_read(module: Module) -> None:
    """Define ``i64 @read_buffers(record, args, count, buffers)``: 1 if all are arrays."""
    record, args, count, buffers = Value(_P, "%record"), Value(_P, "%args"), Value("i64", "%count"), Value(_P, "%buffers")
    f = Function(module, "read_buffers", [record, args, count, buffers], "i64")
    array, ndarray, offset = _pointer(f, record, Call.ARRAY), _pointer(f, record, Call.NDARRAY), _word(f, record, Call.BUFFER)

    def one(i: Value, carried: list[Value]) -> list[Value]:
        operand = f.load(_P, f.at(args, _P, i), 8)

        def check() -> list[Value]:
            buffer = f.load(_P, f.at(operand, "i8", offset), 8)
            f.store(buffer, f.at(buffers, _P, i), 8)
            known = f.branch(f.compare("icmp eq", buffer, _NULL), lambda: [_FALSE], lambda: [_is_a(f, buffer, ndarray)])[0]
            return [f.binary("and", carried[0], f.cast("zext", known, "i64"))]

        return f.branch(_is_a(f, operand, array), check, lambda: [i64(0)])

    f.finish(f.loop(i64(0), count, 1, [i64(1)], one)[0])


def _write_make(module: Module) -> None:
    """Define ``ptr @make_buffer(record)``: a new array of NumPy's, or null."""
    record = Value(_P, "%record")
    f = Function(module, "make_buffer", [record], _P)
    empty = _pointer(f, record, Call.EMPTY)

    def by_numpy() -> list[Value]:
        dtype = _pointer(f, record, Call.DTYPE)
        f.run("Py_IncRef", dtype)  # the function keeps the reference
        count = f.cast("trunc", _word(f, record, Call.DIMENSIONS), "i32")
        return [f.let(_P, f"call ptr {empty.name}({count}, {_pointer(f, record, Call.SIZES)}, {dtype}, i32 0)")]

    def by_python() -> list[Value]:
        return [f.call("PyObject_CallNoArgs", _P, _pointer(f, record, Call.MAKE))]

    f.finish(f.branch(f.compare("icmp eq", empty, _NULL), by_python, by_numpy)[0])


def _write_wrap(module: Module) -> None:
    """Define ``ptr @wrap_buffer(record, buffer)``: a new array, or null."""
    record, buffer = Value(_P, "%record"), Value(_P, "%buffer")
    f = Function(module, "wrap_buffer", [record, buffer], _P)
    array = f.call("PyType_GenericAlloc", _P, _pointer(f, record, Call.ARRAY), i64(0))

    def fill() -> None:
        spec = _pointer(f, record, Call.RESULT)
        f.run("Py_IncRef", spec)
        f.store(buffer, f.at(array, "i8", _word(f, record, Call.BUFFER)), 8)
        f.store(spec, f.at(array, "i8", _word(f, record, Call.SPEC)), 8)

    f.branch(f.compare("icmp eq", array, _NULL), lambda: f.run("Py_DecRef", buffer), fill)
    f.finish(array)


def call_record(
    program: np.ndarray, layout: Layout, make: functools.partial[np.ndarray], spec: ArraySpec, otherwise: Callable[..., Any]
) -> tuple[np.ndarray, Any]:
    """Return a built-in's record, and the memory that it points to.

    That and all arguments must live as long. `make` is `numpy.empty`, or another function that does the same, with its shape and dtype.
    """
    shape, dtype = make.args
    sizes = np.array(shape, np.intp)
    words = {
        Call.PROGRAM: program.ctypes.data,
        Call.ARRAY: id(ConcreteArray),
        Call.NDARRAY: id(np.ndarray),
        Call.BUFFER: layout.buffer,
        Call.SPEC: layout.spec,
        Call.MAKE: id(make),
        Call.RESULT: id(spec),
        Call.OTHERWISE: id(otherwise),
        Call.EMPTY: empty_of_numpy() if make.func is np.empty else 0,
        Call.DIMENSIONS: len(shape),
        Call.SIZES: sizes.ctypes.data,
        Call.DTYPE: id(dtype),
    }
    return np.array([words[name] for name in Call], np.int64), sizes


def find_record(layout: Layout, functions: dict[Any, Callable[..., Any]], otherwise: Callable[..., Any]) -> np.ndarray:
    """Return a finder's record; both arguments must live as long."""
    words = {
        Find.ARRAY: id(ConcreteArray),
        Find.SPEC: layout.spec,
        Find.VARIABLE: id(current_trace.__self__),  # type: ignore[attr-defined]  # a method of the variable
        Find.EVAL: id(EVAL),
        Find.FUNCTIONS: id(functions),
        Find.OTHERWISE: id(otherwise),
    }
    return np.array([words[name] for name in Find], np.int64)
