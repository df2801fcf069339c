"""`sparsify`: functions of dense arrays, applied to sparse ones.

The function is traced as one of dense arrays, and the equations of its program are computed one by one, by rules for sparse operands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from volta_fn import tree
from volta_fn.core.array import as_value, aval_of
from volta_fn.core.aval import ShapedArray
from volta_fn.core.flatten import FlatFunction, check_callable, function_name
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Literal
from volta_fn.core.staging import trace_to_jaxpr
from volta_fn.core.trace import bind
from volta_fn.errors import UnsupportedError
from volta_fn.experimental.sparse import operations
from volta_fn.experimental.sparse.bcoo import BCOO

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
        return tree.unflatten(flat.out_tree, _run(program, values))

    return sparsified


def _run(program: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    jaxpr = program.jaxpr
    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*program.consts, *args), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        env.update(zip(eqn.outvars, _step(eqn, [read(v) for v in eqn.invars]), strict=True))
    return [read(v) for v in jaxpr.outvars]


def _step(eqn: Equation, ins: list[Any]) -> Sequence[Any]:
    primitive, params = eqn.primitive, eqn.params
    if not any(isinstance(x, BCOO) for x in ins):
        outs = bind(primitive, *ins, **params)
        return list(outs) if primitive.multiple_results else [outs]
    if primitive.call_param is not None:
        return _run(params[primitive.call_param], ins)
    if primitive.name in _LINEAR or primitive.name in _KEEPS_ZERO or (primitive.name == "integer_pow" and params["y"] > 0):
        mat = ins[0] if primitive.name in _LINEAR or ins[0].unique_indices else ins[0].sum_duplicates(ins[0].nse)
        return [mat.replace_data(bind(primitive, mat.data, **params))]
    rule = _RULES.get(primitive.name)
    if rule is None:
        raise UnsupportedError(f"sparsify keeps no sparse array sparse under {primitive.name}; apply it to x.todense()")
    return [rule(eqn, *ins)]


def _add(eqn: Equation, x: Any, y: Any) -> BCOO:
    if isinstance(x, BCOO) and isinstance(y, BCOO):
        return operations.bcoo_add(x, y)
    raise UnsupportedError(f"sparsify: {eqn.primitive.name} of a sparse and a dense array would be dense; apply it to x.todense()")


def _div(eqn: Equation, x: Any, y: Any) -> BCOO:
    if isinstance(y, BCOO):
        raise UnsupportedError("sparsify: a quotient by a sparse array would divide by zeros; divide by x.todense()")
    return x / y


_RULES: dict[str, Callable[..., Any]] = {
    "add": _add,
    "sub": lambda eqn, x, y: _add(eqn, x, -y),
    "mul": lambda eqn, x, y: x * y if isinstance(x, BCOO) else y * x,
    "div": _div,
    "dot_general": lambda eqn, x, y: operations.bcoo_dot_general(x, y, **eqn.params),
    "reduce_sum": lambda eqn, x: x.sum(eqn.params["axes"]),
    "transpose": lambda eqn, x: operations.bcoo_transpose(x, permutation=eqn.params["permutation"]),
    "reshape": lambda eqn, x: operations.bcoo_reshape(x, new_sizes=eqn.params["new_sizes"]),
    "squeeze": lambda eqn, x: operations.bcoo_reshape(x, new_sizes=eqn.outvars[0].aval.shape),
    "slice": lambda eqn, x: operations.bcoo_slice(x, **eqn.params),
    "concatenate": lambda eqn, *xs: operations.bcoo_concatenate(xs, dimension=eqn.params["dimension"]),
}
