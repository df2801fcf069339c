"""Convolutions and window reductions by definition, one element at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

Ints = Sequence[int]


def dilated(size: int, by: int) -> int:
    return (size - 1) * by + 1 if size else 0


def count(size: int, taps: int, stride: int, padding: Ints, base: int, dilation: int) -> int:
    return max(0, (dilated(size, base) + sum(padding) - dilated(taps, dilation)) // stride + 1)


def meetings(shape: Ints, taps: Ints, strides: Ints, padding: Sequence[Ints], bases: Ints, dilations: Ints) -> Iterator[tuple]:
    """Yield (position, [(tap, index of its element), …]) for every window."""
    counts = [count(*axis) for axis in zip(shape, taps, strides, padding, bases, dilations, strict=True)]
    for position in np.ndindex(*counts):
        met = []
        for tap in np.ndindex(*taps):
            at = [p * s + k * d - lo for p, s, k, d, (lo, _) in zip(position, strides, tap, dilations, padding, strict=True)]
            inside = all(a % b == 0 and 0 <= a // b < n for a, b, n in zip(at, bases, shape, strict=True))
            if inside:
                met.append((tap, tuple(a // b for a, b in zip(at, bases, strict=True))))
        yield position, met


def window_counts(shape: Ints, taps: Ints, strides: Ints, padding: Sequence[Ints], bases: Ints, dilations: Ints) -> tuple[int, ...]:
    return tuple(count(*axis) for axis in zip(shape, taps, strides, padding, bases, dilations, strict=True))


def convolve(
    lhs: np.ndarray,
    rhs: np.ndarray,
    *,
    window_strides: Ints,
    padding: Sequence[Ints],
    lhs_dilation: Ints,
    rhs_dilation: Ints,
    dimension_numbers: tuple[Ints, Ints, Ints],
    feature_group_count: int = 1,
    batch_group_count: int = 1,
) -> np.ndarray:
    """Convolve, each product and sum in the operands' dtype."""
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    x, w = lhs.transpose(lhs_spec), rhs.transpose(rhs_spec)
    groups = feature_group_count * batch_group_count
    batch, features, channels = x.shape[0] // batch_group_count, w.shape[0], w.shape[1]
    geometry = (x.shape[2:], w.shape[2:], window_strides, padding, lhs_dilation, rhs_dilation)
    out = np.zeros((batch, features, *window_counts(*geometry)), x.dtype)
    for position, met in meetings(*geometry):
        for (o, n), (tap, at) in itertools.product(np.ndindex(features, batch), met):
            group = o * groups // features
            row = n + group * batch if batch_group_count > 1 else n
            first = group * channels if feature_group_count > 1 else 0
            for c in range(channels):
                out[(n, o, *position)] += x[(row, first + c, *at)] * w[(o, c, *tap)]
    placed = np.empty([out.shape[list(out_spec).index(i)] for i in range(out.ndim)], out.dtype)
    placed.transpose(out_spec)[...] = out
    return placed


def reduce_windows(
    x: np.ndarray,
    reduce: Callable[[list[Any]], Any],
    window_dimensions: Ints,
    window_strides: Ints,
    padding: Sequence[Ints],
    base_dilation: Ints,
    window_dilation: Ints,
) -> np.ndarray:
    """Apply `reduce` to the list of elements of each window."""
    geometry = (x.shape, window_dimensions, window_strides, padding, base_dilation, window_dilation)
    out = np.zeros(window_counts(*geometry), x.dtype)
    for position, met in meetings(*geometry):
        out[position] = reduce([x[at] for _, at in met])
    return out


def winners(
    x: np.ndarray,
    extremum: Callable[[list[Any]], Any],
    window_dimensions: Ints,
    window_strides: Ints,
    padding: Sequence[Ints],
    base_dilation: Ints,
    window_dilation: Ints,
) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Map windows to the index of their extremum's first element (NaN equals NaN).

    Windows without elements are left out.
    """
    results = {}
    for position, met in meetings(x.shape, window_dimensions, window_strides, padding, base_dilation, window_dilation):
        if met:
            best = extremum([x[at] for _, at in met])
            results[position] = next(at for _, at in met if x[at] == best or (best != best and x[at] != x[at]))
    return results
