"""Complex arithmetic and functions against NumPy's in complex128: off by some units in the last place of the whole number."""

import numpy as np
import pytest

import volta_fn  # noqa: F401  # declares the primitives
from tests.targets.scalar_samples import (
    COMPLEX_AT_INFINITY,
    COMPLEX_FUNCTIONS,
    COMPONENTWISE,
    assert_components,
    complex_arguments,
    complex_edges,
    complex_pairs,
    differs_at,
    exponent_pairs,
    wide_value,
)
from tests.targets.wgsl.scalars.running import Call, run
from volta_fn.core.primitive import PRIMITIVES

DTYPES = [np.dtype(np.complex64), np.dtype(np.complex128)]
EXACT = ["add", "sub", "neg", "conj", "real", "imag", "eq", "ne", "max", "min"]


@pytest.fixture(autouse=True)
def silent():
    """Special arguments are the point here."""
    with np.errstate(all="ignore"):
        yield


def calls_of(ops, operands):
    """Return the calls, with what the evaluation rules say."""
    expected = [PRIMITIVES[op].evaluate(*operands[: PRIMITIVES[op].arity], **params) for op, params in ops]
    calls = [Call(op, tuple(range(PRIMITIVES[op].arity)), e.dtype, params) for (op, params), e in zip(ops, expected, strict=True)]
    return calls, expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exact(dtype):
    operands = complex_pairs(dtype)
    calls, expected = calls_of([(op, {}) for op in EXACT], operands)
    for call, actual, wanted in zip(calls, run(calls, operands), expected, strict=True):
        np.testing.assert_array_equal(actual, wanted, call.op)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_special_values(dtype):
    operands = complex_pairs(dtype)
    calls, expected = calls_of([("mul", {}), ("div", {}), ("abs", {})], operands)
    for call, actual, wanted in zip(calls, run(calls, operands), expected, strict=True):
        near = 4 * np.finfo(dtype).eps
        with np.errstate(all="ignore"):
            sizes = np.where(np.isfinite(wanted), np.abs(wanted), 0)
        for a, e in ((actual.real, wanted.real), (actual.imag, wanted.imag)):
            same = (a == e) | (np.isnan(a) & np.isnan(e)) | (np.abs(a - e) <= near * np.maximum(sizes, np.finfo(dtype).tiny))
            assert same.all(), (call.op, operands[0][~same][:5], operands[1][~same][:5], a[~same][:5], e[~same][:5])


def test_infinities_and_signs_of_zero():
    x = complex_edges("", np.complex64)
    calls, expected = calls_of(COMPLEX_AT_INFINITY, [x])
    for call, actual, wanted in zip(calls, run(calls, [x]), expected, strict=True):
        wrong = differs_at(actual, wanted) & np.isin(x.view(np.uint64), complex_edges(call.op, np.complex64).view(np.uint64))
        assert not wrong.any(), (call.op, [*zip(x[wrong], actual[wrong], wanted[wrong], strict=True)][:9])


#: In complex128 the formulas are the same.
SOME = "exp log sqrt tanh asin mul div pow".split()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions(dtype):
    """All quadrants, near 0 and far, on the axes, and on both sides of the branch cuts."""
    operands = [v.astype(dtype) for v in complex_arguments()]
    ops = [
        *[(op, {}) for op in (["mul", "div", "abs", *COMPLEX_FUNCTIONS] if dtype == np.complex64 else SOME)],
        *[("integer_pow", {"y": n}) for n in (2, 5, -1, -2)],
    ]
    calls, _ = calls_of(ops, operands)
    for call, actual in zip(calls, run(calls, operands), strict=True):
        name = (call.op, dict(call.params))
        expected = wide_value(call.op, operands[: len(call.operands)], **call.params)
        apart = np.where(actual == expected, 0, np.abs(actual - expected))
        near = (16 if call.op != "pow" else 200) * np.finfo(dtype).eps
        assert (apart <= near * np.abs(expected)).all(), (name, (apart / np.abs(expected)).max() / np.finfo(dtype).eps)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="the oracle has 80 bits")
def test_components_at_all_exponents():
    """Of normal numbers, as some devices have no others."""
    x = exponent_pairs(DTYPES[0], 7)
    x = x[np.minimum(np.abs(x.real), np.abs(x.imag)) > 1e-37]
    calls = [Call(op, (0,), np.dtype(np.float32 if op == "abs" else np.complex64), params) for op, params in COMPONENTWISE]
    for call, result in zip(calls, run(calls, [x]), strict=True):
        part = result.real.dtype
        subnormal = (np.abs(result.real) < 1e-36) | (np.abs(result.imag) < 1e-36) if call.op != "abs" else np.zeros(len(x), bool)
        assert part == np.float32
        assert_components(call.op, call.params, x[~subnormal], result[~subnormal], 6)
