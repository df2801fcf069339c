"""The array of quantised numbers that takes the place of a weight."""

from __future__ import annotations

import dataclasses
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from volta_fn import dtypes, lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, ConcreteArray, as_value
from volta_fn.core.aval import ShapedArray, Typed, check_option
from volta_fn.core.trace import EVAL, current_trace
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from volta_fn.jit.function import jit
from volta_fn.primitives.quantized import CODES, LARGEST, NF4_VALUES, SCHEMES, QuantizedLayout, dequantized, quantized_dot
from volta_fn.transforms.custom_derivatives import custom_jvp
from volta_fn.tree.registry import FIELDS

__all__ = ["PermutedArray", "QuantizedArray", "quantize_array"]

# Rounding.

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


# Arrays.

_FLOAT32 = np.dtype(np.float32)
#: The fields that are children.
_DATA = ("data", "scales", "offsets")

#: The names of schemes.
Scheme = Literal["int8", "int4", "nf4", "fp8"]

#: The numbers that share a scale by default; None: all numbers that are summed for an output.
_GROUP_SIZES: dict[str, int | None] = {"int8": None, "fp8": None, "int4": 64, "nf4": 64}


class WeightArray(Typed, ABC):
    """What takes the place of a layer's weight: an array by how it multiplies."""

    __array_ufunc__ = None  # so that NumPy arrays leave ``x @ w`` to it

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    @abstractmethod
    def T(self) -> Self:
        """The transpose of a matrix."""

    @abstractmethod
    def dequantize(self, dtype: Any = None) -> Array:
        """Return the numbers as floats, of `self.dtype` unless another is given."""

    @abstractmethod
    def take(self, indices: Any) -> Array:
        """Return entries along the first axis as floats, as `numpy.take` does."""

    @abstractmethod
    def __rmatmul__(self, other: Any) -> Array:
        """Return ``other @ self``."""

    def __matmul__(self, other: Any) -> Array:
        """Return ``self @ other``, in the dtype of `other`."""
        x = as_value(other)
        return self.T.__rmatmul__(x) if x.ndim == 1 else vnp.swapaxes(self.T.__rmatmul__(vnp.swapaxes(x, -1, -2)), -1, -2)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class QuantizedArray(WeightArray):
    """An array of numbers of 8 or 4 bits, with a scale for each group of them.

    A group is some consecutive numbers along the axes that products sum over; its numbers are ``value(code) * scale``, or
    ``value(code) * scale + offset``. It is a pytree of `data`, `scales` and `offsets`, so that transforms, optimizers, `jit` with donation
    and files take it like other parameters. It multiplies (``x @ w``, ``w @ x``, ``w.T``), selects rows (`take`) and converts
    (`dequantize`); a product converts its numbers where they are used, so that the floats of one product at most are in memory.

    Attributes:
        data: the codes, of shape (…, rows, bytes of a row): int8, or for other schemes uint8. Codes of 4 bits are two to a byte, in blocks
            of 32 numbers: the lower halves of 16 bytes, then the upper ones.
        scales: floats of shape (…, rows, groups of a row).
        offsets: likewise; None where numbers are symmetric about 0.
        scheme: "int8", "int4", "nf4" (QLoRA's quantiles of the normal distribution) or "fp8" (float8_e4m3fn).
        inner: the sizes of the axes that a row of codes holds.
        group_size: the numbers of a group.
        rows_last: whether the axis of the rows is the last one, after `inner`, as in the weight of `Linear`.
        dtype: the dtype that the numbers stand for.
        activations: "int8" where products round the other operand to 8 bits, too, row by row; else None.

    Raises `ShapeError`, `DTypeError` or `ArgumentError` for arrays that do not fit each other.

    >>> w = nn.quantize_array(vf.random.normal(vf.random.key(0), (64, 3)), "int4", axis=0)
    >>> w
    QuantizedArray(int4[64,3], group_size=64, dtype=float32)
    >>> (vf.numpy.ones((2, 64)) @ w).shape, w.data.nbytes
    ((2, 3), 96)
    """

    data: Any
    scales: Any
    offsets: Any = None
    scheme: str = "int8"
    inner: tuple[int, ...] = ()
    group_size: int = 1
    rows_last: bool = False
    dtype: np.dtype = _FLOAT32
    activations: str | None = None

    def __post_init__(self) -> None:
        for name in _DATA:
            value = getattr(self, name)
            if not (hasattr(value, "shape") and hasattr(value, "dtype")) and (name != "offsets" or value is not None):
                raise ArgumentTypeError(f"QuantizedArray: {name} is an array, got {type(value).__name__} {value!r:.60}")
        check_option(self.scheme, "QuantizedArray: the scheme", SCHEMES)
        if self.group_size < 1:
            raise ArgumentError(f"QuantizedArray: a group has at least one number, got group_size={self.group_size}")
        check_option(self.activations, "QuantizedArray: activations", (None, "int8"))
        object.__setattr__(self, "dtype", dtypes.as_dtype(self.dtype))
        if self.rows_last and self.data.ndim < 2:
            raise ShapeError(f"QuantizedArray: codes have an axis of rows and one of bytes, got {self.data.shape}")
        self.layout.check(self.data, self.scales, self.offsets)
        if self.activations is not None and (self.scheme != "int8" or self.layout.groups > 1 or self.offsets is not None):
            raise ArgumentError(
                "QuantizedArray: activations='int8' needs symmetric weights of the scheme 'int8' with one scale a row, which is "
                "group_size=None"
            )

    @property
    def layout(self) -> QuantizedLayout:
        """The scheme, and how codes are grouped."""
        return QuantizedLayout(self.scheme, math.prod(self.inner), self.group_size)

    @property
    def aval(self) -> ShapedArray:
        """The shape and the dtype that the numbers stand for."""
        lead = tuple(self.data.shape[:-1])
        shape = (*lead[:-1], *self.inner, lead[-1]) if self.rows_last else (*lead, *self.inner)
        return ShapedArray(shape, self.dtype)

    @property
    def nbytes(self) -> int:
        """The bytes of codes, scales and offsets."""
        return sum([x.size * x.dtype.itemsize for x in (self.data, self.scales, self.offsets) if x is not None])

    @property
    def zero_points(self) -> Any:
        """The code of 0 in each group, as a float; None where all are 0."""
        return None if self.offsets is None else -self.offsets.astype("float32") / self.scales.astype("float32")

    @property
    def T(self) -> Self:
        """The transpose of a matrix, which shares the codes.

        Raises `ShapeError` for other arrays.
        """
        if self.ndim != 2:
            raise ShapeError(f"QuantizedArray.T: a matrix is needed, got shape {self.shape}")
        return dataclasses.replace(self, rows_last=not self.rows_last)

    mT = T

    def dequantize(self, dtype: Any = None) -> Array:
        """Return the numbers as floats, of `self.dtype` unless another is given."""
        rows = dequantized(*self._arrays(), self.layout, self.dtype if dtype is None else dtypes.as_dtype(dtype))
        out = rows.reshape((*rows.shape[:-1], *self.inner))
        return vnp.moveaxis(out, out.ndim - 1 - len(self.inner), -1) if self.rows_last else out

    def take(self, indices: Any) -> Array:
        """Return entries along the first axis as floats, as `numpy.take` does.

        The result has shape (*indices.shape, *shape[1:]).

        Raises `ShapeError` unless codes are stored row by row along that axis.
        """
        if self.rows_last or self.data.ndim != 2:
            raise ShapeError(f"QuantizedArray.take: the rows of {self!r} are not along its first axis; dequantize() it")
        data, scales, offsets = self._arrays()
        codes, by_group = vnp.take(data, indices, axis=0), vnp.take(scales, indices, axis=0)
        rows = dequantized(codes, by_group, None if offsets is None else vnp.take(offsets, indices, axis=0), self.layout, self.dtype)
        return rows.reshape((*rows.shape[:-1], *self.inner))

    def __rmatmul__(self, other: Any) -> Array:
        """Return ``other @ self``, in the dtype of `other`."""
        x = as_value(other)
        if len(self.inner) != 1 or self.ndim < 2:
            raise ShapeError(f"QuantizedArray: products are of matrices, got {self!r}; dequantize() it")
        if x.ndim == 0 or x.shape[-1] != self.shape[-2]:
            raise ShapeError(f"matmul: the last axis of the left operand has shape {x.shape}, but {self!r} needs {self.shape[-2]}")
        if x.dtype not in dtypes.FLOATS:
            raise DTypeError(f"matmul: quantised weights multiply floats, got {x.aval}; convert with astype")
        if self.activations is not None and self.rows_last:
            return _int8_product(x, self.data, self.scales)
        return quantized_dot(x, *self._arrays(), self.layout, transposed=not self.rows_last)

    def __repr__(self) -> str:
        try:
            text = repr(self.aval)
        except AttributeError:  # of a tree whose leaves are other objects
            return f"QuantizedArray({self.data!r}, {self.scales!r}, {self.offsets!r})"
        sizes = text[text.index("[") :]
        note = "" if self.activations is None else f", activations={self.activations}"
        return f"QuantizedArray({self.scheme}{sizes}, group_size={self.group_size}, dtype={self.dtype.name}{note})"

    def _arrays(self) -> tuple[Array, Array, Array | None]:
        return as_value(self.data), as_value(self.scales), None if self.offsets is None else as_value(self.offsets)


