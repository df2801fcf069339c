"""Results of products, stored from the sums in the registers of a warp.

A warp has the sums of 16 rows. Of each eight columns, lane 4g + t has columns 2t and 2t + 1 of row g, then those of row g + 8: this is what
matrix units leave. To store contiguous elements, and to compute epilogues for several of them at once, a warp transposes its sums by way of
shared memory, in rows of 128 bytes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any, Protocol

import numpy as np

from volta_fn.compiler.contractions import Contraction, ResultMap, Walk
from volta_fn.compiler.ir.axes import KernelAnalysis, coefficient
from volta_fn.compiler.ir.kernel import Apply, Load, PendingStores
from volta_fn.runtime.llvm.text import Function, Module, Value, i64, lanes_of, vector_of
from volta_fn.targets.cpu.loops.emit_values import Key, LoopNest, VectorAxis, VectorScope
from volta_fn.targets.cpu.scalars import Number, apply, store
from volta_fn.targets.cpu.scalars.number import BFLOAT16, element
from volta_fn.targets.nvidia.kernel import GLOBAL, KernelFunction, f32, i32
from volta_fn.targets.nvidia.matmul.problem import ROW, AnySchedule, MatrixProduct

_FLOAT32 = np.dtype(np.float32)

#: Rows of sums that a warp has at a time.
_ROWS = 16

#: Columns that a lane computes at once, and the lines in which it does: what these wait for comes together.
LANES, LINES = 4, 2


#: Emits the conditions of a result by the number of its product, its row and its column, where not all within a matrix are results.
Bounds = Callable[[KernelFunction, Value, Value, Value], list[Value]]


class TileSize(Protocol):
    """What results know of a schedule."""

    @property
    def rows(self) -> int:
        """The rows of a tile."""

    @property
    def columns(self) -> int:
        """The columns of a tile."""


class Results(ABC):
    """A way to store the sums of a matrix that is computed in tiles."""

    #: The most columns that are staged at once.
    most_columns = ROW // 4

    def __init__(self, rows: int, columns: int, tile: TileSize, dtype: np.dtype, products: int = 1, bounds: Bounds | None = None) -> None:
        self.rows, self.columns, self._bounds = rows, columns, bounds
        #: The products whose sums are stored together.
        self.products = products
        #: The type of sums.
        self.type = element(dtype)
        #: Columns that are staged at once.
        self.width = min(self.most_columns, tile.columns)
        #: Whether tiles may have rows, or columns, that do not exist.
        self._overhangs = rows % tile.rows != 0, columns % (tile.columns // products) != 0

    def store(self, f: KernelFunction, number: Value, row: Value, column: Value, sums: Sequence[Value], staging: Value) -> None:
        """Store 16 rows of sums from a row and a column on, of the product of this number.

        Sums of a pair of products follow those of the first. `staging` is the offset of 2048 bytes of shared memory that the warp has for
        itself.
        """
        each, half = len(sums) // self.products, self.width // 2 // self.products
        begin = 0
        while begin < each:
            end = begin + min(half, 1 << (each - begin).bit_length() - 1)
            block = [x for first in range(0, len(sums), each) for x in sums[first + begin : first + end]]
            f.synchronise_warp()
            self.stage(f, block, staging)
            f.synchronise_warp()
            self.finish(f, number, row, f.plus(column, i32(2 * begin)), 2 * len(block), staging)
            begin = end

    def stage(self, f: KernelFunction, sums: Sequence[Value], staging: Value) -> None:
        """Write the sums of 32 columns to shared memory.

        Against bank conflicts, the number of a row's unit of 16 bytes is changed by the row's number, by exclusive or.
        """
        g, t = f.divided(f.lane, 4)
        unit = f.times(f.exclusive_or(f.quotient(t, 2), g), 16)
        pair_at = f.plus(unit, f.times(f.remainder(t, 2), 8))
        line = f.plus(staging, f.times(g, ROW))
        for eight in range(len(sums) // 4):
            for half in range(2):
                pair = f.vector(sums[4 * eight + 2 * half :][:2])
                at = f.plus(line, f.exclusive_or(pair_at, 32 * eight), i32(half * 8 * ROW))
                f.store(pair, f.shared(at), 8)

    @abstractmethod
    def finish(self, f: KernelFunction, number: Value, row: Value, column: Value, width: int, staging: Value) -> None:
        """Store what is staged: so many columns, from a row and a column on."""

    def inside(self, f: KernelFunction, number: Value, row: Value, column: Value) -> Value | None:
        """Emit whether a row and a column of a product exist; None if all do."""
        sizes = zip(self._overhangs, (row, column), (self.rows, self.columns), strict=True)
        if self._bounds is None:
            conditions = [f.below(index, size) for overhangs, index, size in sizes if overhangs]
        else:
            conditions = self._bounds(f, number, row, column)
        return reduce(partial(f.binary, "and"), conditions) if conditions else None


class _Elementwise(Results):
    """Results that a function of `lanes` sums stores.

    These are of consecutive columns, or of consecutive rows. It has the sums of some lines, which are `apart` rows apart.
    """

    #: 4, or 1.
    lanes: int
    #: Whether sums of one column are stored at once, of `LANES` rows.
    down = False

    @property
    def lines(self) -> int:
        """How many lines are stored at once: one where a line may not exist."""
        return 1 if self._overhangs[0] or self._bounds is not None or self.down else LINES

    @property
    def apart(self) -> int:
        """Rows that the lanes of a warp store at once."""
        return self.lanes * self.products

    @abstractmethod
    def put(self, f: KernelFunction, number: Value, row: Value, column: Value, sums: Sequence[Value]) -> None:
        """Store the results of a vector of sums, or of one sum, for each line and product.

        `row` is the first line's.
        """

    def finish(self, f: KernelFunction, number: Value, row: Value, column: Value, width: int, staging: Value) -> None:
        """Store what is staged.

        Eight lanes have a row, with four columns each, or all have one, with a column each; of pairs, half as many.
        """
        if self.down:
            self._finish_down(f, number, row, column, width, staging)
            return
        first, place = f.divided(f.lane, ROW // 4 // self.apart)
        unit, element = f.divided(place, LANES // self.lanes)
        x = f.plus(column, f.times(place, self.lanes))
        units = ROW // 16 // self.products

        def staged(line: Value, product: int) -> Value:
            at = f.exclusive_or(f.plus(unit, i32(product * units)), f.remainder(line, 8))
            at = f.plus(f.times(at, 16), f.times(element, 4))
            return f.load(vector_of(self.type, self.lanes), f.shared(f.plus(staging, f.times(line, ROW), at)), 4 * self.lanes)

        def turn(start: Value, _: list[Value]) -> None:
            line = f.plus(start, first)
            y = f.plus(row, line)
            exists = self.inside(f, number, y, x)
            if width < ROW // 4:  # others' columns follow
                staged_too = f.below(f.times(place, self.lanes), width // self.products)
                exists = staged_too if exists is None else f.binary("and", exists, staged_too)
            with f.only_if(exists):
                lines = [f.plus(line, i32(k * self.apart)) for k in range(self.lines)]
                self.put(f, number, y, x, [staged(line, product) for line in lines for product in range(self.products)])

        f.repeat(i32(0), i32(_ROWS), i32(self.lines * self.apart), [], turn)

    def _finish_down(self, f: KernelFunction, number: Value, row: Value, column: Value, width: int, staging: Value) -> None:
        """Store what is staged by columns.

        Four lanes have a column, with four rows each.
        """
        place, quad = f.divided(f.lane, _ROWS // LANES)
        first = f.times(quad, LANES)

        def staged(line: Value, at: Value) -> Value:
            unit, element = f.divided(at, 4)
            at = f.plus(f.times(f.exclusive_or(unit, f.remainder(line, 8)), 16), f.times(element, 4))
            return f.load(self.type, f.shared(f.plus(staging, f.times(line, ROW), at)), 4)

        def turn(start: Value, _: list[Value]) -> None:
            at = f.plus(start, place)
            y, x = f.plus(row, first), f.plus(column, at)
            with f.only_if(self.inside(f, number, y, x)):
                self.put(f, number, y, x, [f.vector([staged(f.plus(first, i32(k)), at) for k in range(LANES)])])

        f.repeat(i32(0), i32(width), i32(32 * LANES // _ROWS), [], turn)


class Stored(_Elementwise):
    """Sums stored at the places of an index map.

    They are rounded to its dtype if that has 16 bits.
    """

    def __init__(self, product: MatrixProduct, tile: TileSize, target: ResultMap, binding: int, bounds: Bounds | None = None) -> None:
        super().__init__(product.m, product.n, tile, product.sum_dtype, bounds=bounds)
        self.down = not target.fours and replace(target, rows=target.columns, columns=target.rows).fours
        self.lanes = LANES if target.fours or self.down else 1
        self._target, self._binding = target, binding

    def put(self, f: KernelFunction, number: Value, row: Value, column: Value, sums: Sequence[Value]) -> None:
        """Convert and store sums."""
        dtype = self._target.dtype
        for k, numbers in enumerate(sums):
            place = _place(f, self._binding, self._target, number, f.plus(row, i32(k * self.lanes)), column)
            f.store(f.rounded(numbers, dtype) if dtype.itemsize == 2 else numbers, place, dtype.itemsize * self.lanes)


def partial_sums(product: MatrixProduct, tile: AnySchedule, binding: int) -> Stored:
    """Return the way to store sums for a second dispatch.

    That one applies the epilogue to a workspace, which is an array [number, rows, columns].
    """
    m, n = product.m, product.n
    target = ResultMap(product.sum_dtype, m * n, 0, Walk((1 << 31,), (m * n,)), Walk((m,), (n,)), Walk((n,), (1,)))
    return Stored(product, tile, target, binding)


def _place(f: KernelFunction, binding: int, target: ResultMap, number: Value, row: Value, column: Value) -> Value:
    """Emit the pointer to a result."""
    total = i64(target.start)
    for index, walk in ((number, target.stack), (row, target.rows), (column, target.columns)):
        total = f.binary("add", total, f.offset(index, walk))
    return f.element(f.bindings[binding], total, target.dtype.itemsize)


# Sums that are only rounded, to 16 bits.


class Rounded(Results):
    """Sums rounded to 16 bits, and stored in units of 16 bytes.

    Places and dtype are those of an index map.
    """

    most_columns = ROW // 2

    def __init__(self, product: MatrixProduct, tile: TileSize, target: ResultMap, binding: int, bounds: Bounds | None = None) -> None:
        super().__init__(product.m, product.n, tile, product.sum_dtype, bounds=bounds)
        self._target, self._binding = target, binding
        self._pack = "bf16x2" if target.dtype == BFLOAT16 else "f16x2"
        #: Whether a unit has eight rows of a column.
        self._down = not _in_eights(target.start, target.columns, (target.rows, target.stack))

    @staticmethod
    def fits(target: ResultMap) -> bool:
        """Return whether every eight columns, or every eight rows, are 16 aligned bytes."""
        return any(
            _in_eights(target.start, along, (across, target.stack))
            for along, across in ((target.columns, target.rows), (target.rows, target.columns))
        )

    def stage(self, f: KernelFunction, sums: Sequence[Value], staging: Value) -> None:
        """Write the rounded sums of 64 columns.

        Sixteen columns at a time are four matrices of eight rows. They are stored in rows of 64 columns, or transposed in rows of 16 rows:
        then half a row changes places with the other by the number of the column, against bank conflicts.
        """
        low, high, quad = f.remainder(f.lane, 8), f.quotient(f.lane, 16), f.remainder(f.quotient(f.lane, 8), 2)
        if self._down:
            column, half = f.plus(low, f.times(high, 8)), f.exclusive_or(quad, f.quotient(low, 4))
            put = f.plus(f.shared_base(), staging, f.times(column, 2 * _ROWS), f.times(half, 16))
        else:
            put, unit = f.plus(f.shared_base(), staging, f.times(f.plus(low, f.times(quad, 8)), ROW)), f.exclusive_or(high, low)
        for pair in range(len(sums) // 8):
            words = []
            for at in range(8 * pair, 8 * pair + 8, 2):
                words += f.ptx(f"cvt.rn.{self._pack}.f32 $0, $1, $2;", sums[at + 1], sums[at], results=["i32"])
            to = f.plus(put, i32(pair * 32 * _ROWS) if self._down else f.times(f.exclusive_or(unit, 2 * pair), 16))
            transposes = ".trans" if self._down else ""
            f.ptx(f"stmatrix.sync.aligned.m8n8.x4{transposes}.shared.b16 [$0], {{$1, $2, $3, $4}};", to, *words)

    def finish(self, f: KernelFunction, number: Value, row: Value, column: Value, width: int, staging: Value) -> None:
        """Store what is staged.

        A lane has eight columns of a row, or eight rows of a column.
        """
        units = 2 if self._down else width // 8
        first, unit = f.divided(f.lane, units)
        for turn in range((width if self._down else _ROWS) * units // 32):
            line = f.plus(first, i32(32 // units * turn))
            if self._down:
                half = f.exclusive_or(unit, f.remainder(f.quotient(line, 4), 2))
                place = f.plus(f.times(line, 2 * _ROWS), f.times(half, 16))
                y, x = f.plus(row, f.times(unit, 8)), f.plus(column, line)
            else:
                place = f.plus(f.times(line, ROW), f.times(f.exclusive_or(unit, f.remainder(line, 8)), 16))
                y, x = f.plus(row, line), f.plus(column, f.times(unit, 8))
            words = f.load("<4 x i32>", f.shared(f.plus(staging, place)), 16)
            with f.only_if(self.inside(f, number, y, x)):
                f.store(words, _place(f, self._binding, self._target, number, y, x), 16)


def _in_eights(start: int, along: Walk, others: Sequence[Walk]) -> bool:
    """Return whether aligned groups of eight along an index are aligned in memory."""
    if not along.sizes or along.strides[-1] != 1 or along.sizes[-1] % 8 or start % 8:
        return False
    return all(stride % 8 == 0 for stride in (*along.strides[:-1], *[stride for walk in others for stride in walk.strides]))


# Epilogues: a kernel's operations on the sums, in registers.


#: Operations on bfloat16 that are one instruction for two numbers. Rounded once, their results are those of float32 rounded again: with
#: more than twice as many digits, the first rounding does not matter (Figueroa 1995).
_NARROW = {"add": "fadd", "sub": "fsub", "mul": "fmul"}


def operation(f: Function, op: str, operands: Sequence[Number], dtype: np.dtype, params: Mapping[str, Any]) -> Number:
    """Emit an elementwise operation, which rounds to bfloat16 by an instruction.

    Numbers of bfloat16 are float32 here; LLVM leaves out conversions between operations on narrow ones.
    """
    if dtype != BFLOAT16 or op in ("select_n", "bitcast_convert_type") or operands[0].dtype.kind in "iub":
        return apply(f, op, operands, dtype, params)
    if op in _NARROW:
        return _widened(f, f.binary(_NARROW[op], *[_narrowed(f, x) for x in operands]))
    if op in _APPROXIMATE:
        return _widened(f, _narrowed(f, Number(_FLOAT32, (_APPROXIMATE[op](f, operands[0].value),))))
    return _widened(f, _narrowed(f, apply(f, op, operands, _FLOAT32, params)))


#: Below this a polynomial of the fifth degree has the relative error 2⁻²⁸; from there on 1 - 2 / (1 + exp(2x)) has 2⁻¹⁸.
_SMALL = 0.0625


def _tanh(f: Function, x: Value) -> Value:
    """Emit tanh of float32 numbers for results that are rounded to bfloat16.

    Exponentials and reciprocals are those of instructions that approximate them.
    """
    type_, lanes = x.type, lanes_of(x.type)
    suffix = "f32" if lanes == 1 else f"v{lanes}f32"

    def number(value: float) -> Value:
        return f.splat(f32(value), lanes)

    def fma(a: Value, b: Value, c: Value) -> Value:
        return f.intrinsic(f"llvm.fma.{suffix}", type_, a, b, c)

    exponential = f.intrinsic(f"llvm.exp2.{suffix}", type_, f.binary("fmul", x, number(2 * math.log2(math.e))))
    reciprocal = f.binary("fdiv afn arcp", number(1.0), f.binary("fadd", exponential, number(1.0)))
    square = f.binary("fmul", x, x)
    small = f.binary("fmul", x, fma(square, fma(square, number(2 / 15), number(-1 / 3)), number(1.0)))  # -0.0 for -0.0
    is_small = f.compare("fcmp olt", f.intrinsic(f"llvm.fabs.{suffix}", type_, x), number(_SMALL))
    return f.select(is_small, small, fma(reciprocal, number(-2.0), number(1.0)))


#: Above this, logistic(x) is 1 in float32.
_LARGE = 80.0


def _logistic(f: Function, x: Value) -> Value:
    """Emit the logistic function of float32 for results in bfloat16.

    It is exp(x) / (1 + exp(x)), whose relative error is 2⁻²¹ for negative numbers, too.
    """
    type_, lanes = x.type, lanes_of(x.type)
    suffix = "f32" if lanes == 1 else f"v{lanes}f32"
    bounded = f.intrinsic(f"llvm.minimum.{suffix}", type_, x, f.splat(f32(_LARGE), lanes))  # NaN stays
    exponential = f.intrinsic(f"llvm.exp2.{suffix}", type_, f.binary("fmul", bounded, f.splat(f32(math.log2(math.e)), lanes)))
    sum_ = f.binary("fadd", exponential, f.splat(f32(1.0), lanes))
    return f.binary("fmul", exponential, f.binary("fdiv afn arcp", f.splat(f32(1.0), lanes), sum_))


#: Functions of float32 that are exact enough for bfloat16.
_APPROXIMATE = {"logistic": _logistic, "tanh": _tanh}


def _narrowed(f: Function, number: Number) -> Value:
    """Emit numbers of float32 rounded to bfloat16."""
    return f.cast("fptrunc", number.value, vector_of("bfloat", number.lanes))


def _widened(f: Function, narrow: Value) -> Number:
    """Emit narrow numbers as they are computed with."""
    return Number(BFLOAT16, (f.cast("fpext", narrow, vector_of("float", lanes_of(narrow.type))),))


def put(f: Function, number: Number, pointer: Value) -> None:
    """Emit a store of numbers, in bfloat16 as they are rounded already."""
    if number.dtype != BFLOAT16:
        store(f, number, pointer)
        return
    f.store(f.cast("bitcast", _narrowed(f, number), vector_of("i16", number.lanes)), pointer, 2)


class EpilogueScope(VectorScope):
    """A scope with aligned pointers, which rounds to bfloat16 by an instruction."""

    def emit(self, node_number: int) -> Number:
        """Emit a node."""
        node = self.analysis.kernel.nodes[node_number]
        if not isinstance(node, Apply) or node.dtype != BFLOAT16:
            return super().emit(node_number)
        is_vector = self.is_vector(self.analysis.depends[node_number])
        operands = [self.spread(i) if is_vector else self.value(i) for i in node.operands]
        return operation(self.nest.f, node.op, operands, node.dtype, dict(node.params))

    def _loaded(self, node_number: int, node: Load, lanes: int) -> Number:
        axis = self.vector_axis
        step = 1 if lanes == 1 or axis is None else coefficient(self.nest.analysis.load_offsets[node_number], axis.axis)
        if node.dtype != BFLOAT16 or node.mask or step != 1:
            return super()._loaded(node_number, node, lanes)
        f = self.nest.f
        words = f.load(vector_of("i16", lanes), self.pointer(("load", node_number)), 2)
        return _widened(f, f.cast("bitcast", words, vector_of("bfloat", lanes)))

    def store(self, index: int) -> None:
        """Emit a store."""
        store = self.analysis.kernel.stores[index]
        if self.analysis.kernel.nodes[store.value].dtype != BFLOAT16:
            super().store(index)
            return
        self.nest.pending.discard(index)
        put(self.nest.f, self.spread(store.value), self.pointer(("store", index)))

    def _pointer(self, key: Key) -> Value:
        pointer = super()._pointer(key)
        _, offset, size = self._memory(*key)
        axis = self.vector_axis
        if axis is None or coefficient(offset, axis.axis) != 1:
            return pointer
        others = [offset.offset, *[c for a, c in offset.terms if a != axis.axis]]
        if not any(c % LANES for c in others):
            self.nest.f.module.declare("llvm.assume", "declare void @llvm.assume(i1)")
            self.nest.f.do(f'call void @llvm.assume(i1 true) [ "align"({pointer}, i64 {LANES * size}) ]')
        return pointer


class Epilogue(_Elementwise):
    """The epilogue of a contraction.

    `inputs` maps the inputs of the contraction's kernel to bindings; `outputs` are the bindings of its outputs.
    """

    _NAME = "epilogue"

    def __init__(self, product: Contraction, tile: AnySchedule, inputs: Mapping[int, int], outputs: Sequence[int]) -> None:
        self._dtype = product.kernel.nodes[product.total].dtype
        sizes = product.size(product.rows), product.size(product.columns)
        super().__init__(*sizes, tile, self._dtype, len(product.totals))
        kernel, numbers = product.epilogue()
        self._product, self._inputs, self._outputs = product, [inputs[n] for n in numbers], outputs
        self._analysis = KernelAnalysis(kernel)
        self._totals = [n for n, node in enumerate(kernel.nodes) if isinstance(node, Load) and node.input < self.products]
        self._axis = product.columns[-1]
        self.lanes = LANES if self._is_contiguous(self._axis) else 1
        if self.lanes == 1 and self.products == 1 and self._is_contiguous(product.rows[-1]):
            self.lanes, self._axis, self.down = LANES, product.rows[-1], True

    def _is_contiguous(self, axis: int) -> bool:
        """Return whether four iterations along an axis can be computed as a vector."""
        analysis = self._analysis
        kernel = analysis.kernel
        if kernel.sizes[axis] % LANES:
            return False
        stores = all(coefficient(offset, axis) == 1 for offset in analysis.store_offsets)
        loads = all(coefficient(offset, axis) in (0, 1) for n, offset in analysis.load_offsets.items() if n not in self._totals)
        conditions = [condition for n in range(len(kernel.nodes)) for condition in analysis.ranges(n)]
        return stores and loads and not any(axis in condition.value.axes for condition in conditions)

    def _define(self, module: Module) -> None:
        """Define the function of an element, or of a vector, of each line."""
        pointers = [Value(f"{GLOBAL} noalias align 16", f"%x{k}") for k in (*self._inputs, *self._outputs)]
        number, row, column = indices = [Value("i32", name) for name in ("%number", "%row", "%column")]
        sums = [Value(vector_of(self.type, self.lanes), f"%sums{k}") for k in range(self.lines * self.products)]
        g = Function(module, self._NAME, [*pointers, *indices, *sums], "internal void", "alwaysinline nounwind")
        memory = {k: g.cast("addrspacecast", Value(GLOBAL, f"%x{k}"), "ptr") for k in (*self._inputs, *self._outputs)}
        for k in range(self.lines):
            line = g.let("i32", f"add {row}, {k * self.apart}") if k else row
            self._store_line(g, memory, (number, line, column), sums[k * self.products : (k + 1) * self.products])
        g.finish()

    def _store_line(self, g: Function, memory: Mapping[int, Value], indices: tuple[Value, Value, Value], sums: Sequence[Value]) -> None:
        """Emit the results of a line from the sums of each product."""
        product, analysis = self._product, self._analysis
        sizes, axes = analysis.kernel.sizes, dict[int, Value]()
        for names, index in zip((product.batch, product.rows, product.columns), indices, strict=True):
            axes |= zip(names, _digits(g, index, [sizes[a] for a in names]), strict=True)
        inputs = [*[Value("ptr", "null")] * self.products, *[memory[k] for k in self._inputs]]
        nest = LoopNest(g, analysis, inputs, [memory[k] for k in self._outputs], {}, set(), PendingStores(analysis.kernel))
        scope = EpilogueScope(nest, (), axes, VectorAxis(self._axis, LANES) if self.lanes == LANES else None)
        kernel = self._analysis.kernel
        for total in self._totals:
            load = kernel.nodes[total]
            assert isinstance(load, Load)
            scope.values[total] = Number(self._dtype, (sums[load.input],))
        for output in range(len(self._outputs)):
            scope.store(output)

    def put(self, f: KernelFunction, number: Value, row: Value, column: Value, sums: Sequence[Value]) -> None:
        """Call the epilogue's function."""
        f.module.define(self._NAME, lambda: self._define(f.module))
        f.run(self._NAME, *[f.bindings[k] for k in (*self._inputs, *self._outputs)], number, row, column, *sums)


def _digits(g: Function, index: Value, sizes: Sequence[int]) -> list[Value]:
    """Split an index of 32 bits into its digits, of 64 bits."""
    digits: list[Value] = []
    for size in reversed(sizes[1:]):
        digits.append(g.let("i32", f"urem {index}, {size}"))
        index = g.let("i32", f"udiv {index}, {size}")
    return [g.cast("zext", digit, "i64") for digit in ([index, *reversed(digits)] if sizes else [])]
