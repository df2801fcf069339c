"""Attention: hand-written softmax(QKᵀ)V recognised and replaced by one equation.

A match begins at a softmax and follows the products around it. Calls of attention that a target has routines for are kept; the others are
expanded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.attention import sees_some
from volta_fn.compiler.ir.kernel import DefUse, simplify_nested
from volta_fn.compiler.passes.expansions import attention_gradient_routine_p, attention_routine_p, result_avals
from volta_fn.core.arrays.array import numbers_of
from volta_fn.core.aval import Shape, ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var, dce_jaxpr, inline_calls
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.primitives.call import ROUTINE_CALLS, Axes, Form, Window, attention_p
from volta_fn.primitives.contraction import dot_general_p
from volta_fn.primitives.data_movement.movement import broadcast_in_dim_p, iota_p, reshape_p
from volta_fn.primitives.elementwise import arithmetic, selection
from volta_fn.primitives.elementwise.cast import convert_element_type_p

#: Less than any logit to be expected, so that its weight is negligible.
_LEAST_LOGIT = -0.7 * float(np.finfo(np.float32).max)

#: Dtypes of numbers along an axis that do not wrap.
_INDICES = (np.dtype(np.int32), np.dtype(np.int64))


class Lookup(DefUse):
    """An index of a program, for matching patterns."""

    def __init__(self, closed: ClosedJaxpr) -> None:
        super().__init__(closed.eqns)
        self.closed = closed
        self.outputs = {v for v in closed.jaxpr.outvars if isinstance(v, Var)}

    def before(self, atom: Atom, *names: str) -> Atom:
        """Return the atom from which equations of these names compute an atom."""
        while (eqn := self.producer(atom, *names)) is not None:
            atom = eqn.invars[0]
        return atom

    def before_changes(self, atom: Atom) -> Atom:
        """Return the source of an atom, before changes of shape or float width."""
        while (eqn := self.producer(atom, "reshape", "convert_element_type")) is not None and _is_change(eqn):
            atom = eqn.invars[0]
        return atom

    def final_consumers(self, var: Var) -> Iterator[tuple[Equation, Var] | None]:
        """Yield the consumers of a variable, each with the variable that it reads.

        Yield None if the variable is an output. Changes of shape, and of a float's width, are looked through.
        """
        if var in self.outputs:
            yield None
        for eqn in self.users(var):
            if _is_change(eqn):
                yield from self.final_consumers(eqn.outvars[0])
            else:
                yield eqn, var


def _is_change(eqn: Equation) -> bool:
    """Return True for a reshape, and for a conversion between floats."""
    floats = all(v.aval.dtype in dtypes.FLOATS for v in (*eqn.invars, *eqn.outvars))
    return eqn.primitive is reshape_p or (eqn.primitive is convert_element_type_p and floats)


def number(atom: Atom) -> float | None:
    """Return the value of a scalar literal."""
    value = numbers_of(atom.val) if isinstance(atom, Literal) else None
    return None if value is None or np.iscomplexobj(value) else float(value)


def softmax_operand(program: Lookup, division: Equation) -> Var | None:
    """Return the operand of the softmax that a division computes, if it computes one."""
    top, bottom = division.invars
    exponential = program.producer(top, "exp")
    total = program.producer(program.before(bottom, "reshape"), "reduce_sum")
    if exponential is None or total is None or total.invars[0] is not top or not _along_rows(total) or not _is_per_row(bottom, top):
        return None
    difference = program.producer(exponential.invars[0], "sub")
    if difference is None:
        return None
    x, shift = difference.invars
    same = isinstance(x, Var) and x.aval.shape == division.outvars[0].aval.shape
    return x if same and isinstance(x, Var) and _is_largest(program, shift, x) else None


def _along_rows(eqn: Equation) -> bool:
    return eqn.params["axes"] == (eqn.invars[0].aval.ndim - 1,)


def _is_per_row(atom: Atom, x: Atom) -> bool:
    """Return True if a reduction along rows of x broadcasts to its rows."""
    return atom.aval.shape == (*x.aval.shape[:-1], 1)


def _is_largest(program: Lookup, shift: Atom, x: Var) -> bool:
    """Return True if a shift is the largest element of each row.

    Or 0 where that is not finite.
    """
    if not _is_per_row(shift, x):
        return False
    shift = program.before(shift, "reshape", "stop_gradient")
    chosen = program.producer(shift, "select_n")
    finite = None if chosen is None else program.producer(chosen.invars[0], "is_finite")
    if chosen is not None and finite is not None:
        shift = program.before(chosen.invars[2], "reshape")
        if program.before(finite.invars[0], "reshape") is not shift or number(chosen.invars[1]) != 0:
            return False
    floor = program.producer(shift, "max")
    if floor is not None and number(floor.invars[1]) == -float("inf"):
        shift = floor.invars[0]
    largest = program.producer(shift, "reduce_max")
    return largest is not None and largest.invars[0] is x and _along_rows(largest)


class Side(NamedTuple):
    """An operand of a product, with one axis that is summed over and one free axis."""

    atom: Atom
    batch: tuple[int, ...]
    contracted: int
    free: int

    def by_rows(self, rows_are_free: bool) -> Axes:
        """Return its axes with rows free and features summed over, or the reverse."""
        return Axes(self.batch, *((self.free, self.contracted) if rows_are_free else (self.contracted, self.free)))


def sides(eqn: Equation) -> tuple[Side, Side] | None:
    """Return the operands of a product, if each has one axis of either kind."""
    contracted, batch = eqn.params["dimension_numbers"]
    operands = []
    for atom, summed, stack in zip(eqn.invars, contracted, batch, strict=True):
        free = [a for a in range(atom.aval.ndim) if a not in summed and a not in stack]
        if len(summed) != 1 or len(free) != 1:
            return None
        operands.append(Side(atom, tuple(stack), summed[0], free[0]))
    return operands[0], operands[1]


def product_of(program: Lookup, atom: Atom) -> tuple[Equation, tuple[Side, Side]] | None:
    """Return the product that an atom is, up to changes of shape or width.

    Then return its operands: the one with the rows first, then the one with the columns.
    """
    atom = program.before_changes(atom)
    transposed = program.producer(atom, "transpose")
    shape, last = atom.aval.shape, atom.aval.ndim - 1
    if transposed is not None and transposed.params["permutation"] == (*range(last - 1), last, last - 1):
        shape = transposed.invars[0].aval.shape
        atom = program.before_changes(transposed.invars[0])
    else:
        transposed = None
    eqn = program.producer(atom, "dot_general")
    pair = sides(eqn) if eqn is not None and (transposed is None or atom.aval.shape == shape) else None
    return None if eqn is None or pair is None else (eqn, pair if transposed is None else pair[::-1])


class Matrix(NamedTuple):
    """An array, and the roles of its axes."""

    atom: Atom
    axes: Axes

    def size(self, axis: int) -> int:
        """Return the length of an axis."""
        return self.atom.aval.shape[axis]


def matrix_of(program: Lookup, atom: Atom, axes: Axes) -> Matrix:
    """Return an operand before its transposes."""
    while (eqn := program.producer(atom, "transpose")) is not None:
        order = eqn.params["permutation"]
        axes = Axes(tuple([order[a] for a in axes.heads]), order[axes.rows], order[axes.features])
        atom = eqn.invars[0]
    return Matrix(atom, axes)


class Result(NamedTuple):
    """A product whose result is replaced."""

    eqn: Equation
    #: Whether the result's last two axes are features and rows, not the reverse.
    transposed: bool

    @property
    def var(self) -> Var:
        """The result."""
        return self.eqn.outvars[0]


class Logits(NamedTuple):
    """The product of queries and keys, and what becomes of it."""

    product: Atom
    scale: float
    softcap: float
    bias: Atom | None
    #: What queries see by positions and by masks, and logits elsewhere.
    window: Window
    masks: tuple[Atom, ...]
    unseen: float

    @property
    def extra(self) -> list[Atom]:
        """The bias and the masks."""
        return [*([] if self.bias is None else [self.bias]), *self.masks]


def logits_of(program: Lookup, x: Var) -> Logits | None:
    """Return a variable as logits, if it may be logits."""
    unseen = fill = _LEAST_LOGIT
    window = Window()
    masks: tuple[Atom, ...] = ()
    value: Atom = x
    chosen = program.producer(value, "select_n")
    if chosen is not None:
        seen, other, value = chosen.invars[0], number(chosen.invars[1]), chosen.invars[2] if len(chosen.invars) == 3 else x
        if other is None or seen.aval.dtype != np.bool_ or value.aval.shape != x.aval.shape:
            return None
        window, masks = _visible(program, seen, x.aval.shape[-2:])
        if window != Window() and other > -1e30 and np.isfinite(other):  # not so small that hidden blocks may be left out
            window, masks = Window(), (seen,)
        sees_all = not masks and other < 0 and sees_some(window, *x.aval.shape[-2:])
        if not np.isfinite(other) and not sees_all:  # a query might see nothing
            return None
        fill, unseen = other, max(other, -0.7 * float(np.finfo(x.aval.dtype).max))
    addition = program.producer(value, "add")
    for products, bias in [(value, None)] if addition is None else [addition.invars, addition.invars[::-1]]:
        product, scale, softcap = _unbounded(program, products)
        if product_of(program, product) is not None and (bias is None or _may_be_bias(products, bias, x)):
            # A bias may take logits below the least to be expected. Of those of -inf, which products may overflow to, weights are NaN.
            return Logits(product, scale, softcap, bias, window, masks, unseen if bias is None and np.isfinite(fill) else fill)
    return None


def _may_be_bias(products: Atom, bias: Atom, x: Var) -> bool:
    """Return True for an array of floats that broadcasts to the logits."""
    narrow = bias.aval.dtype in dtypes.FLOATS and bias.aval.dtype.itemsize <= x.aval.dtype.itemsize
    return narrow and products.aval.shape == x.aval.shape


def _unbounded(program: Lookup, x: Atom) -> tuple[Atom, float, float]:
    """Return the product of which an atom is a multiple, the factor, and its bound.

    A bounded atom is ``cap tanh(product / cap)``.
    """
    inner, cap = unscaled(program, x)
    bounded = program.producer(inner, "tanh")
    if bounded is None:
        return inner, cap, 0.0
    product, scale = unscaled(program, bounded.invars[0])
    while (outer := unscaled(program, product))[1] != 1:
        product, scale = outer[0], scale * outer[1]
    return (product, scale * cap, cap) if cap > 0 else (x, 1.0, 0.0)


def unscaled(program: Lookup, x: Atom) -> tuple[Atom, float]:
    """Return a scaled variable's operand and the scale."""
    eqn = program.producer(x, "mul", "div")
    if eqn is not None:
        is_product = eqn.primitive is arithmetic.mul.primitive
        for value, other in (eqn.invars, eqn.invars[::-1]) if is_product else (eqn.invars,):
            if (factor := number(other)) is not None and (is_product or factor):
                return value, factor if is_product else 1 / factor
    return x, 1.0


