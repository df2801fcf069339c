"""`reduce` against NumPy's reductions and plain loops, by kernels, by functions of one array and of several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, TreeError

X = np.arange(24, dtype=np.int32).reshape(2, 3, 4)

REDUCTIONS: list[tuple[Any, Any, Any]] = [
    (lax.add, np.add, 0),
    (lax.mul, np.multiply, 1),
    (lax.max, np.maximum, -100),
    (lax.min, np.minimum, 100),
    (lax.bitwise_and, np.bitwise_and, -1),
    (lax.bitwise_or, np.bitwise_or, 0),
    (lax.bitwise_xor, np.bitwise_xor, 5),
    (lambda a, b: a + b, np.add, 3),
]


@pytest.mark.parametrize(("ours", "ufunc", "start"), REDUCTIONS)
@pytest.mark.parametrize("axes", [(0,), (1, 2), (0, 1, 2), (-1,), ()])
def test_reduce(ours: Any, ufunc: Any, start: int, axes: tuple[int, ...]) -> None:
    expected = ufunc(ufunc.reduce(X, axes).astype(np.int32), np.int32(start))
    for function in (lax.reduce, vf.jit(lax.reduce, static_argnums=(2, 3))):
        actual = function(X, start, ours, axes)
        assert actual.dtype == np.int32
        np.testing.assert_array_equal(actual, expected)


def larger(a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return the pair with the larger first value; of equal ones the first."""
    first = a[0] >= b[0]
    return jnp.where(first, a[0], b[0]), jnp.where(first, a[1], b[1])


@pytest.mark.parametrize("axes", [(1,), (0, 2), (2, 0), (0, 1, 2)])
def test_values_and_their_places(axes: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 6, X.shape).astype(np.float32)
    for function in (lax.reduce, vf.jit(lax.reduce, static_argnums=(2, 3))):
        most, place = function((values, X), (-np.inf, -1), larger, axes)
        assert (most.dtype, place.dtype) == (np.float32, np.int32)
        np.testing.assert_array_equal(most, values.max(axes))
        retained = [i for i in range(3) if i not in axes]
        rows, numbers = [a.transpose(*retained, *sorted(axes)).reshape(*[a.shape[i] for i in retained], -1) for a in (values, X)]
        np.testing.assert_array_equal(place, np.take_along_axis(numbers, rows.argmax(-1)[..., None], -1)[..., 0])


