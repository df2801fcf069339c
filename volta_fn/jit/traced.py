"""Traced programs: a function's program for one set of types, and its cost."""

from __future__ import annotations

import gc
import math
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from volta_fn.core.arrays.array import Array
from volta_fn.core.arrays.memory import Donations, pair_by_path, usable
from volta_fn.core.aval import ShapedArray
from volta_fn.core.devices.device import Device
from volta_fn.core.functions import FlatFunction, argument_labels
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, sub_jaxprs
from volta_fn.core.named_axes import read_mesh
from volta_fn.core.staging import hoist_tracers, trace_with_wide_inputs
from volta_fn.core.trace import EVAL, current_trace
from volta_fn.primitives.elementwise.cast import widened
from volta_fn.settings import current as settings


class OtherMeshError(Exception):
    """A program is for another mesh; calls of jitted functions handle it."""


def mesh_key() -> tuple[Any, ...]:
    """Return the current mesh as an entry of keys, and note that it was read."""
    mesh = read_mesh()
    return ((mesh, mesh and mesh.axis_types),)


@dataclass(slots=True)
class TracedProgram:
    """The program of a function for one structure and set of types of arguments."""

    jaxpr: ClosedJaxpr
    out_tree: Any
    #: Tracers of outer traces that the function closed over, passed as leading arguments.
    captured: list[Array]
    donated: Donations
    name: str
    #: The positions of the arguments that the program also takes in 64 bits, after all others (`core.staging.trace_with_wide_inputs`).
    wide_inputs: list[int]
    #: The current mesh, if the trace read it: see `mesh_key`.
    mesh: tuple[Any, ...] = ()
    #: The functions that `compiled_once` returns.
    compiled_by_device: dict[Device, Callable[[Sequence[Any]], Any]] = field(default_factory=dict)

    def donate(self, donated: Sequence[bool], in_tree: Any) -> None:
        """Mark arguments as donated, and pair them with results by their paths.

        Nothing is donated to a program that captures tracers: it becomes a part of another program, whose values may be needed later.
        """
        if self.captured:
            return
        if settings.permissive:
            # Arguments whose memory no result can take are kept, and a warning says so, as in JAX.
            usable_flags = usable(donated, self.jaxpr.in_avals, self.jaxpr.out_avals)
            unused = [str(a) for a, before, after in zip(self.jaxpr.in_avals, donated, usable_flags, strict=False) if before != after]
            if unused and current_trace() is EVAL:
                warnings.warn(f"Some donated buffers were not usable: {', '.join(unused)}", UserWarning, stacklevel=2)
            donated = usable_flags
        pairs = pair_by_path(donated, in_tree, self.jaxpr.in_avals, self.out_tree, self.jaxpr.out_avals) if any(donated) else ()
        self.donated = Donations.paired((*donated, *[False] * len(self.wide_inputs)), pairs)

    def guarded_by_mesh(self, run: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
        """Return what later calls run: `run`, unless the program is for another mesh."""
        if not self.mesh:
            return run

        def run_under_mesh(values: Sequence[Any]) -> Any:
            if mesh_key() != self.mesh:
                raise OtherMeshError
            return run(values)

        return run_under_mesh


class _Pause:
    """A pause of the garbage collector that was enabled before."""


#: The pauses now, of all threads. They are weak: a signal's handler may raise before one is discarded.
_pauses: weakref.WeakSet[_Pause] = weakref.WeakSet()
_pause_lock = threading.Lock()


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector, which would scan long-lived objects repeatedly.

    Where threads pause it at once, the first that ends enables it again.
    """
    pause, enabled = _Pause(), False
    try:  # a signal's handler may raise as soon as it is disabled
        with _pause_lock:
            enabled = bool(_pauses) or gc.isenabled()  # in this order: a pause ends after it enabled the collector
            if enabled:
                _pauses.add(pause)
            gc.disable()
        yield
    finally:
        if enabled:
            gc.enable()
        _pauses.discard(pause)


def trace_function(function: Callable[..., Any], in_tree: Any, avals: Sequence[ShapedArray], name: str) -> TracedProgram:
    """Trace `function` for arguments of this structure, whose leaves have these types.

    No argument is donated until `TracedProgram.donate` is called.
    """
    flat = FlatFunction(function, in_tree)
    labels = argument_labels(function, in_tree)
    with gc_paused():
        closed, wide_inputs = trace_with_wide_inputs(flat, avals, name, labels)
    program, captured = hoist_tracers(closed)
    return TracedProgram(program, flat.out_tree, captured, Donations([False] * len(program.in_avals)), name, wide_inputs)


def with_wide_inputs(values: Sequence[Any], traced: TracedProgram) -> Sequence[Any]:
    """Return a program's arguments: the values, and some in 64 bits as well."""
    if not traced.wide_inputs:
        return values
    return [*values, *widened([values[i] for i in traced.wide_inputs], range(len(traced.wide_inputs)))]


# An estimate of a program's cost: floating-point operations, bytes of operands.


def cost_of(program: ClosedJaxpr) -> dict[str, float]:
    """Return the operations of a program, and the bytes of its inputs and outputs.

    A loop of unknown length counts as one iteration, and of the branches of a conditional the most expensive one counts.
    """
    moved = sum(a.nbytes for a in [*program.in_avals, *program.out_avals])
    return {"flops": float(_operations(program)), "bytes accessed": float(moved)}


def _operations(program: ClosedJaxpr) -> int:
    return sum(map(operations_of, program.eqns))


def operations_of(eqn: Equation) -> int:
    """Count the operations of an equation, those of its programs included."""
    name, params = eqn.primitive.name, eqn.params
    inside = [_operations(sub) for sub in sub_jaxprs(params)]
    if name == "cond":
        return max(inside, default=0)
    if inside:
        return sum(inside) * int(params.get("length", 1))
    size = sum(v.aval.size for v in eqn.outvars)
    if name == "dot_general":
        return 2 * size * math.prod(eqn.invars[0].aval.shape[a] for a in params["dimension_numbers"][0][0])
    if name == "conv_general_dilated":
        kernel = eqn.invars[1].aval
        features = kernel.shape[params["dimension_numbers"].rhs_spec[0]]
        return 2 * size * kernel.size // max(features, 1)
    if eqn.primitive.reduction is not None:
        return eqn.invars[0].aval.size
    return size if eqn.primitive.arity else 0