def _visible(program: Lookup, mask: Atom, sizes: Shape) -> tuple[Window, tuple[Atom, ...]]:
    """Return what a mask says by positions, and its remaining parts.

    There are `sizes` queries and keys.
    """
    chosen = program.producer(mask, "select_n")
    if chosen is not None and [number(v) for v in chosen.invars[1:]] == [0, 1]:
        mask = chosen.invars[0]
    window = _window(program, mask, sizes)
    if window is not None:
        return window, ()
    both = program.producer(mask, "and")
    if both is None:
        return Window(), (mask,)
    (one, masks), (other, further) = (_visible(program, part, sizes) for part in both.invars)
    window = Window(_least(one.before, other.before), _least(one.after, other.after))
    if len(masks) + len(further) > 1 and not _saves(both, masks + further):
        return window, _whole(window, mask, masks + further)
    return window, masks + further


def _least(x: int | None, y: int | None) -> int | None:
    return y if x is None else x if y is None else min(x, y)


def _saves(both: Equation, masks: Sequence[Atom]) -> bool:
    """Return True if masks are smaller than their conjunction."""
    return sum(mask.aval.size for mask in masks) < both.outvars[0].aval.size


def _whole(window: Window, mask: Atom, masks: tuple[Atom, ...]) -> tuple[Atom, ...]:
    """Return one mask instead of several, if it has no positions in it."""
    return (mask,) if window == Window() else masks


