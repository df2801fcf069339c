"""Products leave scans where the steps do not wait for them, and give the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.compiler.passes.common import names
from volta_fn import lax
from volta_fn import numpy as jnp
from volta_fn.compiler.passes.loops import move_products_out
from volta_fn.compiler.pipeline import optimize, simplify
from volta_fn.core.arrays.array import as_value
from volta_fn.core.staging import eval_jaxpr

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 3, 4)).astype(np.float32)
W = RNG.standard_normal((4, 4)).astype(np.float32) / 2
H = RNG.standard_normal((3, 4)).astype(np.float32)


def divided(function: Callable[..., Any], *args: Any) -> list[list[str]]:
    """Return the primitives of a function's program and of each scan in it, after a check that the values are unchanged."""
    before = vf.make_jaxpr(function)(*args)
    after = optimize(before)
    assert optimize(before) is after is optimize(after)
    vf.check_jaxpr(after)
    vf.check_jaxpr(move_products_out(simplify(before)))
    values = [as_value(x) for x in vf.tree.leaves(args)]
    for actual, expected in zip(eval_jaxpr(after, *values), eval_jaxpr(before, *values), strict=True):
        assert actual.dtype == expected.dtype
        tolerance = 1e-5 if actual.dtype.itemsize > 2 else 2e-2
        np.testing.assert_allclose(np.asarray(actual, np.float64), np.asarray(expected, np.float64), tolerance, tolerance)
    assert all(e.source is not None for e in after.eqns)
    return [names(after), *[names(e.params["jaxpr"]) for e in after.eqns if e.primitive.name == "scan"]]


def stays(function: Callable[..., Any], *args: Any) -> None:
    """Fail unless the program is only simplified."""
    simplified = simplify(vf.make_jaxpr(function)(*args))
    assert optimize(simplified) is simplified


def network(w: Any, u: Any, b: Any, x: Any, h: Any) -> Any:
    return lax.scan(lambda h, x: (lambda h: (h, h))(jnp.tanh(x @ w + h @ u + b)), h, x)


def test_products_of_rows_go_before_the_loop() -> None:
    around, inside = divided(network, W, W.T, H[0], X, H)
    assert around == ["dot_general", "scan"]
    assert inside.count("dot_general") == 1


def test_with_what_they_need() -> None:
    """One product feeds another, through cheap operations, and one row is used for two products."""

    def run(w: Any, x: Any, mask: Any, h: Any) -> Any:
        def step(h: Any, row: Any) -> Any:
            x, keep = row
            x = jnp.where(keep, x * 2, 0)
            return jnp.tanh(h @ w + jnp.maximum(x @ w, 0) @ w) + w @ x, None

        return lax.scan(step, h, (x, mask), reverse=True)[0]

    around, inside = divided(run, W, np.concatenate([X, X[:, :1]], 1), RNG.random((5, 4, 1)) > 0.5, np.eye(4, dtype=np.float32))
    assert around.count("dot_general") == 3
    assert inside.count("dot_general") == 1
    whole = np.array([[1, 2], [3, 4]], np.int32)
    divided(lambda w, x: lax.scan(lambda c, r: (c + r @ w, None), x[0], x)[0], whole, np.stack([whole] * 3))


def test_products_of_the_carry_stay_and_so_do_large_ones() -> None:
    stays(lambda w, x: lax.scan(lambda h, x: (h @ w + x, None), x[0], x)[0], W, X)
    wide = lambda rows: vf.ShapeDtypeStruct((3, rows, 4), "float32")
    run = lambda w, x: lax.scan(lambda h, x: (jnp.tanh(h + x @ w), None), x[0], x)[0]
    stays(run, W, wide(512))
    assert names(optimize(vf.make_jaxpr(run)(W, wide(511)))).count("dot_general") == 1
    stays(run, W, X[:1])


def test_memory_is_bounded() -> None:
    """Rows of a few numbers, products of many."""

    def run(w: Any, x: Any) -> Any:
        return lax.scan(lambda h, x: (jnp.tanh(h + x @ w), None), jnp.zeros((32, 1024)), x)[0]

    few, many = ([vf.ShapeDtypeStruct((2, 1024), "float32"), vf.ShapeDtypeStruct((n, 32, 2), "float32")] for n in (100, 1000))
    assert names(optimize(vf.make_jaxpr(run)(*few)))[-2:] == ["dot_general", "scan"]
    stays(run, *many)


def test_products_for_outputs_go_behind_the_loop() -> None:
    """With what depends on them; but not those that an effect or something else in the loop waits for."""

    def run(w: Any, b: Any, x: Any, told: Any = lambda v: None) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = jnp.tanh(h + x)
            y = h @ w + b
            told(y)
            return h, (jnp.exp(y).sum(0), y, x * 2)

        return lax.scan(step, x[0], x)

    around, inside = divided(run, W, H[0], X)
    assert around.index("scan") < around.index("dot_general") < around.index("exp")
    assert "dot_general" not in inside and "exp" not in inside
    stays(lambda *args: run(*args, told=lambda y: vf.debug.callback(lambda v: None, y)), W, H[0], X)
    stays(lambda *args: run(*args, told=lax.optimization_barrier), W, H[0], X[:1])
    sort = lambda w, x: lax.scan(lambda h, x: (jnp.tanh(h + x), lax.sort(h @ w)), x[0], x)
    stays(sort, W, X)


