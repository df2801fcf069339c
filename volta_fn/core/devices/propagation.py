"""Propagation of shardings, from a program's arguments to its results.

Rules go by the names of mesh axes: a dimension of a result is split as the dimensions of operands that it comes from are. Where nothing
follows, it is not split. A program's own constraints (`with_sharding_constraint`) take precedence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from volta_fn.core.aval import ShapedArray, broadcasts_to
from volta_fn.core.devices.sharding import Mesh, NamedSharding, PartitionSpec
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Literal, Var, constraints_of, sub_jaxprs
from volta_fn.core.primitive import Primitive
from volta_fn.core.staging import DynamicJaxprTracer

Shardings = list[NamedSharding | None]
#: For each dimension, the names of the axes that split it.
Names = list[tuple[Any, ...]]
#: (parameters, types of the operands, type of the result, names of each operand) -> names of the result
Rule = Callable[[Mapping[str, Any], Sequence[ShapedArray], ShapedArray, Sequence[Names]], Names]


def result_shardings(closed: ClosedJaxpr, arguments: Sequence[NamedSharding | None]) -> Shardings:
    """Return the shardings of a jitted program's results.

    Arguments that it does not use have no effect.
    """
    used = {*closed.outvars, *[v for eqn in closed.eqns for v in eqn.invars]}
    values = [*zip(closed.invars, arguments, strict=True), *closed.jaxpr.shardings.items()]
    inner = [s for eqn in closed.eqns for program in sub_jaxprs(eqn.params) for s in constraints_of(program)]
    return on_one_mesh(program_shardings(closed, arguments), [*[s for v, s in values if v in used], *inner])


def on_one_mesh(results: Shardings, others: Sequence[NamedSharding | None]) -> Shardings:
    """Return shardings on the mesh of the others, on every device where there is none."""
    mesh = next((s.mesh for s in others if s is not None), None)
    everywhere = None if mesh is None else NamedSharding(mesh, PartitionSpec())
    return [everywhere if s is None else s for s in results]


def program_shardings(closed: ClosedJaxpr, arguments: Sequence[NamedSharding | None]) -> Shardings:
    """Return the shardings of a program's results; None for those on one device."""
    jaxpr, constraints = closed.jaxpr, closed.jaxpr.shardings
    env: dict[Var, NamedSharding | None] = dict(zip(jaxpr.constvars, [c.device.sharding for c in closed.consts], strict=True))
    env.update(zip(jaxpr.invars, arguments, strict=True))
    _propagate(jaxpr.eqns, env, constraints)
    return [None if isinstance(v, Literal) else env.get(v) for v in jaxpr.outvars]


def tracer_sharding(tracer: DynamicJaxprTracer) -> NamedSharding | None:
    """Return the sharding of a value of a program that is being traced."""
    builder = tracer._trace.builder  # type: ignore[attr-defined]  # of all traces that make programs
    env: dict[Var, NamedSharding | None] = {}
    if builder.shardings:
        _propagate(builder.eqns, env, builder.shardings)
    return env.get(tracer._var)


def _propagate(eqns: Sequence[Equation], env: dict[Var, NamedSharding | None], constraints: Mapping[Var, NamedSharding | None]) -> None:
    """Add the shardings of equations' results to those of variables."""
    env.update(constraints)
    for eqn in eqns:
        operands = [None if isinstance(v, Literal) else env.get(v) for v in eqn.invars]
        results = equation_shardings(eqn.primitive, eqn.params, [v.aval for v in eqn.invars], [v.aval for v in eqn.outvars], operands)
        env.update((v, constraints.get(v, s)) for v, s in zip(eqn.outvars, results, strict=True))


def equation_shardings(
    primitive: Primitive,
    params: dict[str, Any],
    avals: Sequence[ShapedArray],
    out_avals: Sequence[ShapedArray],
    operands: Sequence[NamedSharding | None],
) -> Shardings:
    """Return the shardings of a primitive's results; None for those on one device."""
    programs = sub_jaxprs(params) if primitive.holds_programs else ()
    named = [s for s in operands if s is not None]
    if not named and not any(map(constraints_of, programs)):
        return [None] * len(out_avals)
    if (control_flow := _CONTROL_FLOW.get(primitive.name)) is not None:
        return control_flow(params, operands)
    if len(programs) == 1 and len(programs[0].in_avals) == len(operands) and len(programs[0].out_avals) == len(out_avals):
        return program_shardings(programs[0], operands)
    if not named:
        return [None] * len(out_avals)
    if primitive.name in _OPERAND_BY_OPERAND:
        return list(operands)
    mesh = named[0].mesh
    names = [_names(s if s is not None and _same_axes(s.mesh, mesh) else None, a.ndim) for s, a in zip(operands, avals, strict=True)]
    rule = _RULES.get(primitive.name, _by_shape)
    return [_sharding(mesh, _once(rule(params, avals, out, names), out.shape, mesh.shape)) for out in out_avals]


