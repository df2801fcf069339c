"""What layers over spatial axes (all but batch and channels) share: numbers and padding per axis, and checks of their inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, random
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.primitives.geometry import Ints, Padding

_AXES = {1: "(N, C, L)", 2: "(N, C, H, W)", 3: "(N, C, D, H, W)"}


def is_whole(value: Any, least: int = 0) -> bool:
    """Whether `value` is a whole number of at least `least`; truth values are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def per_axis(layer: str, name: str, value: Any, rank: int, least: int = 1) -> Ints:
    """One number for each of `rank` spatial axes, from such numbers or one for all. Raises `ArgumentError` for anything else."""
    numbers = (value,) * rank if is_whole(value, least) else value
    if not isinstance(numbers, (tuple, list)) or len(numbers) != rank or not all(is_whole(n, least) for n in numbers):
        raise ArgumentError(f"{layer}: {name} is a whole number of at least {least}, or {rank} such numbers, one per axis, got {value!r}")
    return tuple(numbers)


def canonical_pads(layer: str, padding: Any, rank: int) -> str | Padding:
    """Padding as "same", "valid" or a (low, high) pair per spatial axis, from that, a number per axis or one for all.

    Raises `ArgumentError` for anything else.
    """
    if padding in ("same", "valid"):
        return padding
    if isinstance(padding, (tuple, list)) and len(padding) == rank and all(map(_is_pair, padding)):
        return tuple([(low, high) for low, high in padding])
    if is_whole(padding) or (isinstance(padding, (tuple, list)) and len(padding) == rank and all(map(is_whole, padding))):
        return tuple([(n, n) for n in per_axis(layer, "padding", padding, rank, 0)])
    raise ArgumentError(
        f'{layer}: padding is a whole number, {rank} of them or {rank} pairs (low, high), one per axis, "same" or "valid", got {padding!r}'
    )


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(map(is_whole, value))


def batched_input(layer: str, x: Any, ranks: Sequence[int]) -> Array:
    """`x` as an array of batch, channels and as many spatial axes as one of `ranks` says. Raises `ShapeError` for another."""
    value = as_value(x)
    if value.ndim - 2 not in ranks:
        wanted = " or ".join(_AXES.get(rank, "(N, C)") for rank in ranks)
        hint = "; a single example needs a batch axis in front, x[None]" if value.ndim - 1 in ranks else ""
        raise ShapeError(f"{layer}: the input has axes {wanted}, got shape {value.shape}{hint}")
    return value


def check_dtype(layer: str, x: Array, allowed: frozenset[np.dtype] = dtypes.FLOATS) -> None:
    """Refuse an input of a dtype that the layer's result could not have."""
    if x.dtype not in allowed:
        names = ", ".join(sorted(dtype.name for dtype in allowed))
        raise DTypeError(f"{layer}: the input is of dtype {names}, got {x.aval}; convert it, as in x.astype('float32')")


def uniform_by_fan(key: Any, shape: tuple[int, ...], fan_in: int, dtype: Any) -> Array:
    """Uniform between ±1/√fan_in, PyTorch's default for weights and biases; zeros where there is no input."""
    if fan_in == 0:
        return vnp.zeros(shape, dtype)
    bound = 1 / math.sqrt(fan_in)
    return random.uniform(key, shape, dtype, -bound, bound)


def check_sizes(layer: str, **sizes: Any) -> None:
    """Refuse numbers of features and the like that are no natural numbers."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise ArgumentError(f"{layer}: {name} is a whole number, 0 or more, got {size!r}")


def check_features(layer: str, x: Array, size: int, axis: int = -1) -> None:
    """Refuse an input whose axis has not the size that the layer was made for."""
    if x.ndim < max(1, -axis, axis + 1) or x.shape[axis] != size:
        raise ShapeError(f"{layer}: the input needs size {size} along axis {axis}, got shape {x.shape}")


def split_key(key: Any, num: int) -> list[Any]:
    """`num` keys split from one, for parts that each take a key; None for each if there is none."""
    return [None] * num if key is None else list(random.split(key, num))


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether an array of that shape broadcasts to exactly `target`, by NumPy's rule."""
    return len(shape) <= len(target) and all(n in (1, size) for n, size in zip(shape[::-1], target[::-1], strict=False))
