"""Fit a Gaussian process to a few noisy points, and draw its uncertainty.

    python examples/curve_gp.py

The logarithm of the marginal likelihood is a function of three numbers (Rasmussen & Williams 2006, equation 2.30): its gradient, through
a Cholesky factorisation, finds the length scale, the amplitude and the noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import common
import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import optim, random
from volta_fn.scipy.linalg import solve_triangular

Parameters = dict[str, vf.Array]


def curve(x: vf.Array) -> vf.Array:
    """Return the function that the points are of."""
    return jnp.sin(3 * x) * jnp.exp(-0.2 * x * x)


def kernel(parameters: Parameters, a: vf.Array, b: vf.Array) -> vf.Array:
    """Return the covariances of the function's values at two lists of points."""
    distance = (a[:, None] - b[None, :]) / jnp.exp(parameters["length"])
    return jnp.exp(2 * parameters["amplitude"] - 0.5 * distance**2)


def factor(parameters: Parameters, x: vf.Array) -> vf.Array:
    """Return the Cholesky factor of the covariance of the measurements."""
    noise = jnp.exp(2 * parameters["noise"]) + 1e-6
    return jnp.linalg.cholesky(kernel(parameters, x, x) + noise * jnp.eye(len(x)))


def surprise(parameters: Parameters, x: vf.Array, y: vf.Array) -> vf.Array:
    """Return minus the logarithm of the marginal likelihood, a point."""
    lower = factor(parameters, x)
    scaled = solve_triangular(lower, y, lower=True)
    return 0.5 * jnp.mean(scaled**2 + jnp.log(2 * jnp.pi)) + jnp.mean(jnp.log(jnp.diagonal(lower)))


def fit(x: vf.Array, y: vf.Array, steps: int) -> Parameters:
    """Return the parameters that make the measurements most likely."""
    optimizer = optim.adam(0.05)
    parameters: Parameters = {name: jnp.float32(value) for name, value in [("length", 0.5), ("amplitude", 0.0), ("noise", -1.0)]}

    @vf.jit
    def step(parameters: Parameters, moments: optim.OptState) -> tuple[Parameters, optim.OptState]:
        updates, moments = optimizer.update(vf.grad(surprise)(parameters, x, y), moments, parameters)
        return optim.apply_updates(parameters, updates), moments

    moments = optimizer.init(parameters)
    for _ in range(steps):
        parameters, moments = step(parameters, moments)
    return parameters


@vf.jit
def predict(parameters: Parameters, x: vf.Array, y: vf.Array, new: vf.Array) -> tuple[vf.Array, vf.Array]:
    """Return mean and standard deviation of the function at new points."""
    lower = factor(parameters, x)
    across = solve_triangular(lower, kernel(parameters, x, new), lower=True)
    mean = across.T @ solve_triangular(lower, y, lower=True)
    return mean, jnp.sqrt(jnp.maximum(jnp.exp(2 * parameters["amplitude"]) - jnp.sum(across**2, axis=0), 0.0))


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Fit, draw, and return the noise found, the error, and the band's coverage."""
    options = common.arguments(__doc__, argv)
    x_key, noise_key = random.split(random.key(options.seed))
    x = random.uniform(x_key, (40,), minval=-3.0, maxval=3.0)
    y = curve(x) + 0.1 * random.normal(noise_key, x.shape)
    parameters = fit(x, y, 100 if options.quick else 500)
    grid = jnp.linspace(-3.0, 3.0, 200)
    mean, deviation = predict(parameters, x, y, grid)
    with common.plot(options.out / "curve_gp.png") as axes:
        low, high = (np.asarray(mean + sign * 2 * deviation) for sign in (-1, 1))
        axes.fill_between(np.asarray(grid), low, high, alpha=0.25, label="two standard deviations")
        axes.plot(np.asarray(grid), np.asarray(mean), label="mean")
        axes.plot(np.asarray(grid), np.asarray(curve(grid)), "--", label="the curve")
        axes.plot(np.asarray(x), np.asarray(y), ".", color="black", label="measurements")
    inside = jnp.abs(curve(grid) - mean) < 2 * deviation
    result = {
        "noise": float(jnp.exp(parameters["noise"])),
        "error": float(jnp.sqrt(jnp.mean((mean - curve(grid)) ** 2))),
        "inside": float(jnp.mean(inside)),
    }
    print(f"noise {result['noise']:.3f} (0.1 in truth), error {result['error']:.3f}, {result['inside']:.0%} of the curve inside the band")
    return result


if __name__ == "__main__":
    main()
