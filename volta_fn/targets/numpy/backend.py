"""The NumPy backend.

The meaning of every primitive, and plans as Python functions.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from volta_fn.compiler.plans import Operand, Plan, Step, most_temporaries
from volta_fn.core.arrays.array import host_buffer
from volta_fn.core.devices.device import Executable, Hardware, MemoryStats, WorkStats
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Literal, Var, program_cache
from volta_fn.core.primitive import Primitive, evaluation_of, evaluation_rules
from volta_fn.errors import VoltaError
from volta_fn.primitives import sorting, window
from volta_fn.primitives.contraction import dot_general_p
from volta_fn.primitives.convolution import conv_general_dilated_p
from volta_fn.primitives.cumulative import cumlogsumexp_p, cummax_p, cummin_p, cumprod_p, cumsum_p
from volta_fn.primitives.data_movement import gather
from volta_fn.primitives.data_movement.dynamic_slicing import dynamic_slice_p, dynamic_update_slice_p
from volta_fn.primitives.formulas import ciphers
from volta_fn.primitives.fourier import fft_p
from volta_fn.primitives.linalg import solvers, spectral
from volta_fn.primitives.loops import cond_p, while_p
from volta_fn.primitives.random import random_bits_p, threefry2x32_p
from volta_fn.primitives.scan import scan_p
from volta_fn.runtime.native_calls import silenced, silenced_in_context
from volta_fn.source import parameter_names
from volta_fn.targets.numpy import convolution, indexing, linalg, memory, reductions
from volta_fn.targets.numpy.memory import give, take, workspace

if TYPE_CHECKING:
    from volta_fn.compiler.target import Passes


# Plans as Python functions: a statement per step, registers as local variables.
#
# The values in the plan's block are arrays that exist before it runs, its *frame*: steps write into them.

#: How a primitive becomes a function of buffers: (primitive, operand avals, params) -> function.
KernelMaker = Callable[[Primitive, tuple[Any, ...], dict[str, Any]], Callable[..., Any]]

#: A Python function's compile time grows faster than its length, so long plans become several functions of this many steps.
_STEPS_PER_FUNCTION = 2000


class PlannedProgram:
    """A plan as a function ``(donate, *buffers) -> buffers``.

    `donate` says whether it may overwrite the donated inputs.
    """

    def __init__(self, plan: Plan, make_kernel: KernelMaker) -> None:
        self.block = plan.block
        self.in_block = [(value.aval.shape, value.aval.dtype, value.offset) for value in plan.buffers]
        #: The same with the frame as leading argument, for callers that run it many times.
        self.run_in_frame = (
            _compile_in_chunks(plan, make_kernel) if len(plan.steps) > _STEPS_PER_FUNCTION else _Writer(make_kernel).single_function(plan)
        )

    def frame(self, block: np.ndarray) -> list[np.ndarray]:
        """Return the arrays in a block of memory."""
        return [np.ndarray(shape, dtype, block, offset) for shape, dtype, offset in self.in_block]

    def function(self) -> Callable[..., tuple[Any, ...]]:
        """Return the plan as a plain function."""
        return self.__call__ if self.in_block else partial(self.run_in_frame, ())

    def __call__(self, donate: bool, *inputs: Any) -> tuple[Any, ...]:
        block = take(self.block)
        try:
            return self.run_in_frame(self.frame(block), donate, *inputs)
        finally:
            give(block)


def _register(index: int) -> str:
    return f"r{index}"


def _out_arrays(step: Step) -> str:
    """Return the expression of the arrays that results are written to."""
    arrays = ["None" if number is None else f"frame[{number}]" for number in step.buffers]
    return f"({', '.join(arrays)},)" if step.eqn.primitive.multiple_results else arrays[0]


class _Writer:
    """Writes one function; kernels and constants are its globals."""

    def __init__(self, make_kernel: KernelMaker) -> None:
        self.make_kernel = make_kernel
        self.globals: dict[str, Any] = {"__name__": "volta_fn.plan", "ndarray": np.ndarray, "asarray": np.asarray}
        self.kernels: dict[int, str] = {}

    def name(self, prefix: str, value: Any) -> str:
        """Return a global name for a value."""
        global_name = self.kernels.get(id(value))
        if global_name is None:
            global_name = self.kernels[id(value)] = f"{prefix}{len(self.globals)}"
            self.globals[global_name] = value
        return global_name

    def operand(self, operand: Operand) -> str:
        """Return the expression that reads an operand."""
        return self.name("c", host_buffer(operand.val)) if isinstance(operand, Literal) else _register(operand)

    def step(self, step: Step, plan: Plan) -> list[str]:
        """Return the statements that run a step and free what dies."""
        eqn = step.eqn
        kernel = self.make_kernel(eqn.primitive, tuple([v.aval for v in eqn.invars]), eqn.params)
        args = [self.operand(o) for o in step.operands]
        if step.into is not None and (isinstance(kernel, np.ufunc) or eqn.primitive.overwrites is not None):
            target = args[step.into]
            donated = step.operands[step.into] in plan.overwritten
            args.append(f"out={target} if donate else None" if donated else f"out={target}")
        elif step.buffers:
            args.append(f"out={_out_arrays(step)}")
        results = ", ".join(map(_register, step.results))
        if eqn.primitive.multiple_results:
            results = results + "," if results else "_"
        call = f"{self.name('k', kernel)}({', '.join(args)})"
        if not eqn.primitive.multiple_results and not eqn.outvars[0].aval.shape:
            call = f"asarray({call})"  # NumPy's functions give scalars where a result has no dimensions; kernels expect arrays
        statements = [f"{results} = {call}"]
        if step.frees:
            statements.append(" = ".join([*map(_register, step.frees), "None"]))
        return statements

    def function(self, parameters: Sequence[str], body: Sequence[str]) -> Callable[..., Any]:
        """Compile a function called ``program``."""
        text = f"def program(frame, donate{''.join(', ' + p for p in parameters)}):\n" + "".join(f"    {statement}\n" for statement in body)
        exec(compile(text, "<volta_fn plan>", "exec"), self.globals)
        return self.globals["program"]

    def single_function(self, plan: Plan) -> Callable[..., tuple[Any, ...]]:
        """Compile the plan to one function."""
        body = [f"{_register(r)} = {self.name('c', host_buffer(value))}" for r, value in plan.constants]
        for step in plan.steps:
            body += self.step(step, plan)
        body.append(f"return ({''.join(self.operand(o) + ', ' for o in plan.outputs)})")
        return self.function([_register(r) for r in plan.inputs], body)


def _compile_in_chunks(plan: Plan, make_kernel: KernelMaker) -> Callable[..., tuple[Any, ...]]:
    """Compile a long plan to functions that share a list of registers."""
    functions = []
    for start in range(0, len(plan.steps), _STEPS_PER_FUNCTION):
        writer = _Writer(make_kernel)
        steps = plan.steps[start : start + _STEPS_PER_FUNCTION]
        read: set[int] = set()
        written: set[int] = set()
        body: list[str] = []
        for step in steps:
            read |= {o for o in step.operands if isinstance(o, int) and o not in written}
            written |= {*step.results, *step.frees}
            body += writer.step(step, plan)
        loads = [f"{_register(r)} = registers[{r}]" for r in sorted(read)]
        stores = [f"registers[{r}] = {_register(r)}" for r in sorted(written)]
        functions.append(writer.function(["registers"], [*loads, *body, *stores]))
    count = 1 + max([r for s in plan.steps for r in (*s.results, *s.frees)] + [*plan.inputs, *[r for r, _ in plan.constants]], default=0)
    constants = [(r, host_buffer(value)) for r, value in plan.constants]

    def run_chunks(frame: Sequence[np.ndarray], donate: bool, *inputs: Any) -> tuple[Any, ...]:
        registers: list[Any] = [None] * count
        for register, value in zip(plan.inputs, inputs, strict=True):
            registers[register] = value
        for register, value in constants:
            registers[register] = value
        for function in functions:
            function(frame, donate, registers)
        return tuple([host_buffer(o.val) if isinstance(o, Literal) else registers[o] for o in plan.outputs])

    return run_chunks


# The NumPy backend: the meaning of every primitive.
#
# Control flow is Python loops around compiled sub-programs. The last section names the functions that evaluate primitives whose
# declaration has none.
#
# A kernel with a parameter ``out`` writes its result there, if it gets an array (contiguous, of the result's shape and dtype), else into
# new memory. Of primitives with several results, ``out`` is a tuple, with None for results to allocate.

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

Program = Callable[..., tuple[Any, ...]]

#: Kernels of primitives that hold sub-programs: name -> factory(pipeline, params) -> function of buffers.
STRUCTURED: dict[Primitive, Callable[..., Callable[..., Any]]] = {}

#: Kernels that are chosen by the types of their operands: primitive -> factory(*operand avals, **params) -> function of buffers.
TYPED: dict[Primitive, Callable[..., Callable[..., Any]]] = {}


def structured_kernel(primitive: Primitive) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register how a primitive with sub-programs becomes a function of buffers."""

    def register(factory: Callable[..., Any]) -> Callable[..., Any]:
        STRUCTURED[primitive] = factory
        return factory

    return register


