"""Built-in functions that look up what to run by the types of their arguments."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from enum import IntEnum
from types import NoneType
from typing import Any

import numpy as np

from volta_fn.core.array import ConcreteArray
from volta_fn.core.dispatch import NUMBERS
from volta_fn.core.trace import EVAL, current_trace
from volta_fn.runtime.internals.array_calls import MOST_OPERANDS, NULL, Layout, P, declare_python, is_a, pointer, record_of, word
from volta_fn.runtime.llvm.text import Function, Module, Value, i64

# ------------------------------------------------------------------------------
# The keys of calls, built in machine code.
#
# `core/dispatch.py` defines them: tuples of the arrays' specs, or of what describes all arguments. Functions return a new reference, or
# null for arguments of other types.
# ------------------------------------------------------------------------------

#: The longest list, and the deepest nest of lists, that a key is made of.
_LONGEST, _DEEPEST = 64, 3
_VALUE = 1  # the metatype of NumPy's dtypes, and of types, are types of types


class Find(IntEnum):
    """Words of a finder's record."""

    #: The type of arrays, and where an array has its spec.
    ARRAY = 0
    SPEC = 1
    #: The context variable of the current trace, and its value in eager code.
    VARIABLE = 2
    EVAL = 3
    #: The functions by keys, and the function for all other calls.
    FUNCTIONS = 4
    OTHERWISE = 5
    #: Types of Python's: of constants that are part of the key as they are, of those that their type goes with, and of sequences.
    INT = 6
    STR = 7
    NONE = 8
    FLOAT = 9
    BOOL = 10
    TYPE = 11
    DTYPES = 12
    LIST = 13
    TUPLE = 14
    #: Numbers as arrays.
    NUMBERS = 15
    #: Where a dict has its version, or 0; and the last call: the version, how many arrays, their specs, and the function.
    VERSION = 16
    LAST_VERSION = 17
    LAST_COUNT = 18
    LAST_SPECS = 19
    LAST_FUNCTION = 21


def write_keys(module: Module) -> None:
    """Define ``@specs_of(…)`` and ``@signature_of(…)``, with what they call."""
    _write_specs(module)
    _write_number(module)
    _write_pair(module)
    _write_sequence(module)
    _write_described(module)
    _write_signature(module)


def is_null(f: Function, thing: Value) -> Value:
    """Compare an address with null."""
    return f.compare("icmp eq", thing, NULL)


def all_of(f: Function, count: Value, one: Callable[[Value], Value]) -> Value:
    """Return 1 if `one` gives 1 for all numbers below `count`."""

    def each(i: Value, carried: list[Value]) -> list[Value]:
        return f.branch(f.compare("icmp ne", carried[0], i64(0)), lambda: [one(i)], lambda: [i64(0)])

    return f.loop(i64(0), count, 1, [i64(1)], each)[0]


def _filled(f: Function, key: Value, position: Value, entry: Value) -> Value:
    """Put an entry, if there is one, in a tuple; return whether there is."""

    def put() -> list[Value]:
        f.call("PyTuple_SetItem", "i32", key, position, entry)
        return [i64(1)]

    return f.branch(is_null(f, entry), lambda: [i64(0)], put)[0]


def _complete(f: Function, key: Value, fill: Callable[[], Value]) -> Value:
    """Fill a new tuple; drop it and return null if `fill` gives 0."""

    def filled() -> list[Value]:
        def drop() -> list[Value]:
            f.run("Py_DecRef", key)
            return [NULL]

        return f.branch(f.compare("icmp ne", fill(), i64(0)), lambda: [key], drop)

    return f.branch(is_null(f, key), lambda: [NULL], filled)[0]


def _spec(f: Function, record: Value, array: Value) -> Value:
    """Return an array's spec, as a new reference."""
    spec = f.load(P, f.at(array, "i8", word(f, record, Find.SPEC)), 8)
    f.run("Py_IncRef", spec)
    return spec


def _write_specs(module: Module) -> None:
    """Define ``ptr @specs_of(record, args, count, arrays, number)``.

    It is a new tuple, or null. If one of two arguments is a number, `number` becomes its array, with a new reference, and `arrays` both
    arrays.
    """
    record, args, count = Value(P, "%record"), Value(P, "%args"), Value("i64", "%count")
    arrays, number = Value(P, "%arrays"), Value(P, "%number")
    f = Function(module, "specs_of", [record, args, count, arrays, number], P)
    array, key = pointer(f, record, Find.ARRAY), f.call("PyTuple_New", P, count)
    is_pair = f.compare("icmp eq", count, i64(2))

    def one(i: Value) -> Value:
        operand = f.load(P, f.at(args, P, i), 8)

        def put() -> list[Value]:
            return [_filled(f, key, i, _spec(f, record, operand))]

        def of_number() -> list[Value]:
            other = f.load(P, f.at(args, P, f.binary("sub", i64(1), i)), 8)
            return f.branch(is_a(f, other, array), lambda: with_number(other), lambda: [i64(0)])

        def with_number(other: Value) -> list[Value]:
            found = f.call("number_for", P, record, other, operand)

            def known() -> list[Value]:
                f.run("Py_IncRef", found)
                f.store(found, number, 8)
                f.store(found, f.at(arrays, P, i), 8)
                f.store(other, f.at(arrays, P, f.binary("sub", i64(1), i)), 8)
                return [_filled(f, key, i, _spec(f, record, found))]

            return f.branch(is_null(f, found), lambda: [i64(0)], known)

        return f.branch(is_a(f, operand, array), put, lambda: f.branch(is_pair, of_number, lambda: [i64(0)]))[0]

    f.finish(_complete(f, key, lambda: all_of(f, count, one)))


