"""Losses of segmentation by overlap: Dice and Tversky."""

from __future__ import annotations

from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array, ConcreteArray, as_value
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn.activations import sigmoid
from volta_fn.nn.losses.common import check_reduction, real_operands
from volta_fn.scipy.special.exponential import softmax

__all__ = ["binary_dice_loss", "dice_loss", "multiclass_generalized_dice_loss"]


def dice_loss(
    predictions: Any,
    targets: Any,
    *,
    class_weights: Any = None,
    smooth: Any = 1.0,
    alpha: Any = 0.5,
    beta: Any = 0.5,
    apply_softmax: bool = True,
    reduction: str = "mean",
    ignore_background: bool = False,
    axis: int | tuple[int, ...] | None = None,
) -> Array:
    """Return 1 - overlap of predicted and true segments (Milletari et al. 2016).

    The overlap of each class is (common + smooth) / (common + alpha · false positives + beta · false negatives + smooth): Dice's
    coefficient, or Tversky's with other weights (Salehi et al. 2017).

    Args:
        predictions: logits of shape (N, …, C), or (N, …) for one class.
        targets: probabilities of the same shape, usually one-hot.
        class_weights: a factor of each class's loss, shape (C,).
        smooth: keeps the overlap of empty segments finite.
        alpha: the weight of false positives.
        beta: the weight of false negatives.
        apply_softmax: whether predictions are logits, of which softmax (sigmoid if there is one class) makes probabilities.
        reduction: "mean", "sum" or "none" over the classes.
        ignore_background: whether class 0 does not count, if there are several.
        axis: the axes of pixels, by default all but the first and the last.

    Returns the loss of each example. Raises `ShapeError` if the shapes do not fit, `ArgumentError` for another reduction, or for
    probabilities that do not add up to 1 (unless they are traced).

    >>> targets = nn.one_hot(vnp.array([[0, 1, 1]]), 2)
    >>> optim.losses.dice_loss(100 * targets, targets)
    Array([0.], dtype=float32)
    """
    dtype, (x, y) = real_operands("dice_loss", predictions, targets)
    x = x[..., None] if x.ndim == y.ndim - 1 else x
    y = y[..., None] if y.ndim == x.ndim - 1 else y
    if x.shape != y.shape or not x.ndim:
        raise ShapeError(f"dice_loss: predictions and targets need one shape, got {x.shape} and {y.shape}")
    probabilities = _probabilities(x, apply_softmax)
    pixels = tuple(range(1, x.ndim - 1)) if axis is None else axis
    common, predicted, true = (vnp.sum(v, pixels) for v in (probabilities * y, probabilities, y))
    values = 1.0 - (common + smooth) / (common + alpha * (predicted - common) + beta * (true - common) + smooth)
    if class_weights is not None:
        values = values * _checked_weights(class_weights, x.shape[-1]).astype(values.dtype)
    if ignore_background and x.shape[-1] > 1:
        values = values[..., 1:]
    return _over_classes(values, reduction).astype(dtype)


def _probabilities(x: Array, apply_softmax: bool) -> Array:
    if apply_softmax:
        return sigmoid(x) if x.shape[-1] == 1 else softmax(x)
    if x.shape[-1] > 1 and isinstance(x, ConcreteArray) and not bool(vnp.allclose(vnp.sum(x, -1), 1.0, rtol=1e-5)):
        raise ArgumentError("dice_loss: probabilities must add up to 1 along the last axis; for logits use apply_softmax=True")
    return x


def _checked_weights(class_weights: Any, classes: int) -> Array:
    weights = as_value(class_weights)
    if weights.shape != (classes,):
        raise ShapeError(f"dice_loss: {classes} classes need class_weights of shape ({classes},), got {weights.shape}")
    return weights


def _over_classes(values: Array, reduction: str) -> Array:
    check_reduction("dice_loss", reduction)
    if reduction == "none":
        return values
    return vnp.mean(values, -1) if reduction == "mean" else vnp.sum(values, -1)


def multiclass_generalized_dice_loss(
    predictions: Any, targets: Any, *, smooth: Any = 1.0, apply_softmax: bool = True, ignore_background: bool = False
) -> Array:
    """Return the mean `dice_loss`, weighted by the inverse squares of class sizes.

    See Sudre et al. (2017). Arguments are those of `dice_loss`; the result is a scalar.

    >>> targets = nn.one_hot(vnp.array([[0, 1, 1]]), 2)
    >>> optim.losses.multiclass_generalized_dice_loss(vnp.zeros((1, 3, 2)), targets).round(4)
    Array(0.3212, dtype=float32)
    """
    dtype, (x, y) = real_operands("multiclass_generalized_dice_loss", predictions, targets)
    if x.shape != y.shape:
        raise ShapeError(f"multiclass_generalized_dice_loss: predictions and targets need one shape, got {x.shape} and {y.shape}")
    weights = 1.0 / (vnp.square(vnp.sum(y, tuple(range(y.ndim - 1)))) + 1e-7)
    weights = weights / vnp.sum(weights) * weights.size
    options: dict[str, Any] = {"apply_softmax": apply_softmax, "ignore_background": ignore_background}
    return vnp.mean(dice_loss(x, y, class_weights=weights, smooth=smooth, reduction="none", **options)).astype(dtype)


def binary_dice_loss(predictions: Any, targets: Any, *, smooth: Any = 1.0, apply_sigmoid: bool = True) -> Array:
    """Return the `dice_loss` of one class, of arrays (N, …) or (N, …, 1).

    >>> optim.losses.binary_dice_loss(vnp.array([[100.0, -100.0]]), vnp.array([[1.0, 0.0]]))
    Array([0.], dtype=float32)
    """
    dtype, (x, y) = real_operands("binary_dice_loss", predictions, targets)
    if x.ndim == y.ndim and x.ndim and x.shape[-1] != 1:
        x, y = x[..., None], y[..., None]
    return dice_loss(x, y, smooth=smooth, apply_softmax=apply_sigmoid).astype(dtype)
