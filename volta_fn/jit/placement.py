"""Calls with arrays that are split between devices.

One device computes, as all share its memory. How the results are split follows from the program (`volta_fn.core.distribution.propagation`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from volta_fn import tree
from volta_fn.core.array import Array, ConcreteArray, array_spec
from volta_fn.core.distribution.placement import at_home, group_of, moved, split
from volta_fn.core.distribution.propagation import of_equation, of_program
from volta_fn.core.distribution.sharding import Sharding
from volta_fn.core.memory.gone import GONE
from volta_fn.core.primitive import Primitive
from volta_fn.jit.compile import TracedProgram, compiled_for
from volta_fn.jit.eager import common_device, eager_kernel, on_device


def shardings_of(arrays: Sequence[Any]) -> list[Any]:
    """Return the sharding of each array that is split, else None."""
    return [a.device.sharding for a in arrays]


def placed(array: ConcreteArray, sharding: Sharding | None) -> ConcreteArray:
    """Return a result with its sharding, if it has one."""
    if sharding is None:
        return array
    group = group_of(sharding)
    return moved(array, group) if group.backend is array.device.backend else array


def kernel(primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Callable[..., Any]:
    """Make a function that runs a primitive on arrays like these, some of them split."""
    home = [at_home(a) for a in args]
    device = common_device(home)
    run = eager_kernel(primitive, on_device(home, device), params)
    made = primitive.abstract(*[a.aval for a in args], **params)
    out_avals = made if primitive.multiple_results else (made,)
    targets = of_equation(primitive, params, [a.aval for a in args], out_avals, shardings_of(args))

    def call(*args: Any) -> Any:
        results = run(*on_device([at_home(a) for a in args], device))
        if not primitive.multiple_results:
            return placed(results, targets[0])
        return tuple([placed(r, t) for r, t in zip(results, targets, strict=True)])

    return call


def splitting(function: Callable[..., Any], shardings: Sequence[Any]) -> Callable[..., Any]:
    """Return the function; when it is traced, its arguments get these shardings."""

    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        leaves = [leaf for leaf in tree.leaves((args, kwargs)) if isinstance(leaf, Array)]
        for leaf, sharding in zip(leaves, shardings, strict=False):
            if sharding is not None:
                split(leaf, sharding)
        return function(*args, **kwargs)

    return traced


def program(traced: TracedProgram, values: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
    """Return a program as a function of arrays with the shardings of these values."""
    home = [at_home(v) for v in values]
    device = common_device(home)
    run = compiled_for(traced, device)
    targets = of_program(traced.jaxpr, [*shardings_of(values), *[None] * len(traced.in_full)])
    gone = [(i, array_spec(v.aval, v.device).donated) for i, v in enumerate(values) if traced.donated[i]]

    def call(args: Sequence[Any]) -> Any:
        result = run(on_device([at_home(a) for a in args], device))
        for i, spec in gone:
            args[i]._buffer, args[i]._spec = GONE, spec
        leaves, structure = tree.flatten(result)
        return tree.unflatten(structure, [placed(leaf, t) for leaf, t in zip(leaves, targets, strict=True)])

    return call
