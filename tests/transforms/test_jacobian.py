"""jacfwd, jacrev, hessian, linear_transpose: against finite differences and JAX."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import dtypes, lax
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, GradientError, TreeError

X = np.array([[0.3, -0.7, 1.1], [0.5, 2.0, -1.0]])


def f(x: Any, y: Any) -> Any:
    return {"outer": jnp.sin(x)[:, :, None] * y, "sum": jnp.sum(x) * y[0]}


def columns(function: Any, x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Return the Jacobian of an array by an array, by central differences."""
    result = np.zeros((*np.shape(function(x)), *x.shape))
    for i in np.ndindex(*x.shape):
        above, below = x.copy(), x.copy()
        above[i] += step
        below[i] -= step
        result[(..., *i)] = (np.asarray(function(above)) - np.asarray(function(below))) / (2 * step)
    return result


@pytest.mark.wide
@pytest.mark.parametrize("jacobian", [vf.jacfwd, vf.jacrev, lambda f, n=0: vf.jit(vf.jacfwd(vf.jit(f), n)), vf.jacobian])
def test_jacobians_are_those_of_finite_differences(jacobian: Any) -> None:
    y = np.array([1.5, -0.5])
    by_x, by_y = jacobian(f), jacobian(f, 1)
    for key in ("outer", "sum"):
        np.testing.assert_allclose(by_x(X, y)[key], columns(lambda x: f(x, y)[key], X), rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(by_y(X, y)[key], columns(lambda v: f(X, v)[key], y), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", ["jacfwd", "jacrev", "hessian"])
def test_structures_are_those_of_jax(name: str) -> None:
    jax = pytest.importorskip("jax")

    def results(api: Any, np_: Any) -> Any:
        g = lambda p, q: {"a": np_.sin(p["x"]) * q[0], "b": (np_.sum(p["x"]) * p["s"] ** 2 * q[1],)}
        p, q = {"x": X[0].astype("float32"), "s": np.float32(2.0)}, (np.float32(3.0), np.ones(2, "float32"))
        transform = getattr(api, name)
        return [transform(g)(p, q), transform(g, (1, 0))(p, q), transform(lambda p: (np_.sum(p["x"]), {"aux": p["s"]}), has_aux=True)(p)]

    ours, theirs = results(vf, jnp), jax.jit(lambda: results(jax, jax.numpy))()
    assert str(jax.tree.structure(jax.tree.map(np.asarray, ours))) == str(jax.tree.structure(theirs))
    for actual, wanted in zip(vf.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)
        assert np.shape(actual) == np.shape(wanted)


@pytest.mark.wide
def test_hessians_agree_in_every_order_of_modes() -> None:
    g = lambda x: jnp.sum(jnp.sin(x) ** 3) * jnp.prod(x)
    expected = columns(vf.grad(g), X)
    for transform in (
        vf.hessian(g),
        vf.jacfwd(vf.jacfwd(g)),
        vf.jacrev(vf.jacfwd(g)),
        vf.jacrev(vf.jacrev(g)),
        vf.jit(vf.hessian(vf.jit(g))),
    ):
        np.testing.assert_allclose(transform(X), expected, rtol=1e-6, atol=1e-8)
        vf.check_jaxpr(vf.make_jaxpr(transform)(X))
    third = vf.jacfwd(vf.hessian(lambda x: jnp.sum(x**4)))(X[0])
    np.testing.assert_allclose(np.einsum("iii->i", np.asarray(third)), 24 * X[0])
    batch = vf.vmap(vf.hessian(g))(np.stack([X, X + 1]))
    np.testing.assert_allclose(batch[0], expected, rtol=1e-6, atol=1e-8)


def test_empty_scalar_and_low_precision_arguments() -> None:
    assert vf.jacfwd(lambda x: x * 2)(jnp.zeros((0, 2))).shape == (0, 2, 0, 2)
    assert vf.jacrev(lambda x: x * 2)(jnp.zeros((0, 2))).shape == (0, 2, 0, 2)
    assert vf.jacfwd(lambda x: jnp.ones(3))(1.0).shape == (3,)
    np.testing.assert_array_equal(vf.jacrev(lambda x: jnp.ones(3))(1.0), np.zeros(3))
    for name in ("float16", "bfloat16"):
        assert vf.jacfwd(lambda x: x * x)(jnp.ones(2, name)).dtype == vf.jacrev(lambda x: x * x)(jnp.ones(2, name)).dtype == jnp.dtype(name)


def test_mistakes_are_explained() -> None:
    for transform in (vf.jacfwd, vf.jacrev):
        with pytest.raises(GradientError, match="an argument of dtype int32"):
            transform(lambda x: x)(jnp.arange(3))
        with pytest.raises(GradientError, match="complex64.*holomorphic"):
            transform(lambda x: x)(1j)
        with pytest.raises(ArgumentTypeError, match="transforms a function"):
            transform(1.0)
        with pytest.raises(ArgumentError, match="positional argument 2"):
            transform(lambda x: x, 2)(1.0)
    with pytest.raises(GradientError, match="a result of dtype int32"):
        vf.jacrev(lambda x: x.astype(int))(1.0)


def test_real_functions_of_complex_arguments_by_reverse_mode() -> None:
    norm = lambda z: jnp.sum(jnp.abs(z) ** 2)
    z = np.array([1 + 2j, 3 - 1j], np.complex64)
    np.testing.assert_allclose(vf.jacrev(norm)(z), vf.grad(norm)(z), rtol=1e-6)
    np.testing.assert_allclose(vf.jacrev(norm)(z), 2 * np.conj(z), rtol=1e-6)


def test_integers_by_reverse_mode_if_allowed() -> None:
    result = vf.jacrev(lambda n, x: n * x, (0, 1), allow_int=True)(jnp.array([1, 2]), jnp.array([1.0, 3.0]))
    np.testing.assert_array_equal(result[1], np.diag([1.0, 2.0]))
    assert np.asarray(result[0]).dtype == dtypes.float0


@pytest.mark.wide
def test_linear_transpose() -> None:
    w = jnp.asarray(X)
    transposed = vf.linear_transpose(lambda v: {"y": w @ v}, vf.ShapeDtypeStruct((3,), "float64"))
    ct = np.array([2.0, -1.0])
    np.testing.assert_allclose(transposed({"y": ct})[0], X.T @ ct)
    np.testing.assert_allclose(vf.vmap(transposed)({"y": np.eye(2)})[0], X)
    np.testing.assert_allclose(vf.jit(transposed)({"y": ct})[0], X.T @ ct)
    np.testing.assert_allclose(vf.grad(lambda c: jnp.sum(transposed({"y": c})[0] ** 2))(ct), 2 * X @ X.T @ ct)
    first, second = vf.linear_transpose(lambda a, b: a * 2.0 + b[0] - b[1], 1.0, (1.0, 1.0))(3.0)
    assert (float(first), [float(s) for s in second]) == (6.0, [3.0, -3.0])
    with pytest.raises(TreeError, match="the cotangent has structure"):
        transposed(ct)
    for function in (jnp.sin, lambda x: x * x, lambda x: x / x, lambda x: jnp.sum(x) * x):
        with pytest.raises(GradientError, match="so it cannot be transposed|transpose rule"):
            vf.linear_transpose(function, jnp.ones(2))(jnp.ones(np.shape(function(jnp.ones(2)))))


#: Linear functions with loops that carry a counter, and their matrices.
COUNTING = [
    (lambda x: lax.fori_loop(0, 3, lambda i, x: (i + 1) * x, x), 6 * np.eye(3)),
    (lambda x: lax.fori_loop(0, 3, lambda i, c: c.at[i].add(i * x[2 - i]), jnp.zeros(3)), np.diag([0.0, 1, 2])[:, ::-1]),
    (lambda x: lax.scan(lambda c, w: ((c[0] + 1, c[1] * w), c[1] * c[0]), (0, x), 2.0 * jnp.ones(2))[1][1], 2 * np.eye(3)),
    (lambda x: lax.scan(lambda c, w: ((c[0] + 1, c[1] + w * c[0] * x), None), (1, 0 * x), jnp.arange(3.0))[0][1], 8 * np.eye(3)),
    (lambda x: lax.scan(lambda c, r: ((c[0] * 0.5, c[1] + r, c[2] + 1), c[0] * r), (1.0, 0.0, 0), x)[1], np.diag([1, 0.5, 0.25])),
    (lambda x: lax.scan(lambda c, _: ((c[0] + 1, c[1] * c[0]), None), (1.0, x), None, length=3)[0][1], 6 * np.eye(3)),
]


@pytest.mark.parametrize(("function", "matrix"), COUNTING)
def test_linear_transpose_of_loops_that_count(function: Any, matrix: np.ndarray) -> None:
    transposed = vf.linear_transpose(function, vf.ShapeDtypeStruct((3,), "float32"))
    ct = np.array([1.0, -2.0, 5.0], np.float32)
    np.testing.assert_array_equal(function(jnp.asarray(ct)), matrix @ ct)
    for transform in (lambda f: f, vf.jit):
        np.testing.assert_array_equal(transform(transposed)(ct)[0], matrix.T @ ct)
    np.testing.assert_array_equal(vf.vmap(transposed)(np.eye(3, dtype=np.float32))[0], matrix)


@pytest.mark.parametrize(("function", "matrix"), COUNTING)
def test_rules_may_apply_loops_that_count_to_tangents(function: Any, matrix: np.ndarray) -> None:
    linear = vf.custom_jvp(function)
    linear.defjvp(lambda primals, tangents: (linear(*primals), linear(*tangents)))
    x = jnp.asarray([1.0, -2.0, 5.0])
    for transform in (lambda f: f, vf.jit):
        pulled_back = transform(lambda x: vf.vjp(linear, x)[1](linear(x))[0])(x)
        np.testing.assert_array_equal(pulled_back, matrix.T @ (matrix @ np.asarray(x)))


@pytest.mark.parametrize("jacobian", [vf.jacfwd, vf.jacrev])
def test_jacobians_of_python_numbers_are_weakly_typed(jacobian: Any) -> None:
    assert jacobian(lambda x: x)(1.0).weak_type
    assert not jacobian(lambda x: x)(jnp.float32(1.0)).weak_type


def test_linear_functions_pass_through_jit() -> None:
    factor = jnp.arange(1.0, 3.0)
    transposed = vf.jit(lambda x, w: vf.linear_transpose(lambda x: w * x, x))(jnp.ones(2), factor)
    (result,) = vf.jit(lambda f, ct: f(ct))(transposed, jnp.full(2, 3.0))
    np.testing.assert_array_equal(result, 3.0 * np.asarray(factor))
    push = vf.jit(lambda x: vf.linearize(lambda x: x**3, x)[1])(2.0)
    assert vf.jit(lambda f, t: f(t))(push, 2.0) == 24.0 == push(2.0)
    for tangent in (1, np.int32(1)):
        with pytest.raises(DTypeError, match="dtype int32"):
            push(tangent)


@pytest.mark.parametrize("name", ["scan", "loop", "cond", "jit", "checkpoint"])
def test_tangents_of_loops_and_branches_are_transposed(name: str) -> None:
    """What does not depend on the argument is evaluated, also in loops: their tangents are linear in it, their values are not."""

    def cotangents(m: Any) -> list[Any]:
        a = m.numpy.arange(3.0)
        f: Any = {
            "scan": lambda x: m.lax.scan(lambda c, s: (c * x + s, c), 0.5, a),
            "loop": lambda x: m.lax.fori_loop(0, 3, lambda i, c: c * x + a[i], 1.0),
            "cond": lambda x: m.lax.cond(x > 0, lambda x: m.numpy.sin(x) * x, lambda x: x, x),
            "jit": m.jit(lambda x: m.numpy.exp(x) * x),
            "checkpoint": m.checkpoint(lambda x: m.numpy.exp(x) * x),
        }[name]
        x = m.numpy.float32(0.7)
        ones = m.tree.map(m.numpy.ones_like, f(x))
        transposed = lambda x: m.linear_transpose(lambda t: m.jvp(f, (x,), (t,))[1], x)
        return [transposed(x)(ones)[0], m.jit(transposed(x))(ones)[0], m.jit(lambda x: transposed(x)(ones)[0])(x)]

    np.testing.assert_allclose(cotangents(vf), cotangents(jax), rtol=2e-6)
