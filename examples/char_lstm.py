"""A character-level language model: an LSTM learns to continue a text.

    python examples/char_lstm.py               # the text is Python's own standard library
    python examples/char_lstm.py --text FILE   # another text, such as tiny Shakespeare; see README.md for results

The first nine tenths of the text are for training. The *validation loss* is the mean of -log p over the rest, in nats, where p is the
probability that the model predicted for the actual character. `char_transformer.py` shares this file's training.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import common

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import data, lax, nn, optim, random


class CharLSTM(nn.Module):
    """Logits of the next character at each position of a text."""

    embed: nn.Embedding
    lstm: nn.LSTM
    out: nn.Linear

    @classmethod
    def init(cls, key: vf.Array, symbols: int, *, width: int, layers: int) -> CharLSTM:
        """Create `layers` layers of `width` units."""
        first, second, third = random.split(key, 3)
        lstm = nn.LSTM.init(second, 64, width, layers)
        return cls(nn.Embedding.init(first, symbols, 64), lstm, nn.Linear.init(third, width, symbols))

    def __call__(self, numbers: vf.Array) -> vf.Array:
        """Return logits (batch, time, symbols) for texts (batch, time)."""
        return self.out(self.lstm(self.embed(numbers))[0])

    @functools.partial(vf.jit, static_argnums=2)
    def sample(self, prompt: vf.Array, count: int, key: vf.Array) -> vf.Array:
        """Draw `count` characters after the prompt, one by one."""

        def draw(hidden: vf.Array, key: vf.Array) -> vf.Array:
            return random.categorical(key, self.out(hidden) / TEMPERATURE)

        def step(state: Any, key: vf.Array) -> tuple[Any, vf.Array]:
            number, carry = state
            hidden, carry = self.lstm(self.embed(number[None]), carry)
            return (draw(hidden[-1], key), carry), number

        hidden, carry = self.lstm(self.embed(prompt))
        first, rest = random.split(key)
        return lax.scan(step, (draw(hidden[-1], first), carry), random.split(rest, count))[1]


TEMPERATURE = 0.8  # below 1 the likely characters become likelier


def loss(model: Any, inputs: vf.Array, targets: vf.Array) -> vf.Array:
    """Return the mean cross-entropy of the next characters, in nats."""
    return nn.losses.cross_entropy(model(inputs), targets, axis=-1)


evaluate, gradient = vf.jit(loss), vf.jit(vf.value_and_grad(loss))


def validation_loss(model: Any, windows: data.CharDataset) -> float:
    """Return the loss over all windows."""
    batches = data.DataLoader(windows, 32)
    return sum(float(evaluate(model, *batch)) * len(batch[0]) for batch in batches) / len(windows)


def train(
    model: Any, windows: data.CharDataset, held_out: data.CharDataset, optimizer: Any, *, batch: int, steps: int, threads: int, seed: int
) -> tuple[Any, dict[int, float], dict[int, float]]:
    """Train a model on threads, each with its own slice of the batch.

    Returns it with the losses of batches and the validation losses, by step. Threads share the model without locks, because it is
    immutable. This keeps two cores busier than threads inside the matrix products, which are used with one thread.
    """
    from threadpoolctl import threadpool_limits

    @functools.partial(vf.jit, donate_argnums=(0, 1))
    def update(model: Any, moments: Any, slices: list[Any]) -> tuple[Any, Any, vf.Array]:
        value, grads = vf.tree.map(lambda *leaves: sum(leaves) / len(leaves), *slices)
        updates, moments = optimizer.update(grads, moments, model)
        return optim.apply_updates(model, updates), moments, value

    loader = data.DataLoader(windows, batch, shuffle=True, key=seed + 1, drop_last=True)
    bar = data.progress(itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), steps), "training", total=steps)
    moments = optimizer.init(model)
    losses: dict[int, float] = {}
    validation: dict[int, float] = {}
    with ThreadPoolExecutor(threads) as pool, threadpool_limits(1 if threads > 1 else None):
        for number, (inputs, targets) in enumerate(bar, 1):
            slices = list(pool.map(functools.partial(gradient, model), jnp.split(inputs, threads), jnp.split(targets, threads)))
            model, moments, value = update(model, moments, slices)
            if number % 10 == 0:
                losses[number] = float(value)
                bar.report(f"loss {losses[number]:.3f}")
            if number % max(1, steps // 4) == 0:
                validation[number] = validation_loss(model, held_out)
                print(f"step {number}: validation loss {validation[number]:.3f}", flush=True)
    return model, losses, validation


def run(options: Any, name: str, model_of: Any, optimizer: Any, *, length: int, batch: int, steps: int, threads: int) -> dict[str, Any]:
    """Train a model on the text, plot its losses, and let it write."""
    text = common.text(options.text)[: 100_000 if options.quick else None]
    vocabulary = data.Vocabulary.of(text)
    training, validation = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]
    windows = data.CharDataset(training, length, vocabulary=vocabulary)
    held_out = data.CharDataset(validation, length, vocabulary=vocabulary, stride=length)
    model_key, sample_key = random.split(random.key(options.seed))
    model = model_of(model_key, len(vocabulary))
    print(f"{type(model).__name__} of {nn.parameter_count(model):,} parameters, {len(text):,} characters of {len(vocabulary)} kinds")
    start = time.perf_counter()
    trained = train(model, windows, held_out, optimizer, batch=batch, steps=steps, threads=threads, seed=options.seed)
    model, losses, held_out_losses = trained
    seconds = time.perf_counter() - start
    sample = vocabulary.decode(model.sample(held_out[0][0], 200 if options.quick else 1000, sample_key))
    print(sample)
    nats = validation_loss(model, held_out)
    print(f"validation loss {nats:.3f} nats per character of {len(validation):,} after {steps} steps, {seconds:.0f} s")
    with common.plot(options.out / f"{name}.png") as axes:
        axes.axhline(math.log(len(vocabulary)), color="gray", linestyle="--", label="all characters alike")
        axes.plot(list(losses), list(losses.values()), color="tab:blue", alpha=0.6, label="batches")
        axes.plot(list(held_out_losses), list(held_out_losses.values()), "o-", color="tab:red", label="held-out text")
        axes.set(xlabel="step", ylabel="nats per character")
    return {"loss": nats, "sample": sample, "symbols": len(vocabulary)}


OPTIONS = {"text": {"type": common.Path, "help": "the text to learn from"}, "steps": {"type": int, "help": "how long to train"}}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Train, write a sample, and return both the validation loss and the sample."""
    options = common.arguments(__doc__, argv, **OPTIONS)
    steps = options.steps or (40 if options.quick else 1150)
    width, layers, batch, length = (64, 1, 16, 32) if options.quick else (256, 2, 32, 128)
    schedule = optim.warmup_cosine_decay_schedule(0.0, 0.016, steps // 20, steps, 0.0003)
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(schedule, b2=0.99, weight_decay=0.1))
    model_of = functools.partial(CharLSTM.init, width=width, layers=layers)
    return run(options, "char_lstm", model_of, optimizer, length=length, batch=batch, steps=steps, threads=1)


if __name__ == "__main__":
    main()
