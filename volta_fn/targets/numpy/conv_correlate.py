"""The canonical correlation (see `convolution.py`), computed tile by tile so that scratch memory is bounded whatever the shape.

A *patch* gathers, for a block of *rows* (batch and positions) and a block of *terms* (channels and taps), the input element that each
pair meets; its matrix product with the same block of weights gives a block of the result. In a forward convolution rows are many and
terms few; by the weights it is the other way round, and the blocks of terms are summed. Both are the same loop, only the block sizes
differ (`tiling.py`). Where no two windows overlap, as with 1x1 windows, the patch is a view; of small images it is gathered faster with
the images last in memory (`images_last.py`).
"""

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from volta_fn.targets.numpy.blocks import Scratch
from volta_fn.targets.numpy.contraction import product_for, working_dtype
from volta_fn.targets.numpy.conv_batch_last import Method, axis_of_images, with_images_last
from volta_fn.targets.numpy.conv_by_shifts import by_positions, by_taps, multiply_then_shift
from volta_fn.targets.numpy.conv_patches import patch_block, without_gaps
from volta_fn.targets.numpy.conv_tiling import tile_elements, tiling_of
from volta_fn.targets.numpy.sliding import Window, blocks

__all__ = ["correlate"]

_FEW = 1024  # products of taps and outputs: more of them, and the products before shifting would fall out of the caches


def correlate(x: np.ndarray, w: np.ndarray, y: np.ndarray, windows: Sequence[Window]) -> None:
    """Write y[g, n, o, p] = sum over c, k of x[g, n, c, p * stride + k * dilation - low] * w[g, o, c, k]."""
    if 0 in w.shape or 0 in x.shape:
        y[...] = 0
    elif y.size:
        x, windows = without_gaps(x, windows, y.shape[3:], w.shape[3:])
        axis = axis_of_images(x, w, y, windows)
        if axis is None:
            _as_it_lies(x, w, y, windows)
        else:
            with_images_last(x, w, y, windows, axis, _as_it_lies)


def _as_it_lies(x: np.ndarray, w: np.ndarray, y: np.ndarray, windows: Sequence[Window]) -> None:
    _method(x, w, y)(x, w, y, windows)


def _method(x: np.ndarray, w: np.ndarray, y: np.ndarray) -> Method:
    """How to correlate: by patches, unless they would cost too much."""
    outputs, channels, taps, places = w.shape[1], w.shape[2], prod(w.shape[3:]), prod(y.shape[3:])
    depthwise = len(x) > 1 and outputs == 1 and (channels if taps <= places else y.shape[1]) == 1
    if depthwise and abs(x.strides[0]) < min(map(abs, x.strides[3:]), default=0):
        return by_taps if taps <= places else by_positions
    if 1 < taps <= places and 2 * outputs <= channels and outputs * taps <= _FEW and w.size <= tile_elements(y.dtype):
        return multiply_then_shift
    return _by_patches


def _by_patches(x: np.ndarray, w: np.ndarray, y: np.ndarray, windows: Sequence[Window]) -> None:
    with Scratch() as scratch:
        _Products(x, w, y, windows, scratch).run()


class _Products:
    """A correlation as a loop over matrix products."""

    def __init__(self, x: np.ndarray, w: np.ndarray, y: np.ndarray, windows: Sequence[Window], scratch: Scratch) -> None:
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
            for n, *places in blocks((sizes[1], *sizes[3:first_tap]), (lengths[1], *lengths[3:first_tap])):
                y = self._result(g, n, o, places)
                if len(sums) == 1:
                    self._multiply_into(y, weights, self._patch(g, n, places, sums[0]))
                else:
                    self._sum_into(y, ((self._weights(g, o, terms), self._patch(g, n, places, terms)) for terms in sums))

    def _weights(self, g: slice, o: slice, terms: Sequence[slice]) -> np.ndarray:
        """A block of w as matrices [outputs, terms]."""
        w = self.w[g, o, *terms]
        after = self.y.ndim - 3
        w = w.transpose(0, 1, *(2 if axis == 2 else axis - after for axis in self.tiling.terms))
        stack = w.shape[:1] + (1,) * (len(self.tiling.stack) - 1)
        return w.reshape(*stack, w.shape[1], prod(w.shape[2:])).astype(self.w_dtype, copy=False)

    def _patch(self, g: slice, n: slice, places: Sequence[slice], terms: Sequence[slice]) -> np.ndarray:
        """A block of the patch array as matrices [rows, terms]: a view if no windows overlap and axes merge, else gathered."""
        c, *taps = terms
        stack, rows, summed = self.tiling.stack, self.tiling.rows, self.tiling.terms
        outer, inner = (summed, rows) if self.tiling.rows_last else (rows, summed)
        patch = patch_block(self.x[g, n, c], self.windows, places, taps)
        apart = all(s == 1 for s in patch.shape[3 : self.y.ndim]) or all(s == 1 for s in patch.shape[self.y.ndim :])
        patch = patch.transpose(*stack, *outer, *inner)
        shape = _matrix_shape(patch.shape, len(stack), len(outer))
        matrices = _view(patch, shape) if apart and patch.dtype == self.x_dtype else None
        if matrices is None:
            gathered = self.patch[: patch.size].reshape(patch.shape)
            np.copyto(gathered, patch)
            matrices = gathered.reshape(shape)
        return matrices.swapaxes(-1, -2) if self.tiling.rows_last else matrices

    def _result(self, g: slice, n: slice, o: slice, places: Sequence[slice]) -> np.ndarray:
        """A block of y with its axes in the order [stack, rows, outputs] or [stack, outputs, rows]."""
        stack, rows = self.tiling.stack, self.tiling.rows
        order = (*stack, *rows, 2) if self.tiling.outputs_last else (*stack, 2, *rows)
        return self.y[g, n, o, *places].transpose(order)

    def _factors(self, weights: np.ndarray, patch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The two factors of a block of y, in order."""
        return (patch, weights.swapaxes(-1, -2)) if self.tiling.outputs_last else (weights, patch.swapaxes(-1, -2))

    def _multiply_into(self, y: np.ndarray, weights: np.ndarray, patch: np.ndarray) -> None:
        """Write a block of y that is a single product, by BLAS itself where the axes of the block merge."""
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
    """The shape with all axes after the `stack` merged into two, the first of them from `outer` axes."""
    return (*shape[:stack], prod(shape[stack : stack + outer]), prod(shape[stack + outer :]))


def _view(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """`array` reshaped if that takes no copy, else None."""
    try:
        return array.reshape(shape, copy=False)
    except ValueError:
        return None
