"""Maps: `vmap` stacks the arguments of primitives, `map` loops over their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from volta_fn import tree
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.arrays.memory import constrained
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, program_cache, sub_jaxprs
from volta_fn.core.primitive import AxisData, Primitive, RuleTable
from volta_fn.core.refs import RefArguments, check_no_refs, positions_of_refs, read_all, with_refs_at
from volta_fn.core.staging import (
    FlatFunction,
    argument_labels,
    check_callable,
    eval_jaxpr,
    function_name,
    jitted_like,
    trace_to_jaxpr,
    trace_with_aux,
    wraps,
)
from volta_fn.core.trace import Trace, Tracer, bound_axis, check_alive, current_trace, run_under
from volta_fn.errors import ArgumentError, MissingRuleError, NonFiniteError, ShapeError, TreeError, UnsupportedError
from volta_fn.primitives.data_movement.movement import broadcast, moveaxis, reshape
from volta_fn.primitives.data_movement.slicing import concatenate, slice_in_dim
from volta_fn.primitives.scan import AdaptedFunction, scan
from volta_fn.tree.structures import paths_of

# Vectorization: `vmap` applies each primitive once to stacked arguments.

P = ParamSpec("P")
R = TypeVar("R")

#: Rules of primitives whose batching needs this layer or one above, or that users define.
batching_rules = RuleTable()


def vmap(
    fun: Callable[P, R],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Any = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
    sum_match: bool = False,
) -> Callable[P, R]:
    """Make a function that maps `fun` over an axis of its arguments.

    Args:
        fun: a function of pytrees of arrays, written for one example.
        in_axes: the mapped axis of each positional argument: an int, None (the same for all examples, and then it may be anything), or
            a tuple or list of them, one per argument, each possibly a pytree that is a prefix of the argument's. Keyword arguments map
            axis 0.
        out_axes: where the mapped axis goes in the results, likewise.
        axis_name: a name by which collectives (`lax.psum`, …) in `fun` refer to the axis.
        axis_size: the number of examples, needed only if nothing is mapped.
        spmd_axis_name: accepted for compatibility; a program runs on one device.
        sum_match: must be False: results are not summed over the mapped axis.

    Raises:
        UnsupportedError: `sum_match` is True.
        ShapeError: the mapped axes differ in size, or an argument lacks the axis.
        TreeError: in_axes or out_axes do not fit the arguments or results.

    >>> x = vf.numpy.arange(6.0).reshape(2, 3)
    >>> vf.vmap(lambda row: row.sum())(x)
    Array([ 3., 12.], dtype=float32)
    """
    check_callable(fun, "vmap")
    if sum_match:
        raise UnsupportedError("vmap: sum_match=True is not supported; sum the results along the mapped axis, or use lax.psum inside")
    axes_in = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    if not isinstance(axes_in, (int, tuple, type(None))):
        raise ArgumentError(f"vmap: in_axes is one entry, or a tuple of one per argument, of integers and None, got {in_axes!r}")
    name = function_name(fun)

    @wraps(fun)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        leaves, in_tree = tree.flatten((args, kwargs))
        if isinstance(axes_in, tuple) and len(axes_in) != len(args):
            raise ArgumentError(
                f"vmap of {name}: in_axes has {len(axes_in)} entries, but the call has {len(args)} positional arguments. "
                "Give each an entry, None for those that are not mapped; one number instead of the tuple stands for all."
            )
        dimensions = _dimensions(fun, axes_in, args, kwargs)
        if mapped_refs := [i for i in positions_of_refs(leaves) if dimensions[i] is not None]:
            arguments = RefArguments(leaves, mapped_refs, "vmap")
            axes_out = out_axes, [dimensions[i] for i in mapped_refs]
            return arguments.run(vmap(_of_leaves(fun, in_tree, arguments), (list(dimensions),), axes_out, axis_name, axis_size))
        values = [x if d is None else as_value(x) for x, d in zip(leaves, dimensions, strict=True)]
        dims = [_mapped_dim(fun, in_tree, i, d, v) for i, (d, v) in enumerate(zip(dimensions, values, strict=True))]
        size = _axis_size(values, dims, axis_size, fun, in_tree)
        flat = FlatFunction(fun, in_tree)
        outs, out_dims = vmap_flat(flat, AxisData(axis_name, size), values, dims, name)
        axes = _result_axes(name, out_axes, tree.unflatten(flat.out_tree, outs))
        for i, (a, d) in enumerate(zip(axes, out_dims, strict=True)):
            if a is None and d is not None:
                raise ArgumentError(
                    f"at vmap out_axes{tree.keystr(paths_of(flat.out_tree)[i])} of {name}, got axis spec None but output was batched on "
                    f"axis {d}: that result differs between examples"
                )
        results = [_with_examples_at(a, o, d, size, name) for a, o, d in zip(axes, outs, out_dims, strict=True)]
        return tree.unflatten(flat.out_tree, results)

    return jitted_like(fun, mapped, "vmap", axes_in, out_axes, axis_name, axis_size)


def _dimensions(fun: Callable[..., Any], axes_in: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the entry of `in_axes` for each leaf of the arguments."""
    is_none = lambda x: x is None  # noqa: E731  # None is a leaf here
    try:
        return tree.broadcast_prefix((axes_in, dict.fromkeys(kwargs, 0)), (args, kwargs), is_leaf=is_none)
    except TreeError:
        for position, (entry, value) in enumerate(zip(axes_in, args, strict=True)):
            difference = tree.first_difference(tree.structure(entry, is_none), value)
            if difference is not None:
                path, expected, got = difference
                names = argument_labels(fun, tree.structure(((0,) * len(args), {})))
                label = names[position] + tree.keystr(path)
                raise TreeError(
                    f"vmap of {function_name(fun)}: in_axes has {expected} for {label}, which is {got}. An entry of in_axes is an integer "
                    "or None for a whole argument, or a pytree of them with the argument's structure."
                ) from None
        raise


