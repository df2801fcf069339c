"""Projections on convex sets, assignments, and random perturbations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, lax, random, tree
from volta_fn import numpy as vnp
from volta_fn import tree as trees
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import DTypeError, ShapeError
from volta_fn.nn.activations import relu
from volta_fn.numpy.joining import ravel_pytree
from volta_fn.optim.numerics import add_scaled, branch, global_norm, real_dot, scaled_by, sum_of_squares, widened
from volta_fn.optim.tree_utils import tree_add_scale, tree_norm, tree_random_like, tree_scale, tree_sum
from volta_fn.primitives.call import stop_gradient
from volta_fn.transforms.vmap import vmap

__all__ = [
    "base_hungarian_algorithm", "hungarian_algorithm", "projection_box", "projection_halfspace", "projection_hypercube",
    "projection_hyperplane", "projection_l1_ball", "projection_l1_sphere", "projection_l2_ball", "projection_l2_sphere",
    "projection_linf_ball", "projection_non_negative", "projection_simplex", "projection_vector",
]  # fmt: skip


# Euclidean projections of trees of parameters on convex sets and spheres.
#
# Applied after each update, they make projected gradient descent. Each is differentiable. Norms are of all elements of all leaves
# together.


def projection_non_negative(tree: Any) -> Any:
    """Replace negative numbers by 0.

    >>> optim.projections.projection_non_negative({"w": jnp.array([-1.0, 2.0])})
    {'w': Array([0., 2.], dtype=float32)}
    """
    return trees.map(relu, tree)


def projection_box(tree: Any, lower: Any, upper: Any) -> Any:
    """Limit each element to the interval between `lower` and `upper`.

    The bounds are trees of the same structure or prefixes of it, such as single numbers.

    >>> optim.projections.projection_box({"w": jnp.array([-1.0, 2.0])}, 0.0, 1.0)
    {'w': Array([0., 1.], dtype=float32)}
    """
    leaves, treedef = trees.flatten(tree)
    bounds = [trees.broadcast_prefix(bound, tree) for bound in (lower, upper)]
    return treedef.unflatten([vnp.clip(x, low, high) for x, low, high in zip(leaves, *bounds, strict=True)])


def projection_hypercube(tree: Any, scale: Any = 1) -> Any:
    """Limit each element to the interval from 0 to `scale`.

    >>> optim.projections.projection_hypercube(jnp.array([-1.0, 0.5, 2.0]))
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    return projection_box(tree, 0, scale)


def simplex_rows(x: Array, total: Any = 1) -> Array:
    """Project vectors along the last axis on positive numbers of sum `total`.

    All elements that stay positive are lowered by one number (Held, Wolfe and Crowder 1974), which only depends on which these are: their
    choice has no derivative.
    """
    if not x.shape[-1]:
        return x
    dtype, x = x.dtype, widened(x)
    descending = vnp.flip(vnp.sort(stop_gradient(x), -1), -1)
    ranks = vnp.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    limits = (vnp.cumsum(descending, -1) - total) / ranks
    count = vnp.sum(descending > limits, -1, keepdims=True)
    limit = vnp.take_along_axis(limits, vnp.maximum(count - 1, 0), -1)
    chosen = stop_gradient(x) > limit
    excess = (vnp.sum(vnp.where(chosen, x, 0), -1, keepdims=True) - total) / vnp.maximum(vnp.sum(chosen, -1, keepdims=True), 1)
    return vnp.where(chosen, relu(x - excess), vnp.where(vnp.isnan(limit), vnp.nan, vnp.zeros_like(x))).astype(dtype)


def projection_simplex(tree: Any, scale: Any = 1) -> Any:
    """Project on the positive numbers whose sum is `scale`, which is not negative.

    >>> optim.projections.projection_simplex({"w": jnp.array([0.5, 2.0]), "b": jnp.array(1.5)})
    {'w': Array([0.  , 0.75], dtype=float32), 'b': Array(0.25, dtype=float32)}
    """
    vector, unravel = ravel_pytree(tree)
    return unravel(simplex_rows(vector, scale))


def projection_l1_sphere(tree: Any, scale: Any = 1) -> Any:
    """Project on the numbers whose absolute values add up to `scale`.

    >>> optim.projections.projection_l1_sphere(jnp.array([-2.0, 1.5]))
    Array([-0.75,  0.25], dtype=float32)
    """
    vector, unravel = ravel_pytree(tree)
    return unravel(vnp.sign(vector) * projection_simplex(vnp.abs(vector), scale))


def projection_l1_ball(tree: Any, scale: Any = 1) -> Any:
    """Project on the numbers whose absolute values add up to `scale` at most.

    >>> optim.projections.projection_l1_ball(jnp.array([-0.5, 0.25]))
    Array([-0.5 ,  0.25], dtype=float32)
    """
    return branch(tree_norm(tree, ord=1) <= scale, lambda: tree, lambda: projection_l1_sphere(tree, scale))


