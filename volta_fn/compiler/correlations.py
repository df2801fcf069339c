"""Convolutions as correlations: the canonical form that all algorithms take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd, log2, prod
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.contractions import Bound, IndexedContraction, OperandMap, ResultMap, merged, walk_of
from volta_fn.primitives.convolution import window_counts

# Sliding windows along one axis, and their phases over dilated inputs.


class SlidingWindow(NamedTuple):
    """The positions of windows: `position * stride + tap * dilation - low`."""

    stride: int
    dilation: int
    low: int


class Phase(NamedTuple):
    """The taps and positions of one phase, and their window over the undilated input."""

    taps: slice
    positions: slice
    window: SlidingWindow


def phases(window: SlidingWindow, base: int, taps: int, positions: int) -> list[Phase]:
    """Decompose windows over a dilated input into phases over the undilated one.

    The input has base - 1 holes between its elements. Position r + m j and tap k meet input coordinate ((r + m j) stride + k dilation -
    low) / base, if that is an integer. With m = base / gcd(stride, base) that depends on r and k alone, and the taps that fit a given r
    are an arithmetic progression.
    """
    if base == 1:
        return [Phase(slice(None), slice(None), window)]
    position_step, tap_step = base // gcd(window.stride, base), base // gcd(window.dilation, base)
    result = []
    for r in range(min(position_step, positions)):
        start = r * window.stride - window.low
        first = next((k for k in range(min(tap_step, taps)) if (start + k * window.dilation) % base == 0), taps)
        low = -(start + first * window.dilation) // base
        reduced = SlidingWindow(window.stride * position_step // base, window.dilation * tap_step // base, low)
        result.append(Phase(slice(first, None, tap_step), slice(r, None, position_step), reduced))
    return result


# Convolutions as *correlations*: one canonical form, which all algorithms take.
#
# Of the operands x[g, n, c, *space], w[g, o, c, *taps] and the result y[g, n, o, *positions] (group, image, channel, output) a
# correlation is
#
# y[g, n, o, p] = sum over c, k of x[g, n, c, p * stride + k * dilation - low] * w[g, o, c, k]
#
# with zeros outside x. The arrays are views, given by an offset and a stride per index, so that any order of dimensions, feature groups,
# batch groups and both gradients are correlations; where the left operand is dilated, each residue class of the output positions is a
# correlation of its own. In a gradient by the weights the "taps" are as many as the cotangent has positions, and "channels" are images.


class View(NamedTuple):
    """The elements of an operand: at `offset` plus each index times its stride."""

    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Axis:
    """A spatial axis along which windows slide.

    Position p and tap k meet the element ``p * stride + k * dilation - low`` of `size`.
    """

    size: int
    taps: int
    positions: int
    stride: int
    dilation: int
    low: int

    def reach(self, positions: int, taps: int) -> int:
        """Return the number of elements that adjacent positions and taps span."""
        return (positions - 1) * self.stride + (taps - 1) * self.dilation + 1

    @property
    def inside(self) -> bool:
        """Whether all windows lie inside x."""
        return self.low <= 0 and self.reach(self.positions, self.taps) - self.low <= self.size


@dataclass(frozen=True)
class Correlation:
    """The canonical form.

    Views have strides in the order (group, image, channel or output, *spatial).
    """

    groups: int
    images: int
    outputs: int
    channels: int
    axes: tuple[Axis, ...]
    x: View
    w: View
    y: View

    @property
    def taps(self) -> int:
        """The number of taps of a window."""
        return prod(axis.taps for axis in self.axes)

    @property
    def positions(self) -> int:
        """The number of output positions of an image."""
        return prod(axis.positions for axis in self.axes)

    @property
    def products(self) -> int:
        """The number of multiplications that the definition takes."""
        return self.groups * self.images * self.outputs * self.channels * self.taps * self.positions


def correlations(lhs: Sequence[int], rhs: Sequence[int], params: dict[str, Any]) -> list[Correlation]:
    """Return the correlations whose results form that of `conv_general_dilated`.

    Where some position meets no tap at all there is a correlation with no taps, whose result is zero.
    """
    dense, bases = _dense(lhs, rhs, params)
    axes = [list(_phases(axis, base)) for axis, base in zip(dense.axes, bases, strict=True)]
    return [_simplified(_restricted(dense, chosen)) for chosen in product(*axes)]


def _dense(lhs: Sequence[int], rhs: Sequence[int], params: dict[str, Any]) -> tuple[Correlation, tuple[int, ...]]:
    """Return a convolution as a correlation of the dilated input, and the dilations."""
    lhs_spec, rhs_spec, out_spec = params["dimension_numbers"]
    x_sizes, w_sizes = [lhs[i] for i in lhs_spec], [rhs[i] for i in rhs_spec]
    feature_groups, batch_groups = params["feature_group_count"], params["batch_group_count"]
    groups = max(feature_groups, batch_groups)
    strides, dilations, bases, padding = (params[k] for k in ("window_strides", "rhs_dilation", "lhs_dilation", "padding"))
    counts = window_counts(tuple(x_sizes[2:]), tuple(w_sizes[2:]), strides, padding, bases, dilations)
    y_sizes = [x_sizes[0] // batch_groups, w_sizes[0], *counts]
    x = _grouped(_contiguous(lhs, lhs_spec), 0 if batch_groups > 1 else 1, x_sizes, groups)
    w = _grouped(_contiguous(rhs, rhs_spec), 0, w_sizes, groups)
    y = _grouped(_contiguous(_placed(y_sizes, out_spec), out_spec), 1, y_sizes, groups)
    sizes = zip(x_sizes[2:], w_sizes[2:], counts, strides, dilations, padding, strict=True)
    axes = [Axis(size, taps, positions, stride, dilation, low) for size, taps, positions, stride, dilation, (low, _) in sizes]
    if not axes:  # no spatial dimensions: as if there were one, of size 1
        axes, bases = [Axis(1, 1, 1, 1, 1, 0)], (1,)
        x, w, y = (View(view.offset, (*view.strides, 0)) for view in (x, w, y))
    return Correlation(groups, y_sizes[0], w_sizes[0] // groups, w_sizes[1], tuple(axes), x, w, y), tuple(bases)


class PhasesAxis(NamedTuple):
    """The phases of an axis, as outputs of one window over the undilated input.

    Of phase r, tap t of that window is tap ``t * phases - r + start`` of the convolution, if there is one.
    """

    phases: int
    start: int
    taps: int

    def taps_of(self, phase: int) -> int:
        """Return the number of taps of a phase."""
        return len(range((self.start - phase) % self.phases, self.taps, self.phases))


def with_phases(lhs: Sequence[int], rhs: Sequence[int], params: dict[str, Any]) -> tuple[Correlation, tuple[PhasesAxis, ...]] | None:
    """Return a convolution over a dilated input as one correlation with phases.

    It has as many results for each position as there are phases. Its axes are those of positions and taps of all phases together; views are
    those of phase 0. None if axes have other strides or dilations, or phases have different positions.
    """
    dense, bases = _dense(lhs, rhs, params)
    axes, phases = list(dense.axes), [PhasesAxis(1, 0, axis.taps) for axis in dense.axes]
    w, y, offset = list(dense.w.strides), list(dense.y.strides), dense.w.offset
    for number, (axis, base) in enumerate(zip(dense.axes, bases, strict=True)):
        if base == 1:
            continue
        if axis.stride != 1 or axis.dilation != 1 or axis.positions % base:
            return None
        first, last = -(axis.low // base), (base + axis.taps - 2 - axis.low) // base
        if last < first:
            return None
        start = axis.low + base * first
        axes[number] = Axis(axis.size, last - first + 1, axis.positions // base, 1, 1, -first)
        phases[number] = PhasesAxis(base, start, axis.taps)
        offset += start * w[3 + number]
        w[3 + number], y[3 + number] = base * w[3 + number], base * y[3 + number]
    c = replace(dense, axes=tuple(axes), w=View(offset, tuple(w)), y=View(dense.y.offset, tuple(y)))
    return c, tuple(phases)


class _PhaseAxis(NamedTuple):
    """An axis that meets no hole, and the taps and positions of the dilated axis.

    These are the first, and every n-th from there.
    """

    axis: Axis
    tap: int
    tap_step: int
    position: int
    position_step: int


def _phases(axis: Axis, base: int) -> Iterator[_PhaseAxis]:
    """Yield the phases of an axis whose input is dilated by `base`."""
    for phase in phases(SlidingWindow(axis.stride, axis.dilation, axis.low), base, axis.taps, axis.positions):
        taps, positions = range(axis.taps)[phase.taps], range(axis.positions)[phase.positions]
        stride, dilation, low = phase.window
        reduced = Axis(axis.size, len(taps), len(positions), stride, dilation, low)
        yield _PhaseAxis(reduced, taps.start if taps else 0, taps.step, positions.start, positions.step)


def _restricted(c: Correlation, phases_of: Sequence[_PhaseAxis]) -> Correlation:
    w_offset = sum(phase.tap * stride for phase, stride in zip(phases_of, c.w.strides[3:], strict=True))
    y_offset = sum(phase.position * stride for phase, stride in zip(phases_of, c.y.strides[3:], strict=True))
    w_strides = [stride * phase.tap_step for phase, stride in zip(phases_of, c.w.strides[3:], strict=True)]
    y_strides = [stride * phase.position_step for phase, stride in zip(phases_of, c.y.strides[3:], strict=True)]
    return replace(
        c,
        axes=tuple([phase.axis for phase in phases_of]),
        w=View(w_offset, (*c.w.strides[:3], *w_strides)),
        y=View(y_offset, (*c.y.strides[:3], *y_strides)),
    )


def _simplified(c: Correlation) -> Correlation:
    """Merge axes along which windows do not slide; at least one axis is left."""
    # With one tap, no padding and adjacent rows, two axes are one; an axis of one tap or one position steps through a view; one position
    # and one tap are no axis.
    axes, x, w, y = list(c.axes), list(c.x.strides), list(c.w.strides), list(c.y.strides)
    x_offset = c.x.offset
    for i, axis in enumerate(axes):
        if axis.inside and 1 in (axis.taps, axis.positions):
            x_offset -= axis.low * x[3 + i]
            step = axis.stride if axis.taps == 1 else axis.dilation
            x[3 + i] *= step
            axes[i] = Axis(max(axis.positions, axis.taps), axis.taps, axis.positions, 1, 1, 0)
    i = 0
    while i < len(axes) and len(axes) > 1:
        if axes[i].taps == axes[i].positions == 1 and axes[i].inside:
            del axes[i], x[3 + i], w[3 + i], y[3 + i]
        elif i + 1 < len(axes) and (merged := _merged(axes[i : i + 2], x[3 + i : 5 + i], w[3 + i : 5 + i], y[3 + i : 5 + i])):
            axes[i : i + 2] = [merged]
            del x[3 + i], w[3 + i], y[3 + i]
        else:
            i += 1
    return replace(c, axes=tuple(axes), x=View(x_offset, tuple(x)), w=View(c.w.offset, tuple(w)), y=View(c.y.offset, tuple(y)))


def _merged(axes: Sequence[Axis], x: Sequence[int], w: Sequence[int], y: Sequence[int]) -> Axis | None:
    """Merge two axes that both have only one position, or both only one tap."""
    outer, inner = axes
    if not (outer.inside and inner.inside) or x[0] != x[1] * inner.size:
        return None
    size = outer.size * inner.size
    if outer.taps == inner.taps == 1 and inner.positions == inner.size and y[0] == y[1] * inner.positions:
        return Axis(size, 1, outer.positions * inner.positions, 1, 1, 0)
    if outer.positions == inner.positions == 1 and inner.taps == inner.size and w[0] == w[1] * inner.taps:
        return Axis(size, outer.taps * inner.taps, 1, 1, 1, 0)
    return None


def _placed(sizes: Sequence[int], spec: Sequence[int]) -> tuple[int, ...]:
    """Return the shape whose dimension ``spec[i]`` has size ``sizes[i]``."""
    return tuple([size for _, size in sorted(zip(spec, sizes, strict=True))])


def _contiguous(shape: Sequence[int], spec: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous array, in the order of `spec`."""
    return tuple([prod(shape[i + 1 :]) for i in spec])


