"""Built-in functions, in machine code, that find what runs a call and run it.

`core/dispatch.py` says what calls are found by. ``find_types`` looks up calls of arrays alone by their specs; of two operands, one may be a
number that was combined with such an array before. ``find_signature`` looks up all calls: it makes the key that `core.dispatch.signature`
makes of arrays, lists, tuples and the constants that are frequent. Other calls, and those under a trace, are left to the second function
of the record (`Find`).

Programs call the same function with the same types many times. So a finder remembers the last call of one array or two, and until its dict
changes, which the dict's version tells, the next such call needs neither a key nor a lookup.

References to the arrays are held during a call, since a list or a cache may lose them meanwhile.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from types import NoneType
from typing import Any

import numpy as np

from volta_fn.core.array import ConcreteArray
from volta_fn.core.dispatch import NUMBERS
from volta_fn.core.trace import EVAL, current_trace
from volta_fn.runtime.internals.array_calls import MOST_OPERANDS, NULL, Layout, P, declare_python, is_a, pointer, record_of, word
from volta_fn.runtime.internals.call_keys import Find, all_of, is_null, write_keys
from volta_fn.runtime.llvm.text import Function, Module, Value, i64

#: A call's arguments, how many are given by position, and the names of the others, or null.
_Call = tuple[Value, Value, Value]


def find_record(layout: Layout, functions: dict[Any, Callable[..., Any]], otherwise: Callable[..., Any]) -> np.ndarray:
    """Return a finder's record; both arguments must live as long."""
    words = {
        Find.ARRAY: id(ConcreteArray),
        Find.SPEC: layout.spec,
        Find.VARIABLE: id(current_trace.__self__),  # type: ignore[attr-defined]  # a method of the variable
        Find.EVAL: id(EVAL),
        Find.FUNCTIONS: id(functions),
        Find.OTHERWISE: id(otherwise),
        Find.INT: id(int),
        Find.STR: id(str),
        Find.NONE: id(NoneType),
        Find.FLOAT: id(float),
        Find.BOOL: id(bool),
        Find.TYPE: id(type),
        Find.DTYPES: id(type(np.dtype)),
        Find.LIST: id(list),
        Find.TUPLE: id(tuple),
        Find.NUMBERS: id(NUMBERS),
        Find.VERSION: version_offset(),
    }
    record = np.zeros(Find.LAST_FUNCTION + 1, np.int64)
    record[list(words)] = list(words.values())
    return record


@functools.cache
def version_offset() -> int:
    """Return where a dict has its version, which each change of it changes.

    It is 0 if there is none.
    """
    offset, seen, some = object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t), list[int](), dict[int, int]()
    for change in (lambda: None, lambda: some.update({1: 1}), lambda: some.update({1: 2}), some.clear, lambda: None):
        change()
        seen.append(ctypes.c_uint64.from_address(id(some) + offset).value)
    return offset if len(set(seen)) == len(seen) - 1 and seen[-1] == seen[-2] else 0


def write_finders(module: Module) -> None:
    """Define ``@find_types(self, args, count)`` and ``@find_signature(…, names)``."""
    declare_python(module)
    _write_is_eager(module)
    write_keys(module)
    _write_last(module)
    _write_remember(module)
    _write_looked_up(module)
    _write_find_types(module)
    _write_find_signature(module)


def _write_find_types(module: Module) -> None:
    self_, args, count = Value(P, "%self"), Value(P, "%args"), Value("i64", "%count")
    f = Function(module, "find_types", [self_, args, count], P)
    record, number, arrays = record_of(f, self_), f.alloca(P), f.alloca(P, 2)

    def search() -> list[Value]:
        f.store(NULL, number, 8)
        known = f.call("look_up", P, record, f.call("specs_of", P, record, args, count, arrays, number), args, count)
        given = f.select(is_null(f, f.load(P, number, 8)), args, arrays)
        result = _run_or_leave(f, record, known, given, count, (args, count, NULL))
        f.run("Py_DecRef", f.load(P, number, 8))
        return [result]

    _finish(f, record, (args, count, NULL), search)


def _write_find_signature(module: Module) -> None:
    self_, args, count, names = Value(P, "%self"), Value(P, "%args"), Value("i64", "%count"), Value(P, "%names")
    f = Function(module, "find_signature", [self_, args, count, names], P)
    record, arrays, found = record_of(f, self_), f.alloca(P, MOST_OPERANDS), f.alloca("i64")

    def search() -> list[Value]:
        f.store(i64(0), found, 8)
        key = f.call("signature_of", P, record, args, count, names, arrays, found)
        known, number = f.call("look_up", P, record, key, args, _positional(f, count, names)), f.load("i64", found, 8)
        result = _run_or_leave(f, record, known, arrays, number, (args, count, names))
        f.loop(i64(0), number, 1, [], lambda i, _: f.run("Py_DecRef", f.load(P, f.at(arrays, P, i), 8)))
        return [result]

    _finish(f, record, (args, count, names), search)


def _finish(f: Function, record: Value, call: _Call, search: Callable[[], list[Value]]) -> None:
    """Emit the call of the remembered function, or of what `search` finds.

    The remembered function is that of the last call, if this one has the same types. While tracing, `OTHERWISE` is called.
    """
    args, count, names = call

    def find() -> list[Value]:
        last = f.call("last_function", P, record, args, _positional(f, count, names))
        return f.branch(is_null(f, last), search, lambda: [_run(f, last, args, count)])

    eager = f.compare("icmp ne", f.call("is_eager", "i64", record), i64(0))
    f.finish(f.branch(eager, find, lambda: [_leave(f, record, call)])[0])


