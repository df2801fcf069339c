"""A pytree of arrays as one vector."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes, lax, tree
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import Shape
from volta_fn.errors import DTypeError, ShapeError
from volta_fn.numpy.creation import zeros
from volta_fn.primitives.declare import to_dtype


def ravel_pytree(pytree: Any) -> tuple[Array, Callable[[Any], Any]]:
    """Concatenate the leaves of a pytree; also return the inverse function.

    Args:
        pytree: arrays and Python scalars in any containers.

    Returns:
        ``(vector, unravel)``: all elements, in the leaves' common dtype (float32 if there are none), and the function from such a vector to
        a pytree like the given one. Leaves of several dtypes are converted back to their own. Where all leaves have one dtype, `unravel`
        takes vectors of any dtype and keeps that dtype. It raises `ShapeError` for a vector of another length, and `DTypeError` for
        one of another dtype where leaves have several.

    >>> vector, unravel = vf.flatten_util.ravel_pytree({"w": jnp.ones((2, 2)), "b": jnp.zeros(1)})
    >>> vector, unravel(vector)["w"].shape
    (Array([0., 1., 1., 1., 1.], dtype=float32), (2, 2))
    """
    leaves, structure = tree.flatten(pytree)
    values = [as_value(x) for x in leaves]
    leaf_dtypes = tuple([v.dtype for v in values])
    dtype = dtypes.promote(*[(v.dtype, v.weak_type) for v in values])[0] if values else np.dtype(np.float32)
    flat = [lax.reshape(to_dtype(x, dtype), (v.size,)) for x, v in zip(leaves, values, strict=True)]
    vector = lax.concatenate(flat, 0) if flat else zeros(0, dtype)
    return vector, _Unravel(structure, tuple([v.shape for v in values]), leaf_dtypes, dtype)


class _Unravel:
    """The inverse of `ravel_pytree` for pytrees of one structure and types.

    Inverses for equal structures and types are equal, so that it can be a static argument.
    """

    def __init__(self, structure: Any, shapes: tuple[Shape, ...], leaf_dtypes: tuple[np.dtype, ...], dtype: np.dtype) -> None:
        self.structure = structure
        self.shapes = shapes
        self.leaf_dtypes = leaf_dtypes
        self.dtype = dtype

    def _key(self) -> tuple[Any, ...]:
        return self.structure, self.shapes, self.leaf_dtypes, self.dtype

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Unravel) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __call__(self, vector: Any) -> Any:
        flat = as_value(vector)
        sizes = [math.prod(s) for s in self.shapes]
        if flat.shape != (sum(sizes),):
            raise ShapeError(f"unravel takes a vector of {sum(sizes)} elements, as ravel_pytree returned, got shape {flat.shape}")
        several = set(self.leaf_dtypes) - {self.dtype}
        if several and flat.dtype != self.dtype:
            raise DTypeError(f"unravel takes a vector of dtype {self.dtype.name}, as ravel_pytree returned, got {flat.dtype.name}")
        leaves = [lax.reshape(x, shape) for x, shape in zip(lax.split(flat, sizes), self.shapes, strict=True)] if sizes else []
        if several:
            leaves = [_to_leaf_dtype(x, dtype) for x, dtype in zip(leaves, self.leaf_dtypes, strict=True)]
        return tree.unflatten(self.structure, leaves)


def _to_leaf_dtype(x: Array, dtype: np.dtype) -> Array:
    """Convert back to a leaf's dtype, which drops the imaginary zeros of real leaves."""
    real = lax.real(x) if x.dtype in dtypes.COMPLEX and dtype not in dtypes.COMPLEX else x
    return lax.convert_element_type(real, dtype)
