"""Functions of `jax.lax` that programs written for this package do not need.

They are one-hot vectors of floats, arrays of one random key, shapes of results, collectives and products in terms of other functions, and
random numbers from a hidden state.
"""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes, lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.extend.key_arrays import of_keys
from volta_fn.nn import initializers
from volta_fn.nn.activations import one_hot_of_numbers
from volta_fn.primitives.call import io_callback
from volta_fn.random.keys import PRNGKeyArray
from volta_fn.scipy.linalg.decompositions import qr as pivoted_qr
from volta_fn.transforms.custom_derivatives import custom_jvp


def one_hot(x: Any, num_classes: Any, *, dtype: Any = None, axis: Any = -1) -> Array:
    """Encode class numbers, of which floats are accepted with a warning.

    >>> one_hot(jnp.array([0, 2]), 3)
    Array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    value = vnp.asarray(x)
    if value.dtype not in dtypes.INTEGERS | dtypes.BOOL:
        warnings.warn(f"one_hot: class numbers are integers, got {value.aval}", DeprecationWarning, stacklevel=2)
    return one_hot_of_numbers(value, num_classes, dtype, axis)


# Initial values.


def constant(value: Any, dtype: Any = None) -> Callable[..., Any]:
    """Return an initializer of arrays filled with a value, or with a random key.

    >>> constant(vf.random.key(0))(None, (2,)).shape
    (2,)
    """
    plain = initializers.constant(value, dtype)
    keys = of_keys(vnp.full)

    def init(key: Any, shape: Sequence[int], dtype: Any = dtype, out_sharding: Any = None) -> Any:
        return keys(shape, value, dtype) if isinstance(value, PRNGKeyArray) else plain(key, shape, dtype, out_sharding)

    return init


# Shapes of results.


def conv_general_permutations(dimension_numbers: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the permutations into the order of `conv`: batch, features, space.

    There is one for each operand, and one for the result. `dimension_numbers` has a word for each, such as ``("NHWC", "HWIO", "NHWC")``.
    Raises `ArgumentTypeError` for words that lack a letter or repeat one.

    >>> conv_general_permutations(("NHWC", "HWIO", "NHWC"))
    ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
    """
    leading = ("NC", "OI", "NC")
    for position, (word, letters) in enumerate(zip(dimension_numbers, leading, strict=True)):
        if any(word.count(letter) != 1 for letter in letters) or len({*word}) != len(word):
            raise ArgumentTypeError(f"dimension_numbers[{position}] needs each of {', '.join(letters)} and no letter twice, got {word!r}")
    space = [letter for letter in dimension_numbers[1] if letter not in "OI"]
    if any({*word} - {*letters} != {*space} for word, letters in zip(dimension_numbers, leading, strict=True)):
        raise ArgumentTypeError(f"dimension_numbers must name the same spatial dimensions in each word, got {tuple(dimension_numbers)}")
    return tuple([tuple([word.index(c) for c in (*letters, *space)]) for word, letters in zip(dimension_numbers, leading, strict=True)])


def _windows(size: int, window: int, stride: int) -> int:
    """Return the number of positions of a window."""
    return max((size - window) // stride + 1, 0)


def _dilated(sizes: Sequence[int], dilation: Sequence[int] | None) -> list[int]:
    """Return sizes with gaps between the elements."""
    return [n and 1 + d * (n - 1) for n, d in zip(sizes, dilation or (1,) * len(sizes), strict=True)]


def conv_shape_tuple(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], strides: Sequence[int], pads: Any, batch_group_count: int = 1
) -> tuple[int, ...]:
    """Return the shape of a convolution of operands in the order of `conv`.

    `pads` is "SAME", "VALID" or a pair for each spatial dimension. Raises `ShapeError` if there are not as many pairs, or if negative
    padding takes more than there is.

    >>> conv_shape_tuple((1, 3, 8, 8), (4, 3, 3, 3), (2, 2), "SAME")
    (1, 4, 4, 4)
    """
    pairs = lax.padtype_to_pads(lhs_shape[2:], rhs_shape[2:], strides, pads) if isinstance(pads, str) else pads
    if len(pairs) != len(lhs_shape) - 2:
        raise ShapeError(f"convolution: padding needs {len(lhs_shape) - 2} pairs, got {len(pairs)}")
    sizes = [n + sum(pair) for n, pair in zip(lhs_shape[2:], pairs, strict=True)]
    if any(n < 0 for n in sizes):
        raise ShapeError(f"convolution: padding {tuple(pairs)} takes more than the sizes {tuple(lhs_shape[2:])}")
    if lhs_shape[0] % batch_group_count:
        raise ShapeError(f"convolution: batch_group_count={batch_group_count} must divide the batch of {lhs_shape[0]}")
    space = map(_windows, sizes, rhs_shape[2:], strides)
    return (lhs_shape[0] // batch_group_count, rhs_shape[0], *space)


def conv_general_shape_tuple(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], window_strides: Sequence[int], padding: Any, dimension_numbers: Sequence[str]
) -> tuple[int, ...]:
    """Return the shape of a convolution whose dimensions have any order.

    >>> conv_general_shape_tuple((1, 8, 8, 3), (3, 3, 3, 4), (1, 1), "VALID", ("NHWC", "HWIO", "NHWC"))
    (1, 6, 6, 4)
    """
    lhs, rhs, out = conv_general_permutations(dimension_numbers)
    shape = conv_shape_tuple([lhs_shape[i] for i in lhs], [rhs_shape[i] for i in rhs], window_strides, padding)
    return tuple([shape[out.index(i)] for i in range(len(shape))])


