"""Functions written down as programs, and programs compiled to functions of arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from volta_fn import tree
from volta_fn.core.array import Array, ConcreteArray, array_spec
from volta_fn.core.aval import ShapedArray
from volta_fn.core.device import Device
from volta_fn.core.flatten import FlatFunction, argument_labels
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.staging import hoist_tracers, trace_to_jaxpr
from volta_fn.jit.eager import solid


@dataclass(slots=True)
class Traced:
    """A function's program for one structure and set of types of arguments."""

    jaxpr: ClosedJaxpr
    out_tree: Any
    #: Tracers of outer traces that the function closed over, passed as leading arguments.
    captured: list[Array]
    donated: tuple[bool, ...]
    name: str


def compiled(traced: Traced, device: Device) -> Callable[[Sequence[Any]], Any]:
    """The traced program as a function from a list of concrete arrays to the result's pytree."""
    run_flat = device.backend.compile(traced.jaxpr, traced.donated)
    specs = [array_spec(a, device) for a in traced.jaxpr.out_avals]
    out_tree = traced.out_tree
    donated = [number for number, flag in enumerate(traced.donated) if flag]

    if donated:

        def run_donating(args: Sequence[Any]) -> Any:
            buffers = [a.buffer() for a in args]
            outs = run_flat(_may_overwrite(buffers, donated, device.backend.shared), *buffers)
            for number in donated:
                args[number].delete()
            return tree.unflatten(out_tree, [ConcreteArray(solid(o), s) for o, s in zip(outs, specs, strict=True)])

        return run_donating

    if out_tree == tree.structure(0):
        (spec,) = specs

        def run_one(args: Sequence[Any]) -> Any:
            return ConcreteArray(solid(run_flat(False, *[a._buffer for a in args])[0]), spec)

        return run_one

    def run(args: Sequence[Any]) -> Any:
        outs = run_flat(False, *[a._buffer for a in args])
        return tree.unflatten(out_tree, [ConcreteArray(solid(o), s) for o, s in zip(outs, specs, strict=True)])

    return run


def _may_overwrite(buffers: Sequence[Any], donated: Sequence[int], shared: Callable[[Any], bool]) -> bool:
    """Whether nobody else sees the donated buffers: no view, no other array, no other argument."""
    if len(set(map(id, buffers))) < len(buffers):  # one array is passed twice
        return False
    # References to a buffer that is not shared: its array's, the list's, and getrefcount's argument.
    return all(sys.getrefcount(buffers[number]) <= 3 and not shared(buffers[number]) for number in donated)


def trace_function(function: Callable[..., Any], leaves: Sequence[Any], in_tree: Any, avals: Sequence[ShapedArray], name: str) -> Traced:
    """Write down `function` for arguments of these types."""
    flat = FlatFunction(function, in_tree)
    labels = argument_labels(function, in_tree, len(leaves))
    closed = trace_to_jaxpr(flat, avals, name, labels)
    program, captured = hoist_tracers(closed)
    return Traced(program, flat.out_tree, captured, (), name)


def compiled_for(traced: Traced, device: Device) -> Callable[[Sequence[Any]], Any]:
    """The compiled function of a traced program, made once per device."""
    key = ("compiled", device)
    run = traced.jaxpr.cache.get(key)
    return run or traced.jaxpr.cache.setdefault(key, compiled(traced, device))
