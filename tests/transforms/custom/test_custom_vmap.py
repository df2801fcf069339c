"""`custom_vmap` and `sequential_vmap`: the rules are called as JAX calls them."""

from __future__ import annotations

from typing import Any

import jax
import jax.custom_batching
import jax.numpy as jnp
import numpy as np
import pytest

import volta_fn as vf
from volta_fn.errors import ArgumentError, TreeError

X = np.linspace(-1.0, 1.0, 6, dtype=np.float32).reshape(2, 3)


def results(ja: Any, xp: Any) -> list[Any]:
    """Return values of a function with a rule, and the rule's arguments."""
    calls: list[Any] = []

    @ja.custom_batching.custom_vmap
    def f(x: Any, tree: Any) -> Any:
        return {"sum": xp.sin(x) * tree["y"], "y": tree["y"]}

    @f.def_vmap
    def rule(axis_size: int, in_batched: Any, x: Any, tree: Any) -> Any:
        calls.append([axis_size, list(in_batched), x.shape, tree["y"].shape])
        y = tree["y"].reshape(-1, *[1] * (x.ndim - 1)) if in_batched[1]["y"] else tree["y"]
        return {"sum": xp.cos(x) * y, "y": tree["y"]}, {"sum": True, "y": in_batched[1]["y"]}

    one = np.float32(2.0)
    return [
        f(X, {"y": one}),
        ja.vmap(f, (0, None))(X, {"y": one}),
        ja.vmap(f, (1, 0))(X, {"y": X[0]}),
        ja.jit(ja.vmap(ja.vmap(f, (0, None)), (0, None)))(X, {"y": one}),
        ja.grad(lambda x: ja.vmap(f, (0, None))(x, {"y": one})["sum"].sum())(X[0]),
        ja.jvp(lambda x: ja.jit(f)(x, {"y": one})["sum"], (X,), (X,))[1],
        calls,
    ]


def test_rules_are_called_as_by_jax() -> None:
    ours, theirs = results(vf, vf.numpy), results(jax, jnp)
    assert ours.pop() == theirs.pop()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6), ours, theirs)


def test_sequential_maps_call_one_by_one() -> None:
    found = []
    for ja, xp in ((vf, vf.numpy), (jax, jnp)):
        host = lambda x, y: np.asarray(x) * y + 1
        f = ja.custom_batching.sequential_vmap(lambda x, y: ja.pure_callback(host, ja.ShapeDtypeStruct(x.shape, x.dtype), x, y))
        found.append(
            [np.asarray(ja.vmap(f, (0, None))(xp.asarray(X), np.float32(3.0))), np.asarray(ja.vmap(f)(xp.asarray(X), xp.asarray(X)))]
        )
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_unfit_rules_raise() -> None:
    f = vf.custom_batching.custom_vmap(lambda x: x)
    with pytest.raises(ArgumentError, match="def_vmap"):
        f(1.0)
    f.def_vmap(lambda size, batched, x: x)
    with pytest.raises(TreeError, match=r"\(out, out_batched\)"):
        vf.vmap(f)(X)
    f.def_vmap(lambda size, batched, x: ((x, x), True))
    with pytest.raises(TreeError, match="structure"):
        vf.vmap(f)(X)
    f.def_vmap(lambda size, batched, x: (x, True))
    closing = lambda y: vf.custom_batching.custom_vmap(lambda x: x * y)
    with pytest.raises(ArgumentError, match="close over"):
        vf.grad(lambda y: (g := closing(y), g.def_vmap(lambda *_: None), g(1.0))[-1])(2.0)