def projection_l2_sphere(tree: Any, scale: Any = 1) -> Any:
    """Scale to the Euclidean norm `scale`; zeros become NaN.

    >>> optim.projections.projection_l2_sphere(jnp.array([3.0, 4.0]))
    Array([0.6, 0.8], dtype=float32)
    """
    return scaled_by(scale / global_norm(tree), tree)


def projection_l2_ball(tree: Any, scale: Any = 1) -> Any:
    """Scale down to the Euclidean norm `scale` if it is greater.

    >>> optim.projections.projection_l2_ball([jnp.array([3.0, 4.0])])
    [Array([0.6, 0.8], dtype=float32)]
    """
    square = sum_of_squares(tree)
    outside = square > scale**2
    return scaled_by(vnp.where(outside, scale / vnp.sqrt(vnp.where(outside, square, 1)), 1), tree)


def projection_linf_ball(tree: Any, scale: Any = 1) -> Any:
    """Limit each element to the interval from -scale to scale.

    >>> optim.projections.projection_linf_ball(jnp.array([-3.0, 0.5]))
    Array([-1. ,  0.5], dtype=float32)
    """
    return projection_box(tree, -scale, scale)


def projection_vector(x: Any, a: Any) -> Any:
    """Project on the line through 0 and `a`, a tree of the structure of `x`.

    >>> optim.projections.projection_vector(jnp.array([1.0, 2.0]), jnp.array([2.0, 0.0]))
    Array([1., 0.], dtype=float32)
    """
    return scaled_by(real_dot(x, a) / real_dot(a, a), a)


def projection_hyperplane(x: Any, a: Any, b: Any) -> Any:
    """Project on the points whose inner product with `a` is `b`.

    >>> optim.projections.projection_hyperplane(jnp.array([1.0, 2.0]), jnp.array([2.0, 0.0]), 6.0)
    Array([3., 2.], dtype=float32)
    """
    return add_scaled(x, (b - real_dot(x, a)) / real_dot(a, a), a)


def projection_halfspace(x: Any, a: Any, b: Any) -> Any:
    """Project on the points whose inner product with `a` is at most `b`.

    >>> optim.projections.projection_halfspace(jnp.array([1.0, 2.0]), jnp.array([2.0, 0.0]), 6.0)
    Array([1., 2.], dtype=float32)
    """
    return add_scaled(x, vnp.minimum((b - real_dot(x, a)) / real_dot(a, a), 0), a)


# The linear assignment problem: matching rows and columns at the least cost.


def hungarian_algorithm(cost_matrix: Any) -> tuple[Array, Array]:
    """Return the matching of rows and columns with the least sum of costs.

    It is computed by shortest augmenting paths (Jonker and Volgenant 1987) in O(n³), and can be jitted and batched.

    Args:
        cost_matrix: real numbers of shape (N, M); infinite costs and NaN count as the largest numbers.

    Returns row numbers in ascending order and the columns matched with them: two int32 arrays of shape (min(N, M),).

    Raises `ShapeError` for an array that is no matrix, `DTypeError` for complex numbers.

    >>> cost = jnp.array([[8.0, 4.0, 7.0], [5.0, 2.0, 3.0], [9.0, 4.0, 8.0]])
    >>> optim.assignment.hungarian_algorithm(cost)
    (Array([0, 1, 2], dtype=int32), Array([0, 2, 1], dtype=int32))
    """
    cost = as_value(cost_matrix)
    if cost.ndim != 2:
        raise ShapeError(f"hungarian_algorithm: the costs are a matrix, got shape {cost.shape}; use vmap for a batch")
    if cost.dtype in dtypes.COMPLEX:
        raise DTypeError(f"hungarian_algorithm: costs are real numbers, got {cost.dtype.name}")
    wide = cost.astype(dtypes.accumulator(cost.dtype) if cost.dtype in dtypes.FLOATS else np.float32)
    largest = float(np.finfo(wide.dtype).max) / 16
    cost = vnp.clip(vnp.where(vnp.isnan(wide), largest, wide), -largest, largest)
    rows, columns = cost.shape
    if not rows or not columns:
        return vnp.zeros(0, np.int32), vnp.zeros(0, np.int32)
    if rows > columns:
        row_of = _matched_columns(cost.T)
        order = vnp.argsort(row_of).astype(np.int32)
        return row_of[order], order
    return vnp.arange(rows, dtype=np.int32), _matched_columns(cost)


base_hungarian_algorithm = hungarian_algorithm


class _Search(NamedTuple):
    """A shortest path over columns from a free row: Dijkstra's algorithm."""

    row: Any
    distance: Any
    distances: Any
    came_from: Any
    visited: Any
    end: Any


class _Matching(NamedTuple):
    """Prices of rows and columns; each column's row and each row's column, or -1."""

    u: Any
    v: Any
    row_of: Any
    column_of: Any


def _matched_columns(cost: Array) -> Array:
    """Return the column of each row of a matrix that is not higher than wide."""
    rows, columns = cost.shape
    none = [vnp.full(n, -1, np.int32) for n in (columns, rows)]
    start = _Matching(vnp.zeros(rows, cost.dtype), vnp.zeros(columns, cost.dtype), *none)
    return lax.fori_loop(0, rows, lambda row, matching: _with_row(cost, vnp.asarray(row, np.int32), matching), start).column_of


