"""How much memory the values of a program take where each equation makes its results in memory of its own."""

from __future__ import annotations

from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Var, sub_jaxprs


def bytes_of(aval: ShapedArray) -> int:
    """The bytes of an array."""
    return aval.size * aval.dtype.itemsize


def most_temporaries(closed: ClosedJaxpr) -> int:
    """The most bytes that values other than arguments and results take at a time; views take none, programs in equations theirs."""
    jaxpr = closed.jaxpr
    holder = _memory_holders(closed)
    last: dict[Var, int] = {}
    for time, eqn in enumerate(jaxpr.eqns):
        last.update({holder.get(v, v): time for v in (*eqn.invars, *eqn.outvars) if isinstance(v, Var)})
    kept = {holder.get(v, v) for v in jaxpr.outvars if isinstance(v, Var)}
    dying: dict[int, int] = {}
    now = most = 0
    for time, eqn in enumerate(jaxpr.eqns):
        for out in eqn.outvars:
            if holder.get(out, out) is out and out not in kept:
                now += bytes_of(out.aval)
                dying[last[out]] = dying.get(last[out], 0) + bytes_of(out.aval)
        most = max(most, now + max([_inside(p) for p in sub_jaxprs(eqn.params)], default=0))
        now -= dying.pop(time, 0)
    return most


def _inside(closed: ClosedJaxpr) -> int:
    return most_temporaries(closed) + sum(bytes_of(a) for a in closed.out_avals)


def _memory_holders(closed: ClosedJaxpr) -> dict[Var, Var]:
    """The variable whose memory a view shows."""
    holder: dict[Var, Var] = {}
    for eqn in closed.eqns:
        shown = _shown(eqn)
        if shown is not None:
            holder.update(dict.fromkeys(eqn.outvars, holder.get(shown, shown)))
    return holder


def _shown(eqn: Equation) -> Var | None:
    return next((v for v in eqn.invars if isinstance(v, Var)), None) if eqn.primitive.views else None
