"""Products of few rows: the choice of kernels, and products of one row together.

Matrices are of floats, or of quantised weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.contractions import Operand, Problem, contraction_of, problem_of
from volta_fn.compiler.ir.axes import KernelAnalysis
from volta_fn.compiler.ir.index import row_major
from volta_fn.compiler.ir.kernel import (
    Apply,
    DefUse,
    FusedProgram,
    Kernel,
    KernelCall,
    PendingStores,
    ProgramNode,
    Reduce,
    interpret,
    writes,
)
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Equation, Var
from volta_fn.core.primitive import PRIMITIVES, Primitive, evaluation_of
from volta_fn.primitives.contraction import product_dtype
from volta_fn.primitives.quantized import QuantizedLayout
from volta_fn.runtime.llvm.text import Function, Value
from volta_fn.targets.cpu.loops.emit_values import LoopNest
from volta_fn.targets.cpu.scalars import Number
from volta_fn.targets.cpu.scalars.number import element
from volta_fn.targets.nvidia.kernel import GLOBAL, ZERO, i32, kernel_dispatch
from volta_fn.targets.nvidia.matmul import DTYPES, OPERATIONS
from volta_fn.targets.nvidia.matmul.problem import HALVES
from volta_fn.targets.nvidia.matmul.results import EpilogueScope
from volta_fn.targets.nvidia.rows.kernel import TERMS, Copied, Part, RowsKernel, Source, WeightLayout, choose
from volta_fn.targets.wgsl.routine import Routine

# The choice of kernels.

#: The most rows of x: two products of matrix units for each of the matrix's.
MOST_ROWS = 16

#: The fewest outputs, and numbers of a row, for which the kernels are faster than shaders.
_FEWEST = 8

#: The most bytes of results, and of scales, which 32 bits number.
_MOST_BYTES = (1 << 31) - 1

_FLOAT32 = np.dtype(np.float32)


class RowsProduct(NamedTuple):
    """A product of few rows by a matrix whose rows are contiguous."""

    rows: int
    outputs: int
    layout: WeightLayout
    #: The dtypes of x and of the results.
    x_dtype: np.dtype
    dtype: np.dtype
    #: Numbers of x and bytes of the matrix before the first row, and numbers from one row of x to the next.
    x_start: int = 0
    x_stride: int = 0
    start: int = 0
    #: Whether the operands are the matrix and x.
    swapped: bool = False

    @property
    def arrays(self) -> int:
        """The arrays of the matrix: numbers or codes, scales, offsets."""
        return 1 + (self.layout.quantized is not None) + self.layout.has_offsets


def quantized_product(avals: Sequence[ShapedArray], params: dict[str, Any], device: TargetCapabilities) -> RowsProduct | None:
    """Return a product with a quantised matrix as one of few rows.

    None if there is no kernel for it.
    """
    x, data, *by_group = avals
    layout: QuantizedLayout = params["layout"]
    if not device.matrix_units or params["transposed"] or x.ndim != 2 or x.dtype not in (*HALVES, _FLOAT32):
        return None
    if len({a.dtype for a in by_group}) != 1 or by_group[0].dtype not in (*HALVES, _FLOAT32):
        return None
    inside = np.dtype(dtypes.bfloat16) if x.dtype == _FLOAT32 else x.dtype
    weights = WeightLayout(inside, layout.size, layout.width, layout, by_group[0].dtype, len(by_group) == 2)
    if layout.scheme == "fp8" and device.matrix_units != "wgmma":  # conversions need compute capability 8.9
        return None
    return _checked(RowsProduct(x.shape[0], data.shape[0], weights, x.dtype, x.dtype, x_stride=layout.size), device)


def float_product(avals: Sequence[ShapedArray], params: dict[str, Any], device: TargetCapabilities) -> RowsProduct | None:
    """Return a product of floats as one of few rows.

    None if there is no kernel for it.
    """
    lhs, rhs = avals
    dtype = product_dtype("dot_general", lhs, rhs, params.get("preferred_element_type"))
    if not device.matrix_units or lhs.dtype != rhs.dtype or lhs.dtype not in HALVES or dtype not in (lhs.dtype, _FLOAT32):
        return None
    return _product(problem_of(lhs.shape, rhs.shape, params["dimension_numbers"], (lhs.dtype, rhs.dtype, dtype)), dtype, device)


def computes_product(kernel: Kernel, device: TargetCapabilities) -> bool:
    """Return whether a kernel is a product of few rows of floats.

    As an equation it has a better kernel.
    """
    contraction = contraction_of(kernel)
    if contraction is None or not device.matrix_units:
        return False
    problem = contraction.problem()
    is_float = problem.lhs.dtype == problem.rhs.dtype and problem.lhs.dtype in HALVES and problem.dtype == _FLOAT32
    return is_float and problem.m > 1 and _product(problem, problem.lhs.dtype, device) is not None


def _product(problem: Problem, dtype: np.dtype, device: TargetCapabilities) -> RowsProduct | None:
    """Return a product of floats with results of a dtype as one of few rows."""
    if problem.batch != 1:
        return None
    swapped = problem.n == 1  # results of several columns would lie apart
    x, matrix = (problem.rhs, problem.lhs) if swapped else (problem.lhs, problem.rhs)
    if not all(_is_row_major(operand) for operand in (x, matrix)):
        return None
    size = x.dtype.itemsize
    layout = WeightLayout(x.dtype, problem.k, (matrix.outer.stride or 0) * size, None)
    starts = x.start, x.outer.stride or 0, matrix.start * size
    return _checked(RowsProduct(x.outer.size, matrix.outer.size, layout, x.dtype, dtype, *starts, swapped), device)


def _is_row_major(operand: Operand) -> bool:
    """Return whether the terms of a row are contiguous, and rows equally far apart."""
    return operand.inner.sizes[1:] == () and operand.inner.strides == (1,) and operand.outer.stride is not None


def _checked(product: RowsProduct, device: TargetCapabilities) -> RowsProduct | None:
    layout = product.layout
    if product.outputs * max(product.rows * product.dtype.itemsize, layout.groups * _FLOAT32.itemsize) > _MOST_BYTES:
        return None
    if not 0 < product.rows <= MOST_ROWS or product.outputs < _FEWEST or not layout.is_computable or product.start % layout.unit:
        return None
    shared = rows_kernel([product], device).header.shared
    return product if shared <= device.block_memory else None


def rows_kernel(
    products: Sequence[RowsProduct], device: TargetCapabilities, source: Source | None = None, operands: int = 1, more: int = 0
) -> RowsKernel:
    """Return the kernel of products with the same x.

    Its bindings are x, or `operands` arrays from which a source computes it, the arrays of each matrix, the results, and `more` results
    of the source.
    """
    first, binding = products[0], operands
    results = operands + sum([product.arrays for product in products])
    parts = []
    for number, product in enumerate(products):
        scales = binding + 1 if product.arrays > 1 else None
        offsets = binding + 2 if product.arrays > 2 else None
        parts.append(Part(product.outputs, product.start, binding, scales, offsets, results + number))
        binding += product.arrays
    source = source or Copied(0, first.x_dtype, first.layout.size, first.x_start, first.x_stride)
    schedule = choose(first.layout, sum([product.outputs for product in products]), first.rows * source.terms, device.processors)
    return RowsKernel(first.layout, parts, first.rows, source, first.dtype, results + len(products) + more, schedule)


def routine(product: RowsProduct, device: TargetCapabilities) -> Routine:
    """Return the routine of a product."""
    kernel, results = rows_kernel([product], device), 1 + product.arrays
    buffers = (1, 0, 2) if product.swapped else tuple(range(results + 1))
    return Routine((kernel_dispatch(kernel.header, buffers, 1, kernel.text(), kernel.blocks),))


#: Products of few rows by their primitives.
PRODUCTS = {"quantized_dot": quantized_product, "dot_general": float_product}


def routine_of(name: str, avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine | None:
    """Return the routine of an equation; None if there is none.

    `name` is that of the equation's primitive.
    """
    product = PRODUCTS[name](avals, params, device)
    return None if product is None else routine(product, device)


ROUTINES = {name: partial(routine_of, name) for name in PRODUCTS}


# Products with the same row as one dispatch.
#
# The kernel that computes x is part of it.
#
# A step of a decoder multiplies a norm by the matrices of queries, keys and values, and another one by those of a gate. Each dispatch that
# waits for another one takes a microsecond or two, in which a GPU reads megabytes.

# Rows of x that a kernel computes, such as a norm.
#
# Every block computes the row by itself.
#
# That takes less time than another dispatch, which blocks would wait for. Loads of the matrix begin before it.

#: The most numbers of x and nodes of the kernel, all of which every block computes. With a gated activation of 1,536 numbers before it, a
#: product takes 3.6 µs on an H200, as two dispatches 1.1 and 1.5; with one of 4,864 numbers 9.0.
_NUMBERS, _NODES = 1024, 64

#: Bytes of shared memory for the sums of the warps, for each reduction.
_SUMS = 4 * 32

#: Codes of a quantised embedding are among them.
_DTYPES = DTYPES | {np.dtype(np.int8), np.dtype(np.uint8)}


def computes_row(kernel: Kernel, store: int) -> bool:
    """Return whether blocks can compute a kernel.

    The store of this number is the row x.
    """
    count = math.prod(kernel.sizes)
    outer = math.prod(kernel.sizes[: kernel.parallel])
    reductions = [node for node in kernel.nodes if isinstance(node, Reduce)]
    if not 0 < count <= _NUMBERS or len(kernel.nodes) > _NODES or (reductions and outer > 1):
        return False
    if any(math.prod(each.shape) != count for each in kernel.stores) or kernel.outputs[store].dtype.itemsize not in TERMS:
        return False
    for node in kernel.nodes:
        if node.dtype not in _DTYPES or (isinstance(node, Apply) and node.op not in OPERATIONS):
            return False
        if isinstance(node, Reduce) and (node.op != "reduce_sum" or node.dtype != _FLOAT32):
            return False
    return kernel.outputs[store].dtype.kind in "fV"


class Computed(Source):
    """A row that a kernel computes.

    `inputs` and `outputs` are the bindings of its arrays; that of the row itself is None where nothing else reads it.
    """

    def __init__(self, kernel: Kernel, store: int, inputs: Sequence[int], outputs: Mapping[int, int]) -> None:
        self._kernel, self._row, self._inputs, self._outputs = kernel, store, inputs, outputs
        self._analysis = KernelAnalysis(kernel)
        self._reductions = [n for n, node in enumerate(kernel.nodes) if isinstance(node, Reduce)]
        self.terms = TERMS[kernel.outputs[store].dtype.itemsize]
        self.workspace = _SUMS * len(self._reductions)

    def put(self, kernel: RowsKernel) -> None:
        """Compute the row, and store it with zeros beyond its end.

        The first block stores the kernel's other results.
        """
        f, count = kernel.f, math.prod(self._kernel.sizes)
        reduced: dict[int, Value] = {}
        for number, node in enumerate(self._reductions):
            reduce = self._kernel.nodes[node]
            assert isinstance(reduce, Reduce)
            reduced[node] = self._sum(kernel, number, reduce.operand, dict(reduced), count)
        stores = self._kernel.stores

        def store(index: Value, value: Value) -> None:
            kernel.put_number(i32(0), self._place(kernel, self._row, index), value)

        shares = kernel.unrolled(count)
        if shares is None:
            kernel.each(count, lambda index: store(index, self._value(kernel, stores[self._row].value, reduced, index)))
        else:
            values = [self._value(kernel, stores[self._row].value, reduced, index) for index, _ in shares]
            for (index, exists), value in zip(shares, values, strict=True):
                with f.only_if(exists):
                    store(index, value)
        if kernel.numbers > count:
            kernel.each(kernel.numbers - count, lambda index: kernel.put_number(i32(0), f.plus(index, i32(count)), ZERO))
        if self._outputs:

            def others(index: Value) -> None:
                for store, binding in self._outputs.items():
                    self._store(kernel, store, binding, reduced, index)

            with f.only_if(f.equals(kernel.block, 0)):
                kernel.each(count, others)

    def _place(self, kernel: RowsKernel, store: int, index: Value) -> Value:
        """Emit the place of an iteration's element in a result."""
        f, at = kernel.f, row_major(self._kernel.stores[store].index, self._kernel.stores[store].shape)
        digits = f.coordinates(index, self._kernel.sizes)
        return f.plus(i32(at.offset), *[f.times(digits[axis], step) for axis, step in at.terms])

    def _store(self, kernel: RowsKernel, store: int, binding: int, reduced: Mapping[int, Value], index: Value) -> None:
        f, dtype = kernel.f, self._kernel.outputs[store].dtype
        value = self._value(kernel, self._kernel.stores[store].value, reduced, index)
        if dtype.itemsize == 2:
            value = f.rounded(value, dtype)
        elif value.type == "i1":
            value = f.cast("zext", value, "i8")
        at = f.widened_index(f.times(self._place(kernel, store, index), dtype.itemsize))
        f.store(value, f.further(f.bindings[binding], at), dtype.itemsize)

    def _sum(self, kernel: RowsKernel, number: int, operand: int, reduced: Mapping[int, Value], count: int) -> Value:
        """Emit the sum of a node over the row, which all threads get."""
        f = kernel.f

        def add(index: Value, totals: list[Value]) -> list[Value]:
            return [f.fadd(totals[0], self._value(kernel, operand, reduced, index))]

        def part() -> list[Value]:
            return f.repeat(f.thread, i32(count), i32(kernel.threads), [ZERO], add)

        shares = kernel.unrolled(count)
        if shares is None:
            (total,) = part()
        else:
            values = [self._value(kernel, operand, reduced, index) for index, _ in shares]
            total = ZERO
            for (_, exists), value in zip(shares, values, strict=True):
                total = f.fadd(total, value if exists is None else f.select(exists, value, ZERO))
        total = f.reduce_lanes(f.fadd, total)
        begin = kernel.x_bytes + _SUMS * number
        with f.only_if(f.equals(f.lane, 0)):
            f.store(total, f.shared(f.plus(i32(begin), f.times(f.warp, 4))), 4)
        f.synchronise()
        total = f.load("float", f.shared(i32(begin)), 4)
        for warp in range(1, kernel.schedule.warps):
            total = f.fadd(total, f.load("float", f.shared(i32(begin + 4 * warp)), 4))
        return total

    def _value(self, kernel: RowsKernel, node: int, reduced: Mapping[int, Value], index: Value) -> Value:
        """Emit the value of a node for an iteration; 16-bit floats are of 32 bits."""
        f, name = kernel.f, f"prologue{node}.{len(reduced)}"
        type_ = element(self._kernel.nodes[node].dtype)
        f.module.define(name, lambda: self._define(kernel, name, node, type_, reduced))
        arguments = [f.bindings[binding] for binding in self._inputs]
        return f.call(name, type_, *arguments, *reduced.values(), index)

    def _define(self, kernel: RowsKernel, name: str, node: int, type_: str, reduced: Mapping[int, Value]) -> None:
        """Define the function of a node's value."""
        pointers = [Value(f"{GLOBAL} noalias align 16", f"%x{k}") for k in range(len(self._inputs))]
        sums = [Value("float", f"%sum{n}") for n in reduced]
        index = Value("i32", "%index")
        g = Function(kernel.f.module, name, [*pointers, *sums, index], f"internal {type_}", "alwaysinline nounwind")
        inputs = [g.cast("addrspacecast", Value(GLOBAL, pointer.name), "ptr") for pointer in pointers]
        digits = g.coordinates(g.cast("zext", index, "i64"), self._kernel.sizes)
        nest = LoopNest(g, self._analysis, inputs, [], {}, set(), PendingStores(self._kernel))
        scope = EpilogueScope(nest, (), dict(enumerate(digits)), None)
        for n, value in zip(reduced, sums, strict=True):
            scope.values[n] = Number(_FLOAT32, (value,))
        g.finish(scope.value(node).value)


