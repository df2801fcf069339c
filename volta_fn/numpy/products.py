"""Products of arrays, all of them contractions, and `einsum`."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, ConcreteArray, as_value
from volta_fn.core.arrays.memory import constrained
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import SharedParams
from volta_fn.core.trace import EVAL, current_trace
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.jit.fused import fused, fused_by_results
from volta_fn.primitives.array_operations.operators import refused_operand
from volta_fn.primitives.contraction import dot_general, dot_general_p, product_params
from volta_fn.primitives.data_movement.movement import (
    broadcast_in_dim,
    canonical_axes,
    canonical_axis,
    expand_dims,
    moveaxis,
    reshape,
    squeeze,
    transpose,
)
from volta_fn.primitives.data_movement.slicing import concatenate, index_in_dim, slice_in_dim
from volta_fn.primitives.declare import promote_args
from volta_fn.primitives.elementwise.arithmetic import mul
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.primitives.elementwise.selection import conj
from volta_fn.primitives.reduction import reduce_or, reduce_sum
from volta_fn.settings import current as settings


def _promoted(name: str, a: Any, b: Any) -> tuple[Array, Array]:
    x, y = promote_args(name, (a, b), dtypes.ALL)
    return x, y


def matmul(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None, out_sharding: Any = None) -> Array:
    """Multiply matrices, over stacks in the leading dimensions, which broadcast.

    A one-dimensional first operand counts as a row, a second one as a column; the result lacks that dimension. Raises `ShapeError` for
    zero-dimensional operands or inner dimensions that differ.

    >>> jnp.matmul(jnp.ones((5, 2, 3)), jnp.ones((3, 4))).shape
    (5, 2, 4)
    """
    is_plain = precision is None and preferred_element_type is None and settings.matmul_precision is None
    if is_plain and isinstance(a, Array) and isinstance(b, Array):
        run = _plain_kernel(a, b)
        if run is not None:
            return constrained(run(a, b), out_sharding)
        params = _plain_product(a.aval, b.aval)
        if params is not None:
            product = current_trace().process(dot_general_p, (a, b), params)
            if type(product) is ConcreteArray:
                _remember(a, b, params)
            return constrained(product, out_sharding)
    x, y = _promoted("matmul", a, b)
    if not x.shape or not y.shape:
        raise ShapeError(f"matmul needs operands with at least one dimension, got shapes {x.shape} and {y.shape}; use * for scalars")
    inner = x.shape[-1], y.shape[-2 if y.ndim > 1 else 0]
    if inner[0] != inner[1]:
        hint = " (did you mean b.T?)" if y.ndim == 2 and x.shape[-1] == y.shape[-1] else ""
        raise ShapeError(f"matmul of shapes {x.shape} and {y.shape}: the inner dimensions {inner[0]} and {inner[1]} differ{hint}")
    if x.ndim <= 2 and y.ndim <= 2:
        return constrained(dot_general(x, y, _plain_numbers(x.ndim, y.ndim), precision, preferred_element_type), out_sharding)
    return constrained(_stacked_matmul(x, y, precision, preferred_element_type), out_sharding)


def _plain_numbers(left: int, right: int) -> Any:
    """Return the dimension numbers of the product of two matrices or vectors."""
    return ((left - 1,), (max(right - 2, 0),)), ((), ())


def array_matmul(self: Array, other: Any) -> Any:
    """Return ``self @ other``: the operator of arrays."""
    run = _plain_kernel(self, other)
    if run is not None:
        return run(self, other)
    return matmul(self, other) if isinstance(other, (Array, np.ndarray)) else _not_an_operand(other)


def array_rmatmul(self: Array, other: Any) -> Any:
    """Return ``other @ self``: the operator of arrays, of another operand on the left."""
    return matmul(other, self) if isinstance(other, (Array, np.ndarray)) else _not_an_operand(other)


def _not_an_operand(other: Any) -> Any:
    """Raise `ArgumentTypeError` for a number, or what operators of arrays refuse."""
    if isinstance(other, (bool, int, float, complex, np.generic)):
        raise ArgumentTypeError(f"@ is the matrix product, and {other!r} is a number: x * {other!r} multiplies each element")
    return refused_operand(other)


def _plain_kernel(a: Any, b: Any) -> Callable[..., Array] | None:
    """Return the cached kernel for two matrices or vectors of these types, else None."""
    if type(a) is ConcreteArray and type(b) is ConcreteArray and current_trace() is EVAL:
        return dot_general_p.eager_kernels.get((a._spec, b._spec))
    return None


def _remember(a: Any, b: Any, params: SharedParams) -> None:
    """Cache the kernel of a plain product by its operands' types, for `_plain_kernel`."""
    if type(a) is ConcreteArray and type(b) is ConcreteArray:
        kernels = dot_general_p.eager_kernels
        run = kernels.get((a._spec, b._spec, params, None))
        if run is not None:
            kernels[a._spec, b._spec] = run


