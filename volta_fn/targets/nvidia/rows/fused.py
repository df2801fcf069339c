"""Products with the same row x as one dispatch.

The kernel that computes x is part of it.

A step of a decoder multiplies a norm by the matrices of queries, keys and values, and another one by those of a gate. Each dispatch that
waits for another one takes a microsecond or two, in which a GPU reads megabytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.compiler.ir.program import DefUse, FusedProgram, KernelCall, ProgramNode, writes
from volta_fn.compiler.ir.specification import interpret
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Equation, Var
from volta_fn.core.primitive import PRIMITIVES, Primitive, evaluation_of
from volta_fn.targets.nvidia.kernel import kernel_dispatch
from volta_fn.targets.nvidia.rows.contract import PRODUCTS, RowsProduct, rows_kernel
from volta_fn.targets.nvidia.rows.prologue import Computed, computes_row
from volta_fn.targets.wgsl.routine import Routine


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
