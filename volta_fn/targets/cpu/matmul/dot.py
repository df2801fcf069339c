"""`dot_general` as a routine."""

from __future__ import annotations

from typing import Any

from volta_fn.compiler.contractions.matmul_problem import problem_of
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.contraction import product_dtype
from volta_fn.targets.cpu.matmul.compute_dtype import readable, working
from volta_fn.targets.cpu.matmul.dots import dots
from volta_fn.targets.cpu.matmul.dots import suits as few_rows
from volta_fn.targets.cpu.matmul.epilogues import Store
from volta_fn.targets.cpu.matmul.gemm import Gemm
from volta_fn.targets.cpu.matmul.gemv import suits as one_row
from volta_fn.targets.cpu.matmul.gemv import sweep
from volta_fn.targets.cpu.matmul.schedule import schedule
from volta_fn.targets.cpu.matmul.sources import Strided
from volta_fn.targets.cpu.routine import Routine


def dot_general(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """The routine for operands of these avals; None for dtypes that are not written here (complex)."""
    lhs, rhs = avals
    dtype = product_dtype("dot_general", lhs, rhs, params.get("preferred_element_type"))
    work = working(dtype)
    if work is None or not all(readable(d) for d in (lhs.dtype, rhs.dtype, dtype)):
        return None
    problem = problem_of(lhs.shape, rhs.shape, params["dimension_numbers"], (lhs.dtype, rhs.dtype, dtype))
    if few_rows(problem):
        return dots(work, problem, Store(work, dtype, (problem.m, problem.n), 2), 3, "product")
    operands = 0, 1
    if problem.n == 1:  # a matrix times a column is a row times its transpose, and lies in memory alike
        problem, operands = problem.swapped(), (1, 0)
    store = Store(work, dtype, (problem.m, problem.n), 2)
    if one_row(problem):
        return sweep(work, problem, store, operands, "product")
    left, right = Strided(work, problem.lhs, operands[0]), Strided(work, problem.rhs, operands[1])
    sizes = problem.batch, problem.m, problem.n, problem.k
    plan = schedule(work, sizes, left.in_place(), right.in_place(), lines=left.chunk is not None)
    return Gemm(work, plan, left, right, store, 3, "product").routine()
