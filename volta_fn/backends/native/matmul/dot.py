"""`dot_general` as a routine."""

from __future__ import annotations

from typing import Any

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
    preferred = params.get("preferred_element_type")
    dtype = product_dtype("dot_general", lhs, rhs, preferred)
    work = working(dtype)
    if work is None or not all(readable(d) for d in (lhs.dtype, rhs.dtype, dtype)):
        return None
    problem = problem_of(lhs.shape, rhs.shape, params["dimension_numbers"], (lhs.dtype, rhs.dtype, dtype))
    left, right = Strided(work, problem.lhs, 0), Strided(work, problem.rhs, 1)
    sizes = problem.batch, problem.m, problem.n, problem.k
    plan = schedule(work, sizes, left.in_place(), right.in_place(), lines=left.chunk is not None)
    store = Store(work, dtype, (problem.m, problem.n), 2)
    return Gemm(work, plan, left, right, store, 3, "product").routine()