def _result_axes(name: str, out_axes: Any, result: Any) -> list[Any]:
    """Return the entry of `out_axes` for each leaf of the result."""
    is_none = lambda x: x is None  # noqa: E731  # None is a leaf here
    try:
        return tree.broadcast_prefix(out_axes, result, is_leaf=is_none)
    except TreeError:
        path, expected, got = tree.first_difference(tree.structure(out_axes, is_none), result) or ((), "another structure", "")
        raise TreeError(
            f"vmap of {name}: out_axes has {expected}, where the result{tree.keystr(path)} is {got}. "
            "One integer stands for the whole result."
        ) from None


def _of_leaves(fun: Callable[..., Any], in_tree: Any, arguments: RefArguments) -> Callable[[list[Any]], Any]:
    """Make a function of the arguments' leaves, with values for some references.

    It also returns the last values of these.
    """

    @wraps(fun)
    def call_with_refs(leaves: list[Any]) -> tuple[Any, list[Array]]:
        inner, refs = with_refs_at(arguments.positions, leaves, arguments.refs)
        args, kwargs = tree.unflatten(in_tree, inner)
        result = fun(*args, **kwargs)
        check_no_refs(result, function_name(fun))
        return result, read_all(refs)

    return call_with_refs


def _mapped_dim(fun: Callable[..., Any], in_tree: Any, leaf: int, dim: Any, value: Array) -> int | None:
    """Count an argument's mapped axis from the front; raise if the leaf lacks it."""
    if dim is None:
        return None
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise ArgumentError(f"vmap: in_axes consists of integers and None, got {dim!r}")
    if not -value.ndim <= dim < value.ndim:
        label = argument_labels(fun, in_tree)[leaf]
        raise ShapeError(
            f"vmap of {function_name(fun)}: in_axes says axis {dim} of {label}, which has shape {value.shape}. "
            "Write None for arguments that are the same for all examples, as in in_axes=(None, 0)"
        )
    return dim % value.ndim


def _axis_size(values: Sequence[Array], dims: Sequence[int | None], axis_size: int | None, fun: Callable[..., Any], in_tree: Any) -> int:
    """Return the number of examples; raise unless it is one number."""
    name = function_name(fun)
    sizes = [v.shape[d] for v, d in zip(values, dims, strict=True) if d is not None]
    if axis_size is not None:
        sizes.append(axis_size)
    if not sizes:
        raise ArgumentError(f"vmap of {name}: nothing is mapped (there are no arrays, or all in_axes are None), so axis_size must be given")
    if len(set(sizes)) > 1:
        labels = argument_labels(fun, in_tree)
        mapped = [f"{n} of shape {v.shape} along axis {d}" for n, v, d in zip(labels, values, dims, strict=True) if d is not None]
        listed = ", ".join(mapped + [f"axis_size={axis_size}"] * (axis_size is not None))
        raise ShapeError(
            f"vmap got inconsistent sizes for array axes to be mapped: {name} takes {listed}. "
            "in_axes=None marks arguments that are not mapped"
        )
    return sizes[0]


