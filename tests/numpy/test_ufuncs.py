"""Universal functions against NumPy's methods and JAX's `frompyfunc`."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.numpy.oracle import sample
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError

BINARY = [
    "add", "multiply", "subtract", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor", "logical_and", "logical_or",
    "logical_xor", "logaddexp", "logaddexp2",
]  # fmt: skip


def operands(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return numbers that a function takes."""
    dtype = bool if name.startswith("logical") else np.int32 if name.startswith("bitwise") else np.float32
    return sample(shape, dtype, 3)


def same(got: object, wanted: object) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_methods_along_an_axis(name, axis):
    ours, theirs, x = getattr(vnp, name), getattr(np, name), operands(name, (4, 5))
    for method in ("reduce", "accumulate"):
        same(getattr(ours, method)(x, axis=axis), getattr(theirs, method)(x, axis=axis))
        same(vf.jit(lambda x, m=method: getattr(ours, m)(x, axis=axis))(x), getattr(theirs, method)(x, axis=axis))
    indices = np.array([0, 3, 1, 1], np.int32)
    same(ours.reduceat(x, indices, axis=axis), theirs.reduceat(x, indices, axis=axis))
    same(ours.reduce(x, axis=axis, keepdims=True), theirs.reduce(x, axis=axis, keepdims=True))


@pytest.mark.parametrize("name", BINARY)
def test_at_and_outer(name):
    ours, theirs, x = getattr(vnp, name), getattr(np, name), operands(name, (4, 3))
    indices = np.array([0, 2, 0], np.int32)
    wanted, b = x.copy(), operands(name, (3, 3))
    theirs.at(wanted, indices, b)
    same(ours.at(vnp.asarray(x), indices, b), wanted)
    same(ours.outer(x, b[0]), theirs.outer(x, b[0]))


@pytest.mark.parametrize("name", ["add", "multiply", "bitwise_or", "logical_and", "logaddexp"])
def test_reductions_with_an_identity(name):
    ours, theirs, x = getattr(vnp, name), getattr(np, name), operands(name, (4, 5))
    keep = sample((4, 5), bool, 4)
    same(ours.reduce(x, axis=None), theirs.reduce(x, axis=None))
    same(ours.reduce(x, axis=(0, 1)), theirs.reduce(x, axis=(0, 1)))
    same(ours.reduce(x, axis=1, where=keep, initial=x[0, 0]), theirs.reduce(x, axis=1, where=keep, initial=x[0, 0]))
    same(ours.reduce(x[:0]), theirs.reduce(x[:0]))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extremes_of_several_axes(name, dtype):
    ours, theirs, x = getattr(vnp, name), getattr(np, name), sample((3, 4, 5), np.dtype(dtype), 5)
    keep = sample((3, 4, 5), bool, 4)
    for axis in (None, (0, 2), (1,), (), -1):
        same(ours.reduce(x, axis=axis), theirs.reduce(x, axis=axis))
        same(ours.reduce(x, axis=axis, keepdims=True), theirs.reduce(x, axis=axis, keepdims=True))
        initial = x[0, 0, 0]
        same(ours.reduce(x, axis=axis, where=keep, initial=initial), theirs.reduce(x, axis=axis, where=keep, initial=initial))
    if dtype == "float32":
        x[1, 2] = np.nan
        same(ours.reduce(x, axis=None), theirs.reduce(x, axis=None))
    assert ours.reduce(sample((3,), np.int32, 1), dtype="float32").dtype == np.float32


def test_dtypes():
    x = sample((5,), np.int32, 1)
    assert vnp.add.reduce(x, dtype="float16").dtype == np.float16
    assert vnp.subtract.accumulate(x, dtype="float32").dtype == np.float32


def test_unary_at():
    x, indices = sample((4,), np.float32, 1), np.array([0, 0, 2], np.int32)
    wanted = x.copy()
    np.negative.at(wanted, indices)
    same(vnp.negative.at(x, indices), wanted)
    assert vnp.negative.nin == 1


