"""Functions of several primitives that become one program when they are repeated.

`fused` marks such a function. Under a transform, in a jitted function, on a GPU and without machine code it is as if unmarked. Otherwise a
call looks for the program of its *signature*: the types of the arrays among its arguments, also of those in lists, and the values of all
others. `runtime/repeated.py` says when a program is compiled.

A marked function must compute the same whether or not it knows its arrays' elements: one that raises errors for some elements (such as
indices out of range) would no longer do so. One that needs them stays as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from volta_fn import tree
from volta_fn.core.array import Array, ConcreteArray
from volta_fn.core.aval import ShapedArray
from volta_fn.core.device import Device, current_default_device, default_device
from volta_fn.core.dispatch import Finder, MakeFinder, when_available
from volta_fn.core.flatten import function_name
from volta_fn.core.jaxpr import Var
from volta_fn.core.trace import EVAL, current_trace
from volta_fn.jit.compile import Traced, compiled, trace_function
from volta_fn.jit.eager import common_device, eager_kernel
from volta_fn.jit.views import repeat_view
from volta_fn.lazy_imports import deferred
from volta_fn.runtime.repeated import Repeated, shares_memory
from volta_fn.settings import current as settings

F = TypeVar("F", bound=Callable[..., Any])

_CPU = deferred("volta_fn.targets.cpu_device")

#: Signatures kept per function before all are dropped.
_CACHE_LIMIT = 1024
#: Elements of an argument from which on a call may become a program.
_SMALLEST = 512
_ARRAY = object()


class _NoSignatureError(Exception):
    """An argument is neither an array, nor a list of them, nor a hashable constant."""


def fused(function: F) -> F:
    """Make a function of arrays one program when it is repeated; see the module."""
    programs: dict[Any, Callable[..., Any]] = {}
    #: Compiled programs of calls with nothing but arrays, by their specs.
    compiled: dict[Any, Callable[..., Any]] = {}
    find: Finder | None = None
    _KEPT.append((programs, compiled))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return find(*args) if find is not None and not kwargs else unknown(*args, **kwargs)

    def unknown(*args: Any, **kwargs: Any) -> Any:
        if current_trace() is not EVAL or not _is_large(args) or settings.sees_results:
            return function(*args, **kwargs)
        arrays: list[ConcreteArray] = []
        try:
            signature = _signature(args, arrays)
            if kwargs:
                signature = (signature, *kwargs, _signature(kwargs.values(), arrays))
            run = programs.get(signature)
        except (_NoSignatureError, TypeError):  # TypeError: a constant that cannot be hashed
            return function(*args, **kwargs)
        if run is None:
            if len(programs) >= _CACHE_LIMIT:
                programs.clear()
                compiled.clear()
            run = programs[signature] = _first(function, args, kwargs, arrays)
            if isinstance(run, Repeated) and not kwargs and all(type(arg) is ConcreteArray for arg in args):
                run.then = functools.partial(remember, tuple([a._spec for a in arrays]))
        return run(arrays, args, kwargs)

    def remember(specs: tuple[Any, ...], run: Callable[..., Any]) -> None:
        compiled[specs] = run.of_arrays  # type: ignore[attr-defined]  # functions carry attributes

    def install(make: MakeFinder) -> None:
        nonlocal find
        find = make(compiled, unknown)

    when_available(install)
    return call  # type: ignore[return-value]


#: The programs of all marked functions.
_KEPT: list[tuple[dict[Any, Any], dict[Any, Any]]] = []


def forget_fused() -> None:
    """Drop the programs of all marked functions, which settings change."""
    for kept in (kept for pair in _KEPT for kept in pair):
        kept.clear()


def _is_large(args: Sequence[Any]) -> bool:
    """Return True if an argument is a large array, or a list of some."""
    for arg in args:
        kind = type(arg)
        if kind is ConcreteArray:
            if arg._spec.aval.size >= _SMALLEST:
                return True
        elif (kind is list or kind is tuple) and _is_large(arg):
            return True
    return False


def _signature(values: Any, arrays: list[ConcreteArray]) -> tuple[Any, ...]:
    """Return what programs are found by, and add the arrays to `arrays`."""
    found: list[Any] = []
    for value in values:
        kind = type(value)
        if kind is ConcreteArray:
            arrays.append(value)
            found.append(value._spec)
        elif kind in (list, tuple):
            found.append((kind, _signature(value, arrays)))
        elif kind in (float, complex):
            found.append(repr(value))  # in which 0.0 and -0.0 differ, and NaN is itself
        elif isinstance(value, Array) or hasattr(value, "__array__"):
            raise _NoSignatureError
        else:
            found.append((kind, value))
    return tuple(found)


def _first(function: Callable[..., Any], args: Any, kwargs: Any, arrays: Sequence[ConcreteArray]) -> Callable[..., Any]:
    """Return what runs the calls with a signature, given the first one."""

    def as_it_is(arrays: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)

    device = common_device(arrays)
    if device.platform != "cpu" or device.backend.target is None or current_default_device() is not device:
        return as_it_is
    make = _Make(function, args, kwargs, arrays, device)
    return Repeated(as_it_is, make, pays=make.pays)


class _Make:
    """Makes what a repeated call becomes: a program, or what makes a view again."""

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: Any, arrays: Sequence[ConcreteArray], device: Device) -> None:
        self._function, self._arguments = function, _without_arrays((args, kwargs))
        self._avals, self._device = [array.aval for array in arrays], device
        self._view: Callable[..., Any] | None = None

    def pays(self, result: Any, arrays: Sequence[ConcreteArray], *arguments: Any) -> bool:
        """Return True unless the result shares memory with arguments in another way."""
        if not any(shares_memory(leaf._buffer, [a._buffer for a in arrays]) for leaf in tree.leaves(result)):
            return True
        self._view = repeat_view(self._applied, result, arrays[0]) if len(arrays) == 1 else None
        return self._view is not None

    def _applied(self, *arrays: Any) -> Any:
        args, kwargs = _with_arrays(self._arguments, iter(arrays))
        return self._function(*args, **kwargs)

    def __call__(self) -> Callable[..., Any]:
        return _with_arguments(self._view or _program(self._applied, self._function, self._avals, self._device))


def _program(flat: Callable[..., Any], function: Callable[..., Any], avals: Sequence[ShapedArray], device: Device) -> Callable[..., Any]:
    """Compile a function of arrays alone."""
    leaves = [0] * len(avals)
    with default_device(device):
        traced = trace_function(flat, leaves, tree.structure((tuple(leaves), {})), avals, function_name(function))
    if not traced.captured and not traced.in_full and (single := _in_numpy(traced)) is not None:
        return single
    traced.donated = (False,) * len(avals)
    run = compiled(traced, device)
    return getattr(run, "of_arrays", None) or (lambda *arrays: run(arrays))


def _in_numpy(traced: Traced) -> Callable[..., Any] | None:
    """Return a program of one primitive as its eager kernel, if that is faster."""
    program = traced.jaxpr.jaxpr
    if len(program.eqns) != 1 or program.constvars or traced.out_tree != tree.structure(0):
        return None
    (eqn,) = program.eqns
    if program.outvars != eqn.outvars or not _CPU.is_faster_in_numpy(eqn.primitive, [v.aval for v in eqn.invars]):
        return None
    numbers = [program.invars.index(v) if isinstance(v, Var) else v.val for v in eqn.invars]
    run: Callable[..., Any] | None = None

    def apply(*arrays: Any) -> Any:
        nonlocal run
        operands = [arrays[n] if type(n) is int else n for n in numbers]
        if run is None:
            run = eager_kernel(eqn.primitive, operands, eqn.params)
        result = run(*operands)
        return result[0] if eqn.primitive.multiple_results else result

    return apply


def _with_arguments(run: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of arrays one that is called with the arguments as well."""

    def call(arrays: Sequence[ConcreteArray], args: Any, kwargs: Any) -> Any:
        return run(*arrays)

    call.of_arrays = run  # type: ignore[attr-defined]  # functions carry attributes
    return call


def _without_arrays(value: Any) -> Any:
    """Replace the arrays in nested lists, tuples and dicts by `_ARRAY`."""
    if type(value) is ConcreteArray:
        return _ARRAY
    if type(value) is dict:
        return {name: _without_arrays(entry) for name, entry in value.items()}
    return type(value)(map(_without_arrays, value)) if type(value) in (list, tuple) else value


def _with_arrays(value: Any, arrays: Iterator[Array]) -> Any:
    """Replace `_ARRAY` by the next of the arrays."""
    if value is _ARRAY:
        return next(arrays)
    if type(value) is dict:
        return {name: _with_arrays(entry, arrays) for name, entry in value.items()}
    return type(value)([_with_arrays(entry, arrays) for entry in value]) if type(value) in (list, tuple) else value
