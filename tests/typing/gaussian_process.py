"""Gaussian-process regression: fit the kernel by gradient descent, predict with error bars."""

import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import optim


def kernel(theta: vf.Array, a: vf.Array, b: vf.Array) -> vf.Array:
    """Return the squared-exponential covariance of two sets of points."""
    scale, length = jnp.exp(theta[0]), jnp.exp(theta[1])
    return scale * jnp.exp(-0.5 * ((a[:, None] - b[None, :]) / length) ** 2)


def negative_log_likelihood(theta: vf.Array, x: vf.Array, y: vf.Array) -> vf.Array:
    """Return the loss of the hyper-parameters."""
    factor = jnp.linalg.cholesky(kernel(theta, x, x) + jnp.exp(theta[2]) * jnp.eye(len(x)))
    white = jnp.linalg.solve(factor, y)
    return 0.5 * white @ white + jnp.log(jnp.diagonal(factor)).sum()


def main() -> tuple[vf.Array, float]:
    """Fit a noisy sine; return the mean at the points and the largest error."""
    x = jnp.linspace(0.0, 6.0, 20)
    noise = vf.random.normal(vf.random.key(0), (20,))
    y = jnp.sin(x) + 0.05 * noise
    theta = jnp.zeros(3)
    optimizer = optim.adam(0.1)
    state = optimizer.init(theta)
    step = vf.jit(vf.value_and_grad(negative_log_likelihood))
    for _ in range(30):
        value, gradient = step(theta, x, y)
        updates, state = optimizer.update(gradient, state, theta)
        theta = optim.apply_updates(theta, updates)
        assert bool(jnp.isfinite(value))
    gram = kernel(theta, x, x) + jnp.exp(theta[2]) * jnp.eye(20)
    mean = kernel(theta, x, x) @ jnp.linalg.solve(gram, y)
    return mean, float(np.max(np.abs(mean - np.sin(x))))
