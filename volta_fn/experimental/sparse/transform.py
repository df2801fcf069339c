"""Functions of dense arrays, for sparse ones: `sparsify`, operators, derivatives.

The function is traced as one of dense arrays, and the equations of its program are computed one by one, by rules for sparse operands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import as_value, aval_of
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Equation, interpret_jaxpr
from volta_fn.core.staging import FlatFunction, check_callable, function_name, trace_to_jaxpr
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentError, UnsupportedError
from volta_fn.experimental.sparse.bcoo import BCOO, JAXSparse, over_batches, rounds
from volta_fn.experimental.sparse.matrices import BCSR, to_format
from volta_fn.experimental.sparse.products import (
    bcoo_add,
    bcoo_conv_general_dilated,
    bcoo_dot_general,
    bcoo_multiply_dense,
    bcoo_multiply_sparse,
    matmul,
)
from volta_fn.experimental.sparse.shapes import (
    bcoo_broadcast_in_dim,
    bcoo_concatenate,
    bcoo_dynamic_slice,
    bcoo_reduce_sum,
    bcoo_reshape,
    bcoo_rev,
    bcoo_slice,
    bcoo_squeeze,
    bcoo_transpose,
    bcoo_update_layout,
)
from volta_fn.transforms import grad as dense
from volta_fn.transforms import jacobian as dense_jacobian

#: Operations on elements that leave 0 as it is.
_LINEAR = frozenset("neg real imag conj copy stop_gradient".split())
_KEEPS_ZERO = frozenset(
    "abs sign sqrt cbrt sin tan asin atan sinh tanh asinh atanh convert_element_type expm1 log1p square floor ceil bessel_i1e".split()
)


def sparsify(f: Callable[..., Any], use_tracer: bool = False) -> Callable[..., Any]:
    """Make a function of dense arrays one that takes `BCOO` and `BCSR` arrays as well.

    Sparse results are `BCOO` arrays; where all sparse arguments are `BCSR`, they are this if they have two sparse dimensions.

    Values stay sparse while zeros stay zeros: elementwise functions f with f(0) = 0, products, sums of sparse arrays, `dot_general`,
    `reduce_sum`, and what changes shapes, selects blocks, or joins. The operands of `cond`, `scan` and `while_loop` may be sparse; a carry
    keeps its layout, and a scanned array has a batch dimension. `use_tracer` changes nothing.

    Raises:
        UnsupportedError: an operation of a sparse array would make its zeros other numbers.

    >>> from volta_fn.experimental import sparse
    >>> m = sparse.BCOO.fromdense(vf.numpy.array([[0.0, 2.0], [3.0, 0.0]]))
    >>> sparse.sparsify(lambda m, v: vf.numpy.sin(2 * m.T) @ v)(m, vf.numpy.ones(2))
    Array([-0.2794155, -0.7568025], dtype=float32)
    """
    check_callable(f, "sparsify")

    @functools.wraps(f)
    def sparsified(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = tree.flatten((args, kwargs), is_leaf=lambda x: isinstance(x, (BCOO, BCSR)))
        formats = {type(x) for x in leaves if isinstance(x, (BCOO, BCSR))}
        values = [x.to_bcoo() if isinstance(x, (BCOO, BCSR)) else as_value(x) for x in leaves]
        avals = [ShapedArray(x.shape, x.dtype) if isinstance(x, BCOO) else aval_of(x) for x in values]
        flat = FlatFunction(f, structure)
        program = trace_to_jaxpr(flat, avals, function_name(f))
        results = interpret_jaxpr(program, values, _step)
        if formats == {BCSR}:
            results = [to_format(BCSR, x) if isinstance(x, BCOO) else x for x in results]
        return tree.unflatten(flat.out_tree, results)

    return sparsified


def _step(eqn: Equation, ins: list[Any]) -> Sequence[Any]:
    primitive, params = eqn.primitive, eqn.params
    if not any(isinstance(x, BCOO) for x in ins):
        outs = bind(primitive, *ins, **params)
        return list(outs) if primitive.multiple_results else [outs]
    if primitive.call_param is not None:
        return interpret_jaxpr(params[primitive.call_param], ins, _step)
    is_linear = primitive.name in _LINEAR or (primitive.name == "convert_element_type" and not rounds(ins[0].dtype, params["new_dtype"]))
    if is_linear or primitive.name in _KEEPS_ZERO or (primitive.name == "integer_pow" and params["y"] > 0):
        mat = ins[0] if is_linear or ins[0].unique_indices else ins[0].sum_duplicates(ins[0].nse)
        return [mat.replace_data(bind(primitive, mat.data, **params))]
    if primitive.name in _CONTROL_FLOW:
        return _CONTROL_FLOW[primitive.name](eqn, *ins)
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


def _slice(eqn: Equation, x: BCOO, *starts: Any) -> BCOO:
    return bcoo_dynamic_slice(x, starts, eqn.params["slice_sizes"])


def _gather(eqn: Equation, x: Any, starts: Any) -> BCOO:
    if isinstance(x, BCOO) and not isinstance(starts, BCOO):
        return bcoo_gather(x, starts, eqn.params["dimension_numbers"], eqn.params["slice_sizes"])
    raise UnsupportedError("sparsify: sparse indices are not supported; apply it to x.todense()")


def bcoo_gather(
    operand: BCOO,
    start_indices: Any,
    dimension_numbers: Any,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: Any = None,
    fill_value: Any = None,
) -> BCOO:
    """Return slices of a sparse array, as `lax.gather` does.

    Indices out of range are moved into it. The dimensions of `start_indices` are batch dimensions of the result if they come first; else
    the result has no batch dimensions. Raises `UnsupportedError` if an operand has batching dimensions.

    >>> from volta_fn.experimental import sparse
    >>> sparse.sparsify(lambda m: m[vf.numpy.array([1, 1])])(sparse.eye(2)).todense()
    Array([[0., 1.],
           [0., 1.]], dtype=float32)
    """
    starts = vnp.asarray(start_indices)
    count, collapsed = starts.ndim - 1, tuple(dimension_numbers.collapsed_slice_dims)
    width = count + operand.ndim - len(collapsed)
    if dimension_numbers.operand_batching_dims:
        raise UnsupportedError("gather of sparse arrays has no batching dimensions; map it by vmap, or use x.todense()")

    def block(start: Any) -> BCOO:
        positions = [0] * operand.ndim
        for i, axis in enumerate(dimension_numbers.start_index_map):
            positions[axis] = start[i]
        return bcoo_squeeze(bcoo_dynamic_slice(operand, positions, slice_sizes), dimensions=collapsed)

    blocks: BCOO = over_batches(block, count)(starts)
    offsets = tuple(dimension_numbers.offset_dims)
    if offsets == tuple(range(count, width)):
        return blocks
    order = [axis for axis in range(width) if axis not in offsets] + [*offsets]
    return bcoo_transpose(bcoo_update_layout(blocks, n_batch=0, n_dense=0), permutation=np.argsort(order).tolist())


def _cond(eqn: Equation, index: Any, *operands: Any) -> Sequence[Any]:
    branches = [functools.partial(_interpret, branch) for branch in eqn.params["branches"]]
    return lax.switch(index, branches, *operands)


def _interpret(program: Any, *values: Any) -> list[Any]:
    return interpret_jaxpr(program, values, _step)


def _scan(eqn: Equation, *operands: Any) -> Sequence[Any]:
    params = eqn.params
    first, second = params["num_consts"], params["num_consts"] + params["num_carry"]
    consts, carry, xs = operands[:first], list(operands[first:second]), list(operands[second:])
    for x in xs:
        if isinstance(x, BCOO) and not x.n_batch:
            raise UnsupportedError("sparsify: scan takes sparse arrays with a batch dimension; use bcoo_update_layout(x, n_batch=1)")

    def step(carry: Any, xs: Any) -> Any:
        outputs = _interpret(params["jaxpr"], *consts, *carry, *(xs or ()))
        return outputs[: len(carry)], outputs[len(carry) :]

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    carry, outputs = lax.scan(step, carry, xs, **options)
    return [*carry, *outputs]


def _while(eqn: Equation, *operands: Any) -> Sequence[Any]:
    params = eqn.params
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    of_condition, of_body, carry = operands[:first], operands[first:second], list(operands[second:])
    return lax.while_loop(
        lambda carry: _interpret(params["cond_jaxpr"], *of_condition, *carry)[0],
        lambda carry: _interpret(params["body_jaxpr"], *of_body, *carry),
        carry,
    )


_CONTROL_FLOW: dict[str, Callable[..., Sequence[Any]]] = {"cond": _cond, "scan": _scan, "while": _while}


def _reshape(eqn: Equation, x: BCOO) -> BCOO:
    """Reshape an array, whose dimensions of size 1 may come and go anywhere."""
    sizes = tuple(eqn.outvars[0].aval.shape)
    if [s for s in sizes if s != 1] != [s for s in x.shape if s != 1]:
        return bcoo_reshape(x, new_sizes=sizes)
    x = bcoo_squeeze(x, dimensions=[a for a, s in enumerate(x.shape) if s == 1])
    return bcoo_broadcast_in_dim(x, shape=sizes, broadcast_dimensions=[a for a, s in enumerate(sizes) if s != 1])


def _broadcast(eqn: Equation, x: BCOO) -> BCOO:
    params = eqn.params
    return bcoo_broadcast_in_dim(x, shape=params["shape"], broadcast_dimensions=params["broadcast_dimensions"])


_RULES: dict[str, Callable[..., Any]] = {
    "conv_general_dilated": lambda eqn, x, y: bcoo_conv_general_dilated(
        x, y, **{name: value for name, value in eqn.params.items() if name != "algorithm"}
    ),
    "add": _add_rule,
    "sub": lambda eqn, x, y: _add_rule(eqn, x, -y),
    "mul": lambda eqn, x, y: x * y if isinstance(x, BCOO) else y * x,
    "div": _div,
    "dot_general": lambda eqn, x, y: bcoo_dot_general(x, y, **eqn.params),
    "reduce_sum": lambda eqn, x: x.sum(eqn.params["axes"]),
    "transpose": lambda eqn, x: bcoo_transpose(x, permutation=eqn.params["permutation"]),
    "reshape": _reshape,
    "rev": lambda eqn, x: bcoo_rev(x, eqn.params["dimensions"]),
    "broadcast_in_dim": _broadcast,
    "dynamic_slice": _slice,
    "gather": _gather,
    "squeeze": _reshape,
    "slice": lambda eqn, x: bcoo_slice(x, **eqn.params),
    "concatenate": lambda eqn, *xs: bcoo_concatenate(xs, dimension=eqn.params["dimension"]),
}


# Operators of `BCOO`, and methods; importing this file attaches them.


def _getitem(self: BCOO, index: Any) -> BCOO:
    entries = list(index) if isinstance(index, tuple) else [index]
    if ellipses := [i for i, e in enumerate(entries) if e is Ellipsis]:
        at = ellipses[0]
        entries[at : at + 1] = [slice(None)] * (self.ndim - len(entries) + 1)
    entries += [slice(None)] * (self.ndim - len(entries))
    if len(entries) != self.ndim or not all(isinstance(e, (slice, int, np.integer)) and not isinstance(e, bool) for e in entries):
        result: BCOO = sparsify(lambda array: array[index])(self)
        return result
    for e, s in zip(entries, self.shape, strict=True):
        if not isinstance(e, slice) and not -s <= e < s:
            raise IndexError(f"index {e} is out of range for a dimension of size {s}")
    spans = [range(s)[e] if isinstance(e, slice) else range(int(e) % s, int(e) % s + 1) for e, s in zip(entries, self.shape, strict=True)]
    if any(r.step < 0 for r in spans):
        raise ArgumentError("sparse arrays take slices of positive steps")
    stops = [max(r.start, r.stop) for r in spans]
    block = bcoo_slice(self, start_indices=[r.start for r in spans], limit_indices=stops, strides=[r.step for r in spans])
    return bcoo_squeeze(block, dimensions=[i for i, e in enumerate(entries) if not isinstance(e, slice)])


def _multiply(self: BCOO, other: Any) -> Any:
    if isinstance(other, JAXSparse):
        return bcoo_multiply_sparse(self, other.to_bcoo())
    return self.replace_data(bcoo_multiply_dense(self, other))


def _divide(self: BCOO, other: Any) -> BCOO:
    if not vnp.ndim(other):
        return self.replace_data(self.data / other)
    # Padding is divided by 0, and stays 0.
    divisor = bcoo_multiply_dense(self.replace_data(vnp.ones_like(self.data)), other)
    divisor = vnp.where(self.valid().reshape(*self.valid().shape, *[1] * self.n_dense), divisor, vnp.ones((), divisor.dtype))
    return self.replace_data(self.data / divisor)


def _add(self: BCOO, other: Any) -> Any:
    return bcoo_add(self, other.to_bcoo()) if isinstance(other, JAXSparse) else self.todense() + other


def _sum(self: BCOO, axis: Any = None) -> Any:
    axes = range(self.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    summed = bcoo_reduce_sum(self, axes=tuple(axes))
    return summed if summed.ndim else summed.todense()


def _transpose(self: BCOO, axes: Any = None) -> BCOO:
    ndim = self.ndim
    order = range(ndim)[::-1] if axes is None else [a % ndim if -ndim <= a < ndim else a for a in axes]
    return bcoo_transpose(self, permutation=order)


def _unique(self: BCOO) -> BCOO:
    return self if self.unique_indices else self.sum_duplicates(self.nse)


def _power(self: BCOO, exponent: Any) -> BCOO:
    if not isinstance(exponent, (int, np.integer)) or exponent < 1:
        raise ArgumentError(f"sparse arrays take positive integers as exponents, got {exponent!r}: others make numbers of their zeros")
    mat = _unique(self)
    return mat.replace_data(mat.data**exponent)


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
    "__abs__": lambda self: _unique(self).replace_data(abs(_unique(self).data)),
    "__pow__": _power,
    "__neg__": lambda self: self.replace_data(-self.data),
    "__pos__": lambda self: self,
    "__getitem__": _getitem,
    "sum": _sum,
    "reshape": lambda self, *sizes: bcoo_reshape(self, new_sizes=sizes[0] if isinstance(sizes[0], (tuple, list)) else sizes),
    "transpose": lambda self, axes=None: _transpose(self, axes),
    "update_layout": bcoo_update_layout,
}
for _name, _function in _OPERATORS.items():
    setattr(BCOO, _name, _function)


# Derivatives by the elements of sparse arguments.


def value_and_grad(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **kwargs: Any) -> Callable[..., Any]:
    """Do what `volta_fn.value_and_grad` does; sparse arguments have sparse gradients.

    Such a gradient has the indices of its argument.

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
            data[i] = _data_of(args[i])

        @functools.wraps(fun)
        def of_data(*arrays: Any) -> Any:
            return fun(*[_restored(args[i], value) if i in numbers else value for i, value in enumerate(arrays)], **named)

        value, cotangents = dense.value_and_grad(of_data, tuple(numbers), has_aux, **kwargs)(*data)
        gradients = tuple([_restored(args[i], g) for i, g in zip(numbers, cotangents, strict=True)])
        return value, gradients[0] if isinstance(argnums, int) else gradients

    return with_gradient


