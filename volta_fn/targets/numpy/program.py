"""Plans as Python functions: a statement per step, registers as local variables.

The values in the plan's block are arrays that exist before it runs, its *frame*: steps write into them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from volta_fn.compiler.plans import Operand, Plan, Step
from volta_fn.core.array import host_buffer
from volta_fn.core.jaxpr import Literal
from volta_fn.core.primitive import Primitive
from volta_fn.targets.numpy.memory import give, take

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
