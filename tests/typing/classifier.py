"""A convolutional classifier with batch normalisation, dropout and checkpoints."""

from pathlib import Path

import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import data, io, nn, optim, random


def build(key: vf.Array) -> tuple[nn.Sequential, dict[str, nn.BatchNormState]]:
    """Create the network and the state of its normalisation."""
    conv, out = random.split(key)
    return nn.Sequential.init(
        nn.Conv2d.init(conv, 1, 4, 3, padding=1),
        nn.BatchNorm2d.init(4),
        nn.relu,
        nn.Flatten(),
        nn.Dropout.init(0.1),
        nn.Linear.init(out, 4 * 8 * 8, 2),
    )


def loss(
    model: nn.Sequential, state: dict[str, nn.BatchNormState], key: vf.Array, images: vf.Array, labels: vf.Array
) -> tuple[vf.Array, dict[str, nn.BatchNormState]]:
    """Return the cross-entropy, and the new state."""
    logits, state = model(images, state, key=key, training=True)
    return nn.losses.cross_entropy(logits, labels), state


def main(folder: Path) -> float:
    """Tell bright pictures from dark ones; return the accuracy."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 64).astype(np.int32)
    images = (generator.normal(size=(64, 1, 8, 8)) + labels[:, None, None, None]).astype(np.float32)
    model, state = build(random.key(0))
    optimizer = optim.sgd(0.05, momentum=0.9)
    moments = optimizer.init(model)
    step = vf.jit(vf.value_and_grad(loss, has_aux=True))
    history: list[float] = []
    for epoch in range(3):
        for batch, answers in data.DataLoader(data.ArrayDataset(images, labels), 16):
            key = random.fold_in(random.key(1), epoch)
            (value, state), gradient = step(model, state, key, batch, answers)
            updates, moments = optimizer.update(gradient, moments, model)
            model = optim.apply_updates(model, updates)
            history.append(float(value))
    io.save_safetensors(folder / "model.safetensors", model)
    logits, _ = model(jnp.asarray(images), state)
    return float((logits.argmax(1) == labels).mean())