# Products of one row.


class Prologue(NamedTuple):
    """The kernel that computes x.

    The row is the store of a number, and something else reads the stores of others.
    """

    kernel: Kernel
    row: int
    stored: tuple[int, ...]


class ProductEquation(NamedTuple):
    """An equation of a product, without its variables."""

    primitive: str
    params: tuple[tuple[str, Any], ...]
    x: ShapedArray
    result: ShapedArray
    arrays: int


# The primitive: its operands are x, or those of the kernel that computes it, and then the arrays of each matrix. Its results are those of
# the kernel that something else reads, and then those of the products.


def _abstract(*avals: ShapedArray, prologue: Prologue | None, products: tuple[ProductEquation, ...]) -> list[ShapedArray]:
    before = []
    if prologue is not None:
        before = [ShapedArray(prologue.kernel.stores[k].shape, prologue.kernel.outputs[k].dtype) for k in prologue.stored]
    return [*before, *[product.result for product in products]]


def _evaluate(*arrays: np.ndarray, prologue: Prologue | None, products: tuple[ProductEquation, ...]) -> list[np.ndarray]:
    results, at = [], 1
    x = arrays[0]
    if prologue is not None:
        at = len(prologue.kernel.inputs)
        outputs = interpret(prologue.kernel, *arrays[:at])
        x, results = outputs[prologue.row], [outputs[k] for k in prologue.stored]
    for product in products:
        evaluate = evaluation_of(PRIMITIVES[product.primitive])
        assert evaluate is not None, "products are no programs"
        results.append(evaluate(x.reshape(product.x.shape), *arrays[at : at + product.arrays], **dict(product.params)))
        at += product.arrays
    return results


