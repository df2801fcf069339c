"""Programs that rules derive, cached on the originals, and residuals of calls."""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Var, dce_jaxpr, program_cache
from volta_fn.core.staging import eval_jaxpr, trace_to_jaxpr
from volta_fn.transforms.linearize import marked, merge, partial_eval_jaxpr

# ------------------------------------------------------------------------------
# Programs that the rules of control flow derive, cached on the original programs.
# ------------------------------------------------------------------------------


@program_cache
def reordered(closed: ClosedJaxpr, inputs: Sequence[int], outputs: Sequence[int]) -> ClosedJaxpr:
    """Return the program of some outputs, with its inputs reordered."""
    jaxpr = closed.jaxpr
    invars, outvars = [jaxpr.invars[i] for i in inputs], [jaxpr.outvars[i] for i in outputs]
    program = closed.replace(invars=invars, outvars=outvars)
    return program if len(outvars) == len(jaxpr.outvars) else dce_jaxpr(program)


@program_cache
def with_unused(closed: ClosedJaxpr, extra: Sequence[ShapedArray]) -> ClosedJaxpr:
    """Return the program with more inputs at the end, which it ignores."""
    jaxpr = closed.jaxpr
    invars = [*jaxpr.invars, *map(Var, extra)]
    return closed.replace(invars=invars)


@program_cache
def split_program(closed: ClosedJaxpr, unknown: Sequence[bool], wanted: Sequence[bool]) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool]]:
    """Split a program like `partial_eval_jaxpr`, with more outputs unknown.

    The outputs in `wanted` are unknown even if they could be known. The known program returns those as its first residuals.
    """
    known, waiting, out_unknown = partial_eval_jaxpr(closed, unknown)
    moved = [w for w, u in zip(wanted, out_unknown, strict=True) if not u]
    if not any(moved):
        return known, waiting, out_unknown
    known_outs, residuals = known.jaxpr.outvars[: len(moved)], known.jaxpr.outvars[len(moved) :]
    passed = [Var(v.aval) for v in marked(known_outs, moved)]
    is_unknown = [u or w for u, w in zip(out_unknown, wanted, strict=True)]
    outvars = merge(marked(out_unknown, is_unknown), waiting.jaxpr.outvars, passed)
    known_jaxpr = Jaxpr(
        known.jaxpr.constvars,
        known.jaxpr.invars,
        [*marked(known_outs, moved, False), *marked(known_outs, moved), *residuals],
        known.jaxpr.eqns,
    )
    waiting_jaxpr = Jaxpr(waiting.jaxpr.constvars, [*passed, *waiting.jaxpr.invars], outvars, waiting.jaxpr.eqns)
    return ClosedJaxpr(known_jaxpr, known.consts), ClosedJaxpr(waiting_jaxpr, waiting.consts), is_unknown


def chained(first: ClosedJaxpr, second: ClosedJaxpr, name: str) -> ClosedJaxpr:
    """Return the program of `second`, whose first inputs `first` computes of its own."""
    count, wanted = len(first.in_avals), len(first.out_avals)
    avals = [*first.in_avals, *second.in_avals[wanted:]]
    return trace_to_jaxpr(lambda *xs: eval_jaxpr(second, *eval_jaxpr(first, *xs[:count]), *xs[count:]), avals, name)


# ------------------------------------------------------------------------------
# Residuals of calls: what follows from others cheaply is not saved.
#
# The derivative of ``tanh`` needs ``1 - y**2``, and a product with `y` needs `y` itself. To save both would double what passes between
# the program of the values and that of the derivative, so the latter computes the first of the second again.
# ------------------------------------------------------------------------------

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
