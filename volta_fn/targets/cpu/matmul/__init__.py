"""Matrix products as machine code, in the manner of GotoBLAS and BLIS.

In the order in which to read: `micro_kernel` (the dtype of sums, pairs of bfloat16 and quadruples of bytes, which instructions multiply,
and the innermost loop, over a register tile), `blocking` (register tiles, cache blocks, tasks, and indices in generated code), `packing`
(how operands are read and packed into panels), `epilogues` (from sums to results, and a tile with its epilogue), `gemm` (the loops around
tiles); without packing, `gemv` (products of few rows). Here follows the choice among them for equations and for kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from volta_fn.compiler.contractions import Contraction, Operand, Problem, contraction_of, merged, problem_of, vector_product_of
from volta_fn.compiler.ir.index import row_major
from volta_fn.compiler.ir.kernel import Apply, Kernel
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.contraction import product_dtype
from volta_fn.targets.cpu.matmul.blocking import BlockingOptions
from volta_fn.targets.cpu.matmul.epilogues import FusedEpilogue, StoreStrided, StoreSums
from volta_fn.targets.cpu.matmul.gemm import Gemm, gemm_options
from volta_fn.targets.cpu.matmul.gemv import (
    DotProducts,
    ScaledRows,
    can_scale_rows,
    can_use_dot_products,
    suits_dot_products,
    suits_scaled_rows,
)
from volta_fn.targets.cpu.matmul.micro_kernel import ComputeType, compute_type, grouped_type, is_itself, readable, rounds_to
from volta_fn.targets.cpu.routine import Routine

#: Terms of the shortest split of a sum; longer ones are multiples of it.
_LEAST_SPLIT = 64

#: Bytes of a stack that caches hold, and the most numbers of a matrix of a stack that they do not hold.
_NEAR, _SHORT_MATRIX = 1 << 20, 1 << 10

#: Multiplications in each member of a stack for which calling an epilogue, or converting numbers in groups, takes longer than the sums.
_TINY = 64
#: Those of matrices of 2×2 numbers, which loops compute for many members at a time; and the most terms of other tiny matrices.
_WRITTEN_OUT, _FEW_TERMS = 8, 4


def dot_general(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """Generate the routine of `dot_general`; None for complex numbers."""
    lhs, rhs = avals
    dtype = product_dtype("dot_general", lhs, rhs, params.get("preferred_element_type"))
    work = compute_type(dtype)
    if work is None or not all(readable(d) for d in (lhs.dtype, rhs.dtype, dtype)):
        return None
    problem = problem_of(lhs.shape, rhs.shape, params["dimension_numbers"], (lhs.dtype, rhs.dtype, dtype))
    if suits_dot_products(problem):
        store = StoreSums(work, dtype, (problem.m, problem.n), 2)
        return DotProducts(grouped_type(problem) or work, problem, store, 3, "product").routine()
    operands = 0, 1
    if problem.n == 1:  # a matrix times a column is a row times the transpose, without moving memory
        problem, operands = problem.swapped(), (1, 0)
    store = StoreSums(work, dtype, (problem.m, problem.n), 2)
    if suits_scaled_rows(problem):
        return ScaledRows(grouped_type(problem) or work, problem, store, 3, "product", operands).routine()
    return Gemm(grouped_type(problem) or work, problem, operands, store, 3, "product").routine()


def has_product_routine(kernel: Kernel) -> bool:
    """Return True if a routine reads the operands of a product as the kernel does."""
    product = contraction_of(kernel)
    if product is None:
        return False
    problem = product.problem()
    return _has_code(problem) and all(map(_is_packable, problem.operands))


def suits_loops(kernel: Kernel) -> bool:
    """Return True for products that loops over the kernel compute fastest.

    They are stacks of matrices times vectors: loops have vectors of results or of terms, whichever is contiguous, and pack nothing.
    Single matrices, and those that come from memory, are left to routines that prefetch them. Stacks of tiny matrices are, too, where each
    tile would call an epilogue.
    """
    product = contraction_of(kernel)
    if product is not None:
        return _has_tiny_matrices(product)
    product = vector_product_of(kernel)
    if product is None:
        return False
    problem = product.problem()
    work = compute_type(problem.dtype)
    if work is None or not _has_code(problem):
        return False
    vectors, matrix = max(problem.m, problem.n), max(problem.m, problem.n) * problem.k
    if not all(is_itself(work, x.dtype) for x in problem.operands):  # routines convert several numbers at a time
        return vectors == 1 or matrix < _TINY
    near = problem.batch > 1 and problem.batch * matrix * work.itemsize <= _NEAR
    return near or matrix <= _SHORT_MATRIX


def _has_tiny_matrices(product: Contraction) -> bool:
    """Return True for a stack of matrices that are tiny enough for loops.

    Loops write short sums out. Their vectors go along the columns, or along the stack where the results of each product are interleaved.
    """
    product = product.oriented()
    problem = product.problem()
    work, size = compute_type(problem.dtype), problem.m * problem.n * problem.k
    if work is None or problem.batch == 1 or size > _TINY:
        return False
    by_columns = problem.rhs.outer.stride == 1 and problem.k <= _FEW_TERMS
    return size <= _WRITTEN_OUT or (by_columns and _store_only_epilogue(work, product) is None)


def _has_code(problem: Problem) -> bool:
    """Return True if there is code for the dtypes of a product."""
    dtypes = {problem.lhs.dtype, problem.rhs.dtype, problem.dtype}
    kinds = {d.kind for d in dtypes} - {"V"}
    same_kind = len(kinds) == 1 or kinds == {"i", "u"}
    return compute_type(problem.dtype) is not None and same_kind and all(map(readable, dtypes))


def _is_packable(operand: Operand) -> bool:
    steps = (*operand.stack.strides, *operand.outer.strides, *operand.inner.strides)
    along = operand.inner.stride == 1 or (operand.outer.stride == 1 and operand.inner.stride is not None)
    return along and min(steps, default=0) >= 0


class ProductOptions(NamedTuple):
    """Choices of a contraction's routine that are forced; None: the routine's own."""

    #: Whether the operands are swapped.
    swapped: bool | None = None
    #: Whether the epilogue is a kernel, even if it only stores the sums.
    fused: bool | None = None
    #: Whether dot products are summed without packing, and the splits of their sums.
    dots: bool | None = None
    splits: int | None = None
    #: Whether scaled rows are summed without packing.
    rows: bool | None = None
    blocking: BlockingOptions = BlockingOptions()


UNFORCED = ProductOptions()


def contraction(kernel: Kernel, options: ProductOptions = UNFORCED) -> Routine | None:
    """Generate the routine of a contraction; None for other kernels."""
    product = contraction_of(kernel)
    if product is None or not has_product_routine(kernel):
        return None
    product = product.oriented(options.swapped)
    problem = product.problem()
    work = compute_type(problem.dtype)
    assert work is not None
    is_direct = suits_scaled_rows(problem) or suits_dot_products(problem)
    if options.swapped is None and not is_direct and suits_scaled_rows(problem.swapped()):
        product, problem = product.swapped(), problem.swapped()
    operands, buffers = (product.lhs.input, product.rhs.input), len(kernel.inputs) + len(kernel.stores)
    epilogue = (None if options.fused else _store_only_epilogue(work, product)) or FusedEpilogue(work, product)
    grouped = grouped_type(problem) or work
    if suits_dot_products(problem) if options.dots is None else options.dots:
        return DotProducts(grouped, problem, epilogue, buffers, "product", operands, options.splits).routine()
    if suits_scaled_rows(problem) if options.rows is None else options.rows:
        return ScaledRows(grouped, problem, epilogue, buffers, "product", operands, options.splits).routine()
    return Gemm(grouped, problem, operands, epilogue, buffers, "product", options.blocking).routine()


def _store_only_epilogue(work: ComputeType, product: Contraction) -> StoreStrided | None:
    """Return the epilogue that only stores the sums; None if there is more to do."""
    kernel, number = product.kernel, product.kernel.stores[0].value
    value, total = kernel.nodes[number], kernel.nodes[product.total]
    is_conversion = isinstance(value, Apply) and value.op == "convert_element_type" and value.operands == (product.total,)
    if number != product.total and not is_conversion:
        return None
    if len(kernel.stores) > 1 or not rounds_to(total.dtype, value.dtype):
        return None
    index = row_major(kernel.stores[0].index, kernel.stores[0].shape)
    steps = dict(index.terms)
    walks = [
        merged([kernel.sizes[a] for a in axes], [[steps.get(a, 0) for a in axes]])[0]
        for axes in (product.batch, product.rows, product.columns)
    ]
    if walks[2].stride != 1 or index.offset:
        return None
    return StoreStrided(work, value.dtype, walks[0], walks[1], product.size(product.columns), len(kernel.inputs))


#: Makers of routines by the name of the primitive.
ROUTINES = {"dot_general": dot_general}


def contraction_options(kernel: Kernel) -> Iterator[ProductOptions]:
    """Yield the options that `contraction` takes for a kernel, for tests."""
    product = contraction_of(kernel)
    if product is None or not has_product_routine(kernel):
        return
    yield UNFORCED
    for swapped in (False, True):
        problem = (product.swapped() if swapped else product).problem()
        work = compute_type(problem.dtype)
        assert work is not None
        if can_use_dot_products(problem):
            yield from [ProductOptions(swapped, splits == 2, True, splits) for splits in ((1, 2) if problem.k > _LEAST_SPLIT else (1,))]
        if can_scale_rows(problem):
            yield from [ProductOptions(swapped, splits == 2, False, splits, True) for splits in ((1, 2) if problem.k > 1 else (1,))]
        for number, blocking in enumerate(gemm_options(grouped_type(problem) or work, problem)):
            yield ProductOptions(swapped, None, False, None, False, blocking)
            if number % 3 == int(swapped):
                yield ProductOptions(swapped, True, False, None, False, blocking)
