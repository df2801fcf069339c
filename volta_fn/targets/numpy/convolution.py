"""Convolutions in NumPy: a canonical correlation, by im2col or by FFT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product as cartesian
from math import gcd, isqrt, prod
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from volta_fn.compiler.contractions import SlidingWindow, fft_is_faster, phases
from volta_fn.primitives.convolution import window_counts
from volta_fn.targets.numpy.linalg import product_for, working_dtype
from volta_fn.targets.numpy.memory import Scratch

# Sliding windows along an axis, for convolutions and window reductions.
#
# A window has *taps* and *positions*; at position p its tap k meets the input element `p * stride + k * dilation - low`.


@lru_cache(maxsize=4096)  # loops over taps ask the same for every block
def meeting(tap: int, window: SlidingWindow, count: int, size: int) -> tuple[slice, slice]:
    """Return the positions at which a tap meets an element, and those elements.

    There are `count` positions and `size` elements.
    """
    offset = tap * window.dilation - window.low
    first = max(-(offset // window.stride), 0)
    last = min((size - 1 - offset) // window.stride, count - 1)
    start = first * window.stride + offset
    return slice(first, max(first, last + 1)), slice(start, start + max(last - first + 1, 0) * window.stride, window.stride)


def span(block: slice, window: SlidingWindow, taps: int, size: int) -> tuple[slice, SlidingWindow]:
    """Return the slice of an axis that a block of positions meets, and its window."""
    start = max(block.start * window.stride - window.low, 0)
    stop = min((block.stop - 1) * window.stride + (taps - 1) * window.dilation - window.low + 1, size)
    return slice(start, max(start, stop)), window._replace(low=window.low - block.start * window.stride + start)


class Block(NamedTuple):
    """Positions, the slice of the input met there, and the windows over it."""

    positions: tuple[slice, ...]
    source: tuple[slice, ...]
    windows: tuple[SlidingWindow, ...]


def sliding_blocks(
    counts: Sequence[int],
    windows: Sequence[SlidingWindow],
    taps: Sequence[int],
    sizes: Sequence[int],
    capacity: int,
    cut: Sequence[int] = (),
) -> Iterator[Block]:
    """Yield blocks that meet at most `capacity` elements, axes cut in the order `cut`."""
    lengths = [max(count, 1) for count in counts]

    def reach() -> int:
        axes = zip(lengths, windows, taps, sizes, strict=True)
        return prod(min((n - 1) * w.stride + (k - 1) * w.dilation + 1, size) for n, w, k, size in axes if k)

    for axis in cut or range(len(counts)):
        while reach() > capacity and lengths[axis] > 1:
            lengths[axis] = -(-lengths[axis] // 2)
    for positions in blocks(tuple(counts), tuple(lengths)):
        spans = [span(*axis) for axis in zip(positions, windows, taps, sizes, strict=True)]
        yield Block(positions, tuple([s for s, _ in spans]), tuple([w for _, w in spans]))


@lru_cache(maxsize=256)
def blocks(sizes: tuple[int, ...], lengths: tuple[int, ...]) -> tuple[tuple[slice, ...], ...]:
    """Return the blocks of an index space, as tuples of slices."""
    axes = [[slice(i, min(i + n, size)) for i in range(0, size, n)] for size, n in zip(sizes, lengths, strict=True)]
    return tuple(cartesian(*axes))


# Tiling of a correlation by im2col into matrix products.
#
# Axes are numbered as those of the patch array (`im2col`): group, batch, channel, positions, taps. *Rows* are the axes that the
# result keeps apart from the output channel, *terms* those that are summed, the *stack* those along which matrix products are repeated.

_TILE_BYTES = 4 << 20  # of one operand of one product: a handful of them stays far below 32 MiB
_INTEGER_BYTES = 32  # an integer takes as many during its exact product (see `linalg.py`)
_STACKED_POSITIONS = 64  # with fewer positions than this, one product per batch element would be too narrow for BLAS
_RUN_COST, _ELEMENT_COST, _STRIDED_COST = 10.0, 0.1, 0.5  # nanoseconds to start a run of copies, and for each element in it


class Tiling(NamedTuple):
    """The axes of stack, rows and terms in merging order, and the lengths of blocks."""

    stack: tuple[int, ...]
    rows: tuple[int, ...]
    terms: tuple[int, ...]
    rows_last: bool  # a patch is stored as [terms, rows], else as [rows, terms]
    outputs_last: bool  # a block of the result is [rows, outputs], else [outputs, rows]
    lengths: tuple[int, ...]
    outputs: int


def tile_elements(dtype: np.dtype) -> int:
    """Return the most elements of an operand of a product with a result of `dtype`."""
    working = working_dtype(dtype)
    return max(_TILE_BYTES // (_INTEGER_BYTES if working.kind in "iub" else working.itemsize), 1)


def tiling_of(x: np.ndarray, w: np.ndarray, y: np.ndarray, windows: Sequence[SlidingWindow]) -> Tiling:
    """Choose the tiling of the correlation y of x and w."""
    positions, taps = y.shape[3:], w.shape[3:]
    strides = patch_strides(x, windows, positions, taps)
    sizes = (*x.shape[:3], *positions, *taps)
    return choose_tiling(sizes, y.shape[2], strides, y.strides, tuple(windows), x.itemsize, tile_elements(y.dtype))


@lru_cache(maxsize=1024)  # small convolutions would spend more time on this than on anything else
def choose_tiling(
    sizes: tuple[int, ...],
    outputs: int,
    patch_strides: tuple[int, ...],
    out_strides: tuple[int, ...],
    windows: tuple[SlidingWindow, ...],
    itemsize: int,
    capacity: int,
) -> Tiling:
    """Choose blocks such that all arrays involved have at most `capacity` elements.

    These are a patch, what it reaches of the input, its weights and its result. `sizes` and `patch_strides` run over the axes of the patch
    array; `out_strides` over (group, batch, output channel, *positions).
    """
    positions, taps = tuple(range(3, 3 + len(windows))), tuple(range(3 + len(windows), len(sizes)))
    row_strides = {axis: out_strides[axis] for axis in (1, *positions)}
    outputs_last = all(out_strides[2] <= stride for stride in row_strides.values())
    stacked = not outputs_last and out_strides[1] > out_strides[2] and _count(sizes, positions) >= _STACKED_POSITIONS
    stack = (0, 1) if stacked else (0,)
    rows = tuple(sorted(positions if stacked else row_strides, key=lambda axis: -row_strides[axis]))
    terms = tuple(sorted((2, *taps), key=lambda axis: -abs(patch_strides[axis])))
    row_limit, term_limit, output_limit = _balance((_count(sizes, rows), _count(sizes, terms), outputs), capacity)
    lengths = [1] * len(sizes)
    row_count, term_count = _fill(lengths, sizes, rows, row_limit), _fill(lengths, sizes, terms, term_limit)
    output_count = _even_length(outputs, output_limit)
    _fill(lengths, sizes, stack, capacity // max(row_count * term_count, row_count * output_count, term_count * output_count))
    _shrink(lengths, windows, capacity)
    by_rows, by_terms = (_gathering_cost(axes, lengths, patch_strides, itemsize) for axes in (rows, terms))
    return Tiling(stack, rows, terms, by_rows <= by_terms, outputs_last, tuple(lengths), output_count)


def _count(sizes: Sequence[int], axes: Sequence[int]) -> int:
    return prod(sizes[axis] for axis in axes)


def _balance(counts: tuple[int, int, int], capacity: int) -> tuple[int, ...]:
    """Return limits for three counts, the product of any two at most `capacity`."""
    side = isqrt(capacity)
    capped = [min(count, side) for count in counts]
    others = [max(capped[:i] + capped[i + 1 :]) for i in range(3)]
    return tuple(min(count, side if other == side else capacity // other) for count, other in zip(counts, others, strict=True))


def _fill(lengths: list[int], sizes: Sequence[int], axes: Sequence[int], limit: int) -> int:
    """Set block lengths, innermost first, up to `limit` elements; return how many."""
    count = 1
    for axis in reversed(axes):
        lengths[axis] = _even_length(sizes[axis], max(1, limit // count))
        count *= lengths[axis]
    return count


def _even_length(size: int, limit: int) -> int:
    """Return the length of even blocks, as many as blocks of `limit` would be."""
    number = -(-size // limit)
    return -(-size // number)


def _shrink(lengths: list[int], windows: Sequence[SlidingWindow], capacity: int) -> None:
    """Halve blocks of positions and taps until what they reach of the input fits."""
    # Strides and dilations leave gaps between elements.
    spatial = len(windows)

    def reached() -> int:
        spans = (
            (lengths[3 + i] - 1) * window.stride + (lengths[3 + spatial + i] - 1) * window.dilation + 1 for i, window in enumerate(windows)
        )
        return prod(lengths[:3]) * prod(spans)

    while reached() > capacity:
        longest = max(range(3, 3 + 2 * spatial), key=lengths.__getitem__)
        lengths[longest] = -(-lengths[longest] // 2)


def _gathering_cost(axes: Sequence[int], lengths: Sequence[int], strides: Sequence[int], itemsize: int) -> float:
    """Estimate the nanoseconds per element of gathering a patch with `axes` innermost."""
    run = 1
    for axis in reversed(axes):
        if lengths[axis] > 1 and strides[axis] != run * itemsize:
            break
        run *= lengths[axis]
    if run > 1:
        return _RUN_COST / run + _ELEMENT_COST
    innermost = next((lengths[axis] for axis in reversed(axes) if lengths[axis] > 1), 1)
    return _RUN_COST / innermost + _STRIDED_COST


def patch_strides(x: np.ndarray, windows: Sequence[SlidingWindow], positions: Sequence[int], taps: Sequence[int]) -> tuple[int, ...]:
    """Return the strides in bytes of the patch array over `x`, or over a padded copy."""
    spans = [reach(window, slice(0, size), slice(0, count)) for window, size, count in zip(windows, positions, taps, strict=True)]
    padded = any(start < 0 or stop > size for (start, stop), size in zip(spans, x.shape[3:], strict=True))
    strides = _strides_like(x, (*x.shape[:3], *(stop - start for start, stop in spans))) if padded else x.strides
    return patch_strides_over(strides, windows)


def _strides_like(x: np.ndarray, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of an array of another shape with the same order in memory."""
    strides, step = [0] * x.ndim, x.itemsize
    for axis in sorted(range(x.ndim), key=lambda axis: (abs(x.strides[axis]), -axis)):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def patch_strides_over(strides: Sequence[int], windows: Sequence[SlidingWindow]) -> tuple[int, ...]:
    """Return the strides of the patch array over an array of the given strides."""
    positions = (stride * window.stride for stride, window in zip(strides[3:], windows, strict=True))
    taps = (stride * window.dilation for stride, window in zip(strides[3:], windows, strict=True))
    return (*strides[:3], *positions, *taps)


