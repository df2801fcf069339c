"""Soft dynamic time warping: a scan over rows of a scan over cells, whose gradient is the expected alignment."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import volta_fn as jax
import volta_fn.numpy as jnp
from volta_fn import lax, nn

AGREEMENT = {"rtol": 1e-4, "atol": 1e-5}
ROWS, COLUMNS = 6, 5
FAR = 1e4
DRAW = np.random.default_rng(9)
X, Y = DRAW.normal(size=(ROWS, 2)).astype("float32"), DRAW.normal(size=(COLUMNS, 2)).astype("float32")


def distances(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the squared distances of all pairs."""
    return jnp.sum((x[:, None] - y[None]) ** 2, -1)


def warping(costs: jax.Array) -> jax.Array:
    """Return the soft minimum of the costs of all alignments (Cuturi & Blondel 2017)."""

    def row(above: jax.Array, costs: jax.Array) -> tuple[jax.Array, None]:
        def cell(left: jax.Array, terms: Any) -> tuple[jax.Array, jax.Array]:
            up, diagonal, cost = terms
            total = cost - nn.logsumexp(-jnp.stack([left, up, diagonal]))
            return total, total

        start = jnp.float32(FAR)
        _, totals = lax.scan(cell, start, (above[1:], above[:-1], costs))
        return jnp.concatenate([start[None], totals]), None

    start = jnp.concatenate([jnp.zeros(1), jnp.full(COLUMNS, FAR)])
    return lax.scan(row, start, costs)[0][-1]


def run() -> dict[str, Any]:
    """The cost, the expected alignment, gradients by the series, and the cost's second derivative along the costs."""
    x, y = jnp.asarray(X), jnp.asarray(Y)
    costs = distances(x, y)
    second = jax.jit(lambda costs: jax.jvp(jax.grad(warping), (costs,), (costs,))[1])
    value, alignment = jax.jit(jax.value_and_grad(warping))(costs)
    by_series = jax.jit(jax.grad(lambda x, y: warping(distances(x, y)), (0, 1)))(x, y)
    many = jax.jit(jax.vmap(jax.checkpoint(warping)))(jnp.stack([costs, costs + 1]))
    return {"cost": value, "alignment": alignment, "by series": by_series, "second": second(costs), "many": many}


@cache
def paths(row: int = ROWS - 1, column: int = COLUMNS - 1) -> list[np.ndarray]:
    """Return all alignments that end in a cell, as matrices of zeros and ones."""
    if row < 0 or column < 0:
        return []
    cell = np.zeros((ROWS, COLUMNS))
    cell[row, column] = 1
    if (row, column) == (0, 0):
        return [cell]
    return [path + cell for i, j in ((1, 0), (0, 1), (1, 1)) for path in paths(row - i, column - j)]


def check(results: dict[str, Any]) -> None:
    """All alignments one by one: the soft minimum, the mean and the covariance under weights that fall with the cost."""
    x, y = X.astype("float64"), Y.astype("float64")
    costs = ((x[:, None] - y[None]) ** 2).sum(-1)
    matrices = np.stack(paths())
    totals = np.einsum("nij,ij->n", matrices, costs)
    weights = np.exp(totals.min() - totals)
    cost = totals.min() - np.log(weights.sum())
    weights /= weights.sum()
    mean = np.einsum("n,nij->ij", weights, matrices)
    np.testing.assert_allclose(results["cost"], cost, rtol=1e-5)
    np.testing.assert_allclose(results["alignment"], mean, rtol=1e-4, atol=1e-5)
    spread = np.einsum("n,nij->ij", weights * (totals - weights @ totals), matrices)
    np.testing.assert_allclose(results["second"], -spread, rtol=1e-3, atol=1e-4)
    steps = 2 * mean[..., None] * (x[:, None] - y[None])
    np.testing.assert_allclose(results["by series"][0], steps.sum(1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(results["by series"][1], -steps.sum(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(results["many"][0], cost, rtol=1e-5)
