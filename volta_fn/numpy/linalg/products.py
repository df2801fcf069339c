"""Matrix powers, chains of products, and the Array API's forms of some functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta_fn.core.array import Array
from volta_fn.core.aval import as_integer
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.numpy import diagonals, products
from volta_fn.numpy.arguments import axis_of, operand, promote
from volta_fn.numpy.linalg.operands import identity_like
from volta_fn.numpy.linalg.solving import inv
from volta_fn.primitives.data_movement.movement import broadcast_to


def matrix_power(a: Any, n: int) -> Array:
    """Raise square matrices to an integer power by squaring; negative ones invert.

    >>> jnp.linalg.matrix_power(jnp.array([[1, 1], [0, 1]]), 5)
    Array([[1, 5],
           [0, 1]], dtype=int32)
    """
    exponent = as_integer(n, "matrix_power: n")
    base = operand("matrix_power", "a", a)
    if base.ndim < 2 or base.shape[-1] != base.shape[-2]:
        raise ShapeError(f"matrix_power: a must have square matrices in its last two dimensions, got shape {base.shape}")
    if exponent < 0:
        base, exponent = inv(base), -exponent
    if exponent == 0:
        return broadcast_to(identity_like(base), base.shape)
    result = None
    while True:
        if exponent % 2:
            result = base if result is None else products.matmul(result, base)
        exponent //= 2
        if not exponent:
            return result  # type: ignore[return-value]  # the highest bit of the exponent is set
        base = products.matmul(base, base)


def multi_dot(arrays: Sequence[Any], *, precision: Any = None) -> Array:
    """Multiply matrices (vectors at the ends) with the fewest multiplications.

    >>> jnp.linalg.multi_dot([jnp.ones((9, 2)), jnp.ones((2, 9)), jnp.ones(9)]).shape
    (9,)
    """
    chain = promote("multi_dot", *arrays) if arrays else []
    if len(chain) < 2:
        raise ArgumentError(f"multi_dot: needs at least two arrays, got {len(chain)}")
    ends = (chain[0], chain[-1])
    if any(a.ndim != 2 for a in chain[1:-1]) or any(a.ndim not in (1, 2) for a in ends):
        raise ShapeError(f"multi_dot: takes matrices, and vectors at the ends; got shapes {', '.join(str(a.shape) for a in chain)}")
    sizes = [1 if chain[0].ndim == 1 else chain[0].shape[0], *[a.shape[0] for a in chain[1:]]]
    sizes.append(1 if chain[-1].ndim == 1 else chain[-1].shape[1])
    splits = _best_splits(sizes)

    def product(first: int, last: int) -> Array:
        if first == last:
            return chain[first]
        middle = splits[first, last]
        return products.matmul(product(first, middle), product(middle + 1, last), precision=precision)

    return product(0, len(chain) - 1)


def _best_splits(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return where to split subchains for the cheapest product (Cormen et al., 15.2).

    Matrix i has the shape (sizes[i], sizes[i + 1]).
    """
    count = len(sizes) - 1
    cost = {(i, i): 0 for i in range(count)}
    splits = {}
    for length in range(1, count):
        for first in range(count - length):
            last = first + length
            costs = {k: cost[first, k] + cost[k + 1, last] + sizes[first] * sizes[k + 1] * sizes[last + 1] for k in range(first, last)}
            splits[first, last] = min(costs, key=costs.__getitem__)
            cost[first, last] = costs[splits[first, last]]
    return splits


def outer(x1: Any, x2: Any, /) -> Array:
    """Return all products of an element of one vector with one of another.

    >>> jnp.linalg.outer(jnp.array([1, 2]), jnp.array([3, 4]))
    Array([[3, 4],
           [6, 8]], dtype=int32)
    """
    a, b = promote("outer", x1, x2)
    if a.ndim != 1 or b.ndim != 1:
        raise ShapeError(f"linalg.outer takes vectors, got shapes {a.shape} and {b.shape}; volta_fn.numpy.outer flattens its arguments")
    return products.outer(a, b)


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """Return the cross product of vectors of three components along `axis`.

    >>> jnp.linalg.cross(jnp.array([1, 0, 0]), jnp.array([0, 1, 0]))
    Array([0, 0, 1], dtype=int32)
    """
    a, b = promote("cross", x1, x2)
    if any(v.shape[axis_of("cross", axis, v.ndim)] != 3 for v in (a, b)):
        raise ShapeError(f"linalg.cross takes vectors of three components along axis {axis}, got shapes {a.shape} and {b.shape}")
    return products.cross(a, b, axis=axis)


def diagonal(x: Any, /, *, offset: int = 0) -> Array:
    """Return the diagonals of the matrices in the last two dimensions.

    >>> jnp.linalg.diagonal(jnp.array([[1, 2], [3, 4]]))
    Array([1, 4], dtype=int32)
    """
    return diagonals.diagonal(x, offset, -2, -1)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """Sum the diagonals of the matrices in the last two dimensions.

    >>> jnp.linalg.trace(jnp.array([[1, 2], [3, 4]]))
    Array(5, dtype=int32)
    """
    return diagonals.trace(x, offset, -2, -1, dtype)
