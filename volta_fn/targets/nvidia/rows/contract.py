"""The choice of kernels for products of few rows.

Matrices are of floats, or of quantised weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.contractions import Operand, Problem, contraction_of, problem_of
from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.contraction import product_dtype
from volta_fn.primitives.quantized import QuantizedLayout
from volta_fn.targets.nvidia.kernel import kernel_dispatch
from volta_fn.targets.nvidia.matmul.problem import HALVES
from volta_fn.targets.nvidia.rows.kernel import Copied, Part, RowsKernel, Source, WeightLayout, choose
from volta_fn.targets.wgsl.routine import Routine

#: The most rows of x: two products of matrix units for each of the matrix's.
MOST_ROWS = 16

#: The fewest outputs, and numbers of a row, for which the kernels are faster than shaders.
_FEWEST = 8

#: The most bytes of results, which 32 bits number.
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
    if product.rows * product.outputs * product.dtype.itemsize > _MOST_BYTES:
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
