"""Functions mapped over arrays: vectorize, apply_along_axis, fromfunction, …."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn.core.array import Array
from volta_fn.core.aval import canonical_shape
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.numpy.arguments import axis_of, operand
from volta_fn.numpy.creation import arange
from volta_fn.primitives.declare import check_ranks
from volta_fn.settings import current as settings
from volta_fn.transforms.vmap import vmap

_ARGUMENT = r"\(\s*(?:\w+\s*(?:,\s*\w+\s*)*,?)?\s*\)"
_SIGNATURE = re.compile(rf"\s*(?:{_ARGUMENT}\s*(?:,\s*{_ARGUMENT}\s*)*)?->\s*{_ARGUMENT}\s*(?:,\s*{_ARGUMENT}\s*)*")
CoreDims = list[tuple[str, ...]]


def iterable(y: Any) -> bool:
    """Return True if `y` can be iterated over; scalars cannot.

    >>> jnp.iterable(jnp.ones(2)), jnp.iterable(jnp.float32(1.0))
    (True, False)
    """
    return bool(y.ndim) if isinstance(y, Array) else np.iterable(y)


def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply `func1d` to every vector along `axis`; its results replace that axis.

    >>> jnp.apply_along_axis(jnp.sum, 0, jnp.array([[1, 2], [3, 4]]))
    Array([4, 6], dtype=int32)
    """
    value = operand("apply_along_axis", "arr", arr)
    dim = axis_of("apply_along_axis", axis, value.ndim)
    function: Callable[..., Any] = lambda v: func1d(v, *args, **kwargs)  # noqa: E731
    for later in range(1, value.ndim - dim):
        function = vmap(function, in_axes=later, out_axes=-1)
    for _ in range(dim):
        function = vmap(function, in_axes=0, out_axes=0)
    return function(value)


def apply_over_axes(func: Callable[[Any, int], Any], a: Any, axes: Any) -> Array:
    """Apply `func(a, axis)` axis by axis; dropped dimensions return with size 1.

    >>> jnp.apply_over_axes(jnp.sum, jnp.ones((2, 3, 4)), [0, 2]).shape
    (1, 3, 1)
    """
    value = operand("apply_over_axes", "a", a)
    for axis in axes if isinstance(axes, (tuple, list)) else (axes,):
        dim = axis_of("apply_over_axes", axis, value.ndim)
        result = func(value, dim)
        if result.ndim == value.ndim - 1:
            result = lax.expand_dims(result, (dim,))
        if result.ndim != value.ndim:
            raise ShapeError(f"apply_over_axes: the function changed {value.ndim} dimensions to {result.ndim}")
        value = result
    return value


def vectorize(
    pyfunc: Callable[..., Any], *, excluded: Collection[int | str] = frozenset(), signature: str | None = None
) -> Callable[..., Any]:
    """Vectorise a function of scalars, or of the core dimensions in `signature`.

    The other dimensions of its arguments broadcast.

    Args:
        pyfunc: the function; it is mapped with `vmap`, so it must be traceable.
        excluded: positions and names of arguments that are passed through; so is None, if there is no signature.
        signature: such as "(n),(n)->()".

    >>> dot = jnp.vectorize(lambda a, b: jnp.sum(a * b), signature="(n),(n)->()")
    >>> dot(jnp.ones((2, 3)), jnp.arange(3.0))
    Array([3., 3.], dtype=float32)
    """
    core = None if signature is None else _parsed(signature)
    _check_excluded(excluded)

    @functools.wraps(pyfunc)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        mapped_names = [n for n in kwargs if n not in excluded and (core or kwargs[n] is not None)]
        if mapped_names and signature is not None:
            raise ArgumentError(f"vectorize: arguments of a function with a signature must be positional, got {mapped_names} by name")
        positions = [i for i in range(len(args)) if i not in excluded and (core or args[i] is not None)]
        values = [operand("vectorize", str(i), args[i]) for i in positions] + [operand("vectorize", n, kwargs[n]) for n in mapped_names]
        ins, outs = core or ([()] * len(values), None)
        if len(ins) != len(values):
            raise ArgumentError(f"vectorize: signature {signature!r} takes {len(ins)} arguments, got {len(values)}")

        def called(*items: Any) -> Any:
            full, named = list(args), dict(kwargs)
            for position, item in zip(positions, items, strict=False):
                full[position] = item
            named.update(zip(mapped_names, items[len(positions) :], strict=True))
            return _checked_results(pyfunc(*full, **named), outs, _sizes(ins, values), signature)

        return _mapped(called, values, ins)

    return wrapped