def make_kernel(primitive: Primitive, avals: tuple[Any, ...], params: dict[str, Any], pipeline: Passes | None = None) -> Callable[..., Any]:
    """Return a primitive with its parameters as a function of buffers.

    `pipeline` plans the programs that it holds, if any.
    """
    if primitive.call_param is not None:
        assert pipeline is not None
        return subprogram(params[primitive.call_param], pipeline)
    if primitive in STRUCTURED:
        return STRUCTURED[primitive](pipeline, **params)
    if primitive in TYPED:
        return TYPED[primitive](*avals, **params)
    evaluate = primitive.ufunc_for(avals[0].dtype) if primitive.inplace else evaluation_of(primitive)
    if evaluate is None:
        raise VoltaError(f"the primitive {primitive} has no evaluation rule on the CPU")
    return partial(evaluate, **params) if params else evaluate


def planned(closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Passes) -> PlannedProgram:
    """Return a program, planned by the pipeline, as NumPy runs it."""
    return PlannedProgram(pipeline.plan(closed, donated, out_results), partial(make_kernel, pipeline=pipeline))


def out_results(eqn: Equation) -> Sequence[int]:
    """Return the results that an equation's kernel can write to ``out``."""
    primitive = eqn.primitive
    if primitive is scan_p:
        return range(eqn.params["num_carry"], len(eqn.outvars))
    if primitive.overwrites is not None:
        return ()
    function = primitive.ufunc_for(eqn.invars[0].aval.dtype) if primitive.inplace else evaluation_of(primitive)
    return range(len(eqn.outvars)) if function is not None and _takes_out(function) else ()


