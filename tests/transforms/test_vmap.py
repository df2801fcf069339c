"""vmap: axes for trees, nesting with other transforms, named axes, messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax
from volta_fn.errors import (
    ArgumentError,
    ArgumentTypeError,
    LeakedTracerError,
    ShapeError,
    TracerBoolError,
    TreeError,
    UnsupportedError,
    VoltaError,
)

A = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("out", [0, 1, -1])
def test_every_axis_in_and_out(axis: int, out: int) -> None:
    actual = vf.vmap(lambda x: jnp.cumsum(x, 0) * 2, axis, out)(A)
    expected = np.stack([2 * np.cumsum(x, 0) for x in np.moveaxis(A, axis, 0)], out)
    np.testing.assert_array_equal(actual, expected)


def test_axes_as_trees_and_prefixes() -> None:
    p = {"w": A[0], "b": (A[0, 0], 2.0)}
    f = lambda p, x: {"y": p["w"] * x + p["b"][1], "b": p["b"][0]}
    result = vf.vmap(f, ({"w": 1, "b": None}, None), {"y": 1, "b": None})(p, 3.0)
    np.testing.assert_array_equal(result["y"], A[0] * 3 + 2)
    np.testing.assert_array_equal(result["b"], A[0, 0])
    result = vf.vmap(f, [{"w": 0, "b": (None, None)}, 0])(p, np.arange(3.0, dtype=np.float32))
    np.testing.assert_array_equal(result["y"], A[0] * np.arange(3.0, dtype=np.float32)[:, None] + 2)
    np.testing.assert_array_equal(result["b"], np.stack([A[0, 0]] * 3))
    np.testing.assert_array_equal(vf.vmap(lambda x, y: x * y, (None, 0))(2.0, y := np.arange(3.0, dtype=np.float32)), 2 * y)
    np.testing.assert_array_equal(vf.vmap(lambda x, *, y: x * y)(y, y=y), y * y)
    np.testing.assert_array_equal(vf.vmap(lambda x, y: x - y, in_axes=-1)(A, A[0]), A.transpose(2, 0, 1) - A[0].T[:, None])


def test_what_is_not_mapped_may_be_anything() -> None:
    apply = lambda f, x, name: f(x) if name == "sine" else x
    np.testing.assert_array_equal(vf.vmap(apply, (None, 0, None))(jnp.sin, A, "sine"), jnp.sin(A))
    with pytest.raises(ArgumentTypeError, match="expected an array"):
        vf.vmap(apply, (None, 0, 0))(jnp.sin, A, "sine")


def test_size_from_axis_size_alone() -> None:
    np.testing.assert_array_equal(vf.vmap(lambda: jnp.ones(2), axis_size=3)(), np.ones((3, 2)))
    np.testing.assert_array_equal(vf.vmap(lambda x: x, None, axis_size=3)(2.0), [2.0] * 3)
    assert vf.vmap(lambda x: x * 2)(np.zeros((0, 3), np.float32)).shape == (0, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: vf.vmap(lambda x, y: x)(A, A[0]),
            ShapeError,
            r"inconsistent sizes for array axes to be mapped: <lambda> takes x of shape \(2, 3, 4\) along axis 0, y of shape \(3, 4\)",
        ),
        (lambda: vf.vmap(lambda x: x)(1.0), ShapeError, r"in_axes says axis 0 of x, which has shape \(\)"),
        (lambda: vf.vmap(lambda x: x, 3)(A), ShapeError, "in_axes says axis 3"),
        (lambda: vf.vmap(lambda x: x, (0, 0))(A), ArgumentError, "in_axes has 2 entries, but the call has 1"),
        (lambda: vf.vmap(lambda x: x, None)(A), ArgumentError, "nothing is mapped"),
        (lambda: vf.vmap(lambda x: x, 1.0)(A), ArgumentError, "integers and None, got 1.0"),
        (lambda: vf.vmap(lambda x: x, True)(A), ArgumentError, "integers and None, got True"),
        (lambda: vf.vmap(lambda x: {"a": 1, "b": x}, 0, None)(A), ArgumentError, r"at vmap out_axes\['b'\].* axis spec None .* on axis 0"),
        (lambda: vf.vmap(lambda x: x, 0, 3)(A), ShapeError, "out_axes says 3, but the stacked result has 3 dimensions"),
        (lambda: vf.vmap(lambda x: x, axis_size=5)(A), ShapeError, "inconsistent sizes .*, axis_size=5"),
        (lambda: vf.vmap(lambda p: p, ({"a": 0},))({"b": A}), TreeError, ""),
        (lambda: vf.vmap(lambda x: (x, x), 0, (0, 0, 0))(A), TreeError, ""),
        (lambda: vf.vmap("f"), ArgumentTypeError, "vmap transforms a function"),
        (lambda: vf.vmap(lambda x: x, sum_match=True), UnsupportedError, "sum_match=True is not supported"),
        (lambda: vf.vmap(lambda x: x if x > 0 else -x)(A[0, 0]), TracerBoolError, "a value mapped by vmap, of which there are 4"),
    ],
)
def test_mistakes_are_explained(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"(?s){message}"):
        call()


def test_leaked_tracers_are_named() -> None:
    leaks: list[Any] = []

    def careless(x: Any) -> Any:
        leaks.append(x)
        return x

    vf.vmap(careless)(A)
    for use in (lambda: leaks[0] + 1, lambda: vf.jit(lambda x: x + leaks[0])(1.0), lambda: vf.vmap(lambda x: x * leaks[0])(A)):
        with pytest.raises(LeakedTracerError, match="'careless'.*mapped by vmap"):
            use()


def test_a_loop_of_one_example_masks_nothing() -> None:
    """Its body updates an array in place, where a mask would pass over the array in every iteration."""

    def fill(start: Any, end: Any, x: Any) -> Any:
        return lax.while_loop(lambda s: s[0] < end, lambda s: (s[0] + 1, s[1].at[s[0]].set(s[0] * x)), (start, jnp.zeros(6)))

    def expected(start: int, end: int, x: float) -> tuple[int, list[float]]:
        return max(start, end), [i * x if start <= i < end else 0 for i in range(6)]

    calls = [(1, 4, 0.5), (3, 6, 2.0), (4, 2, 1.0)]
    for call in calls:
        for mapped in (vf.vmap(fill), vf.jit(vf.vmap(fill))):
            ends, filled = mapped(*[jnp.array([a]) for a in call])
            assert (ends.tolist(), filled.tolist()) == ([expected(*call)[0]], [expected(*call)[1]])
    ends, filled = vf.vmap(vf.vmap(fill))(*[jnp.array(column)[:, None] for column in zip(*calls, strict=True)])
    assert ends.tolist() == [[expected(*call)[0]] for call in calls] and filled.tolist() == [[expected(*call)[1]] for call in calls]
    text = str(vf.make_jaxpr(vf.vmap(fill))(*[jnp.array([a]) for a in calls[0]]))
    assert "f32[1,6] = select_n" not in text and "reduce_or" not in text


@pytest.mark.wide
def test_nesting_with_jit_grad_and_control_flow() -> None:
    jax = pytest.importorskip("jax")
    a = A.astype(np.float32) / 10

    def results(api: Any, np_: Any, lax_: Any) -> list[Any]:
        body = lambda c, x: (np_.tanh(c + x), c * x)
        f = lambda x: np_.sum(lax_.scan(body, x[0], x)[1])
        chosen = lambda p, x: lax_.cond(p, np_.sin, lambda x: x * 2, x)
        powers = lambda n, x: lax_.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * x), (0, x))[1]
        return [
            api.vmap(api.vmap(f, 1), 2)(a[None]),
            api.vmap(api.grad(f))(a),
            api.jit(api.grad(lambda a: np_.sum(api.vmap(f, 2)(a))))(a),
            api.vmap(api.jit(api.vmap(lambda x, y: np_.dot(x, y), (0, None))), (1, 0))(a, a[0]),
            api.vmap(chosen)(np.array([True, False]), a),
            api.vmap(powers, (0, None))(np.array([1, 5, 0]), a[0, 1]),
            api.vmap(api.grad(lambda x, p: np_.sum(chosen(p, x))), (None, 0))(a, np.array([True, False])),
            api.jacfwd(api.vmap(np_.sum))(a),
        ]

    for number, (ours, theirs) in enumerate(zip(results(vf, jnp, lax), jax.jit(lambda: results(jax, jax.numpy, jax.lax))(), strict=True)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6, err_msg=str(number))


# A named axis that only a nested program speaks of.

CENTRED = A[0] - A[0].sum(0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - lax.psum(x, "i"),
        vf.jit(lambda x: x - lax.psum(x, "i")),
        lambda x: x - vf.jit(lambda: lax.psum(x, "i"))(),
        lambda x: lax.scan(lambda c, row: (c, row - lax.psum(row, "i")), 0.0, x)[1],
        lambda x: lax.cond(True, lambda: x - lax.psum(x, "i"), lambda: x),
        lambda x: lax.cond(lax.psum(1, "i") == 3, lambda x: x - lax.psum(x, "i"), lambda x: x, x),
        lambda x: lax.fori_loop(0, 1, lambda i, v: v - lax.psum(v, "i"), x),
        vf.checkpoint(lambda x: x - lax.psum(x, "i")),
        vf.jit(vf.checkpoint(vf.jit(lambda x: x - lax.psum(x, "i")))),
        vf.vmap(lambda x: x - lax.psum(x, "i")),
        vf.vmap(vf.jit(lambda x: x - lax.psum(x, "i")), axis_name="j"),
    ],
)
def test_named_axis_inside_programs(function: Any) -> None:
    np.testing.assert_allclose(vf.vmap(function, axis_name="i")(A[0]), CENTRED)
    np.testing.assert_allclose(vf.jit(vf.vmap(function, axis_name="i"))(A[0]), CENTRED)
    vf.check_jaxpr(vf.make_jaxpr(vf.vmap(function, axis_name="i"))(A[0]))


@pytest.mark.wide
def test_a_name_used_only_where_no_argument_is_mapped() -> None:
    for function in (
        lambda x: lax.axis_index("i") * 1.0,
        vf.jit(lambda x: lax.axis_index("i") * 1.0),
        lambda x: lax.scan(lambda c, _: (c + lax.axis_index("i"), None), 0, None, length=1)[0] * 1.0,
        lambda x: lax.cond(True, lambda: lax.axis_index("i") * 1.0, lambda: 0.0),
        lambda x: lax.while_loop(lambda s: s[0] < 1, lambda s: (s[0] + 1, s[1] + lax.axis_index("i")), (0, 0))[1] * 1.0,
        lambda x: lax.while_loop(lambda s: s < lax.axis_index("i"), lambda s: s + 1, 0) * 1.0,
        vf.checkpoint(lambda x: lax.axis_index("i") * 1.0),
    ):
        np.testing.assert_array_equal(vf.vmap(function, axis_name="i")(np.zeros(3)), [0.0, 1.0, 2.0])
        np.testing.assert_array_equal(vf.jit(vf.vmap(function, axis_name="i"))(np.zeros(3)), [0.0, 1.0, 2.0])


@pytest.mark.wide
def test_one_jitted_function_under_axes_of_several_sizes() -> None:
    f = vf.jit(lambda x: lax.psum(x, "i"))
    for size in (2, 3, 2):
        np.testing.assert_array_equal(vf.vmap(f, axis_name="i")(np.ones(size)), [float(size)] * size)
    with pytest.raises(ArgumentError, match="no axis named 'i'"):
        f(1.0)


def test_gradients_through_named_axes_are_those_of_the_stacked_function() -> None:
    f = lambda xs: jnp.sum(vf.vmap(lambda x: lax.scan(lambda c, row: (c * lax.psum(row, "i"), None), 1.0, x)[0], axis_name="i")(xs) ** 2)
    stacked = lambda xs: jnp.sum(jnp.full(3, jnp.prod(jnp.sum(xs, 0))) ** 2)
    np.testing.assert_allclose(vf.grad(f)(A[0] / 10), vf.grad(stacked)(A[0] / 10), rtol=1e-6)  # seen: 1.2e-7
    inner = vf.vmap(vf.grad(lambda x: jnp.sum(lax.pmean(x, "i") ** 2)), axis_name="i")
    jax = pytest.importorskip("jax")
    theirs = jax.vmap(jax.grad(lambda x: jax.numpy.sum(jax.lax.pmean(x, "i") ** 2)), axis_name="i")
    np.testing.assert_allclose(inner(A[0]), theirs(A[0].astype("float32")), rtol=1e-6)


def test_errors_inside_are_typed() -> None:
    with pytest.raises(VoltaError):
        vf.vmap(lambda x: jnp.reshape(x, (5,)))(A)