products_of_row_p = Primitive("products_of_row", _abstract, evaluate=_evaluate, multiple_results=True, listed=False)


def products_of_row(avals: Sequence[ShapedArray], params: dict[str, Any], device: TargetCapabilities) -> Routine:
    """Return the routine of products of one row."""
    prologue, count = params["prologue"], 1
    if prologue is not None:
        count = len(prologue.kernel.inputs)
    products, at = [], count
    for product in params["products"]:
        matrix = PRODUCTS[product.primitive]((product.x, *avals[at : at + product.arrays]), dict(product.params), device)
        assert matrix is not None, "it was one before"
        products.append(matrix)
        at += product.arrays
    written = [] if prologue is None else list(prologue.stored)
    total = at + len(written) + len(products)
    source = None
    if prologue is not None:
        # Results of the prologue come last among the bindings, as those of the products follow the matrices.
        others = {store: at + len(products) + k for k, store in enumerate(written)}
        source = Computed(prologue.kernel, prologue.row, range(count), others)
    kernel = rows_kernel(products, device, source, count, len(written))
    buffers = (*range(at), *range(at + len(written), total), *range(at, at + len(written)))
    return Routine((kernel_dispatch(kernel.header, buffers, total - at, kernel.text(), kernel.blocks),))


# The pass.