def conv_transpose_shape_tuple(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], window_strides: Sequence[int], padding: Any, dimension_numbers: Sequence[str]
) -> tuple[int, ...]:
    """Return the shape of a transposed convolution.

    Pairs of `padding` are those of the dilated operand.

    >>> conv_transpose_shape_tuple((1, 4, 4, 3), (3, 3, 3, 4), (2, 2), "SAME", ("NHWC", "HWIO", "NHWC"))
    (1, 8, 8, 4)
    """
    lhs, rhs, out = conv_general_permutations(dimension_numbers)
    batch, _, *sizes = [lhs_shape[i] for i in lhs]
    features, _, *windows = [rhs_shape[i] for i in rhs]
    if isinstance(padding, str):
        if padding not in ("SAME", "VALID"):
            raise ArgumentError(f"conv_transpose_shape_tuple: padding must be SAME, VALID or pairs, got {padding!r}")
        sums = [k + s - 2 if padding == "SAME" else k + s - 2 + max(k - s, 0) for k, s in zip(windows, window_strides, strict=True)]
    else:
        sums = [sum(pair) for pair in padding]
    space = [(n - 1) * s - k + 2 + p for n, k, s, p in zip(sizes, windows, window_strides, sums, strict=True)]
    shape = (batch, features, *space)
    return tuple([shape[out.index(i)] for i in range(len(shape))])


