"""Rules of primitives by the names of `jax.interpreters`.

These are the rules of derivatives (`ad`), batching (`batching`) and lowering (`mlir`, `xla`), and the functions that trace to jaxprs
(`partial_eval`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array, as_value, aval_of
from volta_fn.core.aval import ShapedArray, ShapeDtypeStruct
from volta_fn.core.jaxpr import ClosedJaxpr, Jaxpr, prune_inputs
from volta_fn.core.jaxpr import dce_jaxpr as _dce_jaxpr
from volta_fn.core.primitive import AxisData, Linear, Primitive, Zero
from volta_fn.core.primitive import Primitive as CorePrimitive
from volta_fn.core.staging import DynamicJaxprTracer, describe_data, trace_to_jaxpr
from volta_fn.core.trace import EVAL, bind, current_trace, run_under
from volta_fn.errors import LoweringError
from volta_fn.extend.core import LoweringContext as LoweringContext
from volta_fn.extend.core import Primitive as UserPrimitive
from volta_fn.extend.core import Rule, Rules
from volta_fn.extend.functions import WrappedFun
from volta_fn.primitives.call import pure_callback
from volta_fn.primitives.data_movement.movement import expand_dims, instantiate
from volta_fn.primitives.elementwise.arithmetic import add
from volta_fn.random.keys import PRNGKeyArray, key_data
from volta_fn.transforms.differentiation import JVPTrace as JVPTrace
from volta_fn.transforms.differentiation import JVPTracer as JVPTracer
from volta_fn.transforms.differentiation import PartialEvalTrace, jvp_rules, transpose_rules
from volta_fn.transforms.differentiation import UnknownTracer as JaxprTracer
from volta_fn.transforms.vmap import BatchTrace as BatchTrace
from volta_fn.transforms.vmap import BatchTracer as BatchTracer
from volta_fn.transforms.vmap import batching_rules, stack_at

__all__ = [
    "DynamicJaxprTracer", "JaxprTracer", "PartialVal", "custom_partial_eval_rules", "dce_jaxpr", "dce_rules",
    "partial_eval_jaxpr_custom_rules", "trace_to_jaxpr_dynamic", "trace_to_jaxpr_nounits",
]  # fmt: skip


# Derivative rules of primitives, by the names of `jax.interpreters.ad`.
#
# `primitive_jvps[p] = rule(primals, tangents, **params)` and `primitive_transposes[p] = rule(cotangent, *args, **params)`, where tangents
# and cotangents may be `Zero`, and an operand that needs a cotangent is an `UndefinedPrimal`.

UndefinedPrimal = Linear


def is_undefined_primal(x: Any) -> bool:
    """Return True for an operand without value, which needs a cotangent."""
    return type(x) is Linear


def _array_or_none(value: Any) -> Any:
    """Return a rule's tangent or cotangent as an array, or None if it is zero."""
    return None if value is None or value is Zero or type(value) is Zero else as_value(value)


def _adapted_jvp(rule: Rule) -> Rule:
    def jvp(primals: Sequence[Array], tangents: Sequence[Any], /, **params: Any) -> Any:
        outs, out_tangents = rule(tuple(primals), tuple(tangents), **params)
        if not isinstance(outs, (tuple, list)):
            return as_value(outs), _tangent(out_tangents, outs)
        outs = [as_value(out) for out in outs]
        return outs, [_tangent(t, out) for t, out in zip(out_tangents, outs, strict=True)]

    return jvp


def _tangent(tangent: Any, out: Any) -> Any:
    value = _array_or_none(tangent)
    if value is None or value.dtype == dtypes.float0:
        return Zero(as_value(out).aval.tangent_aval())
    return value


def _adapted_transpose(rule: Rule) -> Rule:
    def transpose(cotangents: Any, /, *args: Any, **params: Any) -> Any:
        results = rule(cotangents, *args, **params)
        return [None] * len(args) if results is Zero or type(results) is Zero else [_array_or_none(ct) for ct in results]

    return transpose


primitive_jvps = Rules(jvp_rules, "jvp", _adapted_jvp)
primitive_transposes = Rules(transpose_rules, "transpose", _adapted_transpose)


