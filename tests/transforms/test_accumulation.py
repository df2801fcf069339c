"""Cotangents of reads: they are added to the elements that were read, wherever the reads are among other uses of an array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn.compiler.ir.kernel import KernelCall
from volta_fn.compiler.pipeline import lower
from volta_fn.core.jaxpr import ClosedJaxpr, sub_jaxprs
from volta_fn.targets.cpu.target import TARGET

X = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
IDS = np.array([2, 0, 2, 5, 2], np.int32)

#: Functions of an array and the library's (JAX's or this one's) modules `numpy` and `lax`.
READS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "reads alone": lambda x, np, lax: np.sin(x[1]).sum() * x[2, 3] + x[1, 0],
    "rows": lambda x, np, lax: (x[IDS] ** 2).sum() * x[IDS[0] + 1, 1],
    "before another use": lambda x, np, lax: (x[IDS] ** 2).sum() + np.cos(x).sum(),
    "after another use": lambda x, np, lax: np.cos(x).sum() * (x[IDS] ** 3).sum(),
    "between other uses": lambda x, np, lax: np.cos(x).sum() * (x[IDS] ** 3).sum() * np.exp(x * x[2, 2]).sum(),
    "of a value in between": lambda x, np, lax: (y := x * 2, np.sin(y[IDS]).sum() + lax.dynamic_slice(y, (IDS[0], 1), (2, 2)).prod())[1],
    "of an update": lambda x, np, lax: (x.at[IDS[0]].set(x[IDS[1]] * 2)[IDS[1]] * x[IDS[0]]).sum(),
    "beyond the end": lambda x, np, lax: x.at[IDS + 3].get(mode="fill", fill_value=0).sum() * x.at[IDS + 3].get(mode="clip").sum(),
    "in a scan": lambda x, np, lax: lax.scan(lambda s, i: (s * x[i].sum() + x.mean(), x[i] @ x[i - 1]), x[0, 0], IDS)[1].sum(),
    "in a conditional": lambda x, np, lax: lax.cond(x[0, 0] > 0, lambda x: x[IDS[0]].sum(), lambda x: (x * x).sum(), x) * x[1, 1],
    "never used": lambda x, np, lax: lax.scan(lambda s, i: (s + lax.stop_gradient(x[i]).sum(), None), x[0, 0], IDS)[0],
}


def of(library: Any, name: str) -> Callable[[Any], Any]:
    return lambda x: READS[name](x, library.numpy, library.lax)


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("name", READS)
def test_gradients(name: str, jitted: bool) -> None:
    gradient = vf.grad(of(vf, name))
    wanted = jax.jit(jax.grad(of(jax, name)))(X)
    np.testing.assert_allclose((vf.jit(gradient) if jitted else gradient)(X), wanted, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("name", READS)
def test_gradients_of_examples_and_of_gradients(name: str) -> None:
    stack = np.stack([X, X[::-1] * 0.5])
    batched = vf.vmap(vf.grad(of(vf, name)))(stack)
    np.testing.assert_allclose(batched, jax.jit(jax.vmap(jax.grad(of(jax, name))))(stack), rtol=2e-5, atol=1e-5)
    second = lambda grad, f: grad(lambda x: (grad(f)(x) ** 2).sum())
    wanted = jax.jit(second(jax.grad, of(jax, name)))(X)
    np.testing.assert_allclose(vf.jit(second(vf.grad, of(vf, name)))(X), wanted, rtol=1e-4, atol=1e-4)


def additions(program: ClosedJaxpr, shape: tuple[int, ...]) -> int:
    """The sums of arrays of a shape in a program, and in those that it holds."""
    inner = [p for e in program.eqns for p in sub_jaxprs(e.params)]
    return sum(e.primitive.name == "add" and e.outvars[0].aval.shape == shape for e in program.eqns) + sum(
        additions(p, shape) for p in inner
    )


def test_nothing_of_the_array_s_size_is_added() -> None:
    several = lambda x, i: x[i[0], 0] * x[i[1]].sum() + (x[i] ** 2).sum()
    scanned = lambda x, i: vf.lax.scan(lambda s, i: (s * x[i, 0], x[i] * s), 1.0, i)[1].sum()
    for function in (several, scanned):
        assert additions(vf.make_jaxpr(vf.grad(function))(vnp.array(X), IDS), X.shape) == 0


def test_a_cross_entropy_is_made_by_kernels_alone() -> None:
    labels = np.array([0, 3, 1, 2, 2, 0], np.int32)

    def loss(x: Any, labels: Any) -> Any:
        return (vnp.log(vnp.exp(x).sum(1)) - vnp.take_along_axis(x, labels[:, None], 1)[:, 0]).sum()

    wanted = np.exp(X) / np.exp(X).sum(1, keepdims=True) - np.eye(4)[labels]
    np.testing.assert_allclose(vf.grad(loss)(X, labels), wanted, rtol=1e-5, atol=1e-6)
    program = lower(vf.make_jaxpr(vf.grad(loss))(X, labels), TARGET)
    assert all(isinstance(item.node, KernelCall) for item in program.items)
