"""Trace functions to programs, and compile these as functions of arrays."""

from __future__ import annotations

import gc
import math
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from sys import getrefcount
from typing import Any

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import DELETED, Array, ArraySpec, ConcreteArray, array_spec, wrap
from volta_fn.core.arrays.memory import Donations, pair_by_path, usable
from volta_fn.core.aval import ShapedArray
from volta_fn.core.devices.device import Device, Executable, current_default_device
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, sub_jaxprs
from volta_fn.core.staging import FlatFunction, argument_labels, hoist_tracers, leaf_structure, trace_with_wide_inputs
from volta_fn.core.trace import EVAL, current_trace, read_mesh
from volta_fn.jit.eager import PIPELINE, as_buffer
from volta_fn.lazy_imports import deferred
from volta_fn.primitives.elementwise.cast import widened
from volta_fn.settings import current as settings

# Traced programs: a function's program for one set of types.


class OtherContextError(Exception):
    """A program is for another mesh or default device; jitted functions handle it."""


def mesh_key() -> tuple[Any, ...]:
    """Return the current mesh as an entry of keys, and note that it was read."""
    return (read_mesh(),)


class TracedProgram:
    """The program of a function for one structure and set of types of arguments."""

    def __init__(
        self, jaxpr: ClosedJaxpr, out_tree: Any, captured: list[Array], donated: Donations, name: str, wide_inputs: list[int]
    ) -> None:
        self.jaxpr = jaxpr
        self.out_tree = out_tree
        #: Tracers of outer traces that the function closed over, passed as leading arguments.
        self.captured = captured
        self.donated = donated
        self.name = name
        #: The positions of the arguments that the program also takes in 64 bits, after all others (`core.staging.trace_with_wide_inputs`).
        self.wide_inputs = wide_inputs
        #: The current mesh, if the trace read it: see `mesh_key`.
        self.mesh: tuple[Any, ...] = ()
        #: The functions that `compiled_once` returns.
        self.compiled_by_device: dict[Device, Callable[[Sequence[Any]], Any]] = {}

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

    def guarded(self, run: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
        """Return what later calls run: `run`, unless the program is for another context.

        That is another mesh or, of a program without arguments, another default device.
        """
        device = None if self.jaxpr.in_avals else current_default_device()
        if not self.mesh and device is None:
            return run

        def run_in_context(values: Sequence[Any]) -> Any:
            if (self.mesh and mesh_key() != self.mesh) or device not in (None, current_default_device()):
                raise OtherContextError
            return run(values)

        return run_in_context


class _Pause:
    """A pause of the garbage collector that was enabled before."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()


#: The pauses now, of all threads. They are weak: a signal's handler may raise before one is discarded.
_pauses: weakref.WeakSet[_Pause] = weakref.WeakSet()
_pause_lock = threading.Lock()


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector, which would scan long-lived objects repeatedly.

    Where threads pause it at once, the first that ends enables it again. A pause within another of its thread changes nothing.
    """
    pause, enabled = _Pause(), False
    try:  # a signal's handler may raise as soon as it is disabled
        with _pause_lock:
            is_outer = all(other.thread != pause.thread for other in _pauses)
            enabled = (is_outer and bool(_pauses)) or gc.isenabled()  # in this order: a pause ends after it enabled the collector
            if enabled:
                _pauses.add(pause)
            gc.disable()
        yield
    finally:
        if enabled:
            gc.enable()
        with _pause_lock:
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


# Compiled programs, as functions of arrays.

_RESULT_ALLOCATOR = deferred("volta_fn.runtime.result_allocator")
#: References to a donated buffer that nothing else uses: those of the lists `buffers` and `donated_buffers` of `_donating`, and
#: the argument of getrefcount.
_EXCLUSIVE_REFERENCES = 3
#: Held while arrays are marked as donated: of several threads that donate an array, one has it.
_donation = threading.Lock()


class FunctionOfArrays:
    """A compiled program as a function from arrays to the result's pytree."""

    def __init__(self, run: Callable[[Sequence[Any]], Any], builtin: Callable[..., Any] | None = None) -> None:
        #: The function of a sequence of arrays.
        self.run = run
        #: The built-in of the arrays as separate arguments, which takes less time; None if there is none.
        self.builtin = builtin


def compile_for(traced: TracedProgram, device: Device) -> FunctionOfArrays:
    """Compile a program for a device."""
    function = _function_of_arrays(traced, device)
    if not traced.wide_inputs:
        return function
    run = function.run
    return FunctionOfArrays(lambda args: run(with_wide_inputs(args, traced)))


#: Compiles programs in place of the backend, to functions ``(donate, *buffers) -> buffers``; set while a profiler records.
compile_hook: Callable[[TracedProgram, Device], Callable[..., Any]] | None = None


def set_compile_hook(function: Callable[[TracedProgram, Device], Callable[..., Any]] | None) -> None:
    """Set the function that compiles programs in place of the backend; None for none."""
    global compile_hook
    compile_hook = function


def _function_of_arrays(traced: TracedProgram, device: Device) -> FunctionOfArrays:
    """Compile a program as a function of all its inputs, those in 64 bits included."""
    with gc_paused():
        hook = compile_hook
        if hook is None:
            executable = device.compile(traced.jaxpr, traced.donated, PIPELINE)
        else:
            device.check_program(traced.jaxpr)
            executable = Executable(hook(traced, device))
    run_flat = executable.run
    specs = [array_spec(a, device) for a in traced.jaxpr.out_avals]
    out_tree = traced.out_tree

    if any(traced.donated):
        return FunctionOfArrays(_copying_once(executable, _donating(traced, device, run_flat, specs)))

    if out_tree == leaf_structure():
        return _one_result(executable, specs[0], len(traced.donated), traced.jaxpr)

    def run(args: Sequence[Any]) -> Any:
        try:
            outs = run_flat(False, *[a._buffer for a in args])
        except MemoryError as error:
            raise _RESULT_ALLOCATOR.explained(error, traced.jaxpr) from None
        return tree.unflatten(out_tree, [wrap(as_buffer(o), s) for o, s in zip(outs, specs, strict=True)])

    for kind in (tuple, list):
        if out_tree == tree.structure(kind([0] * len(specs))):
            return _as_builtin(executable, specs, kind, run)
    return FunctionOfArrays(_copying_once(executable, run))


def _donating(
    traced: TracedProgram, device: Device, run_flat: Callable[..., Any], specs: Sequence[ArraySpec]
) -> Callable[[Sequence[Any]], Any]:
    """Wrap a program with donated arguments, which are deleted after the call."""
    out_tree, exclusive = traced.out_tree, device.backend.exclusive
    donated = [number for number, flag in enumerate(traced.donated) if flag]
    donated_specs = [(number, array_spec(traced.jaxpr.in_avals[number], device).donated) for number in donated]
    # NumPy may return scalars for these.
    scalars = [number for number, spec in enumerate(specs) if not spec.aval.shape]

    def run_donating(args: Sequence[Any]) -> Any:
        with _donation:
            buffers = [a._buffer if a._buffer is not DELETED else a.buffer() for a in args]
            specs_before = [args[number]._spec for number in donated]
            for number, spec in donated_specs:
                array = args[number]
                array._buffer, array._spec = DELETED, spec
        donated_buffers = [buffers[number] for number in donated]
        # A buffer that is passed twice is in the first list twice, so it has more references, too; as has one that another thread reads.
        is_exclusive = max(map(getrefcount, donated_buffers)) <= _EXCLUSIVE_REFERENCES and exclusive(donated_buffers)
        try:
            outs = run_flat(is_exclusive, *buffers)
        except BaseException as error:
            if not is_exclusive:  # else the elements may be overwritten
                for number, spec in zip(donated, specs_before, strict=True):
                    args[number]._buffer, args[number]._spec = buffers[number], spec
            if isinstance(error, MemoryError):
                raise _RESULT_ALLOCATOR.explained(error, traced.jaxpr) from None
            raise
        results = [wrap(o, s) for o, s in zip(outs, specs, strict=True)]
        for number in scalars:
            results[number]._buffer = as_buffer(outs[number])
        return tree.unflatten(out_tree, results)

    return run_donating


def _one_result(executable: Executable, spec: ArraySpec, arity: int, closed: ClosedJaxpr) -> FunctionOfArrays:
    """Wrap a program with one result; all variants are `nary`, unrolled for speed."""
    ndarray, run_flat = np.ndarray, executable.run

    def unary(args: Sequence[Any]) -> ConcreteArray:
        (x,) = args
        try:
            (out,) = run_flat(False, x._buffer)
        except MemoryError as error:
            raise _RESULT_ALLOCATOR.explained(error, closed) from None
        return wrap(out if type(out) is ndarray else as_buffer(out), spec)

    def binary(args: Sequence[Any]) -> ConcreteArray:
        x, y = args
        try:
            (out,) = run_flat(False, x._buffer, y._buffer)
        except MemoryError as error:
            raise _RESULT_ALLOCATOR.explained(error, closed) from None
        return wrap(out if type(out) is ndarray else as_buffer(out), spec)

    def nary(args: Sequence[Any]) -> ConcreteArray:
        try:
            (out,) = run_flat(False, *[a._buffer for a in args])
        except MemoryError as error:
            raise _RESULT_ALLOCATOR.explained(error, closed) from None
        return wrap(as_buffer(out), spec)

    run = {1: unary, 2: binary}.get(arity, nary)
    return _as_builtin(executable, [spec], None, run)


def _as_builtin(
    executable: Executable, specs: Sequence[ArraySpec], within: type[tuple] | type[list] | None, run: Callable[[Sequence[Any]], Any]
) -> FunctionOfArrays:
    """Let a built-in do what `run` does, if the program has one."""
    run = _copying_once(executable, run)
    if executable.of_arrays is None:
        return FunctionOfArrays(run)
    builtin = executable.of_arrays(specs, within, lambda *args: run(args))
    return FunctionOfArrays(lambda args: builtin(*args), builtin)


def _copying_once(executable: Executable, run: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
    """Give arguments that the program had to copy contiguous buffers."""
    # Otherwise each call would copy arrays such as `zeros`, whose buffer is a view of one element.
    copied = executable.copied
    if copied is None:
        return run

    def run_copying_once(args: Sequence[Any]) -> Any:
        result = run(args)
        if copied:
            positions = [*copied]
            copied.clear()
            for position in positions:
                array = args[position]
                buffer = array._buffer
                if type(buffer) is np.ndarray and not buffer.flags.c_contiguous:
                    copy = np.array(buffer, order="C")
                    with _donation:
                        if array._buffer is buffer:  # else it has been donated meanwhile
                            array._buffer = copy
        return result

    return run_copying_once


def compiled_once(traced: TracedProgram, device: Device) -> Callable[[Sequence[Any]], Any]:
    """Return the compiled function of a traced program, compiled once per device."""
    run = traced.compiled_by_device.get(device)
    return run or traced.compiled_by_device.setdefault(device, compile_for(traced, device).run)
