"""What calls of jitted functions save for their derivatives, and what these compute again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.transforms.call_rules import partial_eval_recomputing

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
W = np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3)


def layers(w: Any, x: Any) -> Any:
    for _ in range(3):
        x = jnp.tanh(x @ w)
    return x


def saved(function: Callable[..., Any], *args: Any) -> list[Any]:
    """Return what the pull-back of a jitted function holds."""
    return vf.tree.leaves(vf.vjp(vf.jit(function), *args)[1])


def test_the_slope_of_tanh_is_not_saved_beside_its_value() -> None:
    # The products need w and their inputs (x and two hidden layers); the slopes follow from those layers and the result.
    assert sorted(leaf.shape for leaf in saved(layers, W, X)) == [(2, 3)] * 4 + [(3, 3)]


@pytest.mark.parametrize(
    "function, count",
    [
        (lambda x: jnp.tanh(x), 1),  # the slope alone, or the value
        (lambda x: jnp.exp(x) * x, 2),
        (lambda x: jnp.sin(x) * 3, 1),  # a cosine, which is not cheap
        (lambda x: x**4 * jnp.tanh(x), 3),
        (lambda x: jnp.tanh(x).sum(), 1),  # the result is no source of a larger value
    ],
)
def test_derivatives_have_the_same_bits(function: Callable[..., Any], count: int) -> None:
    value, pull_back = vf.vjp(vf.jit(function), X)
    plain, expected = vf.vjp(function, jnp.asarray(X))
    assert len(vf.tree.leaves(pull_back)) <= count
    np.testing.assert_array_equal(value, plain)
    np.testing.assert_array_equal(pull_back(jnp.ones_like(value))[0], expected(jnp.ones_like(plain))[0])


def test_the_programs_are_well_formed() -> None:
    closed = vf.make_jaxpr(lambda *args: vf.jvp(layers, args[:2], args[2:]))(W, X, W, X)
    primal, waiting, out_unknown = partial_eval_recomputing(closed, [False, False, True, True])
    assert out_unknown == [False, True]
    vf.check_jaxpr(primal)
    vf.check_jaxpr(waiting)
    assert waiting.in_avals[: len(primal.out_avals) - 1] == primal.out_avals[1:]
    assert [eqn.primitive.name for eqn in primal.eqns].count("sub") == 0


def test_second_derivatives_and_maps() -> None:
    f = vf.jit(lambda x: jnp.tanh(jnp.tanh(x) * x).sum())
    plain = lambda x: jnp.tanh(jnp.tanh(x) * x).sum()  # the same, not jitted
    np.testing.assert_allclose(vf.hessian(f)(X[0]), vf.hessian(plain)(X[0]), rtol=1e-6)
    pulled = vf.vmap(lambda x: vf.vjp(f, x)[1](1.0)[0])(X)
    np.testing.assert_allclose(pulled, vf.vmap(vf.grad(plain))(X), rtol=1e-6)
