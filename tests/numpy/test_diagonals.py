"""Diagonals and triangles against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.numpy.oracle import KINDS, check, sample
from volta_fn.errors import ArgumentError, ShapeError

OFFSETS = [-4, -2, -1, 0, 1, 2, 5]


@pytest.mark.parametrize("k", OFFSETS)
def test_triangles_and_diagonals(k):
    for shape in ((3, 4), (4, 2), (2, 3, 3)):
        x = sample(shape, np.float32, 1)
        for name in ("tril", "triu"):
            check(lambda xp, x, name=name: getattr(xp, name)(x, k), x)
        check(lambda xp, x: xp.diagonal(x, k), x)
        check(lambda xp, x: xp.diagonal(x, k, axis1=-1, axis2=0), x)
        check(lambda xp, x: xp.trace(x, k), x)
    check(lambda xp, v: xp.diag(v, k), sample((3,), np.int32, 1))
    check(lambda xp, v: xp.diag(v, k), sample((3, 4), np.int32, 1))
    check(lambda xp, v: xp.diagflat(v, k), sample((2, 2), np.int32, 1))
    check(lambda xp: xp.tri(3, 4, k, dtype=np.float32))


@pytest.mark.parametrize("k", [2**31 - 1, -(2**31), 10**10, -(10**20)])
def test_diagonals_far_away(k):
    x = sample((3, 4), np.float32, 1)
    assert not np.asarray(vnp.eye(3, 4, k)).any()
    np.testing.assert_array_equal(np.asarray(vnp.tri(3, 4, k)), np.full((3, 4), k > 0))
    np.testing.assert_array_equal(np.asarray(vnp.tril(x, k)), x * (k > 0))
    np.testing.assert_array_equal(np.asarray(vnp.triu(x, k)), x * (k < 0))


def test_dtypes():
    for dtype in KINDS:
        check(lambda xp, x: xp.tril(x), sample((3, 3), dtype, 1))
        check(lambda xp, x: xp.diag(x), sample((3,), dtype, 1))
        check(lambda xp, x: xp.diagonal(x), sample((3, 3), dtype, 1))


def test_empty():
    for shape in ((0,), (1,)):
        for k in (0, 2, -1):
            check(lambda xp, v, k=k: xp.diag(v, k), np.ones(shape, np.float32))
    check(lambda xp, x: xp.tril(x), np.ones((0, 3), np.float32))
    check(lambda xp, x: xp.diagonal(x), np.ones((0, 3), np.float32))


def test_indices():
    for call in (
        lambda xp: xp.tril_indices(3), lambda xp: xp.tril_indices(3, 1, 4), lambda xp: xp.triu_indices(4, -1),
        lambda xp: xp.diag_indices(3),
        lambda xp: xp.tril_indices_from(xp.ones((2, 3)), 1), lambda xp: xp.triu_indices_from(xp.ones((3, 2))),
        lambda xp: xp.diag_indices_from(xp.ones((2, 2, 2))), lambda xp: xp.mask_indices(3, xp.triu, 1),
    ):  # fmt: skip
        check(call, jax=False, traced=False)
    assert vnp.tril_indices(2)[0].dtype == np.int32


def test_fill_diagonal():
    for shape, value, wrap in (
        ((3, 3), 9.0, False),
        ((5, 2), 9.0, True),
        ((5, 2), 9.0, False),
        ((3, 3, 3), 2.0, False),
        ((3, 3), [1.0, 2.0, 3.0], False),
    ):
        wanted = sample(shape, np.float32, 1)
        got = vnp.fill_diagonal(wanted, value, wrap=wrap, inplace=False)
        np.fill_diagonal(wanted, value, wrap=wrap)
        np.testing.assert_array_equal(np.asarray(got), wanted)
    with pytest.raises(ArgumentError, match="fill_diagonal: .*inplace=False"):
        vnp.fill_diagonal(np.ones((2, 2)), 1)


@pytest.mark.wide
def test_gradients():
    x = sample((3, 3), np.float64, 1)
    got = vf.grad(lambda v: vnp.trace(v @ v) + vnp.sum(vnp.tril(v)) + vnp.sum(vnp.diag(vnp.diag(v)) ** 2))(x)
    np.testing.assert_allclose(np.asarray(got), 2 * x.T + np.tri(3) + 2 * np.diag(np.diag(x)), rtol=1e-12)


@pytest.mark.wide
@pytest.mark.parametrize(
    "call",
    [
        lambda: vnp.tril(np.ones(3)), lambda: vnp.diag(np.ones((2, 2, 2))), lambda: vnp.diagonal(np.ones(3)),
        lambda: vnp.diagonal(np.ones((2, 2)), axis1=0, axis2=-2), lambda: vnp.diag_indices_from(np.ones((2, 3))),
        lambda: vnp.fill_diagonal(np.ones((2, 3, 2)), 1, inplace=False), lambda: vnp.tril_indices_from(np.ones((2, 2, 2))),
        lambda: vnp.triu_indices_from(np.ones((2, 2, 2))), lambda: vnp.tril_indices_from(np.ones(2)),
    ],
)  # fmt: skip
def test_errors(call):
    with pytest.raises(ShapeError):
        call()
