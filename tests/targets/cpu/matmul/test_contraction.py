"""Contractions as machine code, against the interpreter of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn.numpy as jnp
from tests.compiler.ir.oracle import SimpleTarget, fuse_function
from tests.targets.contractions import (
    CONVERTED,
    SUMS,
    attention,
    check_results,
    converted_product,
    gelu_layer,
    inputs_of,
    kernels_in,
    outer_product_and_sum,
    products_and_more,
)
from tests.targets.cpu.loops.kernels import agrees
from tests.targets.cpu.running import run_routine
from volta_fn.compiler.ir.kernel import Kernel, interpret
from volta_fn.targets.cpu.matmul import contraction, has_product_routine

pytest.importorskip("llvmlite")

PRODUCTS_AND_MORE = products_and_more()
TARGET = SimpleTarget(kernel_buffers=48, keeps_as_kernel=has_product_routine)


def kernels_of(function: Callable[..., Any], shapes: list[tuple[int, ...]], dtype: Any = np.float32) -> list[Kernel]:
    """Return the kernels of a function's program as this target has them."""
    return kernels_in(function, shapes, dtype, TARGET)


def check(kernel: Kernel, chunks: int = 1) -> None:
    """Check that the routine of a kernel gives what the kernel means, for small numbers of its dtypes."""
    inputs = inputs_of(kernel)
    routine = contraction(kernel)
    assert routine is not None
    got = run_routine(routine, inputs, [(s.shape, b.dtype) for s, b in zip(kernel.stores, kernel.outputs, strict=True)], chunks)
    check_results(kernel, inputs, got)


@pytest.mark.parametrize("m, k, n", [(2, 3, 2), (13, 40, 9), (67, 500, 33), (6, 17_000, 24), (300, 70, 100), (3, 64, 50), (140, 4, 4100)])
def test_epilogues_of_products_of_any_size(m: int, k: int, n: int) -> None:
    """Single tiles, edges, blocks of k, sums cut into parts, many tasks, a few rows, lines too long for strips."""
    (kernel,) = kernels_of(gelu_layer, [(m, k), (k, n), (n,)], np.float32)
    check(kernel, chunks=3)


@pytest.mark.parametrize("columns", [19, 200])
@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8, np.uint16, np.int64])
def test_dtypes(dtype: Any, columns: int) -> None:
    """In one panel of columns, and in several, whose sums are side by side in one strip."""
    (kernel,) = kernels_of(lambda x, w, b: (x @ w + b) * x[:, :1], [(11, 20), (20, columns), (columns,)], dtype)
    check(kernel)


def test_operands_are_read_and_results_stored_through_index_maps() -> None:
    results = [kernel for kernel in kernels_of(attention, [(2, 21, 72)], np.float32) if has_product_routine(kernel)]
    assert len(results) == 2
    for kernel in results:
        check(kernel, chunks=2)


def test_a_transposed_result_makes_rows_columns() -> None:
    (kernel,) = kernels_of(
        lambda p, q: jnp.einsum("bhts,bthd->bhds", p, q).transpose(0, 3, 1, 2), [(2, 3, 9, 17), (2, 9, 3, 8)], np.float32
    )
    check(kernel)


def test_columns_of_several_axes() -> None:
    """Heads of a product's columns are stored apart: each line of sums is gone over in runs."""
    function = lambda x, w, b: (x @ w + b).reshape(2, 9, 3, 10).transpose(0, 2, 1, 3) * 2.0
    (kernel,) = kernels_of(function, [(18, 7), (7, 30), (30,)], np.float32)
    check(kernel)


def test_what_this_lane_leaves_to_others() -> None:
    """Complex numbers, and operands that no way of packing goes along."""
    assert not kernels_of(lambda x, w: x @ w, [(4, 5), (5, 6)], np.complex64)
    partition = fuse_function(lambda x, w: x[:, ::2] @ w, np.ones((4, 10), np.float32), np.ones((5, 6), np.float32), target=TARGET)
    assert [has_product_routine(kernel) for kernel in partition.kernels] == [False, True]


@pytest.mark.parametrize("more", [*PRODUCTS_AND_MORE])
def test_what_a_product_stores_beside_functions_of_its_sums_is_left_to_loops(more: str) -> None:
    kernel = PRODUCTS_AND_MORE[more]
    assert contraction(kernel) is None
    assert agrees(kernel, inputs_of(kernel), more)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
@pytest.mark.parametrize("shape", [(4, 3, 2), (16, 8, 8), (5, 33, 70), (300, 17, 16)])
def test_an_outer_product_beside_its_sum(shape: tuple[int, int, int], dtype: Any) -> None:
    k, m, n = shape
    (kernel,) = kernels_of(outer_product_and_sum, [(k, m), (k, n)], dtype)
    assert contraction(kernel) is None
    assert agrees(kernel, inputs_of(kernel), "an outer product", 4.0)


@pytest.mark.parametrize(("operand", "sums"), SUMS)
def test_sums_of_any_dtype_are_converted_to_any_other(operand: str, sums: str | None) -> None:
    for result in CONVERTED:
        kernel, inputs = converted_product(operand, sums, result, TARGET)
        routine = contraction(kernel)
        assert routine is not None
        (got,) = run_routine(routine, inputs, [(s.shape, b.dtype) for s, b in zip(kernel.stores, kernel.outputs, strict=True)])
        assert got.tobytes() == interpret(kernel, *inputs)[0].tobytes(), result
