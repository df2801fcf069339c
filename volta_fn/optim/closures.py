"""Closures as data: where their code is, and the values of their variables.

Python pickles functions by name, which functions within functions have none of. Transformations and schedules are such closures. As
data they can be pickled, and so sent to other processes that have the same version of this package.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any, NamedTuple

from volta_fn.errors import SerializationError
from volta_fn.lazy_imports import load


class Closure(NamedTuple):
    """A function within a function, as data.

    Attributes:
        module: where the outermost function is.
        name: its qualified name.
        path: the position of each inner function among those of the one around it, and its name.
        variables: the values of the variables that it takes from the functions around it.
        defaults: those of its arguments, by position and by name.
    """

    module: str
    name: str
    path: tuple[tuple[int, str], ...]
    variables: tuple[Any, ...]
    defaults: tuple[Any, Any]


class Partial(NamedTuple):
    """A `functools.partial` as data."""

    function: Any
    args: Any
    keywords: Any


def described(value: Any) -> Any:
    """Return a value with a `Closure` for each closure.

    Functions that have a name of their own, or whose code is not part of a function's, stay as they are.
    """
    if isinstance(value, functools.partial):
        return Partial(*map(described, (value.func, value.args, value.keywords)))
    if isinstance(value, (tuple, list, dict)):
        return _mapped(described, value)
    if not isinstance(value, FunctionType):
        return value
    if "<locals>" not in value.__qualname__:  # public functions are some modules' own with a check of their arguments
        return value if _attribute(value.__module__, value.__qualname__) is value else getattr(value, "__wrapped__", value)
    name = value.__qualname__.partition(".<locals>")[0]
    path = _path(_code(value.__module__, name), value.__code__)
    if path is None:
        return value
    variables = tuple([described(cell.cell_contents) for cell in value.__closure__ or ()])
    return Closure(value.__module__, name, path, variables, described((value.__defaults__, value.__kwdefaults__)))


def restored(value: Any) -> Any:
    """Return a value with functions in place of each `Closure`.

    Raises `SerializationError` if the code is not there, as in another version.
    """
    if isinstance(value, Partial):
        return functools.partial(restored(value.function), *restored(value.args), **restored(value.keywords))
    if isinstance(value, Closure):
        return _function(value)
    return _mapped(restored, value) if isinstance(value, (tuple, list, dict)) else value


def _mapped(function: Callable[[Any], Any], container: Any) -> Any:
    """Apply a function to the items of a tuple, a named tuple, a list or a dictionary."""
    if type(container) is dict:
        return {key: function(item) for key, item in container.items()}
    make = getattr(container, "_make", type(container))
    return make(map(function, container)) if type(container) in (tuple, list) or make is not type(container) else container


def _function(closure: Closure) -> FunctionType:
    code = _code(closure.module, closure.name)
    for position, name in closure.path:
        inner = [] if code is None else _inner(code)
        code = inner[position] if position < len(inner) and inner[position].co_name == name else None
    if code is None or len(code.co_freevars) != len(closure.variables):
        raise SerializationError(
            f"a pickled optimizer needs a function within {closure.module}.{closure.name} that is not there: pickles are for processes "
            "that run the same version. Keep the state, which is arrays, and make the optimizer again."
        )
    cells = tuple([CellType(restored(value)) for value in closure.variables])
    by_position, by_name = restored(closure.defaults)
    function = FunctionType(code, vars(load(closure.module)), code.co_name, by_position, cells)
    function.__kwdefaults__, function.__qualname__, function.__module__ = by_name, code.co_qualname, closure.module
    return function


def _attribute(module: str, name: str) -> Any:
    found = load(module)
    for attribute in name.split("."):
        found = getattr(found, attribute, None)
    return found


def _code(module: str, name: str) -> CodeType | None:
    """Return the code of a function of a module, without its decorators."""
    code = getattr(inspect.unwrap(_attribute(module, name)), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _inner(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _path(outer: CodeType | None, code: CodeType) -> tuple[tuple[int, str], ...] | None:
    """Return the way from a function's code to that of an inner one, or None."""
    for position, inner in enumerate([] if outer is None else _inner(outer)):
        step = (position, inner.co_name)
        if inner is code:
            return (step,)
        rest = _path(inner, code)
        if rest is not None:
            return (step, *rest)
    return None
