"""PReLU: an activation with a slope that is learnt."""

from __future__ import annotations

from typing import Any, Self

from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.dtypes import FLOATS
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn.module import Module
from volta_fn.nn.spatial import check_dtype, is_whole


class PReLU(Module):
    """x where x > 0, else weight · x (He et al. 2015).

    `weight` has shape (num_parameters,): one slope for all elements, or one for each channel, which is axis 1 of the input.

    >>> import volta_fn as vf
    >>> vf.nn.PReLU.init()(vf.numpy.array([-2.0, 0.0, 3.0]))
    Array([-0.5,  0. ,  3. ], dtype=float32)
    """

    weight: Array

    @classmethod
    def init(cls, num_parameters: int = 1, slope: float = 0.25, *, dtype: Any = "float32") -> Self:
        """All slopes the same. Raises `ArgumentError` if there is not at least one."""
        if not is_whole(num_parameters) or num_parameters < 1:
            raise ArgumentError(f"PReLU: num_parameters is a whole number, 1 or more, got {num_parameters!r}")
        return cls(vnp.full((num_parameters,), slope, dtype))

    def __call__(self, x: Any) -> Array:
        """The activation, of the shape of `x`. Raises `ShapeError` unless there is one slope, or as many as axis 1 is long."""
        value = as_value(x)
        check_dtype("PReLU", value, FLOATS)
        count = self.weight.shape[0]
        if count == 1:
            slope = self.weight[0]
        elif value.ndim >= 2 and value.shape[1] == count:
            slope = self.weight.reshape(count, *[1] * (value.ndim - 2))
        else:
            raise ShapeError(f"PReLU: {count} slopes need size {count} along axis 1, got shape {value.shape}")
        positive = value > 0
        # Infinities that are not multiplied must not meet the slope: its derivative there would be 0 times infinity.
        return vnp.where(positive, value, slope * vnp.where(positive, 0, value))
