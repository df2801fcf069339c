"""Reductions against NumPy and JAX over axes, masks, empty arrays and NaN."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.numpy.oracle import ALL, BF16, COMPLEX, FLOATS, INTEGERS, REALS, check, sample
from volta_fn.errors import ArgumentError, ArgumentTypeError, AxisNameError, DTypeError, ShapeError

AXES = [None, 0, 1, -1, (0, 2), (), (2, 0, 1)]
ROUGH = {np.dtype(np.float16): 1e-2, BF16: 6e-2}


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "any", "all", "count_nonzero"])
def test_dtypes(name):
    for dtype in ALL:
        x = sample((3, 4), dtype, 1, -1.5, 1.5)
        if name == "prod" and dtype == BF16:
            continue  # twelve factors: tested by itself below
        check(lambda xp, x: getattr(xp, name)(x, axis=1), x, tolerance=ROUGH.get(dtype), index=name == "count_nonzero")
        check(lambda xp, x: getattr(xp, name)(x), x, tolerance=ROUGH.get(dtype, 1e-5), index=name == "count_nonzero")


@pytest.mark.parametrize("name", ["mean", "var", "std", "ptp"])
def test_float_dtypes(name):
    dtypes = REALS + COMPLEX if name != "ptp" else REALS
    for dtype in dtypes:
        for axis in (None, 0):
            x = sample((5, 4), dtype, 1)
            check(lambda xp, x, axis=axis: getattr(xp, name)(x, axis=axis), x, floats=name != "ptp", tolerance=ROUGH.get(dtype, 1e-5))


@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "var", "any", "all"])
def test_axes(name, axis):
    x = sample((2, 3, 4), np.float32, 3, -1.5, 1.5)
    for keepdims in (False, True):
        check(lambda xp, x: getattr(xp, name)(x, axis=axis, keepdims=keepdims), x, tolerance=1e-5)


def test_narrow_floats_accumulate_in_float32():
    ones = np.ones(5000, np.float16)
    assert float(vnp.sum(ones)) == 5000.0
    assert float(vnp.mean(np.full(70000, 2, np.float16))) == 2.0
    assert float(vnp.sum(np.ones(1000, BF16))) == 1000.0
    assert vnp.mean(ones).dtype == np.float16
    assert abs(float(vnp.var(np.full(70000, 300, np.float16)))) < 1e-3


@pytest.mark.wide
def test_narrow_integers_are_summed_in_wider_ones():
    for dtype, wide in (("int8", "int32"), ("uint8", "uint32"), ("bool", "int32"), ("int64", "int64"), ("uint64", "uint64")):
        assert vnp.sum(np.ones(300, dtype)).dtype == wide
        assert int(vnp.sum(np.ones(300, dtype))) == 300
    assert vnp.sum(np.ones(3, np.int8), promote_integers=False).dtype == np.int8
    assert vnp.sum(np.ones(3, np.int8), dtype="float64").dtype == np.float64
    assert vnp.sum(np.ones(3, bool), dtype=bool).tolist() is True
    assert vnp.prod(np.array([True, False]), dtype=bool).tolist() is False


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "any", "all"])
def test_empty(name):
    x = np.ones((0, 3), np.float32)
    call = lambda xp, x: getattr(xp, name)(x, axis=1)
    check(call, x)
    if name in ("max", "min"):
        with pytest.raises(ShapeError, match=rf"{name} of no elements.*\(0, 3\)"):
            getattr(vnp, name)(x, axis=0)
        check(lambda xp, x: getattr(xp, name)(x, axis=0, initial=2.0), x)
    else:
        check(lambda xp, x: getattr(xp, name)(x, axis=0), x)


def test_empty_means_are_nan():
    x = np.ones((2, 0), np.float32)
    for name in ("mean", "var", "std"):
        assert np.isnan(np.asarray(getattr(vnp, name)(x, axis=1))).all()


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "var", "std", "any", "all"])
def test_masks(name):
    x, mask = sample((3, 4), np.float32, 5), sample((3, 4), bool, 6)
    mask[:, 0] = True
    options = {"initial": 0.5} if name in ("max", "min") else {}
    for axis in (None, 1):
        for where in (mask, mask[0]):
            check(lambda xp, x, m, axis=axis: getattr(xp, name)(x, axis=axis, where=m, **options), x, where, tolerance=1e-5)


def test_initial():
    x = sample((3, 4), np.int32, 1)
    for name in ("sum", "prod", "max", "min"):
        check(lambda xp, x, name=name: getattr(xp, name)(x, axis=0, initial=2), x, tolerance=1e-5)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "nanmax"])
def test_initial_is_one_number(name):
    with pytest.raises(ShapeError, match="initial must be one number"):
        getattr(vnp, name)(np.ones((2, 3), np.float32), axis=0, initial=np.ones(3, np.float32))


def test_variance_options():
    x = sample((6, 4), np.float32, 7)
    for ddof in (0, 1, 2):
        check(lambda xp, x, d=ddof: xp.var(x, axis=0, ddof=d), x, tolerance=1e-5)
        check(lambda xp, x, d=ddof: xp.std(x, ddof=d), x, tolerance=1e-5)
        check(lambda xp, x, d=ddof: xp.var(x, axis=0, correction=d), x, tolerance=1e-5)
    check(lambda xp, x: xp.var(x, axis=0, mean=xp.mean(x, axis=0, keepdims=True)), x, tolerance=1e-5)
    check(lambda xp, x: xp.mean(x, dtype=np.float16), x, jax=True)
    with pytest.raises(ArgumentError, match="ddof or correction"):
        vnp.var(x, ddof=1, correction=1)


@pytest.mark.parametrize("name", ["var", "std", "nanvar", "nanstd"])
def test_dtype_of_variances(name):
    # A complex dtype is that of the result, as in NumPy and JAX; a real one has no variance of complex numbers.
    call = getattr(vnp, name)
    for dtype in [np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.complex64)]:
        x = sample((6,), dtype, 1)
        check(lambda xp, x: getattr(xp, name)(x, dtype=np.complex64), x, oracle=lambda x: getattr(np, name)(x) + 0j, tolerance=1e-5)
        assert getattr(np, name)(x.astype(np.complex64), dtype=np.complex64).dtype == np.complex64
    for real in (np.float32, np.float16, np.int32):
        with pytest.raises(DTypeError, match=f"{name}: the variance of complex64"):
            call(sample((6,), np.complex64, 1), dtype=real)
    if name != "var":
        with pytest.raises(DTypeError, match=f"{name}: .* inexact, got int32"):
            call(sample((6,), np.float32, 1), dtype=np.int32)


def test_variance_of_large_numbers_loses_no_digits():
    x = np.float32(1e6) + np.array([0.0, 1.0, 2.0, 3.0], np.float32)
    assert float(vnp.var(x)) == 1.25


@pytest.mark.wide
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_arg_extrema(name):
    for dtype in [*REALS, np.dtype(bool)]:
        x = sample((4, 5), dtype, 1)
        for axis in (None, 0, -1):
            check(lambda xp, x, axis=axis: getattr(xp, name)(x, axis=axis), x, index=True)
    check(lambda xp, x: getattr(xp, name)(x, axis=1, keepdims=True), sample((4, 5), np.float32), index=True)
    check(lambda xp, x: getattr(xp, name)(x, keepdims=True), sample((4, 5), np.float32), index=True)
    check(lambda xp, x: getattr(xp, name)(x), np.array([1.0, np.nan, 3.0, np.nan], np.float32), index=True)
    with pytest.raises(ShapeError, match="no elements"):
        getattr(vnp, name)(np.ones((0,)))


NAN = np.array([[1.0, np.nan, 3.0, -2.0], [np.nan, np.nan, 0.5, 1.5], [4.0, 2.0, -1.0, 0.0]], np.float32)


@pytest.mark.parametrize("name", ["nansum", "nanprod", "nanmax", "nanmin", "nanmean", "nanvar", "nanstd"])
def test_without_nan(name):
    for axis in (None, 0, 1):
        check(lambda xp, x, axis=axis: getattr(xp, name)(x, axis=axis), NAN, tolerance=1e-5)
    check(lambda xp, x: getattr(xp, name)(x, axis=1, keepdims=True), NAN, tolerance=1e-5)
    check(lambda xp, x: getattr(xp, name)(x), sample((4,), np.int32, 1), floats=name in ("nanmean", "nanvar", "nanstd"))
    nothing = np.full((2, 3), np.nan, np.float32)
    wanted = {"nansum": 0.0, "nanprod": 1.0}.get(name, np.nan)
    np.testing.assert_array_equal(np.asarray(getattr(vnp, name)(nothing, axis=1)), [wanted, wanted])


def test_nanvar_with_few_elements():
    x = np.array([[1.0, np.nan], [1.0, 3.0]], np.float32)
    np.testing.assert_array_equal(np.asarray(vnp.nanvar(x, axis=1, ddof=1)), [np.nan, 2.0])


@pytest.mark.wide
@pytest.mark.parametrize("name", ["nanargmax", "nanargmin", "nancumsum", "nancumprod"])
def test_positions_and_runs_without_nan(name):
    for axis in (None, 0, 1):
        check(lambda xp, x, axis=axis: getattr(xp, name)(x, axis=axis), NAN, index="arg" in name)
    if "arg" in name:
        assert int(getattr(vnp, name)(np.full(3, np.nan))) == -1


@pytest.mark.wide
def test_gradients():
    x = sample((3, 4), np.float64, 9)
    for name, slope in (
        ("sum", np.ones_like(x)), ("mean", np.full_like(x, 1 / 12)), ("var", (x - x.mean()) / 6), ("max", (x == x.max()) * 1.0),
        ("prod", x.prod() / x), ("std", (x - x.mean()) / 12 / x.std()), ("ptp", (x == x.max()) * 1.0 - (x == x.min())),
    ):  # fmt: skip
        np.testing.assert_allclose(np.asarray(vf.grad(getattr(vnp, name))(x)), slope, rtol=1e-9, atol=1e-12)
    mask = sample((3, 4), bool, 3)
    got = vf.grad(lambda v: vnp.sum(v * v, where=mask))(x)
    np.testing.assert_allclose(np.asarray(got), 2 * x * mask)
    got = vf.grad(lambda v: vnp.nansum(v))(NAN)
    np.testing.assert_array_equal(np.asarray(got), ~np.isnan(NAN))
    x[0, 1] = np.nan
    slope = np.nan_to_num(2 * (x - np.nanmean(x)) / 11)
    np.testing.assert_allclose(np.asarray(vf.grad(vnp.nanvar)(x)), slope, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(np.asarray(vf.grad(vnp.nanstd)(x)), slope / 2 / np.nanstd(x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["sum", "max", "min", "mean", "var", "std", "ptp", "count_nonzero", "nansum"])
def test_names_of_mapped_axes(name):
    x = np.random.default_rng(3).integers(-3, 4, (4, 3, 2)).astype(np.float32)
    reduce = getattr(vnp, name)
    rows = vf.vmap(lambda row: reduce(row, axis="rows"), axis_name="rows")(x)
    np.testing.assert_allclose(rows, np.broadcast_to(getattr(np, name)(x, axis=0), x.shape), rtol=1e-6)
    both = vf.jit(vf.vmap(lambda row: reduce(row, axis=(1, "rows"), keepdims=True), axis_name="rows"))(x)
    expected = getattr(np, name)(x, axis=(0, 2))
    np.testing.assert_allclose(both, np.broadcast_to(expected[:, None], (4, 3, 1)), rtol=1e-6)


def test_masks_and_initial_along_mapped_axes():
    x, mask = np.arange(6.0, dtype=np.float32).reshape(2, 3), np.array([[True, False, True], [True, True, True]])
    mapped = lambda function: vf.vmap(function, axis_name="rows")(x, mask)[0]
    np.testing.assert_allclose(mapped(lambda r, m: r.sum("rows", where=m, initial=3)), 3 + np.sum(x, 0, where=mask))
    np.testing.assert_allclose(mapped(lambda r, m: r.mean("rows", where=m)), np.mean(x, 0, where=mask))
    np.testing.assert_allclose(mapped(lambda r, m: r.var("rows", where=m)), np.var(x, 0, where=mask))
    np.testing.assert_allclose(mapped(lambda r, m: r.max("rows", where=m, initial=1)), np.max(x, 0, where=mask, initial=1))
    np.testing.assert_allclose(vf.vmap(lambda r: vnp.sum(r > 2, axis="rows", dtype=bool), axis_name="rows")(x)[0], (x > 2).any(0))
    slopes = vf.grad(lambda x: vf.vmap(lambda r: r.mean("rows") * r, axis_name="rows")(x).sum())(x)
    np.testing.assert_allclose(slopes, np.broadcast_to(x.sum(0), x.shape), rtol=1e-6)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: vnp.sum([1, 2]), ArgumentTypeError, "sum: argument a"),
        (lambda: vnp.var(np.ones(2), ddof=1j), ArgumentTypeError, "var: ddof is subtracted from .* must be real"),
        (lambda: vnp.std(np.ones(2), correction=vnp.array(1j)), ArgumentTypeError, "std: ddof is subtracted from .* must be real"),
        (lambda: vnp.sum(np.ones((2, 3)), axis=2), ShapeError, "sum: axis=2 is out of range for an array with 2 dimensions"),
        (lambda: vnp.mean(np.ones((2, 3)), axis=(0, -2)), ShapeError, "mean: .*twice"),
        (lambda: vnp.prod(np.ones(2), axis="x"), ArgumentTypeError, "prod: axis must be an integer"),
        (lambda: vnp.max(np.ones(2), axis="x"), AxisNameError, "no axis named 'x'"),
        (lambda: vnp.sum(np.ones(2), out=np.ones(())), ArgumentError, "sum: .*out="),
        (lambda: vnp.max(np.ones(2), where=np.array([True, False])), ArgumentError, "initial"),
        (lambda: vnp.argmax(np.ones((2, 3)), axis=(0, 1)), ArgumentTypeError, "argmax: axis must be one integer"),
        (lambda: vnp.sum(np.ones(2), where=np.ones(2)), ArgumentError, "boolean mask"),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_sum_of_a_slice_in_a_graph(dtype):
    x = sample((4, 3), dtype, 2)
    check(lambda xp, x: xp.max(xp.sum(x, axis=0) + 1), x, tolerance=ROUGH.get(dtype))


def test_minmax():
    x = np.int32([[3, -1, 2], [7, 0, 7]])
    for axis, keepdims in ((None, False), (0, True), (1, False)):
        least, greatest = vnp.minmax(x, axis, keepdims=keepdims)
        np.testing.assert_array_equal(least, x.min(axis, keepdims=keepdims))
        np.testing.assert_array_equal(greatest, x.max(axis, keepdims=keepdims))
    assert [int(v) for v in vnp.minmax(x, initial=(1, 9), where=x > 0)] == [1, 9]
    assert [int(v) for v in vnp.minmax(x, initial=5, where=x > 9)] == [5, 5]
