"""Describe a function that a page calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from volta_fn import tree
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapeDtypeStruct
from volta_fn.errors import ExportError
from volta_fn.io.names import dotted, joined


@dataclass(frozen=True)
class Function:
    """A function of a page.

    Args:
        function: a function of arrays and pytrees, jitted or not.
        arguments: for each argument the name of a part of the state, or the types of an input: an array, whose elements are what the input
            holds at first, a `ShapeDtypeStruct`, or a pytree of these. An input has the name of the function's parameter.
        results: the name of each result. One that is a name of the state updates it, in place where it can; others are read by the page.

    >>> import volta_fn as vf
    >>> step = vf.web.Function(lambda w, x: (w + x, (w * x).sum()), ["w", vf.ShapeDtypeStruct((3,), "float32")], ["w", "total"])
    >>> step.results
    ('w', 'total')
    """

    function: Callable[..., Any]
    arguments: Sequence[Any]
    results: Sequence[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", tuple(self.arguments))
        object.__setattr__(self, "results", (self.results,) if isinstance(self.results, str) else tuple(self.results))


class Leaf(NamedTuple):
    """An array of a page: its name, its type, and its elements if it has any at first."""

    name: str
    value: ShapeDtypeStruct | Array

    @property
    def elements(self) -> np.ndarray | None:
        """Its elements."""
        return None if isinstance(self.value, ShapeDtypeStruct) else np.asarray(self.value)


def leaves_of(name: str, value: Any) -> list[Leaf]:
    """Return the arrays of a pytree, with names as in a state dict."""
    leaves = tree.leaves_with_path(value, is_leaf=lambda node: isinstance(node, ShapeDtypeStruct))
    return [Leaf(joined(name, dotted(path)) if path else name, _typed(name, leaf)) for path, leaf in leaves]


def _typed(name: str, leaf: Any) -> ShapeDtypeStruct | Array:
    if isinstance(leaf, ShapeDtypeStruct):
        return leaf
    try:
        return as_value(leaf)
    except TypeError as error:
        raise ExportError(f"export_web: {name} holds {leaf!r:.60}, which is no array and no ShapeDtypeStruct") from error


class Argument(NamedTuple):
    """An argument of a function: a part of the state by name, or an input."""

    name: str
    value: Any
    is_state: bool


def arguments_of(name: str, function: Function, state: Mapping[str, Any]) -> list[Argument]:
    """Return the arguments of a page's function.

    Raises `ExportError` for a name that is not in the state.
    """
    found = []
    for parameter, value in zip(_parameters(function), function.arguments, strict=True):
        if not isinstance(value, str):
            found.append(Argument(parameter, value, False))
        elif value in state:
            found.append(Argument(value, state[value], True))
        else:
            raise ExportError(f"export_web: the function {name!r} takes {value!r}, but the state has {sorted(state)}")
    return found


def _parameters(function: Function) -> Iterator[str]:
    """Yield the names of as many parameters as there are arguments."""
    try:
        kinds = inspect.signature(function.function).parameters.values()
        names = [p.name for p in kinds if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    except (TypeError, ValueError):
        names = []
    for number in range(len(function.arguments)):
        yield names[number] if number < len(names) else f"input{number}"
