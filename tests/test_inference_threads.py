"""Thirty-two threads infer on one shared model while another thread trains a copy: no lock of ours, no wrong answer."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import nn, optim, random

pytestmark = pytest.mark.usefixtures("frequent_thread_switches")

THREADS, ROUNDS = 32, 16


class Mixed(nn.Module):
    """Some of every kind of layer: convolution, batch norm (with its state), LSTM, attention."""

    conv: nn.Conv1d
    norm: nn.BatchNorm1d
    lstm: nn.LSTM
    attention: nn.TransformerEncoderLayer
    out: nn.Linear

    def __call__(self, x: vf.Array, state: Any, *, training: bool = False) -> tuple[vf.Array, Any]:
        x, norm = self.norm(self.conv(x), state["norm"], training=training)
        hidden, _ = self.lstm(nn.relu(x).swapaxes(1, 2))
        return self.out(self.attention(hidden, is_causal=True)[:, -1]), {"norm": norm}


def make() -> tuple[Mixed, Any]:
    keys = random.split(random.key(0), 4)
    return Mixed.join(
        conv=nn.Conv1d.init(keys[0], 2, 6, 3, padding=1),
        norm=nn.BatchNorm1d.init(6),
        lstm=nn.LSTM.init(keys[1], 6, 8),
        attention=nn.TransformerEncoderLayer.init(keys[2], 8, 2, 16, dropout=0.0),
        out=nn.Linear.init(keys[3], 8, 3),
    )


def infer(model: Mixed, state: Any, x: vf.Array) -> vf.Array:
    return model(x, state)[0]


compiled = vf.jit(infer)
optimizer = optim.adamw(1e-2)


@functools.partial(vf.jit, donate_argnums=(0, 1, 2))
def step(model: Mixed, state: Any, moments: Any, x: vf.Array, labels: vf.Array) -> tuple[Mixed, Any, Any, vf.Array]:
    def loss(model: Mixed) -> tuple[vf.Array, Any]:
        y, new = model(x, state, training=True)
        return nn.cross_entropy(y, labels), new

    (value, new), grads = vf.value_and_grad(loss, has_aux=True)(model)
    updates, moments = optimizer.update(grads, moments, model)
    return optim.apply_updates(model, updates), new, moments, value


def fingerprint(value: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in vf.tree.leaves(value)]


def train(model: Mixed, state: Any, done: threading.Event) -> list[float]:
    """Losses of training a copy until the others are done, its memory used over and over again."""
    model, state = vf.device_put(vf.device_get((model, state)))
    moments = optimizer.init(model)
    x, labels = random.normal(random.key(1), (12, 2, 10)), jnp.arange(12) % 3
    losses: list[float] = []
    while not done.is_set() or len(losses) < 20:
        model, state, moments, value = step(model, state, moments, x, labels)
        losses.append(float(value))
    return losses


def test_thirty_two_threads_infer_while_another_trains_a_copy() -> None:
    model, state = make()
    inputs = [random.normal(random.fold_in(random.key(2), i), (1 + i % 3, 2, 10)) for i in range(6)]
    before = fingerprint((model, state))
    calls = [compiled, infer, vf.vmap(lambda model, state, row: infer(model, state, row[None])[0], in_axes=(None, None, 0))]
    expected = [[fingerprint(call(model, state, x)) for x in inputs] for call in calls]
    done, barrier = threading.Event(), threading.Barrier(THREADS)

    def client(number: int) -> int:
        barrier.wait(60)
        wrong = 0
        for turn in range(ROUNDS):
            kind, i = 0 if turn % 3 else number % len(calls), (number + turn) % len(inputs)
            wrong += fingerprint(calls[kind](model, state, inputs[i])) != expected[kind][i]
        return wrong

    with ThreadPoolExecutor(THREADS + 1) as pool:
        training = pool.submit(train, model, state, done)
        try:
            wrong = list(pool.map(client, range(THREADS)))
        finally:
            done.set()
    assert wrong == [0] * THREADS
    losses = training.result()
    assert losses[-1] < losses[0]
    assert fingerprint((model, state)) == before


def test_a_compiled_model_runs_in_all_threads_at_once() -> None:
    """All threads meet in the middle of one compiled program, where each waits for all others; a lock around it would keep them apart."""
    meeting = threading.Barrier(THREADS)

    def meet(x: np.ndarray) -> np.ndarray:
        meeting.wait(60)
        return x

    @vf.jit
    def call(model: nn.Linear, x: vf.Array) -> vf.Array:
        return model(vf.pure_callback(meet, vf.ShapeDtypeStruct((2, 3), "float32"), model(x)))

    model = nn.Linear.init(random.key(0), 3, 3)
    x = jnp.ones((2, 3))
    with ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(lambda _: fingerprint(call(model, x)), range(THREADS)))
    assert answers == [fingerprint(model(model(x)))] * THREADS
    assert call.cache_info().programs == 1