def _write_number(module: Module) -> None:
    """Define ``ptr @number_for(record, array, value)``: a borrowed array, or null."""
    record, array, value = Value(P, "%record"), Value(P, "%array"), Value(P, "%value")
    f = Function(module, "number_for", [record, array, value], P)
    kind = f.load(P, f.at(value, P, i64(_VALUE)), 8)
    is_int, is_float = (f.compare("icmp eq", kind, pointer(f, record, name)) for name in (Find.INT, Find.FLOAT))

    def look_up() -> list[Value]:
        key = f.call("PyTuple_New", P, i64(2))

        def fill() -> Value:
            f.call("PyTuple_SetItem", "i32", key, i64(0), _spec(f, record, array))
            return _filled(f, key, i64(1), f.call("described", P, record, value, NULL, NULL, i64(0)))

        full = _complete(f, key, fill)

        def find() -> list[Value]:
            found = f.call("PyDict_GetItem", P, pointer(f, record, Find.NUMBERS), full)
            f.run("Py_DecRef", full)
            return [found]

        return f.branch(is_null(f, full), lambda: [NULL], find)

    f.finish(f.branch(f.binary("or", is_int, is_float), look_up, lambda: [NULL])[0])


def _write_signature(module: Module) -> None:
    """Define ``ptr @signature_of(record, args, count, names, arrays, found)``.

    It is a new tuple, or null; the call's arrays, with new references, are in `arrays`, as many as `found` tells.
    """
    record, args, count = Value(P, "%record"), Value(P, "%args"), Value("i64", "%count")
    names, arrays, found = Value(P, "%names"), Value(P, "%arrays"), Value(P, "%found")
    f = Function(module, "signature_of", [record, args, count, names, arrays, found], P)
    named = f.branch(is_null(f, names), lambda: [i64(0)], lambda: [f.call("PyTuple_Size", "i64", names)])[0]
    more = f.branch(f.compare("icmp eq", named, i64(0)), lambda: [i64(0)], lambda: [f.binary("add", named, i64(1))])[0]
    key = f.call("PyTuple_New", P, f.binary("add", count, more))

    def described(i: Value, position: Value) -> Value:
        argument = f.load(P, f.at(args, P, i), 8)
        return _filled(f, key, position, f.call("described", P, record, argument, arrays, found, i64(0)))

    def keywords() -> list[Value]:
        f.run("Py_IncRef", names)
        f.call("PyTuple_SetItem", "i32", key, count, names)

        def one(i: Value) -> Value:
            number = f.binary("add", count, i)
            return described(number, f.binary("add", number, i64(1)))

        return [all_of(f, named, one)]

    def fill() -> Value:
        complete = f.compare("icmp ne", all_of(f, count, lambda i: described(i, i)), i64(0))
        with_names = f.binary("and", complete, f.compare("icmp ne", named, i64(0)))
        return f.branch(with_names, keywords, lambda: [f.cast("zext", complete, "i64")])[0]

    f.finish(_complete(f, key, fill))


def _write_pair(module: Module) -> None:
    """Define ``ptr @pair(type, thing)``: a tuple that takes the second reference."""
    type_, thing = Value(P, "%type"), Value(P, "%thing")
    f = Function(module, "pair", [type_, thing], P)
    key = f.call("PyTuple_New", P, i64(2))

    def fill() -> Value:
        f.run("Py_IncRef", type_)
        f.call("PyTuple_SetItem", "i32", key, i64(0), type_)
        return _filled(f, key, i64(1), thing)

    f.finish(_complete(f, key, fill))


