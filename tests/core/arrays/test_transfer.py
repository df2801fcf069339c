"""device_put, device_get and block_until_ready on pytrees."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.core.arrays.array import ConcreteArray
from volta_fn.errors import ArgumentTypeError, DTypeError

TREE = {"a": np.arange(3), "b": (1.5, None, [True]), "c": np.float64(2.0)}


def test_there_and_back() -> None:
    put = vf.device_put(TREE, "cpu")
    assert vf.tree.structure(put) == vf.tree.structure(TREE)
    assert all(type(x) is ConcreteArray for x in vf.tree.leaves(put))
    assert put["b"][0].weak_type
    assert vf.device_put(put["a"]) is put["a"]
    back = vf.device_get({**put, "text": "as it is"})
    assert type(back["a"]) is np.ndarray
    assert back["text"] == "as it is"


def test_traced_values_pass_through() -> None:
    assert float(vf.jit(lambda x: vf.device_put(x, "cpu") * 2)(2.0)) == 4.0
    assert float(vf.grad(lambda x: vf.device_put(x) ** 2)(2.0)) == 4.0
    np.testing.assert_array_equal(vf.vmap(vf.device_put)(jnp.arange(3.0)), [0.0, 1.0, 2.0])
    for transform in (vf.jit, vf.grad, vf.vmap):
        x = jnp.float32(2.0) if transform is vf.grad else jnp.ones(2)
        assert np.array_equal(transform(lambda x: vf.device_get({"x": x, "y": np.ones(1)})["x"] ** 2)(x), transform(lambda x: x**2)(x))


def test_block_until_ready_gives_its_argument() -> None:
    tree = {"x": jnp.ones(2), "y": 3, "z": None}
    assert vf.block_until_ready(tree) is tree


def test_what_cannot_be_put() -> None:
    with pytest.raises(ArgumentTypeError, match="expected an array"):
        vf.device_put({"a": "text"})
    with pytest.raises(DTypeError):
        vf.device_put(np.array(["text"]))


def test_the_result_says_which_dtype_it_has() -> None:
    assert repr(vf.device_put(np.ones(2), "cpu")) == "Array([1., 1.], dtype=float64)"
    assert repr(vf.device_put({"w": np.ones(1, np.float32)}, "cpu")) == "{'w': Array([1.], dtype=float32)}"
    assert "NumPy's float64 arrays become float64 arrays" in str(vf.device_put.__doc__)


def test_copies_of_other_objects_begin() -> None:
    called = []

    class Remote:
        def copy_to_host_async(self) -> None:
            called.append(self)

    leaves = [Remote(), 1, jnp.ones(2)]
    assert vf.copy_to_host_async(leaves) is leaves and called == leaves[:1]
