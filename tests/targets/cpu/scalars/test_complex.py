"""Complex arithmetic against NumPy's."""

import numpy as np
import pytest

from tests.targets.cpu.scalars.running import run
from tests.targets.scalar_samples import (
    COMPLEX_AT_INFINITY,
    COMPLEX_FUNCTIONS,
    complex_arguments,
    complex_edges,
    complex_pairs,
    differs_at,
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
