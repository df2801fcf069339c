"""Read digits with differentially private gradient descent (Abadi et al. 2016).

    python examples/dp_sgd.py               # scikit-learn's 8×8 scans
    python examples/dp_sgd.py --data DIR    # MNIST: its four IDX files in DIR

`vmap(grad(loss))` computes the gradient of each example. Each is clipped to a norm of 1, which bounds its effect, and noise hides it. The
result is (ε, δ)-differentially private: whether or not the training data contain any one example changes the probability of any outcome
by a factor of at most e^ε, except with probability δ (ε below 10 is usual, smaller is better).
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
    """Create a perceptron with one hidden layer."""
    first, second = random.split(key)
    return nn.Sequential(nn.Flatten(), nn.Linear.init(first, side * side, 64), nn.tanh, nn.Linear.init(second, 64, 10))


def loss(model: nn.Sequential, image: vf.Array, label: vf.Array) -> vf.Array:
    """Return the cross-entropy of one example."""
    return nn.losses.cross_entropy(model(image[None]), label[None])


@vf.jit
def correct(model: nn.Sequential, images: vf.Array, labels: vf.Array) -> vf.Array:
    """Count the images that are classified correctly."""
    return jnp.sum(jnp.argmax(model(images), axis=1) == labels)


def epsilon(rate: float, noise: float, steps: int) -> float:
    """Return the ε, for δ = 10⁻⁵, of private steps.

    Each step draws each example with probability `rate` and adds noise of `noise` times the clipping norm. Rényi divergences of integer
    orders (Mironov, Talwar & Zhang 2019) bound ε.
    """
    return min(_renyi(rate, noise, order) * steps + math.log(1 / DELTA) / (order - 1) for order in range(2, 128))


def _renyi(rate: float, noise: float, order: int) -> float:
    """Return the increase of the divergence of an order above 1 in one step."""
    chances = [(order - k) * math.log1p(-rate) + k * math.log(rate) for k in range(order + 1)]
    ways = [math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1) for k in range(order + 1)]
    terms = [way + chance + k * (k - 1) / (2 * noise**2) for k, (way, chance) in enumerate(zip(ways, chances, strict=True))]
    return float(np.logaddexp.reduce(terms)) / (order - 1)


def train(digits: data.Dataset, optimizer: Any, *, private: bool, batch: int, steps: int, seed: int) -> nn.Sequential:
    """Train a network on batches that contain each example with the same probability.

    The theory requires this; so the size of batches varies. Programs have fixed shapes, so batches are padded with examples whose gradients
    count as 0.
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
        model, state = step(model, state, images, labels, jnp.arange(room) < len(drawn))
    return model


@vf.jit
def norms(model: nn.Sequential, images: vf.Array, labels: vf.Array) -> vf.Array:
    """Return the norm of the gradient of each example."""
    return vf.vmap(optim.global_norm)(vf.vmap(vf.grad(loss), in_axes=(None, 0, 0))(model, images, labels))


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train without and with privacy; return both accuracies and the ε."""
    options = common.arguments(__doc__, argv)
    digits, held_out = common.digits(options.data)
    batch, noise = (600, 1.0) if options.data else (150, 2.0)
    steps = 60 if options.quick else 1000 if options.data else 300
    private = optim.chain(optim.differentially_private_aggregate(1.0, noise, key=options.seed), optim.sgd(1.0, momentum=0.5))
    shares, results = {}, {}
    for name, optimizer in [("open", optim.sgd(0.5, momentum=0.9)), ("private", private)]:
        model = train(digits, optimizer, private=name == "private", batch=batch, steps=steps, seed=options.seed)
        shares[name] = common.accuracy(lambda *images, model=model: correct(model, *images), held_out)
        results[name] = norms(model, *data.gather(digits, range(1000)))
    with common.plot(options.out / "dp_sgd.png") as axes:
        axes.hist([jnp.log10(x + 1e-6) for x in results.values()], bins=30, label=[f"trained {name}ly" for name in ("open", "private")])
        axes.axvline(0, color="black", label="longer gradients are clipped")
        axes.set(xlabel="log₁₀ of the norm of an example's gradient", ylabel="examples")
    spent = epsilon(batch / len(digits), noise, steps)
    print(f"{shares['open']:.2%} of {len(held_out):,} held-out digits classified correctly, and with privacy {shares['private']:.2%}")
    print(f"privacy: ε = {spent:.2f} at δ = {DELTA:g}")
    return shares | {"epsilon": spent}


if __name__ == "__main__":
    main()