def after(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Apply the affine function `a` and then `b`: associative, and far from commutative."""
    return {"scale": a["scale"] * b["scale"], "shift": a["shift"] * b["scale"] + b["shift"]}


@pytest.mark.parametrize("size", [0, 1, 5])
def test_results_have_the_structure_that_the_function_returns(size: int) -> None:
    """As in JAX: operands in a tuple, results in a dictionary."""
    x = np.arange(size, dtype=np.int32)
    got = lax.reduce((x, 2 * x), (1, 2), lambda a, b: {"once": a[0] + b[0], "twice": [a[1] + b[1]]}, (0,))
    assert got == {"once": x.sum() + 1, "twice": [2 * x.sum() + 2]}


@pytest.mark.parametrize("size", [0, 1, 2, 3, 6, 7, 8, 13])
def test_order_is_kept(size: int) -> None:
    scale, shift = np.random.default_rng(size).integers(-2, 3, (2, size, 2)).astype(np.int32)
    actual = lax.reduce({"scale": scale, "shift": shift}, {"scale": 2, "shift": 1}, after, (0,))
    wanted = {"scale": np.full(2, 2), "shift": np.full(2, 1)}
    for row in zip(scale, shift, strict=True):
        wanted = after(wanted, dict(zip(("scale", "shift"), row, strict=True)))
    for name, value in actual.items():
        np.testing.assert_array_equal(value, wanted[name])


def test_derivatives_and_batches() -> None:
    """Of log(Σ exp x), kept as (largest, sum of exponentials below it)."""

    def joined(a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[Any, Any]:
        top = jnp.maximum(a[0], b[0])
        return top, a[1] * jnp.exp(a[0] - top) + b[1] * jnp.exp(b[0] - top)

    def log_sum(x: Any) -> Any:
        top, total = lax.reduce((x, jnp.ones_like(x)), (-1e30, 0.0), joined, (0,))
        return top + jnp.log(total)

    x = np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32)
    shares = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    # Float32 exponentials and logarithms, one after the other. Seen: 2e-7.
    np.testing.assert_allclose(vf.vmap(log_sum)(x), np.log(np.exp(x).sum(1)), rtol=1e-5)
    np.testing.assert_allclose(vf.vmap(vf.grad(log_sum))(x), shares, rtol=1e-4)
    np.testing.assert_allclose(vf.jit(vf.vmap(vf.jacfwd(log_sum)))(x), shares, rtol=1e-4)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_initial_value_counts_once_at_every_size(size: int) -> None:
    """Of one element, too, where JAX leaves it out."""
    x = np.arange(2.0 * size, dtype=np.float32).reshape(2, size)
    combine = lambda a, b: lax.max(a, b)  # which no primitive is known for
    for function in (lax.max, combine):
        np.testing.assert_array_equal(lax.reduce(x, np.float32(2), function, (1,)), np.maximum(x.max(1), 2))


@pytest.mark.parametrize("init", [0, 0.0, np.float32(0), np.float32(2), jnp.float32(0), jnp.float32(2)], ids=repr)
@pytest.mark.parametrize("computation", [lax.add, lambda x, y: x + y])
def test_initial_values_may_be_arrays_while_a_function_is_traced(init: Any, computation: Callable[[Any, Any], Any]) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for reduce in (lax.reduce, vf.jit(lax.reduce, static_argnums=(2, 3))):
        np.testing.assert_array_equal(reduce(x, init, computation, (0,)), x.sum(0) + float(init))
    np.testing.assert_array_equal(vf.jit(lambda x: lax.reduce(x, init, computation, (0,)))(x), x.sum(0) + float(init))
    np.testing.assert_array_equal(vf.grad(lambda x: lax.reduce(x, init, computation, (0, 1)))(x), np.ones_like(x))


def test_nothing_to_reduce() -> None:
    for computation in (lax.add, lambda a, b: a + b):
        assert float(lax.reduce(jnp.zeros((0,)), 2.0, computation, (0,))) == 2.0
        assert lax.reduce(jnp.zeros((0, 3)), 2.0, computation, (1,)).shape == (0,)
    assert lax.reduce([jnp.zeros((3, 0))], [2.0], lax.add, (1,))[0].tolist() == [2.0] * 3
    assert [r.tolist() for r in lax.reduce((X, X), (0, 0), larger, ())] == [X.tolist()] * 2


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: lax.reduce(X, X, lax.add, (0,)), ShapeError, "init_value must be a scalar"),
        (lambda: lax.reduce(X, np.float32(0), lax.add, (0,)), ArgumentError, "they must agree"),
        (lambda: lax.reduce(X, 0, lax.add, (3,)), ShapeError, "dimensions"),
        (lambda: lax.reduce(X, 0, "add", (0,)), ArgumentTypeError, "got 'add'"),
        (lambda: lax.reduce((), (), larger, (0,)), ArgumentError, "no arrays"),
        (lambda: lax.reduce((X, X[0]), (0, 0), larger, (0,)), ShapeError, "one shape"),
        (lambda: lax.reduce((X, X), (0,), larger, (0,)), TreeError, "init_values"),
        (lambda: lax.reduce((X, X), (0, 0), lambda a, b: a[0], (0,)), TreeError, "returns"),
        (lambda: lax.reduce(X, 0, lambda a, b: (a + b) / 2, (0,)), DTypeError, "returns"),
        (lambda: lax.reduce(X, 0, lambda a, b: (a + b)[..., None], (0,)), ShapeError, "returns"),
    ],
)
def test_mistakes_are_explained(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
