"""The convolution kernel: every convolution as one canonical correlation.

The *canonical* correlation of views `x[g, n, c, *space]`, `w[g, o, c, *taps]` and `y[g, n, o, *positions]` (group, batch, channel, output
channel) is

    y[g, n, o, p] = sum over c, k of x[g, n, c, p * stride + k * dilation - low] * w[g, o, c, k]

with zeros outside x. Feature groups and batch groups are both g; padding at the high end only sets how many positions there are.
Dilation of the left operand (zeros between its elements) is decomposed into *phases*: outputs of one residue meet the same taps and the
same subgrid, so each phase is a canonical correlation of its own and no product with those zeros is formed. The gradients of a
convolution have this form too: by the input, strides become left dilation; by the weights, strides become tap dilation and the window is
as large as the output was.

A correlation is computed by im2col in bounded tiles (`conv_im2col`), with few outputs by products that are shifted
(`multiply_then_shift`), or, if asked for or for very large windows, by Fourier transforms (`conv_by_fft`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product as cartesian
from math import prod

import numpy as np

from volta_fn.compiler.contractions.correlation import fft_is_faster
from volta_fn.compiler.contractions.sliding_windows import SlidingWindow, phases
from volta_fn.primitives.geometry import window_counts
from volta_fn.targets.numpy.blocks import Scratch
from volta_fn.targets.numpy.contraction import product_for, working_dtype
from volta_fn.targets.numpy.conv_by_fft import correlate_spectra
from volta_fn.targets.numpy.conv_im2col import im2col, without_gaps
from volta_fn.targets.numpy.conv_tiling import tile_elements
from volta_fn.targets.numpy.sliding import Block, meeting, sliding_blocks

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
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Correlate `lhs` with the windows of `rhs`.

    That is what networks call convolution: `rhs` is not flipped. `dimension_numbers` gives, for `lhs`, `rhs` and the result, the positions
    of (batch, feature, *spatial), (out feature, in feature, *spatial) and (batch, feature, *spatial). Padding is (low, high) per spatial
    axis and may be negative. The dtype of the result is `preferred_element_type`, or else the operands' own; float16 and bfloat16 are
    summed in float32. Of the algorithms only "fft" makes a difference here, if all elements are finite (transforms would spread infinities
    and NaN).
    """
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    dtype = np.promote_types(lhs.dtype, rhs.dtype) if preferred_element_type is None else np.dtype(preferred_element_type)
    x, w = lhs.transpose(lhs_spec), rhs.transpose(rhs_spec)
    positions = window_counts(x.shape[2:], w.shape[2:], window_strides, padding, lhs_dilation, rhs_dilation)
    if out is None:
        out = _empty((x.shape[0] // batch_group_count, w.shape[0], *positions), out_spec, dtype)
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


def _empty(shape: tuple[int, ...], spec: Spec, dtype: np.dtype) -> np.ndarray:
    """Return a C-ordered array whose axis `spec[i]` has length `shape[i]`."""
    placed = [0] * len(shape)
    for axis, size in zip(spec, shape, strict=True):
        placed[axis] = size
    return np.empty(placed, dtype)


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
    """Write the correlation y, with few outputs per group, by one product per block.

    The input is multiplied by all weights at once; products are added where they belong, shifted by their taps. The gradient by the input
    of a 7×7 convolution with stride 2 of 3 channels takes a third of what it takes by im2col.
    """
    groups, outputs, channels, *taps = w.shape
    factors = w.transpose(0, *range(3, w.ndim), 1, 2).reshape(groups, 1, prod(taps) * outputs, channels)
    widest = max(channels, prod(taps) * outputs)
    for block, g, n in _input_blocks(x, y, windows, taps, tile_elements(y.dtype) // widest):
        with Scratch() as scratch:
            met = x[g, n, :, *block.source]
            size = met.shape[3:]
            products = _multiply(factors[g], met.reshape(*met.shape[:3], prod(size)), y.dtype, scratch)
            products = products.reshape(*met.shape[:2], prod(taps), outputs, *size)
            target = y[g, n, :, *block.positions]
            total = scratch.array(target.shape, working_dtype(y.dtype))
            total[...] = 0
            for i, tap in enumerate(cartesian(*map(range, taps))):
                positions, elements = _meetings(tap, block, total.shape[3:], size)
                total[:, :, :, *positions] += products[:, :, i][:, :, :, *elements]
            target[...] = total


def _multiply(lhs: np.ndarray, rhs: np.ndarray, dtype: np.dtype, scratch: Scratch) -> np.ndarray:
    """Multiply stacks of matrices, for results of a dtype."""
    multiply = product_for(lhs.dtype, rhs.dtype, dtype)
    if multiply is not np.matmul:
        return multiply(lhs, rhs)
    return np.matmul(lhs, rhs, out=scratch.array((*rhs.shape[:2], lhs.shape[2], rhs.shape[3]), rhs.dtype))


def _input_blocks(
    x: np.ndarray, out: np.ndarray, windows: Sequence[SlidingWindow], taps: Sequence[int], capacity: int
) -> Iterator[tuple[Block, slice, slice]]:
    """Yield blocks of positions, with slices of the two leading axes of `x` and `out`.

    Cut first are axes along which blocks meet no element twice, and of these the ones with the largest strides.
    """
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
