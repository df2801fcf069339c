"""The NumPy backend: the meaning of every primitive.

A kernel with a parameter ``out`` writes its result there, if it is given an array (of the result's shape and dtype, whose elements lie one
after another), else into new memory. Of primitives with several results, ``out`` is a tuple, with None for results to allocate.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from volta_fn.compiler.buffers.plan import most_temporaries
from volta_fn.core.device import Hardware, MemoryStats, WorkStats
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, program_cache
from volta_fn.core.primitive import Primitive
from volta_fn.errors import VoltaError
from volta_fn.runtime.internals.errstate import silenced, silenced_in_context
from volta_fn.targets.numpy import blocks
from volta_fn.targets.numpy.program import PlannedProgram
from volta_fn.targets.numpy.workspace import workspace

if TYPE_CHECKING:
    from volta_fn.compiler.program import Pipeline

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

Program = Callable[..., tuple[Any, ...]]

#: Kernels of primitives that hold sub-programs: name -> factory(pipeline, params) -> function of buffers.
STRUCTURED: dict[str, Callable[..., Callable[..., Any]]] = {}

#: Kernels that are chosen by the types of their operands: name -> factory(*operand avals, **params) -> function of buffers.
TYPED: dict[str, Callable[..., Callable[..., Any]]] = {}


def structured_kernel(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register how a primitive with sub-programs becomes a function of buffers."""

    def register(factory: Callable[..., Any]) -> Callable[..., Any]:
        STRUCTURED[name] = factory
        return factory

    return register


def make_kernel(
    primitive: Primitive, avals: tuple[Any, ...], params: dict[str, Any], pipeline: Pipeline | None = None
) -> Callable[..., Any]:
    """Return a primitive with its parameters as a function of buffers.

    `pipeline` plans the programs that it holds, if any.
    """
    if primitive.call_param is not None:
        assert pipeline is not None
        return subprogram(params[primitive.call_param], pipeline)
    if primitive.name in STRUCTURED:
        return STRUCTURED[primitive.name](pipeline, **params)
    if primitive.name in TYPED:
        return TYPED[primitive.name](*avals, **params)
    evaluate = primitive.ufunc_for(avals[0].dtype) if primitive.inplace else primitive.evaluate
    if evaluate is None:
        raise VoltaError(f"the primitive {primitive} has no evaluation rule on the CPU")
    return partial(evaluate, **params) if params else evaluate


def planned(closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Pipeline) -> PlannedProgram:
    """Return a program, planned by the pipeline, as NumPy runs it."""
    return PlannedProgram(pipeline.plan(closed, donated, written), partial(make_kernel, pipeline=pipeline))


def written(eqn: Equation) -> Sequence[int]:
    """Return the results that an equation's kernel can write to ``out``."""
    primitive = eqn.primitive
    if primitive.name == "scan":
        return range(eqn.params["num_carry"], len(eqn.outvars))
    if primitive.overwrites is not None:
        return ()
    function = primitive.ufunc_for(eqn.invars[0].aval.dtype) if primitive.inplace else primitive.evaluate
    return range(len(eqn.outvars)) if function is not None and _takes_out(function) else ()


@cache
def _takes_out(function: Callable[..., Any]) -> bool:
    return isinstance(function, np.ufunc) or "out" in inspect.signature(function).parameters


@program_cache
def subprogram(closed: ClosedJaxpr, pipeline: Pipeline) -> Program:
    """Compile a sub-program, cached on it, to a function from buffers to buffers."""
    return partial(planned(closed, (), pipeline).function(), False)


class NumpyBackend:
    """The backend of a CPU without llvmlite: buffers are NumPy arrays."""

    @property
    def target(self) -> Any:
        """None: NumPy runs a program's equations one by one."""
        return None

    def put(self, values: np.ndarray) -> np.ndarray:
        """Return the array itself, which the caller has made for this."""
        return values

    def get(self, buffer: Any) -> np.ndarray:
        """Return the buffer itself."""
        return buffer

    def wait(self, buffer: Any) -> None:
        """Return at once: NumPy has computed the buffer."""

    def known(self, buffer: Any) -> np.ndarray | None:
        """Return the buffer itself."""
        return buffer

    def exclusive(self, buffers: Sequence[Any]) -> bool:
        """Return True if none of the buffers is a view of another."""
        return all(b.base is None for b in buffers)

    def supports(self, dtype: np.dtype) -> bool:
        """Return True: the CPU has every dtype."""
        return True

    def kernel(self, primitive: Primitive, avals: tuple[Any, ...], params: dict[str, Any], pipeline: Pipeline) -> Callable[..., Any]:
        """Return a primitive as a function of buffers, giving one buffer or a tuple."""
        kernel = make_kernel(primitive, avals, params, pipeline)
        runs_code = primitive.multiple_results  # of the user's: callbacks, and programs that may hold some, are among those
        return silenced(kernel) if runs_code else silenced_in_context(kernel, len(avals))

    def compile(self, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Pipeline) -> Program:
        """Return a program as a function (donate, *buffers) -> buffers."""
        return silenced(planned(closed, donated, pipeline).function())

    def temporaries(self, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Pipeline) -> int:
        """Return the most bytes of a program's values other than arguments and results.

        What LAPACK and Fourier transforms need for themselves counts.
        """
        return most_temporaries(pipeline.plan(closed, donated, written), lambda inner: pipeline.plan(inner, (), written), workspace)

    def timed(self, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Pipeline) -> Any:
        """Return None: NumPy's steps are timed one by one by whoever runs them."""
        return None

    def hardware(self) -> Hardware:
        """Describe a processor."""
        return Hardware("cpu", (), {})

    def memory(self) -> MemoryStats:
        """Return the memory of the process."""
        peak = _peak()
        now = _resident() or peak
        return MemoryStats(now, max(now, peak), now, None)

    def work(self) -> WorkStats:
        """Return no pending work: NumPy's functions return when they are done."""
        return WorkStats()

    def synchronize(self, timeout: float | None) -> None:
        """Return at once: no work is pending."""

    def recover(self, every: int | None) -> None:
        """Do nothing: the CPU is not lost."""

    def free_memory(self) -> None:
        """Free the blocks that are kept from call to call; NumPy frees the rest by itself."""
        blocks.free()


def _peak() -> int:
    """Return the most bytes that the process has had in memory."""
    if resource is None:
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _resident() -> int:
    """Return the bytes that the process has in memory, or 0 without Linux's files."""
    try:
        with open("/proc/self/statm") as statm:
            pages = int(statm.read().split()[1])
    except OSError:
        return 0
    return pages * resource.getpagesize() if resource is not None else 0
