"""Expansions.

Equations without a routine become simpler ones, or primitives that only passes introduce.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.ir.index import is_elementwise, is_view, reduces
from volta_fn.compiler.ir.kernel import with_each_replaced
from volta_fn.compiler.passes.rewriting import Rewriter, Rules, Table, literal, rewrite, rule, rules_of_table
from volta_fn.core.arrays.array import Array, from_host, numbers_of
from volta_fn.core.aval import Shape, ShapedArray
from volta_fn.core.devices.device import find_device
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var
from volta_fn.core.primitive import Primitive, evaluation_rules
from volta_fn.core.staging import trace_to_jaxpr
from volta_fn.core.trace import bind
from volta_fn.primitives import contraction
from volta_fn.primitives.call import Axes as AttentionAxes
from volta_fn.primitives.call import Form, call_params, jit_p
from volta_fn.primitives.contraction import batch_matmul, dot_general, ragged_dot_p
from volta_fn.primitives.convolution import ConvDimensionNumbers
from volta_fn.primitives.data_movement.gather import GatherScatterMode, gather_p, scatter_add_p
from volta_fn.primitives.data_movement.movement import broadcast_to, moveaxis, reshape, reshape_p, rev
from volta_fn.primitives.data_movement.slicing import concatenate, pad, slice_in_dim
from volta_fn.primitives.elementwise import arithmetic, selection
from volta_fn.primitives.elementwise.arithmetic import mul
from volta_fn.primitives.elementwise.selection import complex, conj, is_finite, real, select
from volta_fn.primitives.fourier import fft_p
from volta_fn.primitives.linalg.solvers import adjoint, cholesky_p, real_part, swap, triangular_solve_p, tril
from volta_fn.primitives.quantized import BLOCK_NUMBERS, expanded, quantized_dot_p

# Attention and its gradient: the primitives of the attention pass.
#
# ``attention(q, k, v[, bias], *masks)`` gives the result and, for each query, its largest logit and the sum of its weights relative to
# that, as an array (heads, queries, 2) of the dtype of logits. ``attention_gradient(q, k, v[, bias], *masks, result, statistics,
# cotangent)`` gives the cotangents of q, k and v, and that of the bias if the form says so. Results have the layout of the operand they
# belong to: the first that of q, gradients that of their primal.


def result_avals(form: Form, q: ShapedArray, v: ShapedArray) -> tuple[ShapedArray, ShapedArray]:
    """Return the types of the results of `attention`."""
    shape = list(q.shape)
    shape[form.q.features] = v.shape[form.v.features]
    rows = [math.prod(q.shape[a] for a in form.q.heads), q.shape[form.q.rows]]
    return ShapedArray(tuple(shape), q.dtype), ShapedArray((*rows, 2), dtypes.accumulator(q.dtype))


def _attention_avals(q: ShapedArray, k: ShapedArray, v: ShapedArray, *others: ShapedArray, form: Form) -> tuple[ShapedArray, ...]:
    return result_avals(form, q, v)


def _gradient_avals(q: ShapedArray, k: ShapedArray, v: ShapedArray, *others: ShapedArray, form: Form) -> tuple[ShapedArray, ...]:
    return (q, k, v, others[0]) if form.to_bias else (q, k, v)


def _rows(x: np.ndarray, axes: AttentionAxes, heads: int = 0) -> np.ndarray:
    """Return wide matrices (…, heads, rows, features), heads repeated to a number."""
    matrices = np.asarray(x, dtypes.accumulator(x.dtype)).transpose(axes.order)
    return np.repeat(matrices, heads // matrices.shape[-3], -3) if heads else matrices


class AttentionWeights(NamedTuple):
    """The weights of attention, and what gradients need besides.

    Attributes:
        weights: by head, query and key.
        statistics: each query's largest logit and the sum of its weights relative to that.
        visible: where a query sees a key.
        slope: the derivative of logits by scaled products.
    """

    weights: np.ndarray
    statistics: np.ndarray
    visible: np.ndarray
    slope: Any


def attention_weights(q: np.ndarray, k: np.ndarray, others: Sequence[np.ndarray], form: Form) -> AttentionWeights:
    """Return the weights of matrices of queries and keys."""
    wide = q.dtype
    logits = q @ k.swapaxes(-1, -2) * wide.type(form.scale)
    t, s = logits.shape[-2:]
    slope: Any = 1
    if form.softcap:
        bounded = np.tanh(logits / wide.type(form.softcap))
        logits, slope = bounded * wide.type(form.softcap), 1 - bounded * bounded
    if form.biased:
        logits = logits + others[0].astype(wide)
    ahead = np.arange(s) - np.arange(t)[:, None]
    visible = np.ones((t, s), np.bool_) if form.window.before is None else ahead >= -form.window.before
    visible = visible if form.window.after is None else visible & (ahead <= form.window.after)
    for mask in others[form.biased : form.biased + form.masks]:
        visible = visible & mask
    logits = np.where(visible, logits, wide.type(form.unseen))
    top = logits.max(-1, keepdims=True)
    weights = np.exp(logits - top)
    total = weights.sum(-1, keepdims=True)
    return AttentionWeights(weights / total, np.concatenate([top, total], -1).reshape(-1, t, 2), visible, slope)


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *others: np.ndarray, form: Form) -> tuple[np.ndarray, np.ndarray]:
    queries = _rows(q, form.q)
    heads = queries.shape[-3]
    results = attention_weights(queries, _rows(k, form.k, heads), others, form)
    return (results.weights @ _rows(v, form.v, heads)).transpose(form.q.inverse).astype(q.dtype), results.statistics


def _attention_gradient(q: np.ndarray, k: np.ndarray, v: np.ndarray, *others: np.ndarray, form: Form) -> tuple[np.ndarray, ...]:
    assert form.cotangent is not None
    queries, cotangent = _rows(q, form.q), _rows(others[-1], form.cotangent)
    heads = queries.shape[-3]
    keys, values = _rows(k, form.k, heads), _rows(v, form.v, heads)
    weights, _, visible, slope = attention_weights(queries, keys, others, form)
    slopes = cotangent @ values.swapaxes(-1, -2)
    slopes = np.where(visible, weights * (slopes - (slopes * weights).sum(-1, keepdims=True)), 0)
    bias_gradient = [_sum_to(slopes, others[0])] if form.to_bias else []
    slopes = slopes * slope * queries.dtype.type(form.scale)

    def summed(x: np.ndarray, like: np.ndarray, axes: AttentionAxes) -> np.ndarray:
        """Sum over the heads that share a key or value."""
        groups = like.shape[axes.heads[-1]]
        total = x.reshape(*x.shape[:-3], groups, heads // groups, *x.shape[-2:]).sum(-3)
        return total.transpose(axes.inverse).astype(like.dtype)

    to_k, to_v = slopes.swapaxes(-1, -2) @ queries, weights.swapaxes(-1, -2) @ cotangent
    return summed(slopes @ keys, q, form.q), summed(to_k, k, form.k), summed(to_v, v, form.v), *bias_gradient


def _sum_to(x: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Sum over the axes along which an array was broadcast."""
    shape = (1,) * (x.ndim - like.ndim) + like.shape
    axes = tuple([a for a, size in enumerate(shape) if size == 1])
    return x.sum(axes, keepdims=True).reshape(like.shape).astype(like.dtype)