def fuse_products_of_rows(program: FusedProgram, device: TargetCapabilities) -> FusedProgram:
    """Fuse products with the same row, and with the kernel that computes it."""
    index = DefUse(program.nodes, program.roots)
    outputs = {program.root(v) for v in program.outputs if isinstance(v, Var)}
    groups: dict[Any, list[int]] = {}
    matrices: dict[int, RowsProduct] = {}
    for number, node in enumerate(program.nodes):
        matrix = _row_product(node, device)
        if matrix is None or not isinstance(node, Equation) or not isinstance(node.invars[0], Var):
            continue
        key = program.root(node.invars[0]), matrix._replace(outputs=0, start=0)
        first = groups.setdefault(key, [])
        if not first or all(index.position(program.root(v)) < first[0] for v in node.invars if isinstance(v, Var)):
            first.append(number)
            matrices[number] = matrix
    nodes: list[ProgramNode | None] = [*program.nodes]
    for (x, *_), numbers in groups.items():
        prologue = _prologue(program, index, outputs, x, numbers) if matrices[numbers[0]].rows == 1 else None
        if len(numbers) < 2 and prologue is None:
            continue
        node = _fused(program, index, x, numbers, prologue, outputs)
        kernel = rows_kernel([matrices[n] for n in numbers], device)
        buffers = len(node.invars) + len(node.outvars)
        if kernel.header.shared + 4096 > device.block_memory or buffers > device.kernel_buffers:
            continue
        for number in numbers:
            nodes[number] = None
        if prologue is not None:
            nodes[prologue] = None
        nodes[numbers[0]] = node
    return program._replace(nodes=tuple([node for node in nodes if node is not None]))