def loss(w: Any, u: Any, b: Any, x: Any, h: Any) -> Any:
    return (network(w, u, b, x, h)[1] ** 2).sum()


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_gradients_of_weights_are_products_over_all_steps(dtype: str) -> None:
    args = [as_value(a).astype(dtype) for a in (W, W.T, H[0], X, H)]
    around, forward, backward = divided(vf.grad(loss, (0, 1, 2, 3)), *args)
    assert around.count("dot_general") == 4
    assert forward.count("dot_general") == backward.count("dot_general") == 1
    assert "reduce_sum" in around and "reduce_sum" not in backward


def test_sums_that_something_else_reads_stay() -> None:
    """A total that steps read, or give; one that is scaled; products that are needed in the loop anyway."""

    def run(step: Callable[[Any, Any], Any]) -> Callable[..., Any]:
        return lambda x: lax.scan(step, (jnp.zeros((4, 4)), x[0]), x)

    plain = run(lambda c, x: ((c[0] + x.T @ c[1], jnp.tanh(c[1] + x)), None))
    around, inside = divided(plain, X)
    assert "dot_general" in around and "dot_general" not in inside
    stays(run(lambda c, x: ((c[0] + x.T @ c[1], jnp.tanh(c[1] + x @ c[0])), None)), X)
    stays(run(lambda c, x: ((c[0] + x.T @ c[1], jnp.tanh(c[1] + x)), c[0])), X)
    stays(run(lambda c, x: ((c[0] * 0.5 + x.T @ c[1], jnp.tanh(c[1] + x)), None)), X)
    stays(run(lambda c, x: ((c[0] + c[0] + x.T @ c[1], jnp.tanh(c[1] + x)), None)), X)
    stays(run(lambda c, x: (lambda p: ((c[0] + p, jnp.tanh(c[1] + x @ p)), None))(x.T @ c[1])), X)


def test_sums_of_several_products() -> None:
    """A matrix that is used twice in every step, once transposed."""

    def twice(w: Any, x: Any) -> Any:
        return (lax.scan(lambda h, x: (lambda h: (h, h))(jnp.tanh((h @ w) * x @ w.T)), x[0], x)[1] ** 2).sum()

    gradient = vf.grad(twice)
    around, _, backward = divided(gradient, W, X[:, :1])
    assert around.count("dot_general") == 2 and backward.count("dot_general") == 2


def test_stacking_more_than_the_sums_are_does_not_pay() -> None:
    run = lambda x: lax.scan(lambda c, x: ((c[0] + x.T @ c[1], jnp.tanh(c[1] + x)), None), (jnp.zeros((4, 4)), x[0]), x)
    stays(run, vf.ShapeDtypeStruct((5, 200, 4), "float32"))


def test_infinities_and_what_is_no_number_come_through() -> None:
    x = X.copy()
    x[1, 0, 1], x[3, 2, 2] = np.inf, np.nan
    divided(network, W, W.T, H[0], x, H)
    divided(vf.grad(loss, (0, 1, 2, 3)), W, W.T, H[0], x, H)


def test_loops_in_loops() -> None:
    """Products leave the inner loop, and from there the outer one."""

    def run(w: Any, x: Any) -> Any:
        inner = lambda h, x: (lambda h: (h, h @ w))(jnp.tanh(h + x @ w))
        return lax.scan(lambda h, rows: lax.scan(inner, h, rows), x[0, 0], x)

    x = np.stack([X, X + 1])
    around, inside = divided(run, W, x)
    assert (around, inside) == (["slice", "reshape", "dot_general", "scan", "dot_general"], ["scan"])
    for argument in (0, 1):
        gradient = vf.grad(lambda *args: sum((y**2).sum() for y in run(*args)), argument)
        np.testing.assert_allclose(vf.jit(gradient)(W, x), gradient(W, x), 1e-4, 1e-5)


def test_sums_of_what_products_behind_the_loop_give() -> None:
    """The gradient of two layers by one matrix, of steps that do not wait for each other: both products' cotangents leave the loop."""

    def loss(w: Any, x: Any) -> Any:
        return lax.scan(lambda c, x: (c * jnp.sum(jnp.tanh(jnp.sin(x @ w) @ w)), None), 1.0, x)[0]

    _, *scans = divided(vf.grad(loss), W, X[0])
    assert scans and all("dot_general" not in inside for inside in scans)


def test_sums_over_an_empty_batch() -> None:
    """Operands without elements take no memory, but they are not stacked for that: a sum of them that moves has to stack them."""

    def loss(u: Any, b: Any, x: Any, h: Any) -> Any:
        return (lax.scan(lambda h, x: (lambda h: (h, h))(jnp.tanh(x * b + h @ u)), h, x)[1] ** 2).sum()

    divided(vf.grad(loss, (0, 1)), W, H[0], X[:, :0], H[:0])
