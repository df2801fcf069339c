"""Eager gradients as whole programs: a function is written down while it runs, and computed when it has returned.

For each shape of recording (`recording`) a program of the value and the gradient is compiled once, and run in one call when the function
returns, in place of one call for every operation and every derivative rule. A function of a shape that was not met before is differentiated
step by step, since many are differentiated once; so is one that has settled.

Both ways do the same operations in the same order, so their results have the same bits on the CPU. Elsewhere nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import compress
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from volta_fn.core.array import Array, ArraySpec, ConcreteArray, array_spec, from_host, wrap
from volta_fn.core.aval import ShapedArray
from volta_fn.core.dce import dce_jaxpr, prune_inputs
from volta_fn.core.device import Device, current_default_device, default_device
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import Zero
from volta_fn.core.staging import trace_to_jaxpr
from volta_fn.core.trace import EVAL, current_trace, run_under
from volta_fn.primitives.call import call_params, jit_p
from volta_fn.transforms.linearize import linearize_flat
from volta_fn.transforms.recording import PROGRAM, SHAPES, RecordedTracer, RecordingTrace, redo
from volta_fn.transforms.replay import interpret, pull_back


class _Program(NamedTuple):
    """A program of the results and then the gradient: a function of buffers, which of them it reads, and what it gives."""

    run: Callable[..., Sequence[Any]]
    reads: list[bool]
    results: list[ArraySpec]
    #: For each input, the type of its cotangent: an `ArraySpec`, or an aval where there is none.
    cotangents: list[ArraySpec | ShapedArray]


#: Results of a function, and the cotangents (arrays or `Zero`) of those inputs that may have some.
Gradient = tuple[list[Array], list[Any]]


def gradient_flat(
    function: Callable[..., Sequence[Array]], values: Sequence[Array], nonzero: Sequence[bool], name: str, check: Callable[[Any], None]
) -> Gradient:
    """The results of a function of flat arrays, and the gradient of the first of them by the inputs that are `nonzero`.

    `check` raises if the results are not those of a function that has a gradient.
    """
    if current_trace() is not EVAL or not _recordable(values):
        outs, program, depends = linearize_flat(function, values, nonzero, name)
        check(outs)
        device = outs[0].device if type(outs[0]) is ConcreteArray else current_default_device()
        return _step_back(outs, program, depends, pull_back, device)
    trace = RecordingTrace(values, name)
    try:
        outs = run_under(trace, function, *trace.start())
        check(outs)
        return _finished(trace, outs)
    finally:
        trace.finish()


def _recordable(values: Sequence[Any]) -> TypeGuard[Sequence[ConcreteArray]]:
    """Whether there are inputs, all of them floating-point arrays on one CPU."""
    if not values or type(values[0]) is not ConcreteArray:
        return False
    device = values[0].device
    for value in values:
        if type(value) is not ConcreteArray or value._buffer is None:
            return False
        spec = value._spec
        if spec.device is not device or not spec.aval.is_float:
            return False
    return device.platform == "cpu"


@lru_cache(maxsize=64)
def _one(aval: ShapedArray, device: Device) -> Array:
    """The cotangent of a scalar result in its own gradient."""
    return from_host(np.ones((), aval.dtype), aval.weak_type, device)


def _step_back(
    outs: list[Array], program: ClosedJaxpr, depends: Sequence[bool], pull: Callable[..., list[Any]], device: Device
) -> Gradient:
    """The gradient by the derivative's linear program; it starts with a one on a device."""
    del program.jaxpr.outvars[depends[0] :]  # the other results need no derivative
    return outs, pull(program, [_one(outs[0].aval, device)] if depends[0] else [])


def _finished(trace: RecordingTrace, outs: Sequence[Array]) -> Gradient:
    """The gradient of what was recorded."""
    pull = pull_back
    if trace.stepwise is None and type(outs[0]) is RecordedTracer:
        program = _program_of(trace, tuple([o.number for o in outs if type(o) is RecordedTracer]))
        if program is not None:
            return _run(program, trace, outs)
        pull = interpret
    stepwise = trace.settle()
    values = [trace.settled(o) if type(o) is RecordedTracer else o for o in outs]
    return _step_back(*stepwise.end(values), pull, trace.device)


def _program_of(trace: RecordingTrace, numbers: tuple[int, ...]) -> _Program | None:
    """The program that gives the values of those numbers and the gradient of the first; None if such a one was not wanted before."""
    programs: dict[tuple[int, ...], _Program | None] = trace.node.programs
    program = programs.get(numbers)
    if program is None:
        known = numbers in programs
        SHAPES.occupy(PROGRAM if known else 1)
        program = programs[numbers] = _write_down(trace, numbers) if known else None
    return program


def _write_down(trace: RecordingTrace, numbers: Sequence[int]) -> _Program:
    """Value and gradient as a program of the inputs and the constants."""
    count = len(trace.values)
    nonzero: list[bool] = []

    def run(*flat: Array) -> list[Array]:
        inputs, constants = flat[:count], flat

        def function(*xs: Array) -> list[Array]:
            values = redo(trace.steps, current_trace().process, xs, constants)
            return [values[n] for n in numbers]

        outs, program, depends = linearize_flat(function, inputs, name=trace.name, short=True)
        outs, cotangents = _step_back(outs, program, depends, interpret, trace.device)
        nonzero[:] = [type(c) is not Zero for c in cotangents]
        return [*outs, *[c for c in cotangents if type(c) is not Zero]]

    with default_device(trace.device):  # where derivative rules make their constants
        closed = trace_to_jaxpr(run, [s.aval for s in trace.specs], trace.name)
    pruned, reads = prune_inputs(dce_jaxpr(closed), [True] * len(trace.specs))
    compute = trace.device.backend.kernel(jit_p, tuple(pruned.in_avals), call_params(pruned, trace.name))
    specs = [array_spec(a, trace.device) for a in pruned.out_avals]
    results, found = specs[: len(numbers)], iter(specs[len(numbers) :])
    cotangents = [next(found) if nz else v.aval for nz, v in zip(nonzero, trace.values, strict=True)]
    return _Program(compute, reads, results, cotangents)


def _run(program: _Program, trace: RecordingTrace, outs: Sequence[Array]) -> Gradient:
    found = iter(program.run(*compress(trace.buffers, program.reads)))
    computed = map(wrap, found, program.results)
    results = [next(computed) if type(o) is RecordedTracer else o for o in outs]
    return results, [wrap(next(found), c) if isinstance(c, ArraySpec) else Zero(c) for c in program.cotangents]