def _grouped(strides: tuple[int, ...], split: int, sizes: Sequence[int], groups: int) -> View:
    """Return the view with the dimension `split` as (groups, rest), groups first."""
    return View(0, (strides[split] * (sizes[split] // groups), *strides))


#: Nanoseconds of a multiplication of the definition, and of each element and doubling of a Fourier transform, about.
_PRODUCT, _TRANSFORM = 0.02, 2.5


def fft_is_faster(x: Sequence[int], w: Sequence[int], y: Sequence[int]) -> bool:
    """Return True if Fourier transforms are likely much faster, for canonical shapes."""
    groups, images, channels, outputs = *x[:3], w[1]
    length = float(prod(x[3:]) + prod(w[3:]))
    transforms = groups * (images * channels + channels * outputs + images * outputs) * length * log2(length + 2)
    products = groups * images * outputs * channels * float(prod(w[3:])) * float(prod(y[3:]))
    spectral = transforms * _TRANSFORM + 4 * groups * images * outputs * channels * length * _PRODUCT
    return 2 * spectral < products * _PRODUCT


def of_correlation(c: Correlation, dtypes: Sequence[np.dtype], elements: Sequence[int], *, deep: int = 16) -> IndexedContraction:
    """Return a correlation as a contraction.

    Rows are images and output positions, columns are outputs, and sums are over taps and channels. `dtypes` and `elements` are
    those of x, w and y. Neighbours in x are neighbours in the indices, too, as a rule; but channels come after taps where there are more
    output positions than taps, if slices of `deep` channels do not meet different taps.
    """
    axes, (xs, ws, ys) = c.axes, (c.x.strides, c.w.strides, c.y.strides)
    bounded = [i for i, axis in enumerate(axes) if not axis.inside]
    positions, terms = [c.images, *[axis.positions for axis in axes]], [c.channels, *[axis.taps for axis in axes]]
    by_position, by_tap = [axis.stride for axis in axes], [axis.dilation for axis in axes]
    rows = [[xs[1], *_times(by_position, xs[3:])], *_coordinates(by_position, bounded), [ys[1], *ys[3:]]]
    sums = [[xs[2], *_times(by_tap, xs[3:])], *_coordinates(by_tap, bounded), [ws[2], *ws[3:]]]
    if xs[1] < xs[-1]:
        positions, rows = _first_last(positions), [_first_last(walk) for walk in rows]
    if xs[2] < xs[-1] or (c.channels % deep == 0 and axes[-1].taps <= axes[-1].positions):
        terms, sums = _first_last(terms), [_first_last(walk) for walk in sums]
    (rows_y,) = merged(positions, rows[-1:])
    rows_x, *outer = merged(positions, rows[:-1])
    inner_x, *inner, inner_w = merged(terms, sums)
    bounds = [Bound(-axes[i].low, x.strides, y.strides, axes[i].size) for i, x, y in zip(bounded, outer, inner, strict=True)]
    stack_x, stack_w, stack_y = [walk_of(c.groups, strides[0]) for strides in (xs, ws, ys)]
    start = c.x.offset - sum(axis.low * stride for axis, stride in zip(axes, xs[3:], strict=True))
    x = OperandMap(dtypes[0], elements[0], start, stack_x, rows_x, inner_x, tuple(bounds))
    w = OperandMap(dtypes[1], elements[1], c.w.offset, stack_w, walk_of(c.outputs, ws[1]), inner_w)
    return IndexedContraction(x, w, ResultMap(dtypes[2], elements[2], c.y.offset, stack_y, rows_y, walk_of(c.outputs, ys[2])))


def _coordinates(steps: Sequence[int], bounded: Sequence[int]) -> list[list[int]]:
    """Return the walks of the bounded axes' coordinates: each along its axis alone."""
    return [[0, *[step if i == j else 0 for j, step in enumerate(steps)]] for i in bounded]


def _times(left: Sequence[int], right: Sequence[int]) -> list[int]:
    return [x * y for x, y in zip(left, right, strict=True)]


def _first_last(values: list[int]) -> list[int]:
    return [*values[1:], values[0]]
