"""Rules of movement: reshapes, transposes, broadcasts, slices and contractions.

They undo each other, combine, or move nothing. *Unit* axes are those of size 1: whatever only adds, drops or moves them keeps the order of
the elements, so it is a reshape.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.passes.rewriting import Rewriter, Rule, Table, rule
from volta_fn.core.aval import Shape
from volta_fn.core.jaxpr import Atom, Equation
from volta_fn.core.primitive import Primitive
from volta_fn.errors import BroadcastError
from volta_fn.primitives.declare import broadcast_shapes
from volta_fn.primitives.elementwise.selection import select_n_p

RULES: Table = {}


def _reshaped(program: Rewriter, eqn: Equation, operand: Atom) -> Atom:
    return program.emit(eqn, "reshape", operand, new_sizes=eqn.outvars[0].aval.shape)


@rule(RULES, "reshape")
def reshape(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop a reshape to the array's own shape; combine two."""
    (x,) = eqn.invars
    if x.aval.shape == eqn.params["new_sizes"]:
        return x
    made = program.producer(x, "reshape")
    return None if made is None else _reshaped(program, eqn, made.invars[0])


@rule(RULES, "squeeze")
def squeeze(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite squeeze to reshape."""
    return _reshaped(program, eqn, eqn.invars[0])


@rule(RULES, "transpose")
def transpose(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop a transpose that moves nothing; combine two.

    One that moves only unit axes is a reshape.
    """
    (x,), order = eqn.invars, eqn.params["permutation"]
    if order == tuple(range(len(order))):
        return x
    moved = [i for i in order if x.aval.shape[i] != 1]
    if moved == sorted(moved):
        return _reshaped(program, eqn, x)
    made = program.producer(x, "transpose")
    if made is None:
        return None
    inner = made.params["permutation"]
    return program.emit(eqn, "transpose", made.invars[0], permutation=tuple([inner[i] for i in order]))


@rule(RULES, "broadcast_in_dim")
def broadcast_in_dim(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop a broadcast that repeats nothing; combine two, or one with a reshape.

    The reshape must only add unit axes.
    """
    (x,), shape, dims = eqn.invars, eqn.params["shape"], eqn.params["broadcast_dimensions"]
    if stretched(x.aval.shape, shape, dims) == shape:
        return _reshaped(program, eqn, x)
    made = program.producer(x, "broadcast_in_dim")
    if made is not None:
        inner = made.params["broadcast_dimensions"]
        return program.emit(eqn, "broadcast_in_dim", made.invars[0], shape=shape, broadcast_dimensions=tuple([dims[d] for d in inner]))
    made = program.producer(x, "reshape")
    if made is None or 1 in made.invars[0].aval.shape or _without_units(x.aval.shape) != made.invars[0].aval.shape:
        return None
    dims_of_wide_axes = tuple([d for n, d in zip(x.aval.shape, dims, strict=True) if n != 1])
    return program.emit(eqn, "broadcast_in_dim", made.invars[0], shape=shape, broadcast_dimensions=dims_of_wide_axes)


def stretched(operand: Shape, shape: Shape, dims: Sequence[int]) -> Shape:
    """Return the operand's shape with its axes where the result has them.

    Between them are unit axes.
    """
    sizes = [1] * len(shape)
    for size, dim in zip(operand, dims, strict=True):
        sizes[dim] = size
    return tuple(sizes)


def _without_units(shape: Shape) -> Shape:
    return tuple([n for n in shape if n != 1])


def reduction_rules(primitive: Primitive) -> Sequence[Rule]:
    """Return the rules of reductions."""
    return [_unit_reduction] if primitive.reduction and not primitive.reduction.index_of else []


def _unit_reduction(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop a reduction over unit axes, where it leaves each element as it is.

    A float sum gives 0.0 for -0.0, a complex product NaN for infinities.
    """
    (x,) = eqn.invars
    if any(x.aval.shape[a] != 1 for a in eqn.params["axes"]) or not _keeps_elements(eqn.primitive, x.aval.dtype):
        return None
    return _reshaped(program, eqn, x)


@cache
def _keeps_elements(primitive: Primitive, dtype: np.dtype) -> bool:
    """Return True if a reduction of one element is that element, even of -0.0."""
    evaluate = primitive.evaluate
    if dtype in dtypes.COMPLEX or evaluate is None:
        return False
    return dtype not in dtypes.FLOATS or bool(np.signbit(evaluate(np.asarray([-0.0], dtype), axes=(0,))))


@rule(RULES, "rev")
def rev(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop a reversal along unit axes, and two along the same axes."""
    (x,), axes = eqn.invars, eqn.params["dimensions"]
    if all(x.aval.shape[a] == 1 for a in axes):
        return x
    made = program.producer(x, "rev")
    return made.invars[0] if made is not None and sorted(made.params["dimensions"]) == sorted(axes) else None


@rule(RULES, "concatenate")
def concatenate(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop a concatenation of one array."""
    return eqn.invars[0] if len(eqn.invars) == 1 else None


@rule(RULES, "slice", "dynamic_slice")
def full_slice(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop a slice of all elements; the start of a dynamic one is clamped to 0."""
    x = eqn.invars[0]
    return x if x.aval.shape == eqn.outvars[0].aval.shape else None


@rule(RULES, "pad")
def empty_pad(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop a pad that adds nothing."""
    return None if any(map(any, eqn.params["padding_config"])) else eqn.invars[0]


@rule(RULES, "dynamic_update_slice")
def full_update(eqn: Equation, program: Rewriter) -> Atom | None:
    """Replace an update of all elements by the update: its start is clamped to 0."""
    x, update = eqn.invars[:2]
    return update if x.aval.shape == update.aval.shape else None


@rule(RULES, "dot_general")
def of_transposes(eqn: Equation, program: Rewriter) -> Atom | None:
    """Contract the operands of transposes over other axes instead.

    The order of the result's axes must stay, and that of the sums, so that they round as before.
    """
    contracted, stacked = map(list, eqn.params["dimension_numbers"])
    invars = list(eqn.invars)
    for side, operand in enumerate(eqn.invars):
        made = program.producer(operand, "transpose")
        if made is None:
            continue
        order: Sequence[int] = made.params["permutation"]
        taken = {*contracted[side], *stacked[side]}
        free = [order[d] for d in range(len(order)) if d not in taken]
        summed = tuple([order[d] for d in contracted[side]])
        if free == sorted(free) and _ranks(summed) == _ranks(contracted[side]):
            contracted[side], stacked[side] = summed, tuple([order[d] for d in stacked[side]])
            invars[side] = made.invars[0]
    if invars == eqn.invars:
        return None
    numbers = (tuple(contracted), tuple(stacked))
    return program.emit(eqn, "dot_general", *invars, **{**eqn.params, "dimension_numbers": numbers})


def _ranks(axes: Sequence[int]) -> list[int]:
    return sorted(range(len(axes)), key=lambda i: axes[i])


def broadcasting_rules(primitive: Primitive) -> Sequence[Rule]:
    """Return the rule for elementwise primitives of several operands."""
    return (_implicit_broadcast,) if primitive.arity > 1 or primitive is select_n_p else ()


def _implicit_broadcast(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop broadcasts that an elementwise primitive does itself, as NumPy does.

    The other operands must give the same shape.
    """
    broadcasts = [program.producer(v, "broadcast_in_dim") for v in eqn.invars]
    if not any(broadcasts):
        return None
    invars = list(eqn.invars)
    for i, made in enumerate(broadcasts):
        if made is None:
            continue
        compact = _compact(made)
        others = [v.aval.shape for j, v in enumerate(invars) if j != i]
        if _common(compact, *others) == eqn.outvars[0].aval.shape:
            source = made.invars[0]
            invars[i] = source if source.aval.shape == compact else program.emit(made, "reshape", source, new_sizes=compact)
    if all(new is old for new, old in zip(invars, eqn.invars, strict=True)):
        return None
    return program.emit(eqn, eqn.primitive.name, *invars, **eqn.params)


def _compact(made: Equation) -> Shape:
    """Return the shape of a broadcast's operand that broadcasts alike implicitly."""
    operand = made.invars[0].aval.shape
    sizes = stretched(operand, made.params["shape"], made.params["broadcast_dimensions"])
    first = next((i for i, n in enumerate(sizes) if n != 1), len(sizes))
    return operand if operand == sizes[len(sizes) - len(operand) :] else sizes[first:]


def _common(*shapes: Shape) -> Shape | None:
    try:
        return broadcast_shapes(*shapes)
    except BroadcastError:
        return None


@rule(RULES, "pcast")
def border_of_processes(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop what only derivatives ask for."""
    return eqn.invars[0]
