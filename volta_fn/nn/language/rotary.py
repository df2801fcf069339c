"""Rotary positions of language models, and ways to stretch them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.dtypes import as_dtype
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn.language.config import RopeParameters

__all__ = ["Rotation", "rotary_rotation"]


class Rotation(NamedTuple):
    """Cosines and sines of the angles of pairs of features, of shape (…, T, pairs)."""

    cos: Array
    sin: Array


def rotary_rotation(
    positions: Any, rope: RopeParameters, head_dim: int, max_position_embeddings: int, *, dtype: Any = "float32"
) -> Rotation:
    """Return the rotation of each position.

    Args:
        positions: integers of shape (…, T).
        rope: the kind of positions.
        head_dim: features of a head; `rope.partial_rotary_factor` tells how many are rotated.
        max_position_embeddings: the model's, at which "dynamic" positions begin to stretch.
        dtype: of the cosines and sines, float32 or float64.

    The frequencies of "dynamic" and "longrope" positions depend on the greatest position of the call, as in Hugging Face's models: keys in
    a cache remain rotated as they were.

    Raises:
        ArgumentError: an odd number of rotated features, or factors that are not one for each pair of them.
        ShapeError: the positions are a single number.

    >>> rotation = nn.rotary_rotation(jnp.arange(3), nn.RopeParameters(partial_rotary_factor=0.5), 8, 2048)
    >>> rotation.cos.shape
    (3, 2)
    """
    indices = as_value(positions)
    if indices.ndim == 0:
        raise ShapeError("rotary_rotation: positions have shape (…, T), got a single one")
    features = int(head_dim * rope.partial_rotary_factor)
    if features % 2:
        raise ArgumentError(
            f"rotary_rotation: pairs of features are rotated, but {rope.partial_rotary_factor} of {head_dim} are {features}"
        )
    kind = as_dtype(dtype)
    frequencies, factor = _frequencies(rope, features, max_position_embeddings, indices, kind)
    angles = indices.astype(kind)[..., None] * frequencies
    cos, sin = vnp.cos(angles), vnp.sin(angles)
    return Rotation(cos, sin) if factor == 1 else Rotation(cos * factor, sin * factor)


def _frequencies(rope: RopeParameters, features: int, longest: int, positions: Array, dtype: np.dtype) -> tuple[Any, float]:
    """Return the angle by which each pair turns from one position to the next.

    Also returns a factor of rotated features.
    """
    exponents = np.arange(0, features, 2) / max(features, 1)
    plain = rope.rope_theta**-exponents
    match rope.rope_type:
        case "linear":
            return (plain / _factor(rope)).astype(dtype), 1.0
        case "llama3":
            return _llama3(rope, plain).astype(dtype), 1.0
        case "yarn":
            return _yarn(rope, features, plain).astype(dtype), _yarn_attention_factor(rope)
        case "dynamic" if positions.size:
            return _dynamic(rope, features, exponents.astype(dtype), longest, positions), 1.0
        case "longrope" if positions.size:
            return _longrope(rope, plain, positions, dtype), _longrope_attention_factor(rope, longest)
    return plain.astype(dtype), 1.0


def _factor(rope: RopeParameters) -> float:
    return 1.0 if rope.factor is None else rope.factor


def _original_length(rope: RopeParameters) -> int:
    return rope.original_max_position_embeddings or 1


def _llama3(rope: RopeParameters, plain: np.ndarray) -> np.ndarray:
    """Stretch long wavelengths, leave short ones, and interpolate between (Llama 3.1)."""
    turns = _original_length(rope) * plain / (2 * math.pi)  # within the original length
    low, high = rope.low_freq_factor, rope.high_freq_factor
    stretched = plain / _factor(rope)
    if low == high:
        return np.where(turns < low, stretched, plain)
    share = np.clip((turns - low) / (high - low), 0, 1)
    return (1 - share) * stretched + share * plain


def llama3_factors(rope: RopeParameters, features: int) -> np.ndarray:
    """Return the factors of wavelengths of "llama3" positions, one for each pair."""
    plain = rope.rope_theta ** -(np.arange(0, features, 2) / max(features, 1))
    return plain / _llama3(rope, plain)


def _yarn(rope: RopeParameters, features: int, plain: np.ndarray) -> np.ndarray:
    """Stretch pairs that turn seldom within the original length (Peng et al. 2023)."""

    def pair_of(turns: float) -> float:
        """Return the index of the pair, a fraction, that turns so often."""
        return features * math.log(_original_length(rope) / (turns * 2 * math.pi)) / (2 * math.log(rope.rope_theta))

    low, high = pair_of(rope.beta_fast), pair_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, features - 1)
    width = high - low if high != low else 0.001
    stretched_share = np.clip((np.arange(features // 2) - low) / width, 0, 1)
    return plain / _factor(rope) * stretched_share + plain * (1 - stretched_share)


def _yarn_attention_factor(rope: RopeParameters) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor

    def scale(factor: float, slope: float = 1.0) -> float:
        return 1.0 if factor <= 1 else 0.1 * slope * math.log(factor) + 1.0

    if rope.mscale and rope.mscale_all_dim:
        return scale(_factor(rope), rope.mscale) / scale(_factor(rope), rope.mscale_all_dim)
    return scale(_factor(rope))


def _dynamic(rope: RopeParameters, features: int, exponents: np.ndarray, longest: int, positions: Array) -> Array:
    """Let the base grow with the text once it is longer than the model is meant for."""
    length = vnp.maximum(vnp.max(positions) + 1, longest).astype(exponents.dtype)
    factor = _factor(rope)
    growth = (factor * length / longest - (factor - 1)) ** (features / max(features - 2, 1))
    return (rope.rope_theta * growth) ** -exponents


def _longrope(rope: RopeParameters, plain: np.ndarray, positions: Array, dtype: np.dtype) -> Array:
    """Divide frequencies by one of two lists of factors, by the length of the text."""
    short, long = (np.asarray(factors, np.float64) for factors in (rope.short_factor, rope.long_factor))
    if not len(short) == len(long) == len(plain):
        raise ArgumentError(
            f"rotary_rotation: short_factor and long_factor need {len(plain)} numbers, one for each pair, got {len(short)} and {len(long)}"
        )
    is_long = vnp.max(positions) + 1 > _original_length(rope)
    return vnp.where(is_long, (plain / long).astype(dtype), (plain / short).astype(dtype))


def _longrope_attention_factor(rope: RopeParameters, longest: int) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    factor = longest / _original_length(rope) if rope.factor is None else rope.factor
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(_original_length(rope)))
