"""The functions around dynamic slices against NumPy, JAX's clamping, and what they refuse."""

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import errors, lax

X = np.arange(20, dtype=np.float32).reshape(4, 5)


@pytest.mark.wide
def test_forms_of_start_indices():
    expected = X[1:3, 2:5]
    for starts in ((1, 2), [np.int32(1), np.uint8(2)], np.array([1, 2]), (np.int64(1), 2), (-3, -3), np.array([-3, 2])):
        np.testing.assert_array_equal(np.asarray(lax.dynamic_slice(X, starts, (2, 3))), expected)
        np.testing.assert_array_equal(np.asarray(vf.jit(lambda s: lax.dynamic_slice(X, s, (2, 3)))(starts)), expected)


def test_negative_starts_may_be_taken_literally():
    np.testing.assert_array_equal(np.asarray(lax.dynamic_slice(X, (-1, 0), (1, 5))), X[3:])
    np.testing.assert_array_equal(np.asarray(lax.dynamic_slice(X, (-1, 0), (1, 5), allow_negative_indices=False)), X[:1])


@pytest.mark.wide
def test_a_narrow_start_reaches_into_a_long_dimension():
    long = np.arange(300)
    np.testing.assert_array_equal(np.asarray(vf.jit(lambda s: lax.dynamic_slice(long, (s,), (1,)))(np.int8(-100))), [200])


@pytest.mark.parametrize("start", [0, 7, -1])
@pytest.mark.parametrize("axis", [0, -1])
def test_one_dimension_at_a_time_as_in_jax(start, axis):
    jax_lax = pytest.importorskip("jax").lax
    update = np.full((2, 5) if axis == 0 else (4, 2), -1, np.float32)
    row = np.full(5 if axis == 0 else 4, -1, np.float32)
    for name, args in {
        "dynamic_slice_in_dim": (X, start, 2, axis),
        "dynamic_index_in_dim": (X, start, axis, False),
        "dynamic_update_slice_in_dim": (X, update, start, axis),
        "dynamic_update_index_in_dim": (X, row, start, axis),
    }.items():
        np.testing.assert_array_equal(np.asarray(getattr(lax, name)(*args)), getattr(jax_lax, name)(*args))


@pytest.mark.wide
def test_every_example_slides_by_itself():
    starts = np.array([0, 3, 9, -1])
    got = vf.vmap(lambda s: lax.dynamic_slice(X, (s, 1), (2, 2)))(starts)
    np.testing.assert_array_equal(np.asarray(got), [X[0:2, 1:3], X[2:4, 1:3], X[2:4, 1:3], X[2:4, 1:3]])
    put = vf.vmap(lambda s, v: lax.dynamic_update_slice(X, v, (s, 1)), (0, None))(starts, np.zeros((2, 2), np.float32))
    for i, start in enumerate((0, 2, 2, 2)):
        expected = X.copy()
        expected[start : start + 2, 1:3] = 0
        np.testing.assert_array_equal(np.asarray(put[i]), expected)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: lax.dynamic_slice(X, (0,), (1, 1)), errors.ShapeError, r"one start index per dimension .*\(4, 5\), got 1"),
        (lambda: lax.dynamic_slice(X, (0, 0), (1,)), errors.ShapeError, "one start index and one size"),
        (lambda: lax.dynamic_slice(X, (0, 0), (5, 1)), errors.ShapeError, r"\(5, 1\) must fit into the operand's shape \(4, 5\)"),
        (lambda: lax.dynamic_slice(X, (0.0, 0), (1, 1)), errors.DTypeError, "zero-dimensional integers"),
        (lambda: lax.dynamic_slice(X, X, (1, 1)), errors.ShapeError, "sequence or a 1-d array"),
        (lambda: lax.dynamic_update_slice(X, np.ones((5, 1), "float32"), (0, 0)), errors.ShapeError, r"update of shape \(5, 1\) must fit"),
        (lambda: lax.dynamic_update_slice(X, np.ones((1, 1), int), (0, 0)), errors.DTypeError, "one dtype"),
        (lambda: lax.dynamic_index_in_dim(X, 0, 2), errors.ShapeError, "axis=2 is out of range"),
    ],
)
def test_mistakes_raise(call, error, words):
    with pytest.raises(error, match=words):
        call()
