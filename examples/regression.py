"""Fit a polynomial to noisy measurements of a curve, and draw it.

    python examples/regression.py

The points are a sine with noise; the model is a polynomial of degree 5 in Chebyshev's basis, fitted by gradient descent. Least squares
gives the best coefficients, to check the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import common
import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import nn, optim, random

DEGREE = 5


def features(x: vf.Array) -> vf.Array:
    """Return Chebyshev's polynomials T₀ … T₅ at points of [-1, 1], shape (n, 6)."""
    rows = [jnp.ones_like(x), x]
    for _ in range(DEGREE - 1):
        rows.append(2 * x * rows[-1] - rows[-2])
    return jnp.stack(rows, axis=-1)


def loss(coefficients: vf.Array, x: vf.Array, y: vf.Array) -> vf.Array:
    """Return the mean squared error of the polynomial."""
    return nn.losses.mse_loss(features(x) @ coefficients, y)


def fit(x: vf.Array, y: vf.Array, steps: int) -> vf.Array:
    """Return the coefficients after `steps` steps of gradient descent with momentum."""
    optimizer = optim.sgd(0.3, momentum=0.9)

    @vf.jit
    def step(coefficients: vf.Array, state: Any) -> tuple[vf.Array, Any]:
        updates, state = optimizer.update(vf.grad(loss)(coefficients, x, y), state, coefficients)
        return optim.apply_updates(coefficients, updates), state

    coefficients = jnp.zeros(DEGREE + 1)
    state = optimizer.init(coefficients)
    for _ in range(steps):
        coefficients, state = step(coefficients, state)
    return coefficients


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Fit, draw, and return errors of the fit and of least squares, and a distance.

    The distance is the largest difference of the coefficients.
    """
    options = common.arguments(__doc__, argv)
    x_key, noise_key = random.split(random.key(options.seed))
    x = random.uniform(x_key, (200,), minval=-1.0, maxval=1.0)
    y = jnp.sin(3 * x) + 0.15 * random.normal(noise_key, x.shape)
    result = fit(x, y, 100 if options.quick else 1000)
    best = jnp.linalg.lstsq(features(x), y)[0]
    for number, (fitted, exact) in enumerate(zip(result.tolist(), best.tolist(), strict=True)):
        print(f"T{number}: {fitted:+.4f}   least squares: {exact:+.4f}")
    grid = jnp.linspace(-1, 1, 200)
    with common.plot(options.out / "regression.png") as axes:
        axes.plot(np.asarray(x), np.asarray(y), ".", color="gray", label="measurements")
        axes.plot(np.asarray(grid), np.asarray(jnp.sin(3 * grid)), "--", label="the curve they come from")
        axes.plot(np.asarray(grid), np.asarray(features(grid) @ result), label=f"polynomial of degree {DEGREE}")
    errors = {"loss": float(loss(result, x, y)), "best": float(loss(best, x, y)), "distance": float(jnp.max(jnp.abs(result - best)))}
    print(f"mean squared error {errors['loss']:.5f}, of least squares {errors['best']:.5f}")
    return errors


if __name__ == "__main__":
    main()
