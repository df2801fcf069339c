"""Calls with arrays that are split between devices.

Where devices share a memory, one of them computes. Where each has its own, all run a program that has collectives between them; one of
them runs other programs, with all elements. How the results are split follows from the program (`volta_fn.core.devices.placement`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

from volta_fn import tree
from volta_fn.core.arrays.array import DELETED, Array, ConcreteArray, array_spec
from volta_fn.core.arrays.memory import common_device
from volta_fn.core.devices.device_world import DeviceProgram
from volta_fn.core.devices.placement import on_home_device, split
from volta_fn.core.devices.propagation import equation_shardings, on_one_mesh, result_shardings
from volta_fn.core.devices.sharding import Sharding
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Jaxpr, Var, constraints_of, devices_of, sub_jaxprs
from volta_fn.core.primitive import Primitive
from volta_fn.jit.compile import TracedProgram, compiled_once, gc_paused, with_wide_inputs
from volta_fn.jit.eager import PIPELINE, on_device, single_device_kernel


def shardings_of(arrays: Sequence[Any]) -> list[Any]:
    """Return the sharding of each array that is split, else None."""
    return [a.device.sharding for a in arrays]


def with_sharding(array: ConcreteArray, sharding: Sharding | None) -> ConcreteArray:
    """Return a result with its sharding, if it has one."""
    return array if sharding is None else cast("ConcreteArray", split(array, sharding))


def sharded_kernel(primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Callable[..., Any]:
    """Make a function that runs a primitive on arrays like these, some of them split."""
    unsharded = [on_home_device(a) for a in args]
    device = common_device(unsharded)
    run = single_device_kernel(primitive, on_device(unsharded, device), params)
    result_avals = primitive.abstract(*[a.aval for a in args], **params)
    out_avals = result_avals if primitive.multiple_results else (result_avals,)
    shardings = shardings_of(args)
    constraints = [s for program in sub_jaxprs(params) for s in constraints_of(program)] if primitive.holds_programs else []
    results = equation_shardings(primitive, params, [a.aval for a in args], out_avals, shardings)
    out_shardings = on_one_mesh(results, [*shardings, *constraints])

    def call(*args: Any) -> Any:
        results = run(*on_device([on_home_device(a) for a in args], device))
        if not primitive.multiple_results:
            return with_sharding(results, out_shardings[0])
        return tuple([with_sharding(r, t) for r, t in zip(results, out_shardings, strict=True)])

    return call


def with_argument_shardings(function: Callable[..., Any], shardings: Sequence[Any]) -> Callable[..., Any]:
    """Return the function; when it is traced, its arguments get these shardings."""

    @functools.wraps(function)
    def constrained(*args: Any, **kwargs: Any) -> Any:
        leaves = [leaf for leaf in tree.leaves((args, kwargs)) if isinstance(leaf, Array)]
        for leaf, sharding in zip(leaves, shardings, strict=False):
            if sharding is not None:
                split(leaf, sharding)
        return function(*args, **kwargs)

    return constrained


def sharded_program(traced: TracedProgram, values: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
    """Return a program as a function of arrays with the shardings of these values."""
    if devices_of(traced.jaxpr):
        on_all = program_on_all_devices(traced.jaxpr, with_wide_inputs(values, traced), traced.donated)
        return lambda args: tree.unflatten(traced.out_tree, on_all(with_wide_inputs(args, traced)))
    device = common_device([on_home_device(v) for v in values])
    run = compiled_once(traced, device)
    out_shardings = result_shardings(traced.jaxpr, [*shardings_of(values), *[None] * len(traced.wide_inputs)])
    donated_specs = [(i, array_spec(v.aval, v.device).donated) for i, v in enumerate(values) if traced.donated[i]]

    def call(args: Sequence[Any]) -> Any:
        result = run(on_device([on_home_device(a) for a in args], device))
        for i, spec in donated_specs:
            args[i]._buffer, args[i]._spec = DELETED, spec
        leaves, structure = tree.flatten(result)
        return tree.unflatten(structure, [with_sharding(leaf, t) for leaf, t in zip(leaves, out_shardings, strict=True)])

    return call


def program_on_all_devices(closed: ClosedJaxpr, values: Sequence[Any], donated: Sequence[bool] = ()) -> DeviceProgram:
    """Return a program with collectives between devices.

    It is a function of a list of arrays like the values.
    """
    on_these = {*devices_of(closed)}
    shardings = [s if s is not None and s.device_set == on_these else None for s in shardings_of(values)]
    with gc_paused():
        return DeviceProgram(closed, shardings, donated, PIPELINE)


def kernel_on_all_devices(primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Callable[..., Any]:
    """Make a function that runs a primitive with programs on arrays like these.

    The programs have collectives between devices.
    """
    invars = [Var(a.aval) for a in args]
    outvars = [Var(aval) for aval in primitive.abstract(*[a.aval for a in args], **params)]
    closed = ClosedJaxpr(Jaxpr([], invars, [*outvars], [Equation(primitive, [*invars], outvars, params)]))
    program = program_on_all_devices(closed, args)
    return lambda *args: tuple(program(args))
