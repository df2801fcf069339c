"""Indexing functions against NumPy; traced sizes; indices out of range."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.numpy.oracle import KINDS, check, sample
from volta_fn.errors import ArgumentError, ArgumentTypeError, ConcretizationError, OutOfBoundsError, ShapeError


def test_where():
    for dtype in KINDS:
        check(lambda xp, c, x, y: xp.where(c, x, y), sample((3, 1), bool, 1), sample((4,), dtype, 2), sample((3, 4), dtype, 3))
    check(lambda xp, c, x: xp.where(c, x, 0.5), sample((4,), bool, 1), sample((4,), np.float16, 2))
    check(lambda xp, c, x: xp.where(c > 1, x, x[0]), sample((4,), np.int32, 1), sample((4,), np.int8, 2))
    check(lambda xp, c: xp.where(c, 1, 2), sample((4,), bool, 1))
    check(lambda xp, c, x, y: xp.where(c, x, y), np.float32(2), sample((2,), np.float32), sample((3, 1), np.float32))


@pytest.mark.wide
def test_gradient_of_where_goes_to_the_chosen_side():
    got = vf.grad(lambda x: vnp.sum(vnp.where(x > 0, x * x, 3 * x)))(np.array([2.0, -1.0]))
    assert got.tolist() == [4.0, 3.0]


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 2), (0, 3), (3, 0)])
def test_nonzero(shape):
    x = sample(shape, np.int32, 1, -1, 1)
    check(lambda xp, x: xp.nonzero(x), x, jax=False, traced=False)
    check(lambda xp, x: xp.where(x), x, jax=False, traced=False)
    check(lambda xp, x: xp.flatnonzero(x), x, jax=False, traced=False)
    check(lambda xp, x: xp.argwhere(x), x, jax=False, traced=False)


@pytest.mark.wide
@pytest.mark.parametrize("size", [0, 2, 20])
def test_nonzero_of_a_given_size(size):
    x = sample((3, 4), np.int32, 1, -1, 1)
    exact = np.nonzero(x)
    for fill in (0, -1, (7, 8)):
        got = vf.jit(lambda x, fill=fill: vnp.nonzero(x, size=size, fill_value=fill))(x)
        for axis, (ours, theirs) in enumerate(zip(got, exact, strict=True)):
            filler = fill[axis] if isinstance(fill, tuple) else fill
            np.testing.assert_array_equal(np.asarray(ours), np.concatenate([theirs, np.full(20, filler)])[:size])
    np.testing.assert_array_equal(np.asarray(vnp.argwhere(x, size=size))[: len(exact[0])], np.argwhere(x)[:size])
    assert vnp.flatnonzero(np.zeros(3), size=2, fill_value=9).tolist() == [9, 9]


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_take(axis):
    for dtype in KINDS:
        x = sample((3, 4), dtype, 1)
        for indices in (np.array([[0, 2], [1, 0]], np.int32), np.int32(1), np.array([], np.int32), np.array([-1, 0], np.int32)):
            check(lambda xp, x, i: xp.take(x, i, axis=axis), x, indices)
    x, far = sample((3, 4), np.float32, 1), np.array([5, -7, 1, 100], np.int32)
    for mode in ("clip", "wrap"):
        check(lambda xp, x, i, mode=mode: xp.take(x, i, axis=axis, mode=mode), x, far)


@pytest.mark.wide
def test_take_out_of_range():
    x = vnp.arange(3.0)
    with pytest.raises(OutOfBoundsError):
        vnp.take(x, 7)
    traced = vf.jit(lambda x, i: vnp.take(x, i, mode="fill"))(x, np.array([1, 7, -1]))
    np.testing.assert_array_equal(np.asarray(traced), [1.0, np.nan, 2.0])
    assert vnp.take(x, np.array([1, 9]), mode="fill", fill_value=-5.0).tolist() == [1.0, -5.0]
    got = vf.grad(lambda x: vnp.sum(vnp.take(x, np.array([0, 0, 2])) ** 2))(x)
    assert got.tolist() == [0.0, 0.0, 4.0]


@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_take_along_axis(axis):
    for dtype in KINDS:
        x = sample((3, 4), dtype, 1)
        index = sample((12,), np.int32, 2, 0, 2) if axis is None else sample((3, 4), np.int32, 2, 0, 2)
        check(lambda xp, x, i: xp.take_along_axis(x, i, axis=axis), x, index)


def test_take_along_axis_of_an_empty_batch():
    x, index = np.zeros((0, 4), np.float32), np.zeros((0, 2), np.int32)
    check(lambda xp, x, i: xp.take_along_axis(x, i, axis=1), x, index)
    assert vf.grad(lambda x: vnp.sum(vnp.take_along_axis(x, index, 1)))(vnp.asarray(x)).shape == (0, 4)


@pytest.mark.wide
def test_take_along_axis_broadcasts():
    x = sample((3, 4, 2), np.float32, 1)
    check(lambda xp, x, i: xp.take_along_axis(x, i, axis=1), x, sample((1, 5, 2), np.int32, 2, -4, 3))
    check(lambda xp, x, i: xp.take_along_axis(x, i, axis=-1), x, sample((3, 1, 1), np.int32, 2, 0, 1))
    check(lambda xp, x, i: xp.take_along_axis(x, i, axis=0), x[:, :1], sample((2, 4, 2), np.int32, 2, 0, 2))
    logits, labels = sample((5, 3), np.float64, 1), sample((5, 1), np.int32, 2, 0, 2)
    got = vf.grad(lambda v: vnp.sum(vnp.take_along_axis(v, labels, 1) ** 2))(logits)
    wanted = np.where(np.arange(3) == labels, 2 * logits, 0)
    np.testing.assert_allclose(np.asarray(got), wanted)


def test_sorting_by_argsort():
    x = sample((3, 4), np.float32, 1)
    check(lambda xp, x: xp.take_along_axis(x, xp.argsort(x, axis=0), axis=0), x)


def test_placing():
    x, v = sample((3, 4), np.float32, 1), sample((3, 1), np.float32, 2)
    index = np.array([[1], [0], [3]], np.int32)
    wanted = x.copy()
    np.put_along_axis(wanted, index, v, 1)
    np.testing.assert_array_equal(np.asarray(vnp.put_along_axis(x, index, v, 1, inplace=False)), wanted)
    wanted = x.copy()
    np.put(wanted, [0, 5, -1], [1.0, 2.0])
    np.testing.assert_array_equal(np.asarray(vnp.put(x, [0, 5, -1], [1.0, 2.0], inplace=False)), wanted)
    wanted = x.copy()
    np.put(wanted, [13, 25], [1.0, 2.0], mode="wrap")
    np.testing.assert_array_equal(np.asarray(vnp.put(x, [13, 25], [1.0, 2.0], mode="wrap", inplace=False)), wanted)
    wanted = x.copy()
    np.place(wanted, x > 0, [7.0, 8.0])
    np.testing.assert_array_equal(np.asarray(vnp.place(x, x > 0, [7.0, 8.0], inplace=False)), wanted)
    for call in (lambda: vnp.put(x, 0, 1), lambda: vnp.place(x, x > 0, 1), lambda: vnp.put_along_axis(x, index, v, 1)):
        with pytest.raises(ArgumentError, match="inplace=False"):
            call()


@pytest.mark.wide
def test_compress_and_extract():
    x = sample((3, 4), np.float32, 1)
    check(lambda xp, x: xp.compress(np.array([True, False, True]), x, axis=0), x, jax=False)
    check(lambda xp, x: xp.compress(np.array([True, False, True, True]), x, axis=1), x, jax=False)
    check(lambda xp, x: xp.compress(np.array([True, False, True]), x), x, jax=False)
    check(lambda xp, x: xp.extract(x > 0, x), x, jax=False, traced=False)
    assert vf.jit(lambda c, x: vnp.compress(c, x, size=3, fill_value=-1))(np.array([0, 1, 0, 1]), np.arange(4)).tolist() == [1, 3, -1]
    assert vf.jit(lambda x: vnp.extract(x > 1, x, size=4, fill_value=9))(np.arange(4)).tolist() == [2, 3, 9, 9]
    with pytest.raises(OutOfBoundsError, match="compress"):
        vnp.compress(np.array([False, True, True]), np.ones(2))


def test_select_and_piecewise():
    x = np.arange(-3, 4, dtype=np.float32)
    check(lambda xp, x: xp.select([x < -1, x < 1], [x, 10 * x], 5.0), x)
    check(lambda xp, x: xp.select([x < -1, x < 1], [x, 10 * x]), x)
    check(lambda xp, x: xp.piecewise(x, [x < 0, x >= 0], [lambda v: -v, lambda v: v * v]), x)
    check(lambda xp, x: xp.piecewise(x, [x < -1, x > 1], [-1.0, lambda v: v, 3.0]), x)
    check(lambda xp, x: xp.piecewise(x, [x > 1], [lambda v: v]), x)
    assert vnp.piecewise(x, [x < 0], [lambda v, k: v * k, 0.0], 3.0).tolist()[0] == -9.0


def test_choose():
    a, choices = np.array([2, 0, 1], np.int32), [np.array([1, 2, 3], np.int32), np.array([10, 20, 30], np.int32), np.int32(7)]
    check(lambda xp, a: xp.choose(a, choices), a, traced=False, jax=False)
    for mode in ("wrap", "clip"):
        check(lambda xp, a, mode=mode: xp.choose(a, choices, mode=mode), np.array([-5, 1, 9], np.int32))
    with pytest.raises(ArgumentError, match="choose"):
        vnp.choose(np.array([3]), [1, 2])


@pytest.mark.wide
def test_flat_and_multiple_indices():
    flat = np.array([0, 5, 23, 7], np.int32)
    check(lambda xp, i: xp.unravel_index(i, (2, 3, 4)), flat)
    check(lambda xp, i: xp.unravel_index(i, 24), flat)
    pair = np.array([0, 1], np.int32), np.array([2, 0], np.int32)
    for order in "CF":
        check(lambda xp, i, j, order=order: xp.ravel_multi_index((i, j), (2, 3), order=order), *pair, traced=False, jax=False)
        for mode in ("wrap", "clip"):
            far = np.array([0, 5], np.int32), np.array([-4, 7], np.int32)
            check(lambda xp, i, j, mode=mode, order=order: xp.ravel_multi_index((i, j), (2, 3), mode=mode, order=order), *far)
    with pytest.raises(ArgumentError, match="ravel_multi_index"):
        vnp.ravel_multi_index((np.array([2]), np.array([0])), (2, 3))


@pytest.mark.wide
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: vnp.where(np.True_, 1), ArgumentError, "both x and y"),
        (lambda: vnp.where(np.True_, 1, 2, size=3), ArgumentError, "size"),
        (lambda: vf.jit(vnp.nonzero)(np.ones(3)), ConcretizationError, "size="),
        (lambda: vnp.nonzero(np.float32(1)), ShapeError, "nonzero"),
        (lambda: vnp.take(np.ones(3), 1.5), ArgumentTypeError, "take: indices must be integers, got float32"),
        (lambda: vnp.take_along_axis(np.ones((2, 3)), np.array([0]), 0), ShapeError, "the same number of dimensions"),
        (lambda: vnp.take_along_axis(np.ones((2, 3)), np.zeros((1, 2), int), 0), ShapeError, r"\(2, 3\).*\(1, 2\)"),
        (lambda: vnp.select([], []), ArgumentError, "select"),
        (lambda: vnp.choose(np.array([0]), [1], mode="x"), ArgumentError, "choose: mode"),
        (lambda: vnp.piecewise(np.ones(2), [np.ones(2, bool)], []), ArgumentError, "piecewise"),
        (lambda: vf.jit(lambda i: vnp.choose(i, [1, 2]))(0), ConcretizationError, "mode='clip'"),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_take_along_axis_beyond_the_ends():
    x, index = np.array([10, 20, 30]), np.array([-1, -2, 1, 3])
    take = functools.partial(vnp.take_along_axis, x, axis=0)
    assert np.array_equal(take(index[:3]), [30, 20, 20])
    assert np.array_equal(take(index, mode="clip", wrap_negative_indices=False), [10, 10, 20, 30])
    assert np.array_equal(take(index, mode="fill", fill_value=-9, wrap_negative_indices=False), [-9, -9, 20, -9])
    assert np.array_equal(take(index, mode="one_hot"), [30, 20, 20, 0])


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("indices", [[0, 2, -1], [[1, 0], [2, -3]], [], 1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_few_known_indices_are_read_as_in_a_program(axis: int | None, indices: list, dtype: str) -> None:
    x, index = vnp.arange(12).reshape(3, 4).astype(dtype), np.asarray(indices, np.int32)
    expected = np.take(np.asarray(x), index, axis)
    for actual in (vnp.take(x, vnp.asarray(index), axis), vnp.take(x, index, axis), vf.jit(lambda x, i: vnp.take(x, i, axis))(x, index)):
        assert actual.dtype == x.dtype and not actual.weak_type
        np.testing.assert_array_equal(np.asarray(actual), expected)
    if axis == 0:
        np.testing.assert_array_equal(np.asarray(x[vnp.asarray(index)]), expected)


def test_known_indices_outside_raise_as_ever() -> None:
    x = vnp.arange(5.0)
    for index in ([5], [-6]):
        with pytest.raises(OutOfBoundsError):
            vnp.take(x, vnp.array(index))
        with pytest.raises(OutOfBoundsError):
            x[vnp.array(index)]
        with pytest.raises(OutOfBoundsError):
            vnp.take_along_axis(x, vnp.array(index), axis=0)


def test_unravel_index_of_a_traced_shape() -> None:
    index = np.array([5, -1, 40], np.int8)
    result = vf.jit(lambda i, shape: vnp.unravel_index(i, shape))(index, (vnp.asarray(2), vnp.asarray(3)))
    assert [x.tolist() for x in result] == [[1, 1, 1], [2, 2, 2]]
    assert {x.dtype for x in result} == {np.dtype(np.int8)}


def test_limits_of_unravelled_indices_come_first() -> None:
    equations = vf.make_jaxpr(lambda i: vnp.unravel_index(i, (2, 3)))(np.arange(4)).jaxpr.eqns
    limited = [eqn.invars for eqn in equations if eqn.primitive.name in ("max", "min") and eqn.outvars[0].aval.shape]
    assert [[x.aval.shape for x in operands] for operands in limited] == [[(), (4,)]] * 2


def test_ravel_multi_index_can_leave_indices_unchecked() -> None:
    with pytest.raises(ValueError, match="invalid entry in coordinates array"):
        vnp.ravel_multi_index((np.array([0, 2]), np.array([0, 5])), (2, 3))
    result = vf.jit(lambda i: vnp.ravel_multi_index((i, i), (2, 3), mode="ignore"))(np.array([1, 2], np.int8))
    assert (result.tolist(), result.dtype) == ([4, 8], np.int8)


def test_a_fill_value_means_the_mode_fill() -> None:
    x = vnp.arange(5.0)
    assert vnp.take(x, np.array([1, 7]), fill_value=9.0).tolist() == [1.0, 9.0]
    assert vnp.take_along_axis(x, np.array([1, 7]), fill_value=9.0).tolist() == [1.0, 9.0]


def test_indices_narrower_than_the_axis() -> None:
    result = vnp.take_along_axis(vnp.arange(200), np.array([-1, 5], np.int8), mode="fill", fill_value=-7, wrap_negative_indices=False)
    assert result.tolist() == [-7, 5]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_many_known_indices_count_from_the_end_if_negative(dtype: str) -> None:
    least, most = (0 if dtype[0] == "u" else -100), min(int(np.iinfo(dtype).max), 299)
    x, index = np.arange(300.0), np.random.default_rng(0).integers(least, most, 20_000, endpoint=True).astype(dtype)
    for at in (index, index[::-1]):
        assert np.array_equal(vnp.take(x, vnp.asarray(at)), x[at])
        assert np.array_equal(vnp.take_along_axis(vnp.asarray(x), vnp.asarray(at), axis=0), x[at])
    with pytest.raises(OutOfBoundsError):
        vnp.take_along_axis(vnp.arange(100.0), vnp.asarray(index), axis=0)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32])
def test_indices_of_a_dtype_that_does_not_hold_the_length(dtype):
    x, index = np.arange(300.0, dtype=np.float32), np.array([0, 127, -100 if np.iinfo(dtype).min else 255], dtype)
    for mode in ("clip", "wrap"):
        wanted = x.copy()
        np.put(wanted, index, [5.0, 6.0, 7.0], mode=mode)
        for function, expected in (
            (lambda x, i, m=mode: vnp.take(x, i, mode=m), np.take(x, index, mode=mode)),
            (lambda x, i, m=mode: vnp.put(x, i, [5.0, 6.0, 7.0], mode=m, inplace=False), wanted),
        ):
            np.testing.assert_array_equal(function(x, index), expected)
            np.testing.assert_array_equal(vf.jit(function)(x, index), expected)
    for by in index:
        np.testing.assert_array_equal(vf.jit(vnp.roll)(x, by), np.roll(x, int(by)))


def test_put_outside():
    x, index = np.arange(4.0, dtype=np.float32), np.array([-7, 1, 9])
    wanted = x.copy()
    np.put(wanted, index, [5.0, 6.0, 7.0], mode="clip")
    np.testing.assert_array_equal(vnp.put(x, index, [5.0, 6.0, 7.0], mode="clip", inplace=False), wanted)
    with pytest.raises(OutOfBoundsError):
        vnp.put(x, index, 1.0, mode="raise", inplace=False)
    with pytest.raises(ConcretizationError, match="mode='clip'"):
        vf.jit(lambda x, i: vnp.put(x, i, 1.0, mode="raise", inplace=False))(x, index)
