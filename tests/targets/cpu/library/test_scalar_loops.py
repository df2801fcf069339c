"""Loops over single numbers are one routine, and compute what the steps one by one compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax, tree
from volta_fn.compiler.pipeline import lower
from volta_fn.targets.cpu.target import TARGET

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=9)


def python_scan(step: Callable[..., Any], carry: Any, rows: Any, reverse: bool = False) -> Any:
    outs: list[Any] = [None] * len(rows)
    for number in reversed(range(len(rows))) if reverse else range(len(rows)):
        carry, outs[number] = step(carry, rows[number])
    return carry, tree.map(lambda *leaves: jnp.stack(leaves), *outs)


def python_while(goes_on: Callable[..., Any], step: Callable[..., Any], carry: Any) -> Any:
    while goes_on(carry):
        carry = step(carry)
    return carry


STEPS: dict[str, Callable[..., Any]] = {
    "a decaying sum": lambda c, x: (c / 2 + x, c),
    "formulas": lambda c, x: (jnp.tanh(c) + jnp.exp(-x * x), jnp.where(x > 0, c, -x)),
    "comparisons": lambda c, x: (jnp.maximum(c, x), (c < x, x)),
    "a constant carry and result": lambda c, x: (c, x * 0 + 2),
    "nothing but the rows": lambda c, x: (x, c),
}
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "uint8")


def uses_one_routine(function: Callable[..., Any], *args: Any) -> bool:
    program = lower(vf.jit(function).lower(*args).jaxpr, TARGET)
    return any(item.key is not None and item.key.key[0] == "scalar loop" for item in program.items)


def check(loop: Callable[..., Any], expected: Any, *args: Any, eps: float = 0.0) -> None:
    assert uses_one_routine(loop, *args)
    actual = vf.jit(loop)(*args)
    assert tree.structure(actual) == tree.structure(expected)
    for ours, theirs in zip(tree.leaves(actual), tree.leaves(expected), strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        np.testing.assert_allclose(np.asarray(ours, complex), np.asarray(theirs, complex), rtol=8 * eps, atol=8 * eps)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", STEPS)
def test_scans(name: str, dtype: str, reverse: bool) -> None:
    rows = jnp.asarray(abs(ROWS) * 9 if dtype == "uint8" else ROWS).astype(dtype)
    start = jnp.asarray(1).astype(dtype)
    is_float = jnp.issubdtype(dtype, jnp.floating)

    def step(c: Any, x: Any) -> Any:
        after, out = STEPS[name](c, x)
        return after.astype(dtype), out

    eps = float(jnp.finfo(dtype).eps) if is_float else 0.0
    check(lambda c, x: lax.scan(step, c, x, reverse=reverse), python_scan(step, start, rows, reverse), start, rows, eps=eps)


def test_scans_of_complex_numbers_with_constants_and_several_carries() -> None:
    rows = jnp.asarray(ROWS + 1j).astype("complex64")
    factor = jnp.asarray(0.5j, dtype="complex64")

    def step(c: Any, x: Any) -> Any:
        first, second, count = c
        return (second, first * factor + x, count + 1), abs(first)

    start = (rows[0], rows[1], jnp.int32(3))
    check(lambda x, start: lax.scan(step, start, x), python_scan(step, start, rows), rows, start, eps=1e-6)


def test_a_scan_of_nothing() -> None:
    check(lambda x: lax.scan(STEPS["a decaying sum"], 1.5, x), (jnp.float32(1.5), jnp.zeros(0)), jnp.zeros(0))


@pytest.mark.parametrize("end", [0, 1, 7])
def test_while_loops(end: int) -> None:
    def goes_on(c: Any) -> Any:
        return c[0] < limit

    def step(c: Any) -> Any:
        return c[0] + 1, c[2], c[1] * scale + c[0].astype("float32"), ~c[3]

    limit, scale = jnp.int32(end), jnp.float32(0.75)
    start = (jnp.int32(0), jnp.float32(2.0), jnp.float32(-1.0), jnp.asarray(True))
    expected = python_while(goes_on, step, start)

    def loop(end: Any, factor: Any, start: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < end, lambda c: (c[0] + 1, c[2], c[1] * factor + c[0].astype("float32"), ~c[3]), start)

    check(loop, expected, limit, scale, start)


def test_loops_with_counters() -> None:
    check(lambda n: lax.fori_loop(0, n, lambda i, c: c * 2 + i, 1), jnp.int32(32 + 26), jnp.int32(5))
    check(lambda x: lax.fori_loop(0, 5, lambda i, c: c * 2 + i, x), jnp.int32(32 + 26), jnp.int32(1))


@pytest.mark.parametrize(
    "loop",
    [
        lambda x: lax.scan(lambda c, r: (c + r, c), x[0], x),
        lambda x: lax.fori_loop(0, 3, lambda i, c: c + x[i % 2, 0], 0.0),
        lambda x: lax.scan(lambda c, r: (c + r.sum(), c), 0.0, x),
    ],
)
def test_loops_over_arrays_are_not_of_numbers(loop: Callable[..., Any]) -> None:
    assert not uses_one_routine(loop, jnp.ones((4, 3)))


def test_constants_are_told_apart() -> None:
    for addend in (0.1, np.nextafter(np.float32(0.1), np.float32(1)), -0.0, 0.0):
        actual = vf.jit(lambda x, a=np.float32(addend): lax.fori_loop(0, 3, lambda i, c: c * 0.5 + a, x))(jnp.float32(-0.0))
        expected = np.float32(-0.0)
        for _ in range(3):
            expected = np.float32(expected * np.float32(0.5)) + np.float32(addend)
        assert np.asarray(actual).tobytes() == np.float32(expected).tobytes()
