"""Scales of groups and codes of numbers: how floats are quantised without data."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.jit.function import jit
from volta_fn.primitives.quantized import CODES, LARGEST, NF4_VALUES, QuantizedLayout

#: The least and the greatest integer of codes.
_BOUNDS = {"int8": (-128.0, 127.0), "int4": (-8.0, 7.0)}
#: What the search for scales multiplies those of the range by.
_FACTORS = np.linspace(0.6, 1.1, 26, dtype=np.float32)


class Scales(NamedTuple):
    """A scale for each group of numbers, and an offset or None, as float32."""

    scales: Array
    offsets: Array | None

    def rounded(self, dtype: np.dtype) -> Scales:
        """Return the numbers that a dtype has."""
        return Scales(*[None if x is None else x.astype(dtype).astype("float32") for x in self])  # type: ignore[arg-type]  # scales are there

    def values(self, groups: Array, scheme: str) -> Array:
        """Return the values of the codes that are nearest to numbers."""
        shifted = groups if self.offsets is None else groups - self.offsets[..., None]
        return nearest(divided(shifted, self.scales[..., None]), scheme)

    def numbers(self, values: Array) -> Array:
        """Return what values of codes stand for."""
        scaled = values * self.scales[..., None]
        return scaled if self.offsets is None else scaled + self.offsets[..., None]


def divided(x: Array, scales: Array) -> Array:
    """Return x / scales, and x where a scale is 0."""
    return x / vnp.where(scales == 0, 1.0, scales)


def nearest(x: Array, scheme: str) -> Array:
    """Return the nearest value that a code stands for."""
    if scheme in _BOUNDS:
        return vnp.clip(vnp.round(x), *_BOUNDS[scheme])
    if scheme == "fp8":
        return vnp.clip(x, -LARGEST["fp8"], LARGEST["fp8"]).astype("float8_e4m3fn").astype("float32")
    steps = zip(_NF4_MIDDLES, np.diff(NF4_VALUES), strict=True)
    return sum([vnp.where(x > middle, step, 0.0) for middle, step in steps], start=vnp.full_like(x, NF4_VALUES[0]))


_NF4_MIDDLES = (NF4_VALUES[1:] + NF4_VALUES[:-1]) / 2


def groups_of(x: Array, layout: QuantizedLayout) -> Array:
    """Return rows as groups, of shape (…, groups, group_size).

    A last group that is not full repeats its last number.
    """
    lead, missing = x.shape[:-1], layout.groups * layout.group_size - layout.size
    padded = vnp.pad(x, [*[(0, 0)] * len(lead), (0, missing)], "edge") if missing else x
    return padded.reshape((*lead, layout.groups, layout.group_size))


def rows_of(groups: Array, layout: QuantizedLayout) -> Array:
    """Return groups as rows, of shape (…, size)."""
    return groups.reshape((*groups.shape[:-2], -1))[..., : layout.size]


def scales_by_range(groups: Array, scheme: str, symmetric: bool, dtype: np.dtype) -> Scales:
    """Return the scales of a dtype by which the range of each group is that of codes."""
    low, high = vnp.min(groups, -1), vnp.max(groups, -1)
    if symmetric:
        extreme = vnp.where(-low > high, low, high)  # with its sign
        return Scales(extreme / -8.0 if scheme == "int4" else vnp.abs(extreme) / LARGEST[scheme], None).rounded(dtype)
    least, greatest = _BOUNDS[scheme]
    scales = Scales((high - low) / (greatest - least), None).rounded(dtype).scales
    return Scales(scales, low - least * scales).rounded(dtype)


@functools.partial(jit, static_argnums=(2, 3, 4))
def scales_by_error(groups: Array, weights: Array, scheme: str, symmetric: bool, dtype: np.dtype) -> Scales:
    """Return scales of a dtype by which the weighted squares of errors are least.

    Candidates divide the range of a group by some more or less than that of codes, which clips the largest numbers or wastes codes. Each is
    improved by the scale and offset of the least squares for its codes (as `make_qx_quants` and `make_qkx2_quants` of GGML do).
    """
    start = scales_by_range(groups, scheme, symmetric, dtype)
    factors = np.concatenate([_FACTORS, -_FACTORS]) if symmetric and scheme == "int4" else _FACTORS

    def error(candidate: Scales) -> Array:
        return (weights * (groups - candidate.numbers(candidate.values(groups, scheme))) ** 2).sum(-1)

    def step(best: tuple[Array, Scales], factor: Array) -> tuple[tuple[Array, Scales], None]:
        scales = start.scales * factor
        offsets = None
        if start.offsets is not None:  # the middle of the codes stays at that of the numbers
            offsets = start.offsets + sum(_BOUNDS[scheme]) / 2 * (start.scales - scales)
        candidate = _least_squares(groups, weights, Scales(scales, offsets), scheme).rounded(dtype)
        new = error(candidate)
        is_better = new < best[0]
        chosen = [None if a is None or b is None else vnp.where(is_better, a, b) for a, b in zip(candidate, best[1], strict=True)]
        return (vnp.minimum(new, best[0]), Scales(*chosen)), None  # type: ignore[arg-type]  # scales are there

    (_, best), _ = lax.scan(step, (error(start), start), vnp.asarray(factors))
    return best


def _least_squares(groups: Array, weights: Array, scales: Scales, scheme: str) -> Scales:
    """Return the best scales and offsets for the codes that others choose."""
    v = scales.values(groups, scheme)
    vx, vv = (weights * v * groups).sum(-1), (weights * v * v).sum(-1)
    if scales.offsets is None:
        return Scales(vnp.where(vv > 0, vx / vnp.where(vv > 0, vv, 1.0), scales.scales), None)
    total, v_sum, x_sum = (vnp.broadcast_to(weights * a, groups.shape).sum(-1) for a in (1.0, v, groups))
    determinant = total * vv - v_sum * v_sum
    is_regular = determinant > 1e-6 * total * vv
    divisor = vnp.where(is_regular, determinant, 1.0)
    return Scales(
        vnp.where(is_regular, (total * vx - v_sum * x_sum) / divisor, scales.scales),
        vnp.where(is_regular, (vv * x_sum - v_sum * vx) / divisor, scales.offsets),
    )


def encoded(x: Array, layout: QuantizedLayout) -> Array:
    """Return the codes of numbers in units of their scales."""
    if layout.scheme == "int8":
        return nearest(x, "int8").astype(CODES["int8"])
    if layout.scheme == "fp8":
        return lax.bitcast_convert_type(vnp.clip(x, -LARGEST["fp8"], LARGEST["fp8"]).astype("float8_e4m3fn"), "uint8")
    if layout.scheme == "int4":
        codes = (nearest(x, "int4") + 8).astype("uint8")
    else:
        codes = sum([(x > middle).astype("uint8") for middle in _NF4_MIDDLES], start=vnp.zeros(x.shape, "uint8"))
    padded = vnp.pad(codes, [*[(0, 0)] * (x.ndim - 1), (0, 2 * layout.width - layout.size)])
    halves = padded.reshape((*x.shape[:-1], layout.width // 16, 2, 16))
    return (halves[..., 0, :] | (halves[..., 1, :] << 4)).reshape((*x.shape[:-1], layout.width))
