"""The canonical correlation (see `convolution`) by im2col, in bounded tiles.

The *patch array* is `x[g, n, c, p * stride + k * dilation - low]`, with zeros outside x; its axes are numbered 0 for the group g, 1 for the
batch n, 2 for the channel c, then come the positions p, then the taps k. A *patch* is a tile of it, a block of *rows* (batch and positions)
by a block of *terms* (channels and taps), which is gathered; its matrix product with the same block of weights gives a block of the result.
In a forward convolution rows are many and terms few; by the weights it is the opposite, and the blocks of terms are summed. Both are
the same loop with other block sizes (`conv_tiling`). Where no two windows overlap, as with 1x1 windows, the patch is a view.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd, prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from volta_fn.compiler.contractions.sliding_windows import SlidingWindow
from volta_fn.targets.numpy.blocks import Scratch
from volta_fn.targets.numpy.contraction import product_for, working_dtype
from volta_fn.targets.numpy.conv_tiling import patch_strides_over, reach, tiling_of
from volta_fn.targets.numpy.sliding import blocks


def im2col(x: np.ndarray, w: np.ndarray, y: np.ndarray, windows: Sequence[SlidingWindow]) -> None:
    """Write the correlation y as products of patches with weights."""
    with Scratch() as scratch:
        _Products(x, w, y, windows, scratch).run()


def without_gaps(
    x: np.ndarray, windows: Sequence[SlidingWindow], positions: Sequence[int], taps: Sequence[int]
) -> tuple[np.ndarray, tuple[SlidingWindow, ...]]:
    """Return the subgrid of `x` that windows can meet, and the windows over it.

    A stride of 2 with a single tap, for example, meets every other element: over that subgrid the stride is 1.
    """
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
    """Slice `x` along each spatial axis, with zeros outside of it.

    The order in memory stays.
    """
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

    def run(self) -> None:
        """Write y, block by block."""
        sizes, lengths, first_tap = self.sizes, self.tiling.lengths, 3 + len(self.windows)
        sums = blocks((sizes[2], *sizes[first_tap:]), (lengths[2], *lengths[first_tap:]))
        for g, o in blocks((sizes[0], self.y.shape[2]), (lengths[0], self.tiling.outputs)):
            weights = self._weights(g, o, sums[0])
            for n, *positions in blocks((sizes[1], *sizes[3:first_tap]), (lengths[1], *lengths[3:first_tap])):
                y = self._result(g, n, o, positions)
                if len(sums) == 1:
                    self._multiply_into(y, weights, self._patch(g, n, positions, sums[0]))
                else:
                    self._sum_into(y, ((self._weights(g, o, terms), self._patch(g, n, positions, terms)) for terms in sums))

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

    def _multiply_into(self, y: np.ndarray, weights: np.ndarray, patch: np.ndarray) -> None:
        """Write a block of y that is a single product, directly where its axes merge."""
        stack = len(self.tiling.stack)
        shape = _matrix_shape(y.shape, stack, len(self.tiling.rows) if self.tiling.outputs_last else 1)
        matrices = _view(y, shape) if self.multiply is np.matmul and y.dtype == self.x_dtype else None
        if matrices is None:
            y[...] = self.multiply(*self._factors(weights, patch)).reshape(y.shape)
        else:
            np.matmul(*self._factors(weights, patch), out=matrices)

    def _sum_into(self, y: np.ndarray, operands: Iterable[tuple[np.ndarray, np.ndarray]]) -> None:
        """Write a block of y that is a sum of products."""
        products = (self.multiply(*self._factors(weights, patch)) for weights, patch in operands)
        total = next(products)
        for product in products:
            np.add(total, product, out=total)
        y[...] = total.reshape(y.shape)


def _matrix_shape(shape: tuple[int, ...], stack: int, outer: int) -> tuple[int, ...]:
    """Return the shape with the axes after the `stack` merged into two.

    The first of them merges `outer` axes.
    """
    return (*shape[:stack], prod(shape[stack : stack + outer]), prod(shape[stack + outer :]))


def _view(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return `array` reshaped if that takes no copy, else None."""
    try:
        return array.reshape(shape, copy=False)
    except ValueError:
        return None
