"""Means over many batches."""

from __future__ import annotations

from typing import Any, NamedTuple

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.dtypes import accumulator
from volta_fn.errors import ShapeError
from volta_fn.nn.losses.common import real_operands

__all__ = ["Mean"]


class Mean(NamedTuple):
    """A running weighted mean over batches, a pytree for `jit` and `scan`.

    Means of separate data may be merged. Sums are kept in the dtype given to `init`. Float32 counts single examples exactly up to 2²⁴.

    >>> mean = vf.nn.metrics.Mean.init()
    >>> for batch in (vf.numpy.array([1.0, 2.0]), vf.numpy.array([6.0])):
    ...     mean = mean.update(batch)
    >>> mean.value
    Array(3., dtype=float32)
    """

    total: Array
    weight: Array

    @classmethod
    def init(cls, shape: tuple[int, ...] = (), dtype: Any = "float32") -> Mean:
        """Return the mean of no values, NaN; `shape` is that of single values."""
        return cls(vnp.zeros(shape, dtype), vnp.zeros((), dtype))

    def update(self, values: Any, weight: Any = None) -> Mean:
        """Add values along leading dimensions.

        `weight`, of the shape of those leading dimensions or 0-d, is the weight of each value: 0 to skip it, the size of the batch for the
        mean of a batch. Raises `ShapeError` for values or weights of other shapes.
        """
        _, (new,) = real_operands("Mean.update", values)
        lead = new.ndim - self.total.ndim
        if lead < 0 or new.shape[lead:] != self.total.shape:
            raise ShapeError(f"Mean.update: values end in the shape {self.total.shape}, got {new.shape}")
        new = new.astype(vnp.promote_types(accumulator(new.dtype), self.total.dtype))
        (factors,) = real_operands("Mean.update", 1.0 if weight is None else weight)[1]
        if factors.shape not in ((), new.shape[:lead]):
            raise ShapeError(
                f"Mean.update: values of shape {new.shape} need weights of shape {new.shape[:lead]} or (), got {factors.shape}"
            )
        factors = vnp.broadcast_to(factors, new.shape[:lead]).astype(new.dtype)
        shares = factors.reshape(factors.shape + (1,) * self.total.ndim)
        weighted = vnp.sum(vnp.where(shares == 0, 0.0, new * shares), tuple(range(lead)))
        return Mean((self.total + weighted).astype(self.total.dtype), (self.weight + vnp.sum(factors)).astype(self.weight.dtype))

    def merge(self, other: Mean) -> Mean:
        """Return the mean of the values of both."""
        return Mean(self.total + other.total, self.weight + other.weight)

    @property
    def value(self) -> Array:
        """The mean; NaN of nothing."""
        return self.total / self.weight
