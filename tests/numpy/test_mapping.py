"""Functions of vectors mapped over arrays, against NumPy's loops."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.numpy.oracle import check, sample
from volta_fn.errors import ArgumentError, ShapeError


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_apply_along_axis(axis):
    x = sample((2, 3, 4), np.float32, 1)
    check(lambda xp, x: xp.apply_along_axis(lambda v: xp.sum(v * v), axis, x), x, tolerance=1e-5)
    check(lambda xp, x: xp.apply_along_axis(lambda v: v[:2] * 2, axis, x), x)
    check(lambda xp, x: xp.apply_along_axis(lambda v: xp.outer(v, v[:2]), axis, x), x)
    check(lambda xp, x: xp.apply_along_axis(lambda v, k: v * k, axis, x, 3), x)


def test_apply_over_axes():
    x = sample((2, 3, 4), np.float32, 1)
    check(lambda xp, x: xp.apply_over_axes(xp.sum, x, [0, -1]), x, tolerance=1e-5)
    check(lambda xp, x: xp.apply_over_axes(lambda a, i: xp.cumsum(a, axis=i), x, [1]), x, tolerance=1e-5)
    with pytest.raises(ShapeError, match="apply_over_axes"):
        vnp.apply_over_axes(lambda a, i: a.ravel(), x, [0])


def test_vectorize_scalars():
    f = lambda a, b: vnp.where(a > b, a - b, a + b)
    x, y = sample((3, 1), np.float32, 1), sample((4,), np.float32, 2)
    np.testing.assert_allclose(np.asarray(vnp.vectorize(f)(x, y)), np.where(x > y, x - y, x + y), rtol=1e-6)
    assert vnp.vectorize(f)(1.0, 2.0).shape == ()


def test_vectorize_with_a_signature():
    matvec = vnp.vectorize(lambda m, v: m @ v, signature="(m,n),(n)->(m)")
    m, v = sample((5, 1, 2, 3), np.float32, 1), sample((4, 3), np.float32, 2)
    np.testing.assert_allclose(np.asarray(matvec(m, v)), np.einsum("abmn,bn->abm", np.broadcast_to(m, (5, 4, 2, 3)), v), rtol=1e-5)
    both = vnp.vectorize(lambda v: (v.sum(), v * 2), signature="(n)->(),(n)")
    total, doubled = both(v)
    assert (total.shape, doubled.shape) == ((4,), (4, 3))
    assert vf.jit(matvec)(m, v).shape == (5, 4, 2)


@pytest.mark.wide
def test_vectorize_excluded_and_named():
    power = vnp.vectorize(lambda x, n: x**n, excluded={1})
    assert power(np.arange(3.0), 2).tolist() == [0.0, 1.0, 4.0]
    scaled = vnp.vectorize(lambda x, k: x * k, excluded={"k"})
    assert scaled(np.arange(3.0), k=2).tolist() == [0.0, 2.0, 4.0]
    named = vnp.vectorize(lambda x, y: x - y)
    assert named(np.arange(3.0), y=np.ones(3)).tolist() == [-1.0, 0.0, 1.0]


@pytest.mark.wide
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: vnp.vectorize(lambda x: x, signature="n->n"), ArgumentError, "signature"),
        (lambda: vnp.vectorize(lambda x: x, signature="(n)->(n)")(np.float32(1)), ShapeError, "core dimensions"),
        (lambda: vnp.vectorize(lambda x, y: x, signature="(n),(n)->(n)")(np.ones(2), np.ones(3)), ShapeError, "'n' has sizes 2 and 3"),
        (lambda: vnp.vectorize(lambda x: x, signature="(n)->()")(np.ones(2)), ShapeError, "result of shape"),
        (lambda: vnp.vectorize(lambda x: (x, x), signature="(n)->(n)")(np.ones(2)), ArgumentError, "promises 1 results, got 2"),
        (lambda: vnp.vectorize(lambda x: x, signature="(n)->(n)")(np.ones(2), np.ones(2)), ArgumentError, "takes 1 arguments, got 2"),
        (lambda: vnp.vectorize(lambda x: x, signature="(n)->(n)")(x=np.ones(2)), ArgumentError, "positional"),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_none_is_not_mapped() -> None:
    add = vnp.vectorize(lambda x, y=None, z=None: x if y is None else x + y if z is None else x + y + z)
    x = np.arange(3)
    assert add(x, None).tolist() == [0, 1, 2]
    assert add(x, None, z=x).tolist() == [0, 1, 2]
    assert add(x, x, z=None).tolist() == [0, 2, 4]
    assert add(x, x, z=x).tolist() == [0, 3, 6]


@pytest.mark.parametrize("excluded", [{1.5}, {-1}])
def test_excluded_arguments_are_positions_or_names(excluded: set[float]) -> None:
    with pytest.raises(ArgumentError if excluded == {-1} else TypeError, match="excluded"):
        vnp.vectorize(lambda x: x, excluded=excluded)  # type: ignore[arg-type]  # what it is about


def test_ranks_are_checked_before_mapping() -> None:
    with (
        vf.config.numpy_rank_promotion("raise"),
        pytest.raises(ValueError, match=r"could not be broadcast together for vectorize on shapes \(2, 2\) \(2,\)"),
    ):
        vnp.vectorize(vnp.add)(np.ones((2, 2)), np.ones(2))
