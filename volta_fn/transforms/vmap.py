"""Vectorization: each primitive is applied once to stacked arguments instead of once per example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta_fn.core.array import Array
from volta_fn.core.aval import ShapedArray
from volta_fn.core.axes import bound_axis
from volta_fn.core.jaxpr import ClosedJaxpr, sub_jaxprs
from volta_fn.core.primitive import AxisData, Primitive
from volta_fn.core.staging import eval_jaxpr, trace_to_jaxpr
from volta_fn.core.trace import Trace, Tracer, check_alive, current_trace, pop_trace, push_trace
from volta_fn.errors import GradientError
from volta_fn.primitives.movement import broadcast, moveaxis


class BatchTracer(Tracer):
    """One example of a stacked array: the array and the dimension along which examples are stacked."""

    __slots__ = ("_aval", "dim", "stacked")

    def __init__(self, trace: Trace, stacked: Array, dim: int) -> None:
        self._trace = trace
        self.stacked = stacked
        self.dim = dim
        aval = stacked.aval
        self._aval = ShapedArray(aval.shape[:dim] + aval.shape[dim + 1 :], aval.dtype, aval.weak_type)

    @property
    def aval(self) -> ShapedArray:
        """The type of one example."""
        return self._aval

    def origin(self) -> str:
        """Words for where this tracer comes from."""
        return f"a value mapped by vmap, of which there are {self.stacked.shape[self.dim]} at once"


class BatchTrace(Trace):
    """Applies each primitive's `batch` rule, under the parent trace."""

    __slots__ = ("axis",)

    def __init__(self, parent: Trace, axis: AxisData, name: str = "") -> None:
        super().__init__(parent, name)
        self.axis = axis

    def process(self, primitive: Primitive, args: Sequence[Array], params: dict[str, Any]) -> Any:
        """The primitive on stacked arguments; as it is if nothing is stacked and no named axis of ours is meant."""
        values: list[Array] = []
        dims: list[int | None] = []
        for arg in args:
            if type(arg) is BatchTracer and arg._trace is self:
                values.append(arg.stacked)
                dims.append(arg.dim)
            else:
                check_alive(arg)
                values.append(arg)
                dims.append(None)
        parent: Trace = self.parent  # type: ignore[assignment]  # every trace but the bottom one has a parent
        concerned = any(d is not None for d in dims) or (self.axis.name is not None and _speaks_of(self.axis.name, params))
        token = push_trace(parent)
        try:
            if not concerned:
                return parent.process(primitive, values, params)
            if primitive.batch is None:
                raise GradientError(f"the primitive {primitive} has no batching rule, so vmap cannot map over it")
            out, dim = primitive.batch(self.axis, values, dims, **params)
        finally:
            pop_trace(token)
        if primitive.multiple_results:
            return tuple([self.attach(o, d) for o, d in zip(out, dim, strict=True)])
        return self.attach(out, dim)

    def attach(self, value: Array, dim: int | None) -> Array:
        """A tracer for one example of a stacked value; the bare value if it is not stacked."""
        return value if dim is None else BatchTracer(self, value, dim)

    def detach(self, value: Array) -> tuple[Array, int | None]:
        """A stacked value and its stacking dimension."""
        if type(value) is BatchTracer and value._trace is self:
            return value.stacked, value.dim
        check_alive(value)
        return value, None


def _speaks_of(name: Any, params: dict[str, Any]) -> bool:
    """Whether a primitive with these parameters is a collective over the named axis, or has one in a sub-program."""
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
    """`function` of flat arrays mapped over the given dimension of each (None: the same for all); outputs and their dimensions."""
    trace = BatchTrace(current_trace(), axis, name)
    token = push_trace(trace)
    try:
        with bound_axis(axis.name, axis.size):
            outs = function(*[trace.attach(a, d) for a, d in zip(args, dims, strict=True)])
        pairs = [trace.detach(o) for o in outs]
    finally:
        pop_trace(token)
        trace.finish()
    return [v for v, _ in pairs], [d for _, d in pairs]


def stack_at(value: Array, dim: int | None, target: int, size: int) -> Array:
    """`value` with its stacking dimension at `target`; repeated `size` times if it had none."""
    if dim is None:
        return moveaxis(broadcast(value, (size,)), 0, target)
    return moveaxis(value, dim, target)


def batch_jaxpr(
    closed: ClosedJaxpr, axis: AxisData, in_stacked: Sequence[bool], out_stacked: Sequence[bool] | None = None
) -> tuple[ClosedJaxpr, list[bool]]:
    """The program on inputs stacked along their first dimension where `in_stacked`, and which outputs come out stacked.

    `out_stacked` forces outputs to be stacked (where True) even if they are equal for all examples.
    """
    key = ("batch", axis, tuple(in_stacked), None if out_stacked is None else tuple(out_stacked))
    if key in closed.cache:
        return closed.cache[key]
    stacked_out: list[bool] = []

    def run(*args: Array) -> list[Array]:
        dims = [0 if s else None for s in in_stacked]
        outs, out_dims = vmap_flat(lambda *xs: eval_jaxpr(closed, *xs), axis, args, dims)
        forced = out_stacked or [False] * len(outs)
        stacked_out[:] = [d is not None or f for d, f in zip(out_dims, forced, strict=True)]
        return [stack_at(o, d, 0, axis.size) if s else o for o, d, s in zip(outs, out_dims, stacked_out, strict=True)]

    avals = [ShapedArray((axis.size, *a.shape), a.dtype, a.weak_type) if s else a for s, a in zip(in_stacked, closed.in_avals, strict=True)]
    result = trace_to_jaxpr(run, avals, "batched")
    closed.cache[key] = (result, list(stacked_out))
    return closed.cache[key]
