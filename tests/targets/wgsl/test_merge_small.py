"""Small kernels put together: fewer dispatches, the same values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn import numpy as jnp

GPU = vf.devices("gpu")[0]
SHAPES = [(3,), (4, 5), (), (128,), (7, 3), (64, 2), (1, 9), (256,)]


def arrays(dtype: Any = np.float32) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.uniform(1, 2, shape).astype(dtype) for shape in SHAPES]


def few(usual: int, with_eight: int) -> int:
    """Count the dispatches, usually and where a shader has no more than eight buffers: the kernels here have some twenty."""
    return with_eight if GPU.backend.gpu.capabilities.buffers <= 8 else usual


def run(function: Any, *args: Any, **options: Any) -> tuple[list[np.ndarray], int]:
    """Return the results on the GPU, and how many dispatches the second call took."""
    placed = lambda: vf.device_put(args, GPU)
    jitted = vf.jit(function, **options)
    vf.block_until_ready(jitted(*placed()))
    again = vf.block_until_ready(placed())
    before = GPU.backend.counters.dispatches
    results = vf.block_until_ready(jitted(*again))
    return [np.asarray(x) for x in vf.tree.leaves(results)], GPU.backend.counters.dispatches - before


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float16, np.uint8], ids=lambda d: d.__name__)
def test_an_update_of_many_parameters_is_few_dispatches(dtype: Any) -> None:
    params, grads = arrays(dtype), arrays(dtype)

    def update(params: Any, grads: Any) -> Any:
        return [p * 2 + g for p, g in zip(params, grads, strict=True)]

    results, dispatches = run(update, params, grads)
    assert dispatches <= few(2, 4)
    for actual, wanted in zip(results, update(params, grads), strict=True):
        np.testing.assert_array_equal(actual, wanted.astype(dtype))


def test_donated_parameters_are_updated_in_place() -> None:
    params, moments, grads = arrays(), arrays(), arrays()

    def update(state: Any, grads: Any) -> Any:
        params, moments = state
        moments = [m * 0.5 + g for m, g in zip(moments, grads, strict=True)]
        return [p - 0.25 * m for p, m in zip(params, moments, strict=True)], moments

    results, dispatches = run(update, (params, moments), grads, donate_argnums=0)
    assert dispatches <= few(2, 4)
    expected = update((params, moments), grads)
    for actual, wanted in zip(results, [*expected[0], *expected[1]], strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float16], ids=lambda d: d.__name__)
def test_sums_and_extremes_of_several_arrays_are_one_dispatch(dtype: Any) -> None:
    """Of rows, of columns and of everything, with what is computed element by element beside them."""
    rng = np.random.default_rng(0)
    x, y, z = (rng.integers(-9, 9, shape).astype(dtype) for shape in ((37, 20), (130, 33), (5, 3, 64)))

    def reduced(x: Any, y: Any, z: Any) -> Any:
        return x.sum(0), y.max(1), z.sum((0, 2)), y.argmin(0), x.min(), z * 2, (x - x.max(1, keepdims=True)).sum(1)

    results, dispatches = run(reduced, x, y, z)
    assert dispatches == few(1, 2)
    for actual, wanted in zip(results, reduced(x, y, z), strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_sums_wait_for_each_other_across_what_is_large() -> None:
    """As the gradients of biases do across the products of gradients, with the last of which they are done."""

    def backward(x: Any, w: Any, v: Any) -> Any:
        first = x @ w
        second = first @ v
        return first.sum(0), second.sum(0), second @ v.T, (second * second).sum()

    x, w, v = (np.random.default_rng(n).integers(-3, 3, (32, 32)).astype(np.float32) for n in range(3))
    results, dispatches = run(backward, x, w, v)
    assert dispatches == few(3, 4)
    for actual, wanted in zip(results, backward(x, w, v), strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_what_waits_for_another_is_a_dispatch_of_its_own() -> None:
    """Sums of columns in between keep the kernels from becoming one anyway."""

    def chain(x: Any, y: Any) -> Any:
        first = x * 2 + 1
        total = first.sum(0)
        second = y * total
        third = second[::-1] + first
        return third, second.sum(0), (total * 3)[::-1]

    x, y = np.arange(12, dtype=np.float32).reshape(4, 3), np.ones((4, 3), np.float32)
    results, _ = run(chain, x, y)
    for actual, wanted in zip(results, chain(x, y), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-6)


def test_each_turn_of_a_loop_updates_all() -> None:
    def step(carry: Any, x: Any) -> Any:
        a, b, c = carry
        return (a + x, b[::-1] * 2 - x, jnp.where(c > 0, c - x, c)), a.sum()

    xs = np.arange(5, dtype=np.float32)
    results, _ = run(lambda xs: vf.lax.scan(step, (jnp.zeros(3), jnp.ones(4), jnp.ones((2, 2))), xs), xs)
    carry, sums = (np.zeros(3), np.ones(4), np.ones((2, 2))), []
    for x in xs:
        carry, total = ((carry[0] + x, carry[1][::-1] * 2 - x, np.where(carry[2] > 0, carry[2] - x, carry[2])), carry[0].sum())
        sums.append(total)
    for actual, wanted in zip(results, [*carry, np.array(sums)], strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-6)


def test_what_a_scan_stacks_of_its_carry_is_not_copied() -> None:
    """Each step's carry is stacked as the step gets it, and as it leaves it."""

    def recurrence(x: Any, h: Any) -> Any:
        return lax.scan(lambda h, row: (jnp.tanh(h + row), (h, jnp.tanh(h + row), 2 * h)), h, x)

    x = np.random.default_rng(0).standard_normal((12, 8, 32)).astype(np.float32)
    actual, dispatches = run(recurrence, x, x[0])
    state, want = x[0], []
    for row in x:
        want.append(state)
        state = np.tanh(state + row)
    for result, wanted in zip(actual, [state, np.stack(want), np.stack([*want[1:], state]), 2 * np.stack(want)], strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-6)
    assert dispatches <= len(x) + 1  # a kernel for each step, and one that moves the stack on