def _window(program: Lookup, mask: Atom, sizes: Shape) -> Window | None:
    """Return the window of a mask that compares indices of rows and columns.

    Matrices of these sizes are masked. None if it is another mask.
    """
    eqn = program.producer(mask, "le", "lt", "ge", "gt")
    if eqn is None or mask.aval.shape[-2:] != sizes or any(n != 1 for n in mask.aval.shape[:-2]):
        return None
    le, lt, gt = selection.le.primitive, selection.lt.primitive, selection.gt.primitive
    low, high = eqn.invars if eqn.primitive in (le, lt) else eqn.invars[::-1]
    low_index, high_index = _index_along(program, low), _index_along(program, high)
    if low_index is None or high_index is None:
        return None
    most = high_index[1] - low_index[1] - (1 if eqn.primitive in (lt, gt) else 0)
    return {(1, 2): Window(None, most), (2, 1): Window(most, None)}.get((low_index[0], high_index[0]))


def _index_along(program: Lookup, atom: Atom) -> tuple[int, int] | None:
    """Return an integer array as an axis, the last being 1, and an offset.

    None if its elements are no indices along an axis. Narrow and unsigned integers might wrap.
    """
    eqn = program.producer(atom, "iota", "reshape", "broadcast_in_dim", "add", "sub", "convert_element_type")
    if eqn is None or atom.aval.dtype not in _INDICES:
        return None
    primitive, params = eqn.primitive, eqn.params
    if primitive is iota_p:
        return atom.aval.ndim - params["dimension"], 0
    inner = eqn.invars[0].aval
    axis_and_offset = _index_along(program, eqn.invars[0])
    if axis_and_offset is None:
        return None
    axis, offset = axis_and_offset
    add = arithmetic.add.primitive
    if primitive in (add, arithmetic.sub.primitive):
        step = number(eqn.invars[1])
        return None if step is None else (axis, offset + int(step) if primitive is add else offset - int(step))
    if primitive is broadcast_in_dim_p:
        if inner.shape[-axis] != atom.aval.shape[params["broadcast_dimensions"][inner.ndim - axis]]:
            return None
        return atom.aval.ndim - params["broadcast_dimensions"][inner.ndim - axis], offset
    if primitive is reshape_p:
        long = [a for a, n in enumerate(atom.aval.shape) if n != 1]
        return (atom.aval.ndim - long[0], offset) if len(long) == 1 and inner.size == inner.shape[-axis] else None
    return axis_and_offset


