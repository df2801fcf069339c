"""Movement: linear operations that only rearrange elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.arrays.memory import constrained
from volta_fn.core.aval import Shape, ShapedArray, as_integer, canonical_shape, integer_sizes, sizes_of
from volta_fn.core.dimension import Dimension, is_symbolic_dim
from volta_fn.core.primitive import PRIMITIVES, AxisData, Linear, Primitive, Reduction, RuleOf, Zero
from volta_fn.core.trace import bind
from volta_fn.errors import AxisError, DTypeError, GradientError, ShapeError

# Rules of derivatives and of batching that primitives share.


def no_tangents(outs: Any) -> tuple[Any, Any]:
    """Return a result, or several, with symbolic zeros as tangents."""
    if isinstance(outs, Array):
        return outs, Zero(outs.aval.tangent_aval())
    return outs, [Zero(out.aval.tangent_aval()) for out in outs]


#: The JVP rule of a primitive that is constant wherever it has a derivative.
zero_jvp = RuleOf(lambda primitive: lambda primals, tangents, **params: no_tangents(bind(primitive, *primals, **params)))


def no_derivative(message: str) -> RuleOf:
    """Return a JVP rule that raises `GradientError` unless all tangents are zero.

    The message is formatted with the primitive and its parameters.
    """

    def make(primitive: Primitive) -> Callable[..., Any]:
        def jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
            if any(type(t) is not Zero for t in tangents):
                raise GradientError(message.format(primitive=primitive, **params))
            return no_tangents(bind(primitive, *primals, **params))

        return jvp

    return RuleOf(make)


def instantiate(tangent: Any) -> Array:
    """Return a tangent as an array: zeros where it is a symbolic zero."""
    if type(tangent) is Zero:
        return broadcast(as_value(np.zeros((), tangent.aval.dtype)), tangent.aval.shape)
    return tangent


def linear_jvp(*operands: int) -> RuleOf:
    """Return the JVP rule of a primitive that is linear in `operands` (default: all)."""

    def make(primitive: Primitive) -> Callable[..., Any]:
        def jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Array, Any]:
            out = bind(primitive, *primals, **params)
            positions = operands or range(len(primals))
            if all(type(tangents[i]) is Zero for i in positions):
                return no_tangents(out)
            return out, bind(primitive, *[instantiate(tangents[i]) if i in positions else x for i, x in enumerate(primals)], **params)

        return jvp

    return RuleOf(make)


def to_front(args: Sequence[Array], dims: Sequence[int | None]) -> list[Array]:
    """Move the dimension of the examples of each argument that has one to the front."""
    return [a if d is None else moveaxis(a, d, 0) for a, d in zip(args, dims, strict=True)]


def stacked_in_front(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None]) -> list[Array]:
    """Return all arguments with the examples along a new leading dimension."""
    return [broadcast(a, (axis.size,)) if d is None else moveaxis(a, d, 0) for a, d in zip(args, dims, strict=True)]


def shift_dims(dims: tuple[int, ...], lead: int | None = None) -> tuple[int, ...]:
    """Shift the dims for a new one in front, which joins them as `lead` if given."""
    later = tuple([d + 1 for d in dims])
    return later if lead is None else (lead, *later)


def batch_in_front(shifted: Callable[..., dict[str, Any]] | None = None) -> RuleOf:
    """Return the batching rule that stacks all operands along a new leading dimension.

    ``shifted(size, **params)`` returns the parameters for operands with that dimension, of `size` examples; without it they stay.
    """

    def make(primitive: Primitive) -> Callable[..., Any]:
        def batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], /, **params: Any) -> tuple[Any, Any]:
            stacked = stacked_in_front(axis, args, dims)
            outs = bind(primitive, *stacked, **(params if shifted is None else shifted(axis.size, **params)))
            return (outs, [0] * len(outs)) if primitive.multiple_results else (outs, 0)

        return batch

    return RuleOf(make)


def linear_primitive(
    name: str,
    abstract: Callable[..., ShapedArray],
    evaluate: Callable[..., np.ndarray] | None,
    batch: Callable[..., Any] | RuleOf,
    transpose: Callable[..., Any] | RuleOf | None = None,
    views: bool = True,
    reduction: Reduction | None = None,
    combines: Reduction | None = None,
) -> Primitive:
    """Declare a linear primitive of one operand, whose JVP applies it to the tangent."""
    return Primitive(
        name,
        abstract,
        evaluate=evaluate,
        views=views,
        jvp=linear_jvp(),
        transpose=transpose,
        maps_tangent=True,
        batch=batch,
        reduction=reduction,
        combines=combines,
    )


def canonical_axis(axis: int, ndim: int, name: str = "axis") -> int:
    """Count `axis` from the front; raise `AxisError` if there is no such dimension."""
    index = as_integer(axis, name)
    if not -ndim <= index < ndim:
        valid = f"it has the axes {-ndim} to {ndim - 1}" if ndim else "a scalar has no axes; insert one with x[None]"
        raise AxisError(f"{name}={index} is out of range for an array with {ndim} dimensions: {valid}")
    return index % ndim


def canonical_axes(axes: int | Sequence[int] | None, ndim: int, name: str = "axes") -> tuple[int, ...]:
    """Count `axes` from the front, and drop repetitions; None means all."""
    if axes is None:
        return tuple(range(ndim))
    single = axes[0] if type(axes) is tuple and len(axes) == 1 else axes
    if type(single) is int and 0 <= single < ndim:
        return (single,)
    items = sizes_of(axes)
    result = tuple(canonical_axis(a, ndim, name) for a in items)
    if len(set(result)) != len(result):
        raise ShapeError(f"{name}={tuple(items)} names a dimension twice")
    return result


# reshape


_NEW_SIZES = "The product of the new sizes must be {}; one of them may be -1, which is then computed."


def _reshape_abstract(operand: ShapedArray, *, new_sizes: Shape) -> ShapedArray:
    if math.prod(new_sizes) != operand.size:
        raise ShapeError(
            f"cannot reshape an array of shape {operand.shape} ({operand.size} elements) "
            f"into shape {new_sizes} ({math.prod(new_sizes)} elements). {_NEW_SIZES.format(operand.size)}"
        )
    return operand.update(shape=new_sizes)


reshape_p = linear_primitive(
    "reshape",
    _reshape_abstract,
    lambda operand, *, new_sizes: operand.reshape(new_sizes),
    batch_in_front(lambda size, new_sizes: {"new_sizes": (size, *new_sizes)}),
    lambda ct, operand, *, new_sizes: [reshape(ct, operand.shape)],
)


def reshape(operand: Any, new_sizes: Sequence[int], dimensions: Sequence[int] | None = None, *, out_sharding: Any = None) -> Array:
    """Reshape `operand`, in row-major order; one size may be -1.

    `dimensions` transposes first. Raises `ShapeError` if the sizes do not fit.

    >>> vf.lax.reshape(vf.numpy.arange(6), (2, 3)).shape
    (2, 3)
    """
    value = as_value(operand)
    if dimensions is not None:
        value = transpose(value, dimensions)
    sizes = integer_sizes(new_sizes)
    shape = infer_size(sizes, value.aval) if any(type(s) is int and s < 0 for s in sizes) else sizes
    return constrained(value if shape == value.shape else bind(reshape_p, value, new_sizes=shape), out_sharding)


def infer_size(sizes: Sequence[int], operand: ShapedArray) -> Shape:
    """Replace the one -1 in `sizes` by the size that fits `operand`."""
    if list(sizes).count(-1) != 1 or min(sizes) < -1:
        raise ShapeError(f"a new shape may have one -1 and no other negative size, got {tuple(sizes)}")
    rest = math.prod(s for s in sizes if s != -1)
    if rest == 0 or operand.size % rest:
        raise ShapeError(
            f"cannot reshape an array of shape {operand.shape} ({operand.size} elements) into shape {tuple(sizes)}: "
            f"the other sizes do not divide {operand.size}. {_NEW_SIZES.format(operand.size)}"
        )
    return canonical_shape([operand.size // rest if s == -1 else s for s in sizes])


# transpose


def _transpose_abstract(operand: ShapedArray, *, permutation: tuple[int, ...]) -> ShapedArray:
    if sorted(permutation) != list(range(operand.ndim)):
        raise ShapeError(f"permutation {permutation} does not order the {operand.ndim} dimensions of an array of shape {operand.shape}")
    return operand.update(shape=tuple([operand.shape[i] for i in permutation]))


def _transpose_batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, permutation: tuple[int, ...]
) -> tuple[Array, int]:
    dim = dims[0] or 0
    shifted = tuple(p + (p >= dim) for p in permutation)
    return bind(transpose_p, args[0], permutation=(dim, *shifted)), 0


transpose_p = linear_primitive(
    "transpose",
    _transpose_abstract,
    lambda operand, *, permutation: operand.transpose(permutation),
    _transpose_batch,
    lambda ct, operand, *, permutation: [transpose(ct, tuple(int(i) for i in np.argsort(permutation)))],
)


def transpose(operand: Any, permutation: Sequence[int]) -> Array:
    """Permute the dimensions of `operand` to the order of `permutation`.

    >>> vf.lax.transpose(vf.numpy.zeros((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    value = as_value(operand)
    order = canonical_axes(tuple(permutation), value.ndim, "permutation")
    return value if order == tuple(range(value.ndim)) else bind(transpose_p, value, permutation=order)


def moveaxis(operand: Array, source: int, destination: int) -> Array:
    """Move one dimension of `operand`."""
    if source == destination:
        return operand
    order = [i for i in range(operand.ndim) if i != source]
    order.insert(destination, source)
    return bind(transpose_p, operand, permutation=tuple(order))


# broadcast_in_dim


def _broadcast_abstract(operand: ShapedArray, *, shape: Shape, broadcast_dimensions: tuple[int, ...]) -> ShapedArray:
    if len(broadcast_dimensions) != operand.ndim:
        raise ShapeError(f"broadcast_in_dim needs one entry of broadcast_dimensions per dimension of {operand}, got {broadcast_dimensions}")
    for size, dim in zip(operand.shape, broadcast_dimensions, strict=True):
        if not 0 <= dim < len(shape) or size not in (1, shape[dim]):
            raise ShapeError(f"broadcast_in_dim cannot place {operand} at dimensions {broadcast_dimensions} of shape {shape}")
    if list(broadcast_dimensions) != sorted(set(broadcast_dimensions)):
        raise ShapeError(f"broadcast_dimensions must increase, got {broadcast_dimensions}")
    return operand.update(shape=shape)


def _broadcast_evaluate(operand: np.ndarray, *, shape: Shape, broadcast_dimensions: tuple[int, ...]) -> np.ndarray:
    padded = [1] * len(shape)
    for size, dim in zip(operand.shape, broadcast_dimensions, strict=True):
        padded[dim] = size
    placed = operand.reshape(padded)
    return placed if placed.shape == shape else np.broadcast_to(placed, shape)


def _broadcast_transpose(ct: Any, operand: Linear, *, shape: Shape, broadcast_dimensions: tuple[int, ...]) -> list[Any]:
    axes = [i for i in range(len(shape)) if i not in broadcast_dimensions]
    axes += [d for n, d in zip(operand.shape, broadcast_dimensions, strict=True) if n == 1 and shape[d] != 1]
    return [reshape(bind(PRIMITIVES["reduce_sum"], ct, axes=tuple(axes)) if axes else ct, operand.shape)]


broadcast_in_dim_p = linear_primitive(
    "broadcast_in_dim",
    _broadcast_abstract,
    _broadcast_evaluate,
    batch_in_front(
        lambda size, shape, broadcast_dimensions: {"shape": (size, *shape), "broadcast_dimensions": shift_dims(broadcast_dimensions, 0)}
    ),
    _broadcast_transpose,
)


def broadcast_in_dim(operand: Any, shape: Sequence[int], broadcast_dimensions: Sequence[int], *, out_sharding: Any = None) -> Array:
    """Repeat `operand` to fill `shape`.

    Its dimension i becomes dimension ``broadcast_dimensions[i]``.

    >>> vf.lax.broadcast_in_dim(vf.numpy.arange(2), (2, 3), (0,))
    Array([[0, 0, 0],
           [1, 1, 1]], dtype=int32)
    """
    value = as_value(operand)
    dims = tuple(d.__index__() for d in broadcast_dimensions)
    target = canonical_shape(shape)
    if len(dims) == value.ndim == len(set(dims)) and (ordered := tuple(sorted(dims))) != dims:
        value, dims = transpose(value, [dims.index(d) for d in ordered]), ordered
    if value.shape == target and dims == tuple(range(value.ndim)):
        return constrained(value, out_sharding)
    return constrained(bind(broadcast_in_dim_p, value, shape=target, broadcast_dimensions=dims), out_sharding)


def broadcast(operand: Any, sizes: Sequence[int], *, out_sharding: Any = None) -> Array:
    """Repeat `operand` along new leading dimensions of the given `sizes`.

    >>> vf.lax.broadcast(vf.numpy.array([1, 2]), (2,))
    Array([[1, 2],
           [1, 2]], dtype=int32)
    """
    value = as_value(operand)
    lead = canonical_shape(sizes)
    return constrained(broadcast_in_dim(value, (*lead, *value.shape), range(len(lead), len(lead) + value.ndim)), out_sharding)


def broadcast_to(operand: Array, shape: Shape) -> Array:
    """Broadcast `operand` to `shape` by NumPy's rule."""
    if operand.shape == shape:
        return operand
    if operand.ndim > len(shape):
        raise ShapeError(f"cannot broadcast an array of shape {operand.shape} to the lower rank of {shape}")
    return bind(broadcast_in_dim_p, operand, shape=shape, broadcast_dimensions=tuple(range(len(shape) - operand.ndim, len(shape))))


# squeeze and expand_dims


def _squeeze_abstract(operand: ShapedArray, *, dimensions: tuple[int, ...]) -> ShapedArray:
    if any(operand.shape[d] != 1 for d in dimensions):
        raise ShapeError(f"squeeze removes dimensions of size 1; dimensions {dimensions} of shape {operand.shape} are not all of size 1")
    return operand.update(shape=tuple([n for i, n in enumerate(operand.shape) if i not in dimensions]))


squeeze_p = linear_primitive(
    "squeeze",
    _squeeze_abstract,
    lambda operand, *, dimensions: operand.squeeze(dimensions),
    batch_in_front(lambda size, dimensions: {"dimensions": shift_dims(dimensions)}),
    lambda ct, operand, *, dimensions: [reshape(ct, operand.shape)],
)


def squeeze(array: Any, dimensions: Sequence[int]) -> Array:
    """Drop the given dimensions, which must have size 1.

    >>> vf.lax.squeeze(vf.numpy.ones((1, 3, 1)), (0,)).shape
    (3, 1)
    """
    value = as_value(array)
    axes = canonical_axes(tuple(dimensions), value.ndim, "dimensions")
    return bind(squeeze_p, value, dimensions=tuple(sorted(axes))) if axes else value


def expand_dims(array: Any, dimensions: Sequence[int]) -> Array:
    """Insert dimensions of size 1 at the given axes of the result.

    >>> vf.lax.expand_dims(vf.numpy.ones(3), (0, 2)).shape
    (1, 3, 1)
    """
    value = as_value(array)
    axes = canonical_axes(tuple(dimensions), value.ndim + len(tuple(dimensions)), "dimensions")
    sizes = list(value.shape)
    for axis in sorted(axes):
        sizes.insert(axis, 1)
    dimensions_of_operand = [i for i in range(len(sizes)) if i not in axes]
    return broadcast_in_dim(value, sizes, dimensions_of_operand) if axes else value


# rev


rev_p: Primitive = linear_primitive(
    "rev",
    lambda operand, *, dimensions: operand,
    lambda operand, *, dimensions: np.flip(operand, dimensions),
    lambda axis, args, dims, *, dimensions: (bind(rev_p, *args, dimensions=tuple(d + (d >= dims[0]) for d in dimensions)), dims[0]),
    lambda ct, operand, *, dimensions: [bind(rev_p, ct, dimensions=dimensions)],
)


def rev(operand: Any, dimensions: Sequence[int]) -> Array:
    """Reverse the order of elements along the given dimensions.

    >>> vf.lax.rev(vf.numpy.arange(3), (0,))
    Array([2, 1, 0], dtype=int32)
    """
    value = as_value(operand)
    axes = canonical_axes(tuple(dimensions), value.ndim, "dimensions")
    return bind(rev_p, value, dimensions=axes) if axes else value


# iota


def _iota_abstract(*, dtype: np.dtype, shape: Shape, dimension: int) -> ShapedArray:
    if not 0 <= dimension < len(shape):
        raise AxisError(f"iota dimension {dimension} is out of range for shape {shape}")
    size = 0 if is_symbolic_dim(shape[dimension]) else shape[dimension]
    if dtype in dtypes.INTEGERS and dtype.itemsize >= 4 and size - 1 > np.iinfo(dtype).max:
        raise ShapeError(f"iota: the positions along dimension {dimension} of shape {shape} do not fit {dtype.name}; use int64")
    return ShapedArray(shape, dtype)


def _iota_evaluate(*, dtype: np.dtype, shape: Shape, dimension: int) -> np.ndarray:
    ramp = np.arange(shape[dimension]).astype(dtype)
    return _broadcast_evaluate(ramp, shape=shape, broadcast_dimensions=(dimension,))


iota_p: Primitive = Primitive(
    "iota",
    _iota_abstract,
    evaluate=_iota_evaluate,
    jvp=zero_jvp,
    batch=lambda axis, args, dims, **params: (bind(iota_p, **params), None),
    views=True,
)


def broadcasted_iota(dtype: Any, shape: Sequence[int], dimension: int, *, out_sharding: Any = None) -> Array:
    """Return an array whose elements are their own index along `dimension`.

    >>> vf.lax.broadcasted_iota("int32", (2, 3), 1)
    Array([[0, 1, 2],
           [0, 1, 2]], dtype=int32)
    """
    iota_dtype = dtypes.as_dtype(dtype)
    if iota_dtype in dtypes.BOOL:
        raise DTypeError("iota counts, so its dtype cannot be bool")
    sizes = canonical_shape(shape)
    return constrained(
        bind(iota_p, dtype=iota_dtype, shape=sizes, dimension=canonical_axis(dimension, len(sizes), "dimension")), out_sharding
    )


def iota(dtype: Any, size: int) -> Array:
    """Return the array [0, 1, …, size - 1].

    >>> vf.lax.iota("int32", 3)
    Array([0, 1, 2], dtype=int32)
    """
    return broadcasted_iota(dtype, (size,), 0)


# Symbolic sizes as values: an operation without operands, in programs that are traced for symbolic sizes and never run.


dim_as_value_p: Primitive = Primitive(
    "dim_as_value",
    lambda *, dim: ShapedArray((), dtypes.default(np.dtype(np.int32)), weak_type=True),
    evaluate=lambda *, dim: dim.__index__(),
    jvp=zero_jvp,
    batch=lambda axis, args, dims, **params: (bind(dim_as_value_p, **params), None),
    listed=False,
)
Dimension.as_array = staticmethod(lambda size: bind(dim_as_value_p, dim=size))
