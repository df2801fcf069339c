"""Read handwritten digits with a convolutional network with batch normalisation.

It follows LeNet-5 (LeCun et al. 1998).

    python examples/mnist_cnn.py               # scikit-learn's 8×8 scans, a few seconds
    python examples/mnist_cnn.py --data DIR    # MNIST: its four IDX files, gzipped or not, in DIR; a few minutes

Batch normalisation keeps running means as state, which is an argument and a result of the training step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import common
import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import data, nn, optim, random


def build(key: vf.Array, side: int) -> tuple[nn.Sequential, Any]:
    """Create the network for `side`×`side` pixels, and its normalisations' state."""
    first, second, third, fourth = random.split(key, 4)
    return nn.Sequential.init(
        conv1=nn.Conv2d.init(first, 1, 8, 5, padding="same", bias=False),
        pool1=nn.MaxPool2d.init(2),  # before the norm, which then has a quarter of the work
        norm1=nn.BatchNorm2d.init(8),
        act1=nn.relu,
        conv2=nn.Conv2d.init(second, 8, 16, 5, padding="same", bias=False),
        pool2=nn.MaxPool2d.init(2),
        norm2=nn.BatchNorm2d.init(16),
        act2=nn.relu,
        flatten=nn.Flatten(),
        hidden=nn.Linear.init(third, (side // 4) ** 2 * 16, 128, bias=False),
        norm3=nn.BatchNorm1d.init(128),
        act3=nn.relu,
        out=nn.Linear.init(fourth, 128, 10),
    )


def loss(model: nn.Sequential, state: Any, images: vf.Array, labels: vf.Array) -> tuple[vf.Array, Any]:
    """Return the cross-entropy in training, and the model's new state."""
    logits, state = model(images, state, training=True)
    return nn.losses.cross_entropy(logits, labels), state


@vf.jit
def correct(model: nn.Sequential, state: Any, images: vf.Array, labels: vf.Array) -> vf.Array:
    """Count the images that are classified correctly."""
    logits, _ = model(images, state)
    return jnp.sum(jnp.argmax(logits, axis=1) == labels)


def train(digits: data.Dataset, *, epochs: int, batch: int, seed: int) -> tuple[nn.Sequential, Any]:
    """Train with AdamW and a one-cycle schedule (Smith & Topin 2017)."""
    model_key, shuffle_key = random.split(random.key(seed))
    loader = data.DataLoader(digits, batch, shuffle=True, key=shuffle_key, drop_last=True, workers=1)
    model, state = build(model_key, side=digits[0][0].shape[-1])
    optimizer = optim.adamw(optim.cosine_onecycle_schedule(epochs * len(loader), 1e-2), weight_decay=1e-2)
    moments = optimizer.init(model)

    @vf.jit
    def step(model: nn.Sequential, state: Any, moments: Any, images: vf.Array, labels: vf.Array) -> tuple[Any, ...]:
        (value, state), grads = vf.value_and_grad(loss, has_aux=True)(model, state, images, labels)
        updates, moments = optimizer.update(grads, moments, model)
        return optim.apply_updates(model, updates), state, moments, value

    bar = common.epochs(loader, epochs)
    for number, (images, labels) in enumerate(bar):
        model, state, moments, value = step(model, state, moments, images, labels)
        if number % 10 == 0:
            bar.report(f"loss {float(value):.4f}")
    return model, state


def draw_answers(model: nn.Sequential, state: Any, held_out: data.Dataset, path: common.Path) -> None:
    """Draw the 40 least certain of 500 held-out digits, with the answers."""
    images, labels = data.gather(held_out, range(min(500, len(held_out))))
    chances = nn.softmax(model(images, state)[0])
    order = jnp.argsort(jnp.max(chances, axis=1))[:40]
    side, answers = images.shape[-1] + 1, jnp.argmax(chances, axis=1)
    rows = np.pad(np.asarray(images[np.asarray(order), 0]).reshape(4, 10, side - 1, side - 1), ((0, 0), (0, 0), (0, 1), (0, 1)))
    with common.plot(path) as axes:
        axes.imshow(rows.transpose(0, 2, 1, 3).reshape(4 * side, 10 * side), cmap="binary")
        for position, number in enumerate(order.tolist()):
            color = "tab:green" if answers[number] == labels[number] else "red"
            axes.text(position % 10 * side, position // 10 * side + 1, str(answers[number]), color=color, fontweight="bold")
        axes.set_axis_off()


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train, report, and return the accuracy on held-out digits."""
    options = common.arguments(__doc__, argv, epochs={"type": int, "help": "passes over the training images (default 12; 3 of MNIST)"})
    digits, held_out = common.digits(options.data)
    epochs = options.epochs or (2 if options.quick else 3 if options.data else 12)
    start = time.perf_counter()
    model, state = train(digits, epochs=epochs, batch=128 if options.data else 32, seed=options.seed)
    share, seconds = common.accuracy(lambda *batch: correct(model, state, *batch), held_out), time.perf_counter() - start
    draw_answers(model, state, held_out, options.out / "mnist_cnn.png")
    print(model)
    print(f"{share:.2%} of {len(held_out):,} held-out digits classified correctly after {seconds:.0f} s")
    return {"accuracy": share}


if __name__ == "__main__":
    main()