# Attention, recognised from a softmax and the products around it.


class Match(NamedTuple):
    """The variables of a program that play the roles of attention."""

    logits: Logits
    q: Matrix
    k: Matrix
    v: Matrix
    out: Result

    @property
    def operands(self) -> list[Atom]:
        """The operands of the attention equation."""
        return [self.q.atom, self.k.atom, self.v.atom, *self.logits.extra]


def match(program: Lookup, division: Equation) -> Match | None:
    """Return the attention whose weights a division computes for it alone."""
    x = softmax_operand(program, division)
    logits = None if x is None else logits_of(program, x)
    product = None if logits is None else product_of(program, logits.product)
    consumers = [*program.final_consumers(division.outvars[0])]
    if logits is None or product is None or len(consumers) != 1 or consumers[0] is None:
        return None
    shape, product_shape, (rows, columns) = division.outvars[0].aval.shape, _rows_first(*product), product[1]
    q = _queries(program, rows, shape, product_shape)
    k = matrix_of(program, columns.atom, columns.by_rows(True))
    eqn, weights = consumers[0]
    pair = sides(eqn) if eqn.primitive is dot_general_p else None
    if q is None or pair is None:
        return None
    transposed = pair[1].atom is weights
    weights_side, other = pair[::-1] if transposed else pair
    if (
        weights_side.atom.aval.shape != product_shape
        or weights_side.batch != tuple(range(len(product_shape) - 2))
        or weights_side.contracted != len(product_shape) - 1
    ):
        return None
    return Match(logits, q, k, matrix_of(program, other.atom, other.by_rows(False)), Result(eqn, transposed))


