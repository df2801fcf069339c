"""Residuals of calls: those that follow cheaply from others are not saved.

The derivative of ``tanh`` needs ``1 - y**2``, and a product with `y` needs `y` itself. To save both would double what passes between
the program of the values and that of the derivative, so the latter computes the first of the second again.
"""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Var, dce_jaxpr, program_cache
from volta_fn.primitives.data_movement.movement import broadcast_in_dim_p
from volta_fn.primitives.elementwise import arithmetic, selection
from volta_fn.transforms.linearize import partial_eval_jaxpr
from volta_fn.transforms.rules.programs import chained

#: Operations on elements that take no longer than loading their result.
_CHEAP = frozenset(
    [f.primitive for f in (arithmetic.neg, arithmetic.abs, arithmetic.add, arithmetic.sub, arithmetic.mul, arithmetic.max, arithmetic.min)]
    + [f.primitive for f in (selection.eq, selection.ne, selection.lt, selection.le, selection.gt, selection.ge)]
    + [f.primitive for f in (selection.bitwise_and, selection.bitwise_or, selection.bitwise_not)]
    + [selection.select_n_p, broadcast_in_dim_p, arithmetic.integer_pow_p]
)
#: The most operations that lead to a value that is computed again.
_MOST_OPERATIONS = 6
#: The largest exponent among them.
_LARGEST_POWER = 4


@program_cache
def split_call(closed: ClosedJaxpr, is_unknown: Sequence[bool]) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool]]:
    """Split a program like `partial_eval_jaxpr`, with fewer residuals."""
    known_program, unknown_program, out_unknown = partial_eval_jaxpr(closed, is_unknown)
    jaxpr, count = known_program.jaxpr, out_unknown.count(False)
    outputs, residuals = jaxpr.outvars[:count], jaxpr.outvars[count:]
    derivation = _Derivation(known_program, outputs, residuals)
    if not derivation.again:
        return known_program, unknown_program, out_unknown
    saved = list(derivation.saved)
    again = ClosedJaxpr(Jaxpr([], saved, residuals, [e for e in known_program.eqns if id(e) in derivation.again]), [])
    return dce_jaxpr(known_program.replace(outvars=[*outputs, *saved])), chained(again, unknown_program, "derivative"), out_unknown


class _Derivation:
    """The residuals to save, and the equations that derive the others from these."""

    def __init__(self, known_program: ClosedJaxpr, outputs: Sequence[Atom], residuals: Sequence[Atom]) -> None:
        self.makers = {v: e for e in known_program.eqns for v in e.outvars}
        self.outputs = {v for v in outputs if type(v) is Var}
        self.saved: dict[Var, None] = {}
        self.again: set[int] = set()
        order = {v: number for number, v in enumerate(self.makers)}
        variables = {v for v in residuals if type(v) is Var}
        # Producers are decided on before their consumers.
        for var in sorted(variables, key=lambda v: order.get(v, -1)):
            self._decide(var)

    def _decide(self, var: Var) -> None:
        """Save a residual, unless it follows from saved ones and at most one output."""
        equations: dict[int, Equation] = {}
        leaves: dict[Var, None] = {}
        stack: list[Var] = [var]
        while stack:
            at = stack.pop()
            if at in self.saved or (at in self.outputs and at is not var):
                leaves[at] = None
                continue
            eqn = self.makers.get(at)
            if eqn is None or not _is_cheap(eqn) or len(equations) >= _MOST_OPERATIONS:
                self.saved[var] = None
                return
            equations[id(eqn)] = eqn
            stack += [v for v in eqn.invars if type(v) is Var]
        unsaved = [v for v in leaves if v not in self.saved]
        if len(unsaved) > 1 or any(v.aval.nbytes > var.aval.nbytes for v in unsaved):
            self.saved[var] = None
            return
        self.saved |= dict.fromkeys(unsaved)
        self.again |= equations.keys()


def _is_cheap(eqn: Equation) -> bool:
    return eqn.primitive in _CHEAP and (eqn.primitive is not arithmetic.integer_pow_p or 0 <= eqn.params["y"] <= _LARGEST_POWER)
