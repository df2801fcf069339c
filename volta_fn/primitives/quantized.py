"""Products with a matrix of quantised weights: `quantized_dot`.

A *scheme* says what a code stands for, and `QuantizedLayout` how codes are grouped. The matrix has `rows` and numbers along each row; a
*group* is some consecutive numbers of a row, with one scale and perhaps one offset:

    weight[row, i] = value(code[row, i]) * scale[row, i // group_size] + offset[row, i // group_size]

The codes of 4 bits are packed in blocks of 32 numbers, as in GGML: byte j of the 16 has number j in its lower half, and number j + 16 in
its upper half. The last block of a row is padded with zeros.

The matrix is not stored as floats, or for as long as one product takes: targets have routines, or the product is expanded to a loop over
blocks of rows, which may have all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import AxisData, Linear, Primitive, Zero
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.primitives.array_operations.operators import full_like
from volta_fn.primitives.contraction import dot_general, with_tangent
from volta_fn.primitives.data_movement.movement import (
    broadcast_in_dim,
    instantiate,
    moveaxis,
    reshape,
    stacked_in_front,
)  # fmt: skip
from volta_fn.primitives.data_movement.slicing import concatenate, pad, slice_in_dim
from volta_fn.primitives.elementwise.arithmetic import add, mul, neg, sub
from volta_fn.primitives.elementwise.cast import bitcast_convert_type, convert_element_type
from volta_fn.primitives.elementwise.selection import bitwise_and, eq, ne, select, shift_left, shift_right_logical
from volta_fn.primitives.reduction import reduce_sum
from volta_fn.primitives.scan import scan

# Schemes: the values of codes.

#: The 16 numbers of NF4, quantiles of the normal distribution between -1 and 1 (Dettmers et al., "QLoRA", 2023, appendix E).
NF4_VALUES = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334),
        *(-0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)
#: Numbers of a block of codes of 4 bits.
BLOCK = 32
#: The numbers of four-bit schemes, by their codes.
TABLES = {"int4": np.arange(-8, 8, dtype=np.float32), "nf4": NF4_VALUES}
#: The largest magnitude of a code's value.
LARGEST = {"int8": 127.0, "int4": 7.0, "nf4": 1.0, "fp8": 448.0}
#: The dtypes of codes in memory.
CODES = {"int8": np.dtype(np.int8), "int4": np.dtype(np.uint8), "nf4": np.dtype(np.uint8), "fp8": np.dtype(np.uint8)}
SCHEMES = tuple(CODES)


class QuantizedLayout(NamedTuple):
    """The scheme of a quantised matrix, the numbers of a row, and those of a group."""

    scheme: str
    size: int
    group_size: int

    @property
    def is_packed(self) -> bool:
        """Whether a byte holds two codes."""
        return self.scheme in TABLES

    @property
    def width(self) -> int:
        """The bytes of a row's codes."""
        return -(-self.size // BLOCK) * (BLOCK // 2) if self.is_packed else self.size

    @property
    def groups(self) -> int:
        """The groups of a row."""
        return -(-self.size // self.group_size) if self.size else 0

    def check(self, data: Any, scales: Any, offsets: Any) -> None:
        """Raise a typed error unless arrays have this layout.

        It is an `ArgumentError` if the layout itself is impossible, else a `ShapeError` or a `DTypeError`.
        """
        if self.scheme not in SCHEMES or not _is_integer(self.size, 0) or not _is_integer(self.group_size, 1):
            raise ArgumentError(f"quantised numbers have a scheme of {SCHEMES}, a size, and groups of at least one, got {self!r}")
        expected = (*data.shape[:-1], self.groups)
        if not data.shape or data.shape[-1] != self.width:
            raise ShapeError(f"quantised codes: rows of {self.size} numbers ({self.scheme}) have {self.width} bytes, got {data.shape}")
        if data.dtype != CODES[self.scheme]:
            raise DTypeError(f"quantised codes: {self.scheme} is stored as {CODES[self.scheme].name}, got {data.dtype.name}")
        for name, values in (("scales", scales), ("offsets", offsets)):
            if values is not None and (values.shape != expected or values.dtype not in dtypes.FLOATS):
                raise ShapeError(
                    f"quantised {name}: floats of shape {expected} are needed, one for each {self.group_size} numbers of a row of "
                    f"{self.size}, got {values.dtype.name} of shape {values.shape}"
                )


def _is_integer(value: Any, least: int) -> bool:
    return type(value) is int and value >= least


def pack_nibbles(codes: np.ndarray) -> np.ndarray:
    """Pack codes from 0 to 15 of the last axis, two to a byte, in blocks of 32."""
    padded = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % BLOCK)])
    halves = padded.reshape(*codes.shape[:-1], -1, 2, BLOCK // 2).astype(np.uint8)
    return (halves[..., 0, :] | (halves[..., 1, :] << 4)).reshape(*codes.shape[:-1], -1)


def unpack_nibbles(data: np.ndarray, size: int) -> np.ndarray:
    """Return the first `size` codes of packed rows."""
    blocks = data.reshape(*data.shape[:-1], data.shape[-1] // (BLOCK // 2), 1, BLOCK // 2)
    halves = np.concatenate([blocks & 15, blocks >> 4], -2)
    return halves.reshape(*data.shape[:-1], -1)[..., :size]


def decode(data: np.ndarray, layout: QuantizedLayout) -> np.ndarray:
    """Return the values of codes as float32, in NumPy."""
    if layout.is_packed:
        return TABLES[layout.scheme][unpack_nibbles(data, layout.size)]
    return (data.view(ml_dtypes.float8_e4m3fn) if layout.scheme == "fp8" else data).astype(np.float32)


def scaled(values: np.ndarray, scales: np.ndarray, offsets: np.ndarray | None, group_size: int) -> np.ndarray:
    """Return values times scales plus offsets, in the dtype of `values`, in NumPy."""
    size = values.shape[-1]
    full = [None if x is None else np.repeat(x.astype(values.dtype), group_size, -1)[..., :size] for x in (scales, offsets)]
    return values * full[0] if full[1] is None else values * full[0] + full[1]


# The same as operations of arrays, for expansions: elementwise, so that they fuse.


def decoded(data: Array, layout: QuantizedLayout, dtype: np.dtype) -> Array:
    """Return the values of codes as an array of floats."""
    if layout.scheme == "int8":
        return convert_element_type(data, dtype)
    if layout.scheme == "fp8":
        return convert_element_type(_float8(data), dtype)
    codes = reshape(_by_block_of_codes(data, layout, 1), (*data.shape[:-1], 2 * layout.width))
    return _numbers(slice_in_dim(codes, 0, layout.size, axis=data.ndim - 1), layout, dtype)


def _by_block_of_codes(data: Array, layout: QuantizedLayout, groups: int) -> Array:
    """Return packed codes by groups and blocks.

    The array has the shape (…, groups, blocks of a group, halves, numbers of a half).
    """
    blocks = (*data.shape[:-1], groups, layout.width // (BLOCK // 2) // groups, 2, BLOCK // 2)
    rank = len(blocks)
    halves = broadcast_in_dim(reshape(data, (*blocks[:-2], BLOCK // 2)), blocks, (*range(rank - 2), rank - 1))
    shifts = broadcast_in_dim(np.array([0, 4], np.uint8), blocks, (rank - 2,))
    return bitwise_and(shift_right_logical(halves, shifts), _like(halves, 15))


def _numbers(codes: Array, layout: QuantizedLayout, dtype: np.dtype) -> Array:
    """Return the numbers of codes of 4 bits."""
    if layout.scheme == "nf4":
        return _chosen(codes, NF4_VALUES, dtype)
    signed = convert_element_type(codes, np.int32)
    return convert_element_type(sub(signed, _like(signed, 8)), dtype)


def _like(x: Array, value: Any) -> Array:
    return full_like(x, np.asarray(value, x.dtype))


def _chosen(codes: Array, table: np.ndarray, dtype: np.dtype) -> Array:
    """Return the numbers of a table by their codes, by a tree of selections."""
    level = [full_like(codes, np.asarray(value, dtype), dtype) for value in table]
    bit = 1
    while len(level) > 1:
        is_set = ne(bitwise_and(codes, _like(codes, bit)), _like(codes, 0))
        level = [select(is_set, odd, even) for even, odd in zip(level[::2], level[1::2], strict=True)]
        bit *= 2
    return level[0]


def _float8(data: Array) -> Array:
    """Return the float32 values of float8_e4m3fn's bits.

    They have 4 bits of exponent, biased by 7, and 3 of significand.
    """
    bits = convert_element_type(data, np.int32)
    magnitude = bitwise_and(bits, _like(bits, 0x7F))
    exponent = shift_right_logical(magnitude, _like(bits, 3))
    normal = bitcast_convert_type(shift_left(add(magnitude, _like(bits, (127 - 7) << 3)), _like(bits, 20)), np.float32)
    small = convert_element_type(magnitude, np.float32)
    value = select(eq(exponent, _like(bits, 0)), mul(small, _like(small, 2.0**-9)), normal)
    value = select(eq(magnitude, _like(bits, 0x7F)), _like(value, np.nan), value)
    return select(ne(bitwise_and(bits, _like(bits, 0x80)), _like(bits, 0)), neg(value), value)


def per_number(by_group: Array, layout: QuantizedLayout, dtype: np.dtype) -> Array:
    """Repeat the numbers of groups for each number of a row."""
    shape, rank = (*by_group.shape, layout.group_size), by_group.ndim
    repeated = broadcast_in_dim(convert_element_type(by_group, dtype), shape, range(rank))
    row = reshape(repeated, (*by_group.shape[:-1], layout.groups * layout.group_size))
    return slice_in_dim(row, 0, layout.size, axis=rank - 1)


def dequantized(data: Array, scales: Array, offsets: Array | None, layout: QuantizedLayout, dtype: np.dtype) -> Array:
    """Return quantised rows as floats, computed in float32 or wider and rounded once."""
    wide = dtypes.accumulator(dtype)
    if layout.is_packed and layout.groups > 0 and layout.size == layout.groups * layout.group_size and layout.group_size % BLOCK == 0:
        # By groups and blocks, so that all indices are affine, and one kernel computes it.
        values = _numbers(_by_block_of_codes(data, layout, layout.groups), layout, wide)
        repeated = [
            None if x is None else broadcast_in_dim(convert_element_type(x, wide), values.shape, range(x.ndim)) for x in (scales, offsets)
        ]
    else:
        values = decoded(data, layout, wide)
        repeated = [None if x is None else per_number(x, layout, wide) for x in (scales, offsets)]
    scale, offset = repeated
    assert scale is not None
    values = mul(values, scale) if offset is None else add(mul(values, scale), offset)
    return convert_element_type(reshape(values, (*data.shape[:-1], layout.size)), dtype)


# The expansion: a loop over blocks of rows, of which one at a time exists as floats.

#: Numbers of the block of rows that exists as floats, unless a target chooses others.
BLOCK_NUMBERS = 1 << 20
#: A block's rows are a multiple of these.
_ROW_STEP = 32


def block_rows(rows: int, size: int, most: int = BLOCK_NUMBERS) -> int:
    """Return how many rows of a matrix are dequantised at a time.

    These are all of a matrix of at most `most` numbers.
    """
    if rows * size <= most:
        return max(rows, 1)
    return max(_ROW_STEP, most // max(size, 1) // _ROW_STEP * _ROW_STEP)


def expanded(
    x: Array, data: Array, scales: Array, *offsets: Array, layout: QuantizedLayout, transposed: bool, most: int = BLOCK_NUMBERS
) -> Array:
    """Return what `quantized_dot` means, by products with blocks of rows.

    A matrix of at most `most` numbers is one block.
    """
    operands = (x, data, scales, *offsets)
    if x.ndim == 3:
        if x.shape[0] == 1:
            return reshape(
                expanded(*[reshape(a, a.shape[1:]) for a in operands], layout=layout, transposed=transposed, most=most),
                _shape(operands, layout, transposed),
            )
        stacked: Array = scan(lambda _, each: (None, expanded(*each, layout=layout, transposed=transposed, most=most)), None, operands)[1]
        return stacked
    rows = data.shape[0]
    at_once = block_rows(rows, layout.size, most)
    blocks, rest = divmod(rows, at_once)
    if blocks <= 1 and not rest:
        return _by_block(x, (data, scales, *offsets), layout, transposed)
    end = blocks * at_once
    body, tail = [[slice_in_dim(a, *limits, axis=0) for a in operands[1:]] for limits in ((0, end), (end, rows))]
    stacks = [reshape(a, (blocks, at_once, a.shape[1])) for a in body]
    if transposed:
        columns = moveaxis(reshape(slice_in_dim(x, 0, end, axis=1), (x.shape[0], blocks, at_once)), 1, 0)
        wide = dtypes.accumulator(x.dtype)

        def accumulate(total: Array, block: Any) -> tuple[Array, None]:
            return add(total, _by_block(block[0], block[1], layout, True, wide)), None

        start = full_like(x, np.zeros((), wide), wide, (x.shape[0], layout.size))
        total: Array = scan(accumulate, start, (columns, stacks))[0]
        if rest:
            total = add(total, _by_block(slice_in_dim(x, end, rows, axis=1), tail, layout, True, wide))
        return convert_element_type(total, x.dtype)
    outs = scan(lambda _, block: (None, _by_block(x, block, layout, False)), None, stacks)[1]
    out = reshape(moveaxis(outs, 0, 1), (x.shape[0], end))
    return out if not rest else concatenate([out, _by_block(x, tail, layout, False)], 1)


def _by_block(x: Array, block: Sequence[Array], layout: QuantizedLayout, transposed: bool, out: np.dtype | None = None) -> Array:
    data, scales, *offsets = block
    weights = dequantized(data, scales, offsets[0] if offsets else None, layout, x.dtype)
    return dot_general(x, weights, (((1,), (0 if transposed else 1,)), ((), ())), preferred_element_type=out)


# The primitive.
#
# ``quantized_dot(x, data, scales[, offsets])`` multiplies rows by a quantised matrix W of shape (rows, size): x of shape (m, size) gives
# x Wᵀ, (m, rows); `transposed`, x of shape (m, rows) gives x W, (m, size). All operands may have one leading axis, of examples. The result
# has the dtype of x, and sums are of its accumulator. It is linear in x, and in scales and offsets together.


def _shape(operands: Sequence[Any], layout: QuantizedLayout, transposed: bool) -> tuple[int, ...]:
    x, data = operands[:2]
    return (*x.shape[:-1], layout.size if transposed else data.shape[-2])


def _abstract(
    x: ShapedArray, data: ShapedArray, scales: ShapedArray, *offsets: ShapedArray, layout: QuantizedLayout, transposed: bool
) -> ShapedArray:
    if x.dtype not in dtypes.FLOATS:
        raise DTypeError(f"quantized_dot: the left operand is float, got {x}; convert it with astype")
    layout.check(data, scales, offsets[0] if offsets else None)
    contracted = data.shape[-2] if transposed else layout.size
    if x.ndim != data.ndim or x.ndim not in (2, 3) or x.shape[-1] != contracted or x.shape[:-2] != data.shape[:-2]:
        raise ShapeError(f"quantized_dot: rows of {contracted} numbers are multiplied by a matrix with codes {data.shape}, got {x.shape}")
    return ShapedArray(_shape((x, data), layout, transposed), x.dtype)


def _evaluate(
    x: np.ndarray, data: np.ndarray, scales: np.ndarray, *offsets: np.ndarray, layout: QuantizedLayout, transposed: bool
) -> np.ndarray:
    """Evaluate by blocks of rows."""
    wide = dtypes.accumulator(x.dtype)
    left, shape = x.astype(wide, copy=False), _shape((x, data), layout, transposed)
    out = np.zeros(shape, wide)
    at_once = block_rows(data.shape[-2], layout.size)
    for index in np.ndindex(data.shape[:-2]):
        for start in range(0, data.shape[-2], at_once):
            block = slice(start, start + at_once)
            codes, *by_group = [a[index][block] for a in (data, scales, *offsets)]
            weights = scaled(
                decode(codes, layout).astype(wide, copy=False), by_group[0], by_group[1] if offsets else None, layout.group_size
            )
            if transposed:
                out[index] += left[index][:, block] @ weights
            else:
                out[index][:, block] = left[index] @ weights.T
    return out.astype(x.dtype, copy=False)


def _jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Array, Any]:
    out = bind(quantized_dot_p, *primals, **params)
    (x, data, *by_group), (moved, _, *moved_groups) = primals, tangents
    terms = []
    if type(moved) is not Zero:
        terms.append(bind(quantized_dot_p, moved, data, *by_group, **params))
    if any(type(t) is not Zero for t in moved_groups):
        terms.append(bind(quantized_dot_p, x, data, *map(instantiate, moved_groups), **params))
    return with_tangent(out, terms)


def _transpose(ct: Any, x: Any, data: Any, *by_group: Any, layout: QuantizedLayout, transposed: bool) -> list[Any]:
    if type(x) is Linear:
        to_x = bind(quantized_dot_p, ct, data, *by_group, layout=layout, transposed=not transposed)
        return [to_x, None, *[None] * len(by_group)]
    left, right = (x, ct) if transposed else (ct, x)
    stacked = [(0,), (0,)] if left.ndim == 3 else [(), ()]
    wide = dtypes.accumulator(left.dtype)
    to_weights = dot_general(left, right, (((left.ndim - 2,), (left.ndim - 2,)), (stacked[0], stacked[1])), preferred_element_type=wide)
    terms = [mul(to_weights, decoded(data, layout, wide)), to_weights]
    gradients = [convert_element_type(_sum_of_groups(term, layout), g.dtype) for term, g in zip(terms, by_group, strict=False)]
    return [None, None, *gradients]


def _sum_of_groups(x: Array, layout: QuantizedLayout) -> Array:
    missing = layout.groups * layout.group_size - layout.size
    padded = pad(x, np.zeros((), x.dtype), [*[(0, 0, 0)] * (x.ndim - 1), (0, missing, 0)]) if missing else x
    return reduce_sum(reshape(padded, (*x.shape[:-1], layout.groups, layout.group_size)), (x.ndim,))


def _batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], **params: Any) -> tuple[Array, int]:
    """Batch by more rows of x, or if examples have matrices of their own by an axis."""
    x, *matrix = args
    if all(dim is None for dim in dims[1:]):
        x = moveaxis(x, dims[0] or 0, x.ndim - 3)  # in front of the rows
        rows = reshape(x, (*x.shape[:-3], x.shape[-3] * x.shape[-2], x.shape[-1]))
        out = bind(quantized_dot_p, rows, *matrix, **params)
        return reshape(out, (*x.shape[:-1], out.shape[-1])), x.ndim - 3
    front = stacked_in_front(axis, args, dims)
    lead = front[0].shape[:-2]
    out = bind(quantized_dot_p, *[reshape(a, (int(np.prod(lead)), *a.shape[-2:])) for a in front], **params)
    return reshape(out, (*lead, *out.shape[1:])), 0


quantized_dot_p = Primitive("quantized_dot", _abstract, evaluate=_evaluate, jvp=_jvp, transpose=_transpose, batch=_batch)


def quantized_dot(x: Any, data: Any, scales: Any, offsets: Any, layout: QuantizedLayout, transposed: bool = False) -> Array:
    """Multiply rows by a quantised matrix (rows, size): x Wᵀ, or `transposed` x W.

    Leading axes of `data` are axes of examples that `x` shares; without them, `x` has any shape (…, size).
    """
    value = as_value(x)
    matrix = [as_value(a) for a in (data, scales, *([] if offsets is None else [offsets]))]
    params: dict[str, Any] = {"layout": layout, "transposed": transposed}
    lead = matrix[0].shape[:-2]
    if not lead:
        out = bind(quantized_dot_p, reshape(value, (int(np.prod(value.shape[:-1])), *value.shape[-1:])), *matrix, **params)
        return reshape(out, (*value.shape[:-1], out.shape[-1]))
    if value.ndim != len(lead) + 2:
        raise ShapeError(f"quantized_dot: a stack of matrices {lead} is multiplied by as many of rows, got {value.shape}")
    out = bind(quantized_dot_p, *[reshape(a, (int(np.prod(lead)), *a.shape[-2:])) for a in (value, *matrix)], **params)
    return reshape(out, (*lead, *out.shape[1:]))
