"""Functions that become one program when they are repeated, and repeated views.

`fused` marks a function of several primitives. A function whose result is a view of its argument makes that view again from its layout in
memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import Array, ConcreteArray, array_spec, wrap
from volta_fn.core.arrays.memory import common_device
from volta_fn.core.aval import ShapedArray
from volta_fn.core.caches import CallCache
from volta_fn.core.devices.device import Device, current_default_device, default_device
from volta_fn.core.jaxpr import Var
from volta_fn.core.staging import function_name, leaf_structure
from volta_fn.core.trace import EVAL, current_trace
from volta_fn.jit.compile import TracedProgram, compile_for, trace_function
from volta_fn.jit.eager import PIPELINE, array_function
from volta_fn.jit.function import jit
from volta_fn.lazy_imports import deferred
from volta_fn.primitives.declare import NoSignatureError, signature
from volta_fn.runtime.native_calls import silenced_in_context
from volta_fn.runtime.threads import Repeated, shares_memory
from volta_fn.settings import current as settings

# Functions that make a view again, from its layout in memory.
#
# Some functions of several primitives, such as `rot90`, compute nothing: their result is a view of their argument. Where an array of the
# same type is contiguous, the view of it has the same offset and strides, so it needs none of the function's steps: `flip` takes 0.65
# instead of 4.5 µs, `rot90` 0.66 instead of 9.3. NumPy takes 1.1 and 3.3, PyTorch 1.3 and 1.9.


def repeat_view(function: Callable[..., Any], result: Any, operand: ConcreteArray) -> Callable[[ConcreteArray], Any] | None:
    """Return a function like `function`, whose result for `operand` is a view of it.

    None if `result` is no such view, or one that NumPy cannot make by its layout.
    """
    if type(result) is not ConcreteArray or not _is_by_layout(result._buffer, operand._buffer):
        return None
    shape, dtype, strides, spec = result._buffer.shape, result._buffer.dtype, result._buffer.strides, result._spec
    offset, ndarray = _address(result._buffer) - _address(operand._buffer), np.ndarray

    def view(x: ConcreteArray) -> Any:
        buffer = x._buffer
        if not buffer.flags.c_contiguous:
            return function(x)
        return wrap(ndarray(shape, dtype, buffer, offset, strides), spec)

    return view


def _is_by_layout(view: Any, base: Any) -> bool:
    """Return True if one NumPy array is part of the other, in dtypes of NumPy's own."""
    builtin = isinstance(view, np.ndarray) and view.dtype.isbuiltin == 1 and base.dtype.isbuiltin == 1
    return builtin and view is not base and view.size > 0 and base.flags.c_contiguous and np.may_share_memory(view, base)


def _address(buffer: np.ndarray) -> int:
    address: int = buffer.__array_interface__["data"][0]
    return address


# Functions that become one program when they are repeated.
#
# `fused` marks such a function, of several primitives or of one with arguments that take long to check. Under a transform, in a jitted
# function, on a GPU and without machine code it is as if unmarked. Otherwise a call looks for the program of its *signature*
# (`primitives/declare.py`): the types of the arrays among its arguments, also of those in lists, and the values of all others.
# `runtime/threads.py` says when a program is compiled. So the arguments of a signature are checked and converted twice, and never again.
#
# A marked function must compute the same whether or not it knows its arrays' elements: one that raises errors for some elements (such as
# indices out of range) would no longer do so. One that needs them stays as it is.

F = TypeVar("F", bound=Callable[..., Any])

_CPU = deferred("volta_fn.targets.cpu_device")

#: Signatures kept per function before all are dropped.
_MOST_SIGNATURES = 1024
#: Elements of an array from which on a call may become a program, and the most elements of a result that is kept to be copied.
_SMALLEST, _MOST_KEPT = 512, 4096
#: The most elements of results that are copied although they could be views: it takes less time than one primitive.
_MOST_COPIED = 4096
_ARRAY = object()


def fused(function: F) -> F:
    """Make a function of arrays one program when it is repeated; see the module.

    Calls without a large array stay as they are.
    """
    return _fused(function, False)


def fused_by_results(function: F) -> F:
    """Make a function one program like `fused`, if its results are large.

    They may have more elements than its arguments. Those of calls without any array, if small, are kept and copied.
    """
    return _fused(function, True)


def compiled(function: F, static_argnums: Sequence[int] = ()) -> F:
    """Make a function one program from its first call on, like `jit`.

    Under a trace it is as if unmarked. It is for functions with loops, whose iterations would take long one by one. A last digit may decide
    when such a loop ends, so first calls must not compute differently from later ones, as those of `fused` do.
    """
    program = jit(function, static_argnums=static_argnums)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return (program if current_trace() is EVAL else function)(*args)

    form: Any = call
    return form


def _fused(function: F, grows: bool) -> F:
    cache = CallCache("marked functions", ("calls", "programs"), _MOST_SIGNATURES)
    #: By signature: functions of the call's arrays alone, and those of the first calls, which are called with the arguments as well.
    repeated, programs = cache.table("calls"), cache.table("programs")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if current_trace() is not EVAL:
            return function(*args, **kwargs)
        if args and not kwargs and type(args[-1]) is ConcreteArray:  # most calls are of arrays alone
            try:
                run = repeated.get((args[0]._spec,) if len(args) == 1 else tuple([x._spec for x in args]))
            except AttributeError:
                run = None
            if run is not None:
                return run(*args)
        if not (grows or _is_large(args)):
            return function(*args, **kwargs)
        arrays: list[ConcreteArray] = []
        try:
            key = signature(args, kwargs, arrays)
            run = repeated.get(key)
        except (NoSignatureError, TypeError):  # TypeError: a constant that cannot be hashed
            return function(*args, **kwargs)
        return first_calls(key, args, kwargs, arrays) if run is None else run(*arrays)

    def first_calls(key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any], arrays: list[ConcreteArray]) -> Any:
        if settings.sees_results:
            return function(*args, **kwargs)
        run = programs.get(key)
        if run is None:
            run = cache.add("programs", key, _first(function, args, kwargs, arrays))
            if isinstance(run, Repeated):
                run.on_settled = functools.partial(remember, key)
        return run(arrays, args, kwargs)

    def remember(key: tuple[Any, ...], run: Callable[..., Any]) -> None:
        if hasattr(run, "of_arrays"):
            cache.add("calls", key, run.of_arrays, 0)

    form: Any = call
    return form


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


