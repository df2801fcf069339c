"""checkpoint: the same values and derivatives, recomputed as the policy says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.narrow_devices import FLOAT
from volta_fn import lax
from volta_fn.core.jaxpr import ClosedJaxpr, sub_jaxprs
from volta_fn.errors import ArgumentTypeError

X = np.array([0.3, -0.7, 1.1], FLOAT)
W = np.array([[0.2, -0.5, 1.0], [1.5, 0.1, -0.3], [0.4, 0.8, -1.2]], FLOAT)
POLICIES = vf.checkpoint_policies


def layer(w: Any, x: Any) -> Any:
    return jnp.tanh(vf.checkpoint_name(jnp.sin(vf.checkpoint_name(w @ x, "product")), "sine"))


def loss(w: Any, x: Any) -> Any:
    return jnp.sum(layer(w, layer(w, x)))


def equations(program: ClosedJaxpr, name: str) -> int:
    """Count a primitive in a program and the programs nested in it."""
    result, pending = 0, [program]
    while pending:
        for eqn in pending.pop().eqns:
            result += eqn.primitive.name == name
            pending += sub_jaxprs(eqn.params)
    return result


TRANSFORMS: list[Any] = [
    lambda f: lambda w, xs: f(w, xs[0]),
    lambda f: lambda w, xs: vf.grad(f, (0, 1))(w, xs[0]),
    lambda f: lambda w, xs: vf.jit(vf.grad(vf.jit(f)))(w, xs[0]),
    lambda f: lambda w, xs: vf.hessian(f, 1)(w, xs[0]),
    lambda f: lambda w, xs: vf.jvp(f, (w, xs[0]), (w, xs[1])),
    lambda f: vf.vmap(vf.grad(f), (None, 0)),
    lambda f: vf.grad(lambda w, xs: jnp.sum(vf.vmap(f, (None, 0))(w, xs))),
    lambda f: vf.grad(lambda w, xs: lax.scan(lambda c, x: (c * f(w, x), None), 1.0, xs)[0]),
    lambda f: vf.jit(vf.grad(lambda w, xs: vf.grad(f, 1)(w, xs[0]).sum())),
]


@pytest.mark.parametrize(
    "policy",
    [
        None,
        POLICIES.everything_saveable,
        POLICIES.nothing_saveable,
        POLICIES.dots_saveable,
        POLICIES.dots_with_no_batch_dims_saveable,
        POLICIES.save_only_these_names("product"),
        POLICIES.save_anything_except_these_names("sine"),
        POLICIES.save_any_names_but_these("sine"),
        POLICIES.save_from_both_policies(POLICIES.dots_saveable, POLICIES.save_only_these_names("sine")),
    ],
)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_derivatives_are_those_without_checkpoint(transform: Any, policy: Any) -> None:
    args = (W, np.stack([X, 2 * X]))
    rounding = float(np.finfo(FLOAT).eps)
    retained = transform(vf.checkpoint(loss, policy=policy))
    for actual, wanted in zip(vf.tree.leaves(retained(*args)), vf.tree.leaves(transform(loss)(*args)), strict=True):
        # Computed again, a value may be rounded otherwise; seen: 1e-14 of float64's, 9e-8 of float32's, some roundings.
        np.testing.assert_allclose(actual, wanted, rtol=5000 * rounding, atol=50 * rounding)
    vf.check_jaxpr(vf.make_jaxpr(retained)(*args))


def test_gradient_in_a_scan_is_jax_s() -> None:
    jax = pytest.importorskip("jax")

    def gradient(api: Any, np_: Any, lax_: Any) -> Any:
        body = api.checkpoint(lambda c, w: (np_.tanh(np_.sin(w @ c)), np_.sum(c)), prevent_cse=False)
        f = lambda x, ws: np_.sum(lax_.scan(body, x, ws)[0]) + np_.sum(lax_.scan(body, x, ws)[1])
        return api.jit(api.grad(f, (0, 1)))(X.astype("float32"), np.stack([W, -W]).astype("float32"))

    for ours, theirs in zip(gradient(vf, jnp, lax), gradient(jax, jax.numpy, jax.lax), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("policy", "sines", "products"),
    [
        (None, 2, 2),
        (POLICIES.nothing_saveable, 2, 2),
        (POLICIES.save_only_these_names("product"), 2, 1),
        (POLICIES.dots_saveable, 2, 1),
        (POLICIES.everything_saveable, 1, 1),
    ],
)
def test_what_is_computed_again(policy: Any, sines: int, products: int) -> None:
    """Count sines and products in the program of value and gradient of tanh(sin(w x))."""
    f = vf.checkpoint(lambda x: jnp.sum(layer(W, x)), policy=policy)
    program = vf.make_jaxpr(vf.value_and_grad(f))(X)
    assert equations(program, "sin") == sines
    assert equations(program, "dot_general") == products + 1  # one more for the cotangent


def test_recomputation_is_protected_from_merging_only_if_asked() -> None:
    for prevent in (True, False):
        program = vf.make_jaxpr(vf.grad(vf.checkpoint(lambda x: jnp.sum(jnp.sin(jnp.sin(x))), prevent_cse=prevent)))(X)
        assert (equations(program, "optimization_barrier") > 0) is prevent


def test_effects_happen_once() -> None:
    seen: list[float] = []

    def noisy(x: Any) -> Any:
        vf.debug.callback(lambda v: seen.append(float(v)), x)
        return jnp.sin(jnp.sin(x))

    vf.grad(vf.checkpoint(noisy))(1.0)
    assert seen == [1.0]
    vf.jit(vf.grad(vf.checkpoint(noisy)))(2.0)
    assert seen == [1.0, 2.0]


@pytest.mark.parametrize(
    "loop",
    [
        lambda step, x: lax.scan(lambda c, _: (step(c), None), x, None, length=2)[0],
        lambda step, x: lax.cond(x > 0, lambda x: step(step(x)), lambda x: x, x),
        lambda step, x: vf.checkpoint(lambda x: step(step(x)))(x),
    ],
)
def test_effects_in_control_flow_happen_once(loop: Any) -> None:
    seen: list[float] = []

    def step(x: Any) -> Any:
        vf.debug.callback(lambda v: seen.append(float(v)), x)
        return 2 * x

    gradient = vf.grad(vf.checkpoint(lambda x: jnp.sin(loop(step, x))))
    for transform in (gradient, vf.jit(gradient)):
        seen.clear()
        assert abs(float(transform(1.0)) - 4 * np.cos(4.0)) < 1e-6
        assert seen == [1.0, 2.0]


def test_static_arguments_keywords_and_trees() -> None:
    f = vf.checkpoint(lambda n, p, scale=1.0: p["x"] ** n * scale, static_argnums=(0,))
    assert float(vf.grad(lambda x: f(3, {"x": x}, scale=2.0))(2.0)) == 24.0
    assert float(vf.grad(lambda x: f(2, {"x": x}, scale=2.0))(2.0)) == 8.0
    times = vf.checkpoint(lambda x, factors: x * factors[0], static_argnums=1)
    values = [np.asarray(vf.value_and_grad(times)(1.0, (factor,))[0]) for factor in (0.0, -0.0, 0)]
    assert [bool(np.signbit(v)) for v in values] == [False, True, False]
    assert float(vf.grad(lambda s: f(2, {"x": 3.0}, scale=s))(2.0)) == 9.0
    assert float(f(2, {"x": 3.0})) == 9.0
    last = vf.checkpoint(lambda x, n: x**n, static_argnums=-1)
    assert float(vf.grad(last)(2.0, 3)) == 12.0
    assert vf.remat is vf.checkpoint
    with pytest.raises(ArgumentTypeError, match="checkpoint transforms a function"):
        vf.checkpoint(3)


def test_closed_over_tracers_are_differentiated() -> None:
    f = lambda w: vf.checkpoint(lambda x: jnp.sin(w * x))(2.0)
    assert float(vf.grad(f)(1.5)) == pytest.approx(2 * np.cos(3.0), rel=1e-6)
    np.testing.assert_allclose(vf.vmap(vf.grad(f))(jnp.array([1.5, 0.5])), 2 * np.cos([3.0, 1.0]), rtol=1e-6)
    assert float(vf.jit(vf.grad(f))(1.5)) == pytest.approx(2 * np.cos(3.0), rel=1e-6)


def test_the_function_is_traced_once_per_type() -> None:
    traces: list[Any] = []

    def f(x: Any) -> Any:
        traces.append(x.shape)
        return jnp.sum(jnp.sin(x))

    gradient = vf.grad(vf.checkpoint(f))
    for shape in ((2,), (2,), (3,), (2,)):
        gradient(jnp.ones(shape))
    assert traces == [(2,), (3,)]


def test_the_forward_pass_calls_the_function_rather_than_a_rule_that_saves() -> None:
    # The function and the rule differ here, so that results tell which was called.
    def function_of(optimize_remat: bool) -> Any:
        f = vf.custom_vjp(jnp.tan)
        f.defvjp(lambda x: (jnp.sin(x), (x, jnp.exp(x))), lambda saved, g: (jnp.cos(saved[0]) * g,), optimize_remat=optimize_remat)
        return f

    x = np.float32(0.7)
    for optimize_remat, wrap, expected in (
        (True, vf.checkpoint, np.tan(x)),
        (True, lambda f: vf.checkpoint(vf.jit(f)), np.tan(x)),
        (True, lambda f: f, np.sin(x)),
        (False, vf.checkpoint, np.sin(x)),
    ):
        f = wrap(function_of(optimize_remat))
        for transform in (lambda g: g, vf.jit, lambda g: lambda x: [r[0] for r in vf.vmap(g)(x[None])]):
            value, gradient = transform(vf.value_and_grad(f))(jnp.asarray(x))
            np.testing.assert_allclose(value, expected, rtol=1e-6)
            np.testing.assert_allclose(gradient, np.cos(x), rtol=1e-6)
    # Nor does it compute residuals.
    program = vf.make_jaxpr(lambda x: vf.vjp(vf.checkpoint(function_of(True)), x)[0])(x)
    assert "tan" in str(program)
    assert "exp" not in str(program)
