"""`estimate_cost`: the operations of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn.core.jaxpr import ClosedJaxpr, Equation, sub_jaxprs
from volta_fn.experimental.pallas.specs import CostEstimate
from volta_fn.jit.compile import operations_of
from volta_fn.transforms.make_jaxpr import make_jaxpr

_ARITHMETIC = frozenset("add mul sub div min max or and xor neg floor ceil round not dot_general".split())
_TRANSCENDENTAL = frozenset("cos sin tan sinh cosh tanh acos asin atan exp log logistic sqrt".split())


def estimate_cost(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> CostEstimate:
    """Return the operations of ``fun(*args, **kwargs)``, and the bytes it moves.

    These are those of arguments and results. Arguments may be `ShapeDtypeStruct`. Only arithmetic, products of matrices and elementary
    functions count, as in JAX, and a loop counts all of its iterations.

    >>> import volta_fn as vf
    >>> from volta_fn.experimental import pallas as pl
    >>> x = vf.ShapeDtypeStruct((8, 8), "float32")
    >>> pl.estimate_cost(lambda x, y: vf.numpy.exp(x @ y), x, x)
    CostEstimate(flops=1024, transcendentals=64, bytes_accessed=768, remote_bytes_transferred=0)
    """
    program = make_jaxpr(lambda *arguments: fun(*arguments, **kwargs))(*args)
    flops, transcendentals = _cost_of(program)
    moved = sum(aval.nbytes for aval in [*program.in_avals, *program.out_avals])
    return CostEstimate(flops, transcendentals, moved)


def _cost_of(program: ClosedJaxpr) -> tuple[int, int]:
    costs = [_cost_of_equation(eqn) for eqn in program.eqns]
    return sum(flops for flops, _ in costs), sum(number for _, number in costs)


def _cost_of_equation(eqn: Equation) -> tuple[int, int]:
    """Return an equation's operations of arithmetic, and elementary functions."""
    name, params = eqn.primitive.name, eqn.params
    inside = [_cost_of(program) for program in sub_jaxprs(params)]
    if name == "cond":
        return max(inside, default=(0, 0))
    if inside:
        count = int(params.get("length", 1))
        return count * sum(flops for flops, _ in inside), count * sum(number for _, number in inside)
    if name == "integer_pow":
        power = abs(params["y"])
        steps = power.bit_length() - 1 + power.bit_count() if power > 1 else 0
        return eqn.outvars[0].aval.size * steps, 0
    operations = operations_of(eqn)
    return (operations if name in _ARITHMETIC else 0), (operations if name in _TRANSCENDENTAL else 0)
