"""What the scatters refuse, and what the registry's sweep does not see of them: ties, orders, batches of nothing."""

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import errors, lax

ROWS = lax.ScatterDimensionNumbers(update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,))
ONE = lax.ScatterDimensionNumbers((), (0,), (0,))
X = np.arange(12, dtype=np.float32).reshape(4, 3)
I = np.array([[1], [3]])  # noqa: E741  # the indices
V = np.ones((2, 3), np.float32)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("change", "updates", "words"),
    [
        ({"update_window_dims": (0, 1)}, V, "update_window_dims must increase and name"),
        ({"update_window_dims": (2,)}, V, "update_window_dims"),
        ({}, V[:1], "shape of scatter_indices without its last dimension"),
        ({}, np.ones((2, 4), np.float32), "must fit"),
        ({"inserted_window_dims": (3,)}, V, "2 of them here"),
        ({"inserted_window_dims": (0, 0)}, V, "inserted"),
        ({"scatter_dims_to_operand_dims": (0, 1)}, V, "one entry per addressed dimension"),
    ],
)
def test_numbers_that_do_not_fit_raise_with_all_shapes(change, updates, words):
    with pytest.raises(errors.ShapeError, match=words) as caught:
        lax.scatter_add(X, I, updates, ROWS._replace(**change))
    assert "scatter_add" in str(caught.value) and "f32[4,3]" in str(caught.value)


@pytest.mark.wide
def test_dtypes_must_agree():
    with pytest.raises(errors.DTypeError, match="one dtype"):
        lax.scatter(X, I, V.astype(np.int32), ROWS)
    with pytest.raises(errors.DTypeError, match="scatter_indices must be integers"):
        lax.scatter(X, I * 1.0, V, ROWS)


@pytest.mark.wide
def test_scatter_sub():
    np.testing.assert_array_equal(np.asarray(lax.scatter_sub(X, I, V, ROWS)), np.asarray(lax.scatter_add(X, I, -V, ROWS)))


@pytest.mark.wide
def test_scatter_apply():
    expected = X.copy()
    expected[[1, 3]] **= 2
    got = lax.scatter_apply(X, np.array([[1], [3], [9]]), lambda v: v * v, ROWS, update_shape=(3, 3))
    np.testing.assert_array_equal(np.asarray(got), expected)


@pytest.mark.wide
@pytest.mark.parametrize("scatter", [lax.scatter_min, lax.scatter_max])
def test_equal_extremes_share_the_derivative(scatter):
    total = lambda x, v: lax.reduce_sum(scatter(x, np.array([[0], [0], [1]]), v, ONE), (0,))
    by_x, by_v = vf.grad(total, (0, 1))(np.array([2.0, 5.0, 1.0]), np.array([2.0, 2.0, 5.0]))
    np.testing.assert_allclose(np.asarray(by_x), [1 / 3, 1 / 2, 1])
    np.testing.assert_allclose(np.asarray(by_v), [1 / 3, 1 / 3, 1 / 2])


@pytest.mark.wide
def test_the_second_derivative_of_an_overwritten_value_is_zero():
    square = lambda v: lax.reduce_sum(lax.scatter(np.zeros(2), np.array([[0], [0]]), v * v, ONE), (0,))
    v = np.array([3.0, 5.0])
    np.testing.assert_array_equal(np.asarray(vf.grad(square)(v)), [0, 10])
    np.testing.assert_array_equal(np.asarray(vf.grad(lambda v: vf.grad(square)(v)[1])(v)), [0, 2])


@pytest.mark.wide
@pytest.mark.parametrize("in_axes", [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0)])
def test_batches_of_nothing(in_axes):
    args = [np.zeros((0, *a.shape), a.dtype) if d == 0 else a for a, d in zip((X, I, V), in_axes, strict=True)]
    for scatter in (lax.scatter, lax.scatter_add):
        assert vf.vmap(lambda x, i, v, f=scatter: f(x, i, v, ROWS), in_axes)(*args).shape == (0, 4, 3)


@pytest.mark.wide
def test_transposing_for_what_is_not_linear_raises():
    with pytest.raises(errors.GradientError, match="not linear in its updates"):
        vf.linear_transpose(lambda v: lax.scatter_mul(X, I, v, ROWS), V)(X)


@pytest.mark.parametrize("scatter", [lax.scatter_min, lax.scatter_max])
def test_derivatives_beside_elements_that_are_not_numbers(scatter):
    x, v, i = np.array([np.nan, 1, np.nan, 1, 1], np.float32), np.array([1, 1, np.nan], np.float32), np.array([[1], [2], [3]])
    total = lambda x, v: (scatter(x, i, v, ONE) * np.arange(1.0, 6, dtype=np.float32)).sum()
    for gradient in (vf.grad(total, (0, 1)), vf.jit(vf.grad(total, (0, 1)))):
        by_x, by_v = gradient(x, v)
        np.testing.assert_array_equal(np.asarray(by_x), [1, 1, 3, 0, 5])
        np.testing.assert_array_equal(np.asarray(by_v), [1, 0, 0])
