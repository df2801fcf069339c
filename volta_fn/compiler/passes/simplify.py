"""Simplification of single equations, all in one walk.

In one walk each rule sees at once what the others made possible: constants folded, operations simplified, equal equations merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta_fn import dtypes
from volta_fn.compiler.passes import arithmetic, movement_rules, select_rules
from volta_fn.compiler.passes.effects import is_movable, is_pinned
from volta_fn.compiler.passes.rewriting import Rewriter, Rule, Rules, listed, literal_key, numbers_of, params_key, rewrite
from volta_fn.core.array import Array, ConcreteArray, from_host
from volta_fn.core.device import find_device
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var
from volta_fn.core.primitive import Primitive
from volta_fn.core.trace import EVAL

#: Elements of the largest result that becomes a constant of the program, and of the operands that it is computed from.
_RESULT_LIMIT, _OPERAND_LIMIT = 1024, 65536

#: Operations that are commutative to the last bit. (Not max and min: the first of two zeros may win.)
_COMMUTATIVE = frozenset(["add", "mul", "and", "or", "xor", "eq", "ne"])


def simplify_equations(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Fold constants, apply algebraic identities and merge equal equations."""
    return rewrite(closed, _ALL)


def _folding_rules(primitive: Primitive) -> Sequence[Rule]:
    """Return the folding rule, for primitives that compute something.

    Filling an array in advance would only make the program larger.
    """
    is_program = primitive.holds_programs or primitive.call_param is not None
    return () if is_program or is_pinned(primitive) or primitive.name == "broadcast_in_dim" else (_folded,)


def _folded(eqn: Equation, program: Rewriter) -> Atom | Sequence[Atom] | None:
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
    """Move a known value to the CPU.

    It computes a small result faster than another device can be told to.
    """
    numbers, cpu = numbers_of(value), find_device("cpu")
    if numbers is None or (isinstance(value, ConcreteArray) and value.device is cpu):
        return value
    return from_host(numbers, value.weak_type, cpu)


def _constant(var: Var, value: ConcreteArray, program: Rewriter) -> Atom:
    """Return a scalar as a literal; make any other value a constant of the program."""
    if not value.shape:
        return Literal(value)
    program.constants[var] = value
    return var


def _merging_rules(primitive: Primitive) -> Sequence[Rule]:
    return () if is_pinned(primitive) else (_merged,)


def _merged(eqn: Equation, program: Rewriter) -> Atom | Sequence[Atom] | None:
    """Return the results of an earlier equation that is equal to this one."""
    if eqn.primitive.holds_programs and not is_movable(eqn):
        return None
    first = program.seen.setdefault(_key(eqn), eqn.outvars)
    if first is eqn.outvars:
        return None
    return first if eqn.primitive.multiple_results else first[0]


def _key(eqn: Equation) -> Any:
    operands = [v if type(v) is Var else literal_key(v) for v in eqn.invars]
    if len(operands) == 2 and eqn.primitive.name in _COMMUTATIVE and eqn.invars[0].aval.dtype not in dtypes.COMPLEX:
        operands.sort(key=hash)
    if not eqn.params:
        return eqn.primitive, *operands
    return eqn.primitive, *operands, params_key(eqn.params)


#: Operations that do nothing, or undo or repeat others, are dropped, and some are replaced by cheaper ones.
IDENTITIES = (
    listed(arithmetic.RULES),
    listed(select_rules.RULES),
    listed(movement_rules.RULES),
    movement_rules.reduction_rules,
    movement_rules.broadcasting_rules,
)
#: Small values that do not depend on the program's inputs are computed, by the kernels that would compute them later.
FOLDING = (_folding_rules,)
#: Each value is computed once (common-subexpression elimination). Programs are pure except for effects: equal equations have equal results
#: wherever they are, random bits included. Equations with effects are never merged, nor are barriers, which keep equal values separate.
MERGING = (_merging_rules,)
#: Merging is last: it must see equations in their final form.
_ALL = Rules(*FOLDING, *IDENTITIES, *MERGING)