def _check_excluded(excluded: Collection[int | str]) -> None:
    wrong = [item for item in excluded if not isinstance(item, (int, str))]
    if wrong:
        raise ArgumentTypeError(f"vectorize: excluded holds positions and names of arguments, got {wrong}")
    if any(isinstance(item, int) and item < 0 for item in excluded):
        raise ArgumentError(f"vectorize: positions in excluded count from the first argument and are not negative, got {set(excluded)}")


def _parsed(signature: str) -> tuple[CoreDims, CoreDims]:
    if not _SIGNATURE.fullmatch(signature):
        raise ArgumentError(f"vectorize: signature {signature!r} is not of the form '(m,n),(n)->(m)'")
    sides = signature.split("->")
    dims = [[tuple(re.findall(r"\w+", argument)) for argument in re.findall(_ARGUMENT, side)] for side in sides]
    return dims[0], dims[1]


def _sizes(ins: Sequence[tuple[str, ...]], values: Sequence[Array]) -> dict[str, int]:
    """Return the size of each core dimension; raise `ShapeError` if two disagree."""
    sizes: dict[str, int] = {}
    for i, (names, value) in enumerate(zip(ins, values, strict=True)):
        if value.ndim < len(names):
            raise ShapeError(f"vectorize: argument {i} of shape {value.shape} lacks the core dimensions {names}")
        for name, size in zip(names, value.shape[value.ndim - len(names) :], strict=True):
            if sizes.setdefault(name, size) != size:
                raise ShapeError(f"vectorize: core dimension {name!r} has sizes {sizes[name]} and {size}")
    return sizes


def _checked_results(result: Any, outs: CoreDims | None, sizes: dict[str, int], signature: str | None) -> Any:
    if outs is None:
        return result
    results = result if isinstance(result, tuple) else (result,)
    if len(results) != len(outs):
        raise ArgumentError(f"vectorize: signature {signature!r} promises {len(outs)} results, got {len(results)}")
    for value, names in zip(results, outs, strict=True):
        if value.ndim != len(names) or any(sizes.setdefault(n, s) != s for n, s in zip(names, value.shape, strict=True)):
            raise ShapeError(f"vectorize: a result of shape {value.shape} does not fit {names} of signature {signature!r}")
    return result


def _mapped(function: Callable[..., Any], values: Sequence[Array], ins: Sequence[tuple[str, ...]]) -> Any:
    """Map over the loop dimensions where an argument's size is not 1, innermost first."""
    _sizes(ins, values)
    loops = [v.shape[: v.ndim - len(names)] for v, names in zip(values, ins, strict=True)]
    if settings.rank_promotion != "allow":
        check_ranks("vectorize", loops, frozenset({"numpy"}))
    shape = lax.broadcast_shapes(*loops) if loops else ()
    rank = len(shape)
    squeezed, axes = [], []
    for value, loop in zip(values, loops, strict=True):
        padded = (1,) * (rank - len(loop)) + loop
        axes.append([n != 1 or shape[i] == 1 for i, n in enumerate(padded)])
        value = lax.reshape(value, padded + value.shape[len(loop) :])
        squeezed.append(lax.squeeze(value, [i for i, n in enumerate(padded) if not axes[-1][i]]))
    for i in reversed(range(rank)):
        function = vmap(function, in_axes=tuple([0 if taking[i] else None for taking in axes]))
    return function(*squeezed)


def fromfunction(function: Callable[..., Any], shape: Any, *, dtype: Any = float, **kwargs: Any) -> Any:
    """Evaluate `function(i, j, …)` at every index (i, j, …) of `shape`, with `vmap`.

    >>> jnp.fromfunction(lambda i, j: 10 * i + j, (2, 3), dtype=int)
    Array([[ 0,  1,  2],
           [10, 11, 12]], dtype=int32)
    """
    sizes = canonical_shape(shape)
    for axis in reversed(range(len(sizes))):
        function = vmap(function, in_axes=tuple([0 if i == axis else None for i in range(len(sizes))]))
    return function(*[arange(n, dtype=dtype) for n in sizes], **kwargs)