attention_routine_p = Primitive("attention_routine", _attention_avals, evaluate=_attention, multiple_results=True, listed=False)
attention_gradient_routine_p = Primitive(
    "attention_gradient_routine", _gradient_avals, evaluate=_attention_gradient, multiple_results=True, listed=False
)


# Gathers and scatters whose negative indices count from the end: the primitives of the pass for negative indices.
#
# ``wrapped_gather`` and ``wrapped_scatter_add`` are `gather` and `scatter_add` of one position per window, with the same parameters. A
# negative position stands for itself plus the size of the operand's dimension.


def _from_the_start(operand: np.ndarray, indices: np.ndarray, dim: int) -> np.ndarray:
    return np.where(indices < 0, indices + operand.shape[dim], indices).astype(indices.dtype)


def _wrapped_gather(operand: np.ndarray, indices: np.ndarray, **params: Any) -> Any:
    (dim,) = params["dimension_numbers"].start_index_map
    return evaluation_rules[gather_p](operand, _from_the_start(operand, indices, dim), **params)


def _wrapped_scatter_add(operand: np.ndarray, indices: np.ndarray, updates: np.ndarray, **params: Any) -> Any:
    (dim,) = params["dimension_numbers"].scatter_dims_to_operand_dims
    return evaluation_rules[scatter_add_p](operand, _from_the_start(operand, indices, dim), updates, **params)


wrapped_gather_p = Primitive("wrapped_gather", gather_p.abstract, evaluate=_wrapped_gather, listed=False)
wrapped_scatter_add_p = Primitive("wrapped_scatter_add", scatter_add_p.abstract, evaluate=_wrapped_scatter_add, listed=False)


# Equations as calls of functions of arrays, which take the operands and the parameters.


def _with_calls(closed: ClosedJaxpr, primitive: Primitive, evaluation: Callable[[Equation], Callable[..., Array] | None]) -> ClosedJaxpr:
    """Replace a primitive's equations by calls of functions that compute the same.

    `evaluation` returns the function of an equation, or None if that stays.
    """

    def replaced(eqn: Equation) -> list[Equation]:
        function = evaluation(eqn) if eqn.primitive is primitive else None
        if function is None:
            return [eqn]
        program = trace_to_jaxpr(lambda *operands: [function(*operands, **eqn.params)], [v.aval for v in eqn.invars], primitive.name)
        return [Equation(jit_p, eqn.invars, eqn.outvars, call_params(program, primitive.name), eqn.position)]

    return with_each_replaced(closed, replaced)


