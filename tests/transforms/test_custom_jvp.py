"""custom_jvp: the user's rule is the derivative under every transform."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import dtypes, lax
from volta_fn.core.primitive import Zero
from volta_fn.errors import ArgumentError, GradientError, ShapeError, TracerBoolError, TreeError

ROWS = np.array([[0.3, -0.7], [1.1, 0.5], [2.0, -1.5]])


def api_of(api: Any, np_: Any) -> Any:
    """Return sin(x) * y with a derivative that the factor 3 gives away."""

    @api.custom_jvp
    def f(x: Any, y: Any) -> Any:
        return np_.sin(x) * y

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (x, y), (dx, dy) = primals, tangents
        return f(x, y), 3.0 * np_.cos(x) * dx * y + np_.sin(x) * dy

    return f


f = api_of(vf, jnp)


def test_compositions_are_those_of_jax() -> None:
    jax = pytest.importorskip("jax")

    def results(api: Any, np_: Any, lax_: Any) -> list[Any]:
        rows = np_.asarray(ROWS, "float32")
        x, y = rows[0], rows[1]
        f = api_of(api, np_)
        total = lambda x, y: np_.sum(f(x, y))
        scanned = lambda x: lax_.scan(lambda c, row: (f(c, row), c), x, rows)[0].sum()
        unrolled = lambda x: f(f(f(x, rows[0]), rows[1]), rows[2]).sum()
        branch = lambda x: lax_.cond(x[0] > 0, lambda x: f(x, y), lambda x: x, x).sum()
        return [
            f(x, y),
            api.jit(f)(x, y),
            api.jvp(f, (x, y), (y, x))[1],
            *api.grad(total, (0, 1))(x, y),
            api.vmap(api.grad(total), (0, None))(rows, y),
            api.grad(lambda rows: np_.sum(api.vmap(f, (0, None))(rows, y)))(rows),
            api.jit(api.grad(lambda y: np_.sum(api.vmap(f, (0, None), 1)(rows, y))))(y),
            api.hessian(total)(x, y),
            api.jacrev(api.jacrev(total))(x, y),
            api.grad(api.grad(api.grad(lambda x: f(x, 2.0))))(np_.float32(0.3)),
            api.grad(scanned)(x),
            # JAX forgets rules in the known part of a scan, so its loop is unrolled for second derivatives.
            api.jit(api.hessian(scanned if api is vf else unrolled))(x),
            api.grad(branch)(x),
            api.jvp(api.grad(total), (x, y), (y, x))[1],
            api.linearize(f, x, y)[1](y, x),
            api.vmap(api.jacfwd(f), (None, 0))(x, rows),
        ]

    for number, (ours, theirs) in enumerate(zip(results(vf, jnp, lax), jax.jit(lambda: results(jax, jax.numpy, jax.lax))(), strict=True)):
        np.testing.assert_allclose(ours, theirs, rtol=3e-5, atol=1e-6, err_msg=str(number))


@pytest.mark.wide
def test_programs_are_well_formed() -> None:
    args = (jnp.asarray(ROWS), jnp.asarray(ROWS))
    total = lambda x, y: jnp.sum(f(x, y))
    for transform in (f, vf.vmap(f), vf.grad(total), vf.vmap(vf.jit(vf.grad(total))), vf.hessian(total), vf.grad(vf.jit(total))):
        vf.check_jaxpr(vf.make_jaxpr(transform)(*args))


def test_nondiff_arguments_come_first_and_may_be_anything() -> None:
    @vf.custom_jvp
    def plain(x: Any) -> Any:
        return x

    def apply(function: Any, x: Any, n: int) -> Any:
        return function(x) ** n

    @vf.custom_jvp
    def unset(x: Any) -> Any:
        return x

    g = vf.custom_jvp(apply, nondiff_argnums=(0, 2))

    @g.defjvp
    def rule(function: Any, n: int, primals: Any, tangents: Any) -> Any:
        assert n == 3
        return g(function, *primals, n), 100.0 * tangents[0] * function(primals[0])

    assert float(g(jnp.sin, 0.5, 3)) == pytest.approx(np.sin(0.5) ** 3, rel=1e-6)
    assert float(vf.grad(g, 1)(jnp.sin, 0.5, 3)) == pytest.approx(100 * np.sin(0.5), rel=1e-6)
    assert float(vf.jit(vf.grad(lambda x: g(jnp.cos, x, 3)))(0.5)) == pytest.approx(100 * np.cos(0.5), rel=1e-6)
    # A function that closes over a value of an outer transform, and a traced value, may be such arguments too.
    slope = vf.vmap(lambda k: vf.grad(lambda x: g(lambda v: k * v, x, 3))(0.5))(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(slope, [50.0, 100.0])
    named = vf.custom_jvp(lambda x, n: x * n, nondiff_argnames=("n",))
    named.defjvp(lambda n, primals, tangents: (primals[0] * n, tangents[0] * 7.0))
    assert float(vf.grad(lambda x: named(x, n=2))(1.0)) == 7.0
    np.testing.assert_array_equal(vf.vmap(lambda n: vf.grad(lambda x: named(x, n))(1.0))(jnp.arange(3.0)), [7.0] * 3)
    with pytest.raises(ArgumentError, match="nondiff_argnames"):
        vf.custom_jvp(lambda x: x, nondiff_argnames=("y",))
    with pytest.raises(ArgumentError, match=r"names the arguments \[4\]"):
        vf.jit(lambda x: _with_rule(vf.custom_jvp(lambda x: x, nondiff_argnums=(4,)))(x))(1.0)
    with pytest.raises(GradientError, match="no derivative rule is set"):
        vf.grad(unset)(1.0)
    with pytest.raises(GradientError, match="plain.defjvp"):
        plain(1.0)


def _with_rule(function: Any) -> Any:
    function.defjvp(lambda primals, tangents: (primals[0], tangents[0]))
    return function


def test_rules_per_argument() -> None:
    @vf.custom_jvp
    def g(x: Any, y: Any) -> Any:
        return {"product": x * y, "sum": x + y}

    scaled = lambda k: lambda t, out, x, y: {"product": k * t * y, "sum": k * t}
    g.defjvps(scaled(10.0), None)
    _out, tangent = vf.jvp(g, (2.0, 3.0), (1.0, 1.0))
    assert (float(tangent["product"]), float(tangent["sum"])) == (30.0, 10.0)
    g.defjvps(scaled(1.0), scaled(100.0))
    assert float(vf.grad(lambda y: g(2.0, y)["sum"])(3.0)) == 100.0
    g.defjvps(None, None)
    assert float(vf.grad(lambda x: g(x, 2.0)["sum"])(3.0)) == 0.0
    g.defjvps(None)
    with pytest.raises(ArgumentError, match="has 2 arguments, but defjvps got 1"):
        vf.grad(lambda x: g(x, 2.0)["sum"])(3.0)


def test_symbolic_zeros() -> None:
    seen: list[tuple[bool, ...]] = []
    g = vf.custom_jvp(lambda x, y: x * y)

    def rule(primals: Any, tangents: Any) -> Any:
        seen.append(tuple(type(t) is Zero for t in tangents))
        return primals[0] * primals[1], tangents[0] * primals[1]

    g.defjvp(rule, symbolic_zeros=True)
    vf.grad(g)(2.0, 3.0)
    assert seen == [(False, True)]


def test_a_linear_function_with_a_rule_serves_in_rules_and_is_transposed() -> None:
    double = vf.custom_jvp(lambda x: 2.0 * x)
    double.defjvp(lambda primals, tangents: (double(*primals), double(*tangents)))
    (transposed,) = vf.linear_transpose(double, 1.0)(3.0)
    assert float(transposed) == 6.0
    square = vf.custom_jvp(lambda x: x * x)
    square.defjvp(lambda primals, tangents: (square(*primals), primals[0] * double(*tangents)))
    summed = lambda x: vf.lax.scan(lambda total, y: (total + square(y), None), 0.0, x)[0]
    x = jnp.array([1.0, 2.0])
    for gradient in (vf.grad(summed), vf.jit(vf.grad(summed)), vf.jacfwd(summed)):
        np.testing.assert_array_equal(gradient(x), [2.0, 4.0])
    np.testing.assert_array_equal(vf.hessian(summed)(x), [[2.0, 0.0], [0.0, 2.0]])


def test_integers_closures_trees_and_keywords() -> None:
    @vf.custom_jvp
    def g(p: Any, n: Any, scale: Any = 2.0) -> Any:
        return {"y": p["x"] * n * scale, "n": n}

    @g.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        _p, _n, _scale = primals
        assert tangents[1].dtype == dtypes.float0
        return g(*primals), {"y": 5.0 * tangents[0]["x"], "n": tangents[1]}

    assert float(vf.grad(lambda x: g({"x": x}, 3, scale=4.0)["y"])(1.0)) == 5.0
    assert float(vf.jit(vf.grad(lambda x: g({"x": x}, n=3)["y"]))(1.0)) == 5.0

    def closing(x: Any) -> Any:
        h = vf.custom_jvp(lambda y: y * x)
        h.defjvp(lambda primals, tangents: (primals[0] * 1.0, tangents[0]))
        return h(2.0)

    with pytest.raises(GradientError, match="closes over a value that is being differentiated"):
        vf.grad(closing)(1.0)
    np.testing.assert_array_equal(vf.vmap(closing)(jnp.array([1.0, 2.0])), [2.0, 4.0])


@pytest.mark.parametrize("wrap", [lambda f: f, vf.jit])
def test_the_rule_closes_over_a_mapped_value(wrap: Any) -> None:
    def product(x: Any, rows: Any, column: Any) -> Any:
        f = vf.custom_jvp(lambda x: x * rows.sum() * column)
        f.defjvp(lambda primals, tangents: (f(*primals), 3.0 * tangents[0] * lax.map(lambda row: row * column, rows).sum()))
        return f(x)

    columns = jnp.array([0.5, 2.0, -1.0])
    one_row = vf.vmap(product, (None, None, 0))
    total = wrap(vf.grad(lambda x: vf.vmap(one_row, (None, 0, None))(x, jnp.array(ROWS, "float32"), columns).sum()))
    np.testing.assert_allclose(total(2.0), 3.0 * ROWS.sum() * 1.5, rtol=1e-6)
    by_row = wrap(vf.grad(lambda xs: vf.vmap(one_row, (0, 0, None))(xs, jnp.array(ROWS, "float32"), columns).sum()))
    np.testing.assert_allclose(by_row(jnp.ones(3)), 3.0 * ROWS.sum(1) * 1.5, rtol=1e-6)
    _, second = wrap(
        lambda x: vf.jvp(
            vf.grad(lambda x: vf.vmap(one_row, (None, 0, None))(x * x, jnp.array(ROWS, "float32"), columns).sum()), (x,), (1.0,)
        )
    )(2.0)
    np.testing.assert_allclose(second, 6.0 * ROWS.sum() * 1.5, rtol=1e-6)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("rule", "error", "message"),
    [
        (lambda p, t: p[0], TreeError, r"the derivative rule of f must return \(out, out_tangent\), got"),
        (lambda p, t: ((p[0], p[0]), t[0]), TreeError, "must return a value of structure"),
        (lambda p, t: (p[0], (t[0], t[0])), TreeError, "must return a tangent of structure"),
        (lambda p, t: (jnp.ones(3), t[0]), ShapeError, "returned a value of type f32.3. where the function returns f32.2."),
        (lambda p, t: (p[0], jnp.ones(3)), ShapeError, "returned a tangent of type f32.3. for a result of type f32.2."),
        (lambda p, t: (p[0], t[0].astype("float64")), ShapeError, "returned a tangent of type f64"),
    ],
)
def test_mistakes_in_a_rule_are_explained(rule: Any, error: type[Exception], message: str) -> None:
    @vf.custom_jvp
    def f(x: Any) -> Any:
        return x * 2

    f.defjvp(rule)
    with pytest.raises(error, match=message):
        vf.jvp(f, (jnp.ones(2),), (jnp.ones(2),))


def test_the_printed_call_names_function_and_program() -> None:
    text = str(vf.make_jaxpr(f)(1.0, 2.0))
    assert "custom_jvp_call[" in text
    assert "call_jaxpr={ lambda ; " in text


@vf.custom_jvp
def twice(x: Any) -> Any:
    """Hold a function."""
    return 2 * x


@vf.custom_vjp
def thrice(x: Any) -> Any:
    """Likewise."""
    return 3 * x


def test_pickled_by_name_and_copied_as_themselves() -> None:
    for function in (twice, thrice, jnp.tanh, lax.add, vf.nn.relu):
        assert copy.deepcopy(function) is function
        assert pickle.loads(pickle.dumps(function)) is function
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(vf.custom_jvp(lambda x: x))


@vf.custom_jvp
def leaky(x: Any) -> Any:
    if x > 0:
        return x * 1.0
    return x * 0.1


@leaky.defjvp
def _leaky_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return leaky(x), (3.0 if x > 0 else 5.0) * t


def test_python_decides_by_the_values_of_eager_differentiation() -> None:
    for transform in (lambda f: vf.grad(f), lambda f: lambda x: vf.jvp(f, (x,), (1.0,))[1], lambda f: lambda x: vf.vjp(f, x)[1](1.0)[0]):
        assert (float(transform(leaky)(2.0)), float(transform(leaky)(-2.0))) == (3, 5)
        assert float(transform(lambda x: leaky(x * x) * leaky(-1.0) * x)(2.0)) == pytest.approx(-0.1 * (4 + 2 * 3 * 4))
    assert float(vf.grad(vf.grad(lambda x: leaky(x) * x))(2.0)) == pytest.approx(6)
    assert float(vf.vjp(leaky, -4.0)[0]) == pytest.approx(-0.4)
    with pytest.raises(TracerBoolError):
        vf.jit(leaky)(2.0)
    with pytest.raises(TracerBoolError):
        vf.grad(lambda x: vf.vmap(leaky)(x).sum())(jnp.ones(2))