def _row_product(node: ProgramNode, device: TargetCapabilities) -> RowsProduct | None:
    """Return a node as the product of few rows by a matrix.

    None for others, and where the matrix is the left operand.
    """
    if not isinstance(node, Equation) or node.primitive.name not in PRODUCTS or not all(isinstance(v, Var) for v in node.invars):
        return None
    product = PRODUCTS[node.primitive.name]([v.aval for v in node.invars], node.params, device)
    return product if product is not None and not product.swapped else None


def _prologue(program: FusedProgram, index: DefUse, outputs: set[Var], x: Var, numbers: Sequence[int]) -> int | None:
    """Return the number of the kernel that computes x.

    None if products cannot compute it instead.
    """
    position = index.position(x)
    node = program.nodes[position] if position >= 0 else None
    if not isinstance(node, KernelCall) or x in outputs or index.consumers.get(x) != [*numbers]:
        return None
    if not computes_row(node.kernel, node.results.index(x)):
        return None
    # Whatever else reads its results comes after the first of the products.
    others = [n for v in node.results if v is not x for n in index.consumers.get(v, [])]
    return position if all(n > numbers[0] for n in others) else None


def _fused(program: FusedProgram, index: DefUse, x: Var, numbers: Sequence[int], prologue: int | None, outputs: set[Var]) -> Equation:
    """Return the equation of products and the kernel before them."""
    equations = [eqn for n in numbers if isinstance(eqn := program.nodes[n], Equation)]
    products = tuple([
        ProductEquation(eqn.primitive.name, tuple(sorted(eqn.params.items())), eqn.invars[0].aval, eqn.outvars[0].aval, len(eqn.invars) - 1)
        for eqn in equations
    ])  # fmt: skip
    operands, results, before = [equations[0].invars[0]], list[Var](), None
    if prologue is not None:
        call = program.nodes[prologue]
        assert isinstance(call, KernelCall)
        stored = [k for k, v in enumerate(call.results) if v is not x and (v in outputs or v in index.consumers)]
        before = Prologue(call.kernel, call.results.index(x), tuple(stored))
        operands, results = [*call.operands], [call.results[k] for k in stored]
    operands += [v for eqn in equations for v in eqn.invars[1:]]
    results += [v for eqn in equations for v in writes(eqn)]
    params = {"prologue": before, "products": products}
    return Equation(products_of_row_p, operands, results, params, equations[0].position)
