"""Constant folding: what depends on constants alone is computed once, while compiling, by the kernels that would compute it later."""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn.compiler.lowering.param_keys import numbers_of
from volta_fn.compiler.passes.effects import is_pinned
from volta_fn.compiler.passes.rewriting import Rewriter, Rule, Rules, rewrite
from volta_fn.core.array import Array, ConcreteArray, from_host
from volta_fn.core.device import find_device
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var
from volta_fn.core.primitive import Primitive
from volta_fn.core.trace import EVAL

#: Elements of the largest result that is kept in a program, and of the operands that it is computed from.
_RESULT_LIMIT, _OPERAND_LIMIT = 1024, 65536


def fold_constants(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program with small values that do not depend on its inputs as constants."""
    return rewrite(closed, _FOLDING)


def folding_rules(primitive: Primitive) -> Sequence[Rule]:
    """The rule that folds, for what computes something. Filling an array is no work, and would only make the program larger."""
    is_program = primitive.holds_programs or primitive.call_param is not None
    return () if is_program or is_pinned(primitive) or primitive.name == "broadcast_in_dim" else (_folded,)


def _folded(eqn: Equation, program: Rewriter) -> Atom | Sequence[Atom] | None:
    """The results of an equation whose operands are known."""
    known = program.constants
    operands: list[Array] = []
    for atom in eqn.invars:
        value = atom.val if isinstance(atom, Literal) else known.get(atom)
        if value is None:
            return None
        operands.append(value)
    if not operands or any(v.aval.size > _RESULT_LIMIT for v in eqn.outvars):
        return None
    if any(v.size > _OPERAND_LIMIT or numbers_of(v) is None for v in operands):
        return None
    results = EVAL.process(eqn.primitive, [_on_cpu(v) for v in operands], eqn.params)
    if not eqn.primitive.multiple_results:
        return _constant(eqn.outvars[0], results, program)
    return [_constant(v, r, program) for v, r in zip(eqn.outvars, results, strict=True)]


def _on_cpu(value: Array) -> Array:
    """A known value on the CPU, which has the result sooner than it could say what is to be computed."""
    numbers, cpu = numbers_of(value), find_device("cpu")
    if numbers is None or (isinstance(value, ConcreteArray) and value.device is cpu):
        return value
    return from_host(numbers, value.weak_type, cpu)


def _constant(var: Var, value: ConcreteArray, program: Rewriter) -> Atom:
    """A scalar as a literal; any other value as a constant of the program."""
    if not value.shape:
        return Literal(value)
    program.constants[var] = value
    return var


_FOLDING = Rules(folding_rules)
