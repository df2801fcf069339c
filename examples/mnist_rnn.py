"""Read handwritten digits row by row, from top to bottom, with an LSTM.

python examples/mnist_rnn.py               # scikit-learn's 8×8 scans, a few seconds
python examples/mnist_rnn.py --data DIR    # MNIST: its four IDX files, gzipped or not, in DIR; a few minutes
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import common

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import data, nn, optim, random


class Reader(nn.Module):
    """Reads the rows of an image as a sequence, and classifies the digit."""

    lstm: nn.LSTM
    out: nn.Linear

    @classmethod
    def init(cls, key: vf.Array, side: int, hidden: int) -> Reader:
        """Create a reader of images with `side` columns."""
        first, second = random.split(key)
        return cls(lstm=nn.LSTM.init(first, side, hidden), out=nn.Linear.init(second, hidden, 10))

    def __call__(self, images: vf.Array) -> vf.Array:
        """Return logits of the ten digits for images (N, 1, side, side)."""
        _, (h, _) = self.lstm(images[:, 0])
        return self.out(h[-1])


def loss(model: Reader, images: vf.Array, labels: vf.Array) -> vf.Array:
    """Return the cross-entropy."""
    return nn.losses.cross_entropy(model(images), labels)


@vf.jit
def correct(model: Reader, images: vf.Array, labels: vf.Array) -> vf.Array:
    """Count the images that are classified correctly."""
    return jnp.sum(jnp.argmax(model(images), axis=1) == labels)


def train(digits: data.Dataset, *, epochs: int, batch: int, seed: int) -> Reader:
    """Train with Adam, clipped gradients and a one-cycle schedule."""
    model_key, shuffle_key = random.split(random.key(seed))
    loader = data.DataLoader(digits, batch, shuffle=True, key=shuffle_key, drop_last=True, workers=1)
    model = Reader.init(model_key, side=digits[0][0].shape[-1], hidden=128)
    schedule = optim.cosine_onecycle_schedule(epochs * len(loader), 5e-3)
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adam(schedule))
    moments = optimizer.init(model)

    @vf.jit
    def step(model: Reader, moments: Any, images: vf.Array, labels: vf.Array) -> tuple[Reader, Any, vf.Array]:
        value, grads = vf.value_and_grad(loss)(model, images, labels)
        updates, moments = optimizer.update(grads, moments, model)
        return optim.apply_updates(model, updates), moments, value

    bar = common.epochs(loader, epochs)
    for number, (images, labels) in enumerate(bar):
        model, moments, value = step(model, moments, images, labels)
        if number % 10 == 0:
            bar.report(f"loss {float(value):.4f}")
    return model


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train, report, and return the accuracy on held-out digits."""
    options = common.arguments(__doc__, argv, epochs={"type": int, "help": "passes over the training images (default 20; 3 of MNIST)"})
    digits, held_out = common.digits(options.data)
    epochs = options.epochs or (4 if options.quick else 3 if options.data else 20)
    start = time.perf_counter()
    model = train(digits, epochs=epochs, batch=128 if options.data else 32, seed=options.seed)
    share, seconds = common.accuracy(lambda *batch: correct(model, *batch), held_out), time.perf_counter() - start
    print(model)
    print(f"{share:.2%} of {len(held_out):,} held-out digits classified correctly after {seconds:.0f} s")
    return {"accuracy": share}


if __name__ == "__main__":
    main()
