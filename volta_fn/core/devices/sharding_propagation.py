"""Sharding propagation: from operands to results.

Rules go by the names of dimensions: a dimension of a result is split as the dimensions of operands that it comes from are. Where
nothing follows, it is not split. A program's own constraints (`with_sharding_constraint`) take precedence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from volta_fn.core.aval import ShapedArray
from volta_fn.core.devices.sharding import NamedSharding, PartitionSpec
from volta_fn.core.jaxpr import ClosedJaxpr, Literal
from volta_fn.core.primitive import Primitive
from volta_fn.core.staging import JaxprTracer

#: For each dimension, the names of the axes that split it.
Names = list[tuple[Any, ...]]
#: (parameters, types of the operands, type of the result, names of each operand) -> names of the result
Rule = Callable[[Mapping[str, Any], Sequence[ShapedArray], ShapedArray, Sequence[Names]], Names]


def program_shardings(closed: ClosedJaxpr, arguments: Sequence[NamedSharding | None]) -> list[NamedSharding | None]:
    """Return the shardings of a program's results."""
    jaxpr, constraints = closed.jaxpr, closed.shardings
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, [c.device.sharding for c in closed.consts], strict=True))
    env.update(zip(jaxpr.invars, arguments, strict=True))
    env.update(constraints)
    read = lambda atom: None if isinstance(atom, Literal) else env.get(atom)  # noqa: E731
    for eqn in jaxpr.eqns:
        operands = [read(v) for v in eqn.invars]
        results = equation_shardings(eqn.primitive, eqn.params, [v.aval for v in eqn.invars], [v.aval for v in eqn.outvars], operands)
        env.update((v, constraints.get(v, s)) for v, s in zip(eqn.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


def tracer_sharding(tracer: JaxprTracer) -> NamedSharding | None:
    """Return the sharding of a value of a program that is being traced."""
    builder = tracer._trace.builder  # type: ignore[attr-defined]  # of all traces that make programs
    env: dict[Any, Any] = {}

    def find(atom: Any) -> Any:
        if isinstance(atom, Literal) or not builder.shardings:
            return None
        if atom not in env:
            env[atom] = builder.shardings.get(atom)
            eqn = builder.find(atom) if env[atom] is None else None
            if eqn is not None:
                operands = [find(v) for v in eqn.invars]
                results = equation_shardings(
                    eqn.primitive, eqn.params, [v.aval for v in eqn.invars], [v.aval for v in eqn.outvars], operands
                )
                env.update(zip(eqn.outvars, results, strict=True))
        return env[atom]

    result: NamedSharding | None = find(tracer._var)
    return result


def equation_shardings(
    primitive: Primitive, params: Mapping[str, Any], avals: Sequence[ShapedArray], out_avals: Sequence[ShapedArray], operands: Sequence[Any]
) -> list[NamedSharding | None]:
    """Return the shardings of a primitive's results; None for those on one device."""
    named = [s for s in operands if s is not None]
    inner = params.get("jaxpr")
    if isinstance(inner, ClosedJaxpr) and len(inner.in_avals) == len(operands):
        return program_shardings(inner, operands) if named or "shardings" in inner.derived else [None] * len(out_avals)
    if not named:
        return [None] * len(out_avals)
    mesh = named[0].mesh
    names = [_names(s if s is not None and s.mesh == mesh else None, a.ndim) for s, a in zip(operands, avals, strict=True)]
    rule = _RULES.get(primitive.name, _by_shape)
    return [NamedSharding(mesh, PartitionSpec(*_once(rule(params, avals, out, names), out, mesh.shape))) for out in out_avals]


def _names(sharding: NamedSharding | None, ndim: int) -> Names:
    return [() if sharding is None else sharding.spec.axes_of(i) for i in range(ndim)]


def _once(names: Names, out: ShapedArray, sizes: Mapping[Any, int]) -> Names:
    """Drop axes that were used before, and those that do not divide the dimension."""
    used_axes: set[Any] = set()
    unique: Names = []
    for dimension, size in zip(names, out.shape, strict=True):
        split = 1
        axes = []
        for name in dimension:
            if name not in used_axes and size % (split * sizes[name]) == 0:
                axes.append(name)
                used_axes.add(name)
                split *= sizes[name]
        unique.append(tuple(axes))
    return unique


def _by_shape(params: Any, avals: Sequence[ShapedArray], out: ShapedArray, names: Sequence[Names]) -> Names:
    """Propagate the names of operands that are broadcast to the result.

    Unless all are, as in elementwise primitives, take those of operands of its shape.
    """
    result: Names = [()] * out.ndim
    is_elementwise = all(_is_broadcast(aval.shape, out.shape) for aval in avals)
    for aval, operand_names in zip(avals, names, strict=True):
        if is_elementwise or aval.shape == out.shape:
            leading = out.ndim - aval.ndim
            for i, name in enumerate(operand_names):
                if aval.shape[i] == out.shape[leading + i]:
                    result[leading + i] = result[leading + i] or name
    return result


def _is_broadcast(shape: Sequence[int], to: Sequence[int]) -> bool:
    return len(shape) <= len(to) and all(size in (1, target_size) for size, target_size in zip(reversed(shape), reversed(to), strict=False))


def _transpose(params: Any, avals: Any, out: ShapedArray, names: Sequence[Names]) -> Names:
    return [names[0][i] for i in params["permutation"]]


def _broadcast(params: Any, avals: Sequence[ShapedArray], out: ShapedArray, names: Sequence[Names]) -> Names:
    result: Names = [()] * out.ndim
    for i, position in enumerate(params["broadcast_dimensions"]):
        if avals[0].shape[i] == out.shape[position]:
            result[position] = names[0][i]
    return result


def _reduce(params: Any, avals: Sequence[ShapedArray], out: ShapedArray, names: Sequence[Names]) -> Names:
    remaining = [n for i, n in enumerate(names[0]) if i not in params["axes"]]
    return remaining if len(remaining) == out.ndim else [()] * out.ndim


def _squeeze(params: Any, avals: Sequence[ShapedArray], out: ShapedArray, names: Sequence[Names]) -> Names:
    dropped = [d % avals[0].ndim for d in params["dimensions"]]
    return [n for i, n in enumerate(names[0]) if i not in dropped]


def _reshape(params: Any, avals: Sequence[ShapedArray], out: ShapedArray, names: Sequence[Names]) -> Names:
    """Keep the names of unchanged dimensions, and of the first in a split or merger."""
    result: Names = [()] * out.ndim
    old_dimensions: dict[int, int] = {}
    elements_before = 1
    for i, size in enumerate(avals[0].shape):
        if size != 1:
            old_dimensions[elements_before] = i
        elements_before *= size
    elements_before = 1
    for i, size in enumerate(out.shape):
        if size != 1 and elements_before in old_dimensions:
            result[i] = names[0][old_dimensions[elements_before]]
        elements_before *= size
    return result


def _dot(params: Any, avals: Sequence[ShapedArray], out: ShapedArray, names: Sequence[Names]) -> Names:
    (left_sum, right_sum), (left_batch, right_batch) = params["dimension_numbers"]
    left = [names[0][i] for i in range(avals[0].ndim) if i not in (*left_sum, *left_batch)]
    right = [names[1][i] for i in range(avals[1].ndim) if i not in (*right_sum, *right_batch)]
    return [*[names[0][i] or names[1][j] for i, j in zip(left_batch, right_batch, strict=True)], *left, *right]


def _by_dimension(params: Any, avals: Sequence[ShapedArray], out: ShapedArray, names: Sequence[Names]) -> Names:
    """Keep the names of the first operand's dimensions that keep their size."""
    if avals[0].ndim != out.ndim:
        return [()] * out.ndim
    return [n if a == b else () for n, a, b in zip(names[0], avals[0].shape, out.shape, strict=True)]


_RULES: dict[str, Rule] = {
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "squeeze": _squeeze,
    "reshape": _reshape,
    "dot_general": _dot,
    **dict.fromkeys(["slice", "dynamic_slice", "concatenate", "pad", "rev"], _by_dimension),
    **dict.fromkeys([f"reduce_{name}" for name in ("sum", "prod", "max", "min", "and", "or", "xor")], _reduce),
    **dict.fromkeys(["argmax", "argmin"], _reduce),
}