def _write_sequence(module: Module) -> None:
    """Define ``ptr @sequence(record, object, arrays, found, depth, listed)``.

    It is a tuple of the type and what describes the entries, or null; `listed` is 1 for lists and 0 for tuples.
    """
    record, thing, arrays, found = Value(P, "%record"), Value(P, "%object"), Value(P, "%arrays"), Value(P, "%found")
    depth, listed = Value("i64", "%depth"), Value("i64", "%listed")
    f = Function(module, "sequence", [record, thing, arrays, found, depth, listed], P)
    is_list = f.compare("icmp ne", listed, i64(0))
    size = f.branch(is_list, lambda: [f.call("PyList_Size", "i64", thing)], lambda: [f.call("PyTuple_Size", "i64", thing)])[0]
    small = f.binary("and", f.compare("icmp sle", size, i64(_LONGEST)), f.compare("icmp slt", depth, i64(_DEEPEST)))

    def describe() -> list[Value]:
        key = f.call("PyTuple_New", P, f.binary("add", size, i64(1)))

        def one(i: Value) -> Value:
            in_list, in_tuple = (lambda: [f.call("PyList_GetItem", P, thing, i)]), (lambda: [f.call("PyTuple_GetItem", P, thing, i)])
            entry = f.branch(is_list, in_list, in_tuple)[0]

            def lost() -> list[Value]:  # a list that became shorter
                f.run("PyErr_Clear")
                return [NULL]

            inner = f.binary("add", depth, i64(1))
            there = f.branch(is_null(f, entry), lost, lambda: [f.call("described", P, record, entry, arrays, found, inner)])[0]
            return _filled(f, key, f.binary("add", i, i64(1)), there)

        def fill() -> Value:
            kind = f.load(P, f.at(thing, P, i64(_VALUE)), 8)
            f.run("Py_IncRef", kind)
            f.call("PyTuple_SetItem", "i32", key, i64(0), kind)
            return all_of(f, size, one)

        return [_complete(f, key, fill)]

    f.finish(f.branch(small, describe, lambda: [NULL])[0])


def _write_described(module: Module) -> None:
    """Define ``ptr @described(record, object, arrays, found, depth)``.

    It is a new reference, and null for what the key cannot be made of here.
    """
    record, thing, arrays, found = Value(P, "%record"), Value(P, "%object"), Value(P, "%arrays"), Value(P, "%found")
    depth = Value("i64", "%depth")
    f = Function(module, "described", [record, thing, arrays, found, depth], P)
    kind = f.load(P, f.at(thing, P, i64(_VALUE)), 8)
    kind_of_kind = f.load(P, f.at(kind, P, i64(_VALUE)), 8)

    def array() -> list[Value]:
        number = f.load("i64", found, 8)

        def put() -> list[Value]:
            f.run("Py_IncRef", thing)
            f.store(thing, f.at(arrays, P, number), 8)
            f.store(f.binary("add", number, i64(1)), found, 8)
            return [_spec(f, record, thing)]

        return f.branch(f.compare("icmp slt", number, i64(MOST_OPERANDS)), put, lambda: [NULL])

    def itself() -> list[Value]:
        f.run("Py_IncRef", thing)
        return [thing]

    def with_type() -> list[Value]:
        f.run("Py_IncRef", thing)
        return [f.call("pair", P, kind, thing)]

    def bits() -> list[Value]:
        number = f.cast("bitcast", f.call("PyFloat_AsDouble", "double", thing), "i64")
        return [f.call("pair", P, kind, f.call("PyLong_FromLongLong", P, number))]

    def sequence(listed: int) -> Callable[[], list[Value]]:
        return lambda: [f.call("sequence", P, record, thing, arrays, found, depth, i64(listed))]

    cases: list[tuple[Value, Find, Callable[[], list[Value]]]] = [
        (kind, Find.ARRAY, array),
        *[(kind, name, itself) for name in (Find.INT, Find.STR, Find.NONE)],
        (kind, Find.FLOAT, bits),
        (kind, Find.LIST, sequence(1)),
        (kind, Find.TUPLE, sequence(0)),
        (kind, Find.BOOL, with_type),
        (kind, Find.TYPE, with_type),
        (kind_of_kind, Find.DTYPES, with_type),
    ]

    def first_of(rest: list[tuple[Value, Find, Callable[[], list[Value]]]]) -> list[Value]:
        if not rest:
            return [NULL]
        (found_kind, name, work), *others = rest
        return f.branch(f.compare("icmp eq", found_kind, pointer(f, record, name)), work, lambda: first_of(others))

    f.finish(first_of(cases)[0])


# ------------------------------------------------------------------------------
# Built-in functions, in machine code, that find what runs a call and run it.
#
# `core/dispatch.py` says what calls are found by. ``find_types`` looks up calls of arrays alone by their specs; of two operands, one
# may be a number that was combined with such an array before. ``find_signature`` looks up all calls: it makes the key that
# `core.dispatch.signature` makes of arrays, lists, tuples and the constants that are frequent. Other calls, and those under a trace,
# are left to the second function of the record (`Find`).
#
# Programs call the same function with the same types many times. So a finder remembers the last call of one array or two, and until its
# dict changes, which the dict's version tells, the next such call needs neither a key nor a lookup.
#
# References to the arrays are held during a call, since a list or a cache may lose them meanwhile.
# ------------------------------------------------------------------------------

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