def _queries(program: Lookup, side: Side, shape: Shape, product_shape: Shape) -> Matrix | None:
    """Return the queries, with heads as weights have them.

    Heads that share one of keys may be one long head in the products, whose shape `product_shape` then differs from the weights'.
    """
    atom, axes = side.atom, side.by_rows(True)
    if len(product_shape) != len(shape) or len(product_shape) < 3:
        return None
    if product_shape != shape:
        (*lead, groups, long, s), (*same, heads, t, keys) = product_shape, shape
        if lead != same or s != keys or not groups or heads % groups or long != heads // groups * t:
            return None
        plain = Axes(tuple(range(len(shape) - 2)), len(shape) - 2, len(shape) - 1)
        eqn = program.producer(atom, "reshape")
        if axes != plain or eqn is None or eqn.invars[0].aval.shape[:-1] != shape[:-1]:
            return None
        atom = eqn.invars[0]
    return matrix_of(program, atom, axes)


def _rows_first(product: Equation, pair: tuple[Side, Side]) -> Shape:
    """Return the shape of a product whose rows are those of the first of a pair."""
    *lead, rows, columns = product.outvars[0].aval.shape
    return (*lead, rows, columns) if pair[0].atom is product.invars[0] else (*lead, columns, rows)


def attends(attention: Match) -> bool:
    """Return True for floats of one dtype, for which attention routines exist."""
    kinds = {m.atom.aval.dtype for m in (attention.q, attention.k, attention.v)}
    kind = kinds.pop()
    narrow = kind in dtypes.FLOATS and attention.logits.product.aval.dtype.itemsize <= dtypes.accumulator(kind).itemsize
    return narrow and not kinds and all(m.atom.aval.size for m in (attention.q, attention.k, attention.v))


# Replacing recognised attention by one equation.

#: Tells whether attention is worth its own routine: (types of q, k, v, the bias and the masks, form).
Profitability = Callable[[tuple[ShapedArray, ...], Form], bool]


def replace_attention(closed: ClosedJaxpr, worthwhile: Profitability) -> ClosedJaxpr:
    """Replace attention by an equation where that is worthwhile."""
    divisions = [eqn for eqn in closed.eqns if eqn.primitive is arithmetic.div.primitive]
    if not divisions:
        return closed
    program = Lookup(closed)
    #: By the position of a product with the values, the equations that replace it.
    new: dict[int, list[Equation]] = {}
    for division in divisions:
        attention = match(program, division)
        if attention is not None and attends(attention) and worthwhile(tuple([a.aval for a in attention.operands]), _form(attention)):
            new[program.position(attention.out.var)] = _equations(attention)
    if not new:
        return closed
    return dce_jaxpr(closed.replace(eqns=[e for position, eqn in enumerate(closed.eqns) for e in new.get(position, [eqn])]))


def _form(attention: Match) -> Form:
    logits = attention.logits
    axes = attention.q.axes, attention.k.axes, attention.v.axes, None
    return Form(*axes, logits.scale, logits.unseen, logits.window, logits.softcap, logits.bias is not None, len(logits.masks))