@cache
def _takes_out(function: Callable[..., Any]) -> bool:
    return isinstance(function, np.ufunc) or "out" in parameter_names(function)


@program_cache
def subprogram(closed: ClosedJaxpr, pipeline: Passes) -> Program:
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

    def is_ready(self, buffer: Any) -> bool:
        """Return True: NumPy has computed the buffer."""
        return True

    def host_elements(self, buffer: Any) -> np.ndarray | None:
        """Return the buffer itself."""
        return buffer

    def exclusive(self, buffers: Sequence[Any]) -> bool:
        """Return True if none of the buffers is a view of another."""
        return all(b.base is None for b in buffers)

    def supports(self, dtype: np.dtype) -> bool:
        """Return True: the CPU has every dtype."""
        return True

    def kernel(self, primitive: Primitive, avals: tuple[Any, ...], params: dict[str, Any], pipeline: Passes) -> Callable[..., Any]:
        """Return a primitive as a function of buffers, giving one buffer or a tuple."""
        kernel = make_kernel(primitive, avals, params, pipeline)
        runs_code = primitive.multiple_results  # of the user's: callbacks, and programs that may hold some, are among those
        return silenced(kernel) if runs_code else silenced_in_context(kernel, len(avals))

    def compile(self, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Passes) -> Executable:
        """Return the plan of a program as an executable."""
        return Executable(silenced(planned(closed, donated, pipeline).function()))

    def temporaries(self, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Passes) -> int:
        """Return the most bytes of a program's values other than arguments and results.

        What LAPACK and Fourier transforms need for themselves counts.
        """
        return most_temporaries(pipeline.plan(closed, donated, out_results), lambda inner: pipeline.plan(inner, (), out_results), workspace)

    def timed(self, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Passes) -> Any:
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
        memory.free()


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


