"""`stop_gradient` and `optimization_barrier` under every transform, and in the programs that are traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn import numpy as jnp
from volta_fn.compiler.ir.kernel import KernelCall
from volta_fn.compiler.pipeline import lower
from volta_fn.compiler.target import Target, TargetCapabilities
from volta_fn.targets.cpu.target import TARGET as CPU
from volta_fn.targets.nvidia.target import NvidiaTarget
from volta_fn.targets.wgsl.target import WgslTarget

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


@pytest.mark.parametrize(
    "target", [CPU, WgslTarget(TargetCapabilities()), NvidiaTarget(TargetCapabilities())], ids=["cpu", "wgsl", "nvidia"]
)
def test_a_barrier_copies_nothing(target: Target) -> None:
    """Two kernels compute what one would without it, and a sum: the values between them stay where they are."""
    program = lower(vf.make_jaxpr(lambda x: lax.optimization_barrier((jnp.sin(x), x))[0] * 2 + x[0])(np.ones(4096, np.float32)), target)
    assert [isinstance(item.node, KernelCall) for item in program.items] == [True, True]


def test_a_barrier_shares_the_memory_of_operands_that_live_on() -> None:
    """Results of a barrier may be outputs beside their operands, and overwritten in place later."""

    def f(x: Any, y: Any) -> Any:
        a = jnp.sin(x)
        b, c = lax.optimization_barrier((a, y))
        return a, b, c.at[1].add(1.0), b.at[0].set(9.0), y

    x, y = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    expected: list[np.ndarray] = [np.sin(x), np.sin(x), np.array([1, 2, 1, 1]), np.array([9, *np.sin(x[1:])]), y]
    for donated in ((), (0, 1)):
        for actual, reference in zip(vf.jit(f, donate_argnums=donated)(jnp.array(x), jnp.array(y)), expected, strict=True):
            np.testing.assert_allclose(actual, reference, rtol=1e-6)


def test_tokens_can_be_passed_on() -> None:
    token = vf.jit(lambda x: lax.after_all(lax.create_token(x), lax.create_token()))(1.0)
    assert token.shape == (0,)
