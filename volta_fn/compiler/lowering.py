"""Lower equations to kernels: their values at each iteration of a loop as nodes.

A `Loop` is a kernel before lowering, and `lower_loop` makes the kernel of it. Loops that are equal up to the names of variables are lowered
once (`LoweringCache`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.ir.index import (
    ZERO,
    Affine,
    Index,
    NotAffine,
    Range,
    SplitAxis,
    along,
    broadcast_index,
    combine,
    is_alias,
    is_elementwise,
    is_product,
    is_view,
    loop_over,
    operand_index,
    reduces,
    row_major,
    split,
    undecided,
)
from volta_fn.compiler.ir.kernel import (
    Apply,
    Buffer,
    Constant,
    Inside,
    Kernel,
    KernelCall,
    Load,
    Node,
    Position,
    Reduce,
    Store,
    closure,
    loaded_inputs,
    renumbered,
)
from volta_fn.compiler.passes.rewriting import literal_key, params_key
from volta_fn.core.jaxpr import Atom, Equation, Literal, Var
from volta_fn.core.primitive import reduction_of
from volta_fn.primitives.data_movement.movement import reshape_p

# A `Loop` says at which index each equation is computed (its *steps*, in program order). Operands are then pulled at the index that the
# equation asks for: literals become constants, views become other indices of what they view, earlier steps are read directly, and
# anything else is loaded from memory.

_BOOL = np.dtype(np.bool_)


class IndexedEquation(NamedTuple):
    """An equation and the index of its result; of a reduction, that of its operand.

    A product (`dot_general`) is computed at the index of its result and then of the axes that are summed over, as the left operand has
    them.
    """

    eqn: Equation
    at: Index


class Loop(NamedTuple):
    """A kernel before lowering: equations, and the variables to store, with indices."""

    #: Sizes of the axes, and which of them are reduction axes.
    sizes: tuple[int, ...]
    reduction_axes: frozenset[int]
    steps: tuple[IndexedEquation, ...]
    outputs: tuple[tuple[Var, Index], ...]

    def over_axes(self, sizes: tuple[int, ...], reduction_axes: frozenset[int], axes: Mapping[int, Affine]) -> Loop:
        """Return the loop over other axes; `axes` gives the old ones in terms of these."""

        def renamed(index: Index) -> Index:
            return tuple([i.replaced(axes) for i in index])

        steps = tuple([IndexedEquation(s.eqn, renamed(s.at)) for s in self.steps])
        return Loop(sizes, reduction_axes, steps, tuple([(v, renamed(i)) for v, i in self.outputs]))

    def split(self, request: SplitAxis) -> Loop:
        """Return the loop with an axis split in two."""
        sizes, axes = split(self.sizes, request)
        reduction_axes = frozenset().union(*[axes.get(a, along(a)).axes for a in self.reduction_axes])
        return self.over_axes(sizes, reduction_axes, axes)

    def ordered(self) -> Loop:
        """Return the loop with the parallel axes before the reduction axes."""
        parallel = len(self.sizes) - len(self.reduction_axes)
        if all(a >= parallel for a in self.reduction_axes):
            return self
        order = sorted(range(len(self.sizes)), key=lambda a: a in self.reduction_axes)
        axes = {old: along(new) for new, old in enumerate(order)}
        return self.over_axes(tuple([self.sizes[a] for a in order]), frozenset(range(parallel, len(order))), axes)


class LoweredKernel(NamedTuple):
    """A kernel and the variables that it reads."""

    kernel: Kernel
    operands: tuple[Var, ...]


def lower_loop(loop: Loop, views: Mapping[Var, Equation]) -> LoweredKernel:
    """Return the kernel of a loop. Raises `NotAffine`.

    `views` are the equations of variables that are pulled instead of loaded.
    """
    loop = loop.ordered()
    while True:
        try:
            return _Lowering(loop, views).kernel()
        except SplitAxis as request:
            loop = loop.split(request)


def product_loop(eqn: Equation) -> Loop:
    """Return the loop of a matrix product by itself."""
    (out,), shape = eqn.outvars, eqn.invars[0].aval.shape
    (summed, _), _ = eqn.params["dimension_numbers"]
    rank = len(out.aval.shape)
    sizes, index = loop_over((*out.aval.shape, *[shape[d] for d in sorted(summed)]))
    reduction_axes = frozenset().union(*[i.axes for i in index[rank:]])
    return Loop(sizes, reduction_axes, (IndexedEquation(eqn, index),), ((out, index[:rank]),))


def lower_equation(eqn: Equation) -> LoweredKernel:
    """Return the kernel of one equation. Raises `NotAffine`."""
    (out,) = eqn.outvars
    dimensions = eqn.params["axes"] if reduces(eqn) else ()
    sizes, index = loop_over(eqn.invars[0].aval.shape if reduces(eqn) else out.aval.shape)
    axes = frozenset().union(*[index[d].axes for d in dimensions])
    outputs = ((out, tuple([i for d, i in enumerate(index) if d not in dimensions])),)
    return lower_loop(Loop(sizes, axes, (IndexedEquation(eqn, index),), outputs), {})


def as_kernel(eqn: Equation) -> KernelCall | None:
    """Return one equation as a kernel; None if its indices are not affine."""
    try:
        kernel, operands = lower_equation(eqn)
    except NotAffine:
        return None
    return KernelCall(kernel, operands, tuple(eqn.outvars))


class _Lowering:
    """Builds the nodes of one kernel; equal nodes are one."""

    def __init__(self, loop: Loop, views: Mapping[Var, Equation]) -> None:
        self.loop = loop
        self.sizes = loop.sizes
        self.views = views
        self.numbers: dict[Node, int] = {}
        self.nodes: list[Node] = []
        self.inputs: dict[Var, int] = {}
        self.elements: dict[tuple[Var, Index], int] = {}
        self.computed: set[Var] = set()

    def kernel(self) -> LoweredKernel:
        for step in self.loop.steps:
            (out,) = step.eqn.outvars
            index, number = self.step(step)
            self.elements[out, index] = number
            self.computed.add(out)
        stores = [Store(v.aval.shape, index, self.element(v, index)) for v, index in self.loop.outputs]
        return self.prune(stores)

    def step(self, step: IndexedEquation) -> tuple[Index, int]:
        """Return the index of a step's result and its node."""
        eqn, index = step
        if reduces(eqn):
            row_index = tuple([i for d, i in enumerate(index) if d not in eqn.params["axes"]])
            return row_index, self.reduction(eqn, index)
        if is_product(eqn):
            return index[: len(eqn.outvars[0].aval.shape)], self.product(eqn, index)
        return index, self.constant(0, eqn.outvars[0].aval.dtype) if eqn.outvars[0].aval.size == 0 else self.equation(eqn, index)

    # nodes

    def add(self, node: Node) -> int:
        """Return the number of a node."""
        number = self.numbers.get(node)
        if number is None:
            number = self.numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return number

    def constant(self, value: Any, dtype: np.dtype) -> int:
        return self.add(Constant.of(value, dtype))

    def element(self, atom: Atom, index: Index) -> int:
        """Return the node of an array's element; of any value if the index lies outside."""
        if isinstance(atom, Literal):
            return self.constant(np.asarray(atom.val), atom.aval.dtype)
        if atom.aval.size == 0:
            return self.constant(0, atom.aval.dtype)
        key = (atom, index)
        if key not in self.elements:
            eqn = self.views.get(atom)
            if eqn is None and atom in self.computed:
                raise NotAffine(f"{atom} is computed at another index than {index}")
            self.elements[key] = self.load(atom, atom.aval.shape, index) if eqn is None else self.equation(eqn, index)
        return self.elements[key]

    def load(self, var: Var, shape: tuple[int, ...], index: Index) -> int:
        """Load an element of an input seen as an array of `shape`.

        The load is masked if the index may lie outside.
        """
        ranges = self.ranges([Range(i, 0, n) for i, n in zip(index, shape, strict=True)])
        if ranges is None:
            return self.constant(0, var.aval.dtype)
        number = self.inputs.setdefault(var, len(self.inputs))
        return self.add(Load(var.aval.dtype, number, shape, index, ranges, Constant.of(0, var.aval.dtype)))

    def ranges(self, conditions: list[Range]) -> tuple[Range, ...] | None:
        """Return the conditions that do not always hold; None if one never does."""
        # An axis without iterations counts as one of a single one: outputs outside of it are computed.
        remaining = undecided(conditions, [size or 1 for size in self.sizes])
        return None if remaining is None else tuple(dict.fromkeys([condition.canonical() for condition in remaining]))

    def select(self, ranges: tuple[Range, ...] | None, inside: int, outside: int) -> int:
        """Select `inside` where the conditions hold, else `outside`."""
        if ranges is None or inside == outside:
            return outside
        if not ranges:
            return inside
        load, fill = self.nodes[inside], self.nodes[outside]
        if isinstance(load, Load) and isinstance(fill, Constant) and set(load.mask) <= set(ranges):
            return self.add(Load(load.dtype, load.input, load.shape, load.index, ranges, fill))
        where = self.add(Inside(ranges))
        return self.add(Apply(self.nodes[inside].dtype, "select_n", (where, outside, inside)))

    # equations

    def equation(self, eqn: Equation, index: Index) -> int:
        """Return the node of the result's element at an index."""
        name = eqn.primitive.name
        if is_view(eqn):
            return self.view(eqn, index)
        if is_elementwise(eqn):
            return self.apply(eqn, index)
        return _INDEXED_OPERATIONS[name](self, eqn, index, **eqn.params)

    def view(self, eqn: Equation, index: Index) -> int:
        (atom,) = eqn.invars
        if isinstance(atom, Literal):
            return self.element(atom, ())
        is_input = atom not in self.views and atom not in self.computed
        if is_input and is_alias(eqn) and eqn.primitive is reshape_p and atom.aval.size:
            return self.load(atom, eqn.outvars[0].aval.shape, index)
        return self.element(atom, operand_index(eqn, index, self.sizes))

    def apply(self, eqn: Equation, index: Index) -> int:
        read = tuple([self.element(a, broadcast_index(index, a.aval.shape)) for a in eqn.invars])
        params = {**eqn.params, "weak_type": False} if "weak_type" in eqn.params else eqn.params
        return self.add(Apply(eqn.outvars[0].aval.dtype, eqn.primitive.name, read, tuple(sorted(params.items()))))

    def iota(self, eqn: Equation, index: Index, *, dtype: np.dtype, shape: tuple[int, ...], dimension: int) -> int:
        return self.add(Position(dtype, index[dimension]))

    def pad(self, eqn: Equation, index: Index, *, padding_config: tuple[tuple[int, int, int], ...]) -> int:
        operand, padding = eqn.invars
        fill = self.element(padding, ())
        if operand.aval.size == 0:
            return fill
        inner, conditions = [], []
        for i, n, (low, _, interior) in zip(index, operand.aval.shape, padding_config, strict=True):
            quotient, between = self.divide(i.plus(-low), interior + 1)
            inner.append(quotient)
            conditions += [*between, Range(quotient, 0, n)]
        ranges = self.ranges(conditions)
        return fill if ranges is None else self.select(ranges, self.element(operand, tuple(inner)), fill)

    def divide(self, value: Affine, step: int) -> tuple[Affine, list[Range]]:
        """Return `value` / `step`, and the conditions for that to be an integer."""
        rest = [(axis, c) for axis, c in value.terms if c % step]
        if not rest:
            is_integer = value.offset % step == 0
            quotient = Affine(tuple([(axis, c // step) for axis, c in value.terms]), value.offset // step)
            return quotient, [] if is_integer else [Range(ZERO, 1, 2)]
        if len(rest) != 1 or abs(rest[0][1]) != 1:
            raise NotAffine
        ((axis, c),) = rest
        if self.sizes[axis] > step:
            if self.sizes[axis] % step:
                raise NotAffine
            raise SplitAxis(axis, step)
        iteration = -value.offset * c % step  # the one iteration at which c * iteration + offset is a multiple of step
        at = combine([(1, value.replaced({axis: ZERO.plus(iteration)}))])
        quotient, _ = self.divide(at, step)
        return quotient, [Range(along(axis), iteration, iteration + 1)]

    def concatenate(self, eqn: Equation, index: Index, *, dimension: int) -> int:
        operands = [v for v in eqn.invars if v.aval.size]
        ends = np.cumsum([v.aval.shape[dimension] for v in operands]).tolist()
        result = -1
        for operand, end in zip(reversed(operands), reversed(ends), strict=True):
            start = end - operand.aval.shape[dimension]
            at = (*index[:dimension], index[dimension].plus(-start), *index[dimension + 1 :])
            if result < 0:
                result = self.element(operand, at)
                continue
            ranges = self.ranges([Range(index[dimension], 0, end)])
            result = result if ranges is None else self.select(ranges, self.element(operand, at), result)
        return result

    def reduction(self, eqn: Equation, index: Index) -> int:
        """Reduce over the row; the index's reduced dimensions are the row's."""
        (operand,) = eqn.invars
        name, dtype, shape = eqn.primitive.name, eqn.outvars[0].aval.dtype, operand.aval.shape
        axes = eqn.params["axes"]
        value = self.element(operand, index)
        reduction = reduction_of(name)
        if reduction.index_of is not None:
            if row_major(tuple([index[a] for a in axes]), tuple([shape[a] for a in axes])) != self.row_number():
                raise NotAffine(f"{name} counts along another order than the row's")
            return self.add(Reduce(dtype, name, value)) if self.loop.reduction_axes else self.constant(0, dtype)
        if not self.loop.reduction_axes:
            return value
        wide = reduction.accumulator(dtype)
        total = self.add(Reduce(wide, name, self.convert(value, wide)))
        return self.convert(total, dtype)

    def product(self, eqn: Equation, index: Index) -> int:
        wide = dtypes.accumulator(eqn.outvars[0].aval.dtype)
        read = [self.convert(self.element(v, i), wide) for v, i in zip(eqn.invars, _operand_indices(eqn, index), strict=True)]
        product, total = ("and", "reduce_or") if wide == _BOOL else ("mul", "reduce_sum")
        term = self.add(Apply(wide, product, tuple(read)))
        sums = Reduce(wide, total, term, eqn.params.get("precision", ""))
        return self.convert(self.add(sums), eqn.outvars[0].aval.dtype)

    def row_number(self) -> Affine:
        inner = sorted(self.loop.reduction_axes)
        return row_major(tuple(map(along, inner)), tuple([self.sizes[a] for a in inner]))

    def convert(self, number: int, dtype: np.dtype) -> int:
        if self.nodes[number].dtype == dtype:
            return number
        return self.add(Apply(dtype, "convert_element_type", (number,), (("new_dtype", dtype), ("weak_type", False))))

    # the kernel

    def prune(self, stores: list[Store]) -> LoweredKernel:
        """Return the kernel with the nodes and inputs that the stores need."""
        live = closure(self.nodes, [s.value for s in stores])
        new = {old: n for n, old in enumerate(live)}
        inputs = {old: n for n, old in enumerate(loaded_inputs([self.nodes[n] for n in live]))}
        variables = [v for v, n in self.inputs.items() if n in inputs]
        nodes = tuple([renumbered(self.nodes[n], new, inputs) for n in live])
        kernel = Kernel(
            self.sizes,
            len(self.sizes) - len(self.loop.reduction_axes),
            tuple([Buffer(v.aval.size, v.aval.dtype) for v in variables]),
            nodes,
            tuple([Store(s.shape, s.index, new[s.value]) for s in stores]),
        )
        return LoweredKernel(kernel, tuple(variables))


def _operand_indices(eqn: Equation, index: Index) -> list[Index]:
    """Return the indices at which the operands of a product are read.

    `index` is that of its result and of the summed axes in the left operand's order.
    """
    summed, stacked = eqn.params["dimension_numbers"]
    count, rank = len(stacked[0]), len(eqn.outvars[0].aval.shape)
    order = sorted(range(len(summed[0])), key=lambda i: summed[0][i])
    free, indices = index[count:rank], []
    for side, operand in enumerate(eqn.invars):
        axes = dict(zip([*stacked[side], *[summed[side][i] for i in order]], [*index[:count], *index[rank:]], strict=True))
        free_axes = [d for d in range(len(operand.aval.shape)) if d not in axes]
        axes |= dict(zip(free_axes, free[: len(free_axes)], strict=True))
        free = free[len(free_axes) :]
        indices.append(tuple([axes[d] for d in sorted(axes)]))
    return indices


_INDEXED_OPERATIONS: dict[str, Callable[..., int]] = {"iota": _Lowering.iota, "pad": _Lowering.pad, "concatenate": _Lowering.concatenate}


# Memoised lowering: loops equal up to renaming of variables are lowered once.


class LoweringCache:
    """Kernels by the loops they were lowered from: each kind of loop is lowered once."""

    def __init__(self) -> None:
        self._cache: dict[Any, tuple[Any, list[int]]] = {}

    def kernel_of(self, loop: Loop, views: Mapping[Var, Equation]) -> LoweredKernel:
        """Return the kernel of a loop, as `lower_loop` does. Raises `NotAffine`."""
        key, variables = _signature(loop, views)
        if key not in self._cache:
            result = lower_loop(loop, views)
            numbers = {v: n for n, v in enumerate(variables)}
            self._cache[key] = result.kernel, [numbers[v] for v in result.operands]
        kernel, operands = self._cache[key]
        return LoweredKernel(kernel, tuple([variables[n] for n in operands]))


def _signature(loop: Loop, views: Mapping[Var, Equation]) -> tuple[Any, list[Var]]:
    """Return a key of everything that a kernel depends on, and the variables.

    Variables are numbered in the order of their first appearance.
    """
    numbers: dict[Var, int] = {}
    key: list[Any] = [loop.sizes, loop.reduction_axes]
    through: list[Equation] = []

    def number(atom: Atom) -> Any:
        if not isinstance(atom, Var):
            return literal_key(atom)
        if atom not in numbers:
            numbers[atom] = len(numbers)
            key.append(atom.aval)
            if atom in views:
                through.append(views[atom])
        return numbers[atom]

    def describe(eqn: Equation) -> None:
        key.append(eqn.primitive)
        key.extend([number(v) for v in eqn.invars])
        key.extend([number(v) for v in eqn.outvars])
        if eqn.params:
            key.append(params_key(eqn.params))

    for step in loop.steps:
        describe(step.eqn)
        key.append(step.at)
        while through:
            describe(through.pop())
    for var, index in loop.outputs:
        key.append((numbers[var], index))
    return tuple(key), list(numbers)
