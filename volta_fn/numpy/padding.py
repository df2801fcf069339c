"""`pad` in all of NumPy's modes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.numpy.arguments import concrete, full_like_scalar, is_inexact, operand
from volta_fn.numpy.creation import linspace
from volta_fn.numpy.elementwise.arithmetic import round as round_
from volta_fn.numpy.shapes import flip
from volta_fn.numpy.statistics import reductions
from volta_fn.numpy.statistics.moments import median
from volta_fn.primitives.data_movement.movement import broadcast_to, moveaxis

Widths = list[tuple[int, int]]


@fused
def pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Array:
    """Pad `array` with (before, after) new elements along each dimension.

    Args:
        array: the array.
        pad_width: one number for all sides, a (before, after) pair for all dimensions, a pair for each, or a dict {axis: width}.
        mode: "constant" (`constant_values`, default 0), "edge", "reflect" and "symmetric" (`reflect_type` "even" or "odd"), "wrap",
            "linear_ramp" (`end_values`), "maximum", "minimum", "mean", "median" (`stat_length`), "empty" (zeros), or a function
            `(vector, pad_width, axis, kwargs) -> vector` of one-dimensional vectors.

    >>> jnp.pad(jnp.array([1, 2, 3]), (2, 1), mode="reflect")
    Array([3, 2, 1, 2, 3, 2], dtype=int32)
    """
    value = operand("pad", "array", array)
    widths = _widths(pad_width, value.ndim)
    if callable(mode):
        return _pad_by_function(value, widths, mode, kwargs)
    if mode not in _MODES:
        raise ArgumentError(f"pad: mode must be one of {', '.join(_MODES)} or a function, got {mode!r}")
    extend, option = _MODES[mode]
    if unknown := set(kwargs) - {option}:
        raise ArgumentError(f"pad: mode {mode!r} takes {[option] if option else 'no options'}, got {sorted(unknown)}")
    if mode in ("constant", "empty"):
        return _constant(value, widths, **kwargs)
    options = _options(option, kwargs, value.ndim)
    for axis, (lo, hi) in enumerate(widths):
        if not value.shape[axis] and (lo or hi):
            raise ShapeError(f"pad: mode {mode!r} cannot extend the empty axis {axis} of shape {value.shape}")
        value = extend(value, axis, lo, hi, options[axis]) if lo or hi else value
    return value


def _widths(pad_width: Any, ndim: int) -> Widths:
    if isinstance(pad_width, dict):
        full = [(0, 0)] * ndim
        for axis, width in pad_width.items():
            full[axis] = _pairs("pad_width", width, 1)[0]
        pairs = full
    else:
        pairs = _pairs("pad_width", pad_width, ndim)
    if any(w < 0 for pair in pairs for w in pair):
        raise ArgumentError(f"pad: pad_width must not be negative, got {pad_width}")
    return [(int(lo), int(hi)) for lo, hi in pairs]


def _pairs(name: str, value: Any, ndim: int) -> list[tuple[Any, Any]]:
    """Expand the shorter forms that NumPy allows to a pair for each dimension."""
    numbers = concrete("pad", name, value, "It must be known while tracing.")
    try:
        return [tuple(pair) for pair in np.broadcast_to(numbers, (ndim, 2)).tolist()]
    except ValueError:
        raise ArgumentError(f"pad: {name} must be a number, a pair or a pair for each of {ndim} dimensions, got {value!r}") from None


def _options(name: str, given: dict[str, Any], ndim: int) -> Sequence[Any]:
    """Return a mode's option for each dimension."""
    if name == "reflect_type" and given.get(name, "even") not in ("even", "odd"):
        raise ArgumentError(f"pad: reflect_type must be 'even' or 'odd', got {given[name]!r}")
    if name == "end_values":
        return _pairs(name, given.get(name, 0), ndim)
    if name == "stat_length":
        return [(None, None)] * ndim if given.get(name) is None else _pairs(name, given[name], ndim)
    return [given.get(name)] * ndim


def _constant(value: Array, widths: Widths, constant_values: Any = 0) -> Array:
    if not np.ndim(constant_values):
        fill = lax.convert_element_type(operand("pad", "constant_values", constant_values), value.dtype)
        return lax.pad(value, fill, [(lo, hi, 0) for lo, hi in widths])
    for axis, ((lo, hi), (before, after)) in enumerate(zip(widths, _pairs("constant_values", constant_values, value.ndim), strict=True)):
        for amount, fill in (((lo, 0, 0), before), ((0, hi, 0), after)):
            config = [amount if i == axis else (0, 0, 0) for i in range(value.ndim)]
            value = lax.pad(value, full_like_scalar(value, fill), config)
    return value


def _ends(value: Array, axis: int, front: int = 1, back: int = 1) -> tuple[Array, Array]:
    size = value.shape[axis]
    return lax.slice_in_dim(value, 0, min(front, size), axis=axis), lax.slice_in_dim(value, size - min(back, size), size, axis=axis)


def _repeated(edge: Array, count: int, axis: int) -> Array:
    return broadcast_to(edge, tuple([count if i == axis else n for i, n in enumerate(edge.shape)]))


def _edge(value: Array, axis: int, lo: int, hi: int, option: None) -> Array:
    first, last = _ends(value, axis)
    return lax.concatenate([_repeated(first, lo, axis), value, _repeated(last, hi, axis)], axis)


