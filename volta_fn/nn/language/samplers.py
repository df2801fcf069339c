"""Choosing tokens by their logits: pure functions that compose.

A *sampler* is a function from logits (…, V) and a key to tokens (…,). A *filter* returns logits with -inf for tokens that must not be
chosen, so that ``lambda logits, key: random.categorical(key, nn.top_p_filter(logits / 0.7, 0.9))`` is a sampler, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from volta_fn import lax, random
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.dtypes import BOOL, FLOATS, accumulator
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.nn.layers.arguments import is_integer
from volta_fn.scipy.special.exponential import softmax

__all__ = ["Sampler", "greedy", "min_p_filter", "penalize_repetition", "top_k_filter", "top_p_filter"]


def _logits(name: str, logits: Any) -> Array:
    value = as_value(logits)
    if value.dtype not in FLOATS:
        raise DTypeError(f"{name}: logits are real floats, got {value.aval}")
    if value.ndim == 0 or value.shape[-1] == 0:
        raise ShapeError(f"{name}: logits have shape (…, V) with at least one token, got {value.shape}")
    return value.astype(accumulator(value.dtype))


def greedy(logits: Any, key: Any = None) -> Array:
    """Return the tokens of the greatest logits, int32 of shape (…,); no key is used.

    Raises `ShapeError`, `DTypeError` for logits that are not floats (…, V).

    >>> nn.greedy(jnp.array([0.0, 2.0, 1.0]))
    Array(1, dtype=int32)
    """
    del key
    return vnp.argmax(_logits("greedy", logits), -1).astype("int32")


def top_k_filter(logits: Any, k: int) -> Array:
    """Keep the k greatest logits (Fan et al. 2018); of equal ones the first.

    A k above V keeps all. Raises `ArgumentError` unless k is an integer of at least 1, and as `greedy`.

    >>> nn.top_k_filter(jnp.array([0.0, 2.0, 1.0]), 2)
    Array([-inf,   2.,   1.], dtype=float32)
    """
    value = _logits("top_k_filter", logits)
    if not is_integer(k, 1):
        raise ArgumentError(f"top_k_filter: k is an integer of at least 1, got {k!r}")
    if k >= value.shape[-1]:
        return value
    _, indices = lax.top_k(value, k)
    chosen = vnp.put_along_axis(vnp.zeros(value.shape, bool), indices, True, -1, inplace=False)
    return vnp.where(chosen, value, -vnp.inf)


def top_p_filter(logits: Any, p: float) -> Array:
    """Keep the most probable tokens whose probabilities reach p.

    See Holtzman et al. (2020). A token stays if those that are more probable together have less than p, so at least one stays. Raises
    `ArgumentError` unless 0 ≤ p ≤ 1, and as `greedy`.

    >>> nn.top_p_filter(jnp.log(jnp.array([0.2, 0.5, 0.3])), 0.6).round(2)
    Array([ -inf, -0.69, -1.2 ], dtype=float32)
    """
    value = _logits("top_p_filter", logits)
    _check_probability("top_p_filter", p)
    order = vnp.argsort(-value, -1, stable=True)
    retained = _top_p_mask(vnp.take_along_axis(value, order, -1), p)
    return vnp.where(vnp.take_along_axis(retained, vnp.argsort(order, -1), -1), value, -vnp.inf)


def _top_p_mask(sorted_logits: Array, p: float) -> Array:
    """Return which of descending logits come before their probabilities reach p."""
    if p == 1:  # which sums of many probabilities reach by rounding before the last one
        return vnp.ones(sorted_logits.shape, bool)
    probabilities = softmax(sorted_logits, -1)
    before = vnp.cumsum(probabilities, -1) - probabilities
    return (before < p).at[..., 0].set(True)


def min_p_filter(logits: Any, p: float) -> Array:
    """Keep tokens of at least p times the greatest probability (Nguyen et al. 2024).

    Raises `ArgumentError` unless 0 ≤ p ≤ 1, and as `greedy`.

    >>> nn.min_p_filter(jnp.log(jnp.array([0.1, 0.5, 0.4])), 0.5).round(2)
    Array([ -inf, -0.69, -0.92], dtype=float32)
    """
    value = _logits("min_p_filter", logits)
    _check_probability("min_p_filter", p)
    probabilities = softmax(value, -1)
    return vnp.where(probabilities >= p * probabilities.max(-1, keepdims=True), value, -vnp.inf)


def _check_probability(name: str, p: float) -> None:
    if not 0 <= p <= 1:
        raise ArgumentError(f"{name}: p is between 0 and 1, got {p!r}")


def penalize_repetition(logits: Any, seen: Any, penalty: float) -> Array:
    """Divide the logits of seen tokens by the penalty, multiply negative ones.

    Tokens that were used become less probable if the penalty is above 1 (Keskar et al. 2019).

    Args:
        logits: shape (…, V).
        seen: bool of the same shape.
        penalty: a number above 0.

    Raises `ArgumentError` for another penalty, `ShapeError` or `DTypeError` for another mask, and as `greedy`.

    >>> nn.penalize_repetition(jnp.array([1.0, -1.0, 3.0]), jnp.array([True, True, False]), 2.0)
    Array([ 0.5, -2. ,  3. ], dtype=float32)
    """
    value, mask = _logits("penalize_repetition", logits), as_value(seen)
    if not penalty > 0:
        raise ArgumentError(f"penalize_repetition: the penalty is above 0, got {penalty!r}")
    if mask.dtype not in BOOL:
        raise DTypeError(f"penalize_repetition: seen is bool, got {mask.aval}")
    if mask.shape != value.shape:
        raise ShapeError(f"penalize_repetition: seen has the shape {value.shape} of the logits, got {mask.shape}")
    return vnp.where(mask, vnp.where(value > 0, value / penalty, value * penalty), value)


#: Logits divided by less may be infinite or NaN, and differ by so much that the greatest is the only choice.
_LEAST_TEMPERATURE = 1e-30


@dataclass(frozen=True, slots=True)
class Sampler:
    """The usual choices in their usual order, as one sampler.

    Repetitions are penalised, logits divided by the temperature, and `top_k`, `top_p` and `min_p` filter what remains, as in Hugging Face's
    `generate`. With `top_k` only the k greatest logits are sorted. Instances are hashable: there is a program for each.

    Attributes:
        temperature: 0 chooses the greatest logit, above 1 is more random.
        top_k, top_p, min_p: see `top_k_filter`, `top_p_filter`, `min_p_filter`; None for no filter.
        repetition_penalty: see `penalize_repetition`; 1 for none.

    Raises `ArgumentError` for numbers out of their range.

    >>> nn.Sampler(temperature=0.7, top_k=2)(jnp.array([0.0, 9.0, -1.0]), vf.random.key(0))
    Array(1, dtype=int32)
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ArgumentError(f"Sampler: temperature is at least 0, got {self.temperature!r}")
        if not self.repetition_penalty > 0:
            raise ArgumentError(f"Sampler: repetition_penalty is above 0, got {self.repetition_penalty!r}")
        if self.top_k is not None and not is_integer(self.top_k, 1):
            raise ArgumentError(f"Sampler: top_k is an integer of at least 1, got {self.top_k!r}")
        for name in ("top_p", "min_p"):
            if (p := getattr(self, name)) is not None:
                _check_probability(f"Sampler.{name}", p)

    def filtered(self, logits: Any, seen: Any = None) -> Array:
        """Return the logits of which a token is drawn, -inf for those that are filtered.

        Arguments and errors are those of calls. Temperature 0 keeps the greatest logits alone.
        """
        value = _logits("Sampler", logits)
        if self.repetition_penalty != 1 and seen is not None:
            value = penalize_repetition(value, seen, self.repetition_penalty)
        if self.temperature < _LEAST_TEMPERATURE:
            return top_k_filter(value, 1)
        value = value / self.temperature
        value = value if self.top_k is None else top_k_filter(value, self.top_k)
        value = value if self.top_p is None else top_p_filter(value, self.top_p)
        return value if self.min_p is None else min_p_filter(value, self.min_p)

    def __call__(self, logits: Any, key: Any, seen: Any = None) -> Array:
        """Return a token for each row of logits, int32 of shape (…,).

        Args:
            logits: floats of shape (…, V).
            key: a random key; not used if the temperature is 0.
            seen: bool of the shape of `logits`, True for tokens that the text contains, for the penalty.

        Raises:
            ShapeError, DTypeError: the arrays do not fit.
        """
        value = _logits("Sampler", logits)
        if self.repetition_penalty != 1 and seen is not None:
            value = penalize_repetition(value, seen, self.repetition_penalty)
        if self.temperature < _LEAST_TEMPERATURE:
            return greedy(value)
        value = value / self.temperature
        if self.top_k is None or self.top_k >= value.shape[-1]:
            value = value if self.top_p is None else top_p_filter(value, self.top_p)
            value = value if self.min_p is None else min_p_filter(value, self.min_p)
            return random.categorical(key, value).astype("int32")
        best, tokens = lax.top_k(value, self.top_k)  # in descending order
        best = best if self.top_p is None else vnp.where(_top_p_mask(best, self.top_p), best, -vnp.inf)
        best = best if self.min_p is None else min_p_filter(best, self.min_p)
        chosen = random.categorical(key, best)
        return vnp.take_along_axis(tokens, chosen[..., None], -1)[..., 0].astype("int32")
