"""The arithmetic of sliding windows: how many fit, and named paddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from volta_fn.core.aval import as_integer
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError, VoltaError

Ints = tuple[int, ...]
Padding = tuple[tuple[int, int], ...]


def dilated(size: int, dilation: int) -> int:
    """Return the length of `size` elements, `dilation` - 1 holes between them."""
    return (size - 1) * dilation + 1 if size else 0


def window_count(size: int, taps: int, stride: int, padding: tuple[int, int], base_dilation: int, window_dilation: int) -> int:
    """Return how many windows fit along one axis."""
    room = dilated(size, base_dilation) + padding[0] + padding[1] - dilated(taps, window_dilation)
    return room // stride + 1 if room >= 0 else 0


def window_counts(shape: Ints, taps: Ints, strides: Ints, padding: Padding, base_dilation: Ints, window_dilation: Ints) -> Ints:
    """Return how many windows fit along each axis."""
    return tuple(map(window_count, shape, taps, strides, padding, base_dilation, window_dilation))


def counts_of_windows(shape: Ints, geometry: Mapping[str, Any]) -> Ints:
    """Return how many windows fit, by the parameters of a window primitive."""
    names = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
    return window_counts(shape, *[geometry[name] for name in names])


def padtype_to_pads(
    in_shape: Sequence[int], window_shape: Sequence[int], window_strides: Sequence[int], padding: str | Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the (low, high) padding per axis that a name stands for.

    ``"VALID"`` means none, ``"SAME"`` as much as makes the result's sizes ceil(size / stride), the odd element at the high end (at the
    low end with ``"SAME_LOWER"``). Pairs are returned as they are.

    Raises `ArgumentError` for any other word.

    >>> padtype_to_pads((5, 6), (3, 2), (2, 2), "SAME")
    [(1, 1), (0, 0)]
    """
    if not isinstance(padding, str):
        try:
            return [(as_integer(low, "padding"), as_integer(high, "padding")) for low, high in padding]
        except (TypeError, ValueError) as error:
            if isinstance(error, VoltaError):
                raise
            message = f"padding must be a word or a sequence of (low, high) pairs, one per dimension, got {padding!r}"
            raise ArgumentTypeError(message) from None
    word = padding.upper()
    if word == "VALID":
        return [(0, 0)] * len(tuple(in_shape))
    if word not in ("SAME", "SAME_LOWER"):
        raise ArgumentError(f"padding={padding!r} is none of 'SAME', 'SAME_LOWER' and 'VALID', nor a sequence of (low, high) pairs")
    pads = []
    for size, taps, stride in zip(in_shape, window_shape, window_strides, strict=True):
        missing = max((-(-size // stride) - 1) * stride + taps - size, 0)
        low = missing - missing // 2 if word == "SAME_LOWER" else missing // 2
        pads.append((low, missing - low))
    return pads


def canonical_ints(value: Any, count: int, argument: str, least: int = 1) -> Ints:
    """Return `value` as `count` integers, each at least `least`.

    None means all 1; `argument` names the argument in errors.
    """
    if value is None:
        return (1,) * count
    items = (value,) if isinstance(value, int) else tuple(value)
    result = tuple([as_integer(item, argument) for item in items])
    if len(result) != count or any(item < least for item in result):
        raise ShapeError(
            f"{argument} must be {count} integers of at least {least}, one per dimension that windows slide over, got {result}"
        )
    return result


def canonical_padding(padding: Sequence[tuple[int, int]], count: int, argument: str) -> Padding:
    """Return `padding` as a tuple of `count` (low, high) pairs of integers."""
    pairs = tuple([tuple([as_integer(end, argument) for end in pair]) for pair in padding])
    if len(pairs) != count or any(len(pair) != 2 for pair in pairs):
        raise ShapeError(f"{argument} must be {count} pairs (low, high), one per dimension that windows slide over, got {pairs}")
    return pairs  # type: ignore[return-value]  # every pair has two elements, as just checked


def check_cut(name: str, shape: Ints, padding: Padding, base_dilation: Ints) -> None:
    """Raise `ShapeError` if negative padding cuts more than there is."""
    for axis, (size, pads, base) in enumerate(zip(shape, padding, base_dilation, strict=True)):
        if dilated(size, base) + min(pads[0], 0) + min(pads[1], 0) < 0:
            raise ShapeError(f"{name}: the negative padding {pads} cuts more than the size {size} of spatial dimension {axis}; cut less")
