"""Two programs as one writes them first, with the batch first: translation by a GRU with attention, and CTC over an LSTM.

Each learns its task only if the layers run along time. That one sequence does not reach another is tested besides, since a small task
can be learned in spite of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import nn, optim, random

KEY = random.key(0)


def trained(model: Any, loss: Any, batches: Any, steps: int, rate: float) -> tuple[Any, Any]:
    """Return the model after Adam's steps over batches with a leading axis of steps, and the losses."""
    optimizer = optim.adam(rate)

    @vf.jit
    def run(model: Any, batches: Any) -> Any:
        def step(carry: Any, batch: Any) -> Any:
            model, state = carry
            value, gradient = vf.value_and_grad(loss)(model, *batch)
            updates, state = optimizer.update(gradient, state, model)
            return (optim.apply_updates(model, updates), state), value

        (model, _), losses = vf.lax.scan(step, (model, optimizer.init(model)), batches, length=steps)
        return model, losses

    return run(model, batches)


class Translator(nn.Module):
    """A GRU reads a sequence, another writes one and attends to the first."""

    source: nn.Embedding
    target: nn.Embedding
    encoder: nn.GRU
    decoder: nn.GRU
    out: nn.Linear

    @classmethod
    def init(cls, key: Any, symbols: int, width: int) -> Translator:
        k = random.split(key, 5)
        return cls(
            nn.Embedding.init(k[0], symbols, width),
            nn.Embedding.init(k[1], symbols + 1, width),
            nn.GRU.init(k[2], width, width),
            nn.GRU.init(k[3], width, width),
            nn.Linear.init(k[4], 2 * width, symbols),
        )

    def __call__(self, source: Any, previous: Any) -> Any:
        """Logits (batch, time, symbols) of each next symbol."""
        memory, carry = self.encoder(self.source(source))
        hidden, _ = self.decoder(self.target(previous), carry)
        weights = nn.softmax(jnp.einsum("btd,bsd->bts", hidden, memory) / hidden.shape[-1] ** 0.5)
        read = jnp.einsum("bts,bsd->btd", weights, memory)
        return self.out(jnp.concatenate([hidden, read], -1))


def test_translation_with_a_gru():
    """The translation is the sequence backwards, each symbol shifted by one."""
    symbols, length, steps = 6, 5, 600
    source = np.random.default_rng(0).integers(0, symbols, (steps + 2, 32, length))
    target = (source[..., ::-1] + 1) % symbols
    previous = np.concatenate([np.full((*target.shape[:-1], 1), symbols), target[..., :-1]], -1)
    model = Translator.init(KEY, symbols, 24)
    loss = lambda model, x, before, y: nn.cross_entropy(model(x, before), y, axis=-1)
    model, _ = trained(model, loss, (source[:steps], previous[:steps], target[:steps]), steps, 0.01)
    logits = model(source[-1], previous[-1])
    assert (np.argmax(logits, -1) == target[-1]).all(-1).mean() > 0.9
    np.testing.assert_allclose(model(source[-1][:3], previous[-1][:3]), logits[:3], rtol=1e-4, atol=1e-4)


class Recognizer(nn.Module):
    """Class scores of every frame, by an LSTM that reads in both directions."""

    lstm: nn.LSTM
    out: nn.Linear

    def __call__(self, frames: Any) -> Any:
        """Log-probabilities (batch, time, classes)."""
        return nn.log_softmax(self.out(self.lstm(frames)[0]))


def frames_of_labels(rng: np.random.Generator, shape: tuple[int, ...], labels: int, length: int, frames: int) -> Any:
    """Label sequences, and their frames: a rising and a falling pair differ in order alone, so that a frame alone says too little."""
    y = rng.integers(1, labels + 1, (*shape, length))
    x = rng.normal(0, 0.1, (*shape, frames, 2)).astype(np.float32)
    rises = np.eye(2, dtype=np.float32)
    for position in range(length):
        first = rises[y[..., position] % 2]
        start = position * (frames // length)
        x[..., start, :] += first
        x[..., start + 1, :] += 1 - first
    return x, y


def test_ctc_over_an_lstm():
    steps, length, frames = 200, 3, 12
    x, y = frames_of_labels(np.random.default_rng(0), (steps + 1, 16), 2, length, frames)
    k1, k2 = random.split(KEY)
    model = Recognizer(nn.LSTM.init(k1, 2, 16, bidirectional=True), nn.Linear.init(k2, 32, 3))
    ends = np.full(16, frames), np.full(16, length)
    loss = lambda model, x, y: nn.ctc_loss(model(x).swapaxes(0, 1), y, *ends)
    model, losses = trained(model, loss, (x[:steps], y[:steps]), steps, 0.02)
    assert losses[-1] < 0.1 < losses[0]
    log_probs = model(x[-1])
    best = np.argmax(log_probs, -1)
    spelled = [[int(s) for i, s in enumerate(row) if s and (i == 0 or row[i - 1] != s)] for row in best]
    assert sum(a == list(b) for a, b in zip(spelled, y[-1], strict=True)) >= 15
    np.testing.assert_allclose(model(x[-1][:3]), log_probs[:3], rtol=1e-4, atol=1e-4)
