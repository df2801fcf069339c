"""Algebraic simplification of equations, in one walk over a program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.passes.dce import is_movable, is_pinned
from volta_fn.compiler.passes.rewriting import (
    Rewriter,
    Rule,
    Rules,
    Table,
    literal,
    literal_key,
    params_key,
    rewrite,
    rule,
    rules_of_table,
)
from volta_fn.core.arrays.array import Array, ConcreteArray, from_host, numbers_of
from volta_fn.core.aval import Shape
from volta_fn.core.devices.device import find_device
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var
from volta_fn.core.primitive import Primitive
from volta_fn.core.trace import EVAL
from volta_fn.errors import BroadcastError
from volta_fn.primitives.data_movement.movement import broadcast_in_dim_p
from volta_fn.primitives.declare import broadcast_shapes
from volta_fn.primitives.elementwise import arithmetic, selection
from volta_fn.primitives.elementwise.cast import convert_element_type_p
from volta_fn.primitives.elementwise.selection import select_n_p

# Rules of arithmetic that hold to the last bit.
#
# The sign of zero decides much: x - 0 is x for every float, and so is x + (-0.0), but x + 0.0 is 0.0 for -0.0. Multiplying by one keeps
# every float as it is, but not an infinite complex number, of which NumPy makes NaN.

ARITHMETIC_RULES: Table = {}

_SINGLE_OR_DOUBLE = frozenset([np.dtype(np.float32), np.dtype(np.float64)])


def _is(program: Rewriter, atom: Atom, constant: float) -> bool:
    """Return True if all elements of the atom have this value; zeros, this sign."""
    value = program.scalar(atom)
    if value is None or value != constant:
        return False
    if value.dtype not in dtypes.INEXACT:
        return True
    number = complex(value.item())
    sign = math.copysign(1.0, constant)
    return all(x != 0 or math.copysign(1.0, x) == sign for x in (number.real, *([number.imag] if value.dtype.kind == "c" else [])))


def _other_than(program: Rewriter, eqn: Equation, unit: float) -> Atom | None:
    """Return the operand of a commutative operation whose other operand is `unit`."""
    x, y = eqn.invars
    if _is(program, y, unit):
        return program.fitted(eqn, x)
    return program.fitted(eqn, y) if _is(program, x, unit) else None


@rule(ARITHMETIC_RULES, "mul")
def times_one(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite x * 1 to x (for bool: x and True)."""
    return None if eqn.outvars[0].aval.dtype in dtypes.COMPLEX else _other_than(program, eqn, 1)