def instantiate_zeros(tangent: Any) -> Any:
    """Return a tangent as an array: zeros for a `Zero`."""
    return instantiate(tangent) if type(tangent) is Zero else tangent


def zeros_like_aval(aval: ShapedArray) -> Array:
    """Return an array of zeros of a type."""
    return as_value(np.zeros(aval.shape, aval.dtype))


def add_tangents(x: Any, y: Any) -> Any:
    """Return the sum of two tangents, either of which may be a `Zero`."""
    if type(x) is Zero:
        return y
    return x if type(y) is Zero else add(x, y)


add_jaxvals = add
add_jaxvals_p = add.primitive


def deflinear(primitive: Primitive, transpose_rule: Callable[..., Any]) -> None:
    """Define a primitive as linear, by a rule from the cotangent to the operands'."""
    deflinear2(primitive, lambda cotangent, /, *_, **params: transpose_rule(cotangent, **params))


def deflinear2(primitive: Primitive, transpose_rule: Callable[..., Any]) -> None:
    """Define a primitive as linear, by a rule that sees the operands, too."""
    primitive_jvps[primitive] = lambda primals, tangents, /, **params: _linear_jvp(primitive, primals, tangents, params)
    primitive_transposes[primitive] = transpose_rule


def _linear_jvp(primitive: Primitive, primals: Sequence[Any], tangents: Sequence[Any], params: dict[str, Any]) -> Any:
    outs = bind(primitive, *primals, **params)
    if all(type(t) is Zero for t in tangents):
        several = primitive.multiple_results
        zeros = [Zero.from_primal_value(out) for out in (outs if several else [outs])]
        return outs, zeros if several else zeros[0]
    return outs, bind(primitive, *map(instantiate_zeros, tangents), **params)


def defjvp(primitive: Primitive, *rules: Callable[..., Any] | None) -> None:
    """Define the derivative as a sum of `rule(tangent, *primals, **params)`."""
    defjvp2(primitive, *[rule and _without_out(rule) for rule in rules])


def _without_out(rule: Rule) -> Rule:
    return lambda t, out, /, *primals, **params: rule(t, *primals, **params)


def defjvp2(primitive: Primitive, *rules: Callable[..., Any] | None) -> None:
    """Define the derivative as a sum of `rule(tangent, out, *primals, **params)`."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], /, **params: Any) -> Any:
        out = bind(primitive, *primals, **params)
        total: Any = Zero.from_primal_value(out)
        for rule, tangent in zip(rules, tangents, strict=True):
            if rule is not None and type(tangent) is not Zero:
                total = add_tangents(total, rule(tangent, out, *primals, **params))
        return out, total

    primitive_jvps[primitive] = jvp


def defbilinear(prim: Primitive, lhs_rule: Callable[..., Any], rhs_rule: Callable[..., Any]) -> None:
    """Define a primitive of two operands as linear in each.

    `lhs_rule(cotangent, x, y, **params)` returns the cotangent of x, where x is undefined; `rhs_rule` that of y.
    """
    defjvp(
        prim,
        lambda t, x, y, /, **params: bind(prim, t, y, **params),
        lambda t, x, y, /, **params: bind(prim, x, t, **params),
    )

    def transpose(cotangent: Any, x: Any, y: Any, /, **params: Any) -> list[Any]:
        if is_undefined_primal(x):
            return [lhs_rule(cotangent, x, y, **params), None]
        return [None, rhs_rule(cotangent, x, y, **params)]

    primitive_transposes[prim] = transpose


def get_primitive_transpose(p: Primitive) -> Rule:
    """Return a primitive's transposition rule."""
    return primitive_transposes[p]


def primal_tangent_dtype(primal_dtype: Any, tangent_dtype: Any, name: str | None = None) -> Any:
    """Raise `NotImplementedError`: dtypes with other tangents are not supported."""
    raise NotImplementedError("primal_tangent_dtype: tangents have the dtypes of primals here")


