"""Operations of `jax._src.util` on lists, tuples and functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def unzip2(xys: Iterable[tuple[Any, Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the first and the second elements of pairs.

    >>> unzip2([(1, "a"), (2, "b")])
    ((1, 2), ('a', 'b'))
    """
    pairs = list(xys)
    return tuple([x for x, _ in pairs]), tuple([y for _, y in pairs])


def unzip3(xyzs: Iterable[tuple[Any, Any, Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    """Return the first, second and third elements of triples."""
    triples = list(xyzs)
    return tuple([x for x, _, _ in triples]), tuple([y for _, y, _ in triples]), tuple([z for _, _, z in triples])


def subvals(lst: Sequence[T], replace: Iterable[tuple[int, T]]) -> tuple[T, ...]:
    """Return a sequence with elements replaced, which pairs of index and value give."""
    values = list(lst)
    for i, value in replace:
        values[i] = value
    return tuple(values)


def split_list(args: Sequence[T], ns: Sequence[int]) -> list[list[T]]:
    """Return parts of the lengths `ns`, and the remainder.

    >>> split_list([1, 2, 3, 4], [1, 2])
    [[1], [2, 3], [4]]
    """
    rest, parts = list(args), []
    for n in ns:
        parts.append(rest[:n])
        rest = rest[n:]
    return [*parts, rest]


def split_list_checked(args: Sequence[T], ns: Sequence[int]) -> list[list[T]]:
    """Return parts of the lengths `ns`, which must sum to the length."""
    if sum(ns) != len(args) or any(n < 0 for n in ns):
        raise ValueError(f"split_list_checked: lengths {list(ns)} do not divide {len(args)} elements")
    return split_list(args, ns)[:-1]


def partition_list(bs: Sequence[bool], l: Sequence[T]) -> tuple[list[T], list[T]]:  # noqa: E741  # JAX's name
    """Return the elements whose flag is False, and those whose flag is True."""
    pairs = list(zip(bs, l, strict=True))
    return [x for flag, x in pairs if not flag], [x for flag, x in pairs if flag]


def merge_lists(bs: Sequence[bool], l0: Sequence[T], l1: Sequence[T]) -> list[T]:
    """Return the list that `partition_list` divides into `l0` and `l1`."""
    if sum(bs) != len(l1) or len(bs) != len(l0) + len(l1):
        raise ValueError(f"merge_lists: flags {list(bs)} do not fit lists of {len(l0)} and {len(l1)} elements")
    rest0, rest1 = iter(l0), iter(l1)
    return [next(rest1) if flag else next(rest0) for flag in bs]


def subs_list(subs: Sequence[int | None], src: Sequence[T], base: Iterable[T]) -> list[T]:
    """Return elements of `src` by the indices, and of `base` where they are None."""
    rest = iter(base)
    return [src[i] if i is not None else next(rest) for i in subs]


def concatenate(xs: Iterable[Sequence[T]]) -> list[T]:
    """Return the elements of sequences, one after another."""
    return [x for part in xs for x in part]


flatten = concatenate


def unflatten(xs: Iterable[T], ns: Sequence[int]) -> list[list[T]]:
    """Return consecutive parts of the lengths `ns`."""
    return split_list(list(xs), ns)[:-1]


def curry(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose call binds the first arguments of `f`."""
    return functools.partial(functools.partial, f)


def tuple_insert(t: tuple[T, ...], idx: int, val: T) -> tuple[T, ...]:
    """Return a tuple with a value inserted before an index."""
    if not 0 <= idx <= len(t):
        raise ValueError(f"tuple_insert: index {idx} is not in a tuple of {len(t)} elements")
    return (*t[:idx], val, *t[idx:])


def tuple_delete(t: tuple[T, ...], idx: int) -> tuple[T, ...]:
    """Return a tuple without the element at an index."""
    if not 0 <= idx < len(t):
        raise ValueError(f"tuple_delete: index {idx} is not in a tuple of {len(t)} elements")
    return (*t[:idx], *t[idx + 1 :])


def tuple_update(t: tuple[T, ...], idx: int, val: T) -> tuple[T, ...]:
    """Return a tuple with another value at an index."""
    if not 0 <= idx < len(t):
        raise ValueError(f"tuple_update: index {idx} is not in a tuple of {len(t)} elements")
    return (*t[:idx], val, *t[idx + 1 :])


def moveaxis(x: Any, src: int, dst: int) -> Any:
    """Return an array with an axis moved; an equal position returns `x` itself."""
    return x if src == dst else x.transpose(_moved(x.ndim, src % x.ndim, dst % x.ndim))


def _moved(ndim: int, src: int, dst: int) -> list[int]:
    axes = [axis for axis in range(ndim) if axis != src]
    axes.insert(dst, src)
    return axes


def canonicalize_axis_tuple(axis: int | Sequence[int] | None, ndim: int, allow_duplicate: bool = False) -> tuple[int, ...]:
    """Return axes as non-negative numbers; all of them for None."""
    if axis is None:
        return tuple(range(ndim))
    items = [axis] if isinstance(axis, int) else list(axis)
    if any(not -ndim <= a < ndim for a in items):
        raise ValueError(f"axis {axis} is out of bounds for an array of {ndim} dimensions")
    axes = tuple([a % ndim for a in items])
    if len({*axes}) != len(axes) and not allow_duplicate:
        raise ValueError(f"duplicate value in axis: {axes}")
    return axes


def ceil_of_ratio(x: int, y: int) -> int:
    """Return a quotient, rounded up."""
    return -(-x // y)


def wrap_name(transform_name: str, name: str) -> str:
    """Return the name of a function under a transform."""
    return f"{transform_name}({name})"


def fun_name(fun: Callable[..., Any], default_name: str = "<unnamed function>") -> str:
    """Return a function's name, that of its function if it binds arguments."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    return str(getattr(fun, "__name__", default_name))


def stable_unique(it: Iterable[Hashable]) -> Iterator[Any]:
    """Return the distinct elements in their order."""
    return iter(dict.fromkeys(it))


def set_module(module: str) -> Callable[[T], T]:
    """Return a decorator that sets the module of a function or class."""

    def decorate(decorated: T) -> T:
        decorated.__module__ = module
        return decorated

    return decorate


def cache(max_size: int | None = 4096, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that keeps a function's results.

    The options concern JAX's settings, and have no effect.
    """
    return functools.lru_cache(maxsize=max_size)


memoize = cache(max_size=None)
