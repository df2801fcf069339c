"""Verify kernels: bounds, order, stores, and what recognisers take them for."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from functools import lru_cache
from typing import Any, NoReturn

from volta_fn.compiler.ir.axes import simplified
from volta_fn.compiler.ir.contraction import Contraction, contraction_of
from volta_fn.compiler.ir.kernel import Apply, Kernel, Load, Node, Reduce, Store, check_kernel, format_kernel, operands
from volta_fn.compiler.ir.nodes import KernelCall, equations_between
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.errors import CompilerError, JaxprError


def verify_call(stage: str, program: ClosedJaxpr, call: KernelCall) -> None:
    """Raise `CompilerError` unless a kernel is well formed and fits its call."""
    kernel = call.kernel
    problem = problem_of(kernel)
    if problem is not None:
        fail_call(stage, problem, program, call)
    for kind, variables, buffers in (("operands", call.operands, kernel.inputs), ("results", call.results, kernel.outputs)):
        types, expected = [(v.aval.size, v.aval.dtype) for v in variables], [(b.size, b.dtype) for b in buffers]
        if types != expected:
            fail_call(stage, f"a kernel's {kind} are {_listed(types)}, but it has buffers {_listed(expected)}", program, call)


def fail_call(stage: str, problem: str, program: ClosedJaxpr, call: KernelCall) -> NoReturn:
    """Raise the error of a kernel, with its equations and a user's line."""
    producers = {v: eqn for eqn in program.eqns for v in eqn.outvars}
    between = {id(eqn) for eqn in equations_between(producers, call.operands, call.results)}
    equations = [eqn for eqn in program.eqns if id(eqn) in between]
    names = ", ".join(f"{eqn.primitive}{'' if eqn.source is None else f' at {eqn.source}'}" for eqn in equations)
    location = next((eqn.source for eqn in reversed(equations) if eqn.source is not None), None)
    try:
        text = format_kernel(call.kernel)
    except IndexError:  # it is too malformed to be printed as loops
        text = "\n".join(map(repr, (*call.kernel.nodes, *call.kernel.stores)))
    raise CompilerError.of(stage, problem, f"the kernel of {names or 'no equation'}:\n{textwrap.indent(text, '    ')}", location)


def _listed(types: list[tuple[int, Any]]) -> str:
    return ", ".join(f"{dtype}[{size}]" for size, dtype in types) or "none"


@lru_cache(maxsize=4096)
def problem_of(kernel: Kernel) -> str | None:
    """Return which rule a kernel breaks; None if it breaks none.

    The forms of it that code is generated from must keep the rules, too.
    """
    try:
        check_kernel(kernel)
        small = simplified(kernel)
        check_kernel(small)
        if (small.inputs, small.outputs) != (kernel.inputs, kernel.outputs):
            return "with fewer axes, the kernel has other buffers"
        contraction = contraction_of(kernel)
        return None if contraction is None else _problem_of_contraction(contraction)
    except JaxprError as error:
        return error.message


# recognisers


def _problem_of_contraction(contraction: Contraction) -> str | None:
    """Return how a contraction differs from the kernel that it was recognised in.

    Code is generated for the sum of products and for the epilogue: together they must store what the kernel stores.
    """
    kernel = contraction.kernel
    try:
        epilogue, inputs = contraction.epilogue()
        check_kernel(epilogue)
    except (JaxprError, AssertionError) as error:
        return f"taken for a matrix product, whose epilogue is no kernel: {error.args[0] if error.args else error}"
    numbers = ExpressionNumbers()
    values = numbers.of(kernel)
    total = kernel.nodes[contraction.total]
    assert isinstance(total, Reduce)
    product = kernel.nodes[total.operand]
    factors = [_unconverted(kernel, n) for n in operands(product)]
    if factors != [contraction.lhs, contraction.rhs] and factors != [contraction.rhs, contraction.lhs]:
        return "taken for a matrix product of other arrays than the kernel multiplies"
    after = numbers.of(epilogue, [None, *inputs], values[contraction.total])
    if _stores(kernel, values) != _stores(epilogue, after):
        return "taken for a matrix product, whose epilogue stores other values than the kernel"
    return None


def _unconverted(kernel: Kernel, number: int) -> Node:
    node = kernel.nodes[number]
    is_conversion = isinstance(node, Apply) and node.op == "convert_element_type"
    return kernel.nodes[operands(node)[0]] if is_conversion else node


def _stores(kernel: Kernel, values: list[int]) -> list[Store]:
    return [replace(store, value=values[store.value]) for store in kernel.stores]


class ExpressionNumbers:
    """Value numbers: equal expressions of several kernels have the same number."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def of(self, kernel: Kernel, inputs: list[int | None] | None = None, first: int | None = None) -> list[int]:
        """Return the number of each node.

        `inputs` are the numbers of the kernel's inputs in another kernel, and None for the one whose elements are the value `first`.
        """
        found: list[int] = []
        for node in kernel.nodes:
            key: Any = node
            if isinstance(node, Load) and inputs is not None:
                number = inputs[node.input]
                if number is None:
                    assert first is not None
                    found.append(first)
                    continue
                key = replace(node, input=number)
            elif isinstance(node, Apply):
                key = replace(node, operands=tuple([found[i] for i in node.operands]))
            elif isinstance(node, Reduce):
                key = replace(node, operand=found[node.operand])
            found.append(self._numbers.setdefault(key, len(self._numbers)))
        return found
