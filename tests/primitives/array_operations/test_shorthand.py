"""Compositions of primitives in volta_fn.lax: against NumPy, and their messages."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax
from volta_fn.errors import ArgumentError, DTypeError, ShapeError

X = np.arange(24, dtype=np.int32).reshape(2, 3, 4)


def test_filling() -> None:
    np.testing.assert_array_equal(lax.full((2, 0), 1), np.ones((2, 0)))
    assert lax.full(3, 2.5, "int8").dtype == np.int8
    assert lax.full((), True).dtype == bool
    assert lax.full_like(X, 7).dtype == np.int32
    assert lax.full_like(X, 7, "float16", (2,)).shape == (2,)
    np.testing.assert_array_equal(vf.vmap(lambda v: lax.full((2,), v))(jnp.arange(3)), np.repeat(np.arange(3)[:, None], 2, 1))
    with pytest.raises(ShapeError, match="must be a scalar"):
        lax.full((2,), jnp.ones(2))


def test_shapes() -> None:
    np.testing.assert_array_equal(lax.collapse(X, 1), X.reshape(2, 12))
    np.testing.assert_array_equal(lax.collapse(X, 0, 2), X.reshape(6, 4))
    np.testing.assert_array_equal(lax.collapse(X, -2, None), X.reshape(2, 12))
    np.testing.assert_array_equal(lax.tile(X, (2, 1, 3)), np.tile(X, (2, 1, 3)))
    np.testing.assert_array_equal(lax.broadcast_to_rank(X[0], 4), X[None, None, 0])
    for actual, wanted in zip(lax.split(X, (1, 0, 3), 2), np.split(X, [1, 1], 2), strict=True):
        np.testing.assert_array_equal(actual, wanted)
    with pytest.raises(ShapeError, match="do not add up"):
        lax.split(X, (1, 2), 2)
    with pytest.raises(ShapeError, match="one entry per dimension"):
        lax.tile(X, (2,))
    with pytest.raises(ShapeError, match="are in no order"):
        lax.collapse(X, 2, 1)


@pytest.mark.wide
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_upper_halves_of_products(dtype) -> None:
    info, rng = np.iinfo(dtype), np.random.default_rng(0)
    x = np.concatenate([rng.integers(info.min, info.max, 50, dtype=dtype, endpoint=True), np.array([info.min, info.max, 0, 1], dtype)])
    y = rng.permutation(x)
    wanted = [(int(a) * int(b)) >> info.bits for a, b in zip(x, y, strict=True)]
    for mulhi in (lax.mulhi, vf.jit(lax.mulhi)):
        assert mulhi(x, y).tolist() == wanted
    with pytest.raises(DTypeError, match="takes integers"):
        lax.mulhi(1.0, 2.0)


def test_choices_by_platform() -> None:
    ours = vf.default_backend()
    assert lax.platform_dependent(2, default=lambda x: x, **{ours: lambda x: x + 1}) == 3
    assert vf.jit(lambda x: lax.platform_dependent(x, tpu=lambda x: x, default=lambda x: x + 2))(2) == 4
    with pytest.raises(ArgumentError, match="no function for"):
        lax.platform_dependent(2, tpu=lambda x: x)


def test_composites_run_their_decomposition() -> None:
    scaled = lax.composite(lambda x, *, k: lax.mul(x, k), "test.scaled")
    assert vf.grad(lambda x: scaled(x, k=3.0))(2.0) == 3.0
    with pytest.raises(ArgumentError, match="not empty"):
        lax.composite(lambda x: x, "")


def test_types_of_arguments() -> None:
    assert lax.dtype(1.0) == np.float32 and lax.dtype(X) == np.int32
    assert lax.round(jnp.array([0.5, 1.5]), lax.RoundingMethod.TO_NEAREST_EVEN).tolist() == [0.0, 2.0]
    assert lax.RoundingMethod.AWAY_FROM_ZERO == 0 and lax.RandomAlgorithm.RNG_DEFAULT == 0
    assert lax.ConvDimensionNumbers in lax.ConvGeneralDilatedDimensionNumbers.__args__
    assert lax.Precision in lax.PrecisionLike.__args__ and lax.DotDimensionNumbers.__origin__ is tuple
