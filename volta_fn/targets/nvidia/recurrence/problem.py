"""Scans as recurrences: what one element of every array is computed from.

In the body of a recurrent layer, and of its gradient, every array is (batch, n · units) or a part of that, and all equations but products
with constant matrices are elementwise. So all that has to do with one unit of one row is a graph of scalars (`Recurrence.nodes`), and only
products need other units, of the same row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from volta_fn.compiler.ir.index import is_elementwise
from volta_fn.compiler.ir.kernel import Apply, Constant
from volta_fn.core.aval import Shape, ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Var
from volta_fn.core.jaxpr import Literal as LiteralAtom
from volta_fn.primitives.contraction import TENSORFLOAT32
from volta_fn.targets.nvidia.matmul import DTYPES, OPERATIONS
from volta_fn.targets.nvidia.matmul.problem import HALVES

#: What the axes of an array number: rows of the batch, units, or nothing, as their size is 1 or they are broadcast.
Axis = Literal["row", "unit", "none"]
Axes = tuple[Axis, ...]

#: Hidden units are a multiple of this many.
UNITS = 16
#: The most equations of a body, which are read recursively, and the most bytes of an array that 32 bits number.
_MOST_EQUATIONS, _MOST_BYTES = 256, 1 << 31


class ArrayPlace(NamedTuple):
    """Where the scalars of an array lie.

    There is one for every row and unit, in each of its parts. Part p of an array (batch, n · units) has columns p · units, …
    """

    shape: Shape
    axes: Axes
    dtype: np.dtype

    @property
    def size(self) -> int:
        """The elements of the array."""
        return int(np.prod(self.shape, dtype=np.int64))


class Read(NamedTuple):
    """A scalar of a constant, of the rows of an iteration, or of the carry."""

    kind: Literal["constant", "row", "carry"]
    number: int
    place: ArrayPlace
    part: int

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the array."""
        return self.place.dtype


class Sum(NamedTuple):
    """An element of a product, in a part of its columns."""

    product: int
    part: int
    dtype: np.dtype


Node = Read | Sum | Apply | Constant


class Product(NamedTuple):
    """A product of an array (batch, terms) with a constant matrix."""

    #: The nodes of its left operand, part by part.
    operand: tuple[int, ...]
    #: The number of the constant, and its strides along terms and columns.
    matrix: int
    strides: tuple[int, int]
    terms: int
    #: Columns, in parts of as many as there are units.
    parts: int
    #: The dtype that is multiplied; float32 is rounded to TensorFloat-32.
    dtype: np.dtype


class Result(NamedTuple):
    """An array of results: the nodes of its parts."""

    place: ArrayPlace
    nodes: tuple[int, ...]


class Recurrence(NamedTuple):
    """A scan of products with constant matrices and elementwise operations."""

    length: int
    reverse: bool
    rows: int
    units: int
    constants: int
    nodes: tuple[Node, ...]
    products: tuple[Product, ...]
    #: The next carry, and the stacked results of iterations.
    carry: tuple[Result, ...]
    stacked: tuple[Result, ...]

    def levels(self) -> list[int]:
        """Return for every node how many products it waits for, one after another."""
        levels: list[int] = []
        for node in self.nodes:
            if isinstance(node, Sum):
                levels.append(1 + max([levels[i] for i in self.products[node.product].operand]))
            else:
                levels.append(max([levels[i] for i in node.operands], default=0) if isinstance(node, Apply) else 0)
        return levels


def recurrence_of(eqn: Equation) -> Recurrence | None:
    """Return a scan as a recurrence; None if it is none."""
    closed: ClosedJaxpr = eqn.params["jaxpr"]
    equations = closed.jaxpr.eqns
    if closed.consts or not eqn.params["length"] or len(equations) > _MOST_EQUATIONS or any(each.primitive.effectful for each in equations):
        return None
    try:
        return _Reader(eqn, closed).recurrence()
    except _OtherScan:
        return None


class _OtherScan(Exception):
    """The scan is no recurrence."""


def _require(condition: object) -> None:
    if not condition:
        raise _OtherScan


