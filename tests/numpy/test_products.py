"""Products and einsum against NumPy's values and JAX's dtypes."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.numpy.oracle import ALL, check, sample
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError

PAIRS = {
    "matmul": [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 4)),
        ((2, 3), (3, 4)),
        ((5, 2, 3), (3, 4)),
        ((5, 1, 2, 3), (4, 3, 2)),
        ((2, 0), (0, 3)),
    ],
    "dot": [((), (3,)), ((3,), (3,)), ((2, 3), (3,)), ((2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((4, 2, 3), (3, 5))],
    "vdot": [((3,), (3,)), ((2, 3), (3, 2))],
    "inner": [((), (3,)), ((3,), (3,)), ((2, 3), (4, 3)), ((2, 1, 3), (4, 3))],
    "outer": [((3,), (4,)), ((2, 3), (4,)), ((), (2,))],
    "kron": [((2,), (3,)), ((2, 3), (2, 2)), ((2,), (2, 3))],
    "cross": [((3,), (3,)), ((4, 3), (3,)), ((2, 4, 3), (4, 3))],
    "vecdot": [((3,), (3,)), ((4, 3), (3,)), ((2, 4, 3), (4, 3))],
    "matvec": [((2, 3), (3,)), ((5, 2, 3), (3,)), ((2, 3), (5, 3))],
    "vecmat": [((2,), (2, 3)), ((5, 2), (2, 3)), ((2,), (5, 2, 3))],
    "tensordot": [((2, 3, 4), (3, 4, 5))],
}


@pytest.mark.parametrize("name", PAIRS)
def test_shapes(name):
    for a, b in PAIRS[name]:
        check(lambda xp, x, y: getattr(xp, name)(x, y), sample(a, np.float32, 1), sample(b, np.float32, 2), tolerance=1e-5)


@pytest.mark.parametrize("name", ["matmul", "dot", "inner", "outer", "vdot", "tensordot"])
def test_dtypes(name):
    shape = (3, 3) if name in ("matmul", "dot", "inner", "tensordot") else (3,)
    for dtype in ALL:
        if name == "tensordot":
            call = lambda xp, x, y: xp.tensordot(x, y, 1)
        else:
            call = lambda xp, x, y: getattr(xp, name)(x, y)
        check(call, sample(shape, dtype, 1), sample(shape, dtype, 2), tolerance={2: 4e-2, 4: 1e-5, 8: 1e-5}.get(dtype.itemsize))
    check(lambda xp, x, y: xp.matmul(x, y), sample((2, 3), np.int8, 1), sample((3, 2), np.float16, 2), tolerance=1e-2)


def test_vecdot_options():
    x, y = sample((3, 4, 2), np.complex64, 1), sample((3,), np.complex64, 2)
    check(lambda xp, x, y: xp.vecdot(x, y, axis=0), x, y, tolerance=1e-5)
    check(lambda xp, x: xp.vecdot(x, x), sample((2, 3), np.int16, 1))
    assert vnp.vecdot(np.int8([100, 100]), np.int8([1, 1]), preferred_element_type="int32").tolist() == 200


def test_tensordot_axes():
    x, y = sample((2, 3, 4), np.float32, 1), sample((4, 3, 5), np.float32, 2)
    check(lambda xp, x, y: xp.tensordot(x, y, axes=([1, 2], [1, 0])), x, y, tolerance=1e-5)
    check(lambda xp, x, y: xp.tensordot(x, y, axes=(2, 0)), x, y, tolerance=1e-5)
    check(lambda xp, x, y: xp.tensordot(x, y, axes=0), x, y, tolerance=1e-5)


def test_cross_axes():
    x, y = sample((3, 4), np.float32, 1), sample((3, 4), np.float32, 2)
    check(lambda xp, x, y: xp.cross(x, y, axis=0), x, y)
    check(lambda xp, x, y: xp.cross(x, y, axisa=0, axisb=0, axisc=0), x, y)


EINSUMS = [
    ("ij,jk->ik", (2, 3), (3, 4)), ("ij,jk", (2, 3), (3, 4)), ("bij,bjk->bik", (5, 2, 3), (5, 3, 4)), ("ij->ji", (2, 3)),
    ("ii->i", (3, 3)), ("ii", (3, 3)), ("ij->", (2, 3)), ("i,j->ij", (2,), (3,)), ("i,i->", (3,), (3,)), ("i,i->i", (3,), (3,)),
    ("...ij,...jk->...ik", (5, 2, 3), (3, 4)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)), ("ij,ij,ij->j", (2, 3), (2, 3), (2, 3)), ("abc,cd,bd->a", (2, 3, 4), (4, 5), (3, 5)),
    ("b...,b...->...", (4, 2, 3), (4, 2, 3)), ("iij,j->i", (3, 3, 2), (2,)), ("ij,kl->", (2, 3), (2, 2)), ("...,...->...", (2, 3), (3,)),
    ("hbqd,hbkd->hbqk", (2, 3, 4, 5), (2, 3, 6, 5)), ("ij,j->ij", (2, 3), (3,)), (",ij->ij", (), (2, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("subscripts", "shapes"), [(s, shapes) for s, *shapes in EINSUMS], ids=[e[0] for e in EINSUMS])
def test_einsum(subscripts, shapes):
    arrays = [sample(s, np.float32, i) for i, s in enumerate(shapes)]
    check(lambda xp, *a: xp.einsum(subscripts, *a), *arrays, tolerance=1e-5)


def test_einsum_forms():
    x, y = sample((2, 3), np.float32, 1), sample((3, 4), np.float32, 2)
    check(lambda xp, x, y: xp.einsum(x, [0, 1], y, [1, 2], [0, 2]), x, y, tolerance=1e-5)
    check(lambda xp, x, y: xp.einsum(x, [0, 1], y, [1, 2]), x, y, tolerance=1e-5)
    for labels in (("rows", "inner", "columns"), ("z", "b", "a"), (700, -3, 12), ((1,), (0, 5), ())):  # in their order, as in JAX
        row, inner, column = labels
        order = [label for label in sorted(labels) if label != inner]
        expected = x @ y if order == [row, column] else (x @ y).T
        np.testing.assert_allclose(vnp.einsum(x, [row, inner], y, [inner, column]), expected, rtol=1e-5)
        np.testing.assert_allclose(vnp.einsum(x, [..., inner], y, [inner, column], [column, ...]), (x @ y).T, rtol=1e-5)
        assert vnp.einsum_path(x, [row, inner], y, [inner, column])[0] == ["einsum_path", (0, 1)]
    many, ones = [f"dimension {i:02}" for i in range(60)], np.ones((1,) * 30)  # more than there are letters
    assert vnp.einsum(ones, many[:30], ones, many[30:], many[:5]).shape == (1,) * 5
    for subscripts in ("ij->i", "ij->", "ij,kj->ik", "ij,kj->k", "ij,ij->ij"):
        check(lambda xp, x, s=subscripts: xp.einsum(s, *[x] * (1 + s.count(","))), sample((2, 3), bool, 1))
    for dtype in (np.int32, np.complex64, np.float16):
        check(lambda xp, x: xp.einsum("ij,kj->ik", x, x), sample((2, 3), dtype, 1), tolerance=1e-2 if dtype == np.float16 else None)
    np.testing.assert_allclose(vnp.einsum("01,1!->0!", x, y), x @ y, rtol=1e-5)  # any character names a dimension, as in JAX
    assert vnp.einsum_path("ij,jk,k->i", np.ones((2, 3)), np.ones((3, 4)), np.ones(4))[0][0] == "einsum_path"


@pytest.mark.wide
def test_gradients():
    a, b = sample((2, 3), np.float64, 1), sample((3, 4), np.float64, 2)
    weights = sample((2, 4), np.float64, 3)
    for product in (vnp.matmul, vnp.dot, lambda x, y: vnp.einsum("ij,jk->ik", x, y), lambda x, y: vnp.tensordot(x, y, 1)):
        da, db = vf.grad(lambda x, y, f=product: vnp.sum(f(x, y) * weights), (0, 1))(a, b)
        np.testing.assert_allclose(np.asarray(da), weights @ b.T, rtol=1e-12)
        np.testing.assert_allclose(np.asarray(db), a.T @ weights, rtol=1e-12)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: vnp.matmul(np.ones((2, 3)), np.ones((2, 3))), ShapeError, r"\(2, 3\) and \(2, 3\).*did you mean b.T"),
        (lambda: vnp.matmul(1.0, np.ones(2)), ShapeError, "matmul"),
        (lambda: vnp.dot(np.ones((2, 3)), np.ones((4, 5))), ShapeError, "dot"),
        (lambda: vnp.einsum("ij,jk->ik", np.ones((2, 3)), np.ones((4, 5))), ShapeError, "einsum"),
        (lambda: vnp.einsum("ij->ijk", np.ones((2, 3))), ArgumentError, "einsum"),
        (lambda: vnp.einsum("ij", np.ones((2, 3)), np.ones(2)), ArgumentError, "einsum"),
        (lambda: vnp.einsum(np.ones((2, 3)), [0, "a"]), ArgumentTypeError, "hashable and comparable"),
        (lambda: vnp.einsum(np.ones((2, 3)), [0, [1]]), ArgumentTypeError, "hashable and comparable"),
        (lambda: vnp.einsum(np.ones((2, 3)), ["a", "b"], ["c"]), ArgumentError, "'c', which no operand has"),
        (lambda: vnp.matvec(np.ones(3), np.ones(3)), ShapeError, "matvec"),
        (lambda: vnp.matmul([[1.0]], np.ones(1)), ArgumentTypeError, "matmul: argument 1"),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize(
    ("subscripts", "shapes"), [("bij,bjk->bki", ((2, 3, 4), (2, 4, 5))), ("i,j->ji", ((2,), (3,))), ("ij->j", ((2, 3),))]
)
def test_einsum_multiplies_by_the_function_given(subscripts, shapes):
    calls = []

    def multiply(*args, **kwargs):
        calls.append(args[2])
        return vf.lax.dot_general(*args, **kwargs)

    values = [sample(shape, np.float32, seed) for seed, shape in enumerate(shapes)]
    got = vnp.einsum(subscripts, *values, _dot_general=multiply)
    np.testing.assert_allclose(got, np.einsum(subscripts, *values), rtol=1e-5, atol=1e-6)
    assert len(calls) == len(shapes) - 1
