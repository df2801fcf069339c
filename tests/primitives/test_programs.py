"""Programs of nested control flow, each run here and by JAX: values, both derivatives, second derivatives, vmap, jit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import volta_fn as vf

jax = pytest.importorskip("jax")

RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return (0.5 * RNG.normal(size=shape)).astype(np.float32)


def recurrent(m: Any, h: Any, w: Any, xs: Any) -> Any:
    """Compute a recurrence whose parameters are closed over."""
    return m.lax.scan(lambda c, x: (m.lax.tanh(c * w + x), c * x), h, xs)


def backwards(m: Any, h: Any, w: Any, xs: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        return {"a": carry["b"] * w, "b": carry["a"] + m.lax.sin(row["x"])}, (carry["a"] * row["x"], w)

    return m.lax.scan(step, {"a": h, "b": h * 2}, {"x": xs}, reverse=True)


def invariant(m: Any, h: Any, w: Any, xs: Any) -> Any:
    """Scan with a closed-over value, of which the way back needs the same in every step."""

    def step(c: Any, x: Any) -> Any:
        scale = m.lax.exp(m.lax.sin(w))
        return m.lax.sin(c * scale) + x, m.lax.cos(scale) * c

    return m.lax.scan(step, h, xs)


def shifted(m: Any, h: Any, w: Any, xs: Any) -> Any:
    """Derivatives reach the parts of the carry one step after another; some parts lose theirs."""

    def step(carry: Any, x: Any) -> Any:
        a, b, c, d = carry
        return (x * w, a, m.lax.sin(b), c * 0 + 1), a * d

    return m.lax.scan(step, (h * 0, h * 0 + 1, h, h * w), xs)


def nested(m: Any, h: Any, w: Any, xs: Any) -> Any:
    def outer(c: Any, x: Any) -> Any:
        inner, ys = m.lax.scan(lambda d, i: (m.lax.sin(d * w) + i * x, d * i), c, xs)
        return inner * 0.5, (ys, c * x)

    return m.lax.scan(outer, h, xs)


def branching(m: Any, h: Any, w: Any, xs: Any) -> Any:
    """Choose in every step, by the carry, with values closed over on both levels."""

    def step(c: Any, x: Any) -> Any:
        def small(v: Any) -> Any:
            return m.lax.sin(v) * w, v * v

        def large(v: Any) -> Any:
            return m.lax.exp(-v * v) + x, w * 1.0

        return m.lax.cond(m.lax.reduce_max(c, tuple(range(c.ndim))) > 0.2, large, small, c + x)

    return m.lax.scan(step, h, xs)


def counted(m: Any, h: Any, w: Any, xs: Any) -> Any:
    def step(i: Any, value: Any) -> Any:
        count, x = value
        return count + 2 * i, m.lax.sin(x * w) + xs[0] * i

    return m.lax.fori_loop(1, 4, step, (0, h))


def switched(m: Any, h: Any, w: Any, xs: Any) -> Any:
    branches = [lambda a, b: a * b * w, lambda a, b: m.lax.sin(a) + 0 * b, lambda a, b: a * 0 + 2]
    return m.lax.scan(lambda c, i: (m.lax.switch(i, branches, c, w), c), h, np.array([0, 1, 5, -3, 2, 0], np.int32))


def vectorized(m: Any, h: Any, w: Any, xs: Any) -> Any:
    """Gradients by vmap in every step of a scan."""
    gradient = m.vmap(m.grad(lambda p, x: m.lax.sin(p * x) * p), (None, 0))
    rows = m.lax.reshape(xs, (xs.size,))

    def step(c: Any, x: Any) -> Any:
        slope = m.lax.reduce_sum(gradient(m.lax.reduce_sum(c, tuple(range(c.ndim))), rows), (0,))
        return c - 0.1 * slope * w + x, slope

    return m.lax.scan(step, h, xs)


def compiled(m: Any, h: Any, w: Any, xs: Any) -> Any:
    cell = m.jit(lambda c, x: m.lax.tanh(c * m.lax.exp(w) + x))
    return m.lax.scan(lambda c, x: (cell(c, x), None), h, xs)[0]


def chosen_loop(m: Any, h: Any, w: Any, xs: Any) -> Any:
    """Scan in one branch, and do nothing in the other."""
    go = m.lax.reduce_sum(xs, tuple(range(xs.ndim))) > -100
    return m.lax.cond(go, lambda c: m.lax.scan(lambda d, x: (d * w + x, None), c, xs)[0], lambda c: c, h)


def empty(m: Any, h: Any, w: Any, xs: Any) -> Any:
    return m.lax.scan(lambda c, x: (c * w + x, c * x), h * w, xs[:0])


def prefixes(m: Any, h: Any, w: Any, xs: Any) -> Any:
    """Compute a linear recurrence by associative combination of its steps."""

    def combine(first: Any, second: Any) -> Any:
        return first[0] * second[0], second[0] * first[1] + second[1]

    return m.lax.associative_scan(combine, (xs * w, xs + h), reverse=True)


def batched_rows(m: Any, h: Any, w: Any, xs: Any) -> Any:
    return m.lax.map(lambda x: m.lax.sin(x * w) + h, xs, batch_size=2)


PROGRAMS = [
    recurrent, backwards, invariant, shifted, nested, branching, counted, switched, vectorized, compiled, chosen_loop, empty, prefixes,
    batched_rows,
]  # fmt: skip


def until(m: Any, x: Any, w: Any) -> Any:
    """Loops of a number of steps that depends on the data, for forward mode."""

    def outer(carry: Any) -> Any:
        i, v = carry
        return i + 1, m.lax.while_loop(lambda u: u < 3.0, lambda u: u * u + w * w + 0.5, v * 0.3)

    return m.lax.while_loop(lambda carry: carry[0] < 3, outer, (0, x))[1]


def bounded(m: Any, x: Any, w: Any) -> Any:
    """Scan over a loop with a bound that the data give."""

    def step(c: Any, n: Any) -> Any:
        return m.lax.fori_loop(0, n, lambda i, v: m.lax.sin(v) * w + i, c), c

    return m.lax.scan(step, x, np.array([2, 0, 3], np.int32))


LOOPS = [until, bounded]


class Case(NamedTuple):
    program: Callable[..., Any]
    args: tuple[np.ndarray, ...]


def cases(programs: list[Callable[..., Any]], args: Callable[[], tuple[np.ndarray, ...]]) -> list[Any]:
    return [pytest.param(p, args(), id=p.__name__) for p in programs]


SHAPED = cases(PROGRAMS, lambda: (normal(2), normal(2), normal(5, 2)))
CASES = [*SHAPED, *cases(LOOPS, lambda: (np.float32(0.4), np.float32(0.7)))]


def flat(tree: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in vf.tree.leaves(tree)]


def assert_same(ours: Any, theirs: Any, rtol: float = 2e-5) -> None:
    actual, expected = flat(ours), [np.asarray(x) for x in jax.tree.leaves(theirs)]
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype and a.shape == e.shape
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, e, rtol=rtol, atol=rtol * max(1.0, float(np.abs(e).max(initial=0.0))))
        else:
            assert (a == e).all()


def differentiable(m: Any, program: Callable[..., Any]) -> Callable[..., Any]:
    """Return the program with only its floating results."""
    return lambda *args: [x for x in m.tree.leaves(program(m, *args)) if np.dtype(x.dtype).kind == "f"]


def scalar(m: Any, program: Callable[..., Any]) -> Callable[..., Any]:
    """Return a scalar that depends on every element of every floating result."""

    def value(*args: Any) -> Any:
        total: Any = 0.0
        for i, x in enumerate(differentiable(m, program)(*args)):
            weights = np.cos(np.arange(x.size, dtype=np.float32) + i).reshape(x.shape)
            total = total + m.lax.reduce_sum(x * weights, tuple(range(x.ndim)))
        return total

    return value


@pytest.mark.parametrize(("program", "args"), CASES)
def test_values_are_jaxs(program: Callable[..., Any], args: tuple[np.ndarray, ...]) -> None:
    expected = jax.jit(lambda *xs: program(jax, *xs))(*args)
    eager = program(vf, *map(vf.device_put, args))
    assert_same(eager, expected)
    assert_same(vf.jit(lambda *xs: program(vf, *xs))(*args), expected)
    theirs = [x.weak_type for x in jax.tree.leaves(expected)]
    assert [x.weak_type for x in vf.tree.leaves(eager)] == theirs


@pytest.mark.parametrize(("program", "args"), CASES)
def test_forward_mode_is_jaxs(program: Callable[..., Any], args: tuple[np.ndarray, ...]) -> None:
    rates = [np.cos(np.arange(a.size, dtype=np.float32)).reshape(a.shape) for a in args]
    expected = jax.jit(lambda a, r: jax.jvp(differentiable(jax, program), a, r))(args, tuple(rates))
    mine = differentiable(vf, program)
    assert_same(vf.jvp(mine, args, rates), expected)
    assert_same(vf.jit(lambda a, r: vf.jvp(mine, a, r))(args, tuple(rates)), expected)
    value, push = vf.linearize(mine, *args)
    assert_same((value, push(*rates)), expected)


@pytest.mark.parametrize(("program", "args"), SHAPED)
def test_reverse_mode_is_jaxs(program: Callable[..., Any], args: tuple[np.ndarray, ...]) -> None:
    everything = tuple(range(len(args)))
    expected = jax.jit(jax.grad(scalar(jax, program), everything))(*args)
    gradient = vf.grad(scalar(vf, program), everything)
    assert_same(gradient(*args), expected)
    assert_same(vf.jit(gradient)(*args), expected)


@pytest.mark.parametrize(("program", "args"), SHAPED)
def test_second_derivatives_are_jaxs(program: Callable[..., Any], args: tuple[np.ndarray, ...]) -> None:
    """Forward over reverse and reverse over reverse, by all arguments, along one direction."""
    everything = tuple(range(len(args)))
    rates = tuple([np.sin(1 + np.arange(a.size, dtype=np.float32)).reshape(a.shape) for a in args])
    theirs = jax.grad(scalar(jax, program), everything)
    expected = jax.jit(lambda a, r: jax.jvp(theirs, a, r)[1])(args, rates)
    gradient = vf.grad(scalar(vf, program), everything)
    assert_same(vf.jvp(gradient, args, rates)[1], expected, 1e-4)

    def slope(*xs: Any) -> Any:
        products = [vf.lax.reduce_sum(g * r, tuple(range(g.ndim))) for g, r in zip(gradient(*xs), rates, strict=True)]
        return products[0] + products[1] + products[2]

    assert_same(vf.jit(vf.grad(slope, everything))(*args), expected, 1e-4)


@pytest.mark.parametrize(("program", "args"), CASES)
def test_vmap_is_a_loop(program: Callable[..., Any], args: tuple[np.ndarray, ...]) -> None:
    """For every choice of mapped arguments, and with all stacked along their last axis."""

    def run(*xs: Any) -> Any:
        return program(vf, *xs)

    scaled = [[(a * s).astype(np.float32) for s in (1.0, -0.7, 1.6)] for a in args]
    for mapped in [*itertools.product((None, 0), repeat=len(args)), (-1,) * len(args)]:
        if not any(axis is not None for axis in mapped):
            continue
        pairs = list(zip(scaled, mapped, strict=True))
        actual = flat(vf.vmap(run, mapped)(*[s[0] if axis is None else np.stack(s, axis) for s, axis in pairs]))
        each = [flat(run(*[s[0 if axis is None else i] for s, axis in pairs])) for i in range(3)]
        for a, rows in zip(actual, zip(*each, strict=True), strict=True):
            np.testing.assert_allclose(a, np.stack(rows), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("program", "args"), SHAPED)
def test_vmap_of_gradient_is_a_loop(program: Callable[..., Any], args: tuple[np.ndarray, ...]) -> None:
    gradient = vf.jit(vf.grad(scalar(vf, program), tuple(range(len(args)))))
    stacks = [np.stack([a, a * -0.7]).astype(np.float32) for a in args]
    actual = flat(vf.vmap(gradient)(*stacks))
    each = [flat(gradient(*[s[i] for s in stacks])) for i in range(2)]
    for a, rows in zip(actual, zip(*each, strict=True), strict=True):
        np.testing.assert_allclose(a, np.stack(rows), rtol=1e-4, atol=1e-4)
