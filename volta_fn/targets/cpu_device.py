"""The CPU as a device: NumPy for operations, machine code for programs.

An operation that is repeated on large arrays becomes a program, too. Machine code needs llvmlite; VOLTA_NATIVE=0 switches it off.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from volta_fn.core.aval import ShapedArray
from volta_fn.core.caches import KeyedWeakref
from volta_fn.core.devices.device import Device, Executable, MemoryStats, chosen_cpu_count
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Jaxpr, Var, has_effects, sub_jaxprs
from volta_fn.core.primitive import Primitive
from volta_fn.errors import OutOfMemoryError
from volta_fn.lazy_imports import load
from volta_fn.primitives.call import stop_gradient_p
from volta_fn.primitives.contraction import dot_general_p
from volta_fn.primitives.data_movement.movement import broadcast_in_dim_p, reshape_p, rev_p, squeeze_p, transpose_p
from volta_fn.primitives.data_movement.slicing import slice_p
from volta_fn.primitives.elementwise import arithmetic
from volta_fn.primitives.linalg.solvers import cholesky_p, lu_p, qr_p, triangular_solve_p
from volta_fn.primitives.linalg.spectral import eig_p, eigh_p, svd_p
from volta_fn.primitives.loops import while_p
from volta_fn.primitives.scan import scan_p
from volta_fn.runtime.native_calls import silenced
from volta_fn.runtime.threads import Repeated, compile_uninterrupted, lacks_compiler, may_compile, shares_memory
from volta_fn.settings import check_device_count, check_variables, value_of
from volta_fn.settings import current as settings
from volta_fn.targets.numpy.backend import NumpyBackend, make_kernel
from volta_fn.targets.numpy.memory import workspace

if TYPE_CHECKING:
    from volta_fn.compiler.target import Passes

_log = logging.getLogger("volta_fn")

#: Elements from which on a program takes less time than NumPy.
_FAST_SIZE = 512

#: What NumPy's kernels compute matrix by matrix, by SciPy's wrappers, which take longer than programs of any size.
_FACTORISATIONS = frozenset([cholesky_p, eig_p, eigh_p, lu_p, qr_p, svd_p, triangular_solve_p])

#: A loop that runs more equations than this, of half a microsecond each in NumPy, is compiled when it is first met.
_LONG_LOOP = 100_000

#: Elements from which on the first call of what NumPy has no fast loop for is worth compiling, which takes some 50 ms.
_HUGE = 1 << 24

#: The modules that a first compilation loads; they import everything else.
_COMPILER = [f"volta_fn.{name}" for name in ("compiler.pipeline", "targets.cpu.runtime.compile", "targets.cpu.runtime.program")]

#: The primitives whose results are views of their operands here, most often.
_VIEWS = frozenset([reshape_p, transpose_p, broadcast_in_dim_p, slice_p, squeeze_p, rev_p, stop_gradient_p])

#: The ufuncs of primitives that NumPy computes faster, if it does so in vectors.
_VECTORISED = {
    arithmetic.acosh.primitive: np.arccosh,
    arithmetic.asinh.primitive: np.arcsinh,
    arithmetic.atanh.primitive: np.arctanh,
    arithmetic.cbrt.primitive: np.cbrt,
    arithmetic.pow_p: np.power,
}


# Count the memory of the CPU's arrays, and refuse what is beyond a limit.
#
# VOLTA_MEMORY or `set_memory_limit` sets the limit. Only then are arrays counted: an operation first reserves the bytes of its results
# and of the values between, and its results are counted until nothing refers to their memory. Memory that other libraries own is not.


class Accountant:
    """The bytes of arrays in use, and the most that may be."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.in_use = 0
        self.peak = 0
        #: The arrays that own memory, by identity, and those collected since the last call: a callback may run at any moment.
        self._owners: dict[int, KeyedWeakref[np.ndarray]] = {}
        self._collected: deque[KeyedWeakref[np.ndarray]] = deque()
        self._lock = Lock()

    def _collect(self) -> None:
        while self._collected:
            identity, size = self._collected.popleft().key
            self.in_use -= size
            owner = self._owners.get(identity)
            if owner is not None and owner() is None:
                del self._owners[identity]

    def reserve(self, size: int, describe: Callable[[], str]) -> None:
        """Raise `OutOfMemoryError` if so many bytes more would be beyond the limit."""
        if self.limit is None:
            return
        with self._lock:
            self._collect()
            in_use = self.in_use
        if in_use + size > self.limit:
            raise OutOfMemoryError(
                f"{describe()}: {size:,} bytes more than the {in_use:,} of arrays in use would be beyond the limit of {self.limit:,} bytes "
                "(VOLTA_MEMORY, set_memory_limit). Delete arrays, donate arguments (jit's donate_argnums), use smaller batches, or raise "
                "the limit"
            )

    def count(self, arrays: Sequence[Any]) -> None:
        """Count the memory of arrays, until nothing refers to it."""
        with self._lock:
            self._collect()
            for array in arrays:
                if isinstance(array, np.ndarray):
                    self._count(_owner(array))
            self.peak = max(self.peak, self.in_use)

    def _count(self, owner: np.ndarray) -> None:
        identity = id(owner)
        reference = self._owners.get(identity)
        if reference is None or reference() is not owner:
            self.in_use += owner.nbytes
            reference = self._owners[identity] = KeyedWeakref(owner, self._collected.append)
            reference.key = (identity, owner.nbytes)


