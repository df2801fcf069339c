"""closure_convert and custom_gradient: closed-over tracers become arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn import numpy as jnp
from volta_fn.errors import LeakedTracerError, ShapeError, TreeError

ROWS = np.linspace(0.2, 1.0, 4)
A, B = np.float64(0.7), np.float64(0.2)


@pytest.mark.wide
def test_values_come_as_the_last_arguments() -> None:
    def f(y: Any) -> Any:
        converted, consts = vf.closure_convert(lambda tree: tree["x"] * y + tree["x"], {"x": 1.0})
        assert len(consts) == 1
        return converted({"x": 5.0}, *[2 * c for c in consts])

    assert vf.grad(f)(3.0) == 10
    assert vf.jit(f)(3.0) == 35
    np.testing.assert_array_equal(vf.vmap(f)(ROWS), 10 * ROWS + 5)


@pytest.mark.wide
def test_nothing_traced_nothing_passed() -> None:
    converted, consts = vf.closure_convert(lambda x: x + ROWS, ROWS)
    assert consts == []
    np.testing.assert_array_equal(converted(ROWS), 2 * ROWS)


@pytest.mark.wide
def test_other_arguments_than_the_examples_are_refused() -> None:
    converted, _ = vf.closure_convert(lambda x: x + 1, ROWS)
    with pytest.raises(ShapeError, match=r"f64\[4\].*f64\[3\]"):
        converted(ROWS[:3])
    with pytest.raises(TreeError, match="structure"):
        converted((ROWS,))


def fixed_point(f: Callable[..., Any], start: Any) -> Any:
    """Solve f(x) = x, differentiated by the implicit function theorem."""
    converted, consts = vf.closure_convert(f, start)
    return _fixed_point(converted, start, *consts)


@functools.partial(vf.custom_vjp, nondiff_argnums=(0,))
def _fixed_point(f: Callable[..., Any], start: Any, *consts: Any) -> Any:
    return lax.fori_loop(0, 60, lambda i, x: f(x, *consts), start)


def _forward(f: Callable[..., Any], start: Any, *consts: Any) -> Any:
    result = _fixed_point(f, start, *consts)
    return result, (result, consts)


def _backward(f: Callable[..., Any], saved: Any, cotangent: Any) -> Any:
    result, consts = saved
    _, pull_back = vf.vjp(f, result, *consts)
    adjoint = lax.fori_loop(0, 60, lambda i, u: cotangent + pull_back(u)[0], cotangent)
    return (jnp.zeros_like(result), *pull_back(adjoint)[1:])


_fixed_point.defvjp(_forward, _backward)


def solved(a: Any, b: Any) -> Any:
    return fixed_point(lambda x: 0.5 * jnp.cos(a * x) + b, np.float64(0.3))


def slope(a: Any, b: Any) -> np.ndarray:
    """Differentiate the solution by a, by the implicit function theorem."""
    x = np.asarray(solved(a, b))
    return -0.5 * x * np.sin(a * x) / (1 + 0.5 * a * np.sin(a * x))


@pytest.mark.wide
@pytest.mark.parametrize(
    "transform",
    [vf.grad, lambda f: vf.jit(vf.grad(f)), lambda f: vf.grad(vf.jit(f)), lambda f: vf.grad(vf.checkpoint(f))],
)
def test_fixed_points_by_the_implicit_function_theorem(transform: Any) -> None:
    np.testing.assert_allclose(transform(solved)(A, B), slope(A, B), rtol=1e-12)
    np.testing.assert_allclose(vf.vmap(transform(solved), (0, None))(ROWS, B), [slope(a, B) for a in ROWS], rtol=1e-12)
    by_batch = transform(lambda a: vf.vmap(solved, (0, None))(a, B).sum())(jnp.asarray(ROWS))
    np.testing.assert_allclose(by_batch, [slope(a, B) for a in ROWS], rtol=1e-12)
    second = (slope(A + 1e-5, B) - slope(A - 1e-5, B)) / 2e-5
    np.testing.assert_allclose(transform(vf.grad(solved))(A, B), second, rtol=1e-8)


@vf.custom_gradient
def tripled(x: Any, y: Any) -> Any:
    sine = jnp.sin(x)
    return sine * y, lambda g: (3 * g * jnp.cos(x) * y, 5 * g * sine)


@pytest.mark.wide
def test_custom_gradient_is_the_rule_that_the_body_returns() -> None:
    x, y = A, B
    expected = 3 * np.cos(x) * y, 5 * np.sin(x)
    for wrap in (lambda f: f, vf.jit, vf.checkpoint):
        np.testing.assert_allclose(vf.grad(wrap(tripled), (0, 1))(x, y), expected, rtol=1e-12)
    np.testing.assert_allclose(vf.vmap(vf.grad(tripled), (0, None))(ROWS, y), 3 * np.cos(ROWS) * y, rtol=1e-12)
    np.testing.assert_allclose(vf.grad(lambda y: vf.vmap(tripled, (0, None))(ROWS, y).sum())(y), 5 * np.sin(ROWS).sum(), rtol=1e-12)
    # The rule is differentiated in turn: d/dy of 3 cos(x) y.
    np.testing.assert_allclose(vf.grad(vf.grad(tripled), 1)(x, y), 3 * np.cos(x), rtol=1e-12)


def test_custom_gradient_with_integer_results() -> None:
    @vf.custom_gradient
    def split(x: Any) -> Any:
        floor = jnp.floor(x)
        return (x - floor, floor.astype(int)), lambda ct: 10.0 * ct[0] * jnp.ones_like(x)

    for transform in (vf.grad, lambda f: vf.jit(vf.grad(f))):
        np.testing.assert_array_equal(transform(lambda x: jnp.sum(split(x)[0]))(jnp.array([1.5, 2.25])), [10.0, 10.0])


def test_custom_gradient_of_one_argument_and_of_trees() -> None:
    clipped = vf.custom_gradient(lambda x: (x, lambda g: jnp.clip(g, -1, 1)))
    assert vf.grad(lambda x: 100 * clipped(x))(2.0) == 1
    f = vf.custom_gradient(lambda tree: ((tree["a"] * 2, tree["b"]), lambda cts: ({"a": cts[1], "b": cts[0]},)))
    result = vf.grad(lambda tree: sum(w * o for w, o in zip((3, 4), f(tree), strict=True)))({"a": 1.0, "b": 2.0})
    assert (result["a"], result["b"]) == (4, 3)


# Rules that close over a mapped value, in calls whose arguments are not mapped.


def scaled_by_row(y: Any, x: Any, reverse: bool) -> Any:
    """Return x * y, whose derivative by y is 3 x; the rule closes over x."""
    if reverse:
        f = vf.custom_vjp(lambda y: x * y)
        f.defvjp(lambda y: (x * y, (x, y)), lambda saved, g: (3 * saved[0] * g,))
        return f(y)
    g = vf.custom_jvp(lambda y: x * y)
    g.defjvp(lambda primals, tangents: (x * primals[0], 3 * x * tangents[0]))
    return g(y)


@pytest.mark.parametrize("reverse", [False, True])
def test_rules_close_over_mapped_values(reverse: bool) -> None:
    rows = jnp.arange(3.0)
    f = lambda y: vf.vmap(lambda x: scaled_by_row(y, x, reverse))(rows)
    np.testing.assert_array_equal(f(2.0), [0, 2, 4])
    jacobians = [vf.jacrev] if reverse else [vf.jacrev, vf.jacfwd]
    for jacobian in jacobians:
        for transform in (jacobian, lambda f, j=jacobian: vf.jit(j(f))):
            np.testing.assert_array_equal(transform(f)(2.0), [0, 3, 6])
        np.testing.assert_array_equal(vf.vmap(jacobian(f))(jnp.ones(2)), [[0, 3, 6]] * 2)


def test_a_rule_does_not_read_mapped_values_of_another_vmap() -> None:
    kept: list[Any] = []
    rows = jnp.arange(3.0)
    vf.vmap(lambda x: kept.append(x) or x)(rows)
    with pytest.raises(LeakedTracerError):
        vf.vmap(lambda x: scaled_by_row(x, kept[0], False))(rows)
    # Nested maps of equal sizes: each value is that of its own map.
    nested = lambda y: vf.vmap(lambda a: vf.vmap(lambda b: scaled_by_row(y, a + 10 * b, False))(rows))(rows)
    expected = np.arange(3.0)[:, None] + 10 * np.arange(3.0)
    np.testing.assert_array_equal(vf.jvp(nested, (2.0,), (1.0,))[1], 3 * expected)