def _equations(attention: Match) -> list[Equation]:
    form = _form(attention)
    results = [Var(a) for a in result_avals(form, attention.q.atom.aval, attention.v.atom.aval)]
    forward = Equation(attention_routine_p, attention.operands, results, {"form": form}, attention.out.eqn.position)
    return [forward, *_viewed(results[0], form.q, attention.out)]


def _viewed(var: Var, axes: Axes, result: Result) -> list[Equation]:
    """Return equations that give a result its axes and dtype in the old program."""
    eqns: list[Equation] = []

    def apply(name: str, x: Atom, **params: Any) -> Atom:
        primitive = PRIMITIVES[name]
        out = Var(primitive.result_avals((x.aval,), params))
        eqns.append(Equation(primitive, [x], [out], params, result.eqn.position))
        return out

    aval = result.var.aval
    x = apply("transpose", var, permutation=axes.order)
    swapped = (*range(aval.ndim - 2), aval.ndim - 1, aval.ndim - 2)
    shape = tuple([aval.shape[a] for a in swapped]) if result.transposed else aval.shape
    x = apply("reshape", x, new_sizes=shape)
    if result.transposed:
        x = apply("transpose", x, permutation=swapped)
    x = apply("convert_element_type", x, new_dtype=aval.dtype, weak_type=False)
    eqns[-1] = eqns[-1].replace(outvars=[result.var])
    return eqns


# Kept calls of attention, for which the target has routines.


def keep_attention(closed: ClosedJaxpr, worthwhile: Profitability) -> ClosedJaxpr:
    """Replace worthwhile calls of attention by equations that routines compute.

    Routines read operands as they are before they are transposed. Other calls are inlined.
    """
    inlined = simplify_nested(inline_calls(closed, retained=ROUTINE_CALLS), lambda inner: keep_attention(inner, worthwhile))
    if not any(eqn.primitive in ROUTINE_CALLS for eqn in inlined.eqns):
        return inlined
    atoms = {*[v for eqn in inlined.eqns for v in eqn.invars if type(v) is Var], *inlined.jaxpr.outvars}
    eqns: list[Equation] = []
    for eqn in inlined.eqns:
        if eqn.primitive in ROUTINE_CALLS and _is_supported(eqn):
            form = _form_of_call(eqn, atoms)
            eqns += _routine(eqn, form) if worthwhile(_operand_avals(eqn), form) else [eqn]
        else:
            eqns.append(eqn)
    return _lay_out(inlined.replace(eqns=eqns))


def _operand_avals(eqn: Equation) -> tuple[ShapedArray, ...]:
    """Return the types of q, k, v, the bias and the masks."""
    return tuple([v.aval for v in eqn.invars[: eqn.params["form"].operands]])


def _form_of_call(eqn: Equation, atoms: Collection[Atom]) -> Form:
    """Return the form of a call in a program that reads these atoms.

    It says whether the bias has a gradient, and whether the statistics are read.
    """
    form: Form = eqn.params["form"]
    if form.cotangent is None:
        return form._replace(statistics=eqn.outvars[1] in atoms)
    return form._replace(to_bias=any(eqn.params["moved"][3:]))


def _is_supported(eqn: Equation) -> bool:
    return all(v.aval.dtype in dtypes.FLOATS for v in eqn.invars[:3]) and len({v.aval.dtype for v in eqn.invars[:3]}) == 1