def is_sparse(x: Any) -> bool:
    """Return whether something is a sparse array."""
    return isinstance(x, JAXSparse)


def _data_of(arg: Any) -> Any:
    """Return an argument with the elements of sparse arrays in the place of these."""
    return tree.map(lambda x: x.data if is_sparse(x) else x, arg, is_leaf=is_sparse)


def _restored(like: Any, data: Any) -> Any:
    """Put the elements of sparse arrays back to their indices."""
    return tree.map(lambda x, d: x.with_data(d) if is_sparse(x) else d, like, data, is_leaf=is_sparse)


def grad(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **kwargs: Any) -> Callable[..., Any]:
    """Make the gradient alone; see `value_and_grad`."""
    return functools.wraps(fun)(dense.without_value(value_and_grad(fun, argnums, has_aux, **kwargs), has_aux))


def _jacobian(transform: Callable[..., Any], name: str, fun: Callable[..., Any], argnums: Any, has_aux: bool, options: Any) -> Any:
    @functools.wraps(fun)
    def jacobian(*args: Any, **named: Any) -> Any:
        numbers, _ = dense.arguments_at(args, argnums, name)
        data, outputs = list(args), []
        for i in numbers:
            data[i] = _data_of(args[i])

        @functools.wraps(fun)
        def of_data(*arrays: Any) -> Any:
            result = fun(*[_restored(args[i], value) if i in numbers else value for i, value in enumerate(arrays)], **named)
            outputs.append(tree.map(lambda _: 0, result[0] if has_aux else result))
            return result

        result = transform(of_data, tuple(numbers), has_aux=has_aux, **options)(*data)
        derivatives, aux = result if has_aux else (result, None)

        def restore(_: Any, parts: Any) -> Any:
            restored = tuple([_restored(args[i], part) for i, part in zip(numbers, parts, strict=True)])
            return restored[0] if isinstance(argnums, int) else restored

        jacobians = tree.map(restore, outputs[0], derivatives)
        return (jacobians, aux) if has_aux else jacobians

    return jacobian


def jacfwd(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **kwargs: Any) -> Callable[..., Any]:
    """Do what `volta_fn.jacfwd` does; sparse arguments have sparse Jacobians.

    The Jacobian has the dimensions of the result as batch dimensions, and the indices of the argument.

    >>> from volta_fn.experimental import sparse
    >>> m = sparse.BCOO.fromdense(vf.numpy.array([[0.0, 2.0], [3.0, 0.0]]))
    >>> sparse.jacfwd(lambda m: m @ vf.numpy.array([5.0, 7.0]))(m)
    BCOO(float32[2, 2, 2], nse=2, n_batch=1)
    """
    return _jacobian(dense_jacobian.jacfwd, "jacfwd", fun, argnums, has_aux, kwargs)


def jacrev(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **kwargs: Any) -> Callable[..., Any]:
    """Do what `volta_fn.jacrev` does; Jacobians are sparse, as with `jacfwd`."""
    return _jacobian(dense_jacobian.jacrev, "jacrev", fun, argnums, has_aux, kwargs)


jacobian = jacrev