# Batching rules of primitives, by the names of `jax.interpreters.batching`.
#
# `primitive_batchers[p] = rule(args, dims, **params)` returns the result and its mapped dimension, where None is `not_mapped`.

#: The mapped dimension of an operand that is the same for all examples.
not_mapped = None
NotMapped = type(None)


def _plain(rule: Rule) -> Rule:
    return lambda axis, args, dims, /, **params: rule(tuple(args), tuple(dims), **params)


def _with_axis(rule: Rule) -> Rule:
    return lambda axis, args, dims, /, **params: rule(axis.size, axis.name, None, tuple(args), tuple(dims), **params)


primitive_batchers = Rules(batching_rules, "batch", _plain)
#: Rules that are also told the axis: `rule(size, name, None, args, dims, **params)`, or `rule(axis_data, args, dims, **params)`.
axis_primitive_batchers = Rules(batching_rules, "batch", _with_axis)
fancy_primitive_batchers = Rules(batching_rules, "batch", lambda rule: rule)


def bdim_at_front(x: Array, bdim: int | None, size: int, mesh_axis: Any = None) -> Array:
    """Return an operand with its mapped dimension first, repeated if it has none."""
    return stack_at(x, bdim, 0, size)


def broadcast(x: Array, sz: int, axis: int, mesh_axis: Any = None) -> Array:
    """Repeat an array along a new dimension."""
    return stack_at(x, None, axis, sz)


def defvectorized(prim: Primitive) -> None:
    """Define the batching of a primitive of one operand that acts on every element."""
    primitive_batchers[prim] = lambda args, dims, /, **params: (bind(prim, *args, **params), dims[0])


def defbroadcasting(prim: Primitive) -> None:
    """Define the batching of an elementwise primitive, whose operands have one shape."""

    def batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], /, **params: Any) -> tuple[Array, int]:
        rank = max(x.ndim - (d is not None) for x, d in zip(args, dims, strict=True))
        stacked = [stack_at(x, d, 0, axis.size) for x, d in zip(args, dims, strict=True)]
        ranked = [expand_dims(x, tuple(range(1, 1 + rank - (x.ndim - 1)))) for x in stacked]
        return bind(prim, *ranked, **params), 0

    fancy_primitive_batchers[prim] = batch


def defreducer(prim: Primitive, identity: Any = None) -> None:
    """Define the batching of a reduction along its parameter `axes`."""

    def batch(args: Sequence[Array], dims: Sequence[int | None], /, *, axes: Sequence[int], **params: Any) -> tuple[Array, int]:
        (dim,) = dims
        assert dim is not None, "a rule is called if an operand is mapped"
        moved = tuple(a + (a >= dim) for a in axes)
        return bind(prim, *args, axes=moved, **params), dim - sum(a < dim for a in moved)

    primitive_batchers[prim] = batch


# Types that JAX's libraries declare to `vmap`. Here `vmap` maps arrays and pytrees of them: other values need to be pytrees to be mapped,
# and raise `ArgumentTypeError` else.

vmappables: dict[type, tuple[type, type]] = {}
spec_types: set[type] = set()
to_elt_handlers: dict[type, Callable[..., Any]] = {}
from_elt_handlers: dict[type, Callable[..., Any]] = {}


def register_vmappable(
    data_type: type,
    spec_type: type,
    axis_size_type: type,
    to_elt: Callable[..., Any],
    from_elt: Callable[..., Any],
    make_iota: Callable[..., Any] | None,
) -> None:
    """Store how values of a type are mapped, in the tables above.

    A type whose values `vmap` gets must be a pytree, too.
    """
    vmappables[data_type] = (spec_type, axis_size_type)
    spec_types.add(spec_type)
    to_elt_handlers[data_type], from_elt_handlers[data_type] = to_elt, from_elt


def unregister_vmappable(data_type: type) -> None:
    """Remove a type from the tables; do nothing if it is not there."""
    spec_types.discard(vmappables.pop(data_type, (data_type,))[0])
    to_elt_handlers.pop(data_type, None)
    from_elt_handlers.pop(data_type, None)


def is_vmappable(x: Any) -> bool:
    """Return True if the type of a value is in the tables."""
    return type(x) in vmappables


