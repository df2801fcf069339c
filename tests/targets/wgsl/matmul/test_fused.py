"""Products that are kernels in WGSL, against the interpreter of kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import volta_fn.numpy as jnp
from tests.compiler.ir.oracle import SimpleTarget
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
from tests.targets.wgsl.loops.kernels import agrees
from tests.targets.wgsl.running import capabilities, run_routine
from volta_fn.compiler.ir.kernel import Kernel, interpret
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.matmul import computes_product, contraction

#: What every device has, but for 64-bit numbers where this one has them.
PLAIN = TargetCapabilities(float64=capabilities().float64, int64=capabilities().int64)
PRODUCTS_AND_MORE = products_and_more()
TARGET = SimpleTarget(kernel_buffers=PLAIN.buffers, keeps_as_kernel=partial(computes_product, capabilities=PLAIN))


def kernels_of(function: Callable[..., Any], shapes: list[tuple[int, ...]], dtype: Any = np.float32) -> list[Kernel]:
    """Return the kernels of a function's program as this target has them."""
    return kernels_in(function, shapes, dtype, TARGET)


def check(kernel: Kernel, dispatches: int = 1) -> None:
    """Check that the routine of a kernel gives what the kernel means, for small numbers of its dtypes, and is so many dispatches."""
    inputs, routine = inputs_of(kernel), contraction(kernel, PLAIN)
    assert routine is not None
    assert len(routine.dispatches) == dispatches
    assert all(len(d.buffers) <= PLAIN.buffers for d in routine.dispatches)
    outputs = [(store.shape, b.dtype) for store, b in zip(kernel.stores, kernel.outputs, strict=True)]
    check_results(kernel, inputs, run_routine(routine, inputs, outputs))


@pytest.mark.parametrize(
    ("m", "k", "n", "dispatches"), [(40, 33, 24, 1), (30, 33, 21, 1), (16, 2000, 20, 2), (50, 10, 2, 1), (2, 300, 3, 1), (17, 2001, 19, 2)]
)
def test_epilogues_of_products_of_any_size(m: int, k: int, n: int, dispatches: int) -> None:
    """Whole vectors and single columns, sums in parts, few terms, and few results."""
    (kernel,) = kernels_of(gelu_layer, [(m, k), (k, n), (n,)])
    check(kernel, dispatches)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8, np.int64, np.complex64, np.bool_])
def test_dtypes(dtype: Any) -> None:
    function = lambda x, w, b: x @ w & b if dtype is np.bool_ else (x @ w + b) * x[:, :1]
    for n in (19, 20):
        (kernel,) = kernels_of(function, [(11, 20), (20, n), (n,)], dtype)
        check(kernel)


def narrow(x: Any, w: Any) -> Any:
    product = x @ w
    return product > 0.0, product.astype(np.float16)


def test_results_of_narrow_dtypes_are_packed() -> None:
    for n in (12, 13):
        (kernel,) = kernels_of(narrow, [(9, 20), (20, n)])
        check(kernel)


def test_operands_are_read_and_results_stored_through_index_maps() -> None:
    results = [kernel for kernel in kernels_of(attention, [(2, 21, 72)]) if computes_product(kernel, PLAIN)]
    assert len(results) == 2
    for kernel in results:
        check(kernel)


def test_a_transposed_result_makes_rows_columns() -> None:
    function = lambda p, q: jnp.einsum("bhts,bthd->bhds", p, q).transpose(0, 3, 1, 2)
    (kernel,) = kernels_of(function, [(2, 3, 9, 17), (2, 9, 3, 8)])
    check(kernel)


@pytest.mark.parametrize("last", [10, 12])
def test_columns_of_several_axes(last: int) -> None:
    """Heads of a product's columns are stored apart."""
    function = lambda x, w, b: (x @ w + b).reshape(2, 9, 3, last).transpose(0, 2, 1, 3) * 2.0
    (kernel,) = kernels_of(function, [(18, 7), (7, 3 * last), (3 * last,)])
    check(kernel)


def test_an_operand_may_be_read_again_by_the_epilogue() -> None:
    """In fours by one of them, and one by one by the other."""
    for function in (lambda x, w: x + x @ w, lambda x, w: x.T + x @ w, lambda x, w: x @ x.T + x @ w):
        for kernel in kernels_of(function, [(36, 36), (36, 36)]):
            check(kernel)


def many_buffers(x: Any, w: Any, p: Any, q: Any) -> Any:
    product = x @ w
    return product * p, (product + q) * x[:, :20], product * w[:24]


def test_sums_are_not_in_parts_where_adding_them_up_would_bind_too_much() -> None:
    """Four operands, of which two are multiplied, three results, and the parts are eight buffers."""
    (kernel,) = kernels_of(many_buffers, [(24, 4000), (4000, 20), (24, 20), (24, 20)])
    check(kernel, 2)
    few = PLAIN._replace(buffers=7)
    routine = contraction(kernel, few)
    assert routine is not None
    assert len(routine.dispatches) == 1


def test_what_is_left_to_others() -> None:
    """Operands that no loads go along, and kernels that are no products."""
    kernels = kernels_of(lambda x, w: x[:, ::2] @ w, [(4, 10), (5, 6)])
    assert [computes_product(kernel, PLAIN) for kernel in kernels] == [False, True]
    assert contraction(kernels[0], PLAIN) is None


@pytest.mark.parametrize("more", [*PRODUCTS_AND_MORE])
def test_what_a_product_stores_beside_functions_of_its_sums_is_left_to_loops(more: str) -> None:
    kernel = PRODUCTS_AND_MORE[more]
    assert not computes_product(kernel, PLAIN)
    assert contraction(kernel, PLAIN) is None
    agrees(kernel, inputs_of(kernel), more)


@pytest.mark.parametrize("shape", [(4, 3, 2), (16, 8, 8), (5, 33, 70)])
def test_an_outer_product_beside_its_sum(shape: tuple[int, int, int]) -> None:
    k, m, n = shape
    (kernel,) = kernels_of(outer_product_and_sum, [(k, m), (k, n)])
    assert contraction(kernel, PLAIN) is None
    agrees(kernel, inputs_of(kernel), "an outer product", 4.0)


@pytest.mark.parametrize(("operand", "sums"), SUMS)
def test_sums_of_any_dtype_are_converted_to_any_other(operand: str, sums: str | None) -> None:
    for result in CONVERTED:
        kernel, inputs = converted_product(operand, sums, result, TARGET)
        routine = contraction(kernel, PLAIN)
        assert routine is not None
        (got,) = run_routine(routine, inputs, [(s.shape, b.dtype) for s, b in zip(kernel.stores, kernel.outputs, strict=True)])
        assert got.tobytes() == interpret(kernel, *inputs)[0].tobytes(), result
