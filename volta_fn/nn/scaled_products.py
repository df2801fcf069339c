"""Products of numbers of 8 or 4 bits that share a scale block by block.

A *block* is some consecutive numbers along the contracting axis. The formats are MXFP8 (OCP Microscaling Formats 1.0: 32 numbers, a power
of two) and NVFP4 (16 numbers, a scale of 8 bits, and one scale for all). Numbers and scales are stored in few bits; products are computed
in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

import volta_fn.numpy as vnp
from volta_fn import dtypes, lax
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.transforms.custom.custom_derivatives import custom_vjp

__all__ = ["get_scaled_dot_general_config", "scaled_dot_general", "scaled_matmul"]


class BlockScaleConfig(NamedTuple):
    """How numbers are quantised block by block.

    Attributes:
        mode: the format, "mxfp8" or "nvfp4".
        block_size: how many numbers share a scale.
        data_type: the dtype of the numbers.
        scale_type: the dtype of the scales.
        global_scale: one more scale for all numbers (nvfp4), of shape (1,).
        infer_only: whether there are no gradients to be quantised.
    """

    mode: str
    block_size: int
    data_type: Any
    scale_type: Any
    global_scale: Any = None
    infer_only: bool = False


def get_scaled_dot_general_config(mode: Literal["nvfp4", "mxfp8"], global_scale: Any = None) -> BlockScaleConfig:
    """Return the configuration of a format for `scaled_dot_general`.

    Args:
        mode: "mxfp8" or "nvfp4".
        global_scale: the scale of all numbers, for nvfp4: float32 of shape (1,); None: 1.

    Raises `ArgumentError` for another mode, or a global scale with mxfp8.

    >>> nn.get_scaled_dot_general_config("mxfp8").block_size
    32
    """
    if mode == "nvfp4":
        scale = vnp.ones((1,), "float32") if global_scale is None else as_value(global_scale)
        return BlockScaleConfig(mode, 16, dtypes.as_dtype("float4_e2m1fn"), dtypes.as_dtype("float8_e4m3fn"), scale)
    if mode != "mxfp8":
        raise ArgumentError(f"get_scaled_dot_general_config: mode={mode!r} is neither 'nvfp4' nor 'mxfp8'")
    if global_scale is not None:
        raise ArgumentError("get_scaled_dot_general_config: mxfp8 has no global scale; leave global_scale out, or use nvfp4")
    return BlockScaleConfig(mode, 32, dtypes.as_dtype("float8_e4m3fn"), dtypes.as_dtype("float8_e8m0fnu"))


def scaled_matmul(lhs: Any, rhs: Any, lhs_scales: Any, rhs_scales: Any, preferred_element_type: Any = np.float32) -> Array:
    """Multiply matrices whose numbers share scales block by block.

    Args:
        lhs: numbers of shape (b, m, k).
        rhs: numbers of shape (b, n, k).
        lhs_scales: a scale for each block along the last axis, of shape (b, m, k / block).
        rhs_scales: likewise, of shape (b, n, k / block), where blocks may have another size.
        preferred_element_type: the dtype of the result.

    Returns an array of shape (b, m, n). Raises `ShapeError` for shapes that do not fit.

    >>> a, b = jnp.array([[[1.0, 2.0, 3.0]]]), jnp.array([[[4.0, 5.0, 6.0]]])
    >>> nn.scaled_matmul(a, b, jnp.full((1, 1, 1), 0.5), jnp.full((1, 1, 1), 0.5))
    Array([[[8.]]], dtype=float32)
    """
    a, b = _scaled("lhs", lhs, lhs_scales), _scaled("rhs", rhs, rhs_scales)
    if a.shape[0] != b.shape[0] or a.shape[2] != b.shape[2]:
        raise ShapeError(f"scaled_matmul: lhs of shape {a.shape} and rhs of shape {b.shape} differ in their first or last axis")
    product = lax.dot_general(a, b, (((2,), (2,)), ((0,), (0,))))
    return product.astype(preferred_element_type)


def _scaled(name: str, numbers: Any, scales: Any) -> Array:
    """Return numbers times their scales, in float32."""
    x, by_block = as_value(numbers), as_value(scales)
    if x.ndim != 3 or by_block.ndim != 3 or x.shape[:2] != by_block.shape[:2] or not by_block.shape[2] or x.shape[2] % by_block.shape[2]:
        raise ShapeError(f"scaled_matmul: {name} of shape {x.shape} has no blocks for scales of shape {by_block.shape}")
    return x.astype("float32") * vnp.repeat(by_block.astype("float32"), x.shape[2] // by_block.shape[2], axis=2)


def scaled_dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: Any,
    preferred_element_type: Any = np.float32,
    configs: Sequence[BlockScaleConfig] | None = None,
    implementation: None = None,
) -> Array:
    """Contract arrays after quantising both block by block.

    Gradients are products of quantised numbers, too (nvfp4: of the numbers as they are, zero where a number was clipped).

    Args:
        lhs, rhs: floats; the contracting axes together are a multiple of the block's size.
        dimension_numbers: as in `lax.dot_general`.
        preferred_element_type: float32, bfloat16 or float16.
        configs: for `lhs`, `rhs`, and gradients; None: mxfp8.
        implementation: must be None.

    Raises:
        ArgumentError: an implementation, or other than three configurations.
        DTypeError: another dtype of results.
        ShapeError: a count of contracted numbers that is no multiple of a block's.

    >>> x = jnp.ones((1, 2, 32))
    >>> nn.scaled_dot_general(x, x, (((2,), (2,)), ((0,), (0,))))
    Array([[[32., 32.],
            [32., 32.]]], dtype=float32)
    """
    if implementation is not None:
        raise ArgumentError(f"scaled_dot_general: implementation={implementation!r} is not known here; leave it out")
    dtype = dtypes.as_dtype(preferred_element_type)
    if dtype.name not in ("float32", "bfloat16", "float16"):
        raise DTypeError(f"scaled_dot_general: results are float32, bfloat16 or float16, not {dtype.name}")
    chosen = tuple(configs) if configs is not None else (get_scaled_dot_general_config("mxfp8"),) * 3
    if len(chosen) != 3:
        raise ArgumentError(f"scaled_dot_general: configs are for lhs, rhs and gradients, got {len(chosen)}")
    x, y = as_value(lhs), as_value(rhs)
    (x_contract, y_contract), (x_batch, y_batch) = dimension_numbers
    x_rows, x_free = _as_matrices(x, x_contract, x_batch)
    y_rows, y_free = _as_matrices(y, y_contract, y_batch)
    scales = tuple(None if c.global_scale is None else as_value(c.global_scale) for c in chosen)
    formats = tuple(c._replace(global_scale=None) for c in chosen)
    product = _product(formats, x_rows, y_rows, scales)
    return product.astype(dtype).reshape((*[x.shape[i] for i in x_batch], *x_free, *y_free))


def _as_matrices(x: Array, contract: Sequence[int], batch: Sequence[int]) -> tuple[Array, list[int]]:
    """Return an operand as (batch, free, contracting), and the sizes of the free axes."""
    free = [i for i in range(x.ndim) if i not in (*contract, *batch)]
    sizes = [[x.shape[i] for i in axes] for axes in (batch, free, contract)]
    return vnp.transpose(x, (*batch, *free, *contract)).reshape([int(np.prod(s)) for s in sizes]), sizes[1]


def _quantised(x: Array, config: BlockScaleConfig, global_scale: Array | None) -> tuple[Array, Array]:
    """Return the numbers of a format and the scale of each block."""
    count = x.shape[-1]
    if not count or count % config.block_size:
        raise ShapeError(
            f"scaled_dot_general: {count} contracted numbers are no multiple of the {config.block_size} of a block ({config.mode})"
        )
    largest = float(dtypes.finfo(config.data_type).max)
    blocks = x.astype("float32").reshape((*x.shape[:-1], count // config.block_size, config.block_size))
    if global_scale is not None:
        blocks = blocks / global_scale
    ratio = vnp.max(vnp.abs(blocks), axis=-1, keepdims=True) / largest
    if config.mode == "mxfp8":
        scales = _power_of_two(ratio).astype(config.scale_type)
    else:
        scales = vnp.minimum(ratio, float(dtypes.finfo(config.scale_type).max)).astype(config.scale_type)
    wide = scales.astype("float32")
    numbers = vnp.where(wide > 0, blocks / vnp.where(wide > 0, wide, 1.0), blocks * vnp.inf)
    numbers = vnp.clip(vnp.where(blocks == 0, 0.0, numbers), -largest, largest)
    return numbers.astype(config.data_type).reshape(x.shape), vnp.squeeze(scales, -1)


def _power_of_two(x: Array) -> Array:
    """Return the least power of two that is not below x, from 2^-127 on."""
    mantissa, exponent = vnp.frexp(x)
    exponent = vnp.where(mantissa == 0.5, exponent - 1, exponent)
    return vnp.ldexp(vnp.float32(1.0), vnp.where(x == 0, -127, vnp.maximum(exponent, -127)))


def _forward(formats: Any, x: Array, y: Array, scales: Any) -> Array:
    quantised = [_quantised(*given) for given in zip((x, y), formats[:2], scales[:2], strict=True)]
    product = scaled_matmul(*[q[0] for q in quantised], *[q[1] for q in quantised])
    for scale in scales[:2]:
        product = product if scale is None else product * scale
    return product


def _backward(formats: Any, saved: Any, cotangent: Array) -> tuple[Any, ...]:
    x, y, scales = saved
    y_across, x_across = vnp.swapaxes(y, 1, 2), vnp.swapaxes(x, 1, 2)
    if formats[2].mode == "nvfp4":
        x_bar, y_bar = vnp.matmul(cotangent, y), vnp.matmul(vnp.swapaxes(cotangent, 1, 2), x)
        x_bar, y_bar = _where_kept(x, x_bar, formats[0], scales[0]), _where_kept(y, y_bar, formats[1], scales[1])
    else:
        x_bar = _forward((formats[2], formats[1]), cotangent, y_across, (scales[2], scales[1]))
        y_bar = _forward((formats[2], formats[0]), vnp.swapaxes(cotangent, 1, 2), x_across, (scales[2], scales[0]))
    return x_bar.astype(x.dtype), y_bar.astype(y.dtype), tuple(None if s is None else vnp.zeros_like(s) for s in scales)


def _where_kept(x: Array, cotangent: Array, config: BlockScaleConfig, global_scale: Any) -> Array:
    """Return cotangents, zero where a number is beyond the format's range."""
    limit = float(dtypes.finfo(config.data_type).max) * float(dtypes.finfo(config.scale_type).max) * global_scale
    return vnp.where(vnp.abs(x) <= limit, cotangent, 0.0)


_product: Any = custom_vjp(_forward, nondiff_argnums=(0,))
_product.defvjp(lambda formats, x, y, scales: (_forward(formats, x, y, scales), (x, y, scales)), _backward)