# Lowering rules of primitives, by the names of `jax.interpreters.mlir` and `xla`.
#
# There is no MLIR here: a rule is a function of other primitives, which compilers inline. `lower_fun` makes one of a Python function.
# Rules that call `emit_python_callback` run, too; those that build operations of a dialect need `ir`, which raises `LoweringError`.

LoweringRuleContext = LoweringContext
LoweringRule = Callable[..., Any]
#: Handlers by which JAX's libraries let other types pass as arrays; none are asked here: `__jax_array__` makes an object pass.
canonicalize_dtype_handlers: dict[type, Callable[..., Any]] = {np.ndarray: as_value}
pytype_aval_mappings: dict[type, Callable[..., Any]] = {np.ndarray: aval_of}
ir_type_handlers: dict[type, Callable[..., Any]] = {}
global_result_handlers: dict[type, Callable[..., Any]] = {}


def lower_fun(fun: Callable[..., Any], multiple_results: bool = True) -> Rule:
    """Return the lowering rule that inlines a function of arrays."""

    def rule(context: LoweringContext, /, *operands: Any, **params: Any) -> list[Any]:
        result = fun(*operands, **params)
        return list(result) if multiple_results else [result]

    return rule


def register_lowering(prim: CorePrimitive, rule: Rule | None = None, platform: str | None = None, **options: Any) -> Any:
    """Set how a user's primitive becomes code: `rule(context, *operands, **params)`.

    A rule for one platform alone is kept only if there is no other. Without `rule` it returns a decorator. Raises `LoweringError` for a
    primitive of this package, whose code its targets make.
    """
    if rule is None:
        return lambda rule: register_lowering(prim, rule, platform)
    if not issubclass(type(prim), UserPrimitive):
        raise LoweringError(f"register_lowering: {prim} is a primitive of volta_fn, for which its targets have code; define a new one")
    primitive = cast(UserPrimitive, prim)
    if platform is None or primitive.lowering is None:
        primitive.lowering = rule
    return rule


def emit_python_callback(
    context: LoweringContext,
    callback: Callable[..., Any],
    token: Any,
    operands: Sequence[Array],
    operand_avals: Sequence[ShapedArray],
    result_avals: Sequence[ShapedArray],
    *,
    has_side_effect: bool = False,
    **options: Any,
) -> tuple[Sequence[Array], Any, Any]:
    """Call a Python function of NumPy arrays; return results, token and what to keep."""
    types = tuple(ShapeDtypeStruct(a.shape, a.dtype) for a in result_avals)
    return pure_callback(lambda *xs: tuple(callback(*xs)), types, *operands), token, None


def apply_primitive(prim: CorePrimitive, /, *args: Array, **params: Any) -> Any:
    """Apply a primitive, under the current trace.

    Outside of transforms a user's primitive is what its lowering rule gives, so that this function may be its `def_impl`. Raises
    `NotImplementedError` if it has none.
    """
    if issubclass(type(prim), UserPrimitive):
        primitive = cast(UserPrimitive, prim)
        if primitive.lowering is None or current_trace() is EVAL:
            return primitive.apply_lowering(args, params)
    return bind(prim, *args, **params)


class _NoDialect:
    """Stands for MLIR's modules: any use raises `LoweringError`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise LoweringError(
            f"{self._name}.{name}: lowering rules are functions of other primitives here, not of MLIR; use mlir.lower_fun of a function"
        )


ir, hlo = _NoDialect("mlir.ir"), _NoDialect("mlir.hlo")


# Tracing to jaxprs, by the names of `jax.interpreters.partial_eval`.

#: Rules by which JAX's libraries change how their primitives are split or removed; here the general rules hold for all.
custom_partial_eval_rules: dict[Primitive, Callable[..., Any]] = {}
partial_eval_jaxpr_custom_rules: dict[Primitive, Callable[..., Any]] = {}
dce_rules: dict[Primitive, Callable[..., Any]] = {}


class PartialVal(tuple[Any, Any]):
    """A value that is known, `(None, value)`, or of which the type is, `(aval, None)`."""

    __slots__ = ()

    @classmethod
    def known(cls, const: Any) -> PartialVal:
        """Return a known value."""
        return cls((None, const))

    @classmethod
    def unknown(cls, aval: ShapedArray) -> PartialVal:
        """Return a value of a type, which is not known."""
        return cls((aval, None))

    def is_known(self) -> bool:
        """Return True if the value is known."""
        return self[0] is None

    def get_known(self) -> Any:
        """Return the value, or None if it is unknown."""
        return self[1]

    def get_aval(self) -> ShapedArray:
        """Return the value's type."""
        return as_value(self[1]).aval if self.is_known() else self[0]


