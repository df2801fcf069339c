"""Functions written down as programs, and programs compiled to functions of arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from volta_fn import tree
from volta_fn.compiler.lifetimes import bytes_of
from volta_fn.compiler.memory import Memory
from volta_fn.compiler.passes.driver import simplify
from volta_fn.compiler.plan import Plan, make_plan
from volta_fn.core.array import Array, ConcreteArray, array_spec, as_value
from volta_fn.core.aval import ShapedArray, ShapeDtypeStruct
from volta_fn.core.device import Device
from volta_fn.core.flatten import FlatFunction, argument_labels
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.staging import hoist_tracers, trace_to_jaxpr
from volta_fn.errors import ArgumentTypeError
from volta_fn.jit.eager import check_not_donated, solid


@dataclass(slots=True)
class Traced:
    """A function's program for one structure and set of types of arguments."""

    jaxpr: ClosedJaxpr
    out_tree: Any
    #: Tracers of outer traces that the function closed over, passed as leading arguments.
    captured: list[Array]
    donated: tuple[bool, ...]
    name: str


class Lowered:
    """A traced function to look at: its program (`jaxpr`), what the compiler makes of it (`simplified`), its plan, its compiled form."""

    def __init__(self, traced: Traced, in_tree: Any, device: Device) -> None:
        self._traced = traced
        self._in_tree = in_tree
        self._device = device

    @property
    def jaxpr(self) -> ClosedJaxpr:
        """The program as it was traced."""
        return self._traced.jaxpr

    @property
    def simplified(self) -> ClosedJaxpr:
        """The program that is planned: the same values with less work."""
        return simplify(self._traced.jaxpr)

    @property
    def out_info(self) -> Any:
        """The results' shapes and dtypes, as a pytree of `ShapeDtypeStruct`."""
        return tree.unflatten(self._traced.out_tree, [struct_of(a) for a in self._traced.jaxpr.out_avals])

    @property
    def plan(self) -> Plan:
        """The straight-line plan that would run."""
        return make_plan(self._traced.jaxpr, self._traced.donated)

    def memory(self) -> Memory:
        """What the compiled program needs of memory, in bytes, known without running it.

        >>> import volta_fn as vf
        >>> vf.jit(lambda x: x @ x + 1.0).lower(vf.numpy.ones((16, 16))).memory().results
        1024
        """
        program = self._traced.jaxpr
        arguments, results = (sum(bytes_of(a) for a in avals) for avals in (program.in_avals, program.out_avals))
        return Memory(arguments, results, self._device.backend.temporaries(program, self._traced.donated))

    def as_text(self) -> str:
        """The program in JAX's notation."""
        return str(self._traced.jaxpr)

    def compile(self) -> Callable[..., Any]:
        """The compiled function, of arguments (but the static ones) of exactly the types that it was lowered for.

        It raises `ArgumentTypeError` for others.
        """
        traced, in_tree = self._traced, self._in_tree
        run = compiled(traced, self._device)
        wanted = [(a.shape, a.dtype) for a in traced.jaxpr.in_avals]

        def call(*args: Any, **kwargs: Any) -> Any:
            leaves, structure = tree.flatten((args, kwargs))
            values = [as_value(x) for x in leaves]
            if structure != in_tree or [(v.shape, v.dtype) for v in values] != wanted:
                raise ArgumentTypeError(
                    f"{traced.name} was compiled for arguments of structure {in_tree} and types {traced.jaxpr.in_avals}, "
                    f"but called with {structure} and {[v.aval for v in values]}"
                )
            check_not_donated(values)
            return run(values)

        return call


def struct_of(aval: ShapedArray) -> ShapeDtypeStruct:
    """The public description of an aval."""
    return ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def compiled(traced: Traced, device: Device) -> Callable[[Sequence[Any]], Any]:
    """The traced program as a function from a list of concrete arrays to the result's pytree."""
    run_flat = _flat_program(traced, device)
    specs = [array_spec(a, device) for a in traced.jaxpr.out_avals]
    out_tree = traced.out_tree
    donating = any(traced.donated)

    if out_tree == _LEAF and not donating:
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


_LEAF = tree.structure(0)


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