def _routine(eqn: Equation, form: Form) -> list[Equation]:
    """Return a call's equations; a routine's statistics have one axis of heads."""
    operands = eqn.invars[: form.operands]
    if eqn.primitive is attention_p:
        flat = Var(result_avals(form, operands[0].aval, operands[2].aval)[1])
        call = Equation(attention_routine_p, operands, [eqn.outvars[0], flat], {"form": form}, eqn.position)
        return [call, _apply("reshape", flat, eqn.outvars[1], eqn, new_sizes=eqn.outvars[1].aval.shape)]
    out, statistics, cotangent = eqn.invars[form.operands :]
    shape: Shape = statistics.aval.shape
    flat = Var(statistics.aval.update(shape=(math.prod(shape[:-2]), *shape[-2:])))
    results = iter(eqn.outvars)
    gradients = [next(results) if moved else Var(x.aval) for x, moved in zip(operands, eqn.params["moved"], strict=False)]
    outvars = gradients[: 3 + form.to_bias]
    gradient = Equation(attention_gradient_routine_p, [*operands, out, flat, cotangent], outvars, {"form": form}, eqn.position)
    return [_apply("reshape", statistics, flat, eqn, new_sizes=flat.aval.shape), gradient]


def _apply(name: str, x: Atom, out: Var, like: Equation, **params: Any) -> Equation:
    return Equation(PRIMITIVES[name], [x], [out], params, like.position)


def _lay_out(closed: ClosedJaxpr) -> ClosedJaxpr:
    if not any(eqn.primitive in (attention_routine_p, attention_gradient_routine_p) for eqn in closed.eqns):
        return closed
    eqns: list[Equation] = []
    for eqn in closed.eqns:
        if eqn.primitive in (attention_routine_p, attention_gradient_routine_p):
            eqns += _laid_out(Lookup(closed.replace(eqns=eqns)), eqn)
        else:
            eqns.append(eqn)
    return closed.replace(eqns=eqns)


def _laid_out(program: Lookup, eqn: Equation) -> list[Equation]:
    form: Form = eqn.params["form"]
    q, k, v = (_with_rows(program, x, axes) for x, axes in zip(eqn.invars[:3], (form.q, form.k, form.v), strict=True))
    extra = eqn.invars[3 : form.operands]
    if eqn.primitive is attention_routine_p:
        changed = form._replace(q=q.axes, k=k.axes, v=v.axes)
        laid_out = Var(result_avals(changed, q.atom.aval, v.atom.aval)[0])
        call = eqn.replace(invars=[q.atom, k.atom, v.atom, *extra], outvars=[laid_out, eqn.outvars[1]], params={"form": changed})
        return [call, _view(laid_out, q.axes, form.q, eqn.outvars[0], eqn)]
    result, statistics_, cotangent = eqn.invars[form.operands :]
    assert form.cotangent is not None
    out_matrix, cotangent_matrix = _with_rows(program, result, form.q), _with_rows(program, cotangent, form.cotangent)
    if out_matrix.axes != q.axes:  # it is laid out as q is
        return [eqn]
    changed = form._replace(q=q.axes, k=k.axes, v=v.axes, cotangent=cotangent_matrix.axes)
    gradients = [Var(m.atom.aval) for m in (q, k, v)]
    operands = [q.atom, k.atom, v.atom, *extra, out_matrix.atom, statistics_, cotangent_matrix.atom]
    views = zip(gradients, (q, k, v), (form.q, form.k, form.v), eqn.outvars[:3], strict=True)
    call = eqn.replace(invars=operands, outvars=[*gradients, *eqn.outvars[3:]], params={"form": changed})
    return [call, *[_view(var, m.axes, axes, out, eqn) for var, m, axes, out in views]]


def _with_rows(program: Lookup, atom: Atom, axes: Axes) -> Matrix:
    """Return an operand before its transposes, if features are last there.

    Return it as it is otherwise: routines read contiguous rows.
    """
    matrix = matrix_of(program, atom, axes)
    return matrix if matrix.axes.features == atom.aval.ndim - 1 else Matrix(atom, axes)


def _view(x: Var, axes: Axes, target_axes: Axes, out: Var, like: Equation) -> Equation:
    """Transpose an array with some axes to others."""
    position = dict(zip(target_axes.order, axes.order, strict=True))
    return _apply("transpose", x, out, like, permutation=tuple([position[d] for d in range(len(position))]))