def _same_axes(mesh: Mesh, other: Mesh) -> bool:
    """Return whether meshes differ at most in the types of their axes."""
    return mesh is other or (mesh.shape == other.shape and [*mesh.devices.flat] == [*other.devices.flat])


def _names(sharding: NamedSharding | None, ndim: int) -> Names:
    return [() if sharding is None else sharding.spec.axes_of(i) for i in range(ndim)]


def _sharding(mesh: Mesh, names: Names) -> NamedSharding:
    """Return the sharding of a result.

    If it belongs to the result's type, whose axes are explicit, its spec has an entry for each dimension. Otherwise it ends with the last
    one that is split.
    """
    split = [i + 1 for i, axes in enumerate(names) if axes]
    is_typed = mesh.are_all_axes_explicit or any(axis in mesh.explicit_axes for axes in names for axis in axes)
    return NamedSharding(mesh, PartitionSpec(*names if is_typed else names[: max(split, default=0)]))


def _once(names: Names, shape: Sequence[int], sizes: Mapping[Any, int]) -> Names:
    """Drop axes that were used before, and those that do not divide the dimension."""
    used_axes: set[Any] = set()
    unique: Names = []
    for dimension, size in zip(names, shape, strict=True):
        split = 1
        axes = []
        for name in dimension:
            if name not in used_axes and size % (split * sizes[name]) == 0:
                axes.append(name)
                used_axes.add(name)
                split *= sizes[name]
        unique.append(tuple(axes))
    return unique


# Control flow: a carry is split as it is before the loop, and where it is not, as the loop's body leaves it.


def _cond(params: Mapping[str, Any], operands: Sequence[NamedSharding | None]) -> Shardings:
    first, *others = [program_shardings(branch, operands[1:]) for branch in params["branches"]]
    for branch in others:
        first = list(map(_joined, first, branch))
    return first


def _while(params: Mapping[str, Any], operands: Sequence[NamedSharding | None]) -> Shardings:
    first, second = params["cond_nconsts"], params["body_nconsts"]
    consts = operands[first : first + second]
    return _carried(lambda carry: program_shardings(params["body_jaxpr"], [*consts, *carry]), operands[first + second :])


def _scan(params: Mapping[str, Any], operands: Sequence[NamedSharding | None]) -> Shardings:
    first, second = params["num_consts"], params["num_consts"] + params["num_carry"]
    consts, rows = operands[:first], [_row(s) for s in operands[second:]]
    body = lambda carry: program_shardings(params["jaxpr"], [*consts, *carry, *rows])  # noqa: E731
    results = _carried(body, operands[first:second])
    count = params["num_carry"]
    return [*results[:count], *[_stacked(s) for s in results[count:]]]


_CONTROL_FLOW: dict[str, Callable[[Mapping[str, Any], Sequence[NamedSharding | None]], Shardings]] = {
    "cond": _cond,
    "while": _while,
    "scan": _scan,
}


def _carried(body: Callable[[Shardings], Shardings], carry: Sequence[NamedSharding | None]) -> Shardings:
    """Return the shardings of a carry after a loop, and of the body's other results."""
    carry = list(carry)
    while True:
        results = body(carry)
        grown = list(map(_joined, carry, results))
        if grown == carry:
            return [*carry, *results[len(carry) :]]
        carry = grown


def _joined(first: NamedSharding | None, second: NamedSharding | None) -> NamedSharding | None:
    """Split each dimension as the first sharding does, or else the second."""
    if first is None or second is None or not _same_axes(first.mesh, second.mesh):
        return first or second
    ndim = max(len(first.spec), len(second.spec))
    held = {*first.spec.names()}
    free = [tuple([name for name in axes if name not in held]) for axes in _names(second, ndim)]
    return _sharding(first.mesh, [a or b for a, b in zip(_names(first, ndim), free, strict=True)])


def _row(sharding: NamedSharding | None) -> NamedSharding | None:
    """Return the sharding of what an array has along its first dimension."""
    return None if sharding is None else _sharding(sharding.mesh, _names(sharding, len(sharding.spec))[1:])