class _Reader:
    """Reads the scalars of a scan's body from its results backwards."""

    def __init__(self, eqn: Equation, closed: ClosedJaxpr) -> None:
        self.params, self.jaxpr = eqn.params, closed.jaxpr
        self.equations = {v: each for each in self.jaxpr.eqns for v in each.outvars}
        self.inputs = {v: number for number, v in enumerate(self.jaxpr.invars)}
        self.constants: int = eqn.params["num_consts"]
        self.carry: int = eqn.params["num_carry"]
        self.nodes: dict[Node, int] = {}
        self.products: dict[Var, int] = {}
        self.operands: list[Product] = []
        self._values: dict[tuple[Var, Axes, int], int] = {}
        products = [each for each in self.jaxpr.eqns if each.primitive.name == "dot_general"]
        _require(products)
        shapes = [(v.aval.shape[:-1], v.aval.shape[-1:]) for each in products for v in (each.invars[0], each.outvars[0])]
        self.batch = shapes[0][0]
        _require(len(self.batch) <= 1 and all(batch == self.batch and widths for batch, widths in shapes))
        self.units = min([widths[0] for _, widths in shapes])
        _require(self.units and self.units % UNITS == 0)
        #: The axes of the array that a carry is.
        self.carried = [self._axes_of(v.aval) for v in self.jaxpr.outvars[: self.carry]]

    def recurrence(self) -> Recurrence:
        """Return the scan."""
        results = [Result(self._place(v.aval, self._axes_of(v.aval)), self._parts(v)) for v in self.jaxpr.outvars]
        _require(self.operands)
        rows = self.batch[0] if self.batch else 1
        _require(rows)
        return Recurrence(
            self.params["length"],
            self.params["reverse"],
            rows,
            self.units,
            self.constants,
            tuple(self.nodes),
            tuple(self.operands),
            tuple(results[: self.carry]),
            tuple(results[self.carry :]),
        )

    # arrays

    def _axes_of(self, aval: ShapedArray) -> Axes:
        """Return what the axes of a result number."""
        shape = aval.shape
        rows: Axes = ("row",)
        if shape in ((), self.batch):
            return rows * len(shape)
        _require(shape and shape[-1] % self.units == 0 and shape[-1])
        _require(shape[:-1] in (self.batch, ()))
        return (*rows * len(shape[:-1]), "unit")

    def _place(self, aval: ShapedArray, axes: Axes) -> ArrayPlace:
        _require(aval.dtype in DTYPES and aval.nbytes < _MOST_BYTES)
        return ArrayPlace(aval.shape, axes, aval.dtype)

    def _parts(self, atom: Atom) -> tuple[int, ...]:
        """Return the nodes of all parts of a result."""
        axes = self._axes_of(atom.aval)
        count = atom.aval.shape[-1] // self.units if "unit" in axes else 1
        return tuple([self._node(atom, axes, part) for part in range(count)])

    # scalars

    def _add(self, node: Node) -> int:
        return self.nodes.setdefault(node, len(self.nodes))

    def _node(self, atom: Atom, axes: Axes, part: int) -> int:
        """Return the node of a part of an array whose axes are these."""
        part = part if "unit" in axes else 0
        if isinstance(atom, LiteralAtom):
            _require(np.ndim(atom.val) == 0 and atom.aval.dtype in DTYPES)
            return self._add(Constant.of(np.asarray(atom.val), atom.aval.dtype))
        for axis, size in zip(axes, atom.aval.shape, strict=True):
            _require(axis != "unit" or (size % self.units == 0 and part < size // self.units))
        key = atom, axes, part
        if key not in self._values:
            self._values[key] = self._read(atom, axes, part) if atom in self.inputs else self._computed(self.equations[atom], axes, part)
        return self._values[key]

    def _read(self, var: Var, axes: Axes, part: int) -> int:
        number, place = self.inputs[var], self._place(var.aval, axes)
        if number < self.constants:
            return self._add(Read("constant", number, place, part))
        number -= self.constants
        if number < self.carry:
            _require(self.carried[number] == axes)
            return self._add(Read("carry", number, place, part))
        return self._add(Read("row", number - self.carry, place, part))

    def _computed(self, eqn: Equation, axes: Axes, part: int) -> int:
        name, params = eqn.primitive.name, eqn.params
        if name == "dot_general":
            return self._sum(eqn, axes, part)
        if name in ("broadcast_in_dim", "reshape", "squeeze"):
            operand = eqn.invars[0]
            _require(len(eqn.invars) == 1)
            before = self._broadcast(eqn, axes) if name == "broadcast_in_dim" else self._reshaped(eqn, axes)
            return self._node(operand, before, part)
        if name in ("slice", "pad", "concatenate"):
            _require(axes and axes[-1] == "unit")
            part_of = {"slice": self._slice, "pad": self._pad, "concatenate": self._concatenate}
            return part_of[name](eqn, axes, part)
        _require(is_elementwise(eqn) and name in OPERATIONS and len(eqn.outvars) == 1)
        aval = eqn.outvars[0].aval
        _require(aval.dtype in DTYPES)
        operands = []
        for operand in eqn.invars:  # which broadcast
            shape = operand.aval.shape
            skipped = len(axes) - len(shape)
            inner = zip(shape, aval.shape[skipped:], axes[skipped:], strict=True)
            broadcast: Axes = tuple([axis if old == size else "none" for old, size, axis in inner])
            operands.append(self._node(operand, broadcast, part))
        return self._add(Apply(aval.dtype, name, tuple(operands), tuple(sorted(params.items()))))

    def _broadcast(self, eqn: Equation, axes: Axes) -> Axes:
        (operand,), (result,) = eqn.invars, eqn.outvars
        positions: Sequence[int] = eqn.params["broadcast_dimensions"]
        sizes = zip(operand.aval.shape, positions, strict=True)
        return tuple([axes[at] if size == result.aval.shape[at] else "none" for size, at in sizes])

    def _reshaped(self, eqn: Equation, axes: Axes) -> Axes:
        """Return the axes of what becomes the result by axes of size 1."""
        (operand,), (result,) = eqn.invars, eqn.outvars
        shapes = [[size for size in v.aval.shape if size != 1] for v in (operand, result)]
        _require(shapes[0] == shapes[1])
        longer = iter([axis for axis, size in zip(axes, result.aval.shape, strict=True) if size != 1])
        return tuple([next(longer) if size != 1 else "none" for size in operand.aval.shape])

    def _slice(self, eqn: Equation, axes: Axes, part: int) -> int:
        (operand,), params = eqn.invars, eqn.params
        starts, strides = params["start_indices"], params["strides"]
        _require(strides is None or set(strides) == {1})
        _require(not any(starts[:-1]) and operand.aval.shape[:-1] == eqn.outvars[0].aval.shape[:-1] and starts[-1] % self.units == 0)
        return self._node(operand, axes, part + starts[-1] // self.units)

    def _pad(self, eqn: Equation, axes: Axes, part: int) -> int:
        operand, fill = eqn.invars
        *others, (low, _, interior) = eqn.params["padding_config"]
        _require(not any(map(any, others)) and not interior and low % self.units == 0)
        width, part = operand.aval.shape[-1], part - low // self.units
        _require(width % self.units == 0)
        return self._node(operand, axes, part) if 0 <= part < width // self.units else self._node(fill, (), 0)

    def _concatenate(self, eqn: Equation, axes: Axes, part: int) -> int:
        _require(eqn.params["dimension"] == len(axes) - 1)
        for operand in eqn.invars:
            width = operand.aval.shape[-1]
            _require(width % self.units == 0)
            if part < width // self.units:
                return self._node(operand, axes, part)
            part -= width // self.units
        raise _OtherScan

    def _sum(self, eqn: Equation, axes: Axes, part: int) -> int:
        result = eqn.outvars[0]
        _require(axes == (*("row" for _ in self.batch), "unit") and result.aval.dtype in DTYPES)
        if result not in self.products:
            product = self._product(eqn)
            self.products[result] = len(self.operands)
            self.operands.append(product)
        return self._add(Sum(self.products[result], part, result.aval.dtype))

    def _product(self, eqn: Equation) -> Product:
        left, right = eqn.invars
        (contracted, other), batches = eqn.params["dimension_numbers"]
        _require(not any(batches) and tuple(contracted) == (len(self.batch),) and len(other) == 1 and len(right.aval.shape) == 2)
        _require(isinstance(right, Var) and self.inputs.get(right, self.constants) < self.constants)
        dtype, rounded = left.aval.dtype, eqn.params.get("precision") == TENSORFLOAT32
        _require(dtype == right.aval.dtype and (dtype in HALVES or (dtype == np.float32 and rounded)))
        terms, columns = right.aval.shape[other[0]], right.aval.shape[1 - other[0]]
        strides = (columns, 1) if other[0] == 0 else (1, terms)
        assert isinstance(right, Var)
        return Product(self._parts(left), self.inputs[right], strides, terms, columns // self.units, dtype)
