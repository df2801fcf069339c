"""Arrays of random keys in functions that move elements: the same keys as JAX's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.jax as vjax
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.staging import eval_jaxpr
from volta_fn.errors import ArgumentTypeError, DTypeError
from volta_fn.extend.interpreters import PartialVal, trace_to_jaxpr_dynamic, trace_to_jaxpr_nounits
from volta_fn.extend.linear_util import wrap_init

#: Calls with a namespace like jax, a key, and four keys.
CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "stack": lambda ja, k, ks: ja.numpy.stack([ks, ks], axis=1),
    "stack under jit": lambda ja, k, ks: ja.jit(lambda key: ja.numpy.stack([key, key]))(k),
    "stack under vmap": lambda ja, k, ks: ja.vmap(lambda key: ja.numpy.stack([key, k]))(ks),
    "astype": lambda ja, k, ks: ja.numpy.astype(ks, k.dtype),
    "astype under jit": lambda ja, k, ks: ja.jit(lambda key: ja.numpy.astype(key, key.dtype))(ks),
    "convert_element_type": lambda ja, k, ks: ja.lax.convert_element_type(ks, k.dtype),
    "stack in a tree": lambda ja, k, ks: ja.tree.map(lambda x: ja.numpy.stack([x, x]), {"key": k})["key"],
    "concatenate": lambda ja, k, ks: ja.numpy.concatenate([ks, ks[:1]]),
    "vstack": lambda ja, k, ks: ja.numpy.vstack([ks, ks]),
    "broadcast_to": lambda ja, k, ks: ja.numpy.broadcast_to(ks, (2, 4)),
    "broadcast_arrays": lambda ja, k, ks: ja.numpy.broadcast_arrays(ks, k)[1],
    "array": lambda ja, k, ks: ja.numpy.array([k, ks[1]]),
    "full": lambda ja, k, ks: ja.numpy.full((3,), k),
    "full of a dtype": lambda ja, k, ks: ja.numpy.full((3,), k, k.dtype),
    "zeros of a dtype": lambda ja, k, ks: ja.numpy.zeros((3,), k.dtype),
    "lax.full": lambda ja, k, ks: ja.lax.full((3,), k, k.dtype),
    "initializer": lambda ja, k, ks: ja.nn.initializers.constant(k)(None, (3,), k.dtype),
    "zeros_like": lambda ja, k, ks: ja.numpy.zeros_like(ks),
    "where": lambda ja, k, ks: ja.numpy.where(np.array([True, False, True, False]), ks, k),
    "take": lambda ja, k, ks: ja.numpy.take(ks, np.array([2, 0]), axis=0),
    "roll": lambda ja, k, ks: ja.numpy.roll(ks, 1),
    "flip": lambda ja, k, ks: ja.numpy.flip(ks),
    "tile": lambda ja, k, ks: ja.numpy.tile(ks, 2),
    "repeat": lambda ja, k, ks: ja.numpy.repeat(ks, 2),
    "split": lambda ja, k, ks: ja.numpy.split(ks, 2)[1],
    "transpose": lambda ja, k, ks: ja.numpy.transpose(ja.numpy.reshape(ks, (2, 2))),
    "nan_to_num": lambda ja, k, ks: ja.numpy.nan_to_num(ks),
    "lax.select": lambda ja, k, ks: ja.lax.select(True, k, ks[0]),
    "lax.dynamic_index_in_dim": lambda ja, k, ks: ja.lax.dynamic_index_in_dim(ks, 1, keepdims=False),
    "lax.dynamic_update_index_in_dim": lambda ja, k, ks: ja.lax.dynamic_update_index_in_dim(ks, k, 1, 0),
    "lax.concatenate": lambda ja, k, ks: ja.lax.concatenate([ks, ks], 0),
    "T": lambda ja, k, ks: ks.reshape(2, 2).T,
    "method transpose": lambda ja, k, ks: ks.reshape(1, 2, 2).transpose(-1, 0, 1),
    "method squeeze": lambda ja, k, ks: ks.reshape(1, 4, 1).squeeze(-1),
    "method squeeze of all": lambda ja, k, ks: ks.reshape(1, 4, 1).squeeze(),
    "copy": lambda ja, k, ks: ks.copy(),
    "at set": lambda ja, k, ks: ks.at[1:3].set(k),
    "at get": lambda ja, k, ks: ks.at[..., 1].get(),
    "mask": lambda ja, k, ks: ks[np.array([True, False, True, False])],
}  # fmt: skip


def result(ja: Any, name: str) -> tuple[Any, Any, str]:
    """Return the shape, the words and the dtype of a call's result."""
    key = ja.random.key(7)
    keys = CALLS[name](ja, key, ja.random.split(key, 4))
    assert isinstance(keys, ja.Array)
    return keys.shape, np.asarray(ja.random.key_data(keys)).tolist(), str(keys.dtype)


