"""One primitive at a time: eager evaluation. Kernels are kept per primitive, by the parameters and the types of the operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from volta_fn.core.array import ArraySpec, ConcreteArray, array_spec, from_host, wrap
from volta_fn.core.device import Device, current_default_device
from volta_fn.core.jaxpr import sub_jaxprs
from volta_fn.core.primitive import Primitive, parameter_key
from volta_fn.core.trace import Tracer, raise_leaked, set_evaluator
from volta_fn.errors import DeviceError
from volta_fn.targets import platforms as _platforms  # noqa: F401  # registers the CPU and GPUs

#: Kernels kept per primitive before all are dropped.
_CACHE_LIMIT = 4096


def common_device(arrays: Sequence[Any]) -> Device:
    """The device that holds all `arrays` (the default device if there are none). Python scalars go where the others are."""
    if not arrays:
        return current_default_device()
    device: Device = arrays[0].device
    if all(a.device is device for a in arrays):
        return device
    settled = {a.device for a in arrays if a.shape or not a.weak_type}
    if len(settled) > 1:
        raise DeviceError(f"the arguments are on different devices ({', '.join(str(a.device) for a in arrays)}); move them with device_put")
    return settled.pop() if settled else device


def on_device(arrays: Sequence[Any], device: Device) -> Sequence[Any]:
    """The arrays, those on other devices copied."""
    if all(a.device is device for a in arrays):
        return arrays
    return [a if a.device is device else _copied(a, device) for a in arrays]


@lru_cache(maxsize=256)
def _copied(array: ConcreteArray, device: Device) -> ConcreteArray:
    return from_host(array.host(), array.weak_type, device)


def _evaluate(primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
    key: tuple[Any, ...] = tuple([a._spec for a in args])
    cache = primitive.eager
    if params or not args:
        key = (*key, *parameter_key(params), None if args else current_default_device())
        programs = sub_jaxprs(params) if primitive.holds_programs else ()
        if programs:  # the kernel lives as long as the sub-program that it runs
            cache, key = programs[0].cache, (primitive, *key)
    run = cache.get(key)
    if run is None:
        run = _eager_kernel(primitive, args, params)
        if len(cache) >= _CACHE_LIMIT:
            cache.clear()
        cache[key] = run
    return run(*args)


def _eager_kernel(primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Callable[..., Any]:
    """A primitive as a function of concrete arrays of the types of `args`."""
    check_usable(args)
    avals = tuple([a.aval for a in args])
    device = common_device(args)
    out_avals = primitive.abstract(*avals, **params)
    if any(a.device is not device for a in args):
        return _brought(_eager_kernel(primitive, on_device(args, device), params), device)
    compute = device.backend.kernel(primitive, avals, params)
    if primitive.multiple_results:
        return _several_results(compute, [array_spec(a, device) for a in out_avals])
    return _one_result(compute, array_spec(out_avals, device), len(args))


def _brought(run: Callable[..., Any], device: Device) -> Callable[..., Any]:
    """A kernel whose operands are partly on other devices."""
    return lambda *args: run(*on_device(args, device))


def _one_result(compute: Callable[..., Any], spec: ArraySpec, arity: int) -> Callable[..., Any]:
    """A kernel with one result as a function of arrays; written out for one and two operands, where every call counts."""
    ndarray = np.ndarray

    def unary(x: Any) -> ConcreteArray:
        out = compute(x._buffer)
        result = ConcreteArray()
        result._buffer = out if type(out) is ndarray else solid(out)
        result._spec = spec
        return result

    def binary(x: Any, y: Any) -> ConcreteArray:
        out = compute(x._buffer, y._buffer)
        result = ConcreteArray()
        result._buffer = out if type(out) is ndarray else solid(out)
        result._spec = spec
        return result

    def nary(*args: Any) -> ConcreteArray:
        return wrap(solid(compute(*[a._buffer for a in args])), spec)

    forms: dict[int, Callable[..., Any]] = {1: unary, 2: binary}
    return forms.get(arity, nary)


def _several_results(compute: Callable[..., Any], specs: Sequence[ArraySpec]) -> Callable[..., Any]:
    def run(*args: Any) -> tuple[ConcreteArray, ...]:
        outs = compute(*[a.buffer() for a in args])
        return tuple([wrap(solid(o), s) for o, s in zip(outs, specs, strict=True)])

    return run


def solid(buffer: Any) -> Any:
    """NumPy's functions return scalars for zero-dimensional results; buffers are arrays."""
    return buffer if type(buffer) is np.ndarray or not isinstance(buffer, np.generic) else np.asarray(buffer)


def check_usable(args: Sequence[Any]) -> None:
    """Raise `DonatedBufferError` if an array was deleted, `LeakedTracerError` if it is none but a tracer.

    Kernels and programs found by type need no check: none is kept for those.
    """
    for arg in args:
        if isinstance(arg, Tracer):
            raise_leaked(arg)
        arg.buffer()


set_evaluator(_evaluate)
