"""Lower `dot_general` to a routine."""

from __future__ import annotations

from typing import Any

from volta_fn.compiler.contractions.index_maps import of_problem
from volta_fn.compiler.contractions.matmul_problem import problem_of
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.contraction import product_dtype
from volta_fn.targets.wgsl.matmul.contract import contract, oriented
from volta_fn.targets.wgsl.routine import Routine
from volta_fn.targets.wgsl.scalars.number import is_supported


def dot_general(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine | None:
    """Return the routine for operands of these types.

    None for dtypes that the device lacks, and for results without elements.
    """
    lhs, rhs = avals
    dtype = product_dtype("dot_general", lhs, rhs, params.get("preferred_element_type"))
    if not all(is_supported(d, device) for d in (lhs.dtype, rhs.dtype, dtype)):
        return None
    c = of_problem(problem_of(lhs.shape, rhs.shape, params["dimension_numbers"], (lhs.dtype, rhs.dtype, dtype)))
    if c.batch * c.m * c.n == 0:
        return None
    c, buffers = oriented(c)
    return contract(c, device, buffers)
