"""Nothing grows with use, long programs need no deep stack, and convolution never builds its patches whole."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from benchmarks import memory
from volta_fn import lax

#: Far more than a stack has frames, of Python or of C.
EQUATIONS = 30_000

WINDOWS = 3

pytestmark = pytest.mark.usefixtures("new_objects_only")


def growth(work: Callable[[], object], times: int, warm_up: int) -> int:
    """Bytes that stay allocated after `work` was done `times` more times, after a warm-up that fills the caches, which have bounds.

    What leaks leaks always; a free list or a table that grows does so once. So the least of several equal windows counts.
    """
    tracemalloc.start()
    try:
        for _ in range(warm_up):
            work()
        return WINDOWS * min(_grown(work, times // WINDOWS) for _ in range(WINDOWS))
    finally:
        tracemalloc.stop()


def _grown(work: Callable[[], object], times: int) -> int:
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(times):
        work()
    gc.collect()
    return tracemalloc.get_traced_memory()[0] - before


def test_jitted_calls_leave_memory_flat() -> None:
    step = vf.jit(lambda params, x: vf.tree.map(lambda p: p - 0.1 * jnp.sum(x) * p, params))
    params, x = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}, jnp.ones(4)
    assert growth(lambda: step(params, x), times=1500, warm_up=500) < 3000  # two bytes a call: less than any object


def test_fresh_traces_leave_memory_flat() -> None:
    x = jnp.ones(4)
    assert (
        growth(lambda: vf.jit(lambda x: jnp.sin(x) * 2.0 + jnp.sum(x))(x), times=300, warm_up=400) < 6000
    )  # twenty bytes a trace, less than any object; a window varies by some 1000


def test_fresh_gradients_leave_memory_flat() -> None:
    x = jnp.ones(4)
    body = lambda c, row: (jnp.tanh(c * row), None)
    assert growth(lambda: vf.grad(lambda x: lax.scan(body, 1.0, x)[0])(x), times=75, warm_up=150) < 5000
    assert growth(lambda: vf.vmap(vf.grad(lambda x: jnp.sin(x) ** 2))(x), times=225, warm_up=300) < 6000  # a window varies by some 1000


def long_program(x: vf.Array) -> vf.Array:
    """Return a chain of EQUATIONS equations that grows slowly."""
    for _ in range(EQUATIONS // 2):
        x = x * 1.00002
        x = x - 1e-5
    return x


def test_a_program_of_30_000_equations_traces_runs_and_differentiates() -> None:
    x = jnp.asarray(np.linspace(0.5, 1.5, 3))
    assert x.dtype == np.float64
    slope = 1.00002 ** (EQUATIONS // 2)
    value = slope * np.asarray(x) - 1e-5 * (slope - 1) / 0.00002
    total, gradient = vf.jit(vf.value_and_grad(lambda x: jnp.sum(long_program(x))))(x)
    np.testing.assert_allclose(total, value.sum(), rtol=1e-9)
    np.testing.assert_allclose(gradient, np.full(3, slope), rtol=1e-9)


def test_the_convolution_layer_stays_within_its_memory() -> None:
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.standard_normal(shape, np.float32))
    side, channels, batch = memory.SIDE, memory.CHANNELS, 4  # whose patches are 144 MiB, of which none may be made
    x, ct = draw(batch, channels, side, side), draw(batch, channels, side, side)
    w = draw(channels, channels, memory.TAPS, memory.TAPS)
    extra, produced, _ = memory.beyond(vf.jit(memory.both), x, w, ct)
    assert produced == 2 * x.nbytes + w.nbytes
    assert extra < memory.BOUND
