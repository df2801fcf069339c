"""`sparsify`: functions of dense arrays, applied to sparse ones.

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
from volta_fn.errors import UnsupportedError
from volta_fn.experimental.sparse.bcoo import BCOO, over_batches
from volta_fn.experimental.sparse.convolution import bcoo_conv_general_dilated
from volta_fn.experimental.sparse.matrices import BCSR, to_format
from volta_fn.experimental.sparse.products import bcoo_add, bcoo_dot_general
from volta_fn.experimental.sparse.shapes import (
    bcoo_broadcast_in_dim,
    bcoo_concatenate,
    bcoo_dynamic_slice,
    bcoo_reshape,
    bcoo_rev,
    bcoo_slice,
    bcoo_squeeze,
    bcoo_transpose,
    bcoo_update_layout,
)

#: Operations on elements that leave 0 as it is.
_LINEAR = frozenset("neg real imag convert_element_type copy stop_gradient".split())
_KEEPS_ZERO = frozenset("abs sign sqrt cbrt sin tan asin atan sinh tanh asinh atanh expm1 log1p square floor ceil".split())


def sparsify(f: Callable[..., Any], use_tracer: bool = False) -> Callable[..., Any]:
    """Make a function of dense arrays one that takes `BCOO` and `BCSR` arrays as well.

    Sparse results are `BCOO` arrays; where all sparse arguments are `BCSR`, they are this if they have two sparse dimensions.

    Values stay sparse while zeros stay zeros: elementwise functions f with f(0) = 0, products, sums of sparse arrays, `dot_general`,
    `reduce_sum`, and what changes shapes, selects blocks, or joins. The operands of `cond`, `scan` and `while_loop` may be sparse; a carry
    keeps its layout, and a scanned array has a batch dimension. `use_tracer` changes nothing.

    Raises:
        UnsupportedError: an operation of a sparse array would make its zeros other numbers.

    >>> import volta_fn as vf
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
    if primitive.name in _LINEAR or primitive.name in _KEEPS_ZERO or (primitive.name == "integer_pow" and params["y"] > 0):
        mat = ins[0] if primitive.name in _LINEAR or ins[0].unique_indices else ins[0].sum_duplicates(ins[0].nse)
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

    >>> import volta_fn as vf
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
