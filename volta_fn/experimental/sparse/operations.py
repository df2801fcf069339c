"""Operations on sparse arrays, their derivatives, and `sparsify`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn import tree
from volta_fn.core.array import Array, as_value, aval_of
from volta_fn.core.aval import ShapedArray
from volta_fn.core.functions import FlatFunction, check_callable, function_name
from volta_fn.core.jaxpr import Equation, interpret_jaxpr
from volta_fn.core.staging import trace_to_jaxpr
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentError, ShapeError, UnsupportedError
from volta_fn.experimental.sparse.bcoo import BCOO, JAXSparse
from volta_fn.numpy.products import matmul as dense_matmul
from volta_fn.primitives.data_movement.movement import canonical_axes
from volta_fn.transforms import grad as dense

# Operations on `BCOO` arrays: products, sums, shapes; and its operators.


def bcoo_fromdense(mat: Any, **options: Any) -> BCOO:
    """Do what `BCOO.fromdense` does."""
    return BCOO.fromdense(mat, **options)


def bcoo_todense(mat: BCOO) -> Array:
    """Return the array with its zeros."""
    return mat.todense()


def todense(arr: Any) -> Array:
    """Return a sparse array with its zeros, and any other as it is."""
    return arr.todense() if hasattr(arr, "todense") else vnp.asarray(arr)


def bcoo_extract(sparr: BCOO, arr: Any, *, assume_unique: bool | None = None) -> BCOO:
    """Return the elements of a dense array at the indices of a sparse one."""
    return sparr.replace_data(_read(vnp.asarray(arr), sparr.columns()))


def _read(array: Array, columns: Sequence[Array]) -> Array:
    """Return the elements at indices, 0 where these are out of range."""
    if not columns:
        return array[None]
    return array.at[tuple(columns)].get(mode="fill", fill_value=0)


def _only_sparse(mat: BCOO, name: str) -> None:
    if mat.n_dense:
        raise ArgumentError(f"{name}: arrays with dense dimensions are not supported; use todense()")


def bcoo_dot_general(
    lhs: Any, rhs: Any, *, dimension_numbers: Any, precision: Any = None, preferred_element_type: Any = None, out_sharding: Any = None
) -> Any:
    """Contract two arrays, of which one or both are sparse, as `lax.dot_general` does.

    The product of two sparse arrays is sparse, and stores an element for each pair of theirs.
    """
    (contract, batch) = dimension_numbers
    if isinstance(lhs, BCOO) and isinstance(rhs, BCOO):
        _only_sparse(lhs, "dot_general")
        _only_sparse(rhs, "dot_general")
        data, first, second = _pairs(lhs, rhs, [*batch[0], *contract[0]], [*batch[1], *contract[1]])
        lhs_axes, rhs_free = [*batch[0], *_free(lhs.ndim, contract[0], batch[0])], _free(rhs.ndim, contract[1], batch[1])
        columns = [*[first[..., i] for i in lhs_axes], *[second[..., i] for i in rhs_free]]
        shape = (*[lhs.shape[i] for i in lhs_axes], *[rhs.shape[i] for i in rhs_free])
        return BCOO((data, _stacked([c.reshape(-1) for c in columns], data.size)), shape=shape)
    if isinstance(lhs, BCOO):
        return _product(lhs, vnp.asarray(rhs), contract, batch)
    swapped = _product(rhs, vnp.asarray(lhs), contract[::-1], batch[::-1])
    count = len(batch[0])
    lhs_free = vnp.ndim(lhs) - len(contract[0]) - count
    order = [*range(count), *range(swapped.ndim - lhs_free, swapped.ndim), *range(count, swapped.ndim - lhs_free)]
    return vnp.transpose(swapped, order)


def _free(ndim: int, contract: Sequence[int], batch: Sequence[int]) -> list[int]:
    return [i for i in range(ndim) if i not in (*contract, *batch)]


def _product(lhs: BCOO, rhs: Array, contract: Any, batch: Any) -> Array:
    """Multiply each element with a row of `rhs`, and add it to a row of the result."""
    _only_sparse(lhs, "dot_general")
    for lhs_axis, rhs_axis in (*zip(*contract, strict=True), *zip(*batch, strict=True)):
        if lhs.shape[lhs_axis] != rhs.shape[rhs_axis]:
            raise ShapeError(f"dot_general: dimension {lhs_axis} of {lhs.shape} and dimension {rhs_axis} of {rhs.shape} differ")
    free, other_free = _free(lhs.ndim, contract[0], batch[0]), _free(rhs.ndim, contract[1], batch[1])
    columns = lhs.columns()
    ordered = vnp.transpose(rhs, [*batch[1], *contract[1], *other_free])
    rows = _read(ordered, [columns[i] for i in (*batch[0], *contract[0])])
    masked = vnp.where(lhs.valid(), lhs.data, 0)
    terms = masked.reshape(-1, *[1] * len(other_free)) * rows
    lhs_axes = [*batch[0], *free]
    out = vnp.zeros((*[lhs.shape[i] for i in lhs_axes], *[rhs.shape[i] for i in other_free]), terms.dtype)
    return out.at[tuple([columns[i] for i in lhs_axes])].add(terms, mode="drop") if lhs_axes else terms.sum(0)


def _pairs(lhs: BCOO, rhs: BCOO, lhs_axes: Sequence[int], rhs_axes: Sequence[int]) -> tuple[Array, Array, Array]:
    """Return the products of pairs of elements, and the indices of both.

    Pairs whose indices in the given dimensions differ have the product 0.
    """
    first, second = lhs.indices[:, None, :], rhs.indices[None, :, :]
    agree = lhs.valid()[:, None] & rhs.valid()[None, :]
    for i, j in zip(lhs_axes, rhs_axes, strict=True):
        agree = agree & (first[..., i] == second[..., j])
    products = vnp.where(agree, lhs.data[:, None] * rhs.data[None, :], 0).reshape(-1)
    shape = agree.shape
    return products, vnp.broadcast_to(first, (*shape, lhs.n_sparse)), vnp.broadcast_to(second, (*shape, rhs.n_sparse))


def _stacked(columns: Sequence[Array], count: int) -> Array:
    return vnp.stack(columns, -1) if columns else vnp.zeros((count, 0), np.int32)


def bcoo_multiply_dense(sp_mat: BCOO, v: Any) -> Array:
    """Return the elements of a sparse array times those of a dense one."""
    wide = vnp.broadcast_to(vnp.asarray(v), sp_mat.shape)
    return sp_mat.data * _read(wide, sp_mat.columns())


def bcoo_multiply_sparse(lhs: BCOO, rhs: BCOO) -> BCOO:
    """Multiply two sparse arrays of one shape; an element for each pair is stored."""
    if lhs.shape != rhs.shape:
        raise ShapeError(f"multiply: sparse arrays must have one shape, got {lhs.shape} and {rhs.shape}")
    _only_sparse(lhs, "multiply")
    _only_sparse(rhs, "multiply")
    data, first, _ = _pairs(lhs, rhs, range(lhs.ndim), range(rhs.ndim))
    return BCOO((data, first.reshape(-1, lhs.n_sparse)), shape=lhs.shape)


def bcoo_concatenate(operands: Sequence[BCOO], *, dimension: int) -> BCOO:
    """Join arrays along a sparse dimension."""
    shape = list(operands[0].shape)
    moved, offset = [], 0
    for operand in operands:
        step = np.zeros(operand.n_sparse, operand.indices.dtype)
        step[dimension] = offset
        moved.append(vnp.where(operand.valid()[:, None], operand.indices + step, _out_of_range(operand)))
        offset += operand.shape[dimension]
    shape[dimension] = offset
    limit = vnp.concatenate(moved)
    return BCOO((vnp.concatenate([o.data for o in operands]), limit), shape=tuple(shape))


def _out_of_range(mat: BCOO) -> Any:
    return np.iinfo(mat.indices.dtype).max


def bcoo_add(lhs: BCOO, rhs: BCOO) -> BCOO:
    """Add two sparse arrays of one shape; the elements of both are stored."""
    if lhs.shape != rhs.shape or lhs.n_dense != rhs.n_dense:
        raise ShapeError(f"add: sparse arrays must have one shape, got {lhs.shape} and {rhs.shape}")
    return BCOO((vnp.concatenate([lhs.data, rhs.data]), vnp.concatenate([lhs.indices, rhs.indices])), shape=lhs.shape)


def bcoo_reduce_sum(mat: BCOO, *, axes: Sequence[int]) -> BCOO:
    """Add up along dimensions; elements at the same remaining indices are not joined."""
    summed = canonical_axes(tuple(axes), mat.ndim)
    remaining = [i for i in range(mat.n_sparse) if i not in summed]
    data = vnp.where(mat.valid().reshape(-1, *[1] * mat.n_dense), mat.data, 0)
    data = data.sum(tuple([a - mat.n_sparse + 1 for a in summed if a >= mat.n_sparse]))
    shape = tuple([s for i, s in enumerate(mat.shape) if i not in summed])
    return BCOO((data, _stacked([mat.indices[:, i] for i in remaining], mat.nse)), shape=shape)


def bcoo_transpose(mat: BCOO, *, permutation: Sequence[int]) -> BCOO:
    """Permute the dimensions, the sparse and the dense ones each among themselves."""
    sparse, dense = list(permutation[: mat.n_sparse]), [p - mat.n_sparse + 1 for p in permutation[mat.n_sparse :]]
    if sorted(permutation) != list(range(mat.ndim)) or any(p >= mat.n_sparse for p in sparse):
        raise ArgumentError(f"transpose: {tuple(permutation)} must permute the {mat.n_sparse} sparse dimensions among themselves")
    shape = tuple([mat.shape[p] for p in permutation])
    return BCOO(
        (vnp.transpose(mat.data, [0, *dense]), mat.indices[:, np.array(sparse, int)]), shape=shape, unique_indices=mat.unique_indices
    )


def bcoo_reshape(mat: BCOO, *, new_sizes: Sequence[int], dimensions: Sequence[int] | None = None, sharding: Any = None) -> BCOO:
    """Reshape an array without dense dimensions."""
    _only_sparse(mat, "reshape")
    if dimensions is not None:
        mat = bcoo_transpose(mat, permutation=dimensions)
    if math.prod(new_sizes) != mat.size:
        raise ShapeError(f"reshape: an array of shape {mat.shape} cannot have the shape {tuple(new_sizes)}")
    position = vnp.zeros(mat.nse, mat.indices.dtype)
    for column, size in zip(mat.columns(), mat.shape, strict=True):
        position = position * size + column
    columns = []
    for size in reversed(new_sizes):
        columns.append(position % max(size, 1))
        position = position // max(size, 1)
    indices = vnp.where(mat.valid()[:, None], _stacked(columns[::-1], mat.nse), _out_of_range(mat))
    return BCOO((mat.data, indices), shape=tuple(new_sizes), unique_indices=mat.unique_indices)


def bcoo_slice(mat: BCOO, *, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None = None) -> BCOO:
    """Return a block; the elements outside of it become padding."""
    steps = [1] * mat.ndim if strides is None else list(strides)
    sizes = [max(0, -(-(stop - start) // step)) for start, stop, step in zip(start_indices, limit_indices, steps, strict=True)]
    keep, columns = mat.valid(), []
    for i, column in enumerate(mat.columns()):
        distance = column - start_indices[i]
        keep = keep & (distance >= 0) & (column < limit_indices[i]) & (distance % steps[i] == 0)
        columns.append(distance // steps[i])
    indices = vnp.where(keep[:, None], _stacked(columns, mat.nse), _out_of_range(mat))
    dense = tuple([slice(a, b, c) for a, b, c in zip(start_indices, limit_indices, steps, strict=True)][mat.n_sparse :])
    data = vnp.where(keep.reshape(-1, *[1] * mat.n_dense), mat.data[(slice(None), *dense)], 0)
    return BCOO((data, indices), shape=tuple(sizes), unique_indices=mat.unique_indices)


def bcoo_squeeze(arr: BCOO, *, dimensions: Sequence[int]) -> BCOO:
    """Drop dimensions of size 1."""
    unit_axes = canonical_axes(tuple(dimensions), arr.ndim)
    if any(arr.shape[a] != 1 for a in unit_axes):
        raise ShapeError(f"squeeze: the dimensions {unit_axes} of {arr.shape} must have size 1")
    return bcoo_reduce_sum(arr, axes=unit_axes)


def bcoo_sort_indices(mat: BCOO) -> BCOO:
    """Do what the method `sort_indices` does."""
    return mat.sort_indices()


def bcoo_sum_duplicates(mat: BCOO, nse: int | None = None) -> BCOO:
    """Do what the method `sum_duplicates` does."""
    return mat.sum_duplicates(nse)


def _getitem(self: BCOO, index: Any) -> BCOO:
    entries = list(index) if isinstance(index, tuple) else [index]
    if ellipses := [i for i, e in enumerate(entries) if e is Ellipsis]:
        at = ellipses[0]
        entries[at : at + 1] = [slice(None)] * (self.ndim - len(entries) + 1)
    entries += [slice(None)] * (self.ndim - len(entries))
    if len(entries) != self.ndim or not all(isinstance(e, (slice, int, np.integer)) for e in entries):
        raise ArgumentError(f"sparse arrays of {self.ndim} dimensions take integers and slices as indices, got {index!r}")
    spans = [range(s)[e] if isinstance(e, slice) else range(s)[int(e) :][:1] for e, s in zip(entries, self.shape, strict=True)]
    if any(r.step < 0 for r in spans):
        raise ArgumentError("sparse arrays take slices of positive steps")
    block = bcoo_slice(self, start_indices=[r.start for r in spans], limit_indices=[r.stop for r in spans], strides=[r.step for r in spans])
    return bcoo_squeeze(block, dimensions=[i for i, e in enumerate(entries) if not isinstance(e, slice)])


def matmul(lhs: Any, rhs: Any) -> Any:
    """Multiply as ``@`` does, where one operand or both are sparse.

    Raises `ArgumentError` for more than two dimensions: use `bcoo_dot_general`.
    """
    if not isinstance(lhs, BCOO) and not isinstance(rhs, BCOO):
        return dense_matmul(lhs, rhs)
    ndims = [x.ndim if isinstance(x, BCOO) else vnp.ndim(x) for x in (lhs, rhs)]
    if not all(n in (1, 2) for n in ndims):
        raise ArgumentError(f"matmul of sparse arrays takes vectors and matrices, got {ndims} dimensions; use bcoo_dot_general")
    return bcoo_dot_general(lhs, rhs, dimension_numbers=(((ndims[0] - 1,), (0,)), ((), ())))


def _multiply(self: BCOO, other: Any) -> Any:
    if isinstance(other, BCOO):
        return bcoo_multiply_sparse(self, other)
    return self.replace_data(self.data * other if vnp.ndim(other) == 0 else bcoo_multiply_dense(self, other))


def _divide(self: BCOO, other: Any) -> BCOO:
    return self.replace_data(self.data / (other if vnp.ndim(other) == 0 else _read(vnp.broadcast_to(other, self.shape), self.columns())))


def _add(self: BCOO, other: Any) -> Any:
    return bcoo_add(self, other) if isinstance(other, BCOO) else self.todense() + other


def _sum(self: BCOO, axis: Any = None) -> Any:
    axes = range(self.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    summed = bcoo_reduce_sum(self, axes=tuple(axes))
    return summed if summed.ndim else summed.todense()


_OPERATORS: dict[str, Any] = {
    "__matmul__": matmul,
    "__rmatmul__": lambda self, other: matmul(other, self),
    "__mul__": _multiply,
    "__rmul__": _multiply,
    "__truediv__": _divide,
    "__add__": _add,
    "__radd__": _add,
    "__sub__": lambda self, other: _add(self, -other),
    "__rsub__": lambda self, other: _add(-self, other),
    "__neg__": lambda self: self.replace_data(-self.data),
    "__pos__": lambda self: self,
    "__getitem__": _getitem,
    "sum": _sum,
    "reshape": lambda self, *sizes: bcoo_reshape(self, new_sizes=sizes[0] if isinstance(sizes[0], (tuple, list)) else sizes),
    "transpose": lambda self, axes=None: bcoo_transpose(self, permutation=range(self.ndim)[::-1] if axes is None else axes),
    "T": property(lambda self: bcoo_transpose(self, permutation=range(self.ndim)[::-1])),
}
for _name, _function in _OPERATORS.items():
    setattr(BCOO, _name, _function)


# Derivatives by the elements of sparse arguments: `grad`, `value_and_grad`.


def value_and_grad(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **kwargs: Any) -> Callable[..., Any]:
    """Do what `volta_fn.value_and_grad` does; `BCOO` arguments have `BCOO` gradients.

    Such a gradient has the indices of its argument.

    >>> import volta_fn as vf
    >>> from volta_fn.experimental import sparse
    >>> m = sparse.BCOO.fromdense(vf.numpy.array([[0.0, 2.0], [3.0, 0.0]]))
    >>> sparse.grad(lambda m: (m @ vf.numpy.array([5.0, 7.0])).sum())(m).todense()
    Array([[0., 7.],
           [5., 0.]], dtype=float32)
    """

    @functools.wraps(fun)
    def with_gradient(*args: Any, **named: Any) -> Any:
        numbers, _ = dense.arguments_at(args, argnums, "grad")
        data = list(args)
        for i in numbers:
            data[i] = tree.map(lambda x: x.data if isinstance(x, BCOO) else x, args[i], is_leaf=_is_sparse)

        @functools.wraps(fun)
        def of_data(*arrays: Any) -> Any:
            return fun(*[_restored(args[i], value) if i in numbers else value for i, value in enumerate(arrays)], **named)

        value, cotangents = dense.value_and_grad(of_data, tuple(numbers), has_aux, **kwargs)(*data)
        gradients = tuple([_restored(args[i], g) for i, g in zip(numbers, cotangents, strict=True)])
        return value, gradients[0] if isinstance(argnums, int) else gradients

    return with_gradient


def _is_sparse(x: Any) -> bool:
    return isinstance(x, JAXSparse)


def _restored(like: Any, data: Any) -> Any:
    """Put the elements of sparse arrays back to their indices."""
    return tree.map(lambda x, d: x.replace_data(d) if isinstance(x, BCOO) else d, like, data, is_leaf=_is_sparse)


def grad(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **kwargs: Any) -> Callable[..., Any]:
    """Make the gradient alone; see `value_and_grad`."""
    both = value_and_grad(fun, argnums, has_aux, **kwargs)

    @functools.wraps(fun)
    def gradient(*args: Any, **named: Any) -> Any:
        value, gradients = both(*args, **named)
        return (gradients, value[1]) if has_aux else gradients

    return gradient


# `sparsify`: functions of dense arrays, applied to sparse ones.
#
# The function is traced as one of dense arrays, and the equations of its program are computed one by one, by rules for sparse operands.

#: Operations on elements that leave 0 as it is.
_LINEAR = frozenset("neg real imag convert_element_type copy stop_gradient".split())
_KEEPS_ZERO = frozenset("abs sign sqrt cbrt sin tan asin atan sinh tanh asinh atanh expm1 log1p square floor ceil".split())


def sparsify(f: Callable[..., Any], use_tracer: bool = False) -> Callable[..., Any]:
    """Make a function of dense arrays one that takes `BCOO` arrays as well.

    Values stay sparse while zeros stay zeros: elementwise functions f with f(0) = 0, products, sums of sparse arrays, `dot_general`,
    `reduce_sum`, and what changes shapes or joins. `use_tracer` changes nothing.

    Raises:
        UnsupportedError: an operation of a sparse array would make its zeros other numbers, or is control flow.

    >>> import volta_fn as vf
    >>> from volta_fn.experimental import sparse
    >>> m = sparse.BCOO.fromdense(vf.numpy.array([[0.0, 2.0], [3.0, 0.0]]))
    >>> sparse.sparsify(lambda m, v: vf.numpy.sin(2 * m.T) @ v)(m, vf.numpy.ones(2))
    Array([-0.2794155, -0.7568025], dtype=float32)
    """
    check_callable(f, "sparsify")

    @functools.wraps(f)
    def sparsified(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = tree.flatten((args, kwargs), is_leaf=lambda x: isinstance(x, BCOO))
        values = [x if isinstance(x, BCOO) else as_value(x) for x in leaves]
        avals = [ShapedArray(x.shape, x.dtype) if isinstance(x, BCOO) else aval_of(x) for x in values]
        flat = FlatFunction(f, structure)
        program = trace_to_jaxpr(flat, avals, function_name(f))
        return tree.unflatten(flat.out_tree, interpret_jaxpr(program, values, _step))

    return sparsified


def _step(eqn: Equation, ins: list[Any]) -> Sequence[Any]:
    primitive, params = eqn.primitive, eqn.params
    if not any(isinstance(x, BCOO) for x in ins):
        outs = bind(primitive, *ins, **params)
        return list(outs) if primitive.multiple_results else [outs]
    if primitive.call_param is not None:
        return interpret_jaxpr(params[primitive.call_param], ins, _step)
    if primitive.name in _LINEAR or primitive.name in _KEEPS_ZERO or (primitive.name == "integer_pow" and params["y"] > 0):
        mat = ins[0] if primitive.name in _LINEAR or ins[0].unique_indices else ins[0].sum_duplicates(ins[0].nse)
        return [mat.replace_data(bind(primitive, mat.data, **params))]
    rule = _RULES.get(primitive.name)
    if rule is None:
        raise UnsupportedError(f"sparsify keeps no sparse array sparse under {primitive.name}; apply it to x.todense()")
    return [rule(eqn, *ins)]


def _add_rule(eqn: Equation, x: Any, y: Any) -> BCOO:
    if isinstance(x, BCOO) and isinstance(y, BCOO):
        return bcoo_add(x, y)
    raise UnsupportedError(f"sparsify: {eqn.primitive.name} of a sparse and a dense array would be dense; apply it to x.todense()")


def _div(eqn: Equation, x: Any, y: Any) -> BCOO:
    if isinstance(y, BCOO):
        raise UnsupportedError("sparsify: a quotient by a sparse array would divide by zeros; divide by x.todense()")
    return x / y


_RULES: dict[str, Callable[..., Any]] = {
    "add": _add_rule,
    "sub": lambda eqn, x, y: _add_rule(eqn, x, -y),
    "mul": lambda eqn, x, y: x * y if isinstance(x, BCOO) else y * x,
    "div": _div,
    "dot_general": lambda eqn, x, y: bcoo_dot_general(x, y, **eqn.params),
    "reduce_sum": lambda eqn, x: x.sum(eqn.params["axes"]),
    "transpose": lambda eqn, x: bcoo_transpose(x, permutation=eqn.params["permutation"]),
    "reshape": lambda eqn, x: bcoo_reshape(x, new_sizes=eqn.params["new_sizes"]),
    "squeeze": lambda eqn, x: bcoo_reshape(x, new_sizes=eqn.outvars[0].aval.shape),
    "slice": lambda eqn, x: bcoo_slice(x, **eqn.params),
    "concatenate": lambda eqn, *xs: bcoo_concatenate(xs, dimension=eqn.params["dimension"]),
}