def _stacked(sharding: NamedSharding | None) -> NamedSharding | None:
    """Return the sharding of such arrays along a first dimension, which is not split."""
    return None if sharding is None else _sharding(sharding.mesh, [(), *_names(sharding, len(sharding.spec))])


# Rules of primitives.


def _by_shape(params: Any, avals: Sequence[ShapedArray], out: ShapedArray, names: Sequence[Names]) -> Names:
    """Propagate the names of operands that are broadcast to the result.

    Unless all are, as in elementwise primitives, take those of operands of its shape.
    """
    result: Names = [()] * out.ndim
    is_elementwise = all(broadcasts_to(aval.shape, out.shape) for aval in avals)
    for aval, operand_names in zip(avals, names, strict=True):
        if is_elementwise or aval.shape == out.shape:
            leading = out.ndim - aval.ndim
            for i, name in enumerate(operand_names):
                if aval.shape[i] == out.shape[leading + i]:
                    result[leading + i] = result[leading + i] or name
    return result


def _by_dimension(params: Any, avals: Sequence[ShapedArray], out: ShapedArray, names: Sequence[Names]) -> Names:
    """Propagate names between dimensions of the same number, of any size."""
    return _first([n for n, a in zip(names, avals, strict=True) if a.ndim == out.ndim], out.ndim)


def _first(names: Sequence[Names], ndim: int) -> Names:
    """Return for each leading dimension the names of the first operand split along it."""
    return [next((n[i] for n in names if i < len(n) and n[i]), ()) for i in range(ndim)]


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


def _convolution(params: Any, avals: Any, out: ShapedArray, names: Sequence[Names]) -> Names:
    """Keep the names of examples, positions, and the features of the result."""
    numbers = params["dimension_numbers"]
    result: Names = [()] * out.ndim
    for i, (position, dimension) in enumerate(zip(numbers.out_spec, numbers.lhs_spec, strict=True)):
        result[position] = names[1][numbers.rhs_spec[0]] if i == 1 else names[0][dimension]
    if params["batch_group_count"] > 1:
        result[numbers.out_spec[0]] = ()
    return result


def _gather(params: Any, avals: Sequence[ShapedArray], out: ShapedArray, names: Sequence[Names]) -> Names:
    """Keep the names of the indices' dimensions, and of those that are read in full."""
    numbers, sizes, operand = params["dimension_numbers"], params["slice_sizes"], names[0]
    indices = list(names[1][:-1])
    for from_operand, from_indices in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True):
        indices[from_indices] = indices[from_indices] or operand[from_operand]
    absent = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    window = iter([operand[d] if sizes[d] == avals[0].shape[d] else () for d in range(avals[0].ndim) if d not in absent])
    batch = iter(indices)
    return [next(window if i in numbers.offset_dims else batch) for i in range(out.ndim)]


def _of_matrices(params: Any, avals: Sequence[ShapedArray], out: ShapedArray, names: Sequence[Names]) -> Names:
    """Keep the names of the dimensions before those of matrices."""
    batch = max(aval.ndim for aval in avals) - 2
    return [*_first([n[:batch] for n in names], batch), *[()] * (out.ndim - batch)]


def _of_keys(params: Any, avals: Sequence[ShapedArray], out: ShapedArray, names: Sequence[Names]) -> Names:
    """Keep the names of the dimensions of keys, each of which is a row of words."""
    return [*names[0][:-1], *[()] * (out.ndim - avals[0].ndim + 1)]


#: Primitives each of whose results is like the operand at its position.
_OPERAND_BY_OPERAND = frozenset(["optimization_barrier"])
_MATRIX_PRIMITIVES = """
cholesky eig eigh hessenberg householder_product lu qr schur svd triangular_solve tridiagonal tridiagonal_solve
""".split()
_RULES: dict[str, Rule] = {
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "squeeze": _squeeze,
    "reshape": _reshape,
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
    "gather": _gather,
    "random_bits": _of_keys,
    **dict.fromkeys(["slice", "dynamic_slice", "concatenate", "pad", "rev", "top_k", "fft"], _by_dimension),
    **dict.fromkeys([f"reduce_window_{name}" for name in ("sum", "max", "min")], _by_dimension),
    **dict.fromkeys([f"reduce_{name}" for name in ("sum", "prod", "max", "min", "and", "or", "xor")], _reduce),
    **dict.fromkeys(["argmax", "argmin"], _reduce),
    **dict.fromkeys(_MATRIX_PRIMITIVES, _of_matrices),
}
