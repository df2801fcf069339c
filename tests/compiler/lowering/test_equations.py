"""Lowering: every equation that becomes a kernel has, by the interpreter, the values of its primitive's evaluation rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.laws.common import ROUNDING, arrays, assert_close, assert_same_bits, draw
from tests.samples import all_samples
from tests.samples.sample import Sample
from volta_fn import dtypes, lax
from volta_fn.compiler.ir.index import NotAffine, can_be_kernel
from volta_fn.compiler.ir.kernel import check_kernel, interpret
from volta_fn.compiler.lowering import lower_equation
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Literal, inline_calls
from volta_fn.core.primitive import evaluation_of

SAMPLES = list(all_samples())


def program_of(sample: Sample, name: str) -> tuple[ClosedJaxpr, list[np.ndarray]]:
    inputs = draw(sample, dtypes.as_dtype(name))
    return inline_calls(vf.make_jaxpr(sample.function)(*arrays(inputs))), inputs


def equations_with_operands(closed: ClosedJaxpr, inputs: list[np.ndarray]) -> Any:
    """Return each equation with the values of its operands and, by evaluation rules, of its results."""
    values: dict[Any, np.ndarray] = dict(zip(closed.jaxpr.constvars, map(np.asarray, closed.consts), strict=True))
    values.update(zip(closed.jaxpr.invars, inputs, strict=True))
    for eqn in closed.eqns:
        evaluate = evaluation_of(eqn.primitive)
        if evaluate is None:
            return
        operands = [np.asarray(v.val) if isinstance(v, Literal) else values[v] for v in eqn.invars]
        with np.errstate(all="ignore"):
            result = evaluate(*operands, **eqn.params)
        results = [np.asarray(r) for r in (result if eqn.primitive.multiple_results else (result,))]
        values.update(zip(eqn.outvars, results, strict=True))
        yield eqn, operands, results


def agrees(eqn: Equation, operands: list[np.ndarray], expected: np.ndarray) -> None:
    kernel, variables = lower_equation(eqn)
    check_kernel(kernel)
    by_variable = dict(zip(eqn.invars, operands, strict=True))
    (actual,) = interpret(kernel, *[by_variable[v] for v in variables])
    what = f"{eqn} of {operands}"
    if eqn.primitive.reduction is not None and expected.dtype in dtypes.INEXACT:  # sums in another order
        assert_close(actual, expected, ROUNDING[expected.dtype.name], what)
    else:
        assert_same_bits(actual, expected, what)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_samples(sample: Sample) -> None:
    for name in sample.dtypes:
        closed, inputs = program_of(sample, name)
        for eqn, operands, results in equations_with_operands(closed, inputs):
            if not can_be_kernel(eqn):
                continue
            try:
                agrees(eqn, operands, results[0])
            except NotAffine:
                assert eqn.primitive.name == "pad", f"{eqn} has no kernel"


EDGES = np.array([[np.nan, 1.0, -0.0], [np.inf, -np.inf, 0.0], [-0.0, -0.0, -0.0], [5e-324, -1.0, np.inf]])
PIECES: list[tuple[str, Any]] = [
    ("sum", lambda x: lax.reduce_sum(x, (1,))),
    ("sum-of-one", lambda x: lax.reduce_sum(x[:, 2:], (1,))),
    ("product", lambda x: lax.reduce_prod(x, (0,))),
    ("max", lambda x: lax.reduce_max(x, (1,))),
    ("min", lambda x: lax.reduce_min(x, (0, 1))),
    ("argmax", lambda x: lax.argmax(x, 1)),
    ("argmin-reversed", lambda x: lax.argmin(lax.rev(x, (0,)), 0)),
    ("pad", lambda x: lax.pad(x, x.dtype.type(-0.0), [(1, -1, 0), (-1, 2, 0)])),
    ("concatenate", lambda x: lax.concatenate([x, lax.neg(x), x[:0]], 0)),
    ("select", lambda x: lax.select(lax.lt(x, x.dtype.type(0)), x, lax.neg(x))),
    ("clamp", lambda x: lax.clamp(x.dtype.type(-1), x, x.dtype.type(1))),
    ("convert", lambda x: lax.convert_element_type(x, "int8")),
]


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("function", [f for _, f in PIECES], ids=[n for n, _ in PIECES])
def test_edge_values(function: Any, name: str) -> None:
    """NaN, infinities, zeros of both signs, and subnormal numbers."""
    x = EDGES.astype(dtypes.as_dtype(name))
    for eqn, operands, results in equations_with_operands(inline_calls(vf.make_jaxpr(function)(x)), [x]):
        assert can_be_kernel(eqn)
        agrees(eqn, operands, results[0])
