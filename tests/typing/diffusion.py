"""A denoising diffusion model of points in the plane."""

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import data, lax, nn, optim, random

STEPS = 20
RATES = jnp.cumprod(1.0 - jnp.linspace(1e-3, 0.3, STEPS))


def loss(network: nn.MLP, key: vf.Array, batch: vf.Array) -> vf.Array:
    """Return how badly the network predicts the noise in a batch."""
    noise_key, time_key = random.split(key)
    noise = random.normal(noise_key, batch.shape)
    time = random.randint(time_key, batch.shape[:1], 0, STEPS)
    retained = RATES[time][:, None]
    noisy = jnp.sqrt(retained) * batch + jnp.sqrt(1 - retained) * noise
    predicted = network(jnp.concatenate([noisy, time[:, None] / STEPS], axis=1))
    return jnp.mean((predicted - noise) ** 2)


def generate(network: nn.MLP, key: vf.Array, count: int) -> vf.Array:
    """Draw points by removing noise step by step."""

    def step(index: vf.Array, points: vf.Array) -> vf.Array:
        time = STEPS - 1 - index
        column = jnp.full((count, 1), time / STEPS)
        noise = network(jnp.concatenate([points, column], axis=1))
        return (points - (1 - RATES[time]) / jnp.sqrt(1 - RATES[time]) * noise * 0.1) * 1.01

    return lax.fori_loop(0, STEPS, step, random.normal(key, (count, 2)))


def main() -> vf.Array:
    """Train on a ring; return samples."""
    angles = random.uniform(random.key(0), (256,)) * 6.28
    ring = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
    loader = data.DataLoader(data.ArrayDataset(ring), 64, shuffle=True, key=1)
    network = nn.MLP.init(random.key(2), 3, 2, 16, 2)
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(0.01))
    state = optimizer.init(network)
    gradient = vf.jit(vf.grad(loss))
    for epoch in range(2):
        for number, batch in enumerate(loader):
            key = random.fold_in(random.key(epoch), number)
            updates, state = optimizer.update(gradient(network, key, batch), state, network)
            network = optim.apply_updates(network, updates)
    return generate(network, random.key(3), 8)
