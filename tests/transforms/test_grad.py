"""`grad`, `value_and_grad`, `vjp` and their like, and gradients accumulated in references.."""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import dtypes, tree
from volta_fn.ad import DidntWant, DontWant, GradRef, GradValue, NotNeeded
from volta_fn.core.staging import eval_jaxpr
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, GradientError, LeakedTracerError, RefError, ShapeError, TreeError

# grad, value_and_grad, vjp, jvp, linearize: values, compositions, messages.

X = np.array([0.3, -0.7, 1.1])
W = np.array([[0.2, -0.5, 1.0], [1.5, 0.1, -0.3]])


def model(np_: Any, w: Any, x: Any) -> Any:
    """Return a scalar, by the given NumPy."""
    return np_.sum(np_.tanh(w @ x) ** 2 / (1.0 + np_.exp(-np_.sum(x * x))))


def loss(w: Any, x: Any) -> Any:
    return model(jnp, w, x)


def finite_difference(function: Any, x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Return the gradient of a scalar function by central differences."""
    result = np.zeros_like(x)
    for i in np.ndindex(*x.shape):
        above, below = x.copy(), x.copy()
        above[i] += step
        below[i] -= step
        result[i] = (float(function(above)) - float(function(below))) / (2 * step)
    return result


@pytest.mark.wide
def test_gradient_is_that_of_finite_differences() -> None:
    by_w, by_x = vf.grad(loss, argnums=(0, 1))(W, X)
    np.testing.assert_allclose(by_w, finite_difference(lambda w: model(np, w, X), W), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(by_x, finite_difference(lambda x: model(np, W, x), X), rtol=1e-7, atol=1e-9)


def test_compositions_are_those_of_jax() -> None:
    jax = pytest.importorskip("jax")
    w32, rows = W.astype(np.float32), np.stack([X, 2 * X, X - 1, X * X]).astype(np.float32)

    def results(api: Any, np_: Any) -> list[Any]:
        f = lambda w, x: model(np_, w, x)
        mean = lambda w, xs: np_.sum(api.vmap(f, (None, 0))(w, xs))
        return [
            api.grad(mean)(w32, rows),
            api.vmap(api.grad(f, 1), (None, 0))(w32, rows),
            api.jit(api.grad(mean, (0, 1)))(w32, rows)[1],
            api.grad(api.jit(mean))(w32, rows),
            api.vmap(api.jit(api.grad(f)), (None, 0))(w32, rows),
            api.jvp(lambda x: api.vjp(lambda v: f(w32, v), x)[1](np_.ones((), "float32"))[0], (rows[0],), (rows[1],))[1],
            api.vjp(lambda x: api.jvp(lambda v: f(w32, v), (x,), (rows[1],))[1], rows[0])[1](np_.ones((), "float32"))[0],
            api.linearize(api.grad(lambda x: f(w32, x)), rows[0])[1](rows[2]),
            api.hessian(lambda x: f(w32, x))(rows[0]),
        ]

    for ours, theirs in zip(results(vf, jnp), jax.jit(lambda: results(jax, jax.numpy))(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-6)


@pytest.mark.wide
@pytest.mark.parametrize("wrap", [lambda f: f, vf.jit, lambda f: vf.jit(vf.jit(f)), vf.checkpoint])
def test_many_derivatives_of_a_scalar(wrap: Any) -> None:
    function, expected = wrap(lambda x: jnp.sin(2.0 * x)), [np.sin, np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x), np.sin]
    for order, value in enumerate(expected):
        np.testing.assert_allclose(function(np.float64(0.4)), 2.0**order * value(0.8), rtol=1e-12)
        function = vf.grad(function)


def test_derivative_of_what_is_closed_over() -> None:
    def outer(x: Any) -> Any:
        inner = vf.grad(lambda y: y * y * x + jnp.sin(x))
        return inner(3.0) * x

    assert float(vf.grad(outer)(2.0)) == 2 * 6.0 * 2.0
    assert float(vf.jit(vf.grad(outer))(2.0)) == 24.0
    np.testing.assert_array_equal(vf.vmap(vf.grad(outer))(jnp.array([1.0, 2.0])), [12.0, 24.0])


def test_no_perturbation_confusion() -> None:
    assert float(vf.grad(lambda x: x * vf.grad(lambda y: x + y)(1.0))(1.0)) == 1.0
    assert float(vf.jvp(lambda x: x * vf.jvp(lambda y: x * y, (2.0,), (1.0,))[1], (3.0,), (1.0,))[1]) == 6.0


def test_trees_argnums_and_keywords() -> None:
    params = {"w": jnp.array([1.0, 2.0]), "b": (3.0, None)}
    f = lambda p, x, scale=1.0: scale * (jnp.sum(p["w"] * x) + p["b"][0] ** 2)
    value, grads = vf.value_and_grad(f)(params, 2.0, scale=3.0)
    assert float(value) == 3.0 * (6.0 + 9.0)
    assert vf.tree.structure(grads) == vf.tree.structure(params)
    np.testing.assert_array_equal(grads["w"], [6.0, 6.0])
    assert float(grads["b"][0]) == 18.0
    by_x, by_p = vf.grad(f, argnums=(-1, 0))(params, 2.0)
    assert float(by_x) == 3.0
    assert float(by_p["b"][0]) == 6.0
    (only,) = vf.grad(f, argnums=[1])(params, 2.0)
    assert float(only) == 3.0


@pytest.mark.wide
def test_gradient_has_the_argument_s_dtype() -> None:
    for name in ("float16", "bfloat16", "float32", "float64"):
        x = jnp.ones(3, name)
        value, gradient = vf.value_and_grad(lambda x: jnp.sum(x * x))(x)
        assert value.dtype == gradient.dtype == x.dtype
        assert not gradient.weak_type


def test_weak_types_of_tangents_and_cotangents_are_jax_s() -> None:
    calls: list[Any] = [
        lambda m: m.grad(lambda x: x * m.numpy.float16(2))(m.numpy.float32(2)),
        lambda m: m.grad(lambda x: x * 2)(2.0),
        lambda m: m.vjp(lambda x: x * 2, m.numpy.float32(2))[1](1.0)[0],
        lambda m: m.jvp(lambda x: x * 2, (m.numpy.float32(2),), (1.0,))[1],
        lambda m: m.jvp(lambda x: x * 2, (2.0,), (1.0,))[1],
        lambda m: m.linearize(lambda x: x * 2, m.numpy.float32(2))[1](1.0),
        lambda m: m.linearize(lambda x: x * 2, 2.0)[1](1.0),
        lambda m: m.linear_transpose(lambda x: x * 2, 2.0)(1.0)[0],
        lambda m: m.linear_transpose(lambda x: x * 2, m.numpy.float32(2))(1.0)[0],
    ]
    for number, call in enumerate(calls):
        ours, theirs = call(vf), call(jax)
        assert (float(ours), ours.dtype, ours.weak_type) == (float(theirs), theirs.dtype, theirs.weak_type), number


@pytest.mark.parametrize("is_weak", [True, False])
@pytest.mark.parametrize("name", ["mul", "jit", "constant", "stack", "half", "where", "scan", "loop", "cond", "stop", "sum"])
def test_derivatives_are_weakly_typed_where_jax_s_are(name: str, is_weak: bool) -> None:
    """The derivative by a Python number gives way to the dtypes of arrays, whatever the number met."""

    def types(m: Any) -> list[Any]:
        a = m.numpy.arange(3.0)
        start = 1.5 if is_weak else m.numpy.float32(1.5)
        f: Any = {
            "mul": lambda x: (x * a).sum(),
            "jit": m.jit(lambda x: x * x),
            "constant": lambda x: a.sum(),
            "stack": lambda x: m.numpy.stack([x, x]).sum(),
            "half": lambda x: (x * a.astype("float16")).sum(),
            "where": lambda x: m.numpy.where(a > 1, x, a).sum(),
            "scan": lambda x: m.lax.scan(lambda c, s: (c * x + s, None), 0.5, a)[0],
            "loop": lambda x: m.lax.fori_loop(0, 3, lambda i, c: c * 2, x),
            "cond": lambda x: m.lax.cond(True, lambda x: x * 2, lambda x: x, x),
            "stop": lambda x: m.lax.stop_gradient(x) * m.numpy.float32(2),
            "sum": lambda x: m.numpy.ones(3)[0] + x,
        }[name]
        one = m.numpy.ones_like(f(start))
        push = lambda t: m.jvp(f, (start,), (t,))[1]
        derivatives = [
            m.grad(f)(start),
            m.value_and_grad(f)(start)[1],
            m.jit(m.grad(f))(start),
            m.vjp(f, start)[1](one)[0],
            m.jacrev(f)(start),
            m.jacfwd(f)(start),
            m.hessian(f)(start),
            push(start),
            m.linearize(f, start)[1](start),
            m.linear_transpose(push, start)(one)[0],
        ]
        return [(np.asarray(d).astype(float).round(3).item(), d.dtype, d.weak_type) for d in derivatives]

    assert types(vf) == types(jax)


def test_the_derivative_by_a_number_gives_way_to_half_precision() -> None:
    for m in (vf, jax):
        x = m.numpy.ones(3, "bfloat16")
        rate = m.grad(lambda r: (r * m.numpy.arange(3.0)).sum())(0.5)
        assert (x - rate * x).dtype == "bfloat16"


def test_aux_passes_through() -> None:
    def f(x: Any) -> Any:
        return jnp.sum(x**2), {"kept": x * 2, "name": "sum", "none": None, "count": 3}

    (value, aux), gradient = vf.value_and_grad(f, has_aux=True)(jnp.array([1.0, 2.0]))
    assert float(value) == 5.0
    np.testing.assert_array_equal(gradient, [2.0, 4.0])
    np.testing.assert_array_equal(aux["kept"], [2.0, 4.0])
    assert (aux["name"], aux["none"], aux["count"]) == ("sum", None, 3)
    assert vf.grad(f, has_aux=True)(jnp.array([1.0, 2.0]))[1]["name"] == "sum"
    value, pull_back, aux = vf.vjp(f, jnp.array([1.0, 2.0]), has_aux=True)
    np.testing.assert_array_equal(pull_back(jnp.float32(1))[0], [2.0, 4.0])
    assert vf.jvp(f, (jnp.ones(2),), (jnp.ones(2),), has_aux=True)[2]["count"] == 3
    with pytest.raises(ArgumentError, match="has_aux=True needs a function that returns"):
        vf.grad(lambda x: x, has_aux=True)(1.0)


def test_aux_under_jit_and_grad_holds_no_tracers() -> None:
    inner = vf.grad(lambda x: (x * x, x * 3), has_aux=True)
    gradient, aux = vf.jit(inner)(2.0)
    assert (float(gradient), float(aux)) == (4.0, 6.0)
    second, aux = vf.grad(lambda x: inner(x)[::-1][1], has_aux=False), None
    assert float(second(2.0)) == 2.0
    by_aux = vf.grad(lambda x: inner(x)[1])(2.0)
    assert float(by_aux) == 3.0


def test_integers_have_empty_gradients() -> None:
    f = lambda x, n: jnp.sum(x * n)
    by_x, by_n = vf.grad(f, (0, 1), allow_int=True)(jnp.array([1.0, 2.0]), jnp.array([3, 4]))
    np.testing.assert_array_equal(by_x, [3.0, 4.0])
    assert by_n.dtype == dtypes.float0
    assert by_n.shape == (2,)
    _, pull_back = vf.vjp(lambda n: n * 2, jnp.array([1, 2]))
    (cotangent,) = pull_back(np.zeros(2, dtypes.float0))
    assert cotangent.dtype == dtypes.float0
    _, tangent = vf.jvp(lambda n, x: (n, n * x), (3, 2.0), (np.zeros((), dtypes.float0), 1.0))
    assert tangent[0].dtype == dtypes.float0
    assert float(tangent[1]) == 3.0
    compiled = vf.jit(lambda n: vf.vjp(lambda n: n * 1.0, n)[1](jnp.ones(3))[0])(jnp.arange(3))
    assert compiled.dtype == dtypes.float0 and (compiled == compiled).tolist() == [True] * 3
    assert (compiled != np.zeros((2, 1), dtypes.float0)).tolist() == [[False] * 3] * 2


@pytest.mark.wide
def test_holomorphic() -> None:
    z = np.complex128(1.0 + 2.0j)
    np.testing.assert_allclose(vf.grad(lambda z: z**3, holomorphic=True)(z), 3 * z**2)
    np.testing.assert_allclose(vf.jacfwd(lambda z: jnp.exp(z), holomorphic=True)(z), np.exp(z))
    np.testing.assert_allclose(vf.jacrev(lambda z: jnp.exp(z), holomorphic=True)(z), np.exp(z))
    with pytest.raises(GradientError, match="needs complex inputs"):
        vf.grad(lambda x: x, holomorphic=True)(1.0)
    with pytest.raises(GradientError, match="holomorphic=True"):
        vf.grad(lambda z: z)(z)
    with pytest.raises(GradientError, match="complex64"):
        vf.grad(lambda x: x * (1 + 1j))(1.0)


def test_gradient_through_the_complex_plane_is_jax_s() -> None:
    jax = pytest.importorskip("jax")
    f = lambda np_: lambda x: np_.sum(np_.abs(np_.exp(1j * x) * (x + 2j)) ** 2)
    x = X.astype(np.float32)
    np.testing.assert_allclose(vf.grad(f(jnp))(x), jax.grad(f(jax.numpy))(x), rtol=1e-5)


def test_gradient_of_a_real_function_of_complex_numbers_is_jax_s() -> None:
    """Return df/dx - i df/dy."""
    jax = pytest.importorskip("jax")
    f = lambda np_: lambda z: np_.sum(np_.abs(z) ** 2 + 3 * np_.real(z) * np_.imag(z))
    z = np.array([1 + 2j, -3 + 0.5j], np.complex64)
    np.testing.assert_allclose(vf.grad(f(jnp))(z), jax.grad(f(jax.numpy))(z), rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: vf.grad(lambda x: x)(jnp.ones(3)), GradientError, r"scalar result, but <lambda> returned an array of shape \(3,\)"),
        (lambda: vf.grad(lambda x: (x, x))(1.0), GradientError, r"one scalar result, but <lambda> returned \(\*, \*\), where"),
        (lambda: vf.grad(lambda x: x)(1), GradientError, r"argument 0 of <lambda> has dtype int32.*allow_int=True"),
        (lambda: vf.grad(lambda p: p["a"])({"a": 1.0, "n": True}), GradientError, r"argument 0\['n'\] of <lambda> has dtype bool"),
        (lambda: vf.grad(lambda x, y: x * y, argnums=1)(2.0, 3), GradientError, "argument 1 of <lambda> has dtype int32"),
        (lambda: vf.grad(lambda x, p: x, argnums=(0, -1))(2.0, {"n": 3}), GradientError, r"argument 1\['n'\] of <lambda> has dtype int32"),
        (lambda: vf.grad(lambda x, y: y, 1, holomorphic=True)(2j, 3.0), GradientError, "argument 1 of <lambda> has dtype float32"),
        (lambda: vf.grad(lambda x: (x > 0).sum())(1.0), GradientError, "real scalar result, but <lambda> returned dtype int"),
        (lambda: vf.grad(lambda x: x, argnums=1)(1.0), ArgumentError, "positional argument 1 was chosen, but the call has 1"),
        (lambda: vf.grad(3.0), ArgumentTypeError, "transforms a function, got 3.0"),
        (lambda: vf.grad(lambda x: None)(1.0), GradientError, "one scalar result"),
        (lambda: vf.grad(lambda x: "no")(1.0), ArgumentTypeError, "<lambda> must return arrays.*'no' of type str"),
        (lambda: vf.vjp(lambda x: (x, x), 1.0)[1](1.0), TreeError, "the cotangent has the structure.*a tuple of 2, got a leaf"),
        (lambda: vf.vjp(lambda x: x, jnp.ones(2))[1](jnp.ones(3)), ShapeError, r"a cotangent has shape \(3,\).*\(2,\)"),
        (lambda: vf.vjp(lambda x: x, jnp.ones(2))[1](jnp.ones(2, "float64")), DTypeError, "a cotangent has dtype float64.*float32"),
        (lambda: vf.jvp(lambda x: x, (1.0,), (1.0, 2.0)), TreeError, "the structure of the primals.*a tuple of 1, got a tuple of 2"),
        (lambda: vf.jvp(lambda x: x, (jnp.ones(2),), (jnp.ones(3),)), ShapeError, r"a tangent has shape \(3,\)"),
        (lambda: vf.jvp(lambda x: x, (jnp.ones(2),), (jnp.ones(2, "float64"),)), DTypeError, "a tangent has dtype float64"),
        (lambda: vf.jvp(lambda n: n, (1,), (1,)), DTypeError, "float0"),
        (lambda: vf.linearize(lambda x: x, 1.0)[1](1.0, 2.0), TreeError, "takes tangents of the structure"),
        (lambda: vf.linearize(lambda x: x, jnp.ones(2))[1](jnp.ones(3)), ShapeError, "a tangent has shape"),
    ],
)
def test_mistakes_are_explained(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_leaked_tracers_name_function_creation_and_use() -> None:
    leaks: list[Any] = []

    def careless(x: Any) -> Any:
        leaks.append(x * 2)
        return x * x

    vf.grad(careless)(1.0)
    with pytest.raises(LeakedTracerError, match=r"'careless'") as caught:
        leaks[0] + 1.0
    assert caught.value.location is not None
    assert caught.value.location.function.endswith("test_leaked_tracers_name_function_creation_and_use")


@pytest.mark.parametrize(("function", "shape"), [(lambda x: x, ()), (lambda x: x.reshape(()), (1,)), (lambda x: x.T[0, 0], (1, 1))])
def test_gradients_may_be_deleted_and_donated(function: Any, shape: tuple[int, ...]) -> None:
    x, donating = jnp.ones(shape), vf.jit(lambda g: 3 * g + 5, donate_argnums=0)
    for _ in range(4):  # step by step, in NumPy, and as machine code
        assert np.asarray(donating(vf.grad(function)(x))) == 8
        vf.grad(function)(x).delete()
        assert np.asarray(vf.grad(function)(x)) == 1
    assert vf.grad(lambda x: x * x)(jnp.float32(5)) == 10


def test_results_that_do_not_depend_on_the_input() -> None:
    assert float(vf.grad(lambda x: 3.0)(1.0)) == 0.0
    np.testing.assert_array_equal(vf.grad(lambda x: jnp.sum(jnp.ones(2)))(jnp.ones((2, 0))), np.zeros((2, 0)))
    _, tangent = vf.jvp(lambda x: (x, 5.0), (1.0,), (2.0,))
    assert float(tangent[1]) == 0.0
    _, pull_back = vf.vjp(lambda x, y: (y, 3), 1.0, 2.0)
    by_x, by_y = pull_back((4.0, np.zeros((), dtypes.float0)))
    assert (float(by_x), float(by_y)) == (0.0, 4.0)
    _, push = vf.linearize(lambda x, n: (x * n, n), 2.0, 3)
    tangents = push(1.0, np.zeros((), dtypes.float0))
    assert float(tangents[0]) == 3.0
    assert tangents[1].dtype == dtypes.float0


@pytest.mark.wide
def test_vjp_function_may_be_called_again_and_under_transforms() -> None:
    _, pull_back = vf.vjp(jnp.sin, jnp.asarray(X))
    once, again = pull_back(jnp.asarray(X))[0], pull_back(jnp.asarray(X))[0]
    np.testing.assert_array_equal(once, again)
    np.testing.assert_allclose(vf.vmap(pull_back)(jnp.eye(3, dtype="float64"))[0], np.diag(np.cos(X)))
    np.testing.assert_allclose(vf.jit(pull_back)(jnp.asarray(X))[0], np.cos(X) * X)
    np.testing.assert_allclose(vf.jvp(lambda c: pull_back(c)[0], (jnp.asarray(X),), (jnp.asarray(X),))[1], np.cos(X) * X)


def _mean(w: Any, xs: Any) -> Any:
    return jnp.sum(vf.vmap(loss, (None, 0))(w, xs))


@pytest.mark.wide
@pytest.mark.parametrize(
    "transform",
    [
        vf.grad(_mean),
        vf.grad(_mean, (0, 1)),
        vf.vmap(vf.grad(loss), (None, 0)),
        vf.jit(vf.vmap(vf.grad(vf.jit(loss), (0, 1)), (None, 0))),
        vf.jacfwd(vf.jit(_mean)),
        vf.hessian(_mean, 1),
        vf.checkpoint(_mean),
        vf.grad(vf.checkpoint(_mean)),
        lambda w, x: vf.linearize(_mean, w, x)[1](w, x),
        lambda w, x: vf.vjp(_mean, w, x)[1](jnp.ones((), w.dtype)),
        lambda w, x: vf.jvp(vf.grad(_mean), (w, x), (w, x)),
        vf.grad(lambda w, x: vf.grad(_mean, 1)(w, x).sum()),
    ],
)
def test_programs_of_transforms_are_well_formed(transform: Any) -> None:
    args = (jnp.asarray(W), jnp.stack([jnp.asarray(X)] * 3))
    program = vf.make_jaxpr(transform)(*args)
    vf.check_jaxpr(program)
    for actual, wanted in zip(eval_jaxpr(program, *args), vf.tree.leaves(transform(*args)), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.wide
def test_vjp_function_is_a_pytree_of_what_was_saved() -> None:
    """Return it from one jitted function and pass it to another, compiling once."""
    traced: list[int] = []

    def backward(pull_back: Any, cotangent: Any) -> Any:
        traced.append(1)
        return pull_back(cotangent)[0]

    forward = vf.jit(lambda x: vf.vjp(lambda x: {"y": jnp.sin(x) * x}, x))
    compiled = vf.jit(backward)
    for x in (np.float64(0.3), np.float64(1.1)):
        value, pull_back = forward(x)
        np.testing.assert_allclose(value["y"], np.sin(x) * x, rtol=1e-14)
        np.testing.assert_allclose(compiled(pull_back, {"y": np.float64(2)}), 2 * (np.cos(x) * x + np.sin(x)), rtol=1e-14)
    assert len(traced) == 1
    assert len(tree.leaves(pull_back)) > 0


# `VJP.args_res`: the saved arguments, which may be dropped and restored.


def _waste(x: vf.Array) -> vf.Array:
    return jnp.sin(jnp.exp(x) * x)


def _iteration(c: vf.Array, row: vf.Array) -> tuple[vf.Array, vf.Array]:
    return c * row, _waste(c)


#: Functions of (value, aux), and the numbers that the derivative of the value needs beside the argument.
WITH_AUX: dict[str, tuple[Any, int]] = {
    "plain": (lambda x: (2 * x, _waste(x)), 0),
    "jit": (vf.jit(lambda x: (2 * x, _waste(x))), 0),
    "call in a call": (vf.jit(lambda x: (2 * x, vf.jit(lambda x: (x, _waste(x)))(x)[1])), 0),
    "checkpoint": (vf.checkpoint(lambda x: (2 * x, _waste(x))), 0),
    "cond": (lambda x: vf.lax.cond(x[0] < 9, lambda x: (2 * x, _waste(x)), lambda x: (x, _waste(x + 1)), x), 0),
    "rows of scan": (lambda x: vf.lax.scan(_iteration, x[0], x), 4),
    "rows in scan": (lambda x: vf.lax.scan(lambda c, r: (_iteration(c, r)[0], None), x[0], x), 4),
    "call in scan": (lambda x: vf.lax.scan(vf.jit(_iteration), x[0], x), 4),
    "carry of scan": (lambda x: vf.lax.scan(lambda c, r: ((2 * c[0], _waste(c[1]) + r), None), (x, x[0]), x)[0], 0),
}


@pytest.mark.parametrize("name", WITH_AUX)
def test_what_only_aux_needs_is_neither_saved_nor_evaluated(name: str) -> None:
    function, count = WITH_AUX[name]
    x = jnp.arange(1.0, 5.0)
    for _ in range(3):  # the second call runs compiled programs
        value, pull_back, aux = vf.vjp(function, x, has_aux=True)
        assert sum(r.size for r in pull_back.opaque_residuals) == count
        push = vf.linearize(function, x, has_aux=True)[1]
        assert str(vf.make_jaxpr(push)(x)).count("= mul") <= 2
        expected, tangent = vf.jvp(lambda x: function(x)[0], (x,), (x,))
        np.testing.assert_array_equal(value, expected)
        np.testing.assert_allclose(push(x), tangent, rtol=1e-6)
        np.testing.assert_allclose(jnp.vdot(pull_back(value)[0], x), jnp.vdot(tangent, value), rtol=1e-6)
        assert vf.tree.structure(aux) == vf.tree.structure(function(x)[1])


def test_a_saved_argument_may_be_dropped_and_restored() -> None:
    x, w = jnp.arange(6.0).reshape(2, 3), jnp.arange(12.0).reshape(3, 4)

    def f(x: Any, w: Any) -> Any:
        return jnp.sin(1.5 * x) @ w

    g = np.cos(np.arange(8.0, dtype="float32")).reshape(2, 4)
    expected = jax.vjp(lambda x, w: jax.numpy.sin(1.5 * x) @ w, x.__array__(), w.__array__())[1](g)
    for function in (f, vf.jit(f), vf.checkpoint(f)):
        pull_back = vf.vjp(function, x, w)[1]
        np.testing.assert_array_equal(pull_back.args_res[1], w)
        pull_back.args_res[1] = None
        with pytest.raises(ArgumentError, match=re.escape("lacks an argument of type f32[3,4]")):
            pull_back(g)
        pull_back.args_res[1] = w.T
        with pytest.raises(ArgumentError, match=re.escape("type f32[4,3] in place of one of type f32[3,4]")):
            pull_back(g)
        for again in (w, np.asarray(w)):
            pull_back.args_res[1] = again
            for actual, wanted in zip(pull_back(g), expected, strict=True):
                np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)


def test_arguments_that_are_not_saved_are_marked() -> None:
    x = {"a": jnp.arange(3.0), "none": None, "b": jnp.ones(3), "n": jnp.arange(3)}
    pull_back = vf.vjp(lambda x, y: jnp.exp(x["a"]) * x["b"] + y, x, jnp.ones(3))[1]
    first, second = pull_back.args_res
    assert first["a"] == first["n"] == second == NotNeeded()
    np.testing.assert_array_equal(first["b"], np.ones(3))
    (saved,) = pull_back.opaque_residuals
    np.testing.assert_allclose(saved, np.exp(np.arange(3.0)) * 1.0, rtol=1e-6)
    first["b"] = 2 * first["b"]
    np.testing.assert_allclose(pull_back(np.ones(3, "float32"))[0]["b"], np.exp(np.arange(3.0)), rtol=1e-6)


def test_a_jitted_function_takes_saved_arguments_apart() -> None:
    @vf.jit
    def forward(x: Any, w: Any) -> Any:
        value, pull_back = vf.vjp(lambda x, w: x @ w, x, w)
        pull_back.args_res[1] = None
        return value, pull_back

    @vf.jit
    def backward(pull_back: Any, w: Any, g: Any) -> Any:
        pull_back.args_res[1] = w
        return pull_back(g)

    x, w, g = jnp.arange(6.0).reshape(2, 3), jnp.arange(12.0).reshape(3, 4), jnp.ones((2, 4))
    _, pull_back = forward(x, w)
    assert [leaf.shape for leaf in tree.leaves(pull_back)] == [(2, 3)]
    by_x, by_w = backward(pull_back, w, g)
    np.testing.assert_array_equal(by_x, np.asarray(g) @ np.asarray(w).T)
    np.testing.assert_array_equal(by_w, np.asarray(x).T @ np.asarray(g))


def test_saved_arguments_outlive_the_callers_arrays() -> None:
    x, w = jnp.arange(3.0), jnp.arange(3.0) + 1
    pull_back = vf.vjp(lambda x, w: x * w, x, w)[1]
    x.delete()
    vf.jit(lambda w: w + 1, donate_argnums=0)(w)
    by_x, by_w = pull_back(np.ones(3, "float32"))
    assert (by_x.tolist(), by_w.tolist()) == ([1, 2, 3], [0, 1, 2])


def test_arguments_that_share_memory_are_told_apart() -> None:
    x = jnp.arange(9.0).reshape(3, 3)
    _, pull_back = vf.vjp(lambda x, y: x @ y, x, x.T)
    by_x, by_y = pull_back(np.eye(3, dtype="float32"))
    np.testing.assert_array_equal(by_x, x)
    np.testing.assert_array_equal(by_y, np.asarray(x).T)


def test_jitted_functions_return_placeholders() -> None:
    @vf.jit
    def f(x: Any) -> Any:
        return vf.vjp(lambda x, y: x * y, x, x)[1].with_refs(GradValue(), DontWant())(1.0)

    assert f(3.0) == (3.0, DidntWant())


# `VJP.with_refs`: gradients by references, and into them.


def test_gradient_by_a_reference_that_is_read_and_written() -> None:
    def f(ref: Any, scale: Any) -> Any:
        ref[...] = scale * jnp.sin(ref[...])
        return ref[...] ** 2

    ref, gradient = vf.new_ref(2.0), vf.new_ref(100.0)
    value, pull_back = vf.vjp(f, ref, 3.0)
    assert pull_back.with_refs(gradient, GradValue())(1.0)[0] == GradRef()
    pure = lambda x, scale: (scale * jax.numpy.sin(x)) ** 2
    np.testing.assert_allclose(value, pure(2.0, 3.0), rtol=1e-6)
    np.testing.assert_allclose(ref[...], 3.0 * np.sin(2.0), rtol=1e-6)
    # The last value's cotangent is what the gradient reference held.
    wanted, by_scale = jax.grad(lambda x, s: pure(x, s) + 100.0 * s * jax.numpy.sin(x), argnums=(0, 1))(2.0, 3.0)
    np.testing.assert_allclose(gradient[...], wanted, rtol=1e-5)
    gradient[...] = 100.0
    np.testing.assert_allclose(pull_back.with_refs(gradient, GradValue())(1.0)[1], by_scale, rtol=1e-5)


def test_cotangents_accumulate() -> None:
    take = vf.jit(lambda x, i: x[i])
    total = vf.new_ref(jnp.zeros(6))
    for i in (3, 5, 3):
        _, pull_back, aux = vf.vjp(lambda x, i: (take(x, i), x.sum()), jnp.arange(6.0), i, has_aux=True)
        placed, by_index = pull_back.with_refs(total, GradValue())(1.0)
        assert placed == GradRef()
        assert by_index.dtype == vf.dtypes.float0
        assert aux == 15.0
    assert total[...].tolist() == [0.0, 0.0, 0.0, 2.0, 0.0, 1.0]


def test_unwanted_cotangents_and_trees() -> None:
    _, pull_back = vf.vjp(lambda tree, x: tree["w"] * tree["b"] * x, {"w": 2.0, "b": 3.0}, 5.0)
    weight = vf.new_ref(0.0)
    result, by_x = pull_back.with_refs({"w": weight, "b": DontWant()}, GradValue())(1.0)
    assert result == {"w": GradRef(), "b": DidntWant()}
    assert (float(weight[...]), float(by_x)) == (15.0, 6.0)


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_of_microbatches_in_a_scan(compiled: bool) -> None:
    def loss(w: Any, rows: Any) -> Any:
        return jnp.mean(vf.lax.scan(lambda x, m: (jnp.tanh(x @ m), None), rows, w)[0])

    def accumulate(w: Any, batches: Any) -> Any:
        total = vf.new_ref(jnp.zeros_like(w))

        def step(_: None, rows: Any) -> Any:
            value, pull_back = vf.vjp(lambda w: loss(w, rows), w)
            pull_back.with_refs(total)(jnp.ones_like(value))
            return None, value

        losses = vf.lax.scan(step, None, batches)[1]
        return vf.freeze(total), losses

    w = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 3)).astype("float32"))
    batches = jnp.arange(24.0).reshape(4, 2, 3) / 24.0
    actual, losses = (vf.jit(accumulate) if compiled else accumulate)(w, batches)
    wanted = vf.grad(lambda w: sum(loss(w, rows) for rows in batches))(w)
    np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-7)
    assert losses.shape == (4,)


def test_unfit_entries_raise() -> None:
    _, pull_back = vf.vjp(lambda ref: ref[...], vf.new_ref(1.0))
    with pytest.raises(RefError, match="with_refs"):
        pull_back(1.0)
    with pytest.raises(RefError, match="accumulated into a reference"):
        pull_back.with_refs(GradValue())(1.0)
    _, pull_back = vf.vjp(lambda x, i: x * i, 1.0, 2)
    with pytest.raises(ArgumentError, match="one entry per argument"):
        pull_back.with_refs(GradValue())(1.0)
    with pytest.raises(ArgumentError, match="got 3"):
        pull_back.with_refs(3, GradValue())(1.0)
    with pytest.raises(RefError, match="integer"):
        pull_back.with_refs(GradValue(), vf.new_ref(1))(1.0)


def test_complex_tangents_of_real_arguments_are_refused() -> None:
    """A weakly typed tangent is converted, but not so that it loses its imaginary part."""
    for x in (2.0, vf.numpy.array(2.0), np.float32(2)):
        for direction in (1j, np.complex64(1)):
            with pytest.raises(DTypeError, match="a tangent has dtype complex64"):
                vf.jvp(lambda y: y * 2, (x,), (direction,))
            with pytest.raises(DTypeError, match="a tangent has dtype complex64"):
                vf.linearize(lambda y: y * 2, x)[1](direction)
            with pytest.raises(DTypeError, match="a cotangent has dtype complex64"):
                vf.vjp(lambda y: y * 2, x)[1](direction)
        assert vf.jvp(lambda y: y * 2, (x,), (3,))[1] == 6
    assert vf.jvp(lambda z: z * 2, (np.complex64(1),), (3.0,))[1] == 6
