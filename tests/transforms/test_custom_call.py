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


def forward_derivatives(ja: Any, xp: Any) -> list[Any]:
    """Return mapped derivatives of functions whose rules are other functions."""
    seen: list[Any] = []

    @ja.custom_batching.custom_vmap
    def f(x: Any, y: Any) -> Any:
        return xp.sin(x) * y

    @f.def_vmap
    def rule(axis_size: int, in_batched: Any, x: Any, y: Any) -> Any:
        seen.append(list(in_batched))
        return xp.cos(x) * y, in_batched[0] or in_batched[1]

    derivative = lambda x, y, t: ja.jvp(f, (x, y), (t, xp.ones_like(y)))
    x, one = X[0], np.float32(2.0)
    return [
        derivative(x, x, x),
        ja.vmap(derivative, (0, None, 0))(x, one, x),
        ja.vmap(derivative, (0, None, None))(x, one, one),
        ja.vmap(derivative, (None, None, 0))(one, one, x),
        ja.jvp(ja.vmap(f), (x, x), (x, x)),
        ja.jit(ja.vmap(derivative, (0, None, 0)))(x, one, x),
        ja.jacfwd(f)(x, x),
        ja.vmap(ja.vmap(derivative, (None, None, 0)), (0, None, None))(x, one, x),
        seen,
    ]


def test_forward_derivatives_when_mapped_are_those_of_the_rule() -> None:
    ours, theirs = forward_derivatives(vf, vf.numpy), forward_derivatives(jax, jnp)
    assert ours.pop() == theirs.pop()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6), ours, theirs)


def test_operands_that_are_mapped_with_and_without_their_tangents() -> None:
    f = vf.custom_batching.custom_vmap(lambda x, y: vf.numpy.sin(x) * y)
    f.def_vmap(lambda size, batched, x, y: (vf.numpy.cos(x) * y, True))
    x = X[0]
    # x with its tangent, y without: the rule is told that both are mapped, since its results would have two axes otherwise
    value, tangent = vf.vmap(lambda x, y, t: vf.jvp(f, (x, y), (t, np.float32(3.0))))(x, x, x)
    np.testing.assert_allclose(value, np.cos(x) * x, rtol=1e-6)
    np.testing.assert_allclose(tangent, -np.sin(x) * x * x + 3 * np.cos(x), rtol=1e-6)
    # a rule whose results are mapped although no operand is
    g = vf.custom_batching.custom_vmap(lambda x: x)
    g.def_vmap(lambda size, batched, x: (vf.numpy.broadcast_to(x**2, (size,)), True))
    value, tangent = vf.vmap(lambda t: vf.jvp(g, (np.float32(3.0),), (t,)))(x)
    np.testing.assert_allclose(value, np.full(3, 9.0))
    np.testing.assert_allclose(tangent, 6 * x, rtol=1e-6)


def test_gradients_are_those_of_the_function() -> None:
    f = vf.custom_batching.custom_vmap(vf.numpy.sin)
    f.def_vmap(lambda size, batched, x: (vf.numpy.cos(x), batched[0]))
    for grad in (vf.grad(f), vf.jit(vf.grad(f)), vf.grad(vf.jit(f)), vf.grad(vf.checkpoint(f))):
        np.testing.assert_allclose(vf.vmap(grad)(X[0]), np.cos(X[0]), rtol=1e-6)
    loop = lambda x: vf.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]
    np.testing.assert_allclose(vf.grad(loop)(0.5), np.cos(np.sin(0.5)) * np.cos(0.5), rtol=1e-6)


def test_rules_of_a_function_that_is_wrapped_twice() -> None:
    f = vf.custom_batching.custom_vmap(vf.custom_jvp(lambda x: 2.0 * x))
    f.def_vmap(lambda size, batched, x: (3.0 * x, batched[0]))
    f.defjvp(lambda primals, tangents: (2.0 * primals[0], 5.0 * tangents[0]))
    assert vf.grad(f)(1.0) == 5.0
    np.testing.assert_array_equal(vf.vmap(f)(X[0]), 3 * X[0])
    assert not hasattr(f, "defvjp") and not hasattr(f, "other")
    g = vf.custom_vjp(vf.custom_batching.custom_vmap(vf.numpy.sin))
    g.defvjp(lambda x: (g(x), None), lambda _, ct: (7.0 * ct,))
    g.def_vmap(lambda size, batched, x: (vf.numpy.cos(x), batched[0]))
    np.testing.assert_allclose(vf.vmap(g)(X[0]), np.cos(X[0]), rtol=1e-6)
    assert vf.grad(g)(1.0) == 7.0


def test_arguments_by_name() -> None:
    f = vf.custom_batching.custom_vmap(lambda x, y=2.0, *, z=None: x * y)
    f.def_vmap(lambda size, batched, x, y: (x * y + 1, batched[0]))
    assert f(y=3.0, x=2.0) == 6.0
    np.testing.assert_array_equal(vf.vmap(lambda x: f(x=x))(X[0]), 2 * X[0] + 1)
    with pytest.raises(ArgumentError, match="'z'"):
        f(1.0, z=1.0)
    with pytest.raises(TypeError, match="'x'"):
        f(y=3.0)


def test_sequential_maps_call_one_by_one() -> None:
    results = []
    for ja, xp in ((vf, vf.numpy), (jax, jnp)):
        host = lambda x, y: np.asarray(x) * y + 1
        f = ja.custom_batching.sequential_vmap(lambda x, y: ja.pure_callback(host, ja.ShapeDtypeStruct(x.shape, x.dtype), x, y))
        results.append(
            [np.asarray(ja.vmap(f, (0, None))(xp.asarray(X), np.float32(3.0))), np.asarray(ja.vmap(f)(xp.asarray(X), xp.asarray(X)))]
        )
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])


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


def test_texts_of_programs_are_the_same_each_time() -> None:
    f = vf.custom_batching.sequential_vmap(lambda x: x + 1)
    mapped, by_hand = vf.make_jaxpr(vf.vmap(f))(X[0]), vf.make_jaxpr(lambda x: vf.lax.map(f, x))(X[0])
    assert str(mapped) == str(by_hand) and "rule=<lambda>" in str(mapped)
    g = vf.custom_jvp(vf.numpy.sin)
    g.defjvps(lambda t, out, x: t)
    assert "rule=sin" in str(vf.make_jaxpr(g)(1.0))