# Fourier transforms as products with small matrices.
#
# For targets that have no routine of their own for them. A row of n = f·g elements is a matrix of f rows and g columns. Its transform
# is that of each column, a product with an f×f matrix; a rotation of each element by its own angle; and the transform of each row, the
# same again (Cooley and Tukey, 1965). With factors of up to `DIRECT` a million elements need four products. A row of a prime number of
# elements beyond that is a convolution, which two transforms of a power of two elements compute (Bluestein, 1970). The error is some
# 3e-7 of the largest element in complex64, where a transform in double precision that is rounded at the end has 5e-8.

#: The most elements that are transformed by one matrix.
DIRECT = 64


def expand_fourier_transforms(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Expand a program's Fourier transforms to products."""
    return _with_calls(closed, fft_p, lambda eqn: by_products)


def by_products(x: Array, *, kind: str, length: int, axis: int) -> Array:
    """Evaluate the primitive `fft`."""
    row = moveaxis(x, axis, x.ndim - 1)
    last = x.ndim - 1
    if kind == "RFFT":
        spectrum = transform(complex(row, _constant(np.zeros((), row.dtype))), -1)
        return moveaxis(slice_in_dim(spectrum, 0, length // 2 + 1, axis=last), last, axis)
    if kind == "IRFFT":
        mirrored = conj(rev(slice_in_dim(row, 1, (length + 1) // 2, axis=last), (last,)))
        row = concatenate([row, mirrored], last)
    transformed = transform(row, -1 if kind == "FFT" else 1)
    transformed = transformed if kind == "FFT" else mul(transformed, _constant(np.asarray(1 / length, transformed.dtype)))
    return moveaxis(real(transformed) if kind == "IRFFT" else transformed, last, axis)


def transform(x: Array, sign: int) -> Array:
    """Return Σ_j x[…, j] exp(sign 2πi j k / n) for every k, along the last axis."""
    n = x.shape[-1]
    if n <= DIRECT:
        return _times(x, _twiddles(n, n, n, sign, x.dtype))
    factor = next((f for f in range(DIRECT, 1, -1) if n % f == 0), None)
    if factor is None:
        return _by_convolution(x, sign)
    rest = n // factor
    columns = swap(reshape(x, (*x.shape[:-1], factor, rest)))
    rotated = mul(swap(_times(columns, _twiddles(factor, factor, factor, sign, x.dtype))), _twiddles(factor, rest, n, sign, x.dtype))
    return reshape(swap(transform(rotated, sign)), x.shape)


def _times(x: Array, matrix: Array) -> Array:
    return dot_general(x, matrix, (((x.ndim - 1,), (0,)), ((), ())), precision="highest")


def _constant(values: np.ndarray) -> Array:
    return from_host(values, device=find_device("cpu"))


def _twiddles(rows: int, columns: int, n: int, sign: int, dtype: np.dtype) -> Array:
    """Return exp(sign 2πi j k / n) in row j and column k, of exact angles."""
    steps = np.outer(np.arange(rows, dtype=np.int64), np.arange(columns, dtype=np.int64)) % n
    twiddles = np.exp(2j * np.pi / n * steps)
    quarters, beyond = np.divmod(4 * steps, n)
    exact = beyond == 0
    twiddles[exact] = np.array([1, 1j, -1, -1j])[quarters[exact]]  # where π, which is rounded, would leave traces
    return _constant((twiddles if sign > 0 else twiddles.conj()).astype(dtype))


def _by_convolution(x: Array, sign: int) -> Array:
    """Transform by a convolution."""
    # With 2jk = j² + k² - (k - j)² the transform is a convolution with exp(-sign πi d² / n), between two rotations by the opposite angles.
    n = x.shape[-1]
    # The chirp is exp(sign πi j² / n); the spectrum of its conjugate is over all distances, in a power of two elements.
    chirp = np.exp(sign * 1j * np.pi / n * (np.arange(n, dtype=np.int64) ** 2 % (2 * n)))
    distances = np.zeros(1 << (2 * n - 2).bit_length(), np.complex128)
    distances[:n] = chirp.conj()
    distances[1 - n :] = chirp[:0:-1].conj()
    chirp, spectrum = chirp.astype(x.dtype), np.fft.fft(distances).astype(x.dtype)
    size = spectrum.shape[0]
    zero = _constant(np.zeros((), x.dtype))
    rotated = pad(mul(x, _constant(chirp)), zero, [(0, 0, 0)] * (x.ndim - 1) + [(0, size - n, 0)])
    convolved = transform(mul(transform(rotated, -1), _constant(spectrum)), 1)
    samples = mul(slice_in_dim(convolved, 0, n, axis=x.ndim - 1), _constant(chirp))
    return mul(samples, _constant(np.asarray(1 / size, samples.dtype)))


# Cholesky factorisations as panels and products.
#
# The matrix that is left after k panels is the next operand: its first columns become a panel of the factor, and the product of that
# panel's rows with their adjoints is subtracted from its other columns (the right-looking algorithm of LAPACK's potrf).


def _panel_abstract(x: ShapedArray, *, width: int) -> ShapedArray:
    return ShapedArray((*x.shape[:-1], width), x.dtype)


def _panel(x: np.ndarray, *, width: int) -> np.ndarray:
    factor = evaluation_rules[cholesky_p](x[..., :width, :width])
    flags = {"left_side": False, "lower": True, "transpose_a": True, "conjugate_a": True, "unit_diagonal": False}
    return np.concatenate([factor, evaluation_rules[triangular_solve_p](factor, x[..., width:, :width], **flags)], -2)


#: The first `width` columns of Cholesky factors. Only these columns of the matrices are read, from the diagonal down. The lower triangle is
#: NaN where one of these pivots is not positive, whatever the other columns are.
cholesky_panel_p = Primitive("cholesky_panel", _panel_abstract, evaluate=_panel, listed=False)


def expand_cholesky(closed: ClosedJaxpr, panel_width: Callable[[ShapedArray], int | None]) -> ClosedJaxpr:
    """Expand a program's Cholesky factorisations to those of panels, and products.

    `panel_width` returns the columns of the panels of a matrix, or None if it is not to be expanded.
    """

    def evaluation(eqn: Equation) -> Callable[..., Array] | None:
        width = panel_width(eqn.invars[0].aval)
        return None if width is None else partial(by_panels, width=width)

    return _with_calls(closed, cholesky_p, evaluation)


def by_panels(x: Array, width: int) -> Array:
    """Evaluate the primitive `cholesky` by panels of so many columns."""
    n, rows, columns = x.shape[-1], x.ndim - 2, x.ndim - 1
    panel = bind(cholesky_panel_p, x, width=min(width, n))
    if n <= width:
        return panel
    zero, stack = np.zeros((), x.dtype), [(0, 0, 0)] * rows
    factor = pad(panel, zero, [*stack, (0, 0, 0), (0, n - width, 0)])
    for start in range(width, n, width):
        end = min(start + width, n)
        below = slice_in_dim(panel, width, None, axis=rows)
        rest = slice_in_dim(slice_in_dim(x, width, None, axis=rows), width, None, axis=columns)
        x = rest - batch_matmul(below, adjoint(below), precision="highest")
        panel = bind(cholesky_panel_p, x, width=end - start)
        factor = factor + pad(panel, zero, [*stack, (start, 0, 0), (start, n - end, 0)])
    # A pivot that is not positive makes its panel NaN, and through the products all later ones.
    last = broadcast_to(slice_in_dim(slice_in_dim(panel, -1, None, axis=rows), -1, None, axis=columns), factor.shape)
    return select(is_finite(real_part(last)), factor, tril(broadcast_to(_constant(np.asarray(np.nan, x.dtype)), factor.shape)))


def expand_quantized_products(
    closed: ClosedJaxpr, has_routine: Callable[[Equation], bool], block_numbers: int = BLOCK_NUMBERS
) -> ClosedJaxpr:
    """Expand products with quantised matrices to products with blocks of rows.

    Those for which the target has a routine stay. Matrices of at most `block_numbers` are one block.
    """
    return _with_calls(closed, quantized_dot_p, lambda eqn: None if has_routine(eqn) else partial(expanded, most=block_numbers))


def expand_ragged_products(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Expand ragged products to blocks of rows with the matrix of their group."""
    return _with_calls(closed, ragged_dot_p, lambda eqn: contraction.expanded_ragged_dot)


# Gathers and scatters of one element per row as comparisons.
#
# Class labels choose one score of each example, and the gradient writes one number into a row of zeros. Kernels over the rows do both
# on the way, where a gather and a scatter would each need the complete array in memory.

_ONEHOT_RULES: Table = {}
_INT32 = np.dtype(np.int32)

#: Elements of a row, and equations to look at in search of a reduction over rows, at most.
_LONGEST_ROW = 1 << 16
_FAR = 32


def expand_onehot_indexing(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Expand gathers and scatters of one element per row to comparisons.

    They are expanded only where comparisons are not more work.
    """
    return rewrite(closed, _ONEHOT_PRIMITIVES)


class _Rows(NamedTuple):
    """An array's rows along an axis, each of which has an index."""

    shape: Shape
    axis: int

    @property
    def others(self) -> tuple[int, ...]:
        """The axes that number the rows."""
        return tuple([a for a in range(len(self.shape)) if a != self.axis])

    def spread(self, program: Rewriter, eqn: Equation, atom: Atom) -> Atom:
        """Broadcast one value per row to all elements."""
        flat = program.emit(eqn, "reshape", atom, new_sizes=tuple([self.shape[a] for a in self.others]))
        return program.emit(eqn, "broadcast_in_dim", flat, shape=self.shape, broadcast_dimensions=self.others)

    def numbers(self, program: Rewriter, eqn: Equation, clips: bool) -> Atom:
        """Return the rows' indices, with int32 at least, clipped if `clips`."""
        numbers = eqn.invars[1]
        if numbers.aval.dtype.itemsize < _INT32.itemsize:
            numbers = program.emit(eqn, "convert_element_type", numbers, new_dtype=_INT32, weak_type=False)
        if clips:
            last = literal(self.shape[self.axis] - 1, numbers.aval.dtype)
            numbers = program.emit(eqn, "min", program.emit(eqn, "max", numbers, literal(0, numbers.aval.dtype)), last)
        return numbers

    def chosen(self, program: Rewriter, eqn: Equation, index: Atom) -> Atom:
        """Compare each element's position with its row's index."""
        positions = program.emit(eqn, "iota", dtype=index.aval.dtype, shape=self.shape, dimension=self.axis)
        return program.emit(eqn, "eq", positions, self.spread(program, eqn, index))

    def inside(self, program: Rewriter, eqn: Equation, index: Atom) -> Atom:
        """Compare each row's index with the ends of the row."""
        first, end = (literal(n, index.aval.dtype) for n in (0, self.shape[self.axis]))
        return program.emit(eqn, "and", program.emit(eqn, "ge", index, first), program.emit(eqn, "lt", index, end))


def _table_rows(eqn: Equation) -> _Rows | None:
    """Return the rows of which a gather or scatter touches one element each, or None."""
    operand, indices = [v.aval for v in eqn.invars[:2]]
    windows, absent, addressed, batching, index_batching = eqn.params["dimension_numbers"]
    if windows or absent != addressed or len(addressed) != 1 or indices.size != operand.size // operand.shape[addressed[0]]:
        return None
    rows = _Rows(operand.shape, addressed[0])
    in_order = batching == rows.others and list(index_batching) == sorted(index_batching) and indices.shape[-1] == 1
    return rows if in_order and all(indices.shape[i] == operand.shape[a] for a, i in zip(batching, index_batching, strict=True)) else None


@rule(_ONEHOT_RULES, "gather")
def _read(eqn: Equation, program: Rewriter) -> Atom | None:
    """Expand a gather to a row's largest element, with others masked by -inf.

    Or the fill value if the index lies outside.
    """
    operand, (out,) = eqn.invars[0], eqn.outvars
    rows = _table_rows(eqn) if operand.aval.dtype in dtypes.FLOATS and operand.aval.size else None
    if rows is None or rows.shape[rows.axis] > _LONGEST_ROW or not _is_made_row_by_row(program, operand, rows):
        return None
    fills = eqn.params["mode"] is GatherScatterMode.FILL_OR_DROP
    index = rows.numbers(program, eqn, not fills)
    others: Atom = literal(-np.inf, operand.aval.dtype)
    if fills:
        fill = literal(np.nan if eqn.params["fill_value"] is None else eqn.params["fill_value"], operand.aval.dtype)
        others = rows.spread(program, eqn, program.emit(eqn, "select_n", rows.inside(program, eqn, index), fill, others))
    candidates = program.emit(eqn, "select_n", rows.chosen(program, eqn, index), others, operand)
    largest = program.emit(eqn, "reduce_max", candidates, axes=(rows.axis,))
    return program.emit(eqn, "reshape", largest, new_sizes=out.aval.shape)


def _is_made_row_by_row(program: Rewriter, atom: Atom, rows: _Rows) -> bool:
    """Return True if a fused loop over its rows can compute an array's operands."""
    waiting, seen = [atom], set[Atom]()
    while waiting and len(seen) < _FAR:
        at = waiting.pop()
        eqn = None if at in seen else program.producer(at)
        seen.add(at)
        if eqn is None:
            continue
        if reduces(eqn) and eqn.params.get("axes") == (rows.axis,) and eqn.invars[0].aval.shape == rows.shape:
            return True
        if is_elementwise(eqn) or is_view(eqn):
            waiting += eqn.invars
    return False


@rule(_ONEHOT_RULES, "scatter", "scatter_add")
def _changed(eqn: Equation, program: Rewriter) -> Atom | None:
    """Select the updated value at the chosen element, and the operand elsewhere.

    That is a constant, or made by a loop over its rows.
    """
    operand, _, updates = eqn.invars
    value = program.scalar(operand)
    rows = _table_rows(eqn) if operand.aval.size else None
    if rows is None or (value is None and not _is_made_row_by_row(program, operand, rows)):
        return None
    index = rows.numbers(program, eqn, eqn.params["mode"] is GatherScatterMode.CLIP)
    if eqn.primitive is not scatter_add_p:
        new = rows.spread(program, eqn, updates)
    elif value is not None:
        new = rows.spread(program, eqn, program.emit(eqn, "add", literal(value, operand.aval.dtype), updates))
    else:
        new = program.emit(eqn, "add", operand, rows.spread(program, eqn, updates))
    return program.emit(eqn, "select_n", rows.chosen(program, eqn, index), operand, new)


_ONEHOT_PRIMITIVES = Rules(rules_of_table(_ONEHOT_RULES))


# Products that contract no axis as elementwise ones.
#
# The sum of one number begins with 0, to which -0 adds nothing: products that are computed as sums lose the sign, and products without
# contracted axes must keep it. A sum over axes of size 1 is a product of that kind plus 0. Expanded, both are stored in any order of axes,
# and fuse with what uses them, as the gradient of a matrix does that multiplies one row.

_OUTER_PRODUCT_RULES: Table = {}


def expand_outer_products(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Expand products without sums of two or more terms to multiplications."""
    return rewrite(closed, _OUTER_PRODUCT_PRIMITIVES)


@rule(_OUTER_PRODUCT_RULES, "dot_general")
def _outer_product(eqn: Equation, program: Rewriter) -> Atom | None:
    contracted, stacked = eqn.params["dimension_numbers"]
    if any(eqn.invars[0].aval.shape[d] != 1 for d in contracted[0]):
        return None
    result = eqn.outvars[0].aval
    factors, first = [], len(stacked[0])
    for operand, summed, batch in zip(eqn.invars, contracted, stacked, strict=True):
        free = [d for d in range(operand.aval.ndim) if d not in (*summed, *batch)]
        factor, order = operand, (*batch, *free, *summed)
        if order != tuple(range(len(order))):
            factor = program.emit(eqn, "transpose", factor, permutation=order)
        if summed:
            factor = program.emit(eqn, "reshape", factor, new_sizes=tuple([operand.aval.shape[d] for d in (*batch, *free)]))
        if factor.aval.dtype != result.dtype:
            factor = program.emit(eqn, "convert_element_type", factor, new_dtype=result.dtype, weak_type=False)
        if factor.aval.shape != result.shape:
            dims = (*range(len(batch)), *range(first, first + len(free)))
            factor = program.emit(eqn, "broadcast_in_dim", factor, shape=result.shape, broadcast_dimensions=dims)
        factors.append(factor)
        first += len(free)
    product = program.emit(eqn, "and" if result.dtype == np.bool_ else "mul", *factors)
    if not contracted[0] or result.dtype not in dtypes.INEXACT:
        return product
    return program.emit(eqn, "add", product, literal(0, result.dtype))


_OUTER_PRODUCT_PRIMITIVES = Rules(rules_of_table(_OUTER_PRODUCT_RULES))


# Padding between elements, so that loops can count elements and padding apart.
#
# An index of a result whose elements are `step` apart is an affine one of (element, place after it) if the size is a multiple of `step`:
# the array is padded to such a size, and sliced. Kernels read the slice alone.

_INTERIOR_PADDING_RULES: Table = {}


def expand_interior_padding(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Expand padding between elements to a result of whole steps, and a slice."""
    return rewrite(closed, _INTERIOR_PADDING_PRIMITIVES)


@rule(_INTERIOR_PADDING_RULES, "pad")
def _padded_to_multiples(eqn: Equation, program: Rewriter) -> Atom | None:
    sizes, config = eqn.outvars[0].aval.shape, eqn.params["padding_config"]
    excess = [-n % (interior + 1) if n > interior + 1 else 0 for n, (_, _, interior) in zip(sizes, config, strict=True)]
    if not any(excess) or 0 in sizes or eqn.outvars[0].aval.dtype in dtypes.STORAGE:  # which kernels do not move
        return None
    longer = tuple([(low, high + extra, interior) for extra, (low, high, interior) in zip(excess, config, strict=True)])
    padded = program.emit(eqn, "pad", *eqn.invars, padding_config=longer)
    return program.emit(eqn, "slice", padded, start_indices=(0,) * len(sizes), limit_indices=sizes, strides=None)


_INTERIOR_PADDING_PRIMITIVES = Rules(rules_of_table(_INTERIOR_PADDING_RULES))


# Products of operands as they are before conversions that change no number.
#
# The converted operand would be stored, in more memory than it was read from: twice the weights, for bfloat16 to float32. A product of two
# operands of bfloat16 that were converted keeps the conversion of the smaller one, so that it computes in float32 (see `matmul.groups`).

_NARROW_OPERAND_RULES: Table = {}
_BFLOAT16 = np.dtype(dtypes.bfloat16)


def read_narrow_operands(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Let products read operands before they are converted to the dtype of the sums."""
    return rewrite(closed, _NARROW_OPERAND_PRIMITIVES)


@rule(_NARROW_OPERAND_RULES, "dot_general")
def _narrow_operands(eqn: Equation, program: Rewriter) -> Atom | None:
    wide, invars = eqn.outvars[0].aval.dtype, list(eqn.invars)
    for side, operand in enumerate(eqn.invars):
        conversion = program.producer(operand, "convert_element_type")
        if conversion is not None and operand.aval.dtype == wide and _holds_all(wide, conversion.invars[0].aval.dtype):
            (invars[side],) = conversion.invars
    if all(v.aval.dtype == _BFLOAT16 for v in invars) and wide != _BFLOAT16:
        smaller = int(invars[1].aval.size < invars[0].aval.size)
        invars[smaller] = eqn.invars[smaller]
    if all(new is old for new, old in zip(invars, eqn.invars, strict=True)):
        return None
    return program.emit(eqn, "dot_general", *invars, **{**eqn.params, "preferred_element_type": wide})


def _holds_all(wide: np.dtype, narrow: np.dtype) -> bool:
    """Return True if a dtype of the same kind holds all numbers of a narrower one."""
    floats = narrow in (np.float16, _BFLOAT16) and wide in (np.float32, np.float64)
    return floats or (narrow.kind in "iu" and wide.kind in "iu" and narrow.itemsize < wide.itemsize and dtypes.can_cast(narrow, wide))


_NARROW_OPERAND_PRIMITIVES = Rules(rules_of_table(_NARROW_OPERAND_RULES))


# Random bits as operations on counters, which kernels compute on use.

_RANDOM_BITS_RULES: Table = {}
_UINT32, _UINT64 = np.dtype(np.uint32), np.dtype(np.uint64)


def expand_random_bits(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Expand random bits to ciphers of counters, which are indices."""
    return rewrite(closed, _RANDOM_BITS_PRIMITIVES)


@rule(_RANDOM_BITS_RULES, "random_bits")
def _random_bits(eqn: Equation, program: Rewriter) -> Atom:
    (keys,) = eqn.invars
    shape, width = eqn.params["shape"], eqn.params["bit_width"]
    words = [_word_of_key(eqn, program, keys, word, len(shape)) for word in (0, 1)]
    counters = _counters(eqn, program, shape, len(keys.aval.shape) - 1)

    def word(which: str) -> Atom:
        return program.emit(eqn, "threefry2x32_word", *words, *counters, word=which)

    if width != 64:
        return _converted(eqn, program, word("mixed"), eqn.outvars[0].aval.dtype)
    high, low = (_converted(eqn, program, word(which), _UINT64) for which in ("first", "second"))
    return program.emit(eqn, "or", program.emit(eqn, "shift_left", high, literal(32, _UINT64)), low)


@rule(_RANDOM_BITS_RULES, "threefry2x32")
def _both_words(eqn: Equation, program: Rewriter) -> list[Atom]:
    return [program.emit(eqn, "threefry2x32_word", *eqn.invars, word=word) for word in ("first", "second")]


def _word_of_key(eqn: Equation, program: Rewriter, keys: Atom, word: int, extra: int) -> Atom:
    """Return a word of every key, with `extra` new dimensions at the end."""
    shape = keys.aval.shape[:-1]
    start, limit = (0,) * len(shape) + (word,), (*shape, word + 1)
    words = program.emit(eqn, "slice", keys, start_indices=start, limit_indices=limit, strides=None)
    return program.emit(eqn, "reshape", words, new_sizes=(*shape, *(1,) * extra))


def _counters(eqn: Equation, program: Rewriter, shape: tuple[int, ...], keys: int) -> tuple[Atom, Atom]:
    """Return the upper and lower words of the elements' numbers.

    There are `keys` dimensions of size 1 before those of `shape`.
    """
    count = math.prod(shape)
    sizes = (1,) * keys + shape

    def numbers(dtype: np.dtype) -> Atom:
        flat = program.emit(eqn, "iota", dtype=dtype, shape=(count,), dimension=0)
        return program.emit(eqn, "reshape", flat, new_sizes=sizes)

    if count <= 1 << 32:
        return literal(0, _UINT32), numbers(_UINT32)
    wide = numbers(_UINT64)
    upper = program.emit(eqn, "shift_right_logical", wide, literal(32, _UINT64))
    return _converted(eqn, program, upper, _UINT32), _converted(eqn, program, wide, _UINT32)


def _converted(eqn: Equation, program: Rewriter, atom: Atom, dtype: np.dtype) -> Atom:
    if atom.aval.dtype == dtype:
        return atom
    return program.emit(eqn, "convert_element_type", atom, new_dtype=dtype, weak_type=False)


_RANDOM_BITS_PRIMITIVES = Rules(rules_of_table(_RANDOM_BITS_RULES))


# Gathers and scatters that make negative indices positive themselves.
#
# Indexing from Python counts negative positions from the end: a comparison, an addition and a selection of all indices. They would be a
# kernel before each gather of rows, which takes little less time than the gather itself.

_INDEX_TYPE = np.dtype(np.int32)

#: By primitive: its counterpart, and the names of the dimensions that windows have and that index vectors address.
_COUNTERPARTS: dict[Primitive, tuple[Primitive, str, str]] = {
    gather_p: (wrapped_gather_p, "offset_dims", "start_index_map"),
    scatter_add_p: (wrapped_scatter_add_p, "update_window_dims", "scatter_dims_to_operand_dims"),
}


def keep_negative_indices(
    closed: ClosedJaxpr, primitives: Collection[Primitive] = tuple(_COUNTERPARTS), elements: bool = False
) -> ClosedJaxpr:
    """Let gathers and sums of rows read indices that may be negative.

    With `elements` those of single elements do so, too.
    """
    producers = {v: eqn for eqn in closed.eqns for v in eqn.outvars}
    return with_each_replaced(closed, lambda eqn: (_rewritten(eqn, producers, elements) if eqn.primitive in primitives else None) or [eqn])


def _rewritten(eqn: Equation, producers: Mapping[Var, Equation], elements: bool) -> list[Equation] | None:
    """Return equations that read the original indices.

    None if these are not made positive, or if windows are single elements and those are not meant.
    """
    counterpart, windows, addressed = _COUNTERPARTS[eqn.primitive]
    numbers = eqn.params["dimension_numbers"]
    dims = getattr(numbers, addressed)
    if not (elements or getattr(numbers, windows)) or len(dims) != 1:
        return None
    original = _original(eqn.invars[1], eqn.invars[0].aval.shape[dims[0]], producers)
    if original is None:
        return None
    indices = Var(eqn.invars[1].aval)
    reshaped = Equation(reshape_p, [original], [indices], {"new_sizes": indices.aval.shape}, eqn.position)
    return [reshaped, Equation(counterpart, [eqn.invars[0], indices, *eqn.invars[2:]], eqn.outvars, eqn.params, eqn.position)]


def _original(atom: Atom, size: int, producers: Mapping[Var, Equation]) -> Atom | None:
    """Return x if the atom is x, or x + size where x is negative, in another shape."""
    eqn = _producer(atom, reshape_p, producers)
    while eqn is not None:
        atom = eqn.invars[0]
        eqn = _producer(atom, reshape_p, producers)
    chosen = _producer(atom, selection.select_n_p, producers)
    if chosen is None or len(chosen.invars) != 3 or atom.aval.dtype != _INDEX_TYPE:
        return None
    condition, original, moved = chosen.invars
    compared = _producer(condition, selection.lt.primitive, producers)
    added = _producer(moved, arithmetic.add.primitive, producers)
    if compared is None or added is None or compared.invars[0] is not original or added.invars[0] is not original:
        return None
    return original if _is_number(compared.invars[1], 0) and _is_number(added.invars[1], size) else None


def _producer(atom: Atom, primitive: Primitive, producers: Mapping[Var, Equation]) -> Equation | None:
    eqn = producers.get(atom) if type(atom) is Var else None
    return eqn if eqn is not None and eqn.primitive is primitive else None


def _is_number(atom: Atom, number: int) -> bool:
    value = numbers_of(atom.val) if type(atom) is Literal else None
    return value is not None and value.ndim == 0 and int(value) == number


# Operands of convolutions in the order of a target.
#
# A target may read the operands of a convolution in place only if certain dimensions are contiguous. Where the program, and not each
# routine, transposes them before, equal transposes are one, as those of a convolution and of its gradient by the weights, and elementwise
# kernels write transposed results.

#: The orders of dimensions in which a target reads the operands of a convolution, by their types and the parameters; none for others.
OperandOrders = Callable[[Sequence[ShapedArray], dict[str, Any]], Sequence[tuple[int, ...]]]


def transpose_convolution_operands(closed: ClosedJaxpr, orders: OperandOrders) -> ClosedJaxpr:
    """Transpose operands of convolutions to the orders in which a target reads them."""
    table: Table = {"conv_general_dilated": [partial(_transposed, orders=orders)]}
    return rewrite(closed, Rules(rules_of_table(table)))


def _transposed(eqn: Equation, rewriter: Rewriter, orders: OperandOrders) -> Atom | None:
    lhs_spec, rhs_spec, out_spec = eqn.params["dimension_numbers"]
    operands, specs = [], []
    chosen = orders([atom.aval for atom in eqn.invars], eqn.params)
    for atom, spec, order in zip(eqn.invars, (lhs_spec, rhs_spec), chosen, strict=False):
        in_place = order == tuple(range(len(order)))
        operands.append(atom if in_place else rewriter.emit(eqn, "transpose", atom, permutation=order))
        specs.append(tuple([order.index(dim) for dim in spec]))
    if not operands or operands == eqn.invars:
        return None
    numbers = ConvDimensionNumbers(specs[0], specs[1], out_spec)
    return rewriter.emit(eqn, "conv_general_dilated", *operands, **(eqn.params | {"dimension_numbers": numbers}))