@lru_cache(maxsize=4096)
def _plain_product(x: ShapedArray, y: ShapedArray) -> SharedParams | None:
    """Return the parameters of a product of two matrices or vectors of one dtype.

    None for other operands, and for those that do not fit.
    """
    if x.dtype != y.dtype or x.dtype in dtypes.STORAGE or not (1 <= x.ndim <= 2 and 1 <= y.ndim <= 2) or x.shape[-1] != y.shape[0]:
        return None
    return SharedParams(product_params(_plain_numbers(x.ndim, y.ndim), x, y, None))


def _stacked_matmul(x: Array, y: Array, precision: Any, preferred_element_type: Any) -> Array:
    """Multiply with shared leading dimensions as batch dimensions and others free."""
    row, column = x.ndim == 1, y.ndim == 1
    x = expand_dims(x, (0,)) if row else x
    y = expand_dims(y, (1,)) if column else y
    rank = max(x.ndim, y.ndim) - 2
    x_sizes = (1,) * (rank - x.ndim + 2) + x.shape[:-2]
    y_sizes = (1,) * (rank - y.ndim + 2) + y.shape[:-2]
    for m, n in zip(x_sizes, y_sizes, strict=True):
        if m != n and 1 not in (m, n):
            raise ShapeError(f"matmul of shapes {x.shape} and {y.shape}: the leading dimensions {m} and {n} do not broadcast")
    # An axis that is 1 in both is the left operand's alone: a matrix on the right stays a matrix.
    shared = [i for i in range(rank) if x_sizes[i] == y_sizes[i] != 1]
    x_only = [i for i in range(rank) if y_sizes[i] == 1]
    y_only = [i for i in range(rank) if x_sizes[i] == 1 != y_sizes[i]]
    left = reshape(x, (*[x_sizes[i] for i in range(rank) if i not in y_only], *x.shape[-2:]))
    right = reshape(y, (*[y_sizes[i] for i in range(rank) if i not in x_only], *y.shape[-2:]))
    left_axes = [i for i in range(rank) if i not in y_only]
    right_axes = [i for i in range(rank) if i not in x_only]
    batch = tuple(left_axes.index(i) for i in shared), tuple(right_axes.index(i) for i in shared)
    out = dot_general(left, right, (((left.ndim - 1,), (right.ndim - 2,)), batch), precision, preferred_element_type)
    # The result has the shared dimensions, x's own and its rows, y's own and its columns.
    order = [*shared, *x_only, rank, *y_only, rank + 1]
    out = transpose(out, [order.index(i) for i in range(rank + 2)])
    dropped = [*([rank] if row else []), *([rank + 1] if column else [])]
    return squeeze(out, dropped) if dropped else out


@fused
def dot(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None, out_sharding: Any = None) -> Array:
    """Contract the last axis of `a` with the second to last of `b`.

    If `b` is a vector, with its only axis. Scalars multiply.

    >>> jnp.dot(jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0]))
    Array(11., dtype=float32)
    """
    x, y = _promoted("dot", a, b)
    if not x.shape or not y.shape:
        return constrained(x * y, out_sharding)
    axis = max(y.ndim - 2, 0)
    _check_contracted("dot", x, y, (x.ndim - 1,), (axis,))
    return constrained(dot_general(x, y, (((x.ndim - 1,), (axis,)), ((), ())), precision, preferred_element_type), out_sharding)


def _check_contracted(name: str, x: Array, y: Array, x_axes: Sequence[int], y_axes: Sequence[int]) -> None:
    sizes = [x.shape[i] for i in x_axes], [y.shape[i] for i in y_axes]
    if sizes[0] != sizes[1]:
        raise ShapeError(f"{name} of shapes {x.shape} and {y.shape}: contracted dimensions have sizes {sizes[0]} and {sizes[1]}")