def _mirror(value: Array, axis: int, lo: int, hi: int, reflect_type: str | None, skip: int) -> Array:
    """Mirror elements at both ends, in several rounds if there are too few for one.

    All rounds but the last mirror all elements, after which the ends are still where a mirror may stand.
    """
    if value.shape[axis] == 1 and skip:
        return _edge(value, axis, lo, hi, None)
    while lo > 0 or hi > 0:
        most = value.shape[axis] - skip
        front, back = (lo, hi) if max(lo, hi) <= most else [most if width > most else 0 for width in (lo, hi)]
        first, last = (lax.slice_in_dim(value, start, start + n, axis=axis) for start, n in ((skip, front), (most - back, back)))
        before, after = (_mirrored(*pair, axis, reflect_type) for pair in zip((first, last), _ends(value, axis), strict=True))
        value = lax.concatenate([before, value, after], axis)
        lo, hi = lo - front, hi - back
    return value


def _mirrored(section: Array, edge: Array, axis: int, reflect_type: str | None) -> Array:
    reverse = flip(section, axis)
    return lax.sub(lax.add(edge, edge), reverse) if reflect_type == "odd" else reverse


def _wrap(value: Array, axis: int, lo: int, hi: int, option: None) -> Array:
    size = value.shape[axis]
    copies = lax.concatenate([value] * (1 + -(-lo // size) + -(-hi // size)), axis)
    start = -lo % size
    return lax.slice_in_dim(copies, start, start + lo + size + hi, axis=axis)


def _linear_ramp(value: Array, axis: int, lo: int, hi: int, end_values: tuple[Any, Any]) -> Array:
    (first, last), (before, after) = _ends(value, axis), end_values
    return lax.concatenate([_ramp(first, before, lo, axis), value, flip(_ramp(last, after, hi, axis), axis)], axis)


def _ramp(edge: Array, end: Any, count: int, axis: int) -> Array:
    """Return `count` steps from `end` to `edge` (of size 1 along the axis), excluded."""
    if is_inexact(edge):
        return linspace(full_like_scalar(edge, end), lax.squeeze(edge, (axis,)), count, endpoint=False, axis=axis)
    return _integer_ramp(edge, end, count, axis)


def _integer_ramp(edge: Array, end: Any, count: int, axis: int) -> Array:
    """Return such a ramp of integers, rounded down.

    Distances are unsigned: the distance of any two integers fits the unsigned dtype of as many bits.
    """
    info = dtypes.iinfo(edge.dtype)
    if end != int(end) or not info.min <= end <= info.max:
        raise ArgumentError(f"pad: end_values {end} does not fit {edge.dtype.name}")
    unsigned = np.dtype(np.uint64 if info.bits == 64 else np.uint32)
    first = full_like_scalar(edge, int(end))
    rises = edge >= first
    start, stop = (lax.convert_element_type(v, unsigned) for v in (first, edge))
    distance = lax.select(rises, stop - start, start - stop)
    step = lax.broadcasted_iota(unsigned, [count if i == axis else 1 for i in range(edge.ndim)], axis)
    step_count = unsigned.type(max(count, 1))
    up = lax.select(rises, unsigned.type(0), step_count - unsigned.type(1))  # a falling ramp rounds its steps up
    gone = distance // step_count * step + (distance % step_count * step + up) // step_count
    return lax.convert_element_type(lax.select(broadcast_to(rises, gone.shape), start + gone, start - gone), edge.dtype)


def _statistic(value: Array, axis: int, lo: int, hi: int, lengths: tuple[Any, Any], summary: Callable[..., Array]) -> Array:
    size = value.shape[axis]
    summaries = [summary(section, axis, keepdims=True) for section in _ends(value, axis, *[n or size for n in lengths])]
    before, after = (lax.convert_element_type(s if is_inexact(value) else round_(s), value.dtype) for s in summaries)
    return lax.concatenate([_repeated(before, lo, axis), value, _repeated(after, hi, axis)], axis)


def _pad_by_function(value: Array, widths: Widths, function: Callable[..., Any], options: dict[str, Any]) -> Array:
    """Follow NumPy's protocol: pad with zeros, then pass each vector to the function."""
    padded = lax.pad(value, full_like_scalar(value, 0), [(lo, hi, 0) for lo, hi in widths])
    for axis, width in enumerate(widths):
        moved = moveaxis(padded, axis, padded.ndim - 1)
        rows = lax.reshape(moved, (-1 if moved.size else 0, moved.shape[-1]))
        done = [function(lax.index_in_dim(rows, i, keepdims=False), width, axis, options) for i in range(rows.shape[0])]
        moved = lax.reshape(lax.concatenate([lax.expand_dims(row, (0,)) for row in done], 0), moved.shape)
        padded = moveaxis(moved, padded.ndim - 1, axis)
    return padded


#: How each mode extends an axis, and the name of its option.
_MODES: dict[str, tuple[Callable[..., Array], str]] = {
    "constant": (_constant, "constant_values"),
    "edge": (_edge, ""),
    "reflect": (functools.partial(_mirror, skip=1), "reflect_type"),
    "symmetric": (functools.partial(_mirror, skip=0), "reflect_type"),
    "wrap": (_wrap, ""),
    "linear_ramp": (_linear_ramp, "end_values"),
    "empty": (_constant, ""),
    "maximum": (functools.partial(_statistic, summary=reductions.max), "stat_length"),
    "minimum": (functools.partial(_statistic, summary=reductions.min), "stat_length"),
    "mean": (functools.partial(_statistic, summary=reductions.mean), "stat_length"),
    "median": (functools.partial(_statistic, summary=median), "stat_length"),
}
