"""Shapes and the order of elements against NumPy, over kinds of dtypes."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.numpy.oracle import KINDS, check, sample
from volta_fn.errors import ArgumentError, ArgumentTypeError, BroadcastError, ShapeError

CALLS = {
    "reshape": lambda xp, x: xp.reshape(x, (4, -1)),
    "reshape to one number": lambda xp, x: xp.reshape(x, 24),
    "reshape in column order": lambda xp, x: xp.reshape(x, (4, 6), order="F"),
    "ravel": lambda xp, x: xp.ravel(x),
    "ravel in column order": lambda xp, x: xp.ravel(x, order="F"),
    "transpose": lambda xp, x: xp.transpose(x),
    "transpose by axes": lambda xp, x: xp.transpose(x, (1, -1, 0)),
    "permute_dims": lambda xp, x: xp.permute_dims(x, (2, 0, 1)),
    "matrix_transpose": lambda xp, x: xp.matrix_transpose(x),
    "swapaxes": lambda xp, x: xp.swapaxes(x, 0, -1),
    "moveaxis": lambda xp, x: xp.moveaxis(x, 0, -1),
    "moveaxis of several": lambda xp, x: xp.moveaxis(x, (0, 1), (-1, 0)),
    "rollaxis": lambda xp, x: xp.rollaxis(x, 2),
    "rollaxis to the end": lambda xp, x: xp.rollaxis(x, 0, 3),
    "expand_dims": lambda xp, x: xp.expand_dims(x, 1),
    "expand_dims by several": lambda xp, x: xp.expand_dims(x, (0, -1)),
    "expand_dims by a range": lambda xp, x: xp.expand_dims(x, range(2) if xp is vnp else (0, 1)),
    "squeeze": lambda xp, x: xp.squeeze(x[None, :, None]),
    "squeeze one": lambda xp, x: xp.squeeze(x[None, :, None], 0),
    "broadcast_to": lambda xp, x: xp.broadcast_to(x, (5, 2, 3, 4)),
    "broadcast_arrays": lambda xp, x: xp.broadcast_arrays(x[:, :1], x[0]),
    "atleast_1d": lambda xp, x: xp.atleast_1d(x[0, 0, 0], x),
    "atleast_2d": lambda xp, x: xp.atleast_2d(x[0, 0]),
    "atleast_3d": lambda xp, x: xp.atleast_3d(x[0], x[0, 0], x[0, 0, 0]),
    "flip": lambda xp, x: xp.flip(x),
    "flip one": lambda xp, x: xp.flip(x, (0, 2)),
    "fliplr": lambda xp, x: xp.fliplr(x),
    "flipud": lambda xp, x: xp.flipud(x),
    "roll": lambda xp, x: xp.roll(x, 5),
    "roll an axis": lambda xp, x: xp.roll(x, -1, axis=1),
    "roll axes": lambda xp, x: xp.roll(x, (1, 2), axis=(0, 2)),
    "roll axes alike": lambda xp, x: xp.roll(x, 1, axis=(0, 2)),
    "repeat": lambda xp, x: xp.repeat(x, 2),
    "repeat an axis": lambda xp, x: xp.repeat(x, 3, axis=1),
    "repeat by one number": lambda xp, x: xp.repeat(x, np.array([2]), axis=1),
    "repeat unequally": lambda xp, x: xp.repeat(x, np.array([1, 0, 2]), axis=1),
    "tile": lambda xp, x: xp.tile(x, 2),
    "tile more axes": lambda xp, x: xp.tile(x, (2, 1, 3, 1)),
    "tile fewer axes": lambda xp, x: xp.tile(x, (2, 3)),
    "resize": lambda xp, x: xp.resize(x, (7, 5)),
    "resize to less": lambda xp, x: xp.resize(x, 5),
    "unstack": lambda xp, x: xp.unstack(x, axis=1),
}
#: What JAX declares otherwise.
OTHERWISE_IN_JAX = {"rollaxis to the end"}


@pytest.mark.parametrize("name", CALLS)
def test_against_numpy(name):
    for dtype in KINDS:
        check(CALLS[name], sample((2, 3, 4), dtype, 1), jax=name not in OTHERWISE_IN_JAX)


@pytest.mark.parametrize("k", range(-1, 5))
def test_rot90(k):
    check(lambda xp, x: xp.rot90(x, k), sample((2, 3, 4), np.int32))
    check(lambda xp, x: xp.rot90(x, k, axes=(2, 0)), sample((2, 3, 4), np.int32))


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)])
def test_empty_and_scalar(shape):
    x = sample(shape, np.float32)
    for call in (
        lambda xp, x: xp.ravel(x), lambda xp, x: xp.transpose(x), lambda xp, x: xp.flip(x), lambda xp, x: xp.roll(x, 1),
        lambda xp, x: xp.repeat(x, 2), lambda xp, x: xp.tile(x, 2), lambda xp, x: xp.expand_dims(x, 0), lambda xp, x: xp.resize(x, (2, 2)),
        lambda xp, x: xp.broadcast_to(x, (2, *shape)),
    ):  # fmt: skip
        check(call, x)


def test_measures():
    for x in (np.ones((2, 3)), vnp.ones((2, 3)), [[1, 2, 3], [4, 5, 6]], 5):
        assert vnp.shape(x) == np.shape(x)
        assert vnp.ndim(x) == np.ndim(x)
        assert vnp.size(x) == np.size(x)
    assert vnp.size(np.ones((2, 3)), 1) == 3
    assert vnp.broadcast_shapes((2, 1), 3, (1,)) == (2, 3)


@pytest.mark.wide
def test_roll_by_a_traced_shift():
    x = np.arange(10.0, dtype=np.float32).reshape(2, 5)
    rolled = vf.jit(lambda x, s: vnp.roll(x, s, axis=1))
    for shift in (0, 1, 4, 7, -2):
        np.testing.assert_array_equal(np.asarray(rolled(x, shift)), np.roll(x, shift, axis=1))
    several = vf.jit(lambda x, s: vnp.roll(x, s, axis=(0, 1)))(x, np.array([1, 2]))
    np.testing.assert_array_equal(np.asarray(several), np.roll(x, (1, 2), axis=(0, 1)))


@pytest.mark.wide
def test_repeat_with_a_known_total():
    x = np.array([3, 4, 5])
    repeated = vf.jit(lambda x, n: vnp.repeat(x, n, total_repeat_length=6))
    assert repeated(x, np.array([1, 2, 3])).tolist() == [3, 4, 4, 5, 5, 5]
    assert repeated(x, np.array([0, 1, 0])).tolist() == [4, 5, 5, 5, 5, 5]
    assert repeated(x, np.array([9, 1, 0])).tolist() == [3] * 6
    for axis in (None, 0, -1):
        np.testing.assert_array_equal(vnp.repeat(np.float32(3), 2, axis), np.repeat(np.float32(3), 2, axis))
    assert vnp.repeat(x, np.array([0, 0, 0])).shape == (0,)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: vnp.reshape(x, (5, -1)), ShapeError, r"\(2, 3, 4\)"),
        (lambda x: vnp.reshape(x, (-1, -1)), ShapeError, "-1"),
        (lambda x: vnp.reshape(x, (4, 6), order="X"), ArgumentError, "reshape: order"),
        (lambda x: vnp.transpose(x, (0, 1)), ShapeError, "transpose"),
        (lambda x: vnp.transpose(x, (0, 0, 1)), ShapeError, "transpose: .*twice"),
        (lambda x: vnp.squeeze(x, 1), ShapeError, "size 1"),
        (lambda x: vnp.broadcast_to(x, (2, 3)), BroadcastError, r"broadcast_to: .*\(2, 3, 4\).*\(2, 3\)"),
        (lambda x: vnp.broadcast_to(x, (2, 3, 5)), BroadcastError, "broadcast_to"),
        (lambda x: vnp.moveaxis(x, (0, 1), 0), ArgumentError, "moveaxis"),
        (lambda x: vnp.repeat(x, -1), ArgumentError, "repeat: .*negative"),
        (lambda x: vnp.roll(x, (1, 2, 3), axis=(0, 1)), ArgumentError, "roll"),
        (lambda x: vnp.rot90(x, axes=(0,)), ArgumentError, r"rot90: axes must be two, got \(0,\)"),
        (lambda x: vnp.rot90(x, 1.5), ArgumentTypeError, "rot90: k must be an integer"),
        (lambda x: vnp.expand_dims(x, (0, 0)), ShapeError, "expand_dims: .*twice"),
        (lambda x: vnp.swapaxes(x, 0, 5), ShapeError, "swapaxes: axis=5"),
        (lambda x: vnp.matrix_transpose(x[0, 0]), ShapeError, "matrix_transpose"),
        (lambda x: vnp.broadcast_shapes((2,), (3,)), BroadcastError, "broadcast"),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call(vnp.ones((2, 3, 4)))


@pytest.mark.wide
def test_gradients_flow_through_movement():
    x = sample((2, 3), np.float64, 1)
    weights = sample((3, 4), np.float64, 2)

    def loss(v):
        return vnp.sum(vnp.tile(vnp.roll(vnp.flip(v.T, 0), 1), (1, 2)) * weights)

    moved = np.tile(np.roll(np.flip(np.arange(6).reshape(2, 3).T, 0), 1), (1, 2))
    wanted = np.zeros(6)
    np.add.at(wanted, moved.ravel(), weights.ravel())
    np.testing.assert_allclose(np.asarray(vf.grad(loss)(x)), wanted.reshape(2, 3))
    repeated = vf.grad(lambda v: vnp.sum(vnp.repeat(v, np.array([1, 2, 0]), axis=1) ** 2))(x)
    np.testing.assert_allclose(np.asarray(repeated), 2 * x * [1, 2, 0])


@pytest.mark.parametrize("axes", [[0, 2, 1], [-1, 0, 1]])
def test_axes_in_arrays(axes):
    x = np.zeros((2, 3, 4), np.float32)
    assert vnp.transpose(x, np.array(axes)).shape == np.transpose(x, np.array(axes)).shape
    assert vnp.transpose(vnp.zeros(()), np.array([], np.int32)).shape == ()


class Sizes:
    """A sequence by `__getitem__` alone, as containers of other libraries are."""

    def __getitem__(self, index: int) -> int:
        return [0, 1][index]


def test_any_sequence_lists_sizes_and_axes():
    x = vnp.zeros((2, 1, 3))
    assert vnp.reshape(vnp.zeros(0), Sizes()).shape == vnp.zeros(Sizes()).shape == (0, 1)
    assert vnp.reshape(x, np.array([3, 2])).shape == vnp.reshape(x, iter([3, 2])).shape == (3, 2)
    assert vnp.sum(x, axis=Sizes()).shape == vnp.sum(x, axis=range(2)).shape == (3,)
    with pytest.raises(ShapeError, match=r"integers, got \('6',\)"):
        vnp.reshape(x, "6")


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda x: vnp.histogram(x, 2.4), "bins"), (lambda x: vnp.histogram_bin_edges(x, np.float32(2)), "bins"),
        (lambda x: vnp.histogram2d(x, x, (2.4, 3)), "bins"), (lambda x: vnp.histogramdd(x[:, None], [2.5]), "bins"),
        (lambda x: vnp.pad(x, 1.5), "width"), (lambda x: vnp.pad(x, {0: (1, 2.0)}), "width"),
        (lambda x: vnp.repeat(x, 2.5), "repeats"), (lambda x: vnp.repeat(x, np.full(4, 1.5)), "repeats"),
        (lambda x: vnp.tril_indices(2.5), "n"), (lambda x: vnp.triu_indices(2.5), "n"),
    ],
)  # fmt: skip
def test_counts_that_are_no_integers_are_refused(call, argument):
    with pytest.raises(ArgumentTypeError, match=rf"\b{argument} must be (an integer|integers), got"):
        call(vnp.arange(4.0))