def _owner(array: np.ndarray) -> np.ndarray:
    """Return the array whose memory an array is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def limited(
    accountant: Accountant, run: Callable[..., Any], size: int, describe: Callable[[], str], *, several: bool, views: bool = False
) -> Callable[..., Any]:
    """Return a function of buffers that reserves memory first and counts its results.

    A function that mostly returns `views`, which need no memory, reserves it afterwards if its result is not a view.
    """

    def call(*args: Any) -> Any:
        if not views:
            accountant.reserve(size, describe)
        result = run(*args)
        if views and not any(_owner(result) is _owner(arg) for arg in args):
            accountant.reserve(result.nbytes, describe)
        accountant.count(result if several else (result,))
        return result

    return call


# The backend, which NumPy's is a part of.


class CpuBackend(NumpyBackend):
    """The backend of the CPU: NumPy arrays as buffers, programs in machine code."""

    def __init__(self) -> None:
        check_variables()
        #: Whether programs become machine code.
        self.native = may_compile()
        self.accountant = Accountant(value_of("VOLTA_MEMORY"))

    @property
    def target(self) -> Any:
        """The target that programs are lowered for; None if NumPy runs them."""
        return load("volta_fn.targets.cpu.target").TARGET if self.native else None

    def kernel(self, primitive: Primitive, avals: tuple[Any, ...], params: dict[str, Any], pipeline: Passes) -> Callable[..., Any]:
        """Return a primitive as a function of buffers, giving one buffer or a tuple.

        If it may pay, it becomes a program when it has been called twice.
        """
        run = self._kernel(primitive, avals, params, pipeline)
        if self.accountant.limit is None:
            return run
        eqn = _equation(primitive, avals, params)
        size = sum(v.aval.nbytes for v in eqn.outvars) + workspace(eqn)

        def describe() -> str:
            return f"{primitive} of {', '.join(map(str, avals))}, giving {', '.join(str(v.aval) for v in eqn.outvars)}"

        return limited(self.accountant, run, size, describe, several=primitive.multiple_results, views=primitive in _VIEWS)

    def _kernel(self, primitive: Primitive, avals: tuple[Any, ...], params: dict[str, Any], pipeline: Passes) -> Callable[..., Any]:
        first = super().kernel(primitive, avals, params, pipeline)
        if not self.native:
            return first
        eqn = _equation(primitive, avals, params)
        if has_effects(eqn) or not (primitive.holds_programs or primitive in _FACTORISATIONS or _size(eqn) >= _FAST_SIZE):
            return first
        if is_faster_in_numpy(primitive, avals):
            return first
        in_order = first if _is_fast_in_numpy(eqn) else None
        make = functools.cache(functools.partial(self._program_of, eqn, pipeline, in_order))
        if _is_long(eqn) and (program := make()) is not None:
            return program
        if primitive is while_p:
            loop = make_kernel(primitive, avals, params, pipeline)
            most = max(1, _LONG_LOOP // _steps(eqn))
            first = silenced(functools.partial(loop, most=most, rest=lambda *carry: (make() or loop)(*carry)))
        return Repeated(first, make, pays=lambda result, *operands: not shares_memory(result, operands))

    def _program_of(self, eqn: Equation, pipeline: Passes, in_order: Callable[..., Any] | None) -> Callable[..., Any] | None:
        """Compile an equation as a program; return None if NumPy would run all of it.

        A program copies non-contiguous operands; `in_order`, if given, computes with those as they are.
        """
        program = _program_class().of(_alone(eqn), [False] * len(eqn.invars), pipeline)
        if program.calls_host:
            return None
        executable = program.executable()
        run = executable.run
        if eqn.primitive.multiple_results:
            return functools.partial(run, False)

        def run_equation(*buffers: Any) -> Any:
            if in_order is None or all(b.flags.c_contiguous for b in buffers):
                return run(False, *buffers)[0]
            return in_order(*buffers)

        # What replaces the kernel of an eager operation (`jit.eager`): a built-in, and the function that this leaves strided arrays to.
        run_equation.of_arrays, run_equation.of_strided = executable.of_arrays, in_order or run_equation  # type: ignore[attr-defined]
        return run_equation

    def compile(self, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Passes) -> Executable:
        """Compile a program to machine code, or to a plan that NumPy runs."""
        program = _program_class().of(closed, donated, pipeline) if self.native else None
        if program is None and lacks_compiler():
            _hint()
        executable: Executable = super().compile(closed, donated, pipeline) if program is None else program.executable()
        if self.accountant.limit is None:
            return executable
        temporaries = super().temporaries(closed, donated, pipeline) if program is None else program.temporaries
        size = temporaries + sum(aval.nbytes for aval in closed.out_avals)
        size -= sum(aval.nbytes for aval, is_donated in zip(closed.in_avals, donated, strict=False) if is_donated)
        describe = "the results and temporary values of a program"
        return Executable(limited(self.accountant, executable.run, max(size, 0), lambda: describe, several=True))

    def put(self, values: np.ndarray) -> np.ndarray:
        """Return the array itself, which the caller has made for this."""
        if self.accountant.limit is not None:
            self.accountant.reserve(values.nbytes, lambda: f"an array {values.dtype}{list(values.shape)}")
            self.accountant.count((values,))
        return values

    def memory(self) -> MemoryStats:
        """Return the memory of the process or, if it is limited, of its arrays."""
        stats, accountant = super().memory(), self.accountant
        if accountant.limit is None:
            return stats
        accountant.count(())
        return MemoryStats(accountant.in_use, accountant.peak, stats.held, accountant.limit)

    def limit_memory(self, most: int | None) -> None:
        """Limit the memory of arrays from now on; those that are there are not counted."""
        self.accountant.limit = most

    def temporaries(self, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Passes) -> int:
        """Return the most bytes of values that are neither arguments nor results."""
        return _program_class().of(closed, donated, pipeline).temporaries if self.native else super().temporaries(closed, donated, pipeline)

    def timed(self, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Passes) -> Any:
        """Return a program that notes the time of each item; None if NumPy runs programs."""
        return load("volta_fn.targets.cpu.runtime.compile").TimedProgram(closed, donated, pipeline) if self.native else None


def load_compiler() -> None:
    """Load the compiler, so that the first compilation does not wait for it."""
    if may_compile():
        for module in _COMPILER:
            compile_uninterrupted(load, module)
        compile_uninterrupted(_support_code)


def left_to_numpy(backend: CpuBackend, eqn: Equation, pipeline: Passes) -> Callable[..., Any] | None:
    """Return the NumPy function of an equation; None if it is compiled."""
    avals, alone = tuple([v.aval for v in eqn.invars]), _alone(eqn)
    if has_effects(eqn) or backend.accountant.limit is not None:
        return None
    if not is_faster_in_numpy(eqn.primitive, avals) and not _program_class().of(alone, [False] * len(avals), pipeline).calls_host:
        return None
    return make_kernel(eqn.primitive, avals, eqn.params, pipeline)


def is_faster_in_numpy(primitive: Primitive, avals: Sequence[ShapedArray]) -> bool:
    """Return True if NumPy computes a primitive by a vectorised loop."""
    return primitive in _VECTORISED and _is_vectorised(_VECTORISED[primitive], avals[0].dtype)


@functools.cache
def _is_vectorised(ufunc: np.ufunc, dtype: np.dtype) -> bool:
    """Return True if NumPy's loop of a ufunc uses more than the baseline instructions."""
    loops = np.lib.introspect.opt_func_info(func_name=f"^{ufunc.__name__}$").get(ufunc.__name__, {})
    loop = loops.get(dtype.char * ufunc.nargs, {"current": "baseline"})
    return dtype in (np.float32, np.float64) and not loop["current"].startswith("baseline")