def trace_to_jaxpr_nounits(fun: WrappedFun, pvals: Sequence[PartialVal], instantiate: bool = False) -> Any:
    """Run a flat function on known values, and record what depends on unknown ones.

    Returns the program of the unknown inputs and results, a `PartialVal` for each result, and the program's constants.
    """
    trace = PartialEvalTrace(current_trace(), fun.__name__)
    leaves, structure = _described([p.get_aval() for p in pvals if not p.is_known()])
    unknown_data = [trace.new_unknown(aval_of(leaf)) for leaf in leaves]
    unknown_inputs = iter(tree.unflatten(structure, unknown_data))
    inputs = [_as_leaf(p.get_known()) if p.is_known() else next(unknown_inputs) for p in pvals]
    try:
        outs = [_as_leaf(out) for out in run_under(trace, fun.call_wrapped, *inputs)]
    finally:
        trace.finish()
    out_data = [key_data(out) if isinstance(out, PRNGKeyArray) else out for out in outs]
    unknown = [trace.is_unknown(data) or instantiate for data in out_data]
    invars = [x.variable for x in unknown_data]
    closed = trace.builder.build(invars, [trace.atom(data) for data, u in zip(out_data, unknown, strict=True) if u])
    partial_values = [PartialVal.unknown(aval_of(out)) if u else PartialVal.known(out) for out, u in zip(outs, unknown, strict=True)]
    return closed.jaxpr, partial_values, closed.consts


def _described(types: Sequence[ShapedArray]) -> tuple[list[Any], Any]:
    """Return the leaves and the structure of a list of values of these types."""
    return describe_data(list(types), tree.structure([0] * len(types)))


def _as_leaf(value: Any) -> Any:
    """Return keys as they are, and all other values as arrays."""
    return value if isinstance(value, PRNGKeyArray) else as_value(value)


def trace_to_jaxpr_dynamic(
    fun: WrappedFun, in_avals: Sequence[ShapedArray], **options: Any
) -> tuple[Jaxpr, list[ShapedArray], list[Array]]:
    """Trace a flat function to a jaxpr; also return its results' types and constants."""
    leaves, structure = _described(in_avals)

    def of_data(*data: Array) -> list[Array]:
        return [as_value(x) for x in tree.leaves(fun.call_wrapped(*tree.unflatten(structure, data)))]

    closed = trace_to_jaxpr(of_data, [aval_of(leaf) for leaf in leaves], fun.__name__)
    return closed.jaxpr, closed.out_avals, closed.consts


def dce_jaxpr(jaxpr: Jaxpr, used_outputs: Sequence[bool], instantiate: bool | Sequence[bool] = False) -> tuple[Jaxpr, list[bool]]:
    """Drop unused outputs, dead equations and (unless instantiated) unused inputs.

    Returns the program, and which inputs it keeps.
    """
    keeps = [instantiate] * len(jaxpr.invars) if isinstance(instantiate, bool) else list(instantiate)
    as_inputs = ClosedJaxpr(Jaxpr([], [*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, jaxpr.eqns))
    live = _dce_jaxpr(as_inputs, used_outputs)
    count = len(jaxpr.constvars)
    pruned, stays = prune_inputs(live, [*[False] * count, *[not k for k in keeps]])
    variables = pruned.jaxpr.invars
    return Jaxpr(variables[:count], variables[count:], pruned.jaxpr.outvars, pruned.eqns), stays[count:]
