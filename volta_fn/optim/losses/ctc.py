"""Connectionist temporal classification, with Optax's signature."""

from __future__ import annotations

from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ShapeError
from volta_fn.nn.losses.common import real_operands
from volta_fn.nn.losses.ctc import forward_probabilities
from volta_fn.scipy.special.exponential import log_softmax

__all__ = ["ctc_loss", "ctc_loss_with_forward_probs"]


def ctc_loss(logits: Any, logit_paddings: Any, labels: Any, label_paddings: Any, *, blank_id: int = 0, log_epsilon: Any = -1e5) -> Array:
    """Return minus the log-probability of the labels, over all alignments.

    `nn.ctc_loss` has PyTorch's arguments.

    Args:
        logits: scores of shape (B, T, C): sequences, frames, classes.
        logit_paddings: 1 for frames past the end of a sequence, else 0; shape (B, T).
        labels: class numbers without blanks, shape (B, N).
        label_paddings: 1 for labels past the end, else 0; shape (B, N).
        blank_id: the class number of blanks.
        log_epsilon: what counts as the logarithm of 0, of labels that no alignment spells.

    Returns the loss of each sequence, shape (B,). Raises `ShapeError` if the shapes do not fit, `DTypeError` for labels that are not
    integers, `ArgumentError` for a blank that is no class.

    >>> optim.losses.ctc_loss(vnp.zeros((1, 3, 2)), vnp.zeros((1, 3)), vnp.array([[1]]), vnp.zeros((1, 1))).round(4)
    Array([0.2877], dtype=float32)
    """
    arguments = (logits, logit_paddings, labels, label_paddings)
    return ctc_loss_with_forward_probs(*arguments, blank_id=blank_id, log_epsilon=log_epsilon)[0]


def ctc_loss_with_forward_probs(
    logits: Any, logit_paddings: Any, labels: Any, label_paddings: Any, *, blank_id: int = 0, log_epsilon: Any = -1e5
) -> tuple[Array, Array, Array]:
    """Return `ctc_loss`, and the log-probabilities of having spelt the first labels.

    Returns:
        The losses, of shape (B,); after each frame, the log-probability of having spelt the first n labels and ended with a blank, shape
        (T, B, N + 1); and ended with the label n + 1, shape (T, B, N). The last frame's blanks include endings without a blank.

    >>> given = vnp.zeros((1, 3, 2)), vnp.zeros((1, 3)), vnp.array([[1]]), vnp.zeros((1, 1))
    >>> [x.shape for x in optim.losses.ctc_loss_with_forward_probs(*given)]
    [(1,), (3, 1, 2), (3, 1, 1)]
    """
    dtype, (x,) = real_operands("ctc_loss", logits)
    frame_pads, label_pads, numbers = as_value(logit_paddings), as_value(label_paddings), as_value(labels)
    if x.ndim != 3 or frame_pads.shape != x.shape[:2] or label_pads.shape != numbers.shape:
        raise ShapeError(
            "ctc_loss: logits have shape (B, T, C), logit_paddings (B, T), labels and label_paddings (B, N), got "
            f"{x.shape}, {frame_pads.shape}, {numbers.shape} and {label_pads.shape}"
        )
    scores = log_softmax(x).swapaxes(0, 1)
    frames, lengths = (vnp.sum(pads == 0, 1).astype("int32") for pads in (frame_pads, label_pads))
    values, states = forward_probabilities(scores, numbers, frames, lengths, blank_id)
    blanks, emitted = (vnp.maximum(state, log_epsilon) for state in (states[..., ::2], states[..., 1::2]))
    if x.shape[1]:
        blanks = blanks.at[-1, :, 1:].set(vnp.logaddexp(blanks[-1, :, 1:], emitted[-1]))
    return vnp.minimum(values, -log_epsilon).astype(dtype), blanks.astype(dtype), emitted.astype(dtype)
