"""Grids of coordinates and index notation against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn.numpy as vnp
from tests.numpy.oracle import check, sample
from volta_fn.errors import ArgumentError, ShapeError


@pytest.mark.parametrize("indexing", ["xy", "ij"])
@pytest.mark.parametrize("sparse", [False, True])
def test_meshgrid(indexing, sparse):
    vectors = sample((3,), np.float32, 1), sample((4,), np.int32, 2), sample((2,), np.float32, 3)
    for count in (1, 2, 3):
        check(lambda xp, *v: xp.meshgrid(*v, indexing=indexing, sparse=sparse), *vectors[:count])
    check(lambda xp, a, b: xp.meshgrid(a, b), np.float32(2), np.ones((0,), np.float32), jax=False)


def test_indices():
    for sparse in (False, True):
        for shape in ((2, 3), (4,), (2, 0), ()):
            check(lambda xp, sparse=sparse, shape=shape: xp.indices(shape, dtype=np.int32, sparse=sparse))
    assert vnp.indices((2, 2)).dtype == np.int32


def test_open_grids():
    x = sample((4, 5), np.float32, 1)
    check(lambda xp, x: x[xp.ix_(np.array([0, 2]), np.array([1, 3, 4]))], x)
    check(lambda xp, x: x[xp.ix_(np.array([True, False, True, False]), np.array([1, 3]))], x, traced=False, jax=False)


NOTATIONS = {
    "mgrid": lambda xp: xp.mgrid[0:2, 0:3],
    "mgrid of one": lambda xp: xp.mgrid[1:4],
    "mgrid by count": lambda xp: xp.mgrid[0:1:5j, -1:1:3j],
    "mgrid by step": lambda xp: xp.mgrid[0:1:0.25],
    "ogrid": lambda xp: xp.ogrid[0:2, 0:3],
    "r_": lambda xp: xp.r_[1:4, 0, 4],
    "r_ of arrays": lambda xp: xp.r_[xp.ones(2, int), [5, 6], 7],
    "r_ by count": lambda xp: xp.r_[-1:1:5j],
    "r_ with a directive": lambda xp: xp.r_["0,2", [1, 2], [3, 4]],
    "r_ with three": lambda xp: xp.r_["0,2,0", [1, 2], [3, 4]],
    "c_": lambda xp: xp.c_[xp.arange(3), xp.arange(3)],
    "c_ of matrices": lambda xp: xp.c_[xp.ones((2, 2), int), [7, 8]],
}


@pytest.mark.parametrize("name", NOTATIONS)
def test_notations(name):
    got, wanted = NOTATIONS[name](vnp), NOTATIONS[name](np)
    if isinstance(got, list):
        assert len(got) == len(wanted)
    for ours, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-6)


def test_index_expressions():
    assert vnp.s_[1:2, ..., None] == (slice(1, 2), Ellipsis, None)
    assert vnp.s_[3] == 3
    assert vnp.index_exp[3] == (3,)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: vnp.meshgrid(np.ones(2), indexing="ab"), ArgumentError),
        (lambda: vnp.meshgrid(np.ones((2, 2))), ShapeError),
        (lambda: vnp.ix_(np.ones((2, 2), int)), ShapeError),
        (lambda: vnp.mgrid[1:], ArgumentError),
        (lambda: vnp.r_["nonsense", 1], ArgumentError),
    ],
)
def test_errors(call, error):
    with pytest.raises(error):
        call()


def test_where_joined_dimensions_go():
    for directive in ("0,4,-2", "0,3,-1", "0,3,1", "0,4,-9", "-1,2,0"):
        assert np.array_equal(vnp.c_[directive, [1, 2, 3], [4, 5, 6]], np.c_[directive, [1, 2, 3], [4, 5, 6]])
        assert np.array_equal(vnp.r_[directive, [1, 2, 3], [4, 5, 6]], np.r_[directive, [1, 2, 3], [4, 5, 6]])
    assert vnp.mgrid[()].shape == np.mgrid[()].shape
    assert vnp.ogrid[()] == []
