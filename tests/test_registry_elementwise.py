"""Elementwise primitives beyond their fixed samples: drawn shapes, numbers at the edge of the dtypes, and the rule of weak types."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from tests.laws import subnormals
from tests.laws.common import ROUNDING, assert_close, assert_same_bits, wide
from tests.laws.derivatives import first_derivatives_hold
from tests.laws.staging import jit_is_eager
from tests.laws.values import values_agree
from tests.narrow_devices import has
from tests.samples import on_this_device
from tests.samples.elementwise import EXACT, PARAMETERS, REFERENCES, oracle, samples_with
from volta_fn import dtypes
from volta_fn.core.arrays.array import as_value
from volta_fn.core.primitive import PRIMITIVES, Primitive
from volta_fn.core.trace import bind

ELEMENTWISE = [p for p in PRIMITIVES.values() if p.arity]
#: Of the first operand of polygamma and zeta only numbers above 0 or 1 make sense; SciPy's Faddeeva function is NaN, or infinite of any
#: sign, at infinities where it has limits; hypergeometric series have no value for most extreme parameters. Their edges are elsewhere.
ELSEWHERE = {"polygamma", "zeta", "faddeeva_real", "faddeeva_imag", "hyp1f1", "hyp2f1"}
#: SciPy's functions, and plain formulas of densities, are wrong, NaN or end the process at extreme shapes.
_BETA = {"regularized_incomplete_beta", "regularized_incomplete_beta_complement", "betainc_grad_a", "betainc_grad_b"}
_BETA |= {"beta_density", "beta_pdf", "nbinom_pmf"}
_GAMMA = {"igamma", "igammac", "igamma_grad_a", "random_gamma_grad", "gamma_density", "digamma_rise", "expn", "gamma_pdf"}
#: Densities are defined for positive scales; those of the public functions have tests of their own.
ELSEWHERE |= {"normal_pdf", "exponential_pdf", "logistic_pdf", "cauchy_pdf", "t_pdf"}
ELSEWHERE |= _BETA | _GAMMA | {"beta", "betaln", "comb", "poch", "boxcox", "boxcox1p"}
ON_EDGES = [p for p in ELEMENTWISE if np.dtype(np.float32) in (p.dtypes or ()) and p.name not in ELSEWHERE]


def ids(primitives: list[Primitive]) -> list[str]:
    return [p.name for p in primitives]


@pytest.mark.parametrize("primitive", ELEMENTWISE, ids=ids(ELEMENTWISE))
@given(data=st.data())
@settings(max_examples=6)
def test_drawn_shapes(primitive: Primitive, data: st.DataObject) -> None:
    """Zero-dimensional, empty and broadcasting operands of up to four dimensions."""
    shapes = data.draw(mutually_broadcastable_shapes(num_shapes=primitive.arity, min_side=0, max_side=3, max_dims=4)).input_shapes
    sample = data.draw(st.sampled_from([s for s in map(on_this_device, samples_with(primitive, shapes)) if s.dtypes]))
    values_agree(sample)
    jit_is_eager(sample)
    if sample.wrt and "float64" in sample.dtypes:
        first_derivatives_hold(sample)


@pytest.mark.parametrize("primitive", [p for p in ELEMENTWISE if not isinstance(p.evaluate, np.ufunc)], ids=str)
def test_oracle_is_independent(primitive: Primitive) -> None:
    """A function of ours is compared with another: a reference, or the formula, which generated code computes.

    A NumPy ufunc is its own oracle, in another precision.
    """
    on_inexact = bool((primitive.dtypes or frozenset()) & dtypes.INEXACT)
    has_both = primitive.formula is not None and getattr(primitive.evaluate, "__wrapped__", None) is not primitive.formula
    assert not on_inexact or has_both or primitive.name in REFERENCES, f"{primitive} has no reference in tests/samples/elementwise.py"


def edge_values(dtype: np.dtype) -> list[float]:
    """Zeros of both signs, infinities, NaN, the smallest and largest numbers, and some ordinary ones."""
    info = dtypes.finfo(dtype)
    limits = [float(info.max), float(info.tiny), float(info.smallest_subnormal)]
    return [0.0, 0.5, 1.0, 2.5, *limits, np.inf, *[-x for x in (0.0, 0.5, 1.0, 2.5, *limits, np.inf)], np.nan]


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("primitive", ON_EDGES, ids=ids(ON_EDGES))
def test_edge_values(primitive: Primitive, name: str) -> None:
    """Infinities, NaN, zeros of both signs and numbers about to overflow, in every combination."""
    dtype = dtypes.as_dtype(name)
    if dtype not in (primitive.dtypes or ()):
        return
    rows = np.array(list(itertools.product(edge_values(dtype), repeat=primitive.arity)))
    operands = [column.astype(dtype) for column in rows.T]
    for params in PARAMETERS.get(primitive.name, ({},)):
        actual = np.asarray(bind(primitive, *map(as_value, operands), **params))
        with np.errstate(all="ignore"):
            reference = lambda *xs, params=params: oracle(primitive)(*(xs if primitive.name in EXACT else map(wide, xs)), **params)
            expected = subnormals.expected(actual, reference, operands, preserved=subnormals.preserves_subnormals())
        what = f"{primitive}{params} in {name} of {[x.tolist() for x in operands]}"
        if primitive.name in EXACT:
            assert_same_bits(actual, expected, what)
        else:
            assert_close(actual, expected, ROUNDING.get(actual.dtype.name, 0.0), what, atol=float(dtypes.finfo(dtype).tiny))


@pytest.mark.parametrize("primitive", ELEMENTWISE, ids=ids(ELEMENTWISE))
def test_weak_type(primitive: Primitive) -> None:
    """A result is weak if and only if every operand is, for every mixture."""
    dtype = min([d for d in primitive.dtypes or () if has(d.name)], key=lambda d: (d not in dtypes.FLOATS, d.name))
    params = PARAMETERS.get(primitive.name, ({},))[0]
    for weak in itertools.product((True, False), repeat=primitive.arity):
        operands = [as_value(np.ones((), dtype)) for _ in weak]
        operands = [bind(PRIMITIVES["convert_element_type"], x, new_dtype=dtype, weak_type=w) for x, w in zip(operands, weak, strict=True)]
        result = bind(primitive, *operands, **params)
        assert result.weak_type == all(weak), f"{primitive} of operands with weak types {weak}"