def _with_row(cost: Array, row: Array, matching: _Matching) -> _Matching:
    path = _shortest_path(cost, row, matching)
    u, v, row_of, column_of = matching
    raised = vnp.where(path.visited, path.distance - path.distances, 0)
    u = u.at[row].add(path.distance).at[vnp.maximum(row_of, 0)].add(vnp.where(row_of >= 0, raised, 0))
    row_of, column_of = _augmented(path.end, path.came_from, row_of, column_of)
    return _Matching(u, v - raised, row_of, column_of)


def _shortest_path(cost: Array, row: Array, matching: _Matching) -> _Search:
    """Search from a row until a column that has none."""
    columns = cost.shape[1]

    def step(search: _Search) -> _Search:
        reduced = search.distance + cost[search.row] - matching.u[search.row] - matching.v
        closer = ~search.visited & (reduced < search.distances)
        distances = vnp.where(closer, reduced, search.distances)
        nearest = vnp.argmin(vnp.where(search.visited, vnp.inf, distances)).astype(np.int32)
        owner = matching.row_of[nearest]
        return _Search(
            owner,
            distances[nearest],
            distances,
            vnp.where(closer, search.row, search.came_from),
            search.visited.at[nearest].set(True),
            vnp.where(owner < 0, nearest, search.end),
        )

    unknown = vnp.full(columns, np.finfo(cost.dtype).max, cost.dtype)
    nowhere = vnp.full(columns, -1, np.int32)
    start = _Search(row, vnp.zeros((), cost.dtype), unknown, nowhere, vnp.zeros(columns, bool), vnp.full((), -1, np.int32))
    return lax.while_loop(lambda search: search.end < 0, step, start)


def _augmented(end: Array, came_from: Array, row_of: Array, column_of: Array) -> tuple[Array, Array]:
    """Assign each column of the path to the row from which it was reached."""

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        column, row_of, column_of = state
        new = came_from[column]
        return column_of[new], row_of.at[column].set(new), column_of.at[new].set(column)

    _, row_of, column_of = lax.while_loop(lambda state: state[0] >= 0, step, (end, row_of, column_of))
    return row_of, column_of


# Differentiable approximations of functions, by random perturbations.


class Normal:
    """The standard normal distribution."""

    def sample(self, key: Any, sample_shape: tuple[int, ...] = (), dtype: Any = "float32") -> Array:
        """Return random numbers of a shape."""
        return random.normal(key, sample_shape, dtype)

    def log_prob(self, inputs: Any) -> Array:
        """Return the logarithm of the density, but for a constant."""
        return -0.5 * inputs**2


class Gumbel:
    """The standard Gumbel distribution."""

    def sample(self, key: Any, sample_shape: tuple[int, ...] = (), dtype: Any = "float32") -> Array:
        """Return random numbers of a shape."""
        return random.gumbel(key, sample_shape, dtype)

    def log_prob(self, inputs: Any) -> Array:
        """Return the logarithm of the density."""
        return -inputs - vnp.exp(-inputs)


def make_perturbed_fun(
    fun: Callable[[Any], Any], num_samples: int = 1000, sigma: Any = 0.1, noise: Any = None, use_baseline: bool = True
) -> Callable[[Any, Any], Any]:
    """Return the expectation of ``fun(x + sigma * noise)``, estimated from samples.

    It is smooth even if `fun` is piecewise constant, such as an `argmax`: derivatives of the estimate are unbiased estimates of the
    expectation's, to any order (Berthet et al. 2020; Foerster et al. 2018).

    Args:
        fun: from a tree of arrays to a tree of arrays.
        num_samples: how many.
        sigma: the noise's scale.
        noise: a distribution with ``sample(key, sample_shape, dtype)`` and ``log_prob(inputs)``; by default `Gumbel()`.
        use_baseline: whether derivatives subtract ``fun(x)``, which lowers their variance.

    Returns a function of a random key and x.

    >>> smooth = optim.perturbations.make_perturbed_fun(lambda x: jnp.sign(x), 100, sigma=1.0, noise=optim.perturbations.Normal())
    >>> bool(vf.grad(lambda x: smooth(vf.random.key(0), x))(0.0) > 0)
    True
    """
    source = Gumbel() if noise is None else noise

    def perturbed_value(key: Any, x: Any, baseline: Any) -> Any:
        shifted = stop_gradient(tree_add_scale(x, sigma, tree_random_like(key, x, source.sample)))
        density = tree_sum(tree.map(lambda y, centre: source.log_prob((y - centre) / sigma), shifted, x))
        weight = vnp.exp(density - stop_gradient(density))  # 1, with the derivatives of the density
        value = tree_scale(weight, fun(shifted))
        return tree_add_scale(value, 1 - weight, baseline) if use_baseline else value

    def perturbed(key: Any, x: Any) -> Any:
        baseline = fun(stop_gradient(x)) if use_baseline else None
        values = vmap(lambda k: perturbed_value(k, x, baseline))(random.split(key, num_samples))
        return tree.map(lambda v: vnp.mean(v, 0), values)

    return perturbed
