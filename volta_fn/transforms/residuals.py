"""Residuals of calls: what follows from others cheaply is not saved.

The derivative of ``tanh`` needs ``1 - y**2``, and a product with `y` needs `y` itself. To save both would double what passes between the
program of the values and that of the derivative, so the latter computes the first of the second again.
"""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn.core.dce import dce_jaxpr
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Var, program_cache
from volta_fn.transforms.linearize import partial_eval_jaxpr
from volta_fn.transforms.rules.subprograms import chained

#: Operations on elements that take no longer than loading their result.
_CHEAP = frozenset("neg abs add sub mul max min eq ne lt le gt ge and or not select_n broadcast_in_dim integer_pow".split())
#: The most operations that lead to a value that is computed again, and the largest exponent among them.
_MOST, _POWER = 6, 4


@program_cache
def split_call(closed: ClosedJaxpr, unknown: Sequence[bool]) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool]]:
    """Split a program like `partial_eval_jaxpr`, with fewer residuals."""
    known, waiting, out_unknown = partial_eval_jaxpr(closed, unknown)
    jaxpr, count = known.jaxpr, out_unknown.count(False)
    outputs, residuals = jaxpr.outvars[:count], jaxpr.outvars[count:]
    found = _Derivation(known, outputs, residuals)
    if not found.again:
        return known, waiting, out_unknown
    saved = list(found.saved)
    again = ClosedJaxpr(Jaxpr([], saved, residuals, [e for e in known.eqns if id(e) in found.again]), [])
    return dce_jaxpr(known.replace(outvars=[*outputs, *saved])), chained(again, waiting, "derivative"), out_unknown


class _Derivation:
    """Which residuals are saved, and the equations that lead from these to the others."""

    def __init__(self, known: ClosedJaxpr, outputs: Sequence[Atom], residuals: Sequence[Atom]) -> None:
        self.makers = {v: e for e in known.eqns for v in e.outvars}
        self.outputs = {v for v in outputs if type(v) is Var}
        self.saved: dict[Var, None] = {}
        self.again: set[int] = set()
        order = {v: number for number, v in enumerate(self.makers)}
        wanted = {v for v in residuals if type(v) is Var}
        # What is read by others is decided on first.
        for var in sorted(wanted, key=lambda v: order.get(v, -1)):
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
            if eqn is None or not _is_cheap(eqn) or len(equations) >= _MOST:
                self.saved[var] = None
                return
            equations[id(eqn)] = eqn
            stack += [v for v in eqn.invars if type(v) is Var]
        more = [v for v in leaves if v not in self.saved]
        if len(more) > 1 or any(v.aval.nbytes > var.aval.nbytes for v in more):
            self.saved[var] = None
            return
        self.saved |= dict.fromkeys(more)
        self.again |= equations.keys()


def _is_cheap(eqn: Equation) -> bool:
    name = eqn.primitive.name
    return name in _CHEAP and (name != "integer_pow" or 0 <= eqn.params["y"] <= _POWER)