def _with_examples_at(axis: Any, out: Array, dim: int | None, size: int, name: str) -> Array:
    """Move the examples of a result to an axis, an entry of `out_axes`."""
    if axis is None:
        return out
    rank = out.ndim + (dim is None)
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise ShapeError(f"vmap of {name}: out_axes says {axis!r}, but the stacked result has {rank} dimensions")
    return stack_at(out, dim, axis % rank, size)


class BatchTracer(Tracer):
    """One example of a stacked array: the array and the dimension of the examples."""

    __slots__ = ("dim", "stacked")

    def __init__(self, trace: Trace, stacked: Array, dim: int) -> None:
        aval = stacked.aval
        super().__init__(trace, ShapedArray(aval.shape[:dim] + aval.shape[dim + 1 :], aval.dtype, aval.weak_type))
        self.stacked = stacked
        self.dim = dim

    def origin(self) -> str:
        """Describe where this tracer comes from."""
        return f"a value mapped by vmap, of which there are {self.stacked.shape[self.dim]} at once"

    def constrain(self, sharding: Any) -> BatchTracer:
        """Return the value with its dimensions split, but not that of the examples."""
        entries = list(sharding.spec)
        if self.dim < len(entries):
            entries.insert(self.dim, None)
        return BatchTracer(self._trace, constrained(self.stacked, sharding.update(spec=entries)), self.dim)


class BatchTrace(Trace):
    """Applies each primitive's `batch` rule, under the parent trace."""

    __slots__ = ("axis",)

    def __init__(self, parent: Trace, axis: AxisData, name: str = "") -> None:
        super().__init__(parent, name)
        self.axis = axis

    def process(self, primitive: Primitive, args: Sequence[Array], params: dict[str, Any]) -> Any:
        """Apply a primitive to stacked arguments; unchanged without this axis."""
        pairs = [self.detach(arg) for arg in args]
        values, dims = [v for v, _ in pairs], [d for _, d in pairs]
        parent: Trace = self.parent  # type: ignore[assignment]  # every trace but the bottom one has a parent
        if all(d is None for d in dims) and (self.axis.name is None or not _names_axis(self.axis.name, params)):
            return run_under(parent, parent.process, primitive, values, params)
        batch = batching_rules.get(primitive, primitive.batch)
        if batch is None:
            raise MissingRuleError(f"the primitive {primitive} has no batching rule, so vmap cannot map over it")
        try:
            out, dim = run_under(parent, batch, self.axis, values, dims, **params)
        except NonFiniteError as error:
            error.in_batch(self.axis.size)
            raise
        if primitive.multiple_results:
            return tuple([self.attach(o, d) for o, d in zip(out, dim, strict=True)])
        return self.attach(out, dim)

    def attach(self, value: Array, dim: int | None) -> Array:
        """Return a tracer for one example of a stacked value, or the bare value."""
        return value if dim is None else BatchTracer(self, value, dim)

    def detach(self, value: Array) -> tuple[Array, int | None]:
        """Return a stacked value and the dimension of the examples."""
        if type(value) is BatchTracer:
            trace: Any = value._trace
            # A user's rule is mapped in a trace of its own, but may close over examples of the trace that called the function.
            if trace is self or (trace.axis is self.axis and trace.alive):
                return value.stacked, value.dim
        check_alive(value)
        return value, None


def _names_axis(name: Any, params: dict[str, Any]) -> bool:
    """Return True for a collective over the named axis, or a program that has one."""
    pending = [params]
    while pending:
        current = pending.pop()
        if name in current.get("axis_names", ()):
            return True
        pending.extend(eqn.params for sub in sub_jaxprs(current) for eqn in sub.eqns if eqn.params)
    return False


def vmap_flat(
    function: Callable[..., Sequence[Array]], axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], name: str = ""
) -> tuple[list[Array], list[int | None]]:
    """Map `function` over `dims` of arrays (None: unmapped); return outputs and dims."""
    trace = BatchTrace(current_trace(), axis, name)
    try:
        with bound_axis(axis.name, axis.size):
            outs = run_under(trace, function, *[trace.attach(arg, dim) for arg, dim in zip(args, dims, strict=True)])
        pairs = [trace.detach(o) for o in outs]
    finally:
        trace.finish()
    return [v for v, _ in pairs], [d for _, d in pairs]