@pytest.mark.parametrize("name", CALLS)
def test_keys_move_as_in_jax(name: str) -> None:
    assert result(vjax, name) == result(jax, name)


@pytest.mark.parametrize("name", ["allclose", "array_equal", "equal", "isclose", "not_equal"])
def test_keys_compare_as_in_jax(name: str) -> None:
    def result(ja: Any) -> list[Any]:
        compare, keys = getattr(ja.numpy, name), ja.random.split(ja.random.key(0), 3)
        pairs = [(keys, keys), (keys, keys[0]), (keys, keys[::-1]), (keys[1], keys[1])]
        return [np.asarray(x).tolist() for f in (compare, ja.jit(compare)) for pair in pairs for x in [f(*pair)]]

    assert result(vjax) == result(jax)
    assert getattr(vjax.numpy, name)(1.0, 1.0) == (name != "not_equal")


def test_facts_of_keys() -> None:
    for ja in (vjax, jax):
        keys = ja.random.split(ja.random.key(0), 3)
        assert (keys.nbytes, len(keys.devices()), len(keys.sharding.device_set)) == (24, 1, 1)


def test_keys_are_no_numbers() -> None:
    key = vf.random.key(0)
    for wrong in (vjax.numpy.sin, vjax.numpy.sum, np.asarray, lambda k: k.reshape(1).at[0].set(1)):
        with pytest.raises(ArgumentTypeError, match="key"):
            wrong(key)
    with pytest.raises(ArgumentTypeError, match="expected an array"):
        vjax.numpy.stack(["a"])
    other = vf.random.key(0, impl="rbg").dtype
    for convert in (vjax.numpy.astype, vjax.lax.convert_element_type):
        for x, dtype in ((key, np.float32), (np.ones(2, np.uint32), key.dtype), (key, other)):
            with pytest.raises(DTypeError, match="cannot convert"):
                convert(x, dtype)


def test_reshaped_numpy_arrays_stay_known_while_a_function_is_traced() -> None:
    for ja in (vjax, jax):
        sizes: list[int] = []

        def sizes_of(x: Any, ja: Any = ja, sizes: list[int] = sizes) -> Any:
            mask = ja.numpy.reshape(np.array([True, False, True]), (3, 1))
            sizes.append(int(mask.sum()))
            return ja.numpy.reshape(x, (-1,), order="F") * sizes[0]

        assert ja.jit(sizes_of)(np.array([[1, 2], [3, 4]])).tolist() == [2, 6, 4, 8] and sizes == [2]


def test_keys_are_described_by_their_dtype() -> None:
    keys = vf.random.split(vf.random.key(0), 2)
    described = vjax.ShapeDtypeStruct(keys.shape, keys.dtype)
    assert (described.shape, described.dtype) == ((2,), keys.dtype) and "key<fry>" in repr(described)
    assert vjax.eval_shape(lambda k: k, described).dtype == keys.dtype


def test_flat_programs_take_types_of_keys() -> None:
    """The steps by which libraries trace flat functions take keys by their type, and give the types of keys."""
    keys = vf.random.split(vf.random.key(0), 2)
    types = [ShapedArray((), keys.dtype), ShapedArray((), np.dtype("float32"))]  # type: ignore[arg-type]  # the dtype of keys
    function = wrap_init(lambda key, x: [vf.random.fold_in(key, 3), x + 1, vf.random.normal(key)])
    known, unknown = PartialVal.known, PartialVal.unknown
    jaxpr, values, _ = trace_to_jaxpr_nounits(function, [unknown(types[0]), known(vf.numpy.float32(1))])
    assert [v.is_known() for v in values] == [False, True, False] and values[0].get_aval() == types[0] and values[1].get_known() == 2
    assert jaxpr.in_avals == [ShapedArray((2,), np.dtype("uint32"))]
    jaxpr, values, _ = trace_to_jaxpr_nounits(function, [known(keys[0]), unknown(types[1])])
    assert values[0].get_known() == vf.random.fold_in(keys[0], 3) and len(jaxpr.invars) == 1
    jaxpr, avals, _ = trace_to_jaxpr_dynamic(function, types)
    assert [a.shape for a in avals] == [(2,), (), ()]
    folded, y, z = eval_jaxpr(ClosedJaxpr(jaxpr), vf.random.key_data(keys[1]), vf.numpy.float32(2))
    assert (folded == vf.random.key_data(vf.random.fold_in(keys[1], 3))).all() and y == 3 and z == vf.random.normal(keys[1])