# Control flow on NumPy arrays: Python loops around compiled sub-programs.
#
# A carry goes from step to step without a copy. From the second step on a step may overwrite those elements of the carry that the step
# before made in memory of their own (`_private`); the initial carry is the caller's and stays as it is. The other results of steps are
# copied into arrays allocated before the loop.


@structured_kernel(cond_p)
def _cond(pipeline: Passes, *, branches: tuple[ClosedJaxpr, ...]) -> Program:
    programs = [subprogram(b, pipeline) for b in branches]

    def run_branch(index: Any, *operands: Any) -> tuple[Any, ...]:
        return programs[int(index)](*operands)

    return run_branch


@structured_kernel(while_p)
def _while(pipeline: Passes, *, cond_jaxpr: ClosedJaxpr, body_jaxpr: ClosedJaxpr, cond_nconsts: int, body_nconsts: int) -> Program:
    condition = subprogram(cond_jaxpr, pipeline)
    count = cond_nconsts + body_nconsts
    step = _step(body_jaxpr, body_nconsts, len(body_jaxpr.out_avals), pipeline)

    def run_loop(*operands: Any, most: int | None = None, rest: Program = lambda *operands: operands) -> tuple[Any, ...]:
        """Run the loop; one of more than `most` iterations is ended by `rest`."""
        cond_consts, body_consts, carry = operands[:cond_nconsts], operands[cond_nconsts:count], operands[count:]
        done = 0
        with _frame(step) as frame:
            while condition(*cond_consts, *carry)[0]:
                if done == most:
                    break
                carry = step.run_in_frame(frame, done > 0, *body_consts, *carry)
                done += 1
            else:
                return carry
        return rest(*cond_consts, *body_consts, *carry)

    return run_loop


@structured_kernel(scan_p)
def _scan(pipeline: Passes, *, jaxpr: ClosedJaxpr, length: int, reverse: bool, num_consts: int, num_carry: int, unroll: int) -> Program:
    step = _step(jaxpr, num_consts, num_carry, pipeline)
    y_avals = jaxpr.out_avals[num_carry:]

    def run_scan(*operands: Any, out: tuple[Any, ...] = ()) -> tuple[Any, ...]:
        consts, carry = operands[:num_consts], operands[num_consts : num_consts + num_carry]
        rows = operands[num_consts + num_carry :]
        targets = out[num_carry:] or (None,) * len(y_avals)
        ys = [np.empty((length, *a.shape), a.dtype) if t is None else t for a, t in zip(y_avals, targets, strict=True)]
        order = range(length - 1, -1, -1) if reverse else range(length)
        steps: Iterable[tuple[Any, ...]] = zip(*[r[::-1] if reverse else r for r in rows], strict=True) if rows else ((),) * length
        overwrite = False
        with _frame(step) as frame:
            for i, row in zip(order, steps, strict=True):
                outs = step.run_in_frame(frame, overwrite, *consts, *carry, *row)
                overwrite = True
                carry = outs[:num_carry]
                for y, out in zip(ys, outs[num_carry:], strict=True):
                    y[i] = out
        return (*carry, *ys)

    return run_scan


