"""Functions written down as programs, and programs compiled to functions of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from sys import getrefcount
from typing import Any

import numpy as np

from volta_fn import tree
from volta_fn.core.array import Array, ArraySpec, ConcreteArray, array_spec, wrap
from volta_fn.core.aval import ShapedArray
from volta_fn.core.device import Device
from volta_fn.core.flatten import FlatFunction, argument_labels
from volta_fn.core.garbage import uncollected
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.staging import hoist_tracers, trace_to_jaxpr
from volta_fn.jit.eager import solid

#: References to a donated buffer that nobody else has: its array's, those of two lists, and getrefcount's argument.
_OWN = 4


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
    with uncollected():
        run_flat = device.backend.compile(traced.jaxpr, traced.donated)
    specs = [array_spec(a, device) for a in traced.jaxpr.out_avals]
    out_tree = traced.out_tree

    if any(traced.donated):
        return _donating(traced, device, run_flat, specs)

    if out_tree == tree.structure(0):
        return _one_result(run_flat, specs[0], len(traced.donated))

    def run(args: Sequence[Any]) -> Any:
        outs = run_flat(False, *[a._buffer for a in args])
        return tree.unflatten(out_tree, [wrap(solid(o), s) for o, s in zip(outs, specs, strict=True)])

    return run


def _donating(traced: Traced, device: Device, run_flat: Callable[..., Any], specs: Sequence[ArraySpec]) -> Callable[[Sequence[Any]], Any]:
    """The same for a program with donated arguments, which are deleted afterwards. All of a training step's arrays come through here."""
    out_tree, exclusive = traced.out_tree, device.backend.exclusive
    donated = [number for number, flag in enumerate(traced.donated) if flag]
    gone = [(number, array_spec(traced.jaxpr.in_avals[number], device).gone) for number in donated]
    #: NumPy may have made scalars of these.
    scalars = [number for number, spec in enumerate(specs) if not spec.aval.shape]

    def run_donating(args: Sequence[Any]) -> Any:
        buffers = [a._buffer if a._buffer is not None else a.buffer() for a in args]
        given = [buffers[number] for number in donated]
        # A buffer that is passed twice stands twice in the first list, so it has more references, too.
        mine = max(map(getrefcount, given)) <= _OWN and exclusive(given)
        outs = run_flat(mine, *buffers)
        for number, spec in gone:
            array = args[number]
            array._buffer, array._spec = None, spec
        results = [wrap(o, s) for o, s in zip(outs, specs, strict=True)]
        for number in scalars:
            results[number]._buffer = solid(outs[number])
        return tree.unflatten(out_tree, results)

    return run_donating


def _one_result(run_flat: Callable[..., Sequence[Any]], spec: ArraySpec, arity: int) -> Callable[[Sequence[Any]], ConcreteArray]:
    """A program with one array as its result; written out for one and two arguments, where every call counts."""
    ndarray = np.ndarray

    def unary(args: Sequence[Any]) -> ConcreteArray:
        (x,) = args
        (out,) = run_flat(False, x._buffer)
        return wrap(out if type(out) is ndarray else solid(out), spec)

    def binary(args: Sequence[Any]) -> ConcreteArray:
        x, y = args
        (out,) = run_flat(False, x._buffer, y._buffer)
        return wrap(out if type(out) is ndarray else solid(out), spec)

    def nary(args: Sequence[Any]) -> ConcreteArray:
        (out,) = run_flat(False, *[a._buffer for a in args])
        return wrap(solid(out), spec)

    return {1: unary, 2: binary}.get(arity, nary)


def trace_function(function: Callable[..., Any], leaves: Sequence[Any], in_tree: Any, avals: Sequence[ShapedArray], name: str) -> Traced:
    """Write down `function` for arguments of these types."""
    flat = FlatFunction(function, in_tree)
    labels = argument_labels(function, in_tree, len(leaves))
    with uncollected():
        closed = trace_to_jaxpr(flat, avals, name, labels)
    program, captured = hoist_tracers(closed)
    return Traced(program, flat.out_tree, captured, (), name)


def compiled_for(traced: Traced, device: Device) -> Callable[[Sequence[Any]], Any]:
    """The compiled function of a traced program, made once per device."""
    key = ("compiled", device)
    run = traced.jaxpr.cache.get(key)
    return run or traced.jaxpr.cache.setdefault(key, compiled(traced, device))
