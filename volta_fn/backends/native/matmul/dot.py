"""`dot_general` as a routine."""

from __future__ import annotations

from typing import Any

from volta_fn.backends.native.matmul.dots import dots, suits
from volta_fn.backends.native.matmul.epilogues import Store
from volta_fn.backends.native.matmul.gemm import Gemm
from volta_fn.backends.native.matmul.numbers import readable, working
from volta_fn.backends.native.matmul.problem import problem_of
from volta_fn.backends.native.matmul.schedule import schedule
from volta_fn.backends.native.matmul.sources import Strided
from volta_fn.backends.native.routine import Routine
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.contraction import product_dtype


def dot_general(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """The routine for operands of these avals; None for dtypes that are not written here (complex)."""
    lhs, rhs = avals
    dtype = product_dtype("dot_general", lhs, rhs, params.get("preferred_element_type"))
    work = working(dtype)
    if work is None or not all(readable(d) for d in (lhs.dtype, rhs.dtype, dtype)):
        return None
    problem = problem_of(lhs.shape, rhs.shape, params["dimension_numbers"], (lhs.dtype, rhs.dtype, dtype))
    if suits(problem):
        return dots(work, problem, Store(work, dtype, (problem.m, problem.n), 2), 3, "product")
    left, right = Strided(work, problem.lhs, 0), Strided(work, problem.rhs, 1)
    sizes = problem.batch, problem.m, problem.n, problem.k
    if problem.n == 1:  # a column times a matrix is a row times its transpose, and lies in memory alike
        left, right = right, left
        sizes = problem.batch, 1, problem.m, problem.k
    plan = schedule(work, sizes, left.in_place(), right.in_place(), lines=left.chunk is not None)
    return Gemm(work, plan, left, right, Store(work, dtype, sizes[1:3], 2), 3, "product").routine()