def reach(window: SlidingWindow, positions: slice, taps: slice) -> tuple[int, int]:
    """Return where the elements that these taps meet at these positions begin and end."""
    start = positions.start * window.stride + taps.start * window.dilation - window.low
    return start, (positions.stop - 1) * window.stride + (taps.stop - 1) * window.dilation - window.low + 1


# The canonical correlation (see the last section) by im2col, in bounded tiles.
#
# The *patch array* is `x[g, n, c, p * stride + k * dilation - low]`, with zeros outside x; its axes are numbered 0 for the group g, 1
# for the batch n, 2 for the channel c, then come the positions p, then the taps k. A *patch* is a tile of it, a block of *rows* (batch
# and positions) by a block of *terms* (channels and taps), which is gathered; its matrix product with the same block of weights gives a
# block of the result. In a forward convolution rows are many and terms few; by the weights it is the opposite, and the blocks of terms
# are summed. Both are the same loop with other block sizes (`Tiling`). Where no two windows overlap, as with 1x1 windows, the
# patch is a view.


def im2col(x: np.ndarray, w: np.ndarray, y: np.ndarray, windows: Sequence[SlidingWindow]) -> None:
    """Write the correlation y as products of patches with weights."""
    with Scratch() as scratch:
        _Products(x, w, y, windows, scratch).write()