def reduce_window_shape_tuple(
    operand_shape: Sequence[int],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Return the shape of `reduce_window`.

    >>> reduce_window_shape_tuple((8, 9), (2, 3), (2, 1), [(0, 0), (1, 1)])
    (4, 9)
    """
    sizes = [n + sum(pair) for n, pair in zip(_dilated(operand_shape, base_dilation), padding, strict=True)]
    return tuple(map(_windows, sizes, _dilated(window_dimensions, window_dilation), window_strides))


def shape_as_value(shape: Sequence[Any]) -> Any:
    """Return a shape as an array of integers.

    >>> shape_as_value((2, 3))
    array([2, 3], dtype=int32)
    """
    if all(isinstance(n, (int, np.integer)) for n in shape):
        return np.asarray(shape, np.int32 if max(shape, default=0) < 2**31 else np.int64)
    return vnp.stack([vnp.asarray(n) for n in shape])


# Values in programs.


def stage(x: Any, /) -> Array:
    """Return a value as an array, which is a tracer within a traced function."""
    return vnp.asarray(x)


def dce_sink(val: Any, *, prevent_mlir_dce: bool = False) -> None:
    """Accept values that JAX is to compute for their effects; effects stay anyway."""
    tree.map(as_value, val)


# Functions whose parameters have JAX's names.


def zeta(x: Any, q: Any) -> Array:
    """Return Hurwitz's zeta function, the sum of (q + k)^-x over k = 0, 1, …."""
    return lax.zeta(x, q)


def polygamma(m: Any, x: Any) -> Array:
    """Return the m-th derivative of digamma at x."""
    return lax.polygamma(m, x)


def nextafter(x1: Any, x2: Any) -> Array:
    """Return the float after `x1` in the direction of `x2`."""
    return lax.nextafter(x1, x2)


@custom_jvp
def one_minus_square(x: Any) -> Array:
    """Return 1 - x², precise where |x| is near 1.

    >>> float(one_minus_square(0.5))
    0.75
    """
    value = as_value(x)
    return (1 + value) * (1 - value)


@one_minus_square.defjvp
def _(primals: Sequence[Array], tangents: Sequence[Array]) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents
    return one_minus_square(x), -2 * x * tangent


def polynomial(x: Any, coeffs: Sequence[Any], *, unroll: int | None = None) -> Array:
    """Return the sum of the coefficients times powers of x, the constant first.

    Coefficients are scalars, or arrays that broadcast with `x`, and take its dtype. `unroll` has no effect.

    >>> float(polynomial(3.0, [1.0, 5.0, 2.0]))
    34.0
    """
    value = as_value(x)
    terms = [c if isinstance(c, (int, float, complex)) else lax.convert_element_type(c, value.dtype) for c in coeffs]
    result = vnp.zeros_like(value) if not terms else vnp.broadcast_to(terms[-1], value.shape) if len(terms) == 1 else terms[-1]
    for term in terms[-2::-1]:
        result = result * value + term
    return as_value(result)


def reshard(xs: Any, out_shardings: Any) -> Any:
    """Return a tree of arrays, split between devices as `out_shardings` says.

    It is JAX's name for `with_sharding_constraint`.
    """
    return lax.with_sharding_constraint(xs, out_shardings)


# Collectives.


def pbroadcast(x: Any, axis_name: Any, source: int) -> Any:
    """Return the values of one member of an axis, in all of them.

    >>> vf.vmap(lambda x: pbroadcast(x, "i", 1), axis_name="i")(vf.numpy.array([1.0, 2.0]))
    Array([2., 2.], dtype=float32)
    """
    is_source = lax.axis_index(axis_name) == source

    def broadcast(leaf: Any) -> Array:
        value = as_value(leaf)
        numbers = vnp.where(is_source, value, vnp.zeros_like(value))
        return lax.psum(numbers.astype("int32"), axis_name).astype(bool) if value.dtype == bool else lax.psum(numbers, axis_name)

    return tree.map(broadcast, x)


def ragged_all_to_all(
    operand: Any,
    output: Any,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    axis_name: Any,
    axis_index_groups: Any = None,
) -> Array:
    """Send a slice of rows to each member of an axis.

    A member sends the `send_sizes[j]` rows of `operand` from `input_offsets[j]` on to the member j, which gets them in `output` from
    `output_offsets[j]` on. `recv_sizes` are the sizes that it gets, as in JAX. All members gather all operands, and need memory for them.

    >>> send = vf.numpy.array([[1, 2], [2, 1]])
    >>> def exchange(x, sizes, starts, received):
    ...     inputs = vf.numpy.array([0, 0]).at[1].set(sizes[0])
    ...     return ragged_all_to_all(x, vf.numpy.zeros(4), inputs, sizes, starts, received, axis_name="i")
    >>> starts = vf.numpy.array([[0, 0], [1, 2]])
    >>> vf.vmap(exchange, axis_name="i")(vf.numpy.arange(6.0).reshape(2, 3), send, starts, send.T)
    Array([[0., 3., 4., 0.],
           [1., 2., 5., 0.]], dtype=float32)
    """
    x, result = as_value(operand), as_value(output)
    if x.shape[1:] != result.shape[1:]:
        raise ShapeError(f"ragged_all_to_all: rows of operand and output must have the same shape, got {x.shape} and {result.shape}")
    gather = {"axis_name": axis_name, "axis_index_groups": axis_index_groups}
    operands = lax.all_gather(x, **gather)
    position = vnp.argmax(lax.all_gather(lax.axis_index(axis_name), **gather) == lax.axis_index(axis_name))
    begins, sizes, targets = [
        vnp.take(lax.all_gather(as_value(a), **gather), position, axis=1) for a in (input_offsets, send_sizes, output_offsets)
    ]
    rows = vnp.arange(result.shape[0])
    for member in range(operands.shape[0]):
        from_target = rows - targets[member]
        values = vnp.take(operands[member], begins[member] + from_target, axis=0, mode="clip")
        is_received = (from_target >= 0) & (from_target < sizes[member])
        result = vnp.where(is_received.reshape(-1, *(1,) * (result.ndim - 1)), values, result)
    return result


# Products of scaled numbers, and random numbers.


def scaled_dot(
    lhs: Any,
    rhs: Any,
    *,
    lhs_scale: Any = None,
    rhs_scale: Any = None,
    dimension_numbers: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """Return the `dot_general` of operands times their scales.

    A scale serves a block of the contracted dimensions. Without `dimension_numbers` the leading dimensions are batches. Sums and results
    are of `preferred_element_type`, bfloat16 by default. Raises `ShapeError` if a scale's dimensions do not divide those of its operand.

    >>> x, scale = vf.numpy.ones((2, 4)), vf.numpy.array([[1.0, 2.0], [3.0, 4.0]])
    >>> scaled_dot(x, vf.numpy.ones((4, 1)), lhs_scale=scale, preferred_element_type="float32")
    Array([[ 6.],
           [14.]], dtype=float32)
    """
    left, right = as_value(lhs), as_value(rhs)
    if dimension_numbers is None:
        if left.ndim < 2:
            raise ArgumentTypeError("scaled_dot needs operands of two dimensions or more; or pass dimension_numbers")
        batch = tuple(range(left.ndim - 2))
        dimension_numbers = (((left.ndim - 1,), (left.ndim - 2,)), (batch, batch))
    dtype = np.dtype(vnp.bfloat16 if preferred_element_type is None else vnp.dtype(preferred_element_type))
    first, second = _scaled(left, lhs_scale).astype(dtype), _scaled(right, rhs_scale).astype(dtype)
    return lax.dot_general(first, second, dimension_numbers, preferred_element_type=dtype)


def _scaled(x: Array, scale: Any) -> Array:
    """Return an operand times its scale in float32."""
    wide = x.astype("float32")
    if scale is None:
        return wide
    factors = as_value(scale).astype("float32")
    if factors.ndim != x.ndim or any(n == 0 or size % n for size, n in zip(x.shape, factors.shape, strict=True)):
        raise ShapeError(f"scaled_dot: the sizes of a scale must divide those of its operand, got {factors.shape} for {x.shape}")
    for dimension, (size, n) in enumerate(zip(x.shape, factors.shape, strict=True)):
        factors = vnp.repeat(factors, size // n, axis=dimension)
    return wide * factors


_generator = np.random.default_rng()


def rng_uniform(a: Any, b: Any, shape: Sequence[int]) -> Array:
    """Return uniform numbers in [a, b) from a hidden state.

    They are other ones in each call, also of a jitted function. `a` and `b` are scalars of the same dtype. Functions of `random`, which
    take a key, repeat.
    """
    low, high = as_value(a), as_value(b)
    if low.shape or high.shape or low.dtype != high.dtype:
        raise ArgumentTypeError(f"rng_uniform needs two scalars of one dtype, got {low.aval} and {high.aval}")
    sizes = tuple(shape)

    def draw(low: Any, high: Any) -> np.ndarray:
        if np.issubdtype(low.dtype, np.integer):
            return _generator.integers(low, high, sizes, dtype=low.dtype)
        return (low + (high - low) * _generator.random(sizes)).astype(low.dtype).reshape(sizes)

    numbers: Array = io_callback(draw, vnp.empty(sizes, low.dtype), low, high)
    return numbers


# Choices among algorithms, of which each target has one.


def qr(x: Any, *, pivoting: bool = False, full_matrices: bool = True, use_magma: bool | None = None) -> tuple[Array, ...]:
    """Return Q and R, and with `pivoting` an order of the columns.

    The columns x[..., order] are Q R, and R's diagonal descends in magnitude. `use_magma` has no effect.

    >>> qr(vf.numpy.diag(vf.numpy.array([1.0, 2.0])), pivoting=True)[2]
    Array([1, 0], dtype=int32)
    """
    if not pivoting:
        return lax.linalg.qr(x, full_matrices=full_matrices)
    return pivoted_qr(x, mode="full" if full_matrices else "economic", pivoting=True)


class EigImplementation(enum.Enum):
    """Where `eig` is computed."""

    CUSOLVER = "cusolver"
    MAGMA = "magma"
    LAPACK = "lapack"


class EighImplementation(enum.Enum):
    """How `eigh` is computed."""

    QR = "qr"
    JACOBI = "jacobi"
    QDWH = "qdwh"
