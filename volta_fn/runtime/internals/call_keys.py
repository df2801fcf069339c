"""Keys by which calls are looked up, built in machine code.

`core/dispatch.py` defines them: tuples of the arrays' specs, or of what describes all arguments. Functions return a new reference, or null
for arguments of other types.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from volta_fn.runtime.internals.array_calls import MOST_OPERANDS, NULL, P, is_a, pointer, word
from volta_fn.runtime.llvm.text import Function, Module, Value, i64

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