def without_gaps(
    x: np.ndarray, windows: Sequence[SlidingWindow], positions: Sequence[int], taps: Sequence[int]
) -> tuple[np.ndarray, tuple[SlidingWindow, ...]]:
    """Return the subgrid of `x` that windows can meet, and the windows over it."""
    # A stride of 2 with a single tap, for example, meets every other element: over that subgrid the stride is 1.
    subgrid, reduced = [], []
    for window, position_count, count in zip(windows, positions, taps, strict=True):
        stride = window.stride if position_count > 1 else window.dilation
        dilation = window.dilation if count > 1 else stride
        step = gcd(stride, dilation)
        start = -window.low % step
        subgrid.append(slice(start, None, step))
        reduced.append(SlidingWindow(stride // step, dilation // step, (window.low + start) // step))
    return x[:, :, :, *subgrid], tuple(reduced)


def _patch_block(x: np.ndarray, windows: Sequence[SlidingWindow], positions: Sequence[slice], taps: Sequence[slice]) -> np.ndarray:
    """Return the patch array of positions and taps: a view of `x` or a padded copy."""
    x = _span(x, [reach(*axis) for axis in zip(windows, positions, taps, strict=True)])
    shape = (*x.shape[:3], *(s.stop - s.start for s in positions), *(s.stop - s.start for s in taps))
    return as_strided(x, shape, patch_strides_over(x.strides, windows), writeable=False)


def _span(x: np.ndarray, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Slice `x` along each spatial axis, zeros outside, in the same order in memory."""
    inside = [slice(max(start, 0), max(min(stop, size), 0)) for (start, stop), size in zip(spans, x.shape[3:], strict=True)]
    if all((s.start, s.stop) == span for s, span in zip(inside, spans, strict=True)):
        return x[:, :, :, *inside]
    padded = np.zeros_like(x, shape=(*x.shape[:3], *(stop - start for start, stop in spans)), subok=False)
    if all(s.start < s.stop for s in inside):
        destination = [slice(s.start - start, s.stop - start) for s, (start, _) in zip(inside, spans, strict=True)]
        padded[:, :, :, *destination] = x[:, :, :, *inside]
    return padded


class _Products:
    """A correlation as a loop over matrix products."""

    def __init__(self, x: np.ndarray, w: np.ndarray, y: np.ndarray, windows: Sequence[SlidingWindow], scratch: Scratch) -> None:
        self.x, self.w, self.y, self.windows = x, w, y, windows
        working = working_dtype(y.dtype)
        exact = working.kind in "iub"
        self.sizes = (*x.shape[:3], *y.shape[3:], *w.shape[3:])
        self.tiling = tiling_of(x, w, y, windows)
        self.x_dtype, self.w_dtype = (x.dtype, w.dtype) if exact else (working, working)
        self.multiply = product_for(self.x_dtype, self.w_dtype, y.dtype)
        self.patch = scratch.array((prod(self.tiling.lengths),), self.x_dtype)

    def write(self) -> None:
        """Write y, block by block."""
        sizes, lengths, first_tap = self.sizes, self.tiling.lengths, 3 + len(self.windows)
        sums = blocks((sizes[2], *sizes[first_tap:]), (lengths[2], *lengths[first_tap:]))
        for g, o in blocks((sizes[0], self.y.shape[2]), (lengths[0], self.tiling.outputs)):
            weights = self._weights(g, o, sums[0])
            for n, *positions in blocks((sizes[1], *sizes[3:first_tap]), (lengths[1], *lengths[3:first_tap])):
                y = self._result(g, n, o, positions)
                if len(sums) == 1:
                    # A single product is written directly where its axes merge.
                    patch = self._patch(g, n, positions, sums[0])
                    stack = len(self.tiling.stack)
                    shape = _matrix_shape(y.shape, stack, len(self.tiling.rows) if self.tiling.outputs_last else 1)
                    matrices = _view(y, shape) if self.multiply is np.matmul and y.dtype == self.x_dtype else None
                    if matrices is None:
                        y[...] = self.multiply(*self._factors(weights, patch)).reshape(y.shape)
                    else:
                        np.matmul(*self._factors(weights, patch), out=matrices)
                else:
                    products = (
                        self.multiply(*self._factors(weights, patch))
                        for weights, patch in ((self._weights(g, o, terms), self._patch(g, n, positions, terms)) for terms in sums)
                    )
                    total = next(products)
                    for product in products:
                        np.add(total, product, out=total)
                    y[...] = total.reshape(y.shape)

    def _weights(self, g: slice, o: slice, terms: Sequence[slice]) -> np.ndarray:
        """Return a block of w as matrices [outputs, terms]."""
        w = self.w[g, o, *terms]
        after = self.y.ndim - 3
        w = w.transpose(0, 1, *(2 if axis == 2 else axis - after for axis in self.tiling.terms))
        stack = w.shape[:1] + (1,) * (len(self.tiling.stack) - 1)
        return w.reshape(*stack, w.shape[1], prod(w.shape[2:])).astype(self.w_dtype, copy=False)

    def _patch(self, g: slice, n: slice, positions: Sequence[slice], terms: Sequence[slice]) -> np.ndarray:
        """Return a patch as matrices [rows, terms]: a view if possible, else gathered."""
        c, *taps = terms
        stack, rows, summed = self.tiling.stack, self.tiling.rows, self.tiling.terms
        outer, inner = (summed, rows) if self.tiling.rows_last else (rows, summed)
        patch = _patch_block(self.x[g, n, c], self.windows, positions, taps)
        disjoint = all(s == 1 for s in patch.shape[3 : self.y.ndim]) or all(s == 1 for s in patch.shape[self.y.ndim :])
        patch = patch.transpose(*stack, *outer, *inner)
        shape = _matrix_shape(patch.shape, len(stack), len(outer))
        matrices = _view(patch, shape) if disjoint and patch.dtype == self.x_dtype else None
        if matrices is None:
            gathered = self.patch[: patch.size].reshape(patch.shape)
            np.copyto(gathered, patch)
            matrices = gathered.reshape(shape)
        return matrices.swapaxes(-1, -2) if self.tiling.rows_last else matrices

    def _result(self, g: slice, n: slice, o: slice, positions: Sequence[slice]) -> np.ndarray:
        """Return a block of y as [stack, rows, outputs] or [stack, outputs, rows]."""
        stack, rows = self.tiling.stack, self.tiling.rows
        order = (*stack, *rows, 2) if self.tiling.outputs_last else (*stack, 2, *rows)
        return self.y[g, n, o, *positions].transpose(order)

    def _factors(self, weights: np.ndarray, patch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the two factors of a block of y, in order."""
        return (patch, weights.swapaxes(-1, -2)) if self.tiling.outputs_last else (weights, patch.swapaxes(-1, -2))


def _matrix_shape(shape: tuple[int, ...], stack: int, outer: int) -> tuple[int, ...]:
    """Return the shape with the axes after `stack` merged into two: `outer`, the rest."""
    return (*shape[:stack], prod(shape[stack : stack + outer]), prod(shape[stack + outer :]))


def _view(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return `array` reshaped if that takes no copy, else None."""
    try:
        return array.reshape(shape, copy=False)
    except ValueError:
        return None


# Correlation by Fourier transforms, for very large windows.
#
# The last section defines the canonical form. A correlation is a product of spectra, one of them conjugate. Transforms are circular, and
# as long as all elements that windows meet, so that no window wraps around. Strides are applied to the result; taps are dilated before
# they are transformed. The work grows with the size of the input, not of the window, and so does the rounding error of every result,
# which is relative to the largest of them.


def correlate_spectra(x: np.ndarray, w: np.ndarray, y: np.ndarray, windows: Sequence[SlidingWindow]) -> None:
    """Write the canonical correlation y of floats or complex numbers."""
    if 0 in w.shape or 0 in x.shape or not y.size:
        y[...] = 0
        return
    dtype = working_dtype(y.dtype)
    taps, positions = w.shape[3:], y.shape[3:]
    spans = [(p - 1) * v.stride + (k - 1) * v.dilation + 1 for p, k, v in zip(positions, taps, windows, strict=True)]
    axes = tuple(range(1, 1 + len(windows)))
    real = dtype.kind == "f"
    forward, backward = (np.fft.rfftn, np.fft.irfftn) if real else (np.fft.fftn, np.fft.ifftn)
    lengths = tuple([_smooth(span) for span in spans])
    chosen = tuple([slice(0, (p - 1) * v.stride + 1, v.stride) for p, v in zip(positions, windows, strict=True)])
    for group in range(len(x)):
        filters = [forward(_dilated(w[group, o], windows, dtype), lengths, axes) for o in range(w.shape[1])]
        for n in range(x.shape[1]):
            spectrum = forward(_gathered(x[group, n], windows, spans, dtype), lengths, axes)
            for o, taps_spectrum in enumerate(filters):
                product = np.sum(spectrum * _mirrored(taps_spectrum, real), axis=0)
                y[group, n, o] = backward(product, lengths, tuple(a - 1 for a in axes))[chosen]


def _mirrored(spectrum: np.ndarray, real: bool) -> np.ndarray:
    """Return the spectrum of the taps in reverse order about tap 0."""
    if real:
        return spectrum.conj()
    axes = tuple(range(1, spectrum.ndim))
    return np.roll(np.flip(spectrum, axes), 1, axes)


def _dilated(w: np.ndarray, windows: Sequence[SlidingWindow], dtype: np.dtype) -> np.ndarray:
    """Return the taps with zeros between them."""
    sizes = [(k - 1) * v.dilation + 1 for k, v in zip(w.shape[1:], windows, strict=True)]
    out = np.zeros((len(w), *sizes), dtype)
    out[(slice(None), *[slice(None, None, v.dilation) for v in windows])] = w
    return out


def _gathered(x: np.ndarray, windows: Sequence[SlidingWindow], spans: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Return the elements that windows meet, zeros where windows leave x."""
    out = np.zeros((len(x), *spans), dtype)
    inside, source = [slice(None)], [slice(None)]
    for size, v, span in zip(x.shape[1:], windows, spans, strict=True):
        first, last = max(v.low, 0), min(v.low + size, span)
        inside.append(slice(first, max(first, last)))
        source.append(slice(first - v.low, max(first, last) - v.low))
    out[tuple(inside)] = x[tuple(source)]
    return out


def _smooth(length: int) -> int:
    """Return the next number with no prime factors but 2, 3 and 5: a fast length."""
    while True:
        rest = length
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return length
        length += 1


# The convolution kernel: every convolution as one canonical correlation.
#
# The *canonical* correlation of views `x[g, n, c, *space]`, `w[g, o, c, *taps]` and `y[g, n, o, *positions]` (group, batch, channel,
# output channel) is
#
# y[g, n, o, p] = sum over c, k of x[g, n, c, p * stride + k * dilation - low] * w[g, o, c, k]
#
# with zeros outside x. Feature groups and batch groups are both g; padding at the high end only sets how many positions there are.
# Dilation of the left operand (zeros between its elements) is decomposed into *phases*: outputs of one residue meet the same taps and
# the same subgrid, so each phase is a canonical correlation of its own and no product with those zeros is formed. The gradients of a
# convolution have this form too: by the input, strides become left dilation; by the weights, strides become tap dilation and the window
# is as large as the output was.
#
# A correlation is computed by im2col in bounded tiles (`im2col`), with few outputs by products that are shifted
# (`multiply_then_shift`), or, if asked for or for very large windows, by Fourier transforms.

Spec = tuple[int, ...]
Index = tuple[slice, ...]

#: Products of taps and outputs: with more of them, the products before shifting would fall out of the caches.
_FEW = 1024
_NO_WINDOW = SlidingWindow(1, 1, 0)  # along an axis that no window slides over


def conv_general_dilated(
    lhs: np.ndarray,
    rhs: np.ndarray,
    *,
    window_strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    lhs_dilation: tuple[int, ...],
    rhs_dilation: tuple[int, ...],
    dimension_numbers: tuple[Spec, Spec, Spec],
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    preferred_element_type: np.dtype | None = None,
    algorithm: str = "auto",
    precision: str | None = None,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Correlate `lhs` with the windows of `rhs`.

    That is what networks call convolution: `rhs` is not flipped. `dimension_numbers` gives, for `lhs`, `rhs` and the result, the positions
    of (batch, feature, *spatial), (out feature, in feature, *spatial) and (batch, feature, *spatial). Padding is (low, high) per spatial
    axis and may be negative. The dtype of the result is `preferred_element_type`, or else the operands' own; float16 and bfloat16 are
    summed in float32. Of the algorithms only "fft" makes a difference here, if all elements are finite (transforms would spread infinities
    and NaN). A lower `precision` rounds nothing.
    """
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    dtype = np.promote_types(lhs.dtype, rhs.dtype) if preferred_element_type is None else np.dtype(preferred_element_type)
    x, w = lhs.transpose(lhs_spec), rhs.transpose(rhs_spec)
    positions = window_counts(x.shape[2:], w.shape[2:], window_strides, padding, lhs_dilation, rhs_dilation)
    if out is None:
        # A C-ordered array whose axis `out_spec[i]` has length `shape[i]`.
        shape = (x.shape[0] // batch_group_count, w.shape[0], *positions)
        placed = [0] * len(shape)
        for axis, size in zip(out_spec, shape, strict=True):
            placed[axis] = size
        out = np.empty(placed, dtype)
    x, w, y = _grouped(x, w, out.transpose(out_spec), feature_group_count, batch_group_count)
    windows = [SlidingWindow(*window) for window in zip(window_strides, rhs_dilation, (low for low, _ in padding), strict=True)]
    axes = zip(windows, lhs_dilation, w.shape[3:], y.shape[3:], strict=True)
    for phase in cartesian(*(phases(*axis) for axis in axes)):
        taps, positions_of = tuple(p.taps for p in phase), tuple(p.positions for p in phase)
        some_w, some_y = w[:, :, :, *taps], y[:, :, :, *positions_of]
        spectral = algorithm == "fft" or (algorithm == "auto" and dtype.kind in "fc" and fft_is_faster(x.shape, some_w.shape, some_y.shape))
        by = correlate_spectra if spectral and phase and np.isfinite(lhs).all() and np.isfinite(rhs).all() else correlate
        by(x, some_w, some_y, [p.window for p in phase])
    return out


def _grouped(
    x: np.ndarray, w: np.ndarray, y: np.ndarray, feature_groups: int, batch_groups: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the views with the group axis in front. Splitting an axis never copies."""
    groups = max(feature_groups, batch_groups)
    if groups == 1:
        return x[None], w[None], y[None]
    split_axis = 0 if batch_groups > 1 else 1
    y = _split(y, 1, groups).swapaxes(0, 1)
    return _split(x, split_axis, groups).swapaxes(0, split_axis), _split(w, 0, groups), y


def _split(array: np.ndarray, axis: int, groups: int) -> np.ndarray:
    size = array.shape[axis]
    return array.reshape(*array.shape[:axis], groups, size // groups, *array.shape[axis + 1 :])


def correlate(x: np.ndarray, w: np.ndarray, y: np.ndarray, windows: Sequence[SlidingWindow]) -> None:
    """Write the canonical correlation y."""
    if 0 in w.shape or 0 in x.shape:
        y[...] = 0
    elif y.size:
        x, windows = without_gaps(x, windows, y.shape[3:], w.shape[3:])
        # Products that are shifted meet no padding, whose zeros make NaN of infinite weights.
        method = multiply_then_shift if _has_few_outputs(w, y) and np.isfinite(w).all() else im2col
        method(x, w, y, windows)


def _has_few_outputs(w: np.ndarray, y: np.ndarray) -> bool:
    """Return True if patches would repeat many channels per tap to produce little."""
    outputs, channels, taps, positions = w.shape[1], w.shape[2], prod(w.shape[3:]), prod(y.shape[3:])
    return 1 < taps <= positions and 2 * outputs <= channels and outputs * taps <= _FEW and w.size <= tile_elements(y.dtype)


def multiply_then_shift(x: np.ndarray, w: np.ndarray, y: np.ndarray, windows: Sequence[SlidingWindow]) -> None:
    """Write the correlation y, with few outputs per group, by one product per block."""
    # The input is multiplied by all weights at once; products are added where they belong, shifted by their taps. The gradient by the input
    # of a 7×7 convolution with stride 2 of 3 channels takes a third of what it takes by im2col.
    groups, outputs, channels, *taps = w.shape
    factors = w.transpose(0, *range(3, w.ndim), 1, 2).reshape(groups, 1, prod(taps) * outputs, channels)
    widest = max(channels, prod(taps) * outputs)
    for block, g, n in _input_blocks(x, y, windows, taps, tile_elements(y.dtype) // widest):
        with Scratch() as scratch:
            met = x[g, n, :, *block.source]
            size = met.shape[3:]
            lhs = factors[g]
            rhs = met.reshape(*met.shape[:3], prod(size))
            multiply = product_for(lhs.dtype, rhs.dtype, y.dtype)
            if multiply is not np.matmul:
                products = multiply(lhs, rhs)
            else:
                products = np.matmul(lhs, rhs, out=scratch.array((*rhs.shape[:2], lhs.shape[2], rhs.shape[3]), rhs.dtype))
            products = products.reshape(*met.shape[:2], prod(taps), outputs, *size)
            target = y[g, n, :, *block.positions]
            total = scratch.array(target.shape, working_dtype(y.dtype))
            total[...] = 0
            for i, tap in enumerate(cartesian(*map(range, taps))):
                positions, elements = _meetings(tap, block, total.shape[3:], size)
                total[:, :, :, *positions] += products[:, :, i][:, :, :, *elements]
            target[...] = total


def _input_blocks(
    x: np.ndarray, out: np.ndarray, windows: Sequence[SlidingWindow], taps: Sequence[int], capacity: int
) -> Iterator[tuple[Block, slice, slice]]:
    """Yield blocks of positions, with slices of the two leading axes of `x` and `out`."""
    # Cut first are axes along which blocks meet no element twice, and of these the ones with the largest strides.
    axes = (0, 1, *range(out.ndim - len(windows), out.ndim))
    counts, sizes = [[array.shape[axis] for axis in axes] for array in (out, x)]
    lengths = (1, 1, *taps)
    cut = sorted(range(len(axes)), key=lambda i: (lengths[i] > 1, -abs(out.strides[axes[i]])))
    for positions, source, slid in sliding_blocks(counts, (_NO_WINDOW, _NO_WINDOW, *windows), lengths, sizes, capacity, cut):
        yield Block(positions[2:], source[2:], slid[2:]), positions[0], positions[1]


def _meetings(tap: Sequence[int], block: Block, counts: Sequence[int], sizes: Sequence[int]) -> tuple[Index, Index]:
    """Return the positions of a block at which a tap meets x, and those elements."""
    met = [meeting(*axis) for axis in zip(tap, block.windows, counts, sizes, strict=True)]
    return tuple([positions for positions, _ in met]), tuple([elements for _, elements in met])
