"""The NumPy backend: the meaning of every primitive."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from volta_fn.backends.numpy.program import compile_plan
from volta_fn.backends.numpy.quiet import silenced
from volta_fn.compiler.lifetimes import most_temporaries
from volta_fn.compiler.passes.driver import simplify
from volta_fn.compiler.plan import make_plan
from volta_fn.core.device import MemoryStats
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import Primitive
from volta_fn.errors import DeviceError, VoltaError

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

Program = Callable[..., tuple[Any, ...]]

#: Kernels of primitives that hold sub-programs: name -> maker(compile sub-program, params) -> function of buffers.
STRUCTURED: dict[str, Callable[..., Callable[..., Any]]] = {}

#: Kernels that are chosen by the types of their operands: name -> maker(*operand avals, **params) -> function of buffers.
TYPED: dict[str, Callable[..., Callable[..., Any]]] = {}


def structured_kernel(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register how a primitive with sub-programs becomes a function of buffers."""

    def register(maker: Callable[..., Any]) -> Callable[..., Any]:
        STRUCTURED[name] = maker
        return maker

    return register


def make_kernel(primitive: Primitive, avals: tuple[Any, ...], params: dict[str, Any]) -> Callable[..., Any]:
    """A primitive with its parameters as a function of buffers."""
    if primitive.call_param is not None:
        return subprogram(params[primitive.call_param])
    if primitive.name in STRUCTURED:
        return STRUCTURED[primitive.name](subprogram, **params)
    if primitive.name in TYPED:
        return TYPED[primitive.name](*avals, **params)
    evaluate = primitive.ufunc_for(avals[0].dtype) if primitive.inplace else primitive.evaluate
    if evaluate is None:
        raise VoltaError(f"the primitive {primitive} has no evaluation rule on the CPU")
    return partial(evaluate, **params) if params else evaluate


def subprogram(closed: ClosedJaxpr) -> Program:
    """A sub-program as a function from buffers to a tuple of buffers; compiled once and kept on the program."""
    program = closed.cache.get("numpy")
    if program is None:
        program = closed.cache["numpy"] = partial(compile_plan(make_plan(closed), make_kernel), False)
    return program


class NumpyBackend:
    """Buffers are NumPy arrays."""

    def put(self, values: np.ndarray) -> np.ndarray:
        """The array itself, which the caller has made for this."""
        return values

    def get(self, buffer: Any) -> np.ndarray:
        """The buffer itself."""
        return buffer

    def wait(self, buffer: Any) -> None:
        """Nothing: NumPy has computed it when it returns."""

    def known(self, buffer: Any) -> np.ndarray | None:
        """The buffer itself."""
        return buffer

    def shared(self, buffer: Any) -> bool:
        """Whether the buffer is a view of another."""
        return buffer.base is not None

    def kernel(self, primitive: Primitive, avals: tuple[Any, ...], params: dict[str, Any]) -> Callable[..., Any]:
        """A primitive as a function of buffers, giving a buffer or (for several results) a tuple of buffers."""
        return silenced(make_kernel(primitive, avals, params), len(avals))

    def compile(self, closed: ClosedJaxpr, donated: Sequence[bool]) -> Program:
        """A program as a function (donate, *buffers) -> buffers."""
        return silenced(compile_plan(make_plan(closed, donated), make_kernel), 1 + len(closed.in_avals))

    def temporaries(self, closed: ClosedJaxpr, donated: Sequence[bool]) -> int:
        """The bytes that a program's values take at most besides arguments and results; NumPy's functions may need some of their own."""
        return most_temporaries(simplify(closed))

    def memory(self) -> MemoryStats:
        """The memory of the process."""
        peak = _peak()
        statm = Path("/proc/self/statm")
        now = int(statm.read_text().split()[1]) * resource.getpagesize() if resource is not None and statm.exists() else peak
        return MemoryStats(now, max(now, peak), now, None)

    def limit_memory(self, most: int | None) -> None:
        """Raise `DeviceError`: the system shares out the memory."""
        if most is not None:
            raise DeviceError("the CPU's memory has no limit of its own; the system sets it (on Linux: ulimit -v, control groups)")

    def free_memory(self) -> None:
        """Nothing: NumPy gives memory back by itself."""


def _peak() -> int:
    """The most bytes that the process has had in memory."""
    if resource is None:
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
