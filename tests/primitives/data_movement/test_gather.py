"""What gather refuses, and what the registry's sweep does not see of it: fill values, modes, and batches of nothing."""

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
from volta_fn import errors, lax

ROWS = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
X = np.arange(12, dtype=np.float32).reshape(4, 3)
I = np.array([[1], [3]])  # noqa: E741  # the indices


@pytest.mark.wide
@pytest.mark.parametrize(
    ("change", "sizes", "indices", "words"),
    [
        ({"offset_dims": (0, 1)}, (1, 3), I, "offset_dims must increase and name 1 of the result's 2 dimensions"),
        ({"offset_dims": (2,)}, (1, 3), I, "offset_dims"),
        ({"collapsed_slice_dims": (2,)}, (1, 3), I, "collapsed.*must increase"),
        ({"start_index_map": (0, 0)}, (1, 3), I, "must differ"),
        ({"start_index_map": (0, 1)}, (1, 3), I, "one entry per addressed dimension"),
        ({"operand_batching_dims": (0,)}, (1, 3), I, "neither addressed nor collapsed"),
        (
            {"operand_batching_dims": (1,), "offset_dims": (), "start_indices_batching_dims": (0,)},
            (1, 1),
            I,
            "pair up and have equal sizes",
        ),
        ({"start_indices_batching_dims": (1,)}, (1, 3), I, "exclude its last dimension"),
        ({}, (2, 3), I, "size 1 along collapsed"),
        ({}, (1, 4), I, "must fit"),
        ({}, (1, -1), I[:0], "must not be negative"),
        ({}, (1,), I, "one size per dimension"),
        ({}, (1, 3), np.array(1), "needs a last dimension"),
    ],
)
def test_numbers_that_do_not_fit_raise_with_all_shapes(change, sizes, indices, words):
    with pytest.raises(errors.ShapeError, match=words) as caught:
        lax.gather(X, indices, ROWS._replace(**change), sizes)
    assert "f32[4,3]" in str(caught.value)


def test_other_mistakes():
    with pytest.raises(errors.DTypeError, match="start_indices must be integers"):
        lax.gather(X, I.astype(np.float32), ROWS, (1, 3))
    with pytest.raises(errors.ArgumentError, match="got 'wrap'"):
        lax.gather(X, I, ROWS, (1, 3), mode="wrap")
    with pytest.raises(errors.ArgumentTypeError, match="fill_value"):
        lax.gather(X, I, ROWS, (1, 3), fill_value=np.ones(2))
    with pytest.raises(errors.DTypeError, match=r"fill_value 0\.5 is no int32"):
        lax.gather(X.astype(np.int32), I, ROWS, (1, 3), fill_value=0.5)


@pytest.mark.wide
def test_filled_windows_have_no_derivative():
    total = lambda x: lax.reduce_sum(lax.gather(x, np.array([[9], [1]]), ROWS, (1, 3), fill_value=5.0), (0, 1))
    assert float(total(X)) == 15 + X[1].sum()
    np.testing.assert_array_equal(np.asarray(vf.grad(total)(X)), [[0] * 3, [1] * 3, [0] * 3, [0] * 3])


@pytest.mark.wide
def test_a_nan_fill_is_the_default_and_does_not_defeat_the_cache():
    read = lambda fill: lax.gather(X, np.array([[9]]), ROWS, (1, 3), fill_value=fill)
    for fill in (None, np.nan, float("nan"), np.float32("nan")):
        assert np.isnan(np.asarray(read(fill))).all()


@pytest.mark.parametrize("in_axes", [(0, None), (None, 0), (0, 0)])
def test_batches_of_nothing(in_axes):
    shapes = ((0, 4, 3) if in_axes[0] == 0 else (4, 3)), ((0, 2, 1) if in_axes[1] == 0 else (2, 1))
    read = vf.vmap(lambda x, i: lax.gather(x, i, ROWS, (1, 3)), in_axes)
    assert read(np.zeros(shapes[0], np.float32), np.zeros(shapes[1], np.int32)).shape == (0, 2, 3)


@pytest.mark.wide
def test_index_take_counts_around_the_ends():
    got = lax.index_take(X, [np.array([0, -1, 5]), np.array([1, 1, -1])], (0, 1))
    np.testing.assert_array_equal(np.asarray(got), [X[0, 1], X[3, 1], X[1, 2]])


def test_index_take_does_not_mix_ranks() -> None:
    x = vf.numpy.arange(24).reshape(3, 4, 2)
    with vf.config.numpy_rank_promotion("raise"):
        result = vf.lax.index_take(x, (np.array([-1, 0]), np.array([1, -2])), (0, 1))
    np.testing.assert_array_equal(result, np.asarray(x)[[-1, 0], [1, -2]])


@pytest.mark.wide
def test_index_take_of_axes_that_the_dtype_of_indices_does_not_count() -> None:
    x = np.arange(300, dtype=np.float32)
    for index in (np.array([-1, 5, 127], np.int8), np.array([255, 5], np.uint8)):
        np.testing.assert_array_equal(lax.index_take(x, (index,), (0,)), x[index.astype(int)])


@pytest.mark.wide
@pytest.mark.parametrize("dtype", ["float32", "float16", vf.dtypes.bfloat16, "complex64", ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn])
def test_a_negative_zero_fills_as_one(dtype) -> None:
    x, parts = X.astype(dtype), (0.0, -0.0)
    fills = [complex(a, b) for a in parts for b in parts] + [complex(2, -0.0), complex(-0.0, -2)] if dtype == "complex64" else [*parts]
    read = lambda v, fill: lax.gather(v, np.array([[9], [1]]), ROWS, (1, 3), fill_value=fill)
    for fill in (*fills, *fills[::-1]):
        wanted = np.stack([np.full(3, fill, x.dtype), x[1]])
        for result in (read(x, fill), vf.jit(lambda v, fill=fill: read(v, fill))(x)):
            np.testing.assert_array_equal(np.asarray(result).view(np.uint8), wanted.view(np.uint8))
    if x.dtype.itemsize == 1:
        return  # such numbers are only stored
    gradient = vf.grad(lambda v: lax.reduce_sum(vf.lax.real(read(v, -0.0) * 3), (0, 1)) if dtype == "complex64" else read(v, -0.0).sum())(x)
    np.testing.assert_array_equal(np.asarray(gradient)[1], np.full(3, 3 if dtype == "complex64" else 1, x.dtype))
