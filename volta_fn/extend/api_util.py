"""Flattening of wrapped functions, by the names of `jax.api_util`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from volta_fn import tree
from volta_fn.core.array import aval_of
from volta_fn.core.flatten import function_name
from volta_fn.extend.linear_util import Store, WrappedFun, transformation_with_aux2

#: The type of an argument, by JAX's name.
shaped_abstractify = aval_of


class DebugInfo(NamedTuple):
    """What messages say of a function: the transform, its name, its arguments' names."""

    traced_for: str
    func_src_info: str
    arg_names: tuple[str, ...]
    result_paths: Any = None


def debug_info(traced_for: str, fun: Callable[..., Any], args: Any = (), kwargs: Any = None, **options: Any) -> DebugInfo:
    """Return what messages say of a function."""
    try:
        names = tuple(inspect.signature(fun).parameters)
    except (TypeError, ValueError):
        names = ()
    return DebugInfo(traced_for, function_name(fun), names)


@transformation_with_aux2
def flatten_fun(f: Callable[..., Any], store: Store, in_tree: Any, *leaves: Any) -> list[Any]:
    """Make a function of `(args, kwargs)` one of leaves; store the result's tree."""
    args, kwargs = tree.unflatten(in_tree, leaves)
    return _flattened(f(*args, **kwargs), store)


@transformation_with_aux2
def flatten_fun_nokwargs(f: Callable[..., Any], store: Store, in_tree: Any, *leaves: Any) -> list[Any]:
    """Make a function of `args` one of leaves; store the result's tree."""
    return _flattened(f(*tree.unflatten(in_tree, leaves)), store)


def _flattened(result: Any, store: Store) -> list[Any]:
    leaves, structure = tree.flatten(result)
    store.store(structure)
    return leaves


def argnums_partial(f: WrappedFun, dyn_argnums: int | Sequence[int], args: Sequence[Any], require_static_args_hashable: bool = True) -> Any:
    """Return the function of the arguments at some positions, and these arguments."""
    positions = [dyn_argnums] if isinstance(dyn_argnums, int) else list(dyn_argnums)
    positions = [n % len(args) for n in positions]

    def call(*dynamic: Any, **kwargs: Any) -> Any:
        given = dict(zip(positions, dynamic, strict=True))
        return f.call_wrapped(*[given.get(i, arg) for i, arg in enumerate(args)], **kwargs)

    return WrappedFun(call, debug_info=f.debug_info), tuple(args[n] for n in positions)


def flatten_axes(name: str, treedef: Any, axis_tree: Any, **options: Any) -> list[Any]:
    """Return the entry of a prefix tree for each leaf of a structure; None is a leaf."""
    dummies = tree.unflatten(treedef, [0] * treedef.num_leaves)
    return tree.broadcast_prefix(axis_tree, dummies, is_leaf=lambda x: x is None)


def donation_vector(donate_argnums: Sequence[int], donate_argnames: Sequence[str], in_tree: Any) -> tuple[bool, ...]:
    """Return for each leaf of `(args, kwargs)` whether its argument is donated."""
    args, kwargs = tree.unflatten(in_tree, list(range(in_tree.num_leaves)))
    by_position = [i in donate_argnums for i, arg in enumerate(args) for _ in tree.leaves(arg)]
    return (*by_position, *[name in donate_argnames for name in sorted(kwargs) for _ in tree.leaves(kwargs[name])])


def rebase_donate_argnums(donate_argnums: Sequence[int], static_argnums: Sequence[int]) -> tuple[int, ...]:
    """Return donated positions as counted without the static arguments."""
    return tuple(sorted(n - sum(s < n for s in static_argnums) for n in donate_argnums))


def safe_map(f: Callable[..., Any], *sequences: Sequence[Any]) -> list[Any]:
    """Apply a function to the elements of sequences of one length."""
    return [f(*row) for row in zip(*sequences, strict=True)]


def safe_zip(*sequences: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Pair the elements of sequences of one length."""
    return list(zip(*sequences, strict=True))


def infer_argnums_and_argnames(
    sig: inspect.Signature, argnums: int | Sequence[int] | None, argnames: str | Sequence[str] | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return positions and names of arguments, of which either may be left out."""
    names = list(sig.parameters)
    if argnums is None and argnames is None:
        return (), ()
    if argnums is None:
        given = (argnames,) if isinstance(argnames, str) else tuple(argnames or ())
        return tuple(names.index(n) for n in given if n in names), given
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if argnames is None:
        return numbers, tuple(names[n] for n in numbers if -len(names) <= n < len(names))
    return numbers, (argnames,) if isinstance(argnames, str) else tuple(argnames)
