"""Residuals of calls: those that follow cheaply from others are not saved.

The derivative of ``tanh`` needs ``1 - y**2``, and a product with `y` needs `y` itself. To save both would double what passes from the
program of the values to that of the derivative, so the latter recomputes the first from the second.
"""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Var, dce_jaxpr, program_cache
from volta_fn.primitives.data_movement.movement import broadcast_in_dim_p
from volta_fn.primitives.elementwise import arithmetic, selection
from volta_fn.transforms.linearize import partial_eval_jaxpr
from volta_fn.transforms.rules.programs import compose

#: Operations on elements that take no longer than loading their result.
_CHEAP = frozenset(
    [f.primitive for f in (arithmetic.neg, arithmetic.abs, arithmetic.add, arithmetic.sub, arithmetic.mul, arithmetic.max, arithmetic.min)]
    + [f.primitive for f in (selection.eq, selection.ne, selection.lt, selection.le, selection.gt, selection.ge)]
    + [f.primitive for f in (selection.bitwise_and, selection.bitwise_or, selection.bitwise_not)]
    + [selection.select_n_p, broadcast_in_dim_p, arithmetic.integer_pow_p]
)
#: The most operations by which a value is recomputed, and the largest exponent among them.
_MOST_OPERATIONS = 6
_LARGEST_POWER = 4


@program_cache
def split_call(closed: ClosedJaxpr, is_unknown: Sequence[bool]) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool]]:
    """Split a program like `partial_eval_jaxpr`, with fewer residuals."""
    known_program, unknown_program, out_unknown = partial_eval_jaxpr(closed, is_unknown)
    jaxpr, count = known_program.jaxpr, out_unknown.count(False)
    outputs, residuals = jaxpr.outvars[:count], jaxpr.outvars[count:]
    choice = _Choice(known_program, outputs, residuals)
    if not choice.recomputed:
        return known_program, unknown_program, out_unknown
    saved = list(choice.saved)
    recomputation = ClosedJaxpr(Jaxpr([], saved, residuals, [e for e in known_program.eqns if id(e) in choice.recomputed]), [])
    return dce_jaxpr(known_program.replace(outvars=[*outputs, *saved])), compose(recomputation, unknown_program, "derivative"), out_unknown


class _Choice:
    """Which residuals are saved, and by which equations the others are recomputed.

    Attributes:
        saved: the residuals to save, and outputs that others are recomputed from.
        recomputed: the `id` of each equation that the unknown program repeats.
    """

    def __init__(self, known_program: ClosedJaxpr, outputs: Sequence[Atom], residuals: Sequence[Atom]) -> None:
        self.producers = {v: e for e in known_program.eqns for v in e.outvars}
        self.outputs = {v for v in outputs if type(v) is Var}
        self.saved: dict[Var, None] = {}
        self.recomputed: set[int] = set()
        order = {v: number for number, v in enumerate(self.producers)}
        variables = {v for v in residuals if type(v) is Var}
        # In the order of the program, so that what a residual may be recomputed from is decided first.
        for var in sorted(variables, key=lambda v: order.get(v, -1)):
            equations = self._recomputation(var)
            if equations is None:
                self.saved[var] = None
            else:
                self.recomputed |= equations

    def _recomputation(self, var: Var) -> set[int] | None:
        """Return the equations that compute a residual from saved values, or None.

        At most one of these values is an output that was not saved yet, and no larger than the residual; it is saved then.
        """
        equations: set[int] = set()
        sources: dict[Var, None] = {}
        stack: list[Var] = [var]
        while stack:
            value = stack.pop()
            if value in self.saved or (value in self.outputs and value is not var):
                sources[value] = None
                continue
            eqn = self.producers.get(value)
            if eqn is None or not _is_cheap(eqn) or len(equations) >= _MOST_OPERATIONS:
                return None
            equations.add(id(eqn))
            stack += [v for v in eqn.invars if type(v) is Var]
        unsaved = [v for v in sources if v not in self.saved]
        if len(unsaved) > 1 or any(v.aval.nbytes > var.aval.nbytes for v in unsaved):
            return None
        self.saved |= dict.fromkeys(unsaved)
        return equations


def _is_cheap(eqn: Equation) -> bool:
    return eqn.primitive in _CHEAP and (eqn.primitive is not arithmetic.integer_pow_p or 0 <= eqn.params["y"] <= _LARGEST_POWER)
