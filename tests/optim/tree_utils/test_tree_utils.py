"""Arithmetic on trees against Optax, and look-up and replacement in states."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import optim, tree
from volta_fn.errors import ArgumentError, DTypeError, TreeError
from volta_fn.optim import tree_utils

RNG = np.random.default_rng(0)
A = {"w": RNG.normal(size=(2, 3)).astype("float32"), "b": [RNG.normal(size=3).astype("float32"), None]}
B = {"w": RNG.normal(size=(2, 3)).astype("float32"), "b": [RNG.normal(size=3).astype("float32"), None]}
Z = {"z": np.array([3 + 4j, 1j], "complex64")}

CALLS: dict[str, list[tuple[Any, ...]]] = {
    "add": [(A, B), (A, B, A)],
    "sub": [(A, B)],
    "mul": [(A, B)],
    "div": [(A, B)],
    "scale": [(2.5, A)],
    "add_scale": [(A, 2.5, B)],
    "where": [(True, A, B), (False, A, B)],
    "clip": [(A, -0.5, 0.5), (A, None, 0.1)],
    "conj": [(Z,)],
    "real": [(Z,), (A,)],
    "vdot": [(A, B), (Z, Z)],
    "sum": [(A,), (A, True), ({},)],
    "max": [(A,), ({},), ({"e": np.zeros(0, "float32"), **A},)],
    "min": [(A,), ({},)],
    "norm": [(A,), (A, 1), (A, math.inf), (A, "inf"), (A, 2, True), (A, 1, True), (Z,), (Z, "infinity"), ({},)],
    "allclose": [(A, A), (A, B), ({}, {})],
    "batch_shape": [(A, (2, 1)), (A,)],
    "cast": [(A, "float16"), (A, None)],
    "cast_like": [(A, tree.map(lambda x: x.astype("float16"), A))],
    "zeros_like": [(A,), (A, "int32")],
    "ones_like": [(A,)],
    "full_like": [(A, 0.5), (A, 2, "int32")],
    "size": [(A,), ({},)],
    "dtype": [(A,), ({"a": np.ones(1, "float16"), **A}, "lowest"), ({"a": np.ones(1, "float16"), **A}, "highest"), (Z, "promote")],
    "update_moment": [(A, B, 0.9, 2)],
    "update_moment_per_elem_norm": [(A, B, 0.9, 2)],
    "update_infinity_moment": [(A, B, 0.9, 0.1)],
    "bias_correction": [(A, 0.9, 3)],
}
ELSEWHERE = {"get", "get_all_with_path", "map_params", "random_like", "set", "split_key_like", "unwrap_random_key_data"}


@pytest.mark.parametrize("name", CALLS)
def test_agrees_with_optax(name):
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    to_jax = lambda x: jax.tree.map(jax.numpy.asarray, x) if isinstance(x, dict) or (name == "bias_correction" and x == 3) else x
    for arguments in CALLS[name]:
        theirs = getattr(optax.tree, name)(*map(to_jax, arguments))
        for module, prefix in ((optim.tree, ""), (tree_utils, "tree_")):
            ours = getattr(module, prefix + name)(*arguments)
            assert len(tree.leaves(ours)) == len(jax.tree.leaves(theirs))
            for a, b in zip(tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
                if isinstance(b, np.dtype):
                    assert a == b
                    continue
                np.testing.assert_allclose(a, b, rtol=1e-6)
                assert not hasattr(a, "dtype") or name == "sum" or a.dtype == b.dtype


def test_every_function_has_a_row():
    public = {name for name in dir(optim.tree) if not name.startswith("_")}
    assert public == {*CALLS, *ELSEWHERE}
    assert {f"tree_{name}" for name in public} <= set(dir(tree_utils))


def test_random_trees():
    """The same keys give Optax's numbers."""
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    with jax.threefry_partitionable(True):
        theirs = optax.tree.random_like(jax.random.key(3), jax.tree.map(jax.numpy.asarray, A))
    ours = optim.tree.random_like(vf.random.key(3), A)
    for a, b in zip(tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    half = optim.tree.random_like(vf.random.key(3), A, vf.random.uniform, "float16")
    assert {x.dtype.name for x in tree.leaves(half)} == {"float16"}
    keys = optim.tree.split_key_like(vf.random.key(3), A)
    data = optim.tree.unwrap_random_key_data({"keys": keys, "other": vf.numpy.ones(1)})
    assert [x.shape for x in tree.leaves(data)] == [(2,), (2,), (1,)]


def test_dtypes_that_differ():
    mixed = {"a": np.ones(1, "int32"), "b": np.ones(1, "uint32")}
    with pytest.raises(DTypeError, match="int32"):
        optim.tree.dtype(mixed)
    with pytest.raises(DTypeError, match="promote"):
        optim.tree.dtype(mixed, "lowest")
    with pytest.raises(ArgumentError):
        optim.tree.dtype(mixed, "middle")
    with pytest.raises(ArgumentError):
        optim.tree.norm(A, ord=3)
    with pytest.raises(TreeError):
        optim.tree.add(A, Z)


def state_of(library: Any, numpy: Any) -> Any:
    """Return a state with names at several depths, in tuples, dicts and lists."""
    optimizer = library.chain(library.inject_hyperparams(library.sgd)(0.1, momentum=0.9), library.adam(0.1), library.ema(0.9))
    return optimizer.init({"w": numpy.zeros(2), "list": [numpy.zeros(1)]})


@pytest.mark.parametrize("key", ["count", "learning_rate", "mu", "ScaleByAdamState", "trace", "w", "nothing"])
def test_names_are_found_where_optax_finds_them(key):
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    ours = optim.tree.get_all_with_path(state_of(optim, vf.numpy), key)
    theirs = optax.tree.get_all_with_path(state_of(optax, jax.numpy), key)
    results = [tree.keystr(path, simple=True).replace("InjectHyper", "InjectStatefulHyper") for path, _ in ours]
    assert sorted(results) == sorted(jax.tree_util.keystr(path, simple=True) for path, _ in theirs)


def test_values_are_read_and_replaced():
    state = state_of(optim, vf.numpy)
    assert float(optim.tree.get(state, "learning_rate")) == pytest.approx(0.1)
    assert optim.tree.get(state, "nothing", default=5) == 5
    with pytest.raises(ArgumentError, match="filtering"):
        optim.tree.get(state, "count")
    of_adam = lambda path, value: "ScaleByAdamState" in tree.keystr(path)
    assert int(optim.tree.get(state, "count", filtering=of_adam)) == 0
    changed = optim.tree.set(state, of_adam, count=7)
    assert [int(v) for _, v in optim.tree.get_all_with_path(changed, "count")].count(7) == 1
    assert tree.structure(changed) == tree.structure(state)
    both = optim.tree.set(state, learning_rate=1.0, mu={"w": 1.0, "list": [2.0]})
    assert optim.tree.get(both, "learning_rate") == 1.0 and optim.tree.get(both, "mu") == {"w": 1.0, "list": [2.0]}
    for arguments in ((state,), (state, lambda path, value: False)):
        with pytest.raises(ArgumentError):
            optim.tree.set(*arguments, nothing=1)


def test_what_belongs_to_parameters_is_mapped():
    params = {"w": vf.numpy.ones(2), "b": vf.numpy.ones(())}
    optimizer = optim.chain(optim.masked(optim.adam(0.1), lambda p: tree.map(lambda _: True, p)), optim.trace(0.9))
    state = optim.adam(0.1).init(params)
    shifted = optim.tree.map_params(optim.adam(0.1), lambda leaf, p: leaf + p, state, params, transform_non_params=lambda x: x - 1)
    assert int(shifted[0].count) == -1
    np.testing.assert_array_equal(shifted[0].nu["w"], [1.0, 1.0])
    doubled = optim.tree.map_params(optimizer.init, lambda leaf: leaf + 2, optimizer.init(params))
    assert all(float(vf.numpy.min(leaf)) == 2.0 for leaf in tree.leaves(doubled[1]))
