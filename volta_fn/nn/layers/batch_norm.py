"""Batch normalisation, the simplest layer with state."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.dtypes import accumulator
from volta_fn.errors import ArgumentTypeError, ShapeError
from volta_fn.nn.layers.common import batched_input, check_dtype, check_features, check_sizes
from volta_fn.nn.module import Module, static
from volta_fn.primitives.barriers import stop_gradient

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "BatchNormState"]


class BatchNormState(NamedTuple):
    """Running means and variances of shape (num_features,), and the number of batches."""

    mean: Array
    var: Array
    batches: Array


class _BatchNorm(Module):
    weight: Array | None
    bias: Array | None
    eps: float = static(default=1e-5)
    momentum: float | None = static(default=0.1)
    axis_name: str | None = static(default=None)

    _spatial: ClassVar[tuple[int, ...]] = ()

    @classmethod
    def init(
        cls,
        num_features: int,
        *,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        axis_name: str | None = None,
        dtype: Any = "float32",
    ) -> tuple[Self, BatchNormState]:
        """Create the layer and its state: scales and variances 1, offsets and means 0.

        Args:
            num_features: size of axis 1.
            eps: added to the variance.
            momentum: the weight of the newest batch in the running statistics; None averages all batches equally.
            affine: whether to scale and shift by learnt numbers.
            axis_name: a named axis, of `vmap` or of `shard_map`'s processes, over which the batch's statistics are shared.
            dtype: of the parameters and the state.
        """
        check_sizes(cls.__name__, num_features=num_features)
        ones, zeros = vnp.ones(num_features, dtype), vnp.zeros(num_features, dtype)
        layer = cls(ones if affine else None, zeros if affine else None, eps, momentum, axis_name)
        return layer, BatchNormState(zeros, ones, vnp.zeros((), "int32"))

    def __call__(self, x: Any, state: BatchNormState | None = None, *, training: bool = False) -> tuple[Array, BatchNormState]:
        """Return the normalised features, of the input's dtype, and the new state.

        In training it uses the batch's means and variances, and updates the state (with the unbiased variance); an empty batch changes
        nothing. Otherwise it uses those of the state. float16 and bfloat16 are computed in float32.

        Raises `ShapeError` for other axes or features than the layer's and in training for a single value per feature, which has no
        variance; `DTypeError` unless the input is of floating dtype.
        """
        name = type(self).__name__
        if state is None:
            raise ArgumentTypeError(
                f"{name} has state: `layer, state = nn.{name}.init(features)` made it, and the layer is called `y, state = layer(x, state)`"
            )
        value = batched_input(name, x, self._spatial)
        check_features(name, value, state.mean.shape[0], axis=1)
        check_dtype(name, value)
        wide = value.astype(accumulator(value.dtype))
        if training and value.size:
            mean, var, new = self._of_batch(wide, state)
        else:
            mean, var, new = state.mean, state.var, state
        column = (-1, *[1] * (value.ndim - 2))
        factor = lax.rsqrt(var.astype(wide.dtype) + self.eps)
        if self.weight is not None:
            factor = factor * self.weight
        out = (wide - mean.reshape(column)) * factor.reshape(column)
        if self.bias is not None:
            out = out + self.bias.reshape(column)
        return out.astype(value.dtype), new

    def _of_batch(self, x: Array, state: BatchNormState) -> tuple[Array, Array, BatchNormState]:
        axes = (0, *range(2, x.ndim))
        count = x.size // x.shape[1] * (1 if self.axis_name is None else lax.psum(1, self.axis_name))
        if count == 1:
            raise ShapeError(f"{type(self).__name__}: in training it needs more than one value per feature, got shape {x.shape}")
        mean = vnp.mean(x, axes)
        square = vnp.mean(lax.square(x - mean.reshape(-1, *[1] * (x.ndim - 2))), axes)
        if self.axis_name is not None:
            own, mean = mean, lax.pmean(mean, self.axis_name)
            square = lax.pmean(square + lax.square(own - mean), self.axis_name)
        batches = state.batches + 1
        weight = 1 / batches.astype(x.dtype) if self.momentum is None else self.momentum
        new_mean = _towards(state.mean, mean, weight)
        return mean, square, BatchNormState(new_mean, _towards(state.var, square * (count / (count - 1)), weight), batches)


def _towards(old: Array, now: Array, weight: Any) -> Array:
    """Move a running statistic towards that of this batch, without a gradient."""
    return (old + weight * (stop_gradient(now) - old)).astype(old.dtype)


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of (N, C) or (N, C, L) over N and L.

    See Ioffe & Szegedy (2015).

    >>> bn, state = vf.nn.BatchNorm1d.init(3)
    >>> y, state = bn(vf.numpy.ones((4, 3)), state, training=True)
    >>> state.mean
    Array([0.1, 0.1, 0.1], dtype=float32)
    """

    _spatial = (0, 1)


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of (N, C, H, W) over N, H and W.

    >>> bn, state = vf.nn.BatchNorm2d.init(64)
    >>> y, state = bn(vf.numpy.ones((2, 64, 4, 4)), state, training=True)
    """

    _spatial = (2,)


class BatchNorm3d(_BatchNorm):
    """Batch normalisation of (N, C, D, H, W) over N, D, H and W."""

    _spatial = (3,)
