"""`ravel_pytree`: JAX's vectors, and trees that come back."""

from __future__ import annotations

from typing import Any

import jax.flatten_util
import numpy as np
import pytest

import volta_fn as vf
from volta_fn.errors import DTypeError, ShapeError
from volta_fn.flatten_util import ravel_pytree

TREES: dict[str, Any] = {
    "nothing": {"a": (), "b": None},
    "scalars": [1, 2.5, np.float32(3)],
    "arrays": {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": (np.ones(()), np.zeros((0, 2)))},
    "one dtype": (np.arange(3, dtype=np.int16), np.ones((2, 1), np.int16)),
    "mixed": {"i": np.arange(2, dtype=np.int32), "b": np.array([True]), "c": np.array([1 + 2j], np.complex64), "h": np.float16(0.5)},
}


@pytest.mark.wide
@pytest.mark.parametrize("name", TREES)
def test_vectors_are_jaxs_and_trees_come_back(name: str) -> None:
    arguments = TREES[name]
    vector, unravel = ravel_pytree(arguments)
    with jax.enable_x64(any(getattr(x, "dtype", None) == np.float64 for x in jax.tree.leaves(arguments))):
        wanted = jax.flatten_util.ravel_pytree(arguments)[0]
    assert vector.dtype == wanted.dtype
    np.testing.assert_array_equal(vector, wanted)
    for back in (unravel(vector), vf.jit(unravel)(vector)):
        assert vf.tree.structure(back) == vf.tree.structure(arguments)
        for before, after in zip(vf.tree.leaves(arguments), vf.tree.leaves(back), strict=True):
            assert np.shape(before) == after.shape
            np.testing.assert_array_equal(before, after)


def test_leaves_of_one_dtype_take_any() -> None:
    _, unravel = ravel_pytree({"a": np.ones(2, np.float32)})
    assert unravel(np.ones(2, np.float16))["a"].dtype == np.float16


def test_inverses_of_like_trees_are_equal() -> None:
    first, second, third = (ravel_pytree(x)[1] for x in ([np.ones(2, "f4")], [np.zeros(2, "f4")], [np.ones(3, "f4")]))
    assert first == second
    assert hash(first) == hash(second)
    assert first != third


def test_derivatives_and_batches() -> None:
    point = {"a": np.float32(2.0), "b": np.array([1.0, 3.0], np.float32)}
    vector, unravel = ravel_pytree(point)
    vf.test_util.check_grads(lambda v: unravel(v)["b"] * unravel(v)["a"], (vector,), 2)
    vf.test_util.check_grads(lambda p: ravel_pytree(p)[0] ** 2, (point,), 2)
    rows = vf.vmap(lambda p: ravel_pytree(p)[0])({"a": np.zeros((4,)), "b": np.ones((4, 2))})
    assert rows.shape == (4, 3)


def test_errors() -> None:
    _, unravel = ravel_pytree({"a": np.ones(2, np.float32), "n": np.int32(1)})
    with pytest.raises(ShapeError):
        unravel(np.ones(4, np.float32))
    with pytest.raises(DTypeError):
        unravel(np.ones(3, np.float16))


@pytest.mark.wide
def test_python_floats_keep_their_digits() -> None:
    assert ravel_pytree([0.1, np.ones(1)])[0].tolist() == [0.1, 1.0]
