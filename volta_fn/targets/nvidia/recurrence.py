"""Scans of recurrent layers, and of their gradients, as one kernel.

First: which scans are recurrences, and what one element of every array is computed from; then: how the rows and units are divided among
blocks, and computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, gcd
from typing import Literal, NamedTuple

import numpy as np

from volta_fn.compiler.ir.index import is_elementwise
from volta_fn.compiler.ir.kernel import Apply, Constant
from volta_fn.compiler.target import RoutineKey, TargetCapabilities
from volta_fn.core.aval import Shape, ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Var
from volta_fn.core.jaxpr import Literal as LiteralAtom
from volta_fn.primitives.contraction import TENSORFLOAT32
from volta_fn.primitives.scan import scan_p
from volta_fn.runtime.llvm.text import Value
from volta_fn.targets.cpu.scalars import Number, constant, load
from volta_fn.targets.nvidia.kernel import ZERO, KernelFunction, KernelHeader, i32, kernel_dispatch
from volta_fn.targets.nvidia.matmul import DTYPES, OPERATIONS
from volta_fn.targets.nvidia.matmul.problem import HALVES
from volta_fn.targets.nvidia.matmul.results import operation, put
from volta_fn.targets.wgsl.convolution import zeros
from volta_fn.targets.wgsl.routine import Routine

# Scans as recurrences: what one element of every array is computed from.
#
# In the body of a recurrent layer, and of its gradient, every array is (batch, n · units) or a part of that, and all equations but products
# with constant matrices are elementwise. So all that has to do with one unit of one row is a graph of scalars (`Recurrence.nodes`), and
# only products need other units, of the same row.


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


# Recurrences as one kernel, whose blocks meet in every iteration.
#
# A block has some rows and units: it keeps its part of the carry in registers, and so its columns of the matrices of all products. For a
# product it needs the other units of its rows. So all blocks *publish* the left operand in memory, in the order in which `mma` wants it,
# meet, and load the operand from there. Everything else is computed by the thread that has the row and unit. Only blocks of the same rows
# meet, and memory that is published to is used in turns of two: whoever meets again has read what was published before.
#
# All blocks of a kernel must run at the same time. There are no more than multiprocessors, and no two such kernels run at once.


# Tilings: which rows and units a block has.

#: Rows and columns of a fragment of sums, and bytes of a row's terms in one step of `mma`.
ROWS, COLUMNS, STEP_BYTES = 16, 8, 32

#: The most warps of a block.
_WARPS = 8
#: Registers of a thread for fragments of matrices and for sums, and for all that it keeps.
_MOST_FRAGMENTS, _MOST_SUMS, _MOST_REGISTERS = 128, 64, 200
#: The most arrivals of blocks of the same rows, which a counter of 32 bits numbers.
_MOST_ARRIVALS = (1 << 31) - 1
#: The cost of an operation on an element, in bytes that a block loads meanwhile.
_OPERATION_COST = 0.5


class Tiling(NamedTuple):
    """A division of a recurrence among blocks and their warps."""

    #: Rows and units of a block.
    rows: int
    units: int
    #: Warps, each of which has a share of the terms of all products.
    warps: int
    #: Fragments of the left operand that a warp loads at once.
    ahead: int = 16

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def elements(self) -> int:
        """Elements of a thread: pairs of a row and a unit."""
        return ceil(self.rows * self.units / self.threads)

    def blocks(self, r: Recurrence) -> tuple[int, int]:
        """Return the numbers of blocks along rows and along units."""
        return ceil(r.rows / self.rows), r.units // self.units

    def pitch(self, product: Product) -> int:
        """Return the floats of a row of partial sums in shared memory.

        They are so many that fragments cause no bank conflicts.
        """
        return product.parts * self.units + COLUMNS

    def shared(self, r: Recurrence) -> int:
        """Return the bytes of shared memory: the partial sums of all products."""
        return 4 * self.warps * self.rows * sum(self.pitch(product) for product in r.products)

    def fragments(self, product: Product) -> int:
        """Return the registers of a thread that hold its share of a product's matrix."""
        return 2 * steps(product) // self.warps * product.parts * (self.units // COLUMNS)

    def sums(self, product: Product) -> int:
        """Return the registers of a thread that hold sums of a product."""
        return 4 * (self.rows // ROWS) * product.parts * (self.units // COLUMNS)


def steps(product: Product) -> int:
    """Return the steps of `mma` along the terms of a product."""
    return product.terms * product.dtype.itemsize // STEP_BYTES


def choose(r: Recurrence, device: TargetCapabilities) -> Tiling | None:
    """Return the tiling estimated to be fastest.

    None if blocks that fit a GPU at once have no registers for all matrices.
    """
    common = gcd(*[steps(product) for product in r.products])
    warps = max([n for n in range(1, _WARPS + 1) if common % n == 0])
    tilings = [Tiling(rows, units, warps, ahead) for rows in (16, 32, 64) for units in (8, 16, 32) for ahead in (16, 4)]
    return min([t for t in tilings if _fits(r, t, device)], key=lambda t: _cost(r, t), default=None)


def _fits(r: Recurrence, t: Tiling, device: TargetCapabilities) -> bool:
    down, across = t.blocks(r)
    if r.units % t.units or down * across > device.processors or t.shared(r) > device.block_memory:
        return False
    if r.length * max(r.levels()) * across > _MOST_ARRIVALS:
        return False
    fragments, sums = sum(map(t.fragments, r.products)), max(map(t.sums, r.products))
    if fragments > _MOST_FRAGMENTS or sums > _MOST_SUMS:
        return False
    carried = sum(len(result.nodes) for result in r.carry) + sum(isinstance(node, Read) for node in r.nodes)
    loaded = 4 * min(t.ahead, max(steps(product) // t.warps * (t.rows // ROWS) for product in r.products))
    return fragments + sums + loaded + t.elements * carried <= _MOST_REGISTERS


def _cost(r: Recurrence, t: Tiling) -> float:
    """Estimate the time of an iteration, in bytes that a block loads."""
    loaded = t.rows * sum(product.terms * product.dtype.itemsize for product in r.products)
    return loaded + _OPERATION_COST * t.rows * t.units * len(r.nodes)


# Kernels.

#: Bytes between the counters of blocks that meet, and of a fragment of the left operand.
COUNTER, FRAGMENT = 128, 512

#: Loads what other blocks have stored.
_LOAD = "ld.relaxed.gpu.global.v4.b32 {$0, $1, $2, $3}, [$4];"


def published_bytes(r: Recurrence, t: Tiling, product: Product) -> int:
    """Return the bytes of a product's left operand, twice."""
    return 2 * t.blocks(r)[0] * (t.rows // ROWS) * steps(product) * FRAGMENT


class RecurrentKernel:
    """The kernel of a recurrence.

    Its bindings are the constants, the initial carry, the stacked rows, the results, the counters, and a workspace for each product.
    """

    def __init__(self, r: Recurrence, t: Tiling, rows: Sequence[int]) -> None:
        """Describe a kernel; `rows` are the numbers of the stacked rows that are read."""
        self.r, self.t = r, t
        self._rows = {number: position for position, number in enumerate(rows)}
        inputs = r.constants + len(r.carry) + len(rows)
        outputs = len(r.carry) + len(r.stacked)
        self._first_row, self._first_output, self._counters = r.constants + len(r.carry), inputs, inputs + outputs
        self.f = KernelFunction(0, inputs + outputs + 1 + len(r.products), t.threads)
        self.header = KernelHeader(t.threads, t.shared(r), cooperative=True)
        self._levels = r.levels()
        self._last = max(self._levels)
        self._places()
        self._write()

    # where a thread is

    def _places(self) -> None:
        f, r, t = self.f, self.r, self.t
        down, across = t.blocks(r)
        self._row_block, unit_block = f.divided(f.special("ctaid.x"), across)
        self._blocks = across
        self._begin_row, self._begin_unit = f.times(self._row_block, t.rows), f.times(unit_block, t.units)
        counter = f.further(f.bindings[self._counters], f.times(self._row_block, COUNTER))
        self._counter = f.cast("ptrtoint", counter, "i64")
        self._group, self._in_group = f.divided(f.lane, 4)
        #: Of each element of this thread its row and unit in the block, in the arrays, and whether it exists.
        self._local: list[tuple[Value, Value]] = []
        self._position: list[tuple[Value, Value]] = []
        self._exists: list[Value | None] = []
        count = t.rows * t.units
        for e in range(t.elements):
            number = f.plus(f.thread, i32(e * t.threads))
            inside = None
            if (e + 1) * t.threads > count:
                inside = f.below(number, count)
                number = f.select(inside, number, i32(0))
            row, unit = f.divided(number, t.units)
            at = f.plus(self._begin_row, row)
            if down * t.rows > r.rows:
                is_row = f.below(at, r.rows)
                inside = is_row if inside is None else f.binary("and", inside, is_row)
                at = f.select(is_row, at, i32(r.rows - 1))
            self._local.append((row, unit))
            self._position.append((at, f.plus(self._begin_unit, unit)))
            self._exists.append(inside)

    def _pointer(self, binding: int, place: ArrayPlace, part: int, e: int, iteration: Value | None) -> Value:
        """Emit the generic pointer to an element of an array, or of a stacked one."""
        f = self.f
        row, unit = self._position[e]
        total, stride = i32(0), 1
        for size, axis in zip(place.shape[::-1], place.axes[::-1], strict=True):
            if axis != "none":
                index = row if axis == "row" else f.plus(unit, i32(part * self.r.units))
                total = f.plus(total, f.times(index, stride))
            stride *= size
        size, base = place.dtype.itemsize, f.bindings[binding]
        if iteration is not None:
            bytes_ = f.wide_times(iteration, place.size * size)
            base = f.further(base, bytes_)
        return f.cast("addrspacecast", f.further(base, f.times(total, size)), "ptr")

    # the kernel

    def _write(self) -> None:
        f, r, t = self.f, self.r, self.t
        self._matrices = [self._fragments(product) for product in r.products]
        self._values: list[dict[int, Number]] = [{} for _ in range(t.elements)]
        for number, node in enumerate(r.nodes):
            for e in range(t.elements):
                if isinstance(node, Read) and node.kind == "constant":
                    self._values[e][number] = load(f, node.dtype, self._pointer(node.number, node.place, node.part, e, None), 1)
        #: The nodes that are carried from iteration to iteration: the carry, and the rows of the next iteration.
        carried = [(n, node) for n, node in enumerate(r.nodes) if isinstance(node, Read) and node.kind == "carry"]
        rows = [(n, node) for n, node in enumerate(r.nodes) if isinstance(node, Read) and node.kind == "row"]
        first = [self._start(node, e) for _, node in carried for e in range(t.elements)]
        first += [self._row_of(node, e, self._row_number(i32(0))) for _, node in rows for e in range(t.elements)]
        kinds = [number.dtype for number in first]

        def iterate(iteration: Value, values: list[Value]) -> list[Value]:
            numbers = iter([Number(dtype, (value,)) for dtype, value in zip(kinds, values, strict=True)])
            for n, _ in [*carried, *rows]:
                for e in range(t.elements):
                    self._values[e][n] = next(numbers)
            following = self._iteration(iteration, rows)
            final = [self._value(r.carry[node.number].nodes[node.part], e) for _, node in carried for e in range(t.elements)]
            return [number.value for number in (*final, *following)]

        f.repeat(i32(0), i32(r.length), i32(1), [number.value for number in first], iterate)
        for number, result in enumerate(r.carry):
            self._store_result(self._first_output + number, result, result.nodes, None)

    def _start(self, node: Read, e: int) -> Number:
        return load(self.f, node.dtype, self._pointer(self.r.constants + node.number, node.place, node.part, e, None), 1)

    def _row_number(self, iteration: Value) -> Value:
        """Emit the number of an iteration's row."""
        return self.f.minus(i32(self.r.length - 1), iteration) if self.r.reverse else iteration

    def _row_of(self, node: Read, e: int, row: Value) -> Number:
        return load(self.f, node.dtype, self._pointer(self._first_row + self._rows[node.number], node.place, node.part, e, row), 1)

    def _iteration(self, iteration: Value, rows: Sequence[tuple[int, Read]]) -> list[Number]:
        """Emit an iteration; return the rows of the next one."""
        f, r, t = self.f, self.r, self.t
        row, following = self._row_number(iteration), list[Number]()
        for level in range(self._last + 1):
            if level:
                products = [k for k, p in enumerate(r.products) if 1 + max(self._levels[n] for n in p.operand) == level]
                for k in products:
                    self._publish(k, iteration)
                f.synchronise()
                with f.only_if(f.equals(f.thread, 0)):
                    f.count(self._counter)
            # What nobody waits for comes between the arrival and the wait.
            if level == min(1, self._last):
                next_row = self._row_number(f.umin(f.plus(iteration, i32(1)), i32(r.length - 1)))
                following = [self._row_of(node, e, next_row) for _, node in rows for e in range(t.elements)]
            if level:
                self._store_stacked(level - 1, row)
                meetings = f.plus(f.times(iteration, self._last), i32(level))
                with f.only_if(f.equals(f.thread, 0)):
                    f.wait_for_count(self._counter, f.times(meetings, self._blocks))
                f.synchronise()
                for k in products:
                    self._multiply(k, iteration)
                f.synchronise()
                for k in products:
                    self._add_up(k)
        self._store_stacked(self._last, row)
        return following

    # elementwise operations

    def _value(self, number: int, e: int) -> Number:
        """Emit a node of an element, if it was not."""
        values = self._values[e]
        if number not in values:
            node: Node = self.r.nodes[number]
            if isinstance(node, Constant):
                values[number] = constant(self.f, node.value, 1)
            else:
                assert isinstance(node, Apply), "sums, and what is read, have their values"
                operands = [self._value(n, e) for n in node.operands]
                values[number] = operation(self.f, node.op, operands, node.dtype, dict(node.params))
        return values[number]

    def _store_stacked(self, level: int, row: Value) -> None:
        """Store the stacked results whose last products are of this level."""
        for number, result in enumerate(self.r.stacked, self._first_output + len(self.r.carry)):
            nodes = [n for n in result.nodes if self._levels[n] == level]
            self._store_result(number, result, nodes, row)

    def _store_result(self, binding: int, result: Result, nodes: Sequence[int], row: Value | None) -> None:
        """Store some nodes of a result, in a row of it if it is stacked."""
        for part, n in enumerate(result.nodes):
            for e in range(self.t.elements if n in nodes else 0):
                self._store(binding, result.place, part, e, self._value(n, e), row)

    def _store(self, binding: int, place: ArrayPlace, part: int, e: int, value: Number, row: Value | None) -> None:
        f, condition = self.f, self._exists[e]
        sizes = {"row": self.r.rows, "unit": self.r.units}
        for axis, index in zip(("row", "unit"), self._position[e], strict=True):
            if axis not in place.axes and sizes[axis] > 1:
                first = f.equals(index, 0)
                condition = first if condition is None else f.binary("and", condition, first)
        with f.only_if(condition):
            put(f, value, self._pointer(binding, place, part, e, row))

    # products

    def _fragments(self, product: Product) -> list[list[list[Value]]]:
        """Load this warp's share of a matrix.

        For each step, and eight columns, it is two registers. A lane has four terms in a row, or two of float32.
        """
        f, t = self.f, self.t
        each = STEP_BYTES // product.dtype.itemsize
        base = f.bindings[product.matrix]
        fragments = []
        for step in range(steps(product) // t.warps):
            term = f.plus(f.times(f.plus(f.warp, i32(step * t.warps)), each), f.times(self._in_group, each // 4))
            columns = []
            for part in range(product.parts):
                for eight in range(t.units // COLUMNS):
                    column = f.plus(self._begin_unit, self._group, i32(part * self.r.units + eight * COLUMNS))
                    columns.append(self._words(base, product, term, column, each // 4))
            fragments.append(columns)
        return fragments

    def _words(self, base: Value, product: Product, term: Value, column: Value, count: int) -> list[Value]:
        """Load consecutive terms of a column as two words."""
        f, size = self.f, product.dtype.itemsize
        along, across = product.strides
        first = f.plus(f.times(term, along), f.times(column, across))
        pointers = [f.further(base, f.times(f.plus(first, i32(k * along)), size)) for k in range(count)]
        if size == 4:
            return [self._rounded(f.load("float", pointer, 4)) for pointer in pointers]
        bits = [f.cast("zext", f.load("i16", pointer, 2), "i32") for pointer in pointers]
        return [f.binary("or", low, f.binary("shl", high, i32(16))) for low, high in zip(bits[::2], bits[1::2], strict=True)]

    def _rounded(self, x: Value) -> Value:
        """Emit the bits of a float rounded to TensorFloat-32."""
        (word,) = self.f.ptx("cvt.rna.tf32.f32 $0, $1;", x, results=["i32"])
        return word

    def _workspace(self, k: int, iteration: Value) -> Value:
        """Emit where a product's left operand is published in an iteration."""
        f, half = self.f, published_bytes(self.r, self.t, self.r.products[k]) // 2
        return f.further(f.bindings[self._counters + 1 + k], f.times(f.remainder(iteration, 2), half))

    def _publish(self, k: int, iteration: Value) -> None:
        """Store this thread's elements of a product's left operand.

        A fragment has 16 rows and the terms of a step. A lane has 16 bytes of it: four terms, or two, of a row, then of the eighth row
        after it.
        """
        f, t, product = self.f, self.t, self.r.products[k]
        each, size = STEP_BYTES // product.dtype.itemsize, product.dtype.itemsize
        base = self._workspace(k, iteration)
        for e in range(t.elements):
            row, unit = self._local[e]
            tile, line = f.divided(f.plus(f.times(self._row_block, t.rows), row), ROWS)
            half, line = f.divided(line, 8)
            for part, n in enumerate(product.operand):
                step, term = f.divided(f.plus(self._begin_unit, unit, i32(part * self.r.units)), each)
                quarter, term = f.divided(term, each // 4)
                lane = f.plus(f.times(line, 4), quarter)
                fragment = f.plus(f.times(tile, steps(product)), step)
                at = f.plus(f.times(fragment, FRAGMENT), f.times(lane, 16), f.times(half, 8), f.times(term, size))
                value, pointer = self._value(n, e), f.further(base, at)
                count = t.rows * t.units
                exists = f.below(f.thread, count - e * t.threads) if (e + 1) * t.threads > count else None
                with f.only_if(exists):
                    if size == 4:
                        f.store(self._rounded(value.value), pointer, 4)
                    else:
                        put(f, value, f.cast("addrspacecast", pointer, "ptr"))

    def _multiply(self, k: int, iteration: Value) -> None:
        """Multiply this warp's share of the terms, and leave the sums in shared memory."""
        f, t, product = self.f, self.t, self.r.products[k]
        tiles, columns = t.rows // ROWS, product.parts * (t.units // COLUMNS)
        base = self._workspace(k, iteration)
        lane = f.times(f.lane, 16)
        fragments = [(step, tile) for step in range(steps(product) // t.warps) for tile in range(tiles)]
        sums = [[[ZERO] * 4 for _ in range(columns)] for _ in range(tiles)]
        for begin in range(0, len(fragments), t.ahead):
            words = []
            for step, tile in fragments[begin : begin + t.ahead]:
                number = f.plus(f.times(self._row_block, tiles), i32(tile))
                fragment = f.plus(f.times(number, steps(product)), f.warp, i32(step * t.warps))
                pointer = f.further(base, f.plus(f.times(fragment, FRAGMENT), lane))
                words.append(f.ptx(_LOAD, f.cast("ptrtoint", pointer, "i64"), results=["i32"] * 4))
            for (step, tile), (low, high, low8, high8) in zip(fragments[begin : begin + t.ahead], words, strict=True):
                for column, matrix in enumerate(self._matrices[k][step]):
                    sums[tile][column] = f.multiply_add(product.dtype, [low, low8, high, high8], matrix, sums[tile][column])
        pitch = t.pitch(product)
        start = f.plus(f.times(f.plus(f.times(f.warp, t.rows), self._group), pitch), f.times(self._in_group, 2))
        for tile in range(tiles):
            for column in range(columns):
                for half in range(2):
                    pair = f.vector(sums[tile][column][2 * half :][:2])
                    at = f.plus(start, i32((tile * ROWS + 8 * half) * pitch + column * COLUMNS))
                    f.store(pair, f.shared(f.plus(f.times(at, 4), i32(self._shared_offset(k)))), 8)

    def _shared_offset(self, k: int) -> int:
        return 4 * self.t.warps * self.t.rows * sum(self.t.pitch(product) for product in self.r.products[:k])

    def _add_up(self, k: int) -> None:
        """Add up the sums of all warps for this thread's elements."""
        f, t, product = self.f, self.t, self.r.products[k]
        pitch = t.pitch(product)
        for number, node in enumerate(self.r.nodes):
            if not isinstance(node, Sum) or node.product != k:
                continue
            for e in range(t.elements):
                row, unit = self._local[e]
                first = f.plus(f.times(row, pitch), unit, i32(node.part * t.units))
                shares = []
                for warp in range(t.warps):
                    at = f.plus(first, i32(warp * t.rows * pitch))
                    shares.append(f.load("float", f.shared(f.plus(f.times(at, 4), i32(self._shared_offset(k)))), 4))
                while len(shares) > 1:
                    pairs = zip(shares[::2], shares[1::2], strict=False)
                    odd = shares[len(shares) // 2 * 2 :]
                    shares = [f.fadd(x, y) for x, y in pairs] + odd
                total = Number(np.dtype(np.float32), (shares[0],))
                self._values[e][number] = operation(f, "convert_element_type", [total], node.dtype, {"new_dtype": node.dtype})

    def text(self) -> str:
        """Return the kernel's module."""
        return self.f.text()


# The routine.


def loop_key(eqn: Equation, device: TargetCapabilities) -> RoutineKey | None:
    """Return the key of the routine of a recurrence; None for other loops."""
    recurrence = recurrence_of(eqn) if device.matrix_units and eqn.primitive is scan_p else None
    tiling = None if recurrence is None else choose(recurrence, device)
    if recurrence is None or tiling is None:
        return None
    operands = len(eqn.invars)
    return RoutineKey(("recurrence", recurrence, tiling, operands), lambda: routine(recurrence, tiling, operands, device))


def routine(r: Recurrence, t: Tiling, operands: int, device: TargetCapabilities) -> Routine:
    """Return the routine of a recurrence, of a scan with so many operands."""
    rows = sorted({node.number for node in r.nodes if isinstance(node, Read) and node.kind == "row"})
    kernel = RecurrentKernel(r, t, rows)
    first = r.constants + len(r.carry)
    results, workspace = len(r.carry) + len(r.stacked), operands + len(r.carry) + len(r.stacked)
    down, across = t.blocks(r)
    buffers = (*range(first), *[first + row for row in rows], *range(operands, workspace + 1 + len(r.products)))
    dispatch = kernel_dispatch(kernel.header, buffers, results + 1 + len(r.products), kernel.text(), down * across)
    counters = replace(zeros(np.dtype(np.uint32), COUNTER // 4 * down, device), buffers=(workspace,))
    sizes = (COUNTER * down, *[published_bytes(r, t, product) for product in r.products])
    return Routine((counters, dispatch), sizes)
