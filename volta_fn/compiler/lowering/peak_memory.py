"""How much memory a plan takes: its block, the values outside of it, and what plans inside its steps take."""

from __future__ import annotations

from volta_fn.compiler.lowering.plan import Plan, Planner
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import sub_jaxprs


def bytes_of(aval: ShapedArray) -> int:
    """The bytes of an array."""
    return aval.size * aval.dtype.itemsize


def most_temporaries(plan: Plan, make: Planner) -> int:
    """The most bytes that values other than arguments and results take at a time; `make` plans the programs in steps."""
    changes = [0] * (len(plan.steps) + 1)
    for life in plan.loose:
        changes[life.begin] += life.bytes
        changes[life.end + 1] -= life.bytes
    now = most = 0
    for change, step in zip(changes, plan.steps, strict=False):
        now += change
        inside = [most_temporaries(make(p), make) + sum(map(bytes_of, p.out_avals)) for p in sub_jaxprs(step.eqn.params)]
        most = max(most, now + max(inside, default=0))
    return plan.block + most