@rule(ARITHMETIC_RULES, "add")
def plus_zero(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite x + (-0.0) to x for floats and complex numbers, x + 0 for integers."""
    return _other_than(program, eqn, -0.0)


@rule(ARITHMETIC_RULES, "sub")
def minus_zero(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite x - 0 to x; for floats and complex numbers a zero of positive sign."""
    x, y = eqn.invars
    return program.fitted(eqn, x) if _is(program, y, 0.0) else None


@rule(ARITHMETIC_RULES, "div")
def divided_by_power_of_two(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite x / 1 to x, and x / 2^n to x * 2^-n for floats, which rounds the same."""
    x, y = eqn.invars
    dtype = x.aval.dtype
    if dtype in dtypes.COMPLEX or (value := program.scalar(y)) is None:
        return None
    if value == 1:
        return program.fitted(eqn, x)
    if dtype not in dtypes.FLOATS or not np.isfinite(value):
        return None
    info, number = dtypes.finfo(dtype), float(value)
    if abs(math.frexp(number)[0]) != 0.5 or not min(abs(number), 1 / abs(number)) >= float(info.smallest_normal):
        return None
    return program.fitted(eqn, program.emit(eqn, "mul", x, literal(1 / number, dtype)))


@rule(ARITHMETIC_RULES, "add", "sub")
def with_a_negative(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite x + -y to x - y, -x + y to y - x, and x - -y to x + y."""
    x, y = eqn.invars
    adding = eqn.primitive is arithmetic.add.primitive
    if (negated := program.producer(y, "neg")) is not None:
        return program.emit(eqn, "sub" if adding else "add", x, negated.invars[0])
    if adding and (negated := program.producer(x, "neg")) is not None:
        return program.emit(eqn, "sub", y, negated.invars[0])
    return None


@rule(ARITHMETIC_RULES, "mul", "div")
def of_two_negatives(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite -x * -y to x * y and -x / -y to x / y for floats."""
    first, second = (program.producer(v, "neg") for v in eqn.invars)
    if first is None or second is None or eqn.outvars[0].aval.dtype not in dtypes.FLOATS:
        return None
    return program.emit(eqn, eqn.primitive.name, first.invars[0], second.invars[0])


@rule(ARITHMETIC_RULES, "neg", "not", "conj")
def involution(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop an operation that undoes itself."""
    producer = program.producer(eqn.invars[0], eqn.primitive.name)
    same = producer is not None and producer.invars[0].aval.dtype == eqn.outvars[0].aval.dtype
    return producer.invars[0] if producer is not None and same else None


@rule(ARITHMETIC_RULES, "abs", "floor", "ceil", "round", "round_half_even", "sign")
def idempotent(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop an operation that changes nothing the second time."""
    if eqn.outvars[0].aval.dtype in dtypes.COMPLEX:
        return None
    return eqn.invars[0] if program.producer(eqn.invars[0], eqn.primitive.name) is not None else None


@rule(ARITHMETIC_RULES, "abs")
def of_a_negative(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite |-x| to |x|, if negatives are negative (not of unsigned integers)."""
    producer = program.producer(eqn.invars[0], "neg")
    return None if producer is None or eqn.invars[0].aval.dtype in dtypes.UNSIGNED else program.emit(eqn, "abs", producer.invars[0])


@rule(ARITHMETIC_RULES, "max", "min", "and", "or")
def of_equals(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite max(x, x) to x, and its like."""
    x, y = eqn.invars
    return x if x is y else None


@rule(ARITHMETIC_RULES, "pow")
def to_a_known_power(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite x^c to products, where that is exact.

    That is so for integers, and for floats and the exponents 1, 2 and -1. (Not 1/2: by IEEE 754 the power of -0.0 is 0.0, and the square
    root -0.0.)
    """
    x, y = eqn.invars
    exponent = program.scalar(y)
    if exponent is None or x.aval.shape != eqn.outvars[0].aval.shape:
        return None
    dtype = x.aval.dtype
    if dtype in dtypes.INTEGERS and exponent >= 1:
        return program.emit(eqn, "integer_pow", x, y=int(exponent))
    if dtype in _SINGLE_OR_DOUBLE and x.aval.shape and exponent in (1, 2, -1):
        if exponent < 0:
            return program.emit(eqn, "div", literal(1, dtype), x)
        return program.emit(eqn, "integer_pow", x, y=int(exponent))
    return None


@rule(ARITHMETIC_RULES, "integer_pow")
def square(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite x^1 to x, and x^2 to x * x unless x is complex."""
    (x,), power = eqn.invars, eqn.params["y"]
    if power == 1:
        return x
    return program.emit(eqn, "mul", x, x) if power == 2 and x.aval.dtype not in dtypes.COMPLEX else None


@rule(ARITHMETIC_RULES, "real", "imag")
def of_complex(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite real(complex(a, b)) to a and imag(complex(a, b)) to b."""
    producer = program.producer(eqn.invars[0], "complex")
    return None if producer is None else program.fitted(eqn, producer.invars[eqn.primitive is selection.imag.primitive])


@rule(ARITHMETIC_RULES, "complex")
def complex_of_components(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite complex(real(z), imag(z)) to z."""
    first, second = program.producer(eqn.invars[0], "real"), program.producer(eqn.invars[1], "imag")
    if first is None or second is None or first.invars[0] is not second.invars[0]:
        return None
    return first.invars[0]


# Rules of movement: reshapes, transposes, broadcasts, slices and contractions.
#
# They undo each other, combine, or move nothing. *Unit* axes are those of size 1: whatever only adds, drops or moves them keeps the
# order of the elements, so it is a reshape.

MOVEMENT_RULES: Table = {}


def _reshaped(program: Rewriter, eqn: Equation, operand: Atom) -> Atom:
    return program.emit(eqn, "reshape", operand, new_sizes=eqn.outvars[0].aval.shape)


@rule(MOVEMENT_RULES, "reshape")
def reshape(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop a reshape to the array's own shape; combine two."""
    (x,) = eqn.invars
    if x.aval.shape == eqn.params["new_sizes"]:
        return x
    producer = program.producer(x, "reshape")
    return None if producer is None else _reshaped(program, eqn, producer.invars[0])


@rule(MOVEMENT_RULES, "squeeze")
def squeeze(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite squeeze to reshape."""
    return _reshaped(program, eqn, eqn.invars[0])


@rule(MOVEMENT_RULES, "transpose")
def transpose(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop a transpose that moves nothing; combine two.

    One that moves only unit axes is a reshape.
    """
    (x,), order = eqn.invars, eqn.params["permutation"]
    if order == tuple(range(len(order))):
        return x
    wide_axes = [i for i in order if x.aval.shape[i] != 1]
    if wide_axes == sorted(wide_axes):
        return _reshaped(program, eqn, x)
    producer = program.producer(x, "transpose")
    if producer is None:
        return None
    inner = producer.params["permutation"]
    return program.emit(eqn, "transpose", producer.invars[0], permutation=tuple([inner[i] for i in order]))


@rule(MOVEMENT_RULES, "broadcast_in_dim")
def broadcast_in_dim(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop a broadcast that repeats nothing; combine two, or one with a reshape.

    The reshape must only add unit axes.
    """
    (x,), shape, dims = eqn.invars, eqn.params["shape"], eqn.params["broadcast_dimensions"]
    if stretched(x.aval.shape, shape, dims) == shape:
        return _reshaped(program, eqn, x)
    producer = program.producer(x, "broadcast_in_dim")
    if producer is not None:
        inner = producer.params["broadcast_dimensions"]
        return program.emit(eqn, "broadcast_in_dim", producer.invars[0], shape=shape, broadcast_dimensions=tuple([dims[d] for d in inner]))
    producer = program.producer(x, "reshape")
    if producer is None or 1 in producer.invars[0].aval.shape or _without_units(x.aval.shape) != producer.invars[0].aval.shape:
        return None
    dims_of_wide_axes = tuple([d for n, d in zip(x.aval.shape, dims, strict=True) if n != 1])
    return program.emit(eqn, "broadcast_in_dim", producer.invars[0], shape=shape, broadcast_dimensions=dims_of_wide_axes)


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
    """Drop a reduction over unit axes: one element's reduction is that element."""
    (x,) = eqn.invars
    return None if any(x.aval.shape[a] != 1 for a in eqn.params["axes"]) else _reshaped(program, eqn, x)


@rule(MOVEMENT_RULES, "rev")
def rev(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop a reversal along unit axes, and two along the same axes."""
    (x,), axes = eqn.invars, eqn.params["dimensions"]
    if all(x.aval.shape[a] == 1 for a in axes):
        return x
    producer = program.producer(x, "rev")
    return producer.invars[0] if producer is not None and sorted(producer.params["dimensions"]) == sorted(axes) else None


@rule(MOVEMENT_RULES, "concatenate")
def concatenate(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop a concatenation of one array."""
    return eqn.invars[0] if len(eqn.invars) == 1 else None


@rule(MOVEMENT_RULES, "slice", "dynamic_slice")
def full_slice(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop a slice of all elements; the start of a dynamic one is clamped to 0."""
    x = eqn.invars[0]
    return x if x.aval.shape == eqn.outvars[0].aval.shape else None


@rule(MOVEMENT_RULES, "pad")
def empty_pad(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop a pad that adds nothing."""
    return None if any(map(any, eqn.params["padding_config"])) else eqn.invars[0]


@rule(MOVEMENT_RULES, "dynamic_update_slice")
def full_update(eqn: Equation, program: Rewriter) -> Atom | None:
    """Replace an update of all elements by the update: its start is clamped to 0."""
    x, update = eqn.invars[:2]
    return update if x.aval.shape == update.aval.shape else None


@rule(MOVEMENT_RULES, "dot_general")
def of_transposes(eqn: Equation, program: Rewriter) -> Atom | None:
    """Contract the operands of transposes over other axes instead.

    The order of the result's axes must stay, and that of the sums, so that they round as before.
    """
    contracted, stacked = map(list, eqn.params["dimension_numbers"])
    invars = list(eqn.invars)
    for side, operand in enumerate(eqn.invars):
        view = _view_of_transpose(program, operand)
        if view is None:
            continue
        order = view.permutation
        paired = {*contracted[side], *stacked[side]}
        free = [order[d] for d in range(len(order)) if d not in paired and operand.aval.shape[d] != 1]
        summed = tuple([order[d] for d in contracted[side]])
        if free == sorted(free) and _ranks(summed) == _ranks(contracted[side]):
            contracted[side], stacked[side] = summed, tuple([order[d] for d in stacked[side]])
            invars[side] = view.before(program)
    if invars == eqn.invars:
        return None
    numbers = (tuple(contracted), tuple(stacked))
    product = program.emit(eqn, "dot_general", *invars, **{**eqn.params, "dimension_numbers": numbers})
    return product if product.aval.shape == eqn.outvars[0].aval.shape else _reshaped(program, eqn, product)


class _TransposedView(NamedTuple):
    """An operand that is a transpose, perhaps converted or with other unit axes."""

    transpose: Equation
    #: Equations between the transpose and the operand, the last one first: conversions, and reshapes that add or drop unit axes.
    changes: tuple[Equation, ...]
    shape: Shape

    @property
    def permutation(self) -> tuple[int, ...]:
        """The order in which the operand has the axes of `before`."""
        order, sizes = self.transpose.params["permutation"], self.transpose.invars[0].aval.shape
        if not self.changes:
            return tuple(order)
        wide_axes = [i for i in range(len(sizes)) if sizes[i] != 1]
        units = self.shape.count(1)
        unit_axes, moved = iter(range(units)), iter([units + wide_axes.index(i) for i in order if sizes[i] != 1])
        return tuple([next(unit_axes if size == 1 else moved) for size in self.shape])

    def before(self, program: Rewriter) -> Atom:
        """Emit the operand as it is before the transpose: unit axes, then the others."""
        (atom,) = self.transpose.invars
        if self.changes:
            sizes = (1,) * self.shape.count(1) + _without_units(atom.aval.shape)
            atom = program.emit(self.transpose, "reshape", atom, new_sizes=sizes)
        for change in reversed(self.changes):
            if change.primitive is convert_element_type_p:
                atom = program.emit(change, "convert_element_type", atom, **change.params)
        return atom


def _view_of_transpose(program: Rewriter, operand: Atom) -> _TransposedView | None:
    """Return the transpose that an operand is, through changes that move no element."""
    changes, atom = [], operand
    while (eqn := program.producer(atom, "convert_element_type") or program.producer(atom, "reshape")) is not None:
        if _without_units(eqn.invars[0].aval.shape) != _without_units(operand.aval.shape):
            return None
        changes.append(eqn)
        (atom,) = eqn.invars
    transpose = program.producer(atom, "transpose")
    return None if transpose is None else _TransposedView(transpose, tuple(changes), operand.aval.shape)


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
    for i, broadcast in enumerate(broadcasts):
        if broadcast is None:
            continue
        # The operand in the shape that broadcasts alike implicitly.
        operand = broadcast.invars[0].aval.shape
        sizes = stretched(operand, broadcast.params["shape"], broadcast.params["broadcast_dimensions"])
        first = next((i for i, n in enumerate(sizes) if n != 1), len(sizes))
        compact = operand if operand == sizes[len(sizes) - len(operand) :] else sizes[first:]
        others = [v.aval.shape for j, v in enumerate(invars) if j != i]
        if _common(compact, *others) == eqn.outvars[0].aval.shape:
            source = broadcast.invars[0]
            invars[i] = source if source.aval.shape == compact else program.emit(broadcast, "reshape", source, new_sizes=compact)
    if all(new is old for new, old in zip(invars, eqn.invars, strict=True)):
        return None
    return program.emit(eqn, eqn.primitive.name, *invars, **eqn.params)


def _common(*shapes: Shape) -> Shape | None:
    try:
        return broadcast_shapes(*shapes)
    except BroadcastError:
        return None


@rule(MOVEMENT_RULES, "pcast")
def border_of_processes(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop a marker that only derivatives read."""
    return eqn.invars[0]


# Rules of conversions, selections, and markers that compute nothing.

SELECTION_RULES: Table = {}


@rule(SELECTION_RULES, "stop_gradient", "name")
def marker(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop markers that only derivatives read."""
    return eqn.invars[0]


@rule(SELECTION_RULES, "convert_element_type")
def converted_to_itself(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop a conversion to the same dtype, or there and back by a dtype that holds it."""
    (x,) = eqn.invars
    dtype = eqn.params["new_dtype"]
    if x.aval.dtype == dtype:
        return x
    producer = program.producer(x, "convert_element_type")
    if producer is None or producer.invars[0].aval.dtype != dtype or not _holds(x.aval.dtype, dtype):
        return None
    return producer.invars[0]


def _holds(wide: np.dtype, narrow: np.dtype) -> bool:
    """Return True if `wide` has every value of `narrow`, NaN and both zeros included."""
    if narrow in dtypes.BOOL:
        return wide not in dtypes.STORAGE  # float8_e8m0fnu has no 0
    if narrow in dtypes.INTEGERS and wide in dtypes.INTEGERS:
        inner, outer = np.iinfo(narrow), np.iinfo(wide)
        return int(outer.min) <= int(inner.min) and int(inner.max) <= int(outer.max)
    if wide not in dtypes.FLOATS:
        return False
    outer_float = dtypes.finfo(wide)
    if narrow in dtypes.INTEGERS:
        return np.iinfo(narrow).bits <= outer_float.nmant + 1 and np.iinfo(narrow).bits <= outer_float.maxexp
    if narrow not in dtypes.FLOATS:
        return False
    inner_float = dtypes.finfo(narrow)
    return inner_float.nmant <= outer_float.nmant and inner_float.nexp <= outer_float.nexp


@rule(SELECTION_RULES, "select_n")
def known_choice(eqn: Equation, program: Rewriter) -> Atom | None:
    """Resolve a choice by a known predicate, of one case, or of equal cases."""
    predicate, *cases = eqn.invars
    if len(cases) == 1 or (type(cases[0]) is not Literal and all(c is cases[0] for c in cases)):
        return program.fitted(eqn, cases[0])
    value = program.scalar(predicate)
    if value is None or not 0 <= int(value) < len(cases):
        return None
    return program.fitted(eqn, cases[int(value)])


@rule(SELECTION_RULES, "select_n")
def by_the_opposite(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite a choice by `not p` to the opposite choice by p."""
    predicate, *cases = eqn.invars
    producer = program.producer(predicate, "not")
    if producer is None or len(cases) != 2 or predicate.aval.dtype not in dtypes.BOOL:
        return None
    return program.emit(eqn, "select_n", producer.invars[0], cases[1], cases[0])


# Simplification of single equations, all in one walk.
#
# In one walk each rule sees the results of the others: folded constants, simplified operations, merged equations.

#: Elements of the largest result that becomes a constant of the program, and of the operands that it is computed from.
_RESULT_LIMIT, _OPERAND_LIMIT = 1024, 65536

#: Operations that are commutative to the last bit. (Not max and min: the first of two zeros may win.)
_COMMUTATIVE = frozenset(
    [f.primitive for f in (arithmetic.add, arithmetic.mul, selection.eq, selection.ne)]
    + [f.primitive for f in (selection.bitwise_and, selection.bitwise_or, selection.bitwise_xor)]
)


def simplify_equations(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Fold constants, apply algebraic identities and merge equal equations."""
    return rewrite(closed, _ALL)


def _folding_rules(primitive: Primitive) -> Sequence[Rule]:
    """Return the folding rule, for primitives that compute something."""
    # Filling an array in advance would only make the program larger.
    return () if primitive.holds_programs or is_pinned(primitive) or primitive is broadcast_in_dim_p else (_folded,)


def _folded(eqn: Equation, program: Rewriter) -> Atom | Sequence[Atom] | None:
    constants = program.constants
    operands: list[Array] = []
    for atom in eqn.invars:
        value = atom.val if isinstance(atom, Literal) else constants.get(atom)
        if value is None:
            return None
        operands.append(value)
    if not operands or any(v.aval.size > _RESULT_LIMIT for v in eqn.outvars):
        return None
    if any(v.size > _OPERAND_LIMIT or numbers_of(v) is None for v in operands):
        return None
    results = EVAL.process(eqn.primitive, [_on_cpu(v) for v in operands], eqn.params)
    if not eqn.primitive.multiple_results:
        return _constant(eqn.outvars[0], results, program)
    return [_constant(v, r, program) for v, r in zip(eqn.outvars, results, strict=True)]


def _on_cpu(value: Array) -> Array:
    """Move a constant to the CPU, which computes a small result sooner than a device."""
    numbers, cpu = numbers_of(value), find_device("cpu")
    if numbers is None or (isinstance(value, ConcreteArray) and value.device is cpu):
        return value
    return from_host(numbers, value.weak_type, cpu)


def _constant(var: Var, value: ConcreteArray, program: Rewriter) -> Atom:
    """Return a scalar as a literal; make any other value a constant of the program."""
    if not value.shape:
        return Literal(value)
    program.constants[var] = value
    return var


def _merged(eqn: Equation, program: Rewriter) -> Atom | Sequence[Atom] | None:
    """Return the results of an earlier equation that is equal to this one."""
    if eqn.primitive.holds_programs and not is_movable(eqn):
        return None
    first = program.seen.setdefault(_key(eqn), eqn.outvars)
    if first is eqn.outvars:
        return None
    return first if eqn.primitive.multiple_results else first[0]


def _key(eqn: Equation) -> Any:
    operands = [v if type(v) is Var else literal_key(v) for v in eqn.invars]
    if len(operands) == 2 and eqn.primitive in _COMMUTATIVE and eqn.invars[0].aval.dtype not in dtypes.COMPLEX:
        operands.sort(key=hash)
    if not eqn.params:
        return eqn.primitive, *operands
    return eqn.primitive, *operands, params_key(eqn.params)


#: Operations that do nothing, or undo or repeat others, are dropped, and some are replaced by cheaper ones.
IDENTITIES = (
    rules_of_table(ARITHMETIC_RULES),
    rules_of_table(SELECTION_RULES),
    rules_of_table(MOVEMENT_RULES),
    reduction_rules,
    broadcasting_rules,
)
#: Small values that do not depend on the program's inputs are computed, by the kernels that would compute them later.
FOLDING = (_folding_rules,)
#: Each value is computed once (common-subexpression elimination). Programs are pure except for effects: equal equations have equal results
#: wherever they are, random bits included. Equations with effects are never merged, nor are barriers, which keep equal values separate.
MERGING = (lambda primitive: () if is_pinned(primitive) else (_merged,),)
#: Merging is last: it must see equations in their final form.
SIMPLIFICATIONS = (*FOLDING, *IDENTITIES, *MERGING)
_ALL = Rules(*SIMPLIFICATIONS)
