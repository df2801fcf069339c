"""Softmax of wide rows in chunks of rows, so that no array of all of them exists.

The logits of a language model are its largest array, a row of numbers for each token. Its loss and gradients depend on a row alone, but for
the gradients of weights, which are sums over rows. So the product that computes logits, what is computed of them row by row, and the
products of their cotangents become one loop over chunks of rows. The loss may be any: masks, biases, smoothing and weights of tokens are
among the equations that move into the loop. Nothing is computed twice.

A product qualifies if its result is large, if rows of it go through an exponential and a reduction, and if no equation outside of the loop
needs more of it than one number or a narrow row per row, or sums over rows. Otherwise the program stays as it is. It also does with
`lax.optimization_barrier` around the logits. Results are those of the program up to the order in which sums over rows are added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from volta_fn.compiler.ir.index import is_elementwise
from volta_fn.core.arrays.array import Array
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var, has_effects
from volta_fn.core.staging import trace_to_jaxpr
from volta_fn.core.trace import bind
from volta_fn.dtypes import FLOATS, accumulator
from volta_fn.primitives.call import call_params, jit_p
from volta_fn.primitives.contraction import dot_general_p
from volta_fn.primitives.data_movement.movement import broadcast_to, moveaxis, reshape, transpose_p
from volta_fn.primitives.elementwise.arithmetic import add
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.primitives.reduction import reduce_sum_p
from volta_fn.primitives.scan import scan

#: Elements of a product from which on it is divided.
_LARGE = 1 << 26
#: Chunks, at least; rows of a product, at least: gradients of weights are read and written for each chunk.
_CHUNKS, _FEWEST_ROWS = 32, 128
#: Sums into elements of arrays.
_SCATTERS = ("scatter_add", "wrapped_scatter_add")
#: A value with so large a part of the product's elements is wide.
_WIDE = 1 / 16


def chunk_wide_rows(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Replace softmaxes of large products, and what follows, by loops."""
    for number, eqn in enumerate(closed.eqns):
        if _may_be_divided(eqn):
            for plan in _plans(closed, number):
                return chunk_wide_rows(plan.program())
    return closed


def _may_be_divided(eqn: Equation) -> bool:
    if eqn.primitive is not dot_general_p or eqn.outvars[0].aval.size < _LARGE or eqn.outvars[0].aval.dtype not in FLOATS:
        return False
    _, batch = eqn.params["dimension_numbers"]
    return batch == ((), ())


def _plans(closed: ClosedJaxpr, number: int) -> Iterator[_Plan]:
    """Yield plans to divide a product: along longer dimensions first."""
    (out,) = closed.eqns[number].outvars
    if any(has_effects(eqn) for eqn in closed.eqns):
        return
    for axis in sorted(range(out.aval.ndim), key=lambda a: -out.aval.shape[a]):
        plan = _Plan(closed, number, axis)
        if plan.is_possible():
            yield plan


# How equations divide along the axis of rows.


class _Division(NamedTuple):
    """How an equation divides: the axis of rows of each operand, and of the result.

    None for operands that are the same for all rows, and for results that are sums over rows.
    """

    operands: tuple[int | None, ...]
    result: int | None
    #: The parameters of the equation for a number of rows.
    params: Callable[[int], dict[str, Any]]


class _Undivided(Exception):
    """An equation does not divide along the axis."""


def _resized(eqn: Equation, name: str, axis: int) -> Callable[[int], dict[str, Any]]:
    """Return an equation's parameters with another size of the axis."""
    shape = eqn.params[name]
    return lambda rows: {**eqn.params, name: (*shape[:axis], rows, *shape[axis + 1 :])}


def _same(eqn: Equation) -> Callable[[int], dict[str, Any]]:
    return lambda rows: eqn.params


def _elementwise(eqn: Equation, axis: int, size: int) -> _Division:
    """Divide an elementwise equation, given the axis of its result."""
    axes: list[int | None] = []
    for v in eqn.invars:
        dimension = axis - (eqn.outvars[0].aval.ndim - v.aval.ndim)  # operands of fewer dimensions have the last ones
        axes.append(dimension if dimension >= 0 and v.aval.shape[dimension] == size else None)
    return _Division(tuple(axes), axis, _same(eqn))