def _equation(primitive: Primitive, avals: tuple[Any, ...], params: dict[str, Any]) -> Equation:
    out_avals = primitive.abstract(*avals, **params)
    result_avals = out_avals if primitive.multiple_results else (out_avals,)
    return Equation(primitive, [Var(a) for a in avals], [Var(a) for a in result_avals], params)


def _alone(eqn: Equation) -> ClosedJaxpr:
    return ClosedJaxpr(Jaxpr([], [v for v in eqn.invars if isinstance(v, Var)], [*eqn.outvars], [eqn]))


def _support_code() -> None:
    """Load the built-ins, by which NumPy's kernels are called in less time."""
    load("volta_fn.targets.cpu.runtime.executor").support_code_of_process()


def _is_fast_in_numpy(eqn: Equation) -> bool:
    """Return True for ufuncs and matrix products, but not of 16-bit floats."""
    return (eqn.primitive.inplace or eqn.primitive is dot_general_p) and eqn.outvars[0].aval.dtype.itemsize > 2


def _steps(eqn: Equation) -> int:
    """Return how many equations run for one, if while loops have one iteration."""
    inside = sum([_steps(inner) for program in sub_jaxprs(eqn.params) for inner in program.eqns])
    return 1 + inside * int(eqn.params.get("length", 1))


