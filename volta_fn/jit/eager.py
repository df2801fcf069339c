"""Eager evaluation: a kernel per primitive, parameters and operands' types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn import targets as _targets  # noqa: F401  # registers the CPU and GPUs
from volta_fn.core.arrays.array import ArraySpec, ConcreteArray, alias, array_spec, number_of, with_number, wrap
from volta_fn.core.arrays.memory import common_device
from volta_fn.core.aval import ShapedArray
from volta_fn.core.caches import LruCache, clear_all
from volta_fn.core.devices.device import Device, current_default_device, find_device
from volta_fn.core.jaxpr import constraints_of, devices_of, sub_jaxprs
from volta_fn.core.primitive import Primitive, parameter_key
from volta_fn.core.trace import Tracer, raise_leaked, set_evaluator
from volta_fn.lazy_imports import deferred
from volta_fn.primitives.call import jit_p
from volta_fn.primitives.elementwise.cast import keeps_number
from volta_fn.runtime.threads import Repeated
from volta_fn.settings import current as settings

#: The compiler's pipeline, which targets get lowered programs from. It is loaded when the first program is compiled.
PIPELINE = deferred("volta_fn.compiler.pipeline")
#: What only debugging needs.
_INTERPRET = deferred("volta_fn.jit.interpret")
#: What only arrays that are split between devices need.
SHARDED = deferred("volta_fn.jit.sharded")


def on_device(arrays: Sequence[Any], device: Device) -> Sequence[Any]:
    """Copy those of the arrays that are on other devices to `device`."""
    if all(a.device is device for a in arrays):
        return arrays
    return [a if a.device is device else _copied(a, device) for a in arrays]


def _copied(array: ConcreteArray, device: Device) -> ConcreteArray:
    """Return an array on another device; of the same memory, without a copy."""
    if array.device.backend is device.backend:
        return wrap(array.buffer(), array_spec(array.aval, device))
    if array.nbytes > _RETAINED_BYTES:
        return alias(array, device)
    entry = _copies.get((id(array), device))
    if entry is None:
        entry = _copies.setdefault((id(array), device), (array, alias(array, device)))
    return entry[1]


#: The most bytes of an array whose copy is retained: 256 larger ones could fill the memory.
_RETAINED_BYTES = 1 << 16

#: The last copies of arrays on other devices, each with the array, by the array's identity: arrays have no hash.
_copies: LruCache[tuple[ConcreteArray, ConcreteArray]] = LruCache(256)


def _evaluate(primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
    if primitive.impl is not None:
        return primitive.impl(*args, **params)
    key: tuple[Any, ...] = tuple([a._spec for a in args])
    kernels = primitive.eager_kernels
    if params or not args:
        key = (*key, *parameter_key(params), None if args else current_default_device())
        programs = sub_jaxprs(params) if primitive.holds_programs else ()
        # A kernel must not outlive the program or the callback that it runs.
        callee = programs[0] if programs else params.get("callback")
        if (callee_kernels := getattr(callee, "eager_kernels", None)) is not None:
            kernels, key = callee_kernels, (primitive, *key)
    run = kernels.get(key)
    if run is None:
        run = eager_kernel(primitive, args, params, kernels)
        if settings.rank_promotion != "allow":  # who calls decides whether it may run
            return run(*args)
        if kernels is primitive.eager_kernels:
            primitive.cache.reserve(1)
        kernels[key] = run
    return run(*args)


def eager_kernel(
    primitive: Primitive, args: Sequence[Any], params: dict[str, Any], cache: dict[Any, Any] | None = None
) -> Callable[..., Any]:
    """Make a function that runs a primitive on arrays of the types of `args`.

    If there is a faster one later, it is replaced in the cache.
    """
    check_usable(args)
    if primitive.holds_programs and any(map(devices_of, sub_jaxprs(params))):
        on_all: Callable[..., Any] = SHARDED.kernel_on_all_devices(primitive, args, params)
        return on_all
    constrains = primitive.holds_programs and any(map(constraints_of, sub_jaxprs(params)))
    if constrains or any(a.device.sharding is not None for a in args):
        sharded: Callable[..., Any] = SHARDED.sharded_kernel(primitive, args, params)
        return sharded
    return single_device_kernel(primitive, args, params, cache)


def single_device_kernel(
    primitive: Primitive, args: Sequence[Any], params: dict[str, Any], cache: dict[Any, Any] | None = None
) -> Callable[..., Any]:
    """Make such a function for arrays that are not split between devices."""
    avals = tuple([a.aval for a in args])
    # What a loop or a conditional closes over counts as an operand, what a jitted function closes over does not, as in JAX.
    programs = sub_jaxprs(params) if primitive.holds_programs and primitive is not jit_p else []
    captured = [c for p in programs for c in p.consts if type(c) is ConcreteArray and c.device.sharding is None]
    device = common_device([*args, *captured])
    out_avals = primitive.abstract(*avals, **params)
    if any(a.device is not device for a in args):
        run = single_device_kernel(primitive, on_device(args, device), params)
        return lambda *args: run(*on_device(args, device))
    if (settings.sees_results or settings.disable_jit) and (in_python := _INTERPRET.structured(primitive, params, device)) is not None:
        return in_python
    # A program derived of a jitted one is compiled.
    if primitive is not jit_p:
        compute: Callable[..., Any] = device.backend.kernel(primitive, avals, params, PIPELINE)
    else:
        compute = partial(device.compile(params["jaxpr"], (False,) * len(avals), PIPELINE).run, False)
    if settings.sees_results:
        compute = _refusing_nonfinite(compute, primitive, device)
    several = primitive.multiple_results
    specs = [array_spec(a, device) for a in (out_avals if several else (out_avals,))]
    run = _several_results(compute, specs) if several else array_function(compute, specs[0], len(args))
    if isinstance(compute, Repeated) and cache is not None:
        compute.on_settled = lambda faster: _replace(cache, run, _of_arrays(faster, specs, len(args), several))
    return run if several or not _keeps_number(primitive, args, out_avals) else _with_number(run, primitive, args, params)


def _refusing_nonfinite(compute: Callable[..., Any], primitive: Primitive, device: Device) -> Callable[..., Any]:
    """Let a kernel raise `NonFiniteError` for results that the settings refuse."""
    kinds = [(settings.debug_nans, np.isnan, "nan"), (settings.debug_infs, np.isinf, "inf")]
    checks = [(is_refused, name) for is_on, is_refused, name in kinds if is_on]
    on_host = device.backend.get

    def compute_finite(*buffers: Any) -> Any:
        outs = compute(*buffers)
        results = outs if primitive.multiple_results else [as_buffer(outs)]
        for result in results:
            values = np.asarray(on_host(result))
            for is_refused, name in checks if values.dtype in dtypes.INEXACT else ():
                mask = np.asarray(is_refused(values))
                if mask.any():
                    raise _INTERPRET.refused(name, primitive, buffers, on_host, mask)
            if values.dtype in dtypes.INEXACT and np.isinf(values).any():
                _INTERPRET.note_infinite(primitive, buffers, result)
        return results if primitive.multiple_results else results[0]

    return compute_finite


def forget_kernels() -> None:
    """Drop the kernels and result types of all primitives, which settings change."""
    clear_all("operations")


def _keeps_number(primitive: Primitive, args: Sequence[Any], out: ShapedArray) -> bool:
    """Return True if a result is made of Python numbers alone, and so keeps its own."""
    are_numbers = all(a.dtype in dtypes.WIDE_NUMBERS and number_of(a) is not None for a in args)
    return are_numbers and keeps_number(primitive) and out.weak_type and out.dtype in dtypes.WIDE_NUMBERS


def _with_number(run: Callable[..., Any], primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Callable[..., Any]:
    """Let a kernel of Python numbers compute the wide value of its result as well."""
    if not primitive.arity:
        return lambda x: with_number(run(x), x._number)
    wide = [dtypes.WIDE_NUMBERS[a.dtype] for a in args]
    avals = tuple([ShapedArray((), dtype, True) for dtype in wide])
    compute: Callable[..., Any] = find_device("cpu").backend.kernel(primitive, avals, params, PIPELINE)

    def with_wide_value(*args: Any) -> ConcreteArray:
        number = compute(*[np.asarray(a._number, dtype) for a, dtype in zip(args, wide, strict=True)])
        return with_number(run(*args), number.item())

    return with_wide_value


def array_function(compute: Callable[..., Any], spec: ArraySpec, arity: int) -> Callable[..., Any]:
    """Wrap a kernel with one result, unrolled for one or two operands, for speed."""
    ndarray = np.ndarray

    def unary(x: Any) -> ConcreteArray:
        out = compute(x._buffer)
        result = ConcreteArray()
        result._buffer = out if type(out) is ndarray else as_buffer(out)
        result._spec = spec
        return result

    def binary(x: Any, y: Any) -> ConcreteArray:
        out = compute(x._buffer, y._buffer)
        result = ConcreteArray()
        result._buffer = out if type(out) is ndarray else as_buffer(out)
        result._spec = spec
        return result

    def nary(*args: Any) -> ConcreteArray:
        return wrap(as_buffer(compute(*[a._buffer for a in args])), spec)

    forms: dict[int, Callable[..., Any]] = {1: unary, 2: binary}
    return forms.get(arity, nary)


def _several_results(compute: Callable[..., Any], specs: Sequence[ArraySpec]) -> Callable[..., Any]:
    def run(*args: Any) -> tuple[ConcreteArray, ...]:
        outs = compute(*[a.buffer() for a in args])
        return tuple([wrap(as_buffer(o), s) for o, s in zip(outs, specs, strict=True)])

    return run


def _replace(kernels: dict[Any, Any], run: Callable[..., Any], faster: Callable[..., Any]) -> None:
    for key in [key for key, kernel in list(kernels.items()) if kernel is run]:
        kernels[key] = faster


def _of_arrays(faster: Callable[..., Any], specs: Sequence[ArraySpec], arity: int, several: bool) -> Callable[..., Any]:
    """Return a function of buffers, which has come later, as one of arrays."""
    # A built-in leaves only non-contiguous arrays to others; without one, Python calls the function.
    make: Callable[..., Any] | None = getattr(faster, "of_arrays", None)
    other = faster if make is None else getattr(faster, "of_strided", faster)
    in_python = _several_results(other, specs) if several else array_function(other, specs[0], arity)
    return in_python if make is None else make(specs, tuple if several else None, in_python)


def as_buffer(result: Any) -> Any:
    """Return a result as a buffer: NumPy's functions may return a scalar."""
    return result if type(result) is np.ndarray or not isinstance(result, np.generic) else np.asarray(result)


def check_usable(args: Sequence[Any]) -> None:
    """Raise `DonatedBufferError` for deleted arrays, `LeakedTracerError` for tracers.

    Kernels and programs that are found by type need no check, since none is kept for such operands.
    """
    for arg in args:
        if isinstance(arg, Tracer):
            raise_leaked(arg)
        arg.buffer()


set_evaluator(_evaluate)