_STATIC = tuple(field.name for field in dataclasses.fields(QuantizedArray) if field.name not in _DATA)


_KEYS = tuple(tree.GetAttrKey(name) for name in _DATA)


def _flatten(array: QuantizedArray) -> tuple[Any, tuple[Any, ...]]:
    fields = array.__dict__
    return zip(_KEYS, (fields["data"], fields["scales"], fields["offsets"]), strict=True), tuple([fields[name] for name in _STATIC])


def _unflatten(static: Sequence[Any], children: Sequence[Any]) -> QuantizedArray:
    """Rebuild the array; children are unchecked, because leaves may be any objects."""
    array = object.__new__(QuantizedArray)
    array.__dict__.update(zip(_DATA, children, strict=True))
    array.__dict__.update(zip(_STATIC, static, strict=True))
    return array


tree.register_pytree_with_keys(QuantizedArray, _flatten, _unflatten)
FIELDS[QuantizedArray] = _DATA, _STATIC


# Products in 8-bit integers: rows of x get a scale each.


@custom_jvp
def _int8_product(x: Array, data: Array, scales: Array) -> Array:
    wide = x.astype("float32")
    largest = vnp.max(vnp.abs(wide), axis=-1, keepdims=True) if wide.shape[-1] else vnp.zeros((*wide.shape[:-1], 1), "float32")
    step = largest / LARGEST["int8"]
    codes = vnp.round(wide / vnp.where(step > 0, step, 1.0)).astype("int8")
    by_row = scales.astype("float32").sum(-1) if scales.shape[-1] else vnp.zeros(scales.shape[:-1], "float32")
    return (_integer_sums(codes, data) * step * by_row).astype(x.dtype)


