"""How passes are tested: the program before and after, as text and by its values, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import volta_fn as vf
from volta_fn.compiler.passes.rewriting import Rules, RuleSource, rewrite
from volta_fn.compiler.passes.simplify import IDENTITIES
from volta_fn.core.arrays.array import as_value
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.staging import eval_jaxpr
from volta_fn.transforms.differentiation import eliminate_dead_code

#: Floats that tell apart what is nearly the same.
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.75, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38, 1.0000001, 65504.0]


def rewriting(*sources: RuleSource) -> Callable[[ClosedJaxpr], ClosedJaxpr]:
    """Return a pass that applies these rules alone."""
    rules = Rules(*sources)
    return lambda closed: rewrite(closed, rules)


identities = rewriting(*IDENTITIES)


def special(dtype: Any) -> np.ndarray:
    """Values at the edges of a dtype."""
    kind = np.dtype(dtype)
    if kind == np.bool_:
        return np.array([False, True])
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return np.array([0, 1, 2, 3, 7, info.max, info.max - 1, info.min, info.min + 1, info.max // 2 + 1], kind)
    with np.errstate(all="ignore"):
        values = np.array(SPECIAL)
        if kind.kind == "c":
            return (values[:, None] + 1j * values[None, :]).ravel().astype(kind)
        return values.astype(kind)


def same_bits(first: Any, second: Any) -> None:
    """Fail unless two arrays agree in type and in every bit; any NaN is as good as another."""
    one, other = np.asarray(first), np.asarray(second)
    assert (one.shape, one.dtype) == (other.shape, other.dtype)
    nan_one, nan_other = one != one, other != other  # also for dtypes that np.isnan does not know
    assert np.array_equal(nan_one, nan_other)
    if one.dtype.kind == "c":
        same_bits(one.real.copy(), other.real.copy())
        same_bits(one.imag.copy(), other.imag.copy())
        return
    assert one[~nan_one].tobytes() == other[~nan_other].tobytes()


def names(program: ClosedJaxpr) -> list[str]:
    """Return the primitives of a program, in order."""
    return [e.primitive.name for e in program.eqns]


def passed(pass_: Callable[[ClosedJaxpr], ClosedJaxpr], function: Callable[..., Any], *args: Any) -> ClosedJaxpr:
    """Return the function's program after the pass, which is well formed, and gives the bits that the one before gives."""
    before = vf.make_jaxpr(function)(*args)
    after = pass_(before)
    vf.check_jaxpr(after)
    values = [as_value(x) for x in vf.tree.leaves(args)]
    for one, other in zip(eval_jaxpr(before, *values), eval_jaxpr(after, *values), strict=True):
        same_bits(one, other)
    assert all(e.source is not None for e in after.eqns)
    return after


def algebra(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return the rules of single operations, and what they leave dead taken away."""
    return eliminate_dead_code(identities(closed))


def left(function: Callable[..., Any], *args: Any) -> list[str]:
    """Return the primitives that `algebra` leaves, after a check of the values."""
    return names(passed(algebra, function, *args))


def untouched(pass_: Callable[[ClosedJaxpr], ClosedJaxpr], function: Callable[..., Any], *args: Any) -> None:
    """Fail unless the pass gives the program itself, which tells its caller that there is nothing to do."""
    before = vf.make_jaxpr(function)(*args)
    assert pass_(before) is before
