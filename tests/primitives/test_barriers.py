"""`stop_gradient` and `optimization_barrier` under every transform, and in the programs that are traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn import numpy as jnp

X = np.array([0.3, 1.7, -2.0])


@pytest.mark.wide
def test_stop_gradient_is_a_constant_to_differentiation() -> None:
    def f(x: Any) -> Any:
        return x * lax.stop_gradient(jnp.sin(x))

    for slope in (vf.vmap(vf.grad(f)), vf.jit(vf.vmap(vf.grad(f)))):
        np.testing.assert_allclose(slope(X), np.sin(X), rtol=1e-15)  # sines of one library differ from another's in the last bit
    assert vf.grad(vf.grad(f))(X[0]) == 0
    np.testing.assert_array_equal(vf.jvp(lax.stop_gradient, (X,), (X,))[1], np.zeros(3))


@pytest.mark.wide
def test_stop_gradient_of_trees_and_integers() -> None:
    stopped = lax.stop_gradient({"weights": jnp.asarray(X), "steps": 3, "none": None})
    assert stopped["none"] is None and int(stopped["steps"]) == 3
    slope = vf.grad(lambda tree: (lax.stop_gradient(tree)["a"] * tree["b"]).sum())({"a": jnp.asarray(X), "b": jnp.asarray(X)})
    np.testing.assert_array_equal(slope["a"], np.zeros(3))
    np.testing.assert_array_equal(slope["b"], X)


@pytest.mark.wide
def test_the_straight_through_trick() -> None:
    """A rounding whose derivative is that of the identity: the textbook use."""

    def rounded(x: Any) -> Any:
        return x + lax.stop_gradient(jnp.round(x) - x)

    np.testing.assert_array_equal(rounded(X), np.round(X))
    np.testing.assert_array_equal(vf.vmap(vf.grad(rounded))(X), np.ones(3))


@pytest.mark.wide
@pytest.mark.parametrize("wrap", [lambda f: f, vf.jit, vf.checkpoint])
def test_optimization_barrier_passes_values_and_derivatives(wrap: Any) -> None:
    def f(x: Any) -> Any:
        first, second, count = lax.optimization_barrier((jnp.sin(x), x * 2, 3))
        return first * second * count

    def plain(x: Any) -> Any:
        return jnp.sin(x) * (x * 2) * 3

    for transform in (lambda g: g, vf.grad, lambda g: vf.grad(vf.grad(g)), lambda g: lambda x: vf.jvp(g, (x,), (x,))[1]):
        np.testing.assert_allclose(transform(wrap(f))(0.7), transform(plain)(0.7), rtol=1e-6)
        np.testing.assert_allclose(vf.vmap(transform(wrap(f)))(X), vf.vmap(transform(plain))(X), rtol=1e-14)


def test_a_barrier_holds_together_what_goes_through_it() -> None:
    """It is one equation, so nothing that uses a part can come before another part is computed."""
    program = vf.make_jaxpr(lambda x: lax.optimization_barrier((x + 1, x + 2))[0])(1.0)
    (barrier,) = [e for e in program.eqns if e.primitive.name == "optimization_barrier"]
    assert len(barrier.invars) == len(barrier.outvars) == 2
    assert lax.optimization_barrier(()) == ()


def test_tokens_can_be_passed_on() -> None:
    token = vf.jit(lambda x: lax.after_all(lax.create_token(x), lax.create_token()))(1.0)
    assert token.shape == (0,)
