"""Compile traced programs for a device, as functions of arrays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any, NamedTuple

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import DELETED, ArraySpec, ConcreteArray, array_spec, wrap
from volta_fn.core.devices.device import Device, Executable
from volta_fn.core.devices.distribution import compiled, same_in_all_processes
from volta_fn.core.functions import leaf_structure
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.jit.eager import PIPELINE, as_buffer
from volta_fn.jit.traced import TracedProgram, gc_paused, with_wide_inputs
from volta_fn.lazy_imports import deferred

_RUNTIME_MEMORY = deferred("volta_fn.runtime.memory")
#: References to a donated buffer that nothing else uses: those of the lists `buffers` and `donated_buffers` of `_donating`, and
#: the argument of getrefcount.
_EXCLUSIVE_REFERENCES = 3
#: Held while arrays are marked as donated: of several threads that donate an array, one has it.
_donation = threading.Lock()


class FunctionOfArrays(NamedTuple):
    """A compiled program as a function from arrays to the result's pytree."""

    #: The function of a sequence of arrays.
    run: Callable[[Sequence[Any]], Any]
    #: The built-in of the arrays as separate arguments, which takes less time; None if there is none.
    builtin: Callable[..., Any] | None = None


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
        if (hook := compile_hook) is None:
            executable = compiled(traced.jaxpr, device, traced.donated, PIPELINE)
        else:
            same_in_all_processes(traced.jaxpr, device)
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
            raise _RUNTIME_MEMORY.explained(error, traced.jaxpr) from None
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
                raise _RUNTIME_MEMORY.explained(error, traced.jaxpr) from None
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
            raise _RUNTIME_MEMORY.explained(error, closed) from None
        return wrap(out if type(out) is ndarray else as_buffer(out), spec)

    def binary(args: Sequence[Any]) -> ConcreteArray:
        x, y = args
        try:
            (out,) = run_flat(False, x._buffer, y._buffer)
        except MemoryError as error:
            raise _RUNTIME_MEMORY.explained(error, closed) from None
        return wrap(out if type(out) is ndarray else as_buffer(out), spec)

    def nary(args: Sequence[Any]) -> ConcreteArray:
        try:
            (out,) = run_flat(False, *[a._buffer for a in args])
        except MemoryError as error:
            raise _RUNTIME_MEMORY.explained(error, closed) from None
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