def _is_long(eqn: Equation) -> bool:
    """Return True if NumPy takes longer for an equation than compiling it does."""
    if eqn.primitive is scan_p:
        return _steps(eqn) > _LONG_LOOP
    return _size(eqn) >= _HUGE and eqn.primitive not in _VIEWS and not eqn.primitive.holds_programs and not _is_fast_in_numpy(eqn)


def _size(eqn: Equation) -> int:
    """Return the size of the largest operand or result."""
    return max([v.aval.size for v in (*eqn.invars, *eqn.outvars)], default=0)


@functools.cache
def _hint() -> None:
    """Log once how programs become machine code."""
    _log.warning(
        "jitted functions run on NumPy, which may take ten times as long as machine code; for that install llvmlite and SciPy "
        "(pip install llvmlite scipy). VOLTA_NATIVE=0 says that NumPy is meant."
    )


@functools.cache
def _program_class() -> Any:
    """Load the class of native programs, when the first one is compiled."""
    return load("volta_fn.targets.cpu.runtime.program").Program


def discover() -> list[Device]:
    """Return the CPU: one device with all its cores, or several that share them."""
    backend = CpuBackend()
    return [Device("cpu", i, "cpu", backend) for i in range(_count())]


def _count() -> int:
    """Return the number of the CPU's devices.

    It is that of `set_cpu_devices`, else of XLA's flag in programs of JAX's, else of VOLTA_CPU_DEVICES.
    """
    if count := chosen_cpu_count():
        return count
    asked = re.search(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", "")) if settings.permissive else None
    return check_device_count(max(1, int(asked[1]))) if asked else value_of("VOLTA_CPU_DEVICES") or 1