def _by_result(eqn: Equation, axis: int, size: int) -> _Division:
    """Divide an equation, given the axis of its result. Raises `_Undivided`."""
    (out,) = eqn.outvars
    name, params = eqn.primitive.name, eqn.params
    if out.aval.shape[axis] != size:
        raise _Undivided
    if is_elementwise(eqn):
        return _elementwise(eqn, axis, size)
    if name == "broadcast_in_dim":
        dims = params["broadcast_dimensions"]
        before = dims.index(axis) if axis in dims else None
        divides = before is not None and eqn.invars[0].aval.shape[before] == size
        return _Division((before if divides else None,), axis, _resized(eqn, "shape", axis))
    if name == "iota" and params["dimension"] != axis:
        return _Division((), axis, _resized(eqn, "shape", axis))
    if name == "reshape":
        return _Division((_axis_of_reshape(out.aval.shape, eqn.invars[0].aval.shape, axis),), axis, _resized(eqn, "new_sizes", axis))
    if name == "transpose":
        return _Division((params["permutation"][axis],), axis, _same(eqn))
    if name in _SCATTERS:
        return _scatter(eqn, axis)
    if name == "slice" and eqn.invars[0].aval.shape[axis] == size:
        return _Division((axis,), axis, _resized(eqn, "limit_indices", axis))
    if name == "pad" and params["padding_config"][axis] == (0, 0, 0):
        return _Division((axis, None), axis, _same(eqn))
    raise _Undivided


def _by_operand(eqn: Equation, position: int, axis: int, size: int) -> _Division:
    """Divide an equation, given the axis of one operand. Raises `_Undivided`."""
    name, params = eqn.primitive.name, eqn.params
    operand = eqn.invars[position].aval
    if len(eqn.outvars) != 1:
        raise _Undivided
    if is_elementwise(eqn):
        return _by_result(eqn, axis + eqn.outvars[0].aval.ndim - operand.ndim, size)
    if name == "broadcast_in_dim":
        return _by_result(eqn, params["broadcast_dimensions"][axis], size)
    if name in ("slice", "pad") and position == 0:
        return _by_result(eqn, axis, size)
    if name == "reshape":
        return _by_result(eqn, _axis_of_reshape(operand.shape, params["new_sizes"], axis), size)
    if name == "transpose":
        return _by_result(eqn, params["permutation"].index(axis), size)
    if name in ("reduce_sum", "reduce_max", "reduce_min", "reduce_or", "reduce_and", "argmax", "argmin"):
        if axis not in params["axes"]:
            return _Division((axis,), axis - sum(a < axis for a in params["axes"]), _same(eqn))
        if name == "reduce_sum":
            return _Division((axis,), None, _same(eqn))
    if name == "dot_general":
        return _product(eqn, position, axis)
    if name in ("gather", "wrapped_gather") and position == 0:
        numbers = params["dimension_numbers"]
        if axis in numbers.operand_batching_dims:
            indices = numbers.start_indices_batching_dims[numbers.operand_batching_dims.index(axis)]
            batch = [d for d in range(eqn.outvars[0].aval.ndim) if d not in numbers.offset_dims]
            return _Division((axis, indices), batch[indices], _same(eqn))
    if name in _SCATTERS and position == 0:
        return _scatter(eqn, axis)
    raise _Undivided


def _axis_of_reshape(shape: Sequence[int], new: Sequence[int], axis: int) -> int:
    """Return the dimension that an axis becomes. Raises `_Undivided`."""
    before = math.prod(shape[:axis])
    for other, size in enumerate(new):
        if math.prod(new[:other]) == before and size == shape[axis]:
            return other
    raise _Undivided