@fused
def vdot(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """Return the inner product of all elements, conjugating the first operand.

    >>> jnp.vdot(jnp.array([1j, 2.0]), jnp.array([1j, 1.0]))
    Array(3.+0.j, dtype=complex64)
    """
    x, y = _promoted("vdot", a, b)
    row, column = reshape(conj(x), (x.size,)), reshape(y, (y.size,))
    return dot(row, column, precision=precision, preferred_element_type=preferred_element_type)


@fused
def inner(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """Contract the last axes of both operands.

    >>> jnp.inner(jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0]))
    Array(11., dtype=float32)
    """
    x, y = _promoted("inner", a, b)
    if not x.shape or not y.shape:
        return x * y
    return tensordot(x, y, ((-1,), (-1,)), precision=precision, preferred_element_type=preferred_element_type)


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """Return inner products of vectors along `axis`, conjugating the first operand.

    >>> jnp.vecdot(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([1.0, 1.0]))
    Array([3., 7.], dtype=float32)
    """
    x, y = (moveaxis(v, canonical_axis(axis, v.ndim), v.ndim - 1) for v in _promoted("vecdot", x1, x2))
    row, column = expand_dims(conj(x), (x.ndim - 1,)), expand_dims(y, (y.ndim,))
    return squeeze(matmul(row, column, precision=precision, preferred_element_type=preferred_element_type), (-2, -1))


@fused
def matvec(x1: Any, x2: Any, /) -> Array:
    """Multiply matrices x1 (..., M, N) and vectors x2 (..., N), over stacks of both.

    >>> jnp.matvec(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([1.0, 1.0]))
    Array([3., 7.], dtype=float32)
    """
    x, y = _promoted("matvec", x1, x2)
    if x.ndim < 2 or not y.ndim:
        raise ShapeError(f"matvec needs a matrix and a vector, got shapes {x.shape} and {y.shape}")
    return matmul(x, y) if y.ndim == 1 else squeeze(matmul(x, expand_dims(y, (y.ndim,))), (-1,))


def vecmat(x1: Any, x2: Any, /) -> Array:
    """Multiply vectors x1 (..., M), conjugated, and matrices x2 (..., M, N).

    >>> jnp.vecmat(jnp.array([1.0, 1.0]), jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    Array([4., 6.], dtype=float32)
    """
    x, y = _promoted("vecmat", x1, x2)
    if not x.ndim or y.ndim < 2:
        raise ShapeError(f"vecmat needs a vector and a matrix, got shapes {x.shape} and {y.shape}")
    return matmul(conj(x), y) if x.ndim == 1 else squeeze(matmul(expand_dims(conj(x), (x.ndim - 1,)), y), (-2,))


@fused_by_results
def outer(a: Any, b: Any, out: None = None) -> Array:
    """Return all products of an element of `a` with one of `b`, as a matrix.

    >>> jnp.outer(jnp.array([1, 2]), jnp.array([3, 4]))
    Array([[3, 4],
           [6, 8]], dtype=int32)
    """
    x, y = _promoted("outer", a, b)
    return reshape(x, (x.size, 1)) * reshape(y, (1, y.size))


@fused
def tensordot(
    a: Any, b: Any, axes: Any = 2, *, precision: Any = None, preferred_element_type: Any = None, out_sharding: Any = None
) -> Array:
    """Contract the last `axes` of `a` with the first of `b`, or given pairs of axes.

    >>> jnp.tensordot(jnp.ones((2, 3, 4)), jnp.ones((4, 3, 5)), ((1, 2), (1, 0))).shape
    (2, 5)
    """
    x, y = _promoted("tensordot", a, b)
    if isinstance(axes, int):
        if not 0 <= axes <= min(x.ndim, y.ndim):
            raise ShapeError(f"tensordot over {axes} axes does not fit shapes {x.shape} and {y.shape}")
        left, right = tuple(range(x.ndim - axes, x.ndim)), tuple(range(axes))
    else:
        pairs = [(g,) if isinstance(g, int) else tuple(g) for g in axes]
        if len(pairs) != 2 or len(pairs[0]) != len(pairs[1]):
            raise ArgumentError(f"tensordot needs a number of axes or two sequences of equal length, got {axes!r}")
        left, right = canonical_axes(pairs[0], x.ndim), canonical_axes(pairs[1], y.ndim)
    _check_contracted("tensordot", x, y, left, right)
    return constrained(dot_general(x, y, ((left, right), ((), ())), precision, preferred_element_type), out_sharding)


@fused_by_results
def kron(a: Any, b: Any) -> Array:
    """Return the Kronecker product: blocks of `b` scaled by the elements of `a`.

    >>> jnp.kron(jnp.array([1, 10]), jnp.array([1, 2]))
    Array([ 1,  2, 10, 20], dtype=int32)
    """
    x, y = _promoted("kron", a, b)
    rank = max(x.ndim, y.ndim)
    x_sizes = (1,) * (rank - x.ndim) + x.shape
    y_sizes = (1,) * (rank - y.ndim) + y.shape
    left = reshape(x, [n for size in x_sizes for n in (size, 1)])
    right = reshape(y, [n for size in y_sizes for n in (1, size)])
    return reshape(left * right, [m * n for m, n in zip(x_sizes, y_sizes, strict=True)])


@fused
def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Array:
    """Return the cross product of vectors of 2 or 3 components along an axis.

    >>> jnp.cross(jnp.array([1.0, 0.0, 0.0]), jnp.array([0.0, 1.0, 0.0]))
    Array([0., 0., 1.], dtype=float32)
    """
    x, y = _promoted("cross", a, b)
    axes = (axisa, axisb, axisc) if axis is None else (axis,) * 3
    dim_x, dim_y = canonical_axis(axes[0], x.ndim), canonical_axis(axes[1], y.ndim)
    if {x.shape[dim_x], y.shape[dim_y]} - {2, 3}:
        raise ShapeError(f"cross needs vectors of 2 or 3 components, got {x.shape[dim_x]} and {y.shape[dim_y]}")
    u = [index_in_dim(x, i, dim_x, keepdims=False) for i in range(x.shape[dim_x])]
    v = [index_in_dim(y, i, dim_y, keepdims=False) for i in range(y.shape[dim_y])]
    third = u[0] * v[1] - u[1] * v[0]
    if len(u) == len(v) == 2:
        return third
    u, v = ([*w, w[0] * 0] if len(w) == 2 else w for w in (u, v))
    components = [u[1] * v[2] - u[2] * v[1], u[2] * v[0] - u[0] * v[2], third]
    dim = canonical_axis(axes[2], components[0].ndim + 1)
    return concatenate([expand_dims(as_value(p), (dim,)) for p in components], dim)


# `einsum`, contracted two operands at a time in the order NumPy's planner finds.

#: An operand and the letter of each of its dimensions.
Labelled = tuple[Array, str]
DotGeneral = Callable[..., Array]


@fused
def einsum(subscripts: Any, /, *operands: Any, out: None = None, optimize: Any = "optimal", precision: Any = None,
           preferred_element_type: Any = None, _dot_general: DotGeneral = dot_general, out_sharding: Any = None) -> Array:  # fmt: skip
    """Sum the products that `subscripts` describe, such as ``"bij,bjk->bik"``.

    Every form of NumPy's is understood: implicit results, ``...``, repeated letters for diagonals, and alternating operands and lists of
    labels. These may be anything hashable and comparable, as in JAX. `_dot_general` is what multiplies two operands, as in JAX. Raises
    `ArgumentError` for invalid subscripts, `ArgumentTypeError` for labels that cannot be sorted, and `ShapeError` for operands that do not
    fit them.

    >>> jnp.einsum("ij,ij->i", jnp.ones((2, 3)), jnp.ones((2, 3)))
    Array([3., 3.], dtype=float32)
    """
    if not isinstance(subscripts, str):
        subscripts, operands = _from_lists((subscripts, *operands))
    values = promote_args("einsum", operands, dtypes.ALL) if operands else []
    if preferred_element_type is None and values and _dot_general is not dot_general:
        preferred_element_type = values[0].dtype  # users' products are told the dtype of the result, as in JAX
    inputs, result = _parse(subscripts, values)
    sizes = _letter_sizes(inputs, values)
    terms: list[Labelled] = [_simplify(v, letters, sizes) for v, letters in zip(values, inputs, strict=True)]
    for pair in _order(inputs, result, values, optimize):
        term, *others = [terms.pop(i) for i in sorted(pair, reverse=True)]
        while others:
            other = others.pop()
            needed = set(result).union(*[letters for _, letters in (*terms, *others)])
            if _dot_general is not dot_general and _product_letters(term, other, needed) != [*result]:
                term, other = other, term  # it may treat them differently: the earlier one is the first, unless the result has it last
            term = _contract(term, other, needed, precision, preferred_element_type, _dot_general)
        terms.append(term)
    array, letters = _sum_unneeded(terms[0], set(result))
    return constrained(_arrange(array, letters, result, sizes), out_sharding)


def einsum_path(subscripts: Any, /, *operands: Any, optimize: Any = "greedy") -> tuple[list[Any], str]:
    """Return the contraction order of NumPy's planner (by the shapes), and its report.

    >>> jnp.einsum_path("ij,jk,k->i", jnp.ones((2, 3)), jnp.ones((3, 4)), jnp.ones(4))[0]
    ['einsum_path', (1, 2), (0, 1)]
    """
    if not isinstance(subscripts, str):
        subscripts, operands = _from_lists((subscripts, *operands))
    return np.einsum_path(subscripts, *[np.broadcast_to(np.zeros(()), np.shape(v)) for v in operands], optimize=optimize)


def _from_lists(args: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """Convert the form (operand, [0, 1], operand, [1, 2], [0, 2]) to sorted letters."""
    count = len(args) // 2
    operands, terms = tuple(args[0 : 2 * count : 2]), args[1 : 2 * count : 2]
    try:
        labels = sorted({*itertools.chain(*terms)} - {Ellipsis})
    except TypeError as error:
        raise ArgumentTypeError(f"einsum: the labels of dimensions must be hashable and comparable, got {error}") from None
    letters: dict[Any, str] = {label: chr(ord("a") + i) for i, label in enumerate(labels)}
    letters[Ellipsis] = "..."

    def spell(term: Sequence[Any]) -> str:
        if unknown := [label for label in term if label not in letters]:
            raise ArgumentError(f"einsum: the result has the dimension {unknown[0]!r}, which no operand has")
        return "".join(letters[label] for label in term)

    text = ",".join(map(spell, terms))
    return text + ("->" + spell(args[-1]) if len(args) % 2 else ""), operands


def _parse(subscripts: str, values: Sequence[Array]) -> tuple[list[str], str]:
    """Return the letters of each operand and of the result, with ``...`` expanded."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    inputs = left.split(",")
    if len(inputs) != len(values):
        raise ArgumentError(f"einsum {subscripts!r} describes {len(inputs)} operands, but {len(values)} are given")
    unused = list(map(chr, range(ord("α"), ord("α") + 60)))
    ranks = [v.ndim - len(term.replace("...", "")) for term, v in zip(inputs, values, strict=True)]
    widest = max([r for term, r in zip(inputs, ranks, strict=True) if "..." in term], default=0)
    hidden = "".join(unused[:widest])
    spelled = []
    for term, rank, value in zip(inputs, ranks, values, strict=True):
        if rank < 0 or (rank and "..." not in term):
            raise ShapeError(f"einsum {subscripts!r}: the operand of shape {value.shape} does not have the dimensions {term!r}")
        spelled.append(term.replace("...", hidden[widest - rank :]) if "..." in term else term)
    if arrow:
        result = right.replace("...", hidden)
    else:
        counts = Counter("".join(term.replace("...", "") for term in inputs))
        result = hidden + "".join(sorted(c for c, n in counts.items() if n == 1))
    if unknown := sorted({*result} - {*"".join(spelled)} - {*".,->"}):
        raise ArgumentError(f"einsum {subscripts!r}: the result has the letter {unknown[0]!r}, which no operand has")
    bad = [c for c in "".join(spelled) + result if c in ".,->"]
    if bad or len(set(result)) != len(result) or set(result) - set("".join(spelled)):
        raise ArgumentError(f"einsum subscripts {subscripts!r} are not valid: results have distinct letters, each from an operand")
    return spelled, result


def _letter_sizes(inputs: Sequence[str], values: Sequence[Array]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for letters, value in zip(inputs, values, strict=True):
        for letter, size in zip(letters, value.shape, strict=True):
            other = sizes.get(letter, 1)
            if size != other and 1 not in (size, other):
                raise ShapeError(
                    f"einsum: the index {letter!r} has size {other} in one operand and {size} in another of shape {value.shape}"
                )
            sizes[letter] = size if other == 1 else other
    return sizes


def _simplify(value: Array, letters: str, sizes: dict[str, int]) -> Labelled:
    """Reduce repeated letters to diagonals, and drop broadcast dimensions of size 1."""
    for letter in [c for c, n in Counter(letters).items() if n > 1]:
        while letters.count(letter) > 1:
            value, letters = _diagonal(value, letters, letter)
    stretched = [i for i, c in enumerate(letters) if value.shape[i] == 1 and sizes[c] != 1]
    if stretched:
        value = squeeze(value, stretched)
        letters = "".join(c for i, c in enumerate(letters) if i not in stretched)
    return value, letters


def _diagonal(value: Array, letters: str, letter: str) -> Labelled:
    """Merge two dimensions of one letter: every (n + 1)-th element of the square."""
    first = letters.index(letter)
    second = letters.index(letter, first + 1)
    order = [i for i in range(value.ndim) if i not in (first, second)]
    square = transpose(value, [*order, first, second])
    n = square.shape[-1]
    flat = reshape(square, (*square.shape[:-2], n * n))
    rest = "".join(letters[i] for i in order)
    return slice_in_dim(flat, 0, n * n, n + 1, flat.ndim - 1), rest + letter


def _order(inputs: Sequence[str], result: str, values: Sequence[Array], optimize: Any) -> list[tuple[int, ...]]:
    if len(values) <= 2 or not optimize:
        return [(0, 1)] * (len(values) - 1) if len(values) > 1 else [(0,)]
    stand_ins = [np.broadcast_to(np.zeros(()), v.shape) for v in values]
    # The planner takes ASCII letters only.
    names = {c: chr(ord("a") + i) if i < 26 else chr(ord("A") + i - 26) for i, c in enumerate(sorted(set("".join(inputs))))}
    text = ",".join("".join(names[c] for c in term) for term in inputs) + "->" + "".join(names[c] for c in result)
    path, _ = np.einsum_path(text, *stand_ins, optimize="greedy" if len(values) > 4 or optimize == "greedy" else "optimal")
    return [tuple(step) for step in path[1:]]


def _sum_unneeded(term: Labelled, needed: set[str]) -> Labelled:
    """Sum (booleans: or) over the letters that occur in this term alone."""
    value, letters = term
    axes = [i for i, c in enumerate(letters) if c not in needed]
    total = reduce_or if value.dtype in dtypes.BOOL else reduce_sum
    return (total(value, axes), "".join(c for c in letters if c in needed)) if axes else term


def _product_letters(a: Labelled, b: Labelled, needed: set[str]) -> list[str]:
    """Return the letters of a product: shared ones, then those of each operand."""
    shared = [letter for letter in a[1] if letter in b[1]]
    return [letter for letter in dict.fromkeys([*shared, *a[1], *b[1]]) if letter in needed]


def _contract(a: Labelled, b: Labelled, needed: set[str], precision: Any, preferred_element_type: Any, multiply: DotGeneral) -> Labelled:
    """Multiply two terms and sum over the letters that are no longer needed."""
    (x, x_letters), (y, y_letters) = _sum_unneeded(a, needed | set(b[1])), _sum_unneeded(b, needed | set(a[1]))
    shared = [c for c in x_letters if c in y_letters]
    batch = [c for c in shared if c in needed]
    summed = [c for c in shared if c not in needed]
    numbers = (
        (tuple(x_letters.index(c) for c in summed), tuple(y_letters.index(c) for c in summed)),
        (tuple(x_letters.index(c) for c in batch), tuple(y_letters.index(c) for c in batch)),
    )
    free = [c for c in x_letters if c not in shared] + [c for c in y_letters if c not in shared]
    letters = "".join([*batch, *free])
    if not summed and multiply is dot_general:
        product = mul(_spread(x, x_letters, letters), _spread(y, y_letters, letters))
        return product if preferred_element_type is None else convert_element_type(product, preferred_element_type), letters
    return multiply(x, y, numbers, precision, preferred_element_type=preferred_element_type), letters


def _spread(value: Array, letters: str, out_letters: str) -> Array:
    """Permute to the wanted letters, with size 1 for those that the term lacks."""
    present = [c for c in out_letters if c in letters]
    ordered = transpose(value, [letters.index(c) for c in present])
    sizes = dict(zip(present, ordered.shape, strict=True))
    return reshape(ordered, [sizes.get(c, 1) for c in out_letters])


def _arrange(value: Array, letters: str, result: str, sizes: dict[str, int]) -> Array:
    """Permute to the result's letters; stretch those of broadcast operands alone."""
    present = [c for c in result if c in letters]
    ordered = transpose(value, [letters.index(c) for c in present])
    if len(present) == len(result):
        return ordered
    return broadcast_in_dim(ordered, [sizes[c] for c in result], [result.index(c) for c in present])