@contextmanager
def _frame(step: PlannedProgram) -> Iterator[Sequence[np.ndarray]]:
    """Yield a step's values in a block of memory, which all iterations share."""
    if not step.in_block:
        yield ()
        return
    block = memory.take(step.block)
    try:
        yield step.frame(block)
    finally:
        memory.give(block)


@program_cache
def _step(closed: ClosedJaxpr, consts: int, carry: int, pipeline: Passes) -> PlannedProgram:
    """Compile a loop's body; its first argument allows overwriting the carry."""
    body = pipeline.optimize(closed)
    donated = [*[False] * consts, *_private(body, carry)]
    return planned(body, [*donated, *[False] * (len(closed.in_avals) - len(donated))], pipeline)


def _private(closed: ClosedJaxpr, carry: int) -> list[bool]:
    """Return which carries a step returns in new memory that it shares with no other."""
    sources: dict[Var, frozenset[Var]] = {}
    new_values: set[Var] = set()
    for eqn in closed.eqns:
        views = eqn.primitive.views
        shared = frozenset().union(*[sources.get(v, {v}) for v in eqn.invars if isinstance(v, Var)]) if views else frozenset()
        sources.update({v: shared | {v} for v in eqn.outvars})
        new_values.update(() if views else eqn.outvars)
    outs = closed.jaxpr.outvars[:carry]
    sharers = Counter(source for out in outs if isinstance(out, Var) for source in sources.get(out, {out}))
    return [not isinstance(out, Literal) and out in new_values and sharers[out] == 1 for out in outs]


# NumPy functions that evaluate primitives, where the declaration has none.

evaluation_rules.update(
    {
        dot_general_p: linalg.dot_general,
        conv_general_dilated_p: convolution.conv_general_dilated,
        **{
            primitive: partial(reductions.cumulative, name=primitive.name)
            for primitive in (cumsum_p, cumprod_p, cummax_p, cummin_p, cumlogsumexp_p)
        },
        fft_p: linalg.fft,
        gather.gather_p: indexing.gather,
        gather.scatter_p: indexing.scatter,
        gather.scatter_add_p: indexing.scatter_add,
        gather.scatter_mul_p: indexing.scatter_mul,
        gather.scatter_min_p: indexing.scatter_min,
        gather.scatter_max_p: indexing.scatter_max,
        dynamic_slice_p: indexing.dynamic_slice,
        dynamic_update_slice_p: indexing.dynamic_update_slice,
        solvers.cholesky_p: linalg.cholesky,
        solvers.triangular_solve_p: linalg.triangular_solve,
        solvers.tridiagonal_solve_p: linalg.tridiagonal_solve,
        solvers.lu_p: linalg.lu,
        solvers.qr_p: linalg.qr,
        spectral.eigh_p: linalg.eigh,
        spectral.svd_p: linalg.svd,
        spectral.eig_p: linalg.eig,
        spectral.hessenberg_p: linalg.hessenberg,
        spectral.schur_p: linalg.schur,
        spectral.tridiagonal_p: linalg.tridiagonal,
        spectral.householder_product_p: linalg.householder_product,
        sorting.sort_p: reductions.sort,
        sorting.top_k_p: reductions.top_k,
        sorting.argmax_p: reductions.argmax,
        sorting.argmin_p: reductions.argmin,
        random_bits_p: indexing.random_bits,
        threefry2x32_p: ciphers.threefry2x32,
        window.reduce_window_sum_p: partial(reductions.reduce_window, op="sum"),
        window.reduce_window_max_p: partial(reductions.reduce_window, op="max"),
        window.reduce_window_min_p: partial(reductions.reduce_window, op="min"),
        window.select_and_gather_add_p: reductions.select_and_gather_add,
        window.select_and_scatter_add_p: reductions.select_and_scatter_add,
    }
)

TYPED[dot_general_p] = linalg.typed_dot_general
TYPED |= reductions.typed_reductions()