#: The most products of codes whose sum 32 bits hold.
_MOST_PRODUCTS = 1 << 17


def _integer_sums(codes: Array, data: Array) -> Array:
    """Return codes @ dataᵀ, of rows of int8, as float32."""
    numbers, size = (((codes.ndim - 1,), (1,)), ((), ())), codes.shape[-1]
    if size <= _MOST_PRODUCTS:
        return lax.dot_general(codes, data, numbers, preferred_element_type="int32").astype("float32")
    first, rest = ([x[..., part] for x in (codes, data)] for part in (slice(_MOST_PRODUCTS), slice(_MOST_PRODUCTS, None)))
    return _integer_sums(*first) + _integer_sums(*rest)


@_int8_product.defjvp
def _int8_product_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return the derivative of the product with numbers that are not rounded."""
    (x, data, scales), (moved, _, moved_scales) = primals, tangents
    layout = QuantizedLayout("int8", data.shape[-1], max(data.shape[-1], 1))
    tangent = quantized_dot(moved, data, scales, None, layout) + quantized_dot(x, data, moved_scales, None, layout)
    return _int8_product(x, data, scales), tangent


# From floats to codes.


def quantize_array(
    x: Any,
    scheme: Scheme,
    *,
    axis: int | tuple[int, ...] = -1,
    group_size: int | Literal["default"] | None = "default",
    symmetric: bool = True,
    scale_dtype: Any = None,
    activations: Literal["int8"] | None = None,
) -> QuantizedArray:
    """Quantise an array to numbers that share scales group by group.

    Symmetric groups divide their range by the number of largest magnitude, which one of 4 bits represents by its only code of magnitude 8
    (as GGML's Q4_0 does); others divide the range from their smallest to their largest number, or with 4 bits a part of it: the one whose
    squares of errors are least. Scales are rounded to `scale_dtype` before numbers are divided by them. It is a function of arrays, for
    `jit` and `vmap`, too.

    Args:
        x: floats, all finite.
        scheme: "int8", "int4", "nf4" or "fp8".
        axis: the axes over which products sum, those after or those before the axis of the outputs: the last one, the last but one, or
            several, such as (1, 2, 3) of a convolution's weight.
        group_size: the numbers that share a scale; None: all along `axis`. By default 64 for 4 bits, and None for 8. The last group may be
            smaller.
        symmetric: without offsets; the only possibility for "nf4" and "fp8".
        scale_dtype: the dtype of scales and offsets; that of `x` by default.
        activations: see `QuantizedArray`.

    Raises:
        ArgumentError: another scheme, an axis between others, a size of groups below 1, offsets with a scheme that has none, or numbers
            that are not finite.
        DTypeError: `x` or the scales are not floats.

    >>> nn.quantize_array(vf.numpy.array([[-1.0, 0.0, 0.5, 1.0]]), "int8").dequantize().round(3)
    Array([[-1.   ,  0.   ,  0.504,  1.   ]], dtype=float32)
    """
    value = as_value(x)
    check_option(scheme, "quantize_array: the scheme", SCHEMES)
    if value.dtype not in dtypes.FLOATS:
        raise DTypeError(f"quantize_array: floats are quantised, got {value.aval}")
    dtype = value.dtype if scale_dtype is None else dtypes.as_dtype(scale_dtype)
    if dtype not in dtypes.FLOATS:
        raise DTypeError(f"quantize_array: scales are floats, got scale_dtype={dtype.name}")
    if not symmetric and scheme in ("nf4", "fp8"):
        raise ArgumentError(f"quantize_array: {scheme} is symmetric; use 'int8' or 'int4' for offsets, or symmetric=True")
    if isinstance(value, ConcreteArray) and current_trace() is EVAL and not bool(vnp.isfinite(value).all()):
        raise ArgumentError("quantize_array: some numbers are not finite; no scale represents them")
    rows, inner, rows_last = as_rows(value, axis)
    size = rows.shape[-1]
    chosen = _GROUP_SIZES[scheme] if group_size == "default" else group_size
    chosen = max(size, 1) if chosen is None else chosen
    if isinstance(chosen, bool) or not isinstance(chosen, int) or chosen < 1:
        raise ArgumentError(f"quantize_array: group_size is an integer of at least 1, or None, got {group_size!r}")
    layout = QuantizedLayout(scheme, size, min(chosen, max(size, 1)))
    data, scales, offsets = _codes(rows.astype("float32"), layout, symmetric, dtype)
    return QuantizedArray(data, scales, offsets, scheme, inner, layout.group_size, rows_last, value.dtype, activations)


def as_rows(x: Array, axis: int | tuple[int, ...]) -> tuple[Array, tuple[int, ...], bool]:
    """Return an array as rows of the numbers along `axis`.

    Also the sizes of these axes, and whether the axis of the rows was the last.
    """
    axes = sorted([a % x.ndim if -x.ndim <= a < x.ndim else x.ndim for a in ([axis] if isinstance(axis, int) else axis)])
    first, last = (axes[0], axes[-1]) if axes else (0, x.ndim)
    if axes != list(range(first, last + 1)) or x.ndim - 2 > last or last >= x.ndim or (last == x.ndim - 2 and first < 0):
        raise ArgumentError(f"quantize_array: axis={axis} of shape {x.shape} is neither the last axes nor those before the last one")
    inner, rows_last = x.shape[first : last + 1], last == x.ndim - 2
    rows = vnp.moveaxis(x, -1, first) if rows_last else x
    lead = rows.shape[: rows.ndim - len(inner)]
    return rows.reshape((*lead, math.prod(inner))), inner, rows_last


def _codes(x: Array, layout: QuantizedLayout, symmetric: bool, dtype: np.dtype) -> tuple[Array, Array, Array | None]:
    if not x.size:
        empty = vnp.zeros((*x.shape[:-1], layout.groups), dtype)
        return vnp.zeros((*x.shape[:-1], layout.width), CODES[layout.scheme]), empty, None if symmetric else empty
    groups = groups_of(x, layout)
    if layout.scheme == "int4" and not symmetric:
        scales = scales_by_error(groups, vnp.ones(()), layout.scheme, symmetric, dtype)
    else:
        scales = scales_by_range(groups, layout.scheme, symmetric, dtype)
    data = encoded(rows_of(scales.values(groups, layout.scheme), layout), layout)
    return data, scales.scales.astype(dtype), None if scales.offsets is None else scales.offsets.astype(dtype)


# Arrays whose inputs are multiplied in another order.


@dataclasses.dataclass(frozen=True, eq=False)
class PermutedArray(WeightArray):
    """A quantised matrix whose groups hold numbers that are not neighbours.

    Its numbers along the axis that products sum over are those of `array` in the order `order`: number i of a row of `array` is number
    ``order[i]`` here. A product selects its input in that order, ``x[..., order] @ array``. GPTQ's checkpoints with "desc_act" are such.

    Attributes:
        array: a matrix, whose groups hold neighbours.
        order: a permutation, integers of shape (in,).

    Raises `ShapeError` if the order does not fit a matrix.

    >>> w = nn.quantize_array(vf.numpy.array([[1.0, 2.0, 30.0, 40.0]]), "int8", group_size=2)
    >>> nn.PermutedArray(w, vf.numpy.array([0, 2, 1, 3])).dequantize().round()
    Array([[ 1., 30.,  2., 40.]], dtype=float32)
    """

    array: QuantizedArray
    order: Any

    def __post_init__(self) -> None:
        if self.array.ndim != 2 or self.order.shape != self.array.inner or self.order.dtype not in dtypes.INTEGERS:
            raise ShapeError(f"PermutedArray: a matrix and the order of its {self.array.inner} inputs are needed, got {self!r}")

    @property
    def aval(self) -> ShapedArray:
        """The shape and dtype of the matrix."""
        return self.array.aval

    @property
    def T(self) -> Self:
        """The transpose, which shares the codes."""
        return dataclasses.replace(self, array=self.array.T)

    mT = T

    @property
    def nbytes(self) -> int:
        """The bytes of the matrix and of the order."""
        return self.array.nbytes + int(self.order.size) * self.order.dtype.itemsize

    def _places(self) -> Array:
        """Return for each number where it is in `array`."""
        return vnp.argsort(as_value(self.order))

    def dequantize(self, dtype: Any = None) -> Array:
        """Return the numbers as floats, of `self.dtype` unless another is given."""
        return vnp.take(self.array.dequantize(dtype), self._places(), axis=0 if self.array.rows_last else 1)

    def take(self, indices: Any) -> Array:
        """Return entries along the first axis as floats, see `QuantizedArray.take`."""
        return vnp.take(self.array.take(indices), self._places(), axis=-1)

    def __rmatmul__(self, other: Any) -> Array:
        """Return ``other @ self``, in the dtype of `other`."""
        x = as_value(other)
        if not self.array.rows_last:
            product: Array = x @ self.array
            return vnp.take(product, self._places(), axis=-1)
        if x.ndim == 0 or x.shape[-1] != self.shape[0]:
            raise ShapeError(f"matmul: the last axis of the left operand has shape {x.shape}, but {self!r} needs {self.shape[0]}")
        ordered: Array = vnp.take(x, as_value(self.order), axis=-1) @ self.array
        return ordered

    def __repr__(self) -> str:
        return f"PermutedArray({self.array!r})"


_PERMUTED_KEYS = (tree.GetAttrKey("array"), tree.GetAttrKey("order"))


def _flatten_permuted(value: PermutedArray) -> tuple[Any, tuple[()]]:
    return zip(_PERMUTED_KEYS, (value.array, value.order), strict=True), ()


def _unflatten_permuted(_: Any, children: Sequence[Any]) -> PermutedArray:
    """Rebuild the array; children are unchecked, because leaves may be any objects."""
    value = object.__new__(PermutedArray)
    value.__dict__.update(zip(("array", "order"), children, strict=True))
    return value


tree.register_pytree_with_keys(PermutedArray, _flatten_permuted, _unflatten_permuted)
