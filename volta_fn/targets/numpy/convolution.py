"""The convolution kernel: any rank, strides, dilations, groups and dimension numbers, brought to one canonical correlation.

The *canonical* correlation of views `x[g, n, c, *space]`, `w[g, o, c, *taps]` and `y[g, n, o, *positions]` (group, batch, channel, output
channel) is

    y[g, n, o, p] = sum over c, k of x[g, n, c, p * stride + k * dilation - low] * w[g, o, c, k]

with zeros outside x. Feature groups and batch groups are both g; padding at the high end only sets how many positions there are. Dilation
of the left operand (zeros between its elements) is taken apart by *phase*: outputs of one residue meet the same taps and the same
subgrid, so each phase is a canonical correlation of its own and no product with those zeros is ever formed. The gradients of a
convolution have this form too: by the input, strides turn into left dilation; by the weights, strides turn into tap dilation and the
window is as large as the output was. `correlation.py` computes the canonical form in bounded tiles.
"""

from itertools import product as cartesian

import numpy as np

from volta_fn.primitives.geometry import window_counts
from volta_fn.targets.numpy.conv_by_fft import correlate_spectra, spectra_pay
from volta_fn.targets.numpy.conv_correlate import correlate
from volta_fn.targets.numpy.sliding import Window, phases

__all__ = ["conv_general_dilated"]

Spec = tuple[int, ...]


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
    """Correlate `lhs` with the windows of `rhs` (what networks call convolution: `rhs` is not flipped).

    `dimension_numbers` gives, for `lhs`, `rhs` and the result, the positions of (batch, feature, *spatial), (out feature, in feature,
    *spatial) and (batch, feature, *spatial). Padding is (low, high) per spatial axis and may be negative. The dtype of the result is
    `preferred_element_type`, or else the operands' own; float16 and bfloat16 are summed in float32. Of the algorithms only "fft" makes a
    difference here, if all elements are finite (transforms would spread the others); it is also chosen for very large windows.
    """
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    dtype = np.promote_types(lhs.dtype, rhs.dtype) if preferred_element_type is None else np.dtype(preferred_element_type)
    x, w = lhs.transpose(lhs_spec), rhs.transpose(rhs_spec)
    positions = window_counts(x.shape[2:], w.shape[2:], window_strides, padding, lhs_dilation, rhs_dilation)
    if out is None:
        out = _empty((x.shape[0] // batch_group_count, w.shape[0], *positions), out_spec, dtype)
    x, w, y = _grouped(x, w, out.transpose(out_spec), feature_group_count, batch_group_count)
    windows = [Window(*window) for window in zip(window_strides, rhs_dilation, (low for low, _ in padding), strict=True)]
    axes = zip(windows, lhs_dilation, w.shape[3:], y.shape[3:], strict=True)
    for phase in cartesian(*(phases(*axis) for axis in axes)):
        taps, places = tuple(p.taps for p in phase), tuple(p.places for p in phase)
        some_w, some_y = w[:, :, :, *taps], y[:, :, :, *places]
        spectral = algorithm == "fft" or (algorithm == "auto" and dtype.kind in "fc" and spectra_pay(x.shape, some_w.shape, some_y.shape))
        by = correlate_spectra if spectral and phase and np.isfinite(lhs).all() and np.isfinite(rhs).all() else correlate
        by(x, some_w, some_y, [p.window for p in phase])
    return out


def _empty(shape: tuple[int, ...], spec: Spec, dtype: np.dtype) -> np.ndarray:
    """A C-ordered array whose axis `spec[i]` has length `shape[i]`."""
    placed = [0] * len(shape)
    for axis, size in zip(spec, shape, strict=True):
        placed[axis] = size
    return np.empty(placed, dtype)


def _grouped(
    x: np.ndarray, w: np.ndarray, y: np.ndarray, feature_groups: int, batch_groups: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The views with the group axis in front. Splitting an axis never copies."""
    groups = max(feature_groups, batch_groups)
    if groups == 1:
        return x[None], w[None], y[None]
    split_axis = 0 if batch_groups > 1 else 1
    y = _split(y, 1, groups).swapaxes(0, 1)
    return _split(x, split_axis, groups).swapaxes(0, split_axis), _split(w, 0, groups), y


def _split(array: np.ndarray, axis: int, groups: int) -> np.ndarray:
    size = array.shape[axis]
    return array.reshape(*array.shape[:axis], groups, size // groups, *array.shape[axis + 1 :])
