"""`while_loop` and `fori_loop` against Python loops, their transforms and their messages."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, GradientError, ShapeError, TreeError


def halve(x: Any, stop: Any) -> Any:
    """Halve `x` until it is below `stop`, counting."""
    return lax.while_loop(lambda s: s[1] >= stop, lambda s: (s[0] + 1, s[1] / 2), (0, x))


def halve_by_hand(x: float, stop: float) -> tuple[int, float]:
    count = 0
    while x >= stop:
        count, x = count + 1, x / 2
    return count, x


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_runs_until_the_condition_fails(dtype: str) -> None:
    dt = vf.dtypes.as_dtype(dtype)
    for transform in (lambda f: f, vf.jit):
        for x, stop in [(100.0, 1.0), (0.5, 1.0)]:
            count, value = transform(halve)(np.array(x, dt), np.array(stop, dt))
            assert (int(count), float(value)) == halve_by_hand(x, stop)
            assert value.dtype == dt and count.dtype == np.int32


@pytest.mark.wide
def test_integers_and_trees() -> None:
    def collatz(state: Any) -> Any:
        n = state["n"]
        return {"n": lax.cond(n % 2 == 0, lambda k: k // 2, lambda k: 3 * k + 1, n), "seen": (state["seen"][0] + 1, None)}

    end = lax.while_loop(lambda s: s["n"] != 1, collatz, {"n": np.int64(27), "seen": (np.uint8(0), None)})
    assert int(end["seen"][0]) == 111 and end["n"].dtype == np.int64 and end["seen"][1] is None


def test_weak_start_takes_the_dtype_of_a_step() -> None:
    end = lax.while_loop(lambda x: x < 3, lambda x: x + np.float32(1.5), 0)
    assert end.dtype == np.float32 and float(end) == 3


@pytest.mark.wide
def test_every_way_of_mapping() -> None:
    xs, stops = np.array([100.0, 0.5, 7.0]), np.array([1.0, 3.0, 0.1])
    for axes in itertools.product((None, 0), repeat=2):
        if axes == (None, None):
            continue
        operands = [v if axis == 0 else v[2] for v, axis in zip((xs, stops), axes, strict=True)]
        counts, values = vf.vmap(halve, axes)(*operands)
        expected = [halve_by_hand(*[v[k] if axis == 0 else v[2] for v, axis in zip((xs, stops), axes, strict=True)]) for k in range(3)]
        assert [(int(c), float(v)) for c, v in zip(np.broadcast_to(counts, 3), values, strict=True)] == expected


@pytest.mark.wide
def test_mapped_body_and_common_condition() -> None:
    """The condition is the same for all examples, so the loop stays one loop with a scalar condition."""
    run = vf.vmap(lambda x: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * x), (0, x)))
    counts, values = run(np.array([2.0, 3.0]))
    assert np.asarray(values).tolist() == [16, 81] and np.asarray(counts).tolist() == [3, 3]
    loop = next(e for e in vf.jit(run).lower(np.array([2.0, 3.0])).jaxpr.eqns if e.primitive.name == "while")
    assert loop.params["cond_jaxpr"].in_avals[0].shape == ()


@pytest.mark.wide
def test_mapped_twice() -> None:
    xs = np.array([[100.0, 3.0], [0.5, 9.0]])
    counts, values = vf.jit(vf.vmap(vf.vmap(lambda x: halve(x, 1.0))))(xs)
    expected = [[halve_by_hand(x, 1.0) for x in row] for row in xs]
    assert np.stack([counts, values], -1).tolist() == np.array(expected).tolist()


@pytest.mark.wide
def test_forward_mode() -> None:
    """x halves until it is below stop: d/dx is 2^-count, and what is closed over counts as well."""

    def f(x: Any, w: Any) -> Any:
        return lax.while_loop(lambda s: s > 1.0, lambda s: s * w, x)

    (value, rate) = vf.jvp(f, (8.0, 0.3), (1.0, 0.5))
    np.testing.assert_allclose([float(value), float(rate)], [8 * 0.3**2, 0.3**2 + 8 * 2 * 0.3 * 0.5], rtol=1e-6)
    value, push = vf.linearize(f, 8.0, 0.3)
    np.testing.assert_allclose(float(push(1.0, 0.5)), float(rate), rtol=1e-6)
    rates = vf.jit(vf.vmap(lambda x: vf.jvp(lambda v: f(v, 0.5), (x,), (1.0,))[1]))(np.array([8.0, 3.0, 0.5]))
    assert np.asarray(rates).tolist() == [0.125, 0.25, 1.0]


def test_reverse_mode_passes_by_what_needs_no_derivative() -> None:
    """A loop over integers is no obstacle, nor is one whose result is not used for the gradient."""

    def f(x: Any) -> Any:
        count = lax.while_loop(lambda n: n < 5, lambda n: n + 2, 0)
        return x * x * count

    assert float(vf.grad(f)(3.0)) == 36
    assert float(vf.jit(vf.grad(f))(3.0)) == 36


def test_known_part_runs_once() -> None:
    """Linearization keeps what the loop computes without tangents: the value is there before the linear function is called."""

    def f(x: Any, n: Any) -> Any:
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 2, s[2] * x), (0, 1.0, x))

    (count, doubled, power), push = vf.linearize(lambda x: f(x, 3), 2.0)
    assert (int(count), float(doubled), float(power)) == (3, 8.0, 16.0)
    assert float(push(1.0)[2]) == 32


@pytest.mark.parametrize("wrap", [lambda f: f, vf.jit])
def test_reverse_mode_says_why_not(wrap: Any) -> None:
    with pytest.raises(GradientError, match=r"number of its iterations is unknown.*lax\.scan.*fori_loop.*jvp"):
        vf.grad(wrap(lambda x: halve(x, 1.0)[1]))(8.0)
    with pytest.raises(GradientError, match="traced bounds"):
        vf.grad(lambda x: vf.jit(lambda n: lax.fori_loop(0, n, lambda i, v: v * x, x))(3))(3.0)


# fori_loop.


@pytest.mark.wide
@pytest.mark.parametrize(("lower", "upper"), [(0, 4), (2, 5), (3, 3), (5, 2), (-3, 1)])
def test_counts_like_range(lower: int, upper: int) -> None:
    def step(i: Any, total: Any) -> Any:
        return total * 2 + i

    expected = 1
    for i in range(lower, upper):
        expected = step(i, expected)
    assert int(lax.fori_loop(lower, upper, step, 1)) == expected
    assert int(vf.jit(lambda a, b: lax.fori_loop(a, b, step, 1))(lower, upper)) == expected
    assert int(vf.jit(lambda a: lax.fori_loop(a, upper, step, 1))(np.int8(lower))) == expected
    assert np.asarray(vf.vmap(lambda b: lax.fori_loop(lower, b, step, 1))(np.array([upper, lower]))).tolist() == [expected, 1]


@pytest.mark.wide
def test_known_bounds_have_a_gradient() -> None:
    """d/dx x^5 through four multiplications; the bounds may be concrete arrays too."""
    for upper in (4, np.int64(4), vf.device_put(np.int16(4))):
        assert float(vf.grad(lambda x, n=upper: lax.fori_loop(n * 0, n, lambda i, v: v * x, x))(2.0)) == 80
    hessian = vf.jit(vf.grad(vf.grad(lambda x: lax.fori_loop(0, 4, lambda i, v: v * x, x))))
    assert float(hessian(2.0)) == 160
    assert float(lax.fori_loop(0, 3, lambda i, v: v + i, 0.5, unroll=True)) == 3.5


def test_index_has_the_dtype_of_the_bounds() -> None:
    assert lax.fori_loop(np.int16(0), 3, lambda i, v: i, np.int16(0)).dtype == np.int16
    assert lax.fori_loop(0, 3, lambda i, v: v * i, np.int8(1)).dtype == np.int8


MESSAGES = [
    (lambda: lax.while_loop(lambda x: x, lambda x: x, 1), DTypeError, r"boolean scalar, but returned i32\[\]"),
    (lambda: lax.while_loop(lambda x: x < np.ones(2), lambda x: x, 1.0), ShapeError, r"returned bool\[2\].*\.any"),
    (lambda: lax.while_loop(lambda x: (x < 2,), lambda x: x, 1), TreeError, r"structure \(\*,\)"),
    (lambda: lax.while_loop(lambda x: x < 2, lambda x: (x,), 1), TreeError, "a leaf of type array and returns a tuple of 1"),
    (
        lambda: lax.while_loop(lambda x: True, lambda x: x[None], np.ones(2)),
        ShapeError,
        r"f64\[2\] at the carry itself and returns f64\[1,2\]",
    ),
    (lambda: lax.while_loop(lambda x: x["a"] < 2, lambda x: {"a": x["a"] * 1.5}, {"a": np.int32(1)}), DTypeError, r"carry\['a'\]"),
    (lambda: lax.while_loop(3, lambda x: x, 1), ArgumentTypeError, "while_loop"),
    (lambda: lax.fori_loop(0, 3, lambda i, x: {"w": x["w"][None]}, {"w": np.ones(2)}), ShapeError, r"fori_loop: .* at carry\['w'\]"),
    (lambda: vf.jit(lambda n: lax.fori_loop(0, n, lambda i, x: (x, x), 1.0))(3), TreeError, "fori_loop: .* the carry itself"),
    (lambda: lax.fori_loop(0, np.ones(2, int), lambda i, x: x, 1), ShapeError, "bounds must be scalars"),
    (lambda: lax.fori_loop(np.int8(0), np.int32(2), lambda i, x: x, 1), DTypeError, "fori_loop"),
    (lambda: lax.fori_loop(False, True, lambda i, x: x, 1), DTypeError, "must be integers"),
    (lambda: vf.jit(lambda n: lax.fori_loop(0, n, lambda i, x: x, 1, unroll=2))(3), ArgumentError, "unroll"),
]


@pytest.mark.wide
@pytest.mark.parametrize(("call", "error", "message"), MESSAGES)
def test_messages(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
