"""custom_vjp: the user's rules are the reverse derivative under every transform."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import dtypes, lax
from volta_fn.errors import GradientError, NonFiniteError, ShapeError, TracerBoolError, TreeError

ROWS = np.array([[0.3, -0.7], [1.1, 0.5], [2.0, -1.5]])


def api_of(api: Any, np_: Any) -> Any:
    """Return sin(x) * y with a derivative that the factor 3 gives away."""

    @api.custom_vjp
    def f(x: Any, y: Any) -> Any:
        return np_.sin(x) * y

    def forward(x: Any, y: Any) -> Any:
        return f(x, y), (x, y)

    def backward(saved: Any, ct: Any) -> Any:
        x, y = saved
        return 3.0 * np_.cos(x) * y * ct, np_.sin(x) * ct

    f.defvjp(forward, backward)
    return f


f = api_of(vf, jnp)
total = lambda x, y: jnp.sum(f(x, y))


def test_compositions_are_those_of_jax() -> None:
    jax = pytest.importorskip("jax")

    def results(api: Any, np_: Any, lax_: Any) -> list[Any]:
        f = api_of(api, np_)
        rows = np_.asarray(ROWS.astype(np.float32))
        x, y = rows[0], rows[1]
        total = lambda x, y: np_.sum(f(x, y))
        scanned = lambda x: lax_.scan(lambda c, row: (f(c, row), c), x, rows)[0].sum()
        looped = lambda y: lax_.fori_loop(0, 3, lambda i, c: f(c, y), y).sum()
        return [
            f(x, y),
            api.jit(f)(x, y),
            *api.grad(total, (0, 1))(x, y),
            api.vmap(api.grad(total), (0, None))(rows, y),
            api.grad(lambda y: np_.sum(api.vmap(f, (0, None), 1)(rows, y)))(y),
            api.jit(api.grad(lambda rows: np_.sum(api.vmap(api.vmap(f), (0, None))(rows, y))))(rows),
            api.jacrev(f, (0, 1))(x, y)[1],
            api.jacrev(api.jacrev(total))(x, y),
            api.grad(api.grad(api.grad(lambda x: f(x, 2.0))))(np_.float32(0.3)),
            api.grad(scanned)(x),
            api.jit(api.vmap(api.grad(scanned)))(rows),
            api.grad(looped)(y),
            api.grad(lambda x: lax_.cond(x[0] > 0, lambda x: f(x, y), lambda x: x, x).sum())(x),
            api.grad(api.checkpoint(total))(x, y),
            api.grad(api.jit(lambda x: total(x, y) + total(x * 2, x)))(x),
        ]

    for number, (ours, theirs) in enumerate(zip(results(vf, jnp, lax), jax.jit(lambda: results(jax, jax.numpy, jax.lax))(), strict=True)):
        np.testing.assert_allclose(ours, theirs, rtol=3e-5, atol=1e-6, err_msg=str(number))


@pytest.mark.wide
def test_second_derivatives_inside_a_scan_use_the_rule() -> None:
    scanned = lambda x: jnp.sum(lax.scan(lambda c, row: (f(c, row), None), x, ROWS)[0])
    unrolled = lambda x: jnp.sum(f(f(f(x, ROWS[0]), ROWS[1]), ROWS[2]))
    x = ROWS[0]
    np.testing.assert_allclose(vf.jacrev(vf.grad(scanned))(x), vf.jacrev(vf.grad(unrolled))(x), rtol=1e-10)


@pytest.mark.wide
def test_hessian_by_forward_over_reverse_needs_a_forward_rule_without_the_function() -> None:
    g = vf.custom_vjp(lambda x: jnp.sum(jnp.sin(x)))
    g.defvjp(lambda x: (jnp.sum(jnp.sin(x)), x), lambda x, ct: (5.0 * jnp.cos(x) * ct,))
    np.testing.assert_allclose(vf.hessian(g)(ROWS[0]), np.diag(-5.0 * np.sin(ROWS[0])))
    np.testing.assert_allclose(vf.jit(vf.vmap(vf.hessian(g)))(ROWS)[2], np.diag(-5.0 * np.sin(ROWS[2])))


@pytest.mark.wide
def test_the_rule_s_cotangents_follow_forward_mode() -> None:
    g = vf.custom_vjp(lambda x, y: x * y)
    g.defvjp(lambda x, y: (x * y, (x, y)), lambda saved, ct: (saved[1] ** 2 * ct, saved[0] ** 3 * ct))
    pulled = lambda x, y: vf.vjp(g, x, y)[1](jnp.ones((), x.dtype))
    _, tangents = vf.jvp(pulled, (np.float64(2.0), np.float64(3.0)), (np.float64(1.0), np.float64(10.0)))
    np.testing.assert_allclose(tangents, [60.0, 12.0])


@pytest.mark.wide
@pytest.mark.parametrize(
    "forward",
    [
        lambda x, y: vf.jvp(f, (x, y), (x, y)),
        lambda x, y: vf.jacfwd(f)(x, y),
        lambda x, y: vf.linearize(f, x, y)[1](x, y),
        lambda x, y: vf.jit(lambda x, y: vf.jvp(f, (x, y), (x, y)))(x, y),
        lambda x, y: vf.hessian(total)(x, y),
        lambda x, y: vf.jvp(vf.vmap(f), (x, y), (x, y)),
        lambda x, y: vf.jvp(vf.jit(f), (x, y), (x, y)),
    ],
)
def test_forward_mode_is_refused(forward: Any) -> None:
    with pytest.raises(GradientError, match="forward-mode differentiation.*custom_vjp"):
        forward(ROWS[0], ROWS[1])


@pytest.mark.wide
def test_programs_are_well_formed() -> None:
    args = (jnp.asarray(ROWS), jnp.asarray(ROWS))
    scanned = lambda x, y: jnp.sum(lax.scan(lambda c, row: (f(c, row), None), x[0], y)[0])
    for transform in (
        f,
        vf.vmap(f),
        vf.grad(total),
        vf.vmap(vf.jit(vf.grad(total))),
        vf.grad(vf.jit(total), (0, 1)),
        vf.grad(scanned),
        lambda x, y: vf.vmap(vf.grad(total), (None, 0))(x[0], y),
        vf.jacrev(vf.grad(total)),
    ):
        vf.check_jaxpr(vf.make_jaxpr(transform)(*args))


def test_nondiff_arguments() -> None:
    g = vf.custom_vjp(lambda function, x, power: function(x) ** power, nondiff_argnums=(0, 2))

    def forward(function: Any, x: Any, power: int) -> Any:
        assert isinstance(power, int)
        return g(function, x, power), (x, "text", None)

    def backward(function: Any, power: int, saved: Any, ct: Any) -> Any:
        assert saved[1:] == ("text", None)
        return (100.0 * function(saved[0]) * ct,)

    g.defvjp(forward, backward)
    assert float(vf.grad(g, 1)(jnp.sin, 0.5, 3)) == pytest.approx(100 * np.sin(0.5), rel=1e-6)
    assert float(vf.jit(vf.grad(lambda x: g(jnp.cos, x, 3)))(0.5)) == pytest.approx(100 * np.cos(0.5), rel=1e-6)
    slope = vf.vmap(lambda k: vf.grad(lambda x: g(lambda v: k * v, x, 3))(0.5))(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(slope, [50.0, 100.0])
    named = vf.custom_vjp(lambda x, n: x * n, nondiff_argnames=("n",))
    named.defvjp(lambda x, n: (x * n, None), lambda n, saved, ct: (7.0 * ct * n,))
    assert float(vf.grad(lambda x: named(x, n=2))(1.0)) == 14.0
    np.testing.assert_array_equal(vf.vmap(lambda n: vf.grad(lambda x: named(x, n))(1.0))(jnp.arange(3.0)), [0.0, 7.0, 14.0])
    with pytest.raises(GradientError, match="no derivative rule is set"):
        vf.custom_vjp(lambda x: x)(1.0)


def test_none_integers_trees_and_defaults() -> None:
    @vf.custom_vjp
    def g(p: Any, n: Any, scale: Any = 2.0) -> Any:
        return {"y": p["x"] * n * scale, "n": n}

    g.defvjp(
        lambda p, n, scale: ({"y": p["x"] * n * scale, "n": n}, None),
        lambda _, ct: ({"x": ct["y"] * 5.0}, None, None),
    )
    args = {"x": 1.0}
    assert float(vf.grad(lambda p: g(p, 3)["y"])(args)["x"]) == 5.0
    assert float(vf.grad(lambda s: g(args, 3, s)["y"])(1.0)) == 0.0
    assert float(vf.grad(lambda s: g(args, n=3, scale=s)["y"])(1.0)) == 0.0
    _, by_n = vf.grad(lambda p, n: g(p, n)["y"], (0, 1), allow_int=True)(args, 3)
    assert by_n.dtype == dtypes.float0


def test_none_stands_for_a_subtree_of_an_argument() -> None:
    g = vf.custom_vjp(lambda p: p["x"] * p["y"][0] + p["y"][1])
    args = {"x": 2.0, "y": (3.0, 4.0), "none": None}
    for arguments, expected in (
        ({"x": 10.0, "y": None, "none": None}, [10.0, 0.0, 0.0]),
        ({"x": None, "y": (None, 20.0), "none": None}, [0.0, 0.0, 20.0]),
    ):
        g.defvjp(lambda p: (g(p), None), lambda _, ct, arguments=arguments: (arguments,))
        assert [float(leaf) for leaf in vf.tree.leaves(vf.grad(g)(args))] == expected
    g.defvjp(lambda p: (g(p), None), lambda _, ct: ({"x": 1.0, "y": 1.0, "none": None},))
    with pytest.raises(TreeError, match="must return a cotangent of structure"):
        vf.grad(g)(args)


def test_an_array_stands_for_a_node_that_holds_nothing_else() -> None:
    g = vf.custom_vjp(lambda p: p["x"][0] * p["y"]["z"])
    g.defvjp(lambda p: (g(p), p), lambda p, ct: ({"x": ct * p["y"]["z"], "y": ct * p["x"][0]},))
    args = {"x": [2.0], "y": {"z": 3.0}}
    for function in (g, vf.jit(g)):
        assert vf.grad(function)(args) == {"x": [3.0], "y": {"z": 2.0}}
    by_rows = vf.vmap(vf.grad(g))({"x": [jnp.arange(3.0)], "y": {"z": jnp.ones(3)}})
    np.testing.assert_array_equal(by_rows["y"]["z"], [0.0, 1.0, 2.0])


def test_zero_cotangents_of_unmapped_operands_under_vmap() -> None:
    g = vf.custom_vjp(lambda x, y: x * y)
    g.defvjp(lambda x, y: (x * y, x), lambda x, ct: (None, x * ct))
    mapped = lambda x, y: jnp.sum(vf.vmap(g, (None, 0))(x, y))
    by_x, by_y = vf.grad(mapped, (0, 1))(2.0, jnp.arange(3.0))
    assert float(by_x) == 0.0
    np.testing.assert_array_equal(by_y, [2.0, 2.0, 2.0])


def test_closing_over_what_is_differentiated_is_refused() -> None:
    def closing(x: Any) -> Any:
        g = vf.custom_vjp(lambda y: y * x)
        g.defvjp(lambda y: (y * x, None), lambda _, ct: (ct,))
        return g(2.0)

    with pytest.raises(GradientError, match="closes over a value that is being differentiated"):
        vf.grad(closing)(1.0)
    np.testing.assert_array_equal(vf.vmap(closing)(jnp.array([1.0, 2.0])), [2.0, 4.0])


@pytest.mark.wide
@pytest.mark.parametrize(
    ("fwd", "bwd", "error", "message"),
    [
        (lambda x, y: x, lambda r, c: (c, c), TreeError, r"the forward rule of f must return \(out, residuals\)"),
        (lambda x, y: ((x, x), None), lambda r, c: (c, c), TreeError, "the forward rule of f must return a value of structure"),
        (lambda x, y: (jnp.ones(3), None), lambda r, c: (c, c), ShapeError, "returned a value of type f32.3. where the function"),
        (lambda x, y: (x, None), lambda r, c: (c,), TreeError, "must return a tuple of 2 cotangents, one per argument, got 1 of them"),
        (lambda x, y: (x, None), lambda r, c: c, TreeError, "must return a tuple of 2 cotangents"),
        (lambda x, y: (x, None), lambda r, c: ((c, c), c), TreeError, "for argument 0, got"),
        (lambda x, y: (x, None), lambda r, c: (c, [c]), TreeError, "for argument 1, got"),
        (lambda x, y: (x, None), lambda r, c: (c, jnp.ones(3)), ShapeError, "cotangent of type f32.3. for an argument of type f32.2."),
        (lambda x, y: (x, None), lambda r, c: (c.astype("complex64"), c), ShapeError, "cotangent of type c64"),
    ],
)
def test_mistakes_in_rules_are_explained(fwd: Any, bwd: Any, error: type[Exception], message: str) -> None:
    @vf.custom_vjp
    def f(x: Any, y: Any) -> Any:
        return x * 2

    f.defvjp(fwd, bwd)
    with pytest.raises(error, match=message):
        vf.vjp(f, jnp.ones(2), jnp.ones(2))[1](jnp.ones(2))
    with pytest.raises(error, match=message):
        vf.jit(vf.grad(lambda x, y: f(x, y).sum()))(jnp.ones(2), jnp.ones(2))


def test_mistakes_in_rules_name_the_argument_of_the_function() -> None:
    scaled = vf.custom_vjp(lambda factor, x: factor * x, nondiff_argnums=(0,))
    scaled.defvjp(lambda factor, x: (factor * x, None), lambda factor, _, c: ([c],))
    with pytest.raises(TreeError, match="for argument 1, got"):
        vf.grad(scaled, argnums=1)(2.0, 3.0)


def test_python_decides_by_the_values_of_eager_differentiation() -> None:
    @vf.custom_vjp
    def leaky(x: Any, scale: Any) -> Any:
        if x > 0:
            return {"y": x * scale}
        return {"y": x * 0.1}

    leaky.defvjp(lambda x, scale: (leaky(x, scale), x), lambda x, g: ((3.0 if x > 0 else 5.0) * g["y"], 0.0))
    for transform in (vf.grad, lambda f: lambda x: vf.vjp(f, x)[1](1.0)[0]):
        assert [float(transform(lambda x: leaky(x, 2.0)["y"])(x)) for x in (2.0, -2.0)] == [3, 5]
        assert float(transform(lambda x: leaky(-1.0, 2.0)["y"] * x)(2.0)) == pytest.approx(-0.1)
    value, gradient = vf.value_and_grad(lambda x: leaky(x * x, x)["y"])(3.0)
    assert (float(value), float(gradient)) == (27, 18)
    with pytest.raises(TracerBoolError):
        vf.jit(leaky)(2.0, 1.0)


def test_symbolic_zeros_tell_differentiated_arguments() -> None:
    seen = []
    f = vf.custom_vjp(lambda x, y: x * y)

    def forward(x, y):
        seen.append((x.perturbed, y.perturbed))
        return x.value * y.value, (x.value, y.value)

    f.defvjp(forward, lambda saved, g: (g * saved[1], g * saved[0]), symbolic_zeros=True, optimize_remat=False)
    assert vf.grad(f)(2.0, 3.0) == 3.0
    assert vf.jit(vf.grad(f, argnums=1))(2.0, 3.0) == 2.0
    assert vf.vmap(vf.grad(f), (0, None))(vf.numpy.ones(2), 3.0).tolist() == [3.0, 3.0]
    assert seen[0] == (True, False)
    assert seen[1] == (False, True)


@pytest.mark.wide
def test_cotangents_of_another_precision_are_rounded() -> None:
    @vf.custom_vjp
    def f(x: Any) -> Any:
        return x * 2

    f.defvjp(lambda x: (x * 2, None), lambda _, c: (c.astype("float64") / 3,))
    for x in (jnp.ones(2), jnp.ones(2, "bfloat16")):
        gradient = vf.grad(lambda x: f(x).sum())(x)
        assert gradient.dtype == x.dtype
        assert np.array_equal(gradient, np.full(2, 1 / 3).astype(x.dtype))


def test_numbers_among_the_residuals_stay_numbers() -> None:
    seen: list[Any] = []

    @vf.custom_vjp
    def double(x: Any) -> Any:
        return 2 * x

    def backward(residuals: Any, g: Any) -> Any:
        seen.append(residuals)
        return (g * residuals["scale"],)

    double.defvjp(lambda x: (2 * x, {"scale": 2.0, "perturbed": True, "count": 3}), backward)
    for function in (vf.grad(double), vf.jit(vf.grad(double)), vf.grad(vf.jit(double)), vf.grad(lambda x: vf.vmap(double)(x[None])[0])):
        assert function(1.0) == 2.0
    assert seen == [{"scale": 2.0, "perturbed": True, "count": 3}] * 4
    assert all(type(r["perturbed"]) is bool and type(r["count"]) is int for r in seen)


def test_python_numbers_stay_numbers_outside_of_programs() -> None:
    """An integer decides about shapes in the function and in both rules, as in JAX; it need not be named by nondiff_argnums."""
    kinds: list[tuple[str, type]] = []

    @vf.custom_vjp
    def first(x: Any, count: int, scale: float = 2.0) -> Any:
        kinds.append(("function", type(count)))
        return x[:count] * scale

    def forward(x: Any, count: int, scale: float) -> Any:
        kinds.append(("forward", type(count)))
        return first(x, count, scale), (count, len(x), scale)

    def backward(residuals: Any, ct: Any) -> Any:
        count, size, scale = residuals
        kinds.append(("backward", type(count)))
        return jnp.pad(ct * scale, (0, size - count)), None, None

    first.defvjp(forward, backward)
    x = jnp.arange(4.0)
    for count in (3, 2):
        expected = np.arange(4) < count
        for transformed in (vf.grad, lambda f: vf.jit(vf.grad(f))):
            np.testing.assert_array_equal(transformed(lambda x, n=count: first(x, n).sum())(x), 2.0 * expected)
        mapped = vf.vmap(vf.grad(lambda x, n=count: first(x, n, 3.0).sum()))(jnp.stack([x, x]))
        np.testing.assert_array_equal(mapped, [3.0 * expected] * 2)
        np.testing.assert_array_equal(vf.vmap(lambda x, n=count: first(x, n))(x[None]), 2.0 * x[None, :count])
    assert {kind for _, kind in kinds} == {int} and {place for place, _ in kinds} == {"function", "forward", "backward"}


@pytest.mark.parametrize("wrap", [lambda f: f, vf.checkpoint, vf.jit])
@pytest.mark.parametrize("mapped", [lambda f: vf.vmap(vf.grad(f)), lambda f: vf.grad(lambda x: vf.vmap(f)(x).sum()), vf.grad])
def test_errors_name_the_lines_of_a_backward_rule(wrap: Any, mapped: Any) -> None:
    """They named the line that called the function."""

    def back(x: vf.Array, g: vf.Array) -> tuple[vf.Array]:
        infinite = g / (x * 0.0)
        return (infinite - infinite,)

    root = vf.custom_vjp(lambda x: jnp.sqrt(x))
    root.defvjp(lambda x: (jnp.sqrt(x), x), back)
    with vf.debug_nans(), pytest.raises(NonFiniteError) as raised:
        mapped(wrap(lambda x: root(x).sum()))(jnp.ones((2, 3)))
    first, location = back.__code__.co_firstlineno, raised.value.location
    assert location is not None
    assert (location.function.rpartition(".")[2], location.lineno) == ("back", first + 2)
    assert f":{first + 1} (" in str(raised.value)
