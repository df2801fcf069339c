"""Encodings of positions, since attention itself ignores the order of its inputs.

A position is the index of an input in its sequence. Sinusoidal and learned positions are vectors added to the inputs. Rotary positions
rotate queries and keys, so that their products depend on differences of positions.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from volta_fn import lax, random
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.dtypes import FLOATS, accumulator, as_dtype
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.nn.layers.common import broadcasts_to, check_features, check_sizes
from volta_fn.nn.layers.linear import Embedding
from volta_fn.nn.module import Module, static

__all__ = ["LearnedPositions", "SinusoidalPositions", "apply_rotary", "sinusoidal_positions"]


def _angles(positions: Any, features: int, base: float, dtype: np.dtype) -> Array:
    """Return positions / base**(2 i / features) for each pair i of features."""
    if not base > 0:
        raise ArgumentError(f"positions: the base is a number above 0, got {base}")
    rates = np.power(float(base), -np.arange(0, features, 2) / max(features, 1)).astype(dtype)
    return vnp.asarray(positions, dtype)[..., None] * rates


def sinusoidal_positions(positions: Any, features: int, *, base: float = 10000.0, dtype: Any = "float32") -> Array:
    """Return sines and cosines of positions at ever lower frequencies.

    See Vaswani et al. (2017). Feature 2i is sin(p / base**(2i / features)) at position p, feature 2i + 1 the cosine of the same.

    Args:
        positions: numbers, of any shape.
        features: how many features a position gets.
        base: the longest wavelength is 2π base.
        dtype: of the result; float16 and bfloat16 compute in float32.

    Returns:
        Shape (*positions.shape, features).

    Raises:
        ArgumentError, DTypeError: `features` is negative or no integer, the base not above 0, or the dtype not float.

    >>> vf.nn.sinusoidal_positions(vf.numpy.arange(2), 4).round(3)
    Array([[0.   , 1.   , 0.   , 1.   ],
           [0.841, 0.54 , 0.01 , 1.   ]], dtype=float32)
    """
    check_sizes("sinusoidal_positions", features=features)
    target = as_dtype(dtype)
    if target not in FLOATS:
        raise DTypeError(f"sinusoidal_positions: a float dtype is needed, got {target.name}")
    angles = _angles(positions, features, base, accumulator(target))
    waves = vnp.stack([vnp.sin(angles), vnp.cos(angles)], -1)
    return waves.reshape(*angles.shape[:-1], 2 * angles.shape[-1])[..., :features].astype(target)


def apply_rotary(x: Any, positions: Any, base: float = 10000.0, interleaved: bool = False) -> Array:
    """Rotate pair i of features by position / base**(2 i / features) (Su et al. 2021).

    Args:
        x: queries or keys, shape (…, T, features), features even. float16 and bfloat16 compute in float32.
        positions: numbers that broadcast to (…, T).
        base: the slowest rotation takes 2π base positions.
        interleaved: pairs are neighbours, features (2i, 2i + 1), as in the paper and in Meta's Llama; otherwise (i, i + features / 2), as
            in GPT-NeoX and Hugging Face's Llama.

    Raises:
        ShapeError: the number of features is odd, or the positions do not fit. DTypeError: `x` is not float.
        ArgumentError: the base is not above 0.

    >>> q = vf.numpy.ones((2, 4, 5, 8))
    >>> vf.nn.apply_rotary(q, vf.numpy.arange(5)).shape
    (2, 4, 5, 8)
    """
    value, indices = as_value(x), positions if isinstance(positions, np.ndarray) else as_value(positions)
    if value.dtype not in FLOATS:
        raise DTypeError(f"apply_rotary: x is float, got {value.aval}")
    lead, features = value.shape[:-1], value.shape[-1] if value.ndim else 1
    if features % 2 or not broadcasts_to(indices.shape, lead):
        raise ShapeError(
            f"apply_rotary: x (…, T, features) with an even number of features and positions that broadcast to (…, T) are needed, got "
            f"{value.shape} and {indices.shape}"
        )
    angles = _angles(indices, features, base, accumulator(value.dtype))
    cos, sin = vnp.cos(angles), vnp.sin(angles)
    pairs = value.reshape(*lead, *((features // 2, 2) if interleaved else (2, features // 2)))
    axis = -1 if interleaved else -2
    first, second = (lax.index_in_dim(pairs, i, axis, keepdims=False) for i in range(2))
    rotated = vnp.stack([first * cos - second * sin, first * sin + second * cos], axis)
    return rotated.reshape(value.shape).astype(value.dtype)


class SinusoidalPositions(Module):
    """Adds `sinusoidal_positions` to its input.

    It has no parameters and no maximum length.

    >>> vf.nn.SinusoidalPositions()(vf.numpy.zeros((2, 5, 8))).shape
    (2, 5, 8)
    """

    base: float = static(default=10000.0)

    def __call__(self, x: Any, positions: Any = None) -> Array:
        """Return x plus the vectors of its positions.

        Args:
            x: shape (…, T, features).
            positions: numbers that broadcast to (…, T) (default: 0, 1, …, T - 1).

        Raises:
            ShapeError: `x` has fewer than two axes, or the positions do not fit.
        """
        value, indices = _checked("SinusoidalPositions", x, positions)
        return value + sinusoidal_positions(indices, value.shape[-1], base=self.base, dtype=value.dtype)


class LearnedPositions(Module):
    """Adds a learnt vector for each position; `weight` is (max_length, features).

    Known positions beyond the table raise; in compiled programs they give NaN, or raise with VOLTA_CHECK_INDICES=1.

    >>> positions = vf.nn.LearnedPositions.init(vf.random.key(0), 16, 8)
    >>> positions(vf.numpy.zeros((2, 5, 8))).shape
    (2, 5, 8)
    """

    weight: Array

    @classmethod
    def init(cls, key: Any, max_length: int, features: int, *, std: float = 0.02, dtype: Any = "float32") -> Self:
        """Create normal vectors of standard deviation `std`, by default that of GPT-2.

        Raises `ArgumentError` for sizes that are negative or not integers.
        """
        check_sizes("LearnedPositions", max_length=max_length, features=features)
        if std < 0:
            raise ArgumentError(f"LearnedPositions: the standard deviation is at least 0, got {std}")
        return cls(random.normal(key, (max_length, features), dtype) * std)

    def __call__(self, x: Any, positions: Any = None) -> Array:
        """Return x plus the vectors of its positions.

        Args:
            x: shape (…, T, features).
            positions: integers that broadcast to (…, T) (default: 0, 1, …, T - 1, at most max_length of them).

        Raises:
            ShapeError: the shapes do not fit. DTypeError: the positions are not integers.
        """
        value, indices = _checked("LearnedPositions", x, positions)
        check_features("LearnedPositions", value, self.weight.shape[1])
        if positions is None and value.shape[-2] > self.weight.shape[0]:
            raise ShapeError(f"LearnedPositions: {value.shape[-2]} positions, but the table has {self.weight.shape[0]}")
        return value + Embedding(self.weight)(indices)


def _checked(name: str, x: Any, positions: Any) -> tuple[Array, Array]:
    """Return the input and its positions as arrays, after a check of their shapes."""
    value = as_value(x)
    if value.ndim < 2:
        raise ShapeError(f"{name}: the input has shape (…, T, features), got {value.shape}")
    indices = vnp.arange(value.shape[-2]) if positions is None else as_value(positions)
    lead = value.shape[:-1]
    if not broadcasts_to(indices.shape, lead):
        raise ShapeError(f"{name}: positions must broadcast to (…, T) = {lead}, got shape {indices.shape}")
    return value, indices
