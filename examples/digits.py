"""Train a convolutional network on handwritten digits, with functions only.

These are `grad`, `jit` and ten lines of Adam.

    python examples/digits.py               # scikit-learn's 8×8 scans, a few seconds
    python examples/digits.py --data DIR    # MNIST: its four IDX files, gzipped or not, in DIR; a few minutes

The parameters are a dictionary of immutable arrays. A training step is a pure function from (parameters, optimizer state, batch)
to new ones; `jit` compiles it once, and the loop only calls it.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import data, lax, nn, random
from volta_fn.errors import DataError

Params = dict[str, vf.Array]
LAYOUT = ("NHWC", "HWIO", "NHWC")  # images by row, column and channel


def read_digits() -> tuple[data.Dataset, data.Dataset]:
    """Return scikit-learn's 1,797 digits, shuffled, and every fifth of them held out."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    digits = data.ArrayDataset((images[order].reshape(-1, 8, 8, 1) / 16).astype(np.float32), labels[order].astype(np.int32))
    held_out = np.arange(len(images)) % 5 == 0
    return data.Subset(digits, np.flatnonzero(~held_out)), data.Subset(digits, np.flatnonzero(held_out))


def read_mnist(folder: Path) -> tuple[data.Dataset, data.Dataset]:
    """Return MNIST's 60,000 training and 10,000 test images."""
    prepare = lambda batch: (jnp.moveaxis(data.to_float(batch[0]), 1, -1), batch[1])
    train, test = data.MNIST(folder, "train"), data.MNIST(folder, "test")
    return train.map(prepare, batched=True), test.map(prepare, batched=True)


def init(key: vf.Array, side: int) -> Params:
    """Create He-initialised weights for `side`×`side` pixels, and zero biases."""
    shapes = {"conv1": (3, 3, 1, 16), "conv2": (3, 3, 16, 32), "dense1": ((side // 4) ** 2 * 32, 128), "dense2": (128, 10)}
    he = nn.initializers.he_normal()
    weights = {name: he(k, shape) for k, (name, shape) in zip(random.split(key, len(shapes)), shapes.items(), strict=True)}
    biases = {f"{name}_bias": jnp.zeros(shape[-1]) for name, shape in shapes.items()}
    return weights | biases


def convolve(params: Params, name: str, x: vf.Array) -> vf.Array:
    """Apply a 3×3 convolution, ReLU, and the maximum over 2×2 windows."""
    x = lax.conv_general_dilated(x, params[name], window_strides=(1, 1), padding="SAME", dimension_numbers=LAYOUT)
    x = nn.relu(x + params[f"{name}_bias"])
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def network(params: Params, images: vf.Array) -> vf.Array:
    """Return log-probabilities of the ten digits."""
    x = convolve(params, "conv2", convolve(params, "conv1", images))
    x = nn.relu(x.reshape(len(x), -1) @ params["dense1"] + params["dense1_bias"])
    return nn.log_softmax(x @ params["dense2"] + params["dense2_bias"])


def loss(params: Params, images: vf.Array, labels: vf.Array) -> vf.Array:
    """Return the mean cross-entropy."""
    return -jnp.mean(jnp.take_along_axis(network(params, images), labels[:, None], axis=1))


class Adam(NamedTuple):
    """Running means of the gradient and its square (Kingma & Ba 2015), and the step."""

    first: Params
    second: Params
    steps: vf.Array


def adam(params: Params, state: Adam, grads: Params, rate: vf.Array) -> tuple[Params, Adam]:
    """Make a step of Adam at learning rate `rate`."""
    count = state.steps + 1
    first = vf.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state.first, grads)
    second = vf.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state.second, grads)
    rate = rate * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    return vf.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), params, first, second), Adam(first, second, count)


@vf.jit
def step(params: Params, state: Adam, images: vf.Array, labels: vf.Array, rate: vf.Array) -> tuple[Params, Adam, vf.Array]:
    """Make a step of training; return also the batch's loss."""
    value, grads = vf.value_and_grad(loss)(params, images, labels)
    return *adam(params, state, grads, rate), value


@vf.jit
def correct(params: Params, images: vf.Array, labels: vf.Array) -> vf.Array:
    """Count the images that are classified correctly."""
    return jnp.sum(jnp.argmax(network(params, images), axis=1) == labels)


def accuracy(params: Params, digits: data.Dataset) -> float:
    """Return the fraction of images that are classified correctly."""
    return sum(int(correct(params, *batch)) for batch in data.DataLoader(digits, 500)) / len(digits)


def train(digits: data.Dataset, held_out: data.Dataset, *, epochs: int, batch: int, rate: float, seed: int) -> Params:
    """Train with a cosine schedule of the learning rate, and show the progress."""
    init_key, shuffle_key = random.split(random.key(seed))
    loader = data.DataLoader(digits, batch, shuffle=True, key=shuffle_key, drop_last=True, workers=1)
    params = init(init_key, digits[0][0].shape[0])
    zeros = vf.tree.map(jnp.zeros_like, params)
    state = Adam(zeros, zeros, jnp.int32(0))
    rates = rate * 0.5 * (1 + np.cos(np.linspace(0, np.pi, epochs * len(loader), dtype=np.float32)))
    batches = itertools.chain.from_iterable(itertools.repeat(loader, epochs))
    bar = data.progress(batches, "training", total=len(rates))
    for number, (images, labels) in enumerate(bar):
        params, state, value = step(params, state, images, labels, rates[number])
        if number % 10 == 0:
            bar.report(f"loss {float(value):.4f}")
        epoch, step_in_epoch = divmod(number + 1, len(loader))
        if step_in_epoch == 0:
            bar.describe(f"epoch {epoch}/{epochs}: {accuracy(params, held_out):.2%} of held-out digits right")
    return params


def main() -> None:
    """Read the command line, train, report."""
    parser = argparse.ArgumentParser(description="Train a small convolutional network on handwritten digits.")
    parser.add_argument("--data", type=Path, help="folder with MNIST's four IDX files (.gz or plain); default: scikit-learn's digits")
    parser.add_argument("--epochs", type=int, help="passes over the training images (default 15, or 3 with --data)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and shuffling (default 0)")
    options = parser.parse_args()
    try:
        digits, held_out = read_mnist(options.data) if options.data else read_digits()
    except (DataError, OSError) as error:
        raise SystemExit(f"cannot read the data: {error}") from error
    epochs, batch = (3, 100) if options.data else (15, 32)
    start = time.perf_counter()
    params = train(digits, held_out, epochs=options.epochs or epochs, batch=batch, rate=2e-3, seed=options.seed)
    share, seconds = accuracy(params, held_out), time.perf_counter() - start
    print(f"{share:.2%} of {len(held_out):,} held-out digits classified correctly after {seconds:.0f} s")


if __name__ == "__main__":
    main()
