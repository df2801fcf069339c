"""A physics-informed network for u'' = -sin(x) with u(0) = u(pi) = 0."""

import math
from functools import partial

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import nn, optim, random


def solution(network: nn.MLP, x: vf.Array) -> vf.Array:
    """Return u(x) for a scalar, zero on the boundary by construction."""
    return x * (math.pi - x) * network(x[None])[0]


def residual(network: nn.MLP, x: vf.Array) -> vf.Array:
    """Return what is left of the equation at a scalar x."""
    u = partial(solution, network)
    second = vf.grad(vf.grad(u))
    return second(x) + jnp.sin(x)


def loss(network: nn.MLP, points: vf.Array) -> vf.Array:
    """Return the mean square of the residual."""
    return jnp.mean(vf.vmap(residual, in_axes=(None, 0))(network, points) ** 2)


def main() -> tuple[float, float]:
    """Train; return the first loss and the last."""
    network = nn.MLP.init(random.key(0), 1, 1, 16, 2, nn.tanh)
    points = jnp.linspace(0.0, math.pi, 16)
    optimizer = optim.adam(optim.cosine_decay_schedule(0.02, 40))

    @vf.jit
    def step(network: nn.MLP, state: optim.OptState) -> tuple[nn.MLP, optim.OptState, vf.Array]:
        value, gradient = vf.value_and_grad(loss)(network, points)
        updates, state = optimizer.update(gradient, state, network)
        return optim.apply_updates(network, updates), state, value

    state = optimizer.init(network)
    values: list[float] = []
    for _ in range(40):
        network, state, value = step(network, state)
        values.append(value.item())
    return values[0], values[-1]