def test_frompyfunc_is_jaxs():
    jax = pytest.importorskip("jax")
    x, y = sample((3, 1), np.float32, 1), sample((4,), np.float32, 2)
    ours = vnp.frompyfunc(lambda a, b: vnp.hypot(a, b), 2, 1, identity=0.0)
    theirs = jax.numpy.frompyfunc(lambda a, b: jax.numpy.hypot(a, b), 2, 1, identity=0.0)
    same(ours(x, y), theirs(x, y))
    same(ours.reduce(y), theirs.reduce(y))
    same(ours.accumulate(y), theirs.accumulate(y))
    same(ours.outer(y, y), theirs.outer(y, y))
    same(ours.at(y, 1, 2.0), theirs.at(y, 1, 2.0, inplace=False))
    same(ours.reduce(x, axis=None), theirs.reduce(x, axis=None))
    assert isinstance(ours, vnp.ufunc) and (ours.nin, ours.nout, ours.nargs, ours.identity) == (2, 1, 3, 0.0)


def test_gradients_pass():
    x = sample((4,), np.float32, 1, 0.5, 2.0)
    same(vf.grad(lambda x: vnp.multiply.reduce(x))(x), np.prod(x) / x)
    same(vf.grad(lambda x: vnp.subtract.reduce(x))(x), [1, -1, -1, -1])


def test_functions_are_ufuncs():
    assert all(isinstance(getattr(vnp, name), vnp.ufunc) for name in [*BINARY, "negative"])
    assert not isinstance(vnp.sin, vnp.ufunc) and not isinstance(3, vnp.ufunc)


def test_bad_calls():
    x = np.arange(4, dtype=np.float32)
    with pytest.raises(ArgumentError, match="order of axes"):
        vnp.subtract.reduce(x.reshape(2, 2), axis=None)
    with pytest.raises(ArgumentError, match="no identity; give initial"):
        vnp.subtract.reduce(x[:0])
    with pytest.raises(ShapeError, match="no elements"):
        vnp.maximum.reduce(x[:0])
    with pytest.raises(ArgumentError, match="needs initial="):
        vnp.subtract.reduce(x, where=x > 1)
    with pytest.raises(ArgumentError, match="immutable"):
        vnp.add.at(x, 0, 1.0, inplace=True)
    with pytest.raises(ArgumentError, match="out="):
        vnp.add.reduce(x, out=x)
    with pytest.raises(ArgumentTypeError, match="two arrays"):
        vnp.negative.reduce(x)
    with pytest.raises(ArgumentTypeError, match="1 operands"):
        vnp.subtract.at(x, 0)
    with pytest.raises(ArgumentTypeError, match="two arrays, not 1"):
        vnp.negative.outer(x, x)
    with pytest.raises(ShapeError, match="one dimension"):
        vnp.subtract.reduceat(x, x.reshape(2, 2).astype(int))
    with pytest.raises(ArgumentError, match="at least one"):
        vnp.frompyfunc(lambda x: x, 0, 1)
    with pytest.raises(ArgumentTypeError, match="must be a function"):
        vnp.frompyfunc(3, 1, 1)
    with pytest.raises(ArgumentTypeError, match="takes 1 arrays"):
        vnp.frompyfunc(lambda x: x, 1, 1)(x, x)


def test_the_type_is_no_instance_of_itself():
    assert isinstance(vnp.add, vnp.ufunc)
    assert not isinstance(vnp.ufunc, vnp.ufunc)


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor", "logaddexp", "logaddexp2"])
def test_methods_of_other_dtypes_than_their_results(name):
    ours, theirs, x = getattr(vnp, name), getattr(np, name), np.array([[2, 0, 3], [4, 5, 6]], np.int32)
    for call in (
        lambda f: f.reduce(x, axis=1), lambda f: f.reduce(x, axis=1, keepdims=True), lambda f: f.accumulate(x, axis=1),
        lambda f: f.reduceat(x, np.array([0, 1]), axis=1), lambda f: f.reduce(x),
    ):  # fmt: skip
        result, wanted = np.asarray(call(ours)), call(theirs)
        assert (result.dtype == bool) == (wanted.dtype == bool)
        np.testing.assert_allclose(result, wanted, rtol=1e-6)
    if name.startswith("logical"):
        where = np.array([[True, False, True], [False, True, True]])
        np.testing.assert_array_equal(ours.reduce(x, axis=1, where=where), theirs.reduce(x, axis=1, where=where))
