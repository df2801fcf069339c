"""Threads and asyncio tasks share arrays, jitted functions and transforms freely, and get what one thread alone gets, bit for bit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax, random

pytestmark = pytest.mark.usefixtures("frequent_thread_switches")

THREADS, ROUNDS = 8, 1000


def model(w: vf.Array, x: vf.Array) -> vf.Array:
    """Compute a scalar with some of everything: products, broadcasting, reductions, a nonlinearity."""
    return jnp.sum(jnp.tanh(x @ w) ** 2 / (1.0 + jnp.sum(x * x, axis=1, keepdims=True)))


shared_jit = vf.jit(vf.value_and_grad(model))


def jitted_call(w: vf.Array, x: vf.Array) -> Any:
    return shared_jit(w, x)


def fresh_trace(w: vf.Array, x: vf.Array) -> Any:
    return vf.jit(lambda w, x: jnp.cos(w) * jnp.sum(x))(w, x)


def eager_gradient(w: vf.Array, x: vf.Array) -> Any:
    return vf.grad(model, argnums=(0, 1))(w, x)


def nested_transforms(w: vf.Array, x: vf.Array) -> Any:
    return vf.vmap(lambda row: vf.jvp(lambda v: row @ jnp.sin(v), (w,), (w,))[1])(x)


def control_flow(w: vf.Array, x: vf.Array) -> Any:
    return vf.grad(lambda w: lax.scan(lambda c, row: (jnp.tanh(c + row @ w), None), jnp.zeros(3), x)[0].sum())(w)


def random_numbers(w: vf.Array, x: vf.Array) -> Any:
    return random.normal(random.fold_in(random.key(1), 2), (5,)) + w[0, 0]


TASKS = [jitted_call, fresh_trace, jitted_call, eager_gradient, jitted_call, nested_transforms, control_flow, random_numbers]


def arguments() -> tuple[vf.Array, vf.Array]:
    w_key, x_key = random.split(random.key(0))
    return random.normal(w_key, (4, 3)), random.normal(x_key, (6, 4))


def fingerprint(result: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in vf.tree.leaves(result)]


def one_thread_alone(args: tuple[vf.Array, vf.Array]) -> list[list[bytes]]:
    """Return the fingerprint of each task, once its eager calls are the programs that they become when repeated, with other last digits."""
    for task in TASKS * 5:
        task(*args)
    return [fingerprint(task(*args)) for task in TASKS]


def in_threads(work: Callable[[int], Any]) -> list[Any]:
    """Return the results of `work(0)`, …, each in a thread of its own, all starting at once."""
    barrier = threading.Barrier(THREADS)

    def start(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(start, range(THREADS)))


def test_eight_threads_get_what_one_gets_a_thousand_times_over() -> None:
    args = arguments()
    expected = one_thread_alone(args)

    def work(number: int) -> int:
        wrong = 0
        for i in range(ROUNDS):
            kind = (i + number) % len(TASKS)
            wrong += fingerprint(TASKS[kind](*args)) != expected[kind]
        return wrong

    assert in_threads(work) == [0] * THREADS


def test_threads_that_trace_one_function_at_once_share_one_program() -> None:
    args = arguments()
    function = vf.jit(lambda w, x: vf.grad(model)(w, x))
    prints = in_threads(lambda _: fingerprint(function(*args)))
    assert all(p == prints[0] for p in prints)
    assert function.cache_info().programs == 1


def test_a_trace_in_one_thread_is_invisible_in_another() -> None:
    tracing, done = threading.Event(), threading.Event()

    def traced(x: vf.Array) -> vf.Array:
        tracing.set()
        assert done.wait(10)
        return x * 2.0

    def elsewhere() -> vf.Array:
        assert tracing.wait(10)
        try:
            return jnp.arange(3.0) + 1.0
        finally:
            done.set()

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(vf.jit(traced), jnp.ones(2)), pool.submit(elsewhere)
        assert second.result().tolist() == [1.0, 2.0, 3.0]
        assert first.result().tolist() == [2.0, 2.0]


def test_asyncio_tasks_interleave() -> None:
    args = arguments()
    expected = one_thread_alone(args)
    device = jnp.zeros(()).device

    async def visitor(number: int) -> list[bool]:
        right = []
        for i in range(len(TASKS)):
            kind = (i + number) % len(TASKS)
            with vf.default_device(device):
                await asyncio.sleep(0)
                right.append(fingerprint(TASKS[kind](*args)) == expected[kind])
            await asyncio.sleep(0)
        return right

    async def crowd() -> list[list[bool]]:
        return await asyncio.gather(*[visitor(number) for number in range(50)])

    assert all(all(right) for right in asyncio.run(crowd()))
