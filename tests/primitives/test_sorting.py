"""What sorting refuses, and its derivatives where elements are equal."""

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import errors, lax

X = np.array([[3.0, 1.0, 2.0], [1.0, 1.0, 0.0]])


@pytest.mark.wide
def test_sort_key_val_carries_values():
    keys, values = lax.sort_key_val(X, np.arange(6).reshape(2, 3), dimension=0)
    np.testing.assert_array_equal(np.asarray(keys), np.sort(X, 0))
    np.testing.assert_array_equal(np.asarray(values), [[3, 1, 5], [0, 4, 2]])


@pytest.mark.wide
def test_derivatives_follow_the_elements():
    weights = np.array([[1.0, 10.0, 100.0]] * 2)
    gradient = vf.grad(lambda x: lax.reduce_sum(lax.sort(x) * weights, (0, 1)))(X)
    np.testing.assert_array_equal(np.asarray(gradient), [[100, 1, 10], [10, 100, 1]])
    gradient = vf.grad(lambda x: lax.reduce_sum(lax.top_k(x, 2)[0] * weights[:, :2], (0, 1)))(X)
    np.testing.assert_array_equal(np.asarray(gradient), [[1, 0, 10], [1, 10, 0]])
    _, rate = vf.jvp(lambda x: lax.sort((x, x * 2), dimension=0)[1], (X,), (weights,))
    np.testing.assert_array_equal(np.asarray(rate), [[2, 20, 200], [2, 20, 200]])


@pytest.mark.wide
def test_the_approximate_forms_are_exact():
    for got, expected in zip(lax.approx_max_k(X, 2, 0, recall_target=0.5), lax.top_k(X, 2, axis=0), strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))
    values, indices = lax.approx_min_k(X, 2)
    np.testing.assert_array_equal(np.asarray(values), [[1, 2], [0, 1]])
    np.testing.assert_array_equal(np.asarray(indices), [[1, 2], [2, 0]])


@pytest.mark.wide
def test_every_batch_axis():
    stacked = np.stack([X, -X, X + 1])
    for axis in (0, 1, 2):
        for dimension in (0, 1):
            got = vf.vmap(lambda x, d=dimension: lax.sort(x, d), axis, axis)(np.moveaxis(stacked, 0, axis))
            np.testing.assert_array_equal(np.moveaxis(np.asarray(got), axis, 0), np.sort(stacked, dimension + 1))
            got = vf.vmap(lambda x, d=dimension: lax.argmin(x, d, int), axis)(np.moveaxis(stacked, 0, axis))
            np.testing.assert_array_equal(np.asarray(got), stacked.argmin(dimension + 1))


@pytest.mark.wide
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: lax.sort((X, X[0])), errors.ShapeError, "one shape"),
        (lambda: lax.sort(1.0), errors.ShapeError, "at least one dimension"),
        (lambda: lax.sort(()), errors.ShapeError, "at least one operand"),
        (lambda: lax.sort(X, 2), errors.ShapeError, "dimension=2 is out of range"),
        (lambda: lax.sort((X, X), num_keys=3), errors.ArgumentError, "between 1 and the number of operands, 2, got 3"),
        (lambda: lax.top_k(X, 4), errors.ShapeError, r"k=4 must be between 0 and the size of axis 1 .* \(2, 3\)"),
        (lambda: lax.top_k(X + 0j, 1), errors.DTypeError, "complex128, which has no order"),
        (lambda: lax.top_k(1.0, 1), errors.ShapeError, "got a scalar"),
        (lambda: lax.argmax(np.zeros((2, 0)), 1, "int32"), errors.ShapeError, r"at least one element, of an operand of shape \(2, 0\)"),
        (lambda: lax.argmin(X + 0j, 1, "int32"), errors.DTypeError, "no order"),
        (lambda: lax.argmin(X, 1, "float32"), errors.DTypeError, "index_dtype must be an integer dtype"),
    ],
)
def test_mistakes_raise(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_top_k_refuses_axes_that_its_indices_cannot_count() -> None:
    long = vf.ShapeDtypeStruct((2**31 + 1,), "bfloat16")
    with pytest.raises(errors.ShapeError, match="int32"):
        vf.eval_shape(lambda x: lax.top_k(x, 3), long)
