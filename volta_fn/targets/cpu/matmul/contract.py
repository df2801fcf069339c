"""Contractions (kernels that are products) as routines."""

from __future__ import annotations

from volta_fn.compiler.contractions.matmul_problem import Operand, merged
from volta_fn.compiler.ir.contraction import Contraction, contraction_of
from volta_fn.compiler.ir.kernel import Apply, Kernel
from volta_fn.compiler.ir.views import row_major
from volta_fn.targets.cpu.matmul.compute_dtype import Working, readable, working
from volta_fn.targets.cpu.matmul.dots import dots
from volta_fn.targets.cpu.matmul.dots import suits as few_rows
from volta_fn.targets.cpu.matmul.epilogues import Placed
from volta_fn.targets.cpu.matmul.fused import Fused
from volta_fn.targets.cpu.matmul.gemm import Gemm
from volta_fn.targets.cpu.matmul.schedule import schedule
from volta_fn.targets.cpu.matmul.sources import Strided
from volta_fn.targets.cpu.routine import Routine


def contracts(kernel: Kernel) -> bool:
    """Whether a product is best done here, reading its operands as the kernel does: packing them must go along memory."""
    found = contraction_of(kernel)
    if found is None:
        return False
    problem = found.problem()
    dtypes = {problem.lhs.dtype, problem.rhs.dtype, problem.dtype}
    same_kind = len({d.kind for d in dtypes} - {"V"}) == 1
    return working(problem.dtype) is not None and same_kind and all(map(readable, dtypes)) and all(map(_walks, problem[:2]))


def _walks(operand: Operand) -> bool:
    steps = (*operand.stack.strides, *operand.outer.strides, *operand.inner.strides)
    along = operand.inner.stride == 1 or (operand.outer.stride == 1 and operand.inner.stride is not None)
    return along and min(steps, default=0) >= 0


def contraction(kernel: Kernel) -> Routine | None:
    """The routine of a contraction; None for kernels that are none."""
    found = contraction_of(kernel)
    if found is None or not contracts(kernel):
        return None
    found = _oriented(found)
    problem = found.problem()
    work = working(problem.dtype)
    assert work is not None
    buffers = len(kernel.inputs) + len(kernel.stores)
    epilogue = _placed(work, found) or Fused(work, found)
    if few_rows(problem):
        return dots(work, problem, epilogue, buffers, "product", (found.lhs.input, found.rhs.input))
    left, right = Strided(work, problem.lhs, found.lhs.input), Strided(work, problem.rhs, found.rhs.input)
    sizes = problem.batch, problem.m, problem.n, problem.k
    plan = schedule(work, sizes, left.in_place(), right.in_place(), lines=left.chunk is not None)
    return Gemm(work, plan, left, right, epilogue, buffers, "product").routine()


def _oriented(found: Contraction) -> Contraction:
    """The contraction with columns along the axis on which the first result's elements lie side by side."""
    store = found.kernel.stores[0]
    side_by_side = [axis for axis, c in row_major(store.index, store.shape).terms if c == 1]
    return found.swapped() if side_by_side and side_by_side[0] in found.rows else found


def _placed(work: Working, found: Contraction) -> Placed | None:
    """The epilogue that puts the sums where they belong, if that is all there is to do, and rows stay rows."""
    kernel = found.kernel
    value = kernel.nodes[kernel.stores[0].value]
    total = value.operands[0] if isinstance(value, Apply) and value.op == "convert_element_type" else kernel.stores[0].value
    if len(kernel.stores) > 1 or total != found.total or not readable(value.dtype):
        return None
    place = row_major(kernel.stores[0].index, kernel.stores[0].shape)
    steps = dict(place.terms)
    walks = [merged([kernel.sizes[a] for a in axes], [[steps[a] for a in axes]])[0] for axes in (found.batch, found.rows, found.columns)]
    if walks[2].stride != 1 or place.offset:
        return None
    return Placed(work, value.dtype, walks[0], walks[1], found.size(found.columns), len(kernel.inputs))
