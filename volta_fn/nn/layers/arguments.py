"""Argument checks, initial weights and random keys that layers share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from volta_fn import dtypes, random
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.nn.module import Module
from volta_fn.primitives.convolution import Ints, Padding

_AXES = {1: "(N, C, L)", 2: "(N, C, H, W)", 3: "(N, C, D, H, W)"}


class SpatialLayer(Module):
    """Base of layers with a number of spatial axes: ``class Conv2d(_Conv, rank=2)``."""

    _rank: ClassVar[int] = 0

    def __init_subclass__(cls, rank: int | None = None, **options: Any) -> None:
        cls._rank = cls._rank if rank is None else rank
        super().__init_subclass__(**options)


def is_integer(value: Any, least: int | None = 0) -> bool:
    """Return True if `value` is an int (not a bool) of at least `least` (None: any)."""
    return isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least)


def per_axis(layer: str, name: str, value: Any, rank: int, least: int = 1) -> Ints:
    """Return one int per spatial axis, given those or one; else raise `ArgumentError`."""
    numbers = (value,) * rank if is_integer(value, least) else value
    if not isinstance(numbers, (tuple, list)) or len(numbers) != rank or not all(is_integer(n, least) for n in numbers):
        raise ArgumentError(f"{layer}: {name} is an integer of at least {least}, or {rank} such numbers, one per axis, got {value!r}")
    return tuple(numbers)


def canonical_pads(layer: str, padding: Any, rank: int) -> str | Padding:
    """Return padding as "same", "valid" or (low, high) per axis, or `ArgumentError`."""
    if padding in ("same", "valid"):
        return padding
    if isinstance(padding, (tuple, list)) and len(padding) == rank and all(map(_is_pair, padding)):
        return tuple([(low, high) for low, high in padding])
    if is_integer(padding) or (isinstance(padding, (tuple, list)) and len(padding) == rank and all(map(is_integer, padding))):
        return tuple([(n, n) for n in per_axis(layer, "padding", padding, rank, 0)])
    raise ArgumentError(
        f'{layer}: padding is an integer, {rank} of them or {rank} pairs (low, high), one per axis, "same" or "valid", got {padding!r}'
    )


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(map(is_integer, value))


def batched_input(layer: str, x: Any, ranks: Sequence[int]) -> Array:
    """Return `x` as an array, after a check of its number of spatial axes."""
    value = as_value(x)
    if value.ndim - 2 not in ranks:
        expected = " or ".join(_AXES.get(rank, "(N, C)") for rank in ranks)
        hint = "; a single example needs a batch axis in front, x[None]" if value.ndim - 1 in ranks else ""
        raise ShapeError(f"{layer}: the input has axes {expected}, got shape {value.shape}{hint}")
    return value


def check_dtype(layer: str, x: Array, allowed: frozenset[np.dtype] = dtypes.FLOATS) -> None:
    """Check that an input has one of the dtypes allowed."""
    if x.dtype not in allowed:
        names = ", ".join(sorted(dtype.name for dtype in allowed))
        raise DTypeError(f"{layer}: the input is of dtype {names}, got {x.aval}; convert it, as in x.astype('float32')")


def uniform_by_fan(key: Any, shape: tuple[int, ...], fan_in: int, dtype: Any) -> Array:
    """Draw weights or biases uniform in ±1/√fan_in, as PyTorch does; 0 without inputs."""
    if fan_in == 0:
        return vnp.zeros(shape, dtype)
    bound = 1 / math.sqrt(fan_in)
    return random.uniform(key, shape, dtype, -bound, bound)


def check_sizes(layer: str, **sizes: Any) -> None:
    """Check that sizes are integers, 0 or more."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            text = "a random key, which is the first argument" if isinstance(size, random.PRNGKeyArray) else repr(size)
            raise ArgumentError(f"{layer}: {name} is an integer, 0 or more, got {text}")


def check_features(layer: str, x: Array, size: int, axis: int = -1) -> None:
    """Check that an input's axis has the size that the layer was made for."""
    if x.ndim < max(1, -axis, axis + 1) or x.shape[axis] != size:
        raise ShapeError(
            f"{layer}: the input needs size {size} along axis {axis}, got shape {x.shape}. "
            f"The layer was made for {size} features: make it for those of the input, or reshape or transpose the input."
        )


def split_key(key: Any, num: int) -> list[Any]:
    """Split a key into `num` keys; None into Nones."""
    return [None] * num if key is None else list(random.split(key, num))
