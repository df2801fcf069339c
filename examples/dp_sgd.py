"""Learn to read digits without learning anything about any single one: differentially private gradient descent (Abadi et al. 2016).

    python examples/dp_sgd.py               # scikit-learn's 8×8 scans
    python examples/dp_sgd.py --data DIR    # MNIST: its four IDX files in DIR

`vmap(grad(loss))` gives the gradient of each example by itself. Each is clipped to a norm of 1, so that none can do more than that, and
noise hides what it does. How private that is, (ε, δ)-differential privacy says: whether any one example was among the training data
changes the probability of any outcome by a factor of e^ε at most, but for a chance of δ (ε below 10 is usual, smaller is better).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import common
import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import data, nn, optim, random

DELTA = 1e-5


def network(key: vf.Array, side: int) -> nn.Sequential:
    """A perceptron with one hidden layer."""
    first, second = random.split(key)
    return nn.Sequential(nn.Flatten(), nn.Linear.init(first, side * side, 64), nn.tanh, nn.Linear.init(second, 64, 10))


def loss(model: nn.Sequential, image: vf.Array, label: vf.Array) -> vf.Array:
    """The cross-entropy of one example."""
    return nn.losses.cross_entropy(model(image[None]), label[None])


@vf.jit
def correct(model: nn.Sequential, images: vf.Array, labels: vf.Array) -> vf.Array:
    """How many images are read rightly."""
    return jnp.sum(jnp.argmax(model(images), axis=1) == labels)


def epsilon(rate: float, noise: float, steps: int) -> float:
    """The ε, for δ = 10⁻⁵, of steps that draw each example with probability `rate` and add noise of `noise` times the clipping norm.

    By Rényi's divergences of whole orders (Mironov, Talwar & Zhang 2019), each of which bounds ε.
    """
    return min(_renyi(rate, noise, order) * steps + math.log(1 / DELTA) / (order - 1) for order in range(2, 128))


def _renyi(rate: float, noise: float, order: int) -> float:
    """What one step adds to the divergence of an order above 1."""
    chances = [(order - k) * math.log1p(-rate) + k * math.log(rate) for k in range(order + 1)]
    ways = [math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1) for k in range(order + 1)]
    terms = [way + chance + k * (k - 1) / (2 * noise**2) for k, (way, chance) in enumerate(zip(ways, chances, strict=True))]
    return float(np.logaddexp.reduce(terms)) / (order - 1)


def train(digits: data.Dataset, optimizer: Any, *, private: bool, batch: int, steps: int, seed: int) -> nn.Sequential:
    """A trained network. Each step's batch has each example with the same probability, as the theory asks; so its size varies.

    Programs have fixed shapes, so a batch is filled up, with examples whose gradients count as 0.
    """
    model = network(random.key(seed), digits[0][0].shape[-1])
    state = optimizer.init(model)
    per_example = vf.vmap(vf.grad(lambda model, image, label, weight: weight * loss(model, image, label)), in_axes=(None, 0, 0, 0))

    @vf.jit
    def step(model: nn.Sequential, state: Any, images: vf.Array, labels: vf.Array, weights: vf.Array) -> tuple[nn.Sequential, Any]:
        grads = per_example(model, images, labels, weights)
        grads = grads if private else vf.tree.map(lambda g: jnp.mean(g, axis=0), grads)
        updates, state = optimizer.update(grads, state, model)
        return optim.apply_updates(model, updates), state

    draws = np.random.default_rng(seed)
    room = batch + math.ceil(6 * math.sqrt(batch))
    for _ in data.progress(range(steps), "privately" if private else "openly"):
        drawn = np.flatnonzero(draws.random(len(digits)) < batch / len(digits))[:room]
        images, labels = data.gather(digits, np.resize(drawn, room))
        model, state = step(model, state, images, labels, np.float32(np.arange(room) < len(drawn)))
    return model


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train openly and privately; return how many digits each reads rightly, and the ε."""
    options = common.arguments(__doc__, argv)
    digits, held_out = common.digits(options.data)
    batch, noise = (600, 1.0) if options.data else (150, 2.0)
    steps = 60 if options.quick else 1000 if options.data else 300
    private = optim.chain(optim.differentially_private_aggregate(1.0, noise, key=options.seed), optim.sgd(1.0, momentum=0.5))
    shares = {}
    for name, optimizer in [("open", optim.sgd(0.5, momentum=0.9)), ("private", private)]:
        model = train(digits, optimizer, private=name == "private", batch=batch, steps=steps, seed=options.seed)
        shares[name] = common.accuracy(lambda *images, model=model: correct(model, *images), held_out)
    spent = epsilon(batch / len(digits), noise, steps)
    print(f"{shares['open']:.2%} of {len(held_out):,} held-out digits read rightly, and with privacy {shares['private']:.2%}")
    print(f"privacy: ε = {spent:.2f} at δ = {DELTA:g}")
    return shares | {"epsilon": spent}


if __name__ == "__main__":
    main()