def _positional(f: Function, count: Value, names: Value) -> Value:
    """Return the number of arguments, or 0 if some have names."""
    return f.select(is_null(f, names), count, i64(0))


def _run(f: Function, function: Value, arrays: Value, count: Value) -> Value:
    """Call a function of arrays, and drop the reference to it."""
    result = f.call("PyObject_Vectorcall", P, function, arrays, count, NULL)
    f.run("Py_DecRef", function)
    return result


def _run_or_leave(f: Function, record: Value, function: Value, arrays: Value, number: Value, call: _Call) -> Value:
    return f.branch(is_null(f, function), lambda: [_leave(f, record, call)], lambda: [_run(f, function, arrays, number)])[0]


def _leave(f: Function, record: Value, call: _Call) -> Value:
    return f.call("PyObject_Vectorcall", P, pointer(f, record, Find.OTHERWISE), *call)


def _write_is_eager(module: Module) -> None:
    """Define ``i64 @is_eager(record)``: 1 if the current trace evaluates."""
    record = Value(P, "%record")
    f = Function(module, "is_eager", [record], "i64")
    current = f.alloca(P)
    f.store(NULL, current, 8)
    f.call("PyContextVar_Get", "i32", pointer(f, record, Find.VARIABLE), NULL, current)
    trace = f.load(P, current, 8)
    f.run("Py_DecRef", trace)  # which takes null, too
    f.finish(f.cast("zext", f.compare("icmp eq", trace, pointer(f, record, Find.EVAL)), "i64"))


def _version(f: Function, record: Value) -> Value:
    """Read the version of the dict of functions.

    If dicts have none, it is another word of the dict, and no call is remembered.
    """
    return f.load("i64", f.at(pointer(f, record, Find.FUNCTIONS), "i8", word(f, record, Find.VERSION)), 8)


def _for_specs(f: Function, record: Value, args: Value, count: Value, each: Callable[[Value, Value], Value]) -> Value:
    """Emit `each` for all arguments' specs, and where the last call's are kept.

    Return whether all arguments are arrays and `each` gives 1 for all.
    """
    offset, array, kept = word(f, record, Find.SPEC), pointer(f, record, Find.ARRAY), f.at(record, "i64", i64(Find.LAST_SPECS))

    def one(i: Value) -> Value:
        operand = f.load(P, f.at(args, P, i), 8)

        def of_array() -> list[Value]:
            return [each(f.load(P, f.at(operand, "i8", offset), 8), f.at(kept, P, i))]

        return f.branch(is_a(f, operand, array), of_array, lambda: [i64(0)])[0]

    return f.compare("icmp ne", all_of(f, count, one), i64(0))


def _write_last(module: Module) -> None:
    """Define ``ptr @last_function(record, args, count)``: a new reference, or null."""
    record, args, count = Value(P, "%record"), Value(P, "%args"), Value("i64", "%count")
    f = Function(module, "last_function", [record, args, count], P)
    unchanged = f.compare("icmp eq", _version(f, record), word(f, record, Find.LAST_VERSION))
    alike = f.binary("and", unchanged, f.compare("icmp eq", count, word(f, record, Find.LAST_COUNT)))
    known = f.binary("and", alike, f.compare("icmp ne", count, i64(0)))

    def compare(spec: Value, kept: Value) -> Value:
        return f.cast("zext", f.compare("icmp eq", spec, f.load(P, kept, 8)), "i64")

    def found() -> list[Value]:
        function = pointer(f, record, Find.LAST_FUNCTION)
        f.run("Py_IncRef", function)
        return [function]

    def check() -> list[Value]:
        return f.branch(_for_specs(f, record, args, count, compare), found, lambda: [NULL])

    f.finish(f.branch(known, check, lambda: [NULL])[0])


def _write_remember(module: Module) -> None:
    """Define ``@remember(record, args, count, function)``.

    It keeps the function of a call of one array or two.
    """
    record, args, count, function = Value(P, "%record"), Value(P, "%args"), Value("i64", "%count"), Value(P, "%function")
    f = Function(module, "remember", [record, args, count, function])

    def keep(name: Find, value: Value) -> None:
        f.store(value, f.at(record, "i64", i64(name)), 8)

    def put(spec: Value, kept: Value) -> Value:
        f.store(spec, kept, 8)
        return i64(1)

    def complete() -> None:
        keep(Find.LAST_VERSION, _version(f, record))
        keep(Find.LAST_FUNCTION, function)
        keep(Find.LAST_COUNT, count)

    def few() -> None:
        keep(Find.LAST_COUNT, i64(0))
        f.branch(_for_specs(f, record, args, count, put), complete)

    has_version = f.compare("icmp ne", word(f, record, Find.VERSION), i64(0))
    f.branch(f.binary("and", has_version, f.compare("icmp ult", f.binary("sub", count, i64(1)), i64(2))), few)
    f.finish()


def _write_looked_up(module: Module) -> None:
    """Define ``ptr @look_up(record, key, args, count)``: a function or null.

    It drops the key, and remembers the call.
    """
    record, key, args, count = Value(P, "%record"), Value(P, "%key"), Value(P, "%args"), Value("i64", "%count")
    f = Function(module, "look_up", [record, key, args, count], P)

    def looked_up() -> list[Value]:
        function = f.call("PyDict_GetItem", P, pointer(f, record, Find.FUNCTIONS), key)
        f.run("Py_IncRef", function)
        f.branch(is_null(f, function), lambda: None, lambda: f.run("remember", record, args, count, function))
        f.run("Py_DecRef", key)
        return [function]

    f.finish(f.branch(is_null(f, key), lambda: [NULL], looked_up)[0])
