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
    run_flat = _flat_program(traced, device)
    specs = [array_spec(a, device) for a in traced.jaxpr.out_avals]
    out_tree = traced.out_tree
    donating = any(traced.donated)

    if out_tree == tree.structure(0) and not donating:
        (spec,) = specs

        def run_one(args: Sequence[Any]) -> Any:
            return ConcreteArray(solid(run_flat(False, *[a._buffer for a in args])[0]), spec)

        return run_one

    def run(args: Sequence[Any]) -> Any:
        outs = (
            run_flat(_may_overwrite(traced, args), *[a.buffer() for a in args]) if donating else run_flat(False, *[a._buffer for a in args])
        )
        if donating:
            _delete_donated(traced, args)
        return tree.unflatten(out_tree, [ConcreteArray(solid(o), s) for o, s in zip(outs, specs, strict=True)])

    return run


def _flat_program(traced: Traced, device: Device) -> Callable[..., tuple[Any, ...]]:
    return device.backend.compile(traced.jaxpr, traced.donated)


def _may_overwrite(traced: Traced, args: Sequence[Any]) -> bool:
    """Whether nobody else sees the donated buffers: no view, no other array, no other argument."""
    if len({id(a._buffer) for a in args}) < len(args):  # one array is passed twice
        return False
    donated = [a for a, d in zip(args, traced.donated, strict=True) if d]
    # References to a buffer that is not shared: the array's own, the loop variable's through getrefcount's argument.
    return all(sys.getrefcount(a._buffer) <= 2 and not a.device.backend.shared(a._buffer) for a in donated)


def _delete_donated(traced: Traced, args: Sequence[Any]) -> None:
    for arg, donated in zip(args, traced.donated, strict=True):
        if donated:
            arg.delete()


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
