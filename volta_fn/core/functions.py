"""The functions that transforms take: flattened, named in messages, jitted.

Users' functions are of pytrees; transforms trace functions of flat lists of arrays. A transform of a jitted function is jitted itself, and
kept with that function.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import Array, as_value, brief, conversion
from volta_fn.core.primitive import Zero
from volta_fn.errors import ArgumentError, ArgumentTypeError
from volta_fn.lazy_imports import deferred

_structures = deferred("volta_fn.tree.structures")  # which loads optree

# From functions of pytrees to functions of flat lists of arrays.


@functools.cache  # made on first use, since optree loads then
def leaf_structure() -> tree.TreeDef:
    """Return the structure of a result that is one array."""
    return tree.structure(0)


class FlatFunction:
    """A function of pytrees as one of leaves; a call sets `out_tree`."""

    __slots__ = ("function", "in_tree", "out_tree")

    def __init__(self, function: Callable[..., Any], in_tree: Any) -> None:
        self.function = function
        #: Structure of ``(args, kwargs)``.
        self.in_tree = in_tree
        self.out_tree: Any = None

    def __call__(self, *leaves: Any) -> list[Array]:
        args, kwargs = tree.unflatten(self.in_tree, leaves)
        result = self.function(*args, **kwargs)
        if isinstance(result, Array):
            self.out_tree = leaf_structure()
            return [result]
        outs, self.out_tree = tree.flatten(result)
        return output_arrays(outs, self.function)


def output_arrays(outs: Sequence[Any], function: Callable[..., Any]) -> list[Array]:
    """Convert a function's flat results to arrays; errors name the function."""
    values: list[Array] = []
    for out in outs:
        if type(out) is Zero:  # of a derivative rule
            out = np.zeros(out.aval.shape, out.aval.dtype)
        try:
            values.append(as_value(out))
        except ArgumentTypeError:
            raise ArgumentTypeError(
                f"{function_name(function)} must return arrays (or pytrees of them), but one of its results is {brief(out)} "
                f"of type {type(out).__name__}{_result_remedy(out)}"
            ) from None
    return values


def _result_remedy(out: Any) -> str:
    if expression := conversion(out):
        return f". Convert it first: {expression}"
    return ". Return text outside of the traced function" if isinstance(out, str) else ""


def function_name(function: Callable[..., Any]) -> str:
    """Return a function's name for messages."""
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) and name else type(function).__name__


def wraps(function: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Apply `functools.wraps`, also for objects whose names are not text.

    Callable objects, such as modules of other libraries, may hold placeholders there, which a function cannot have.
    """
    plain = all(isinstance(getattr(function, name, ""), str) for name in ("__name__", "__qualname__"))
    return functools.wraps(function, functools.WRAPPER_ASSIGNMENTS if plain else ("__doc__",))


def argument_labels(function: Callable[..., Any], in_tree: Any) -> list[str]:
    """Label each leaf of ``(args, kwargs)`` by argument and path: ``params['w']``."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []
    labels = []
    for path in _structures.paths_of(in_tree):
        position = getattr(path[1], "idx", None)
        if position is None:
            labels.append(f"{getattr(path[1], 'key', path[1])}{tree.keystr(path[2:])}")
        else:
            name = names[position] if position < len(names) else f"#{position}"
            labels.append(f"{name}{tree.keystr(path[2:])}")
    return labels


def check_callable(function: Any, transform: str = "jit") -> None:
    """Raise `ArgumentTypeError` unless `function` is callable."""
    if not callable(function):
        raise ArgumentTypeError(
            f"{transform} transforms a function, got {function!r:.80} of type {type(function).__name__}. "
            "Pass the function itself, f, and not its result, f(x)."
        )


def positional_index(argnum: int, count: int, transform: str) -> int:
    """Count `argnum` from the front; raise `ArgumentError` if the call lacks it."""
    if not hasattr(argnum, "__index__"):
        raise ArgumentTypeError(f"{transform}: arguments are chosen by their positions, which are integers, got {argnum!r:.80}")
    if not -count <= argnum < count:
        raise ArgumentError(f"{transform}: positional argument {argnum} was chosen, but the call has {count} positional arguments")
    return argnum % count


# Transforms of jitted functions are jitted themselves.
#
# Called eagerly, `vmap(jit(f))` is thus one program, like `jit(vmap(f))`, and another `vmap(jit(f))` finds it again. Programs that rules
# derive of a jitted function, as for ``grad(lambda x: f(x) + 1)``, are compiled by `jit.eager`.


class JittedFunction:
    """The interface of jitted functions to transforms."""

    __slots__ = ()

    def transformed(self, key: Hashable, function: Callable[..., Any], same_arguments: bool) -> Callable[..., Any]:
        """Return a transform of this function, jitted.

        The first `function` that is passed with a `key` serves for all later ones. If some arguments are static, and the transform does not
        take the `same_arguments`, it is returned without being jitted.
        """
        raise NotImplementedError


def jitted_like(fun: Callable[..., Any], function: Callable[..., Any], *settings: Any, same_arguments: bool = True) -> Callable[..., Any]:
    """Return `function`, a transform of `fun` with these settings; jitted if `fun` is.

    A jitted function (`jit.function.Jitted`) keeps the first `function` per settings and uses it for all later ones, so that a loop may
    call ``grad(f)`` in each step and still finds one program.

    `same_arguments` tells whether `function` takes the arguments of `fun`, so that the same ones are static.
    """
    if not isinstance(fun, JittedFunction):
        return function
    leaves, structure = tree.flatten(settings, is_leaf=lambda x: x is None)
    try:
        key = (structure, tuple([(type(x), x) for x in leaves]))
        hash(key)
    except TypeError:  # a setting that is no name and no number: the transform will say so
        return function
    return fun.transformed(key, function, same_arguments)