def _first(function: Callable[..., Any], args: Any, kwargs: Any, arrays: Sequence[ConcreteArray]) -> Callable[..., Any]:
    """Return what runs the calls with a signature, from the first of them."""

    def call_directly(arrays: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)

    device = common_device(arrays)
    if any(a.device.sharding is not None for a in arrays):  # each step splits its results
        return call_directly
    if device.platform != "cpu" or device.backend.target is None or current_default_device() is not device:
        return call_directly
    make = _ProgramMaker(function, args, kwargs, arrays, device) if arrays else _CopyMaker(device, lambda: function(*args, **kwargs))
    return Repeated(call_directly, make, pays=make.pays)


class _CopyMaker:
    """Makes what a repeated call without arrays becomes: copies of its result."""

    def __init__(self, device: Device, call: Callable[[], Any]) -> None:
        self._device, self._call = device, call
        self._result: Any = None

    def pays(self, result: Any, *arguments: Any) -> bool:
        """Return True if the result is a small array of the CPU's with a dtype of its own."""
        is_array = type(result) is ConcreteArray and result.device is self._device and not result.weak_type
        if not is_array or result.size > _MOST_KEPT:
            return False
        self._result = result
        return True

    def __call__(self) -> Callable[..., Any]:
        spec, device, call = self._result._spec, self._device, self._call
        copy = np.array(self._result.buffer()).copy  # of a copy, since the result's elements may be overwritten

        def copied() -> Any:
            return wrap(copy(), spec) if current_default_device() is device else call()

        return _with_arguments(copied)


class _ProgramMaker:
    """Makes what a repeated call becomes: a program, or a function that makes a view."""

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: Any, arrays: Sequence[ConcreteArray], device: Device) -> None:
        self._function, self._arguments = function, _without_arrays((args, kwargs))
        self._avals, self._device = [array.aval for array in arrays], device
        self._view: Callable[..., Any] | None = None

    def pays(self, result: Any, arrays: Sequence[ConcreteArray], *arguments: Any) -> bool:
        """Return True if an array is large and not all results are large views."""
        results = tree.leaves(result)
        if not _is_large([*arrays, *results]):
            return False
        if not any(shares_memory(leaf._buffer, [a._buffer for a in arrays]) for leaf in results):
            return True
        self._view = repeat_view(self._apply, result, arrays[0]) if len(arrays) == 1 else None
        return self._view is not None or sum(leaf.size for leaf in results) <= _MOST_COPIED

    def _apply(self, *arrays: Any) -> Any:
        args, kwargs = _with_arrays(self._arguments, iter(arrays))
        return self._function(*args, **kwargs)

    def __call__(self) -> Callable[..., Any]:
        return _with_arguments(self._view or _program(self._apply, self._function, self._avals, self._device))


def _program(flat: Callable[..., Any], function: Callable[..., Any], avals: Sequence[ShapedArray], device: Device) -> Callable[..., Any]:
    """Compile a function of arrays alone."""
    in_tree = tree.structure(((0,) * len(avals), {}))
    with default_device(device):
        traced = trace_function(flat, in_tree, avals, function_name(function))
    if not traced.captured and not traced.wide_inputs and (single := _in_numpy(traced, device)) is not None:
        return single
    executable = compile_for(traced, device)
    run = executable.run
    return executable.builtin or (lambda *arrays: run(arrays))


def _in_numpy(traced: TracedProgram, device: Device) -> Callable[..., Any] | None:
    """Return a program of one primitive that NumPy computes, as a function of arrays."""
    program = traced.jaxpr.jaxpr
    if len(program.eqns) != 1 or program.constvars or traced.out_tree != leaf_structure():
        return None
    (eqn,) = program.eqns
    plain = _CPU.left_to_numpy(device.backend, eqn, PIPELINE) if program.outvars == eqn.outvars else None
    if plain is None:
        return None
    numbers = [program.invars.index(v) if isinstance(v, Var) else v.val.buffer() for v in eqn.invars]

    in_order = numbers == list(range(len(program.invars))) and not eqn.primitive.multiple_results
    run = plain if in_order else _of_arguments(plain, numbers, len(program.invars), eqn.primitive.multiple_results)
    (spec,) = (array_spec(v.aval, device) for v in eqn.outvars)
    return array_function(silenced_in_context(run, len(program.invars)), spec, len(program.invars))


def _of_arguments(plain: Callable[..., Any], numbers: Sequence[Any], arity: int, several: bool) -> Callable[..., Any]:
    """Return a function of a program's arguments.

    `numbers` has, for each operand, which argument it is, or a constant.
    """
    if arity == 1 and len(numbers) == 2 and type(numbers[0]) is int and type(numbers[1]) is not int and not several:
        constant = numbers[1]
        return lambda x: plain(x, constant)  # the most frequent case, in less time

    def apply(*buffers: Any) -> Any:
        result = plain(*[buffers[n] if type(n) is int else n for n in numbers])
        return result[0] if several else result

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