def vmap_stacked(
    function: Callable[..., Sequence[Array]], axis: AxisData, args: Sequence[Array], dims: Sequence[int | None]
) -> list[Array]:
    """Map `function` of flat arrays, and stack the outputs along dimension 0."""
    return [stack_at(o, d, 0, axis.size) for o, d in zip(*vmap_flat(function, axis, args, dims), strict=True)]


def stack_at(value: Array, dim: int | None, target: int, size: int) -> Array:
    """Move the examples' dimension to `target`, or broadcast along a new one."""
    if dim is None:
        return moveaxis(broadcast(value, (size,)), 0, target)
    return moveaxis(value, dim, target)


def stack_if(stacked: bool, value: Array, dim: int | None, size: int) -> Array:
    """Move the examples' dimension to the front; add it if `stacked` asks for it."""
    return stack_at(value, dim, 0, size) if stacked or dim is not None else value


@program_cache
def batch_jaxpr(
    closed: ClosedJaxpr, axis: AxisData, in_stacked: Sequence[bool], out_stacked: Sequence[bool] | None = None
) -> tuple[ClosedJaxpr, list[bool]]:
    """Derive the program of stacked inputs; tell which outputs are stacked.

    The inputs that `in_stacked` marks are stacked along their first dimension. `out_stacked` forces outputs to be stacked (where True) even
    if they are equal for all examples.
    """

    def run(*args: Array) -> tuple[list[Array], list[bool]]:
        outs, dims = vmap_flat(lambda *xs: eval_jaxpr(closed, *xs), axis, args, [0 if s else None for s in in_stacked])
        is_stacked = [d is not None or f for d, f in zip(dims, out_stacked or [False] * len(outs), strict=True)]
        return [stack_if(s, o, d, axis.size) for o, d, s in zip(outs, dims, is_stacked, strict=True)], is_stacked

    avals = [ShapedArray((axis.size, *a.shape), a.dtype, a.weak_type) if s else a for s, a in zip(in_stacked, closed.in_avals, strict=True)]
    return trace_with_aux(trace_to_jaxpr, run, avals, "batched")


# `map`: apply a function to each row in a `scan`, or to batches by `vmap`.


class _Row(AdaptedFunction):
    """A function of a row as the body of a scan."""

    def __call__(self, _: None, x: Any) -> Any:
        return None, self.owner(x)


class _Batch(AdaptedFunction):
    """A function of a row as the body of a scan over batches."""

    def __call__(self, _: None, xs: Any) -> Any:
        return None, vmap(self.owner)(xs)


def map(f: Callable[[Any], R], xs: Any, *, batch_size: int | None = None) -> R:
    """Apply `f` to each row of `xs` along the leading axis, and stack the results.

    It needs the memory of one call, where `vmap` needs that of all. With `batch_size`, `vmap(f)` maps this many rows at once.

    Args:
        f: from a row, a pytree like `xs`, to a pytree of arrays.
        xs: a pytree of arrays that share the size of their leading axis.
        batch_size: rows per iteration; the remainder makes a smaller last batch. None: one by one; 0: all at once.

    Raises:
        ArgumentError: there are no arrays, or `batch_size` is negative.
        ShapeError: the leading sizes differ.

    >>> vf.lax.map(lambda x: x * x, vf.numpy.arange(4))
    Array([0, 1, 4, 9], dtype=int32)
    """
    check_callable(f, "map")
    if batch_size is None:
        return scan(_Row(f), None, xs)[1]
    if batch_size < 0:
        raise ArgumentError(f"map: batch_size must not be negative, got {batch_size}")
    leaves, structure = tree.flatten(xs)
    values = [as_value(x) for x in leaves]
    sizes = {v.shape[0] for v in values if v.ndim}
    if len(sizes) != 1 or not all(v.ndim for v in values):
        return scan(_Row(f), None, xs)[1]  # which raises the error
    (size,) = sizes
    batch_size = batch_size or max(size, 1)
    count, rest = divmod(size, batch_size)
    batches = tree.unflatten(structure, [reshape(slice_in_dim(v, 0, size - rest), (count, batch_size, *v.shape[1:])) for v in values])
    _, ys = scan(_Batch(f), None, batches)
    stacked = tree.map(lambda y: reshape(y, (count * batch_size, *y.shape[2:])), ys)
    if not rest:
        return stacked
    last = vmap(f)(tree.unflatten(structure, [slice_in_dim(v, size - rest, size) for v in values]))
    return tree.map(lambda a, b: concatenate([a, b], 0), stacked, last) if count else last
