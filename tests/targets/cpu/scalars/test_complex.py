"""Complex arithmetic against NumPy's."""

import itertools

import mpmath
import numpy as np
import pytest

from tests.targets.cpu.scalars.running import run
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
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.targets.cpu import scalars

pytest.importorskip("llvmlite")

DTYPES = [np.dtype(np.complex64), np.dtype(np.complex128)]


def ordinary(dtype, size=500):
    """Complex numbers of all directions and many sizes."""
    rng = np.random.default_rng(5)
    return [((rng.normal(size=size) + 1j * rng.normal(size=size)) * 10.0 ** rng.uniform(-5, 5, size)).astype(dtype) for _ in range(2)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ["add", "sub", "neg", "conj", "real", "imag", "eq", "ne"])
def test_exact(op, dtype):
    operands = complex_pairs(dtype)[: PRIMITIVES[op].arity]
    with np.errstate(all="ignore"):
        expected = PRIMITIVES[op].evaluate(*operands)
    assert scalars.supports(op, tuple(x.dtype for x in operands), {})
    np.testing.assert_array_equal(run(op, *operands, out_dtype=expected.dtype), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ["mul", "div"])
def test_rounded(op, dtype):
    """Each part within a few units of the whole's last place."""
    x, y = ordinary(dtype)
    actual = run(op, x, y, out_dtype=dtype)
    expected = PRIMITIVES[op].evaluate(x.astype(np.complex128), y.astype(np.complex128))
    assert (np.abs(actual - expected) <= 4 * np.finfo(dtype).eps * np.abs(expected)).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ["mul", "div"])
def test_special_values(op, dtype):
    x, y = complex_pairs(dtype)
    with np.errstate(all="ignore"):
        expected = PRIMITIVES[op].evaluate(x, y)
    actual = run(op, x, y, out_dtype=dtype)
    for a, e in ((actual.real, expected.real), (actual.imag, expected.imag)):
        np.testing.assert_array_equal(a, e)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_abs(dtype):
    x = np.concatenate([ordinary(dtype)[0], complex_pairs(dtype)[0]])
    with np.errstate(all="ignore"):
        expected = np.abs(x)
        actual = run("abs", x, out_dtype=expected.dtype)
    np.testing.assert_allclose(actual, expected, rtol=2 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_integer_pow(dtype):
    x = ordinary(dtype)[0][:300] / 1000
    for y in (1, 2, 3, 6):
        expected = PRIMITIVES["integer_pow"].evaluate(x, y=y)
        np.testing.assert_array_equal(run("integer_pow", x, out_dtype=dtype, y=y), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", COMPLEX_FUNCTIONS)
def test_functions(op, dtype):
    """All quadrants, near 0 and far, on the axes, and on both sides of the branch cuts."""
    operands = [v.astype(dtype) for v in complex_arguments()[: PRIMITIVES[op].arity]]
    with np.errstate(all="ignore"):
        expected = wide_value(op, operands)
        actual = run(op, *operands, out_dtype=dtype)
        distance = np.where(actual == expected, 0, np.abs(actual - expected))
    assert (distance <= (16 if op != "pow" else 200) * np.finfo(dtype).eps * np.abs(expected)).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("op", "params"), COMPLEX_AT_INFINITY)
def test_infinities_and_signs_of_zero(op, params, dtype):
    x = complex_edges(op, dtype)
    with np.errstate(all="ignore"):
        expected, actual = PRIMITIVES[op].evaluate(x, **params), run(op, x, out_dtype=dtype, **params)
        wrong = differs_at(actual, expected)
    assert not wrong.any(), [*zip(x[wrong], actual[wrong], expected[wrong], strict=True)][:9]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", "exp log log1p sqrt sin cos sinh cosh arcsin arccos arctan arcsinh arccosh arctanh reciprocal".split())
def test_what_they_are_compared_with_is_numpys(name, dtype):
    """But for tanh and expm1, of which the Array API standard says something else."""
    op, params = ("integer_pow", {"y": -1}) if name == "reciprocal" else (name.replace("arc", "a"), {})
    x = complex_edges(op, dtype)
    with np.errstate(all="ignore"):
        assert not differs_at(PRIMITIVES[op].evaluate(x, **params), getattr(np, name)(x)).any()


def test_complex_from_parts():
    x, y = np.arange(20, dtype="f4"), -np.arange(20, dtype="f4")
    np.testing.assert_array_equal(run("complex", x, y, out_dtype="c8"), x + 1j * y)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="the oracle has 80 bits")
@pytest.mark.parametrize(("dtype", "step"), [(np.complex64, 5), (np.complex128, 37)], ids=["complex64", "complex128"])
@pytest.mark.parametrize(("op", "params"), COMPONENTWISE)
def test_components_at_all_exponents(op, params, dtype, step):
    """Both as machine code and in NumPy, whose reciprocals lose digits of components that are subnormal on the way."""
    x = exponent_pairs(np.dtype(dtype), step)
    with np.errstate(all="ignore"):
        evaluated = PRIMITIVES[op].evaluate(x, **params)
    assert_components(op, params, x, run(op, x, out_dtype=evaluated.dtype, **params), 5)
    if params == {"y": -1}:
        ordinary = np.minimum(np.abs(x.real), np.abs(x.imag)) > np.finfo(dtype).tiny
        x, evaluated = x[ordinary], evaluated[ordinary]
    assert_components(op, params, x, evaluated, 5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_components_where_formulas_change(dtype):
    """At 1 and -1, whose differences from them vanish, beside mpmath."""
    with mpmath.workprec(1200):
        tiny = np.finfo(dtype).smallest_subnormal
        parts = [0.0, 1.0, -1.0, np.nextafter(dtype.type(1).real, 0), 0.5, tiny, -tiny, np.sqrt(tiny), 1e-20, -1e-30]
        x = np.array([complex(a, b) for a, b in itertools.product(parts, repeat=2)], dtype)
        for op in "log log1p sqrt asin acos asinh atan atanh".split():
            z = x[(x != 0) & (x.real != 0) & (x.imag != 0)] if op != "sqrt" else x[x != 0]
            wanted = np.array(
                [complex(getattr(mpmath, op)(complex(v)) if op != "log1p" else mpmath.log(1 + mpmath.mpc(complex(v)))) for v in z]
            )
            completed = run(op, z, out_dtype=dtype)
            for got, want in ((completed.real, wanted.real), (completed.imag, wanted.imag)):
                np.testing.assert_allclose(got, want, rtol=8 * np.finfo(dtype).eps, atol=2 * float(tiny), err_msg=op)