def _scatter(eqn: Equation, axis: int) -> _Division:
    numbers = eqn.params["dimension_numbers"]
    if axis not in numbers.operand_batching_dims:
        raise _Undivided
    indices = numbers.scatter_indices_batching_dims[numbers.operand_batching_dims.index(axis)]
    updates = [d for d in range(eqn.invars[2].aval.ndim) if d not in numbers.update_window_dims]
    return _Division((axis, indices, updates[indices]), axis, _same(eqn))


def _product(eqn: Equation, position: int, axis: int) -> _Division:
    summed, batch = eqn.params["dimension_numbers"]
    if batch != ((), ()):
        raise _Undivided
    if axis in summed[position]:
        other = summed[1 - position][summed[position].index(axis)]
        return _Division((axis, other) if position == 0 else (other, axis), None, _same(eqn))
    free = [[d for d in range(v.aval.ndim) if d not in dims] for v, dims in zip(eqn.invars, summed, strict=True)]
    result = free[position].index(axis) + (len(free[0]) if position else 0)
    return _Division((axis, None) if position == 0 else (None, axis), result, _same(eqn))


# Which equations move into the loop.


class _Plan:
    """The equations that a loop over rows of a product computes."""

    def __init__(self, closed: ClosedJaxpr, number: int, axis: int) -> None:
        self.closed = closed
        self.number, self.axis = number, axis
        self.product = closed.eqns[number]
        (out,) = self.product.outvars
        self.size = out.aval.shape[axis]
        self.width = out.aval.size * _WIDE
        self.producers: dict[Atom, int] = {v: n for n, eqn in enumerate(closed.eqns) for v in eqn.outvars}
        #: How equations divide, by their numbers, and the axes of rows of what they compute.
        self.divisions: dict[int, _Division] = {}
        self.axes: dict[Atom, int] = {}
        #: The transposes of sums of products, by these.
        self.transposes: dict[Atom, Equation] = {}

    def is_possible(self) -> bool:
        """Collect the equations; return False if the product stays as it is."""
        try:
            self._collect()
        except _Undivided:
            return False
        self._drop_narrow()
        self._find_transposes()
        return self._has_softmax() and self.chunks > 1 and self._can_be_ordered()

    @property
    def chunks(self) -> int:
        """The number of chunks, of as many rows each; 1 if none pays."""
        summed, _ = self.product.params["dimension_numbers"]
        rows = self.product.invars[self._side].aval.size // math.prod(
            [self.product.invars[self._side].aval.shape[d] for d in summed[self._side]]
        )
        most = min(self.size, rows // _FEWEST_ROWS)
        divisors = [n for n in range(1, most + 1) if self.size % n == 0]
        return next((n for n in divisors if n >= _CHUNKS), divisors[-1] if divisors else 1)

    @property
    def _side(self) -> int:
        """The operand of the product that has the axis."""
        return 0 if self.axis < self.product.invars[0].aval.ndim - len(self.product.params["dimension_numbers"][0][0]) else 1

    def _is_wide(self, atom: Atom) -> bool:
        return atom.aval.size >= self.width

    def _collect(self) -> None:
        summed, _ = self.product.params["dimension_numbers"]
        before = 0 if self._side == 0 else self.product.invars[0].aval.ndim - len(summed[0])
        free = [d for d in range(self.product.invars[self._side].aval.ndim) if d not in summed[self._side]]
        self._add(self.number, _product(self.product, self._side, free[self.axis - before]))
        changed = True
        while changed:
            changed = False
            for number, eqn in enumerate(self.closed.eqns):
                position = next((k for k, v in enumerate(eqn.invars) if v in self.axes), None)
                if number in self.divisions or position is None:
                    continue
                wide = any(self._is_wide(v) for v in eqn.invars if v in self.axes)
                try:
                    division = _by_operand(eqn, position, self.axes[eqn.invars[position]], self.size)
                    if division.result is None and not wide:
                        continue  # sums of narrow rows may stay outside
                    self._add(number, division)
                    changed = True
                except _Undivided:
                    if wide:
                        raise

    def _add(self, number: int, division: _Division) -> None:
        """Add an equation, and those that compute its wide operands. Raises `_Undivided`."""
        eqn = self.closed.eqns[number]
        for atom, axis in zip(eqn.invars, division.operands, strict=True):
            if atom in self.axes:
                if self.axes[atom] != axis:
                    raise _Undivided
            elif axis is not None:
                if isinstance(atom, Literal) or atom.aval.shape[axis] != self.size:
                    raise _Undivided
                if self._is_wide(atom):
                    if atom not in self.producers or len(self.closed.eqns[self.producers[atom]].outvars) != 1:
                        raise _Undivided
                    producer = self.producers[atom]
                    self._add(producer, _by_result(self.closed.eqns[producer], axis, self.size))
        self.divisions[number] = division
        if division.result is not None:
            self.axes[eqn.outvars[0]] = division.result

    def _drop_narrow(self) -> None:
        """Drop the equations of narrow rows that no wide row depends on."""
        retained: set[int] = set()
        for number in sorted(self.divisions, reverse=True):
            eqn = self.closed.eqns[number]
            row_operands = [v for v in eqn.invars if v in self.axes]
            if number in retained or any(self._is_wide(v) for v in (*row_operands, *eqn.outvars)):
                retained.add(number)
                retained.update(n for v in row_operands if (n := self.producers[v]) in self.divisions)
        for number in self.divisions.keys() - retained:
            self.axes.pop(self.closed.eqns[number].outvars[0], None)
            del self.divisions[number]

    def _find_transposes(self) -> None:
        """Find the sums of products of which only the transpose is used."""
        users: dict[Atom, list[Equation]] = {}
        for eqn in self.closed.eqns:
            for v in eqn.invars:
                users.setdefault(v, []).append(eqn)
        for number, division in self.divisions.items():
            eqn = self.closed.eqns[number]
            (out,) = eqn.outvars
            if division.result is None and eqn.primitive is dot_general_p and out not in self.closed.jaxpr.outvars:
                match users.get(out, []):
                    case [user] if user.primitive is transpose_p and user.params["permutation"] == (1, 0):
                        self.transposes[out] = user

    def _has_softmax(self) -> bool:
        eqns = [self.closed.eqns[n] for n in self.divisions]
        wide = {eqn.primitive.name for eqn in eqns if any(self._is_wide(v) for v in eqn.invars if v in self.axes)}
        return "exp" in wide and bool(wide & {"reduce_max", "reduce_sum"})

    def _can_be_ordered(self) -> bool:
        """Return True if nothing in the loop waits for what follows it."""
        eqns = self.closed.eqns
        later = {v for n in self.divisions for v in eqns[n].outvars if v not in self.axes}
        for number, eqn in enumerate(eqns):
            if number in self.divisions:
                if any(v in later for v in eqn.invars):
                    return False
            elif any(v in later or v in self.axes for v in eqn.invars):
                later.update(eqn.outvars)
        return not any(self._is_wide(v) for v in self._results() if v in self.axes)

    def _results(self) -> list[Var]:
        """Return what is computed in the loop and needed outside."""
        eqns = self.closed.eqns
        needed = {v for n, eqn in enumerate(eqns) if n not in self.divisions for v in eqn.invars}.union(self.closed.jaxpr.outvars)
        return [v for n in sorted(self.divisions) for v in eqns[n].outvars if v in needed]

    # the loop

    def program(self) -> ClosedJaxpr:
        """Return the program with the loop, as a call, in place of the equations."""
        closed, results = self.closed, self._results()
        eqns = [closed.eqns[n] for n in sorted(self.divisions)]
        computed = {v for eqn in eqns for v in eqn.outvars}
        divided: dict[tuple[Atom, int], None] = {}
        whole: dict[Atom, None] = {}
        for number in sorted(self.divisions):
            for atom, axis in zip(closed.eqns[number].invars, self.divisions[number].operands, strict=True):
                if atom not in computed and not isinstance(atom, Literal):
                    if axis is None:
                        whole[atom] = None
                    else:
                        divided[atom, axis] = None
        operands = [*whole, *[atom for atom, _ in divided]]
        operands_and_results = list(whole), list(divided), results
        call = trace_to_jaxpr(lambda *arrays: self._loop(*operands_and_results, arrays), [v.aval for v in operands], "wide_rows")
        outvars = [self.transposes[v].outvars[0] if v in self.transposes else v for v in results]
        equation = Equation(jit_p, operands, outvars, call_params(call, "wide_rows"), self.product.position)
        moved = {id(eqn) for eqn in self.transposes.values()}
        earlier: list[Equation] = []
        later: list[Equation] = []
        waiting: set[Atom] = {*computed, *outvars}
        for number, eqn in enumerate(closed.eqns):
            if number in self.divisions or id(eqn) in moved:
                continue
            if any(v in waiting for v in eqn.invars):
                waiting.update(eqn.outvars)
                later.append(eqn)
            else:
                earlier.append(eqn)
        return closed.replace(eqns=[*earlier, equation, *later])

    def _loop(
        self, whole: Sequence[Atom], divided: Sequence[tuple[Atom, int]], results: Sequence[Var], arrays: Sequence[Array]
    ) -> list[Array]:
        """Return the results, computed chunk by chunk."""
        chunks = self.chunks
        rows = self.size // chunks
        constants: dict[Any, Array] = dict(zip(whole, arrays, strict=False))
        stacks = [_by_chunks(x, axis, chunks) for x, (_, axis) in zip(arrays[len(whole) :], divided, strict=True)]
        sums = [v for v in results if v not in self.axes]
        shapes = [self.transposes[v].outvars[0].aval.shape if v in self.transposes else v.aval.shape for v in sums]
        totals = [broadcast_to(convert_element_type(0, accumulator(v.aval.dtype)), s) for v, s in zip(sums, shapes, strict=True)]

        def step(carry: list[Array], parts: list[Array]) -> tuple[list[Array], list[Array]]:
            sliced = {key: moveaxis(x, 0, key[1]) for key, x in zip(divided, parts, strict=True)}
            values = self._evaluated(constants, sliced, rows)
            carry = [add(total, values[v]) for total, v in zip(carry, sums, strict=True)]
            return carry, [moveaxis(values[v], self.axes[v], 0) for v in results if v in self.axes]

        totals, stacked = scan(step, totals, stacks, length=chunks)
        joined = iter([reshape(x, (self.size, *x.shape[2:])) for x in stacked])
        finished = iter([convert_element_type(x, v.aval.dtype) for x, v in zip(totals, sums, strict=True)])
        return [moveaxis(next(joined), 0, self.axes[v]) if v in self.axes else next(finished) for v in results]

    def _evaluated(self, constants: Mapping[Any, Array], sliced: Mapping[tuple[Atom, int], Array], rows: int) -> dict[Any, Array]:
        """Return the values of a chunk, with wide sums over its rows."""
        values: dict[Any, Array] = {}
        for number in sorted(self.divisions):
            eqn, division = self.closed.eqns[number], self.divisions[number]
            read = [
                v.val if isinstance(v, Literal) else values[v] if v in values else constants[v] if axis is None else sliced[v, axis]
                for v, axis in zip(eqn.invars, division.operands, strict=True)
            ]
            params = division.params(rows)
            (out,) = eqn.outvars
            if division.result is None and (wide := accumulator(out.aval.dtype)) != out.aval.dtype:
                if eqn.primitive is reduce_sum_p:
                    read = [convert_element_type(x, wide) for x in read]
                else:
                    params = {**params, "preferred_element_type": wide}
            if out in self.transposes:
                (left, right), batch = params["dimension_numbers"]
                read, params = read[::-1], {**params, "dimension_numbers": ((right, left), batch)}
            values[out] = bind(eqn.primitive, *read, **params)
        return values


def _by_chunks(x: Array, axis: int, chunks: int) -> Array:
    """Return an array by chunks of an axis, which is the second dimension."""
    rows = moveaxis(x, axis, 0)
    return reshape(rows, (chunks, x.shape[axis] // chunks, *rows.shape[1:]))
