"""A convolutional generative adversarial network (DCGAN, Radford et al. 2016).

    python examples/dcgan.py               # scikit-learn's 8×8 scans, a minute
    python examples/dcgan.py --data DIR    # MNIST: its four IDX files, gzipped or not, in DIR; some minutes

The generator makes images from random numbers, the discriminator tells them from real ones, and each learns to beat the other. Writes
dcgan.png with samples. The pixels' means and deviations over samples should come close to those over real images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import common

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import data, nn, optim, random

LATENT = 32


def generator(key: vf.Array, side: int, width: int) -> tuple[nn.Sequential, Any]:
    """Create a network from (N, LATENT) to images (N, 1, side, side), and its state."""
    first, second, third = random.split(key, 3)
    quarter = side // 4
    return nn.Sequential.init(
        project=nn.Linear.init(first, LATENT, 2 * width * quarter**2),
        unflatten=nn.Lambda(lambda x: x.reshape(-1, 2 * width, quarter, quarter)),
        norm1=nn.BatchNorm2d.init(2 * width),
        act1=nn.relu,
        grow1=nn.ConvTranspose2d.init(second, 2 * width, width, 4, stride=2, padding=1, bias=False),
        norm2=nn.BatchNorm2d.init(width),
        act2=nn.relu,
        grow2=nn.ConvTranspose2d.init(third, width, 1, 4, stride=2, padding=1),
        act3=nn.sigmoid,
    )


def discriminator(key: vf.Array, side: int, width: int) -> tuple[nn.Sequential, Any]:
    """Create a network from images to logits (N, 1) of being real, and its state."""
    first, second, third = random.split(key, 3)
    return nn.Sequential.init(
        conv1=nn.Conv2d.init(first, 1, width, 4, stride=2, padding=1),
        act1=nn.Lambda(lambda x: nn.leaky_relu(x, 0.2)),
        conv2=nn.Conv2d.init(second, width, 2 * width, 4, stride=2, padding=1, bias=False),
        norm2=nn.BatchNorm2d.init(2 * width),
        act2=nn.Lambda(lambda x: nn.leaky_relu(x, 0.2)),
        flatten=nn.Flatten(),
        out=nn.Linear.init(third, 2 * width * (side // 4) ** 2, 1),
    )


class Player(NamedTuple):
    """A network, its normalisations' state, and its optimizer's state."""

    model: nn.Sequential
    state: Any
    moments: Any


OPTIMIZER = optim.adam(5e-4, b1=0.5)


def cost(logits: vf.Array, real: bool) -> vf.Array:
    """Return the discriminator's loss for images that are all real, or all not."""
    return nn.losses.binary_cross_entropy_with_logits(logits, jnp.full_like(logits, float(real)))


def improve(player: Player, grads: Any, state: Any) -> Player:
    """Make a step of the optimizer, and set the network's new state."""
    updates, moments = OPTIMIZER.update(grads, player.moments, player.model)
    return Player(optim.apply_updates(player.model, updates), state, moments)


@vf.jit
def step(forger: Player, critic: Player, images: vf.Array, key: vf.Array) -> tuple[Player, Player, vf.Array]:
    """Train both on real and forged images; return also their losses."""
    noise = random.normal(key, (len(images), LATENT))
    forgeries, _ = forger.model(noise, forger.state, training=True)

    def critic_loss(model: nn.Sequential) -> tuple[vf.Array, Any]:
        of_real, state = model(images, critic.state, training=True)
        of_forged, state = model(forgeries, state, training=True)
        return cost(of_real, True) + cost(of_forged, False), state

    (critic_pays, state), grads = vf.value_and_grad(critic_loss, has_aux=True)(critic.model)
    critic = improve(critic, grads, state)

    def forger_loss(model: nn.Sequential) -> tuple[vf.Array, Any]:
        forgeries, state = model(noise, forger.state, training=True)
        return cost(critic.model(forgeries, critic.state, training=True)[0], True), state

    (forger_pays, state), grads = vf.value_and_grad(forger_loss, has_aux=True)(forger.model)
    return improve(forger, grads, state), critic, jnp.stack([critic_pays, forger_pays])


def distance(images: vf.Array, others: vf.Array) -> float:
    """Return the Fréchet distance of images, by pixels' means and deviations."""
    return float(jnp.sum((images.mean(0) - others.mean(0)) ** 2 + (images.std(0) - others.std(0)) ** 2))


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train, draw, and return distances of samples from real images.

    They are the distance after training and the one before.
    """
    options = common.arguments(__doc__, argv, epochs={"type": int, "help": "passes over the training images (default 40; 2 of MNIST)"})
    digits, held_out = common.digits(options.data)
    epochs = options.epochs or (4 if options.quick else 2 if options.data else 40)
    keys = random.split(random.key(options.seed), 5)
    loader = data.DataLoader(digits, 128 if options.data else 32, shuffle=True, key=keys[0], drop_last=True, workers=1)
    side, width = digits[0][0].shape[-1], 16
    forger, critic = (
        Player(model, state, OPTIMIZER.init(model))
        for model, state in (generator(keys[1], side, width), discriminator(keys[2], side, width))
    )
    real, noise = held_out.gather(range(360))[0], random.normal(keys[3], (360, LATENT))
    samples = lambda: forger.model(noise, forger.state)[0]
    untrained = distance(samples(), real)

    bar = common.epochs(loader, epochs)
    for number, (images, _) in enumerate(bar):
        forger, critic, costs = step(forger, critic, images, random.fold_in(keys[4], number))
        if number % 10 == 0:
            bar.report("critic {:.2f}, forger {:.2f}".format(*costs.tolist()))
    result = {"distance": distance(samples(), real), "untrained": untrained}
    path = common.save_images(options.out / "dcgan.png", samples()[:64], 16)
    print(f"samples in {path}; their distance from real images is {result['distance']:.2f}, was {untrained:.2f} before training")
    return result


if __name__ == "__main__":
    main()
