"""Contractions: what becomes part of one, how its parts are found, and that values stay what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.compiler.ir.oracle import SimpleTarget, equations_apart, fuse_function, run
from tests.targets.contractions import outer_product_and_sum, products_and_more
from volta_fn import nn
from volta_fn.compiler.contractions import Contraction, contraction_of
from volta_fn.compiler.ir.kernel import FusedProgram, Kernel, check_kernel, format_kernel, interpret, restricted

PRODUCTS_AND_MORE = products_and_more()
TARGET = SimpleTarget(keeps_as_kernel=lambda kernel: contraction_of(kernel) is not None)


def numbers(*shape: int) -> np.ndarray:
    """Numbers that a product of tells apart."""
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def fused(function: Any, *args: np.ndarray) -> FusedProgram:
    """Return the partition where products are kernels, whose values are those of plain evaluation."""
    partition = fuse_function(function, *args, target=TARGET)
    wanted = vf.tree.leaves(function(*map(jnp.array, args)))
    for got, want in zip(run(partition, *args), wanted, strict=True):
        np.testing.assert_allclose(got, np.asarray(want), rtol=2e-5, atol=2e-5)
    return partition


def only(partition: FusedProgram) -> tuple[Kernel, Contraction]:
    """Return the only kernel, which is a contraction."""
    assert not equations_apart(partition)
    (kernel,) = partition.kernels
    result = contraction_of(kernel)
    assert result is not None
    return kernel, result


def layer(x: Any, w: Any, b: Any) -> Any:
    return jnp.maximum(x @ w + b, 0.0)


X, W, B = numbers(6, 5), numbers(5, 7), numbers(7)


def test_a_layer_is_one_kernel() -> None:
    kernel, _ = only(fused(layer, X, W, B))
    assert format_kernel(kernel) == (
        """\
for each row i<6> j<7>:
  v4:f32 = x2[7] at (j)
  for each k<5>:
    v0:f32 = x0[6,5] at (i, k)
    v1:f32 = x1[5,7] at (k, j)
    v2:f32 = mul v0 v1
    v3 <- reduce_sum:f32 v2
  v5:f32 = add v3 v4
  v6:f32 = max v5 0.0
  y0[6,7] at (i, j) = v6"""
    )


def test_without_a_backend_that_has_products_as_kernels_they_stay_equations() -> None:
    assert equations_apart(fuse_function(layer, X, W, B)) == ["dot_general"]


def test_the_problem_is_in_terms_of_memory() -> None:
    """Heads of a slice of a wider array: nothing is copied, strides and a start say it all."""

    def scores(qkv: Any) -> Any:
        q, k = (qkv[:, :, 12 * part : 12 * part + 12].reshape(2, 5, 3, 4) for part in (0, 1))
        return jnp.einsum("bthd,bshd->bhts", q, k)

    _, result = only(fused(scores, numbers(2, 5, 36)))
    problem = result.problem()
    assert (problem.batch, problem.m, problem.n, problem.k) == (6, 5, 5, 4)
    assert problem.lhs.stack == problem.rhs.stack == ((2, 3), (180, 4))
    assert problem.lhs.outer == problem.rhs.outer == ((5,), (36,))
    assert problem.lhs.inner == problem.rhs.inner == ((4,), (1,))
    assert {problem.lhs.start, problem.rhs.start} == {0, 12}


def test_a_transposed_result_is_stored_so() -> None:
    def values(p: Any, v: Any) -> Any:
        return jnp.einsum("bhts,bshd->bthd", p, v).reshape(10, 12) + 1.0

    only(fused(values, numbers(2, 3, 5, 6), numbers(2, 6, 3, 4)))


def test_everything_elementwise_after_a_product_is_its_epilogue() -> None:
    def block(x: Any, w: Any, b: Any, residual: Any) -> Any:
        hidden = x @ w + b
        return hidden, nn.gelu(hidden) * 0.5 + residual

    kernel, _ = only(fused(block, X, W, B, numbers(6, 7)))
    assert len(kernel.stores) == 2


def test_rows_of_a_result_are_reduced_by_another_kernel() -> None:
    partition = fused(lambda x, w: nn.softmax(x @ w * 0.5), X, W)
    assert [contraction_of(k) is not None for k in partition.kernels] == [True, False]


def test_operands_are_computed_before_and_once() -> None:
    """A cheap operand is read over and over: it is not computed again in the product."""
    partition = fused(lambda x, w, v: (jnp.maximum(x, 0.0) @ w) @ v, X, W, numbers(7, 3))
    assert [contraction_of(k) is not None for k in partition.kernels] == [False, True, True]


@pytest.mark.parametrize("turn", [False, True])
def test_the_epilogue_is_a_kernel_on_sums(turn: bool) -> None:
    kernel, result = only(fused(layer, X, W, B))
    epilogue, inputs = (result.swapped() if turn else result).epilogue()
    assert inputs == (2,)
    sums = X @ W
    (got,) = interpret(epilogue, (sums.T if turn else sums).copy(), B)
    np.testing.assert_allclose(got.reshape(6, 7), interpret(kernel, X, W, B)[0], rtol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (x[:, None] * x[None]).sum(-1) + jnp.sin(x).sum(),  # a row reads more than two elements per turn, or one
        lambda x, w: (x * x).sum(-1),  # no columns
        lambda x, w: (x[:, :, None] - w[None]).sum(1),  # no product
    ],
)
def test_other_reductions_are_none(function: Any) -> None:
    results = [contraction_of(kernel) for kernel in fuse_function(function, X, W).kernels]
    assert None in results


@pytest.mark.parametrize("more", [*PRODUCTS_AND_MORE])
def test_a_product_that_stores_more_than_a_function_of_its_sums_is_none(more: str) -> None:
    kernel = PRODUCTS_AND_MORE[more]
    check_kernel(kernel)
    assert contraction_of(restricted(kernel, [0])) is not None
    assert contraction_of(kernel) is None


def test_an_outer_product_beside_its_sum_is_none() -> None:
    (kernel,) = fused(outer_product_and_sum, numbers(6, 5), numbers(6, 7)).kernels
    assert len(kernel.stores) == 2
    assert contraction_of(kernel) is None


def test_integers_bools_and_half_floats() -> None:
    x, w = np.arange(30, dtype=np.int8).reshape(6, 5), np.arange(35, dtype=np.int8).reshape(5, 7)
    for dtype in (np.int8, np.bool_, np.float16):
        partition = fused(lambda x, w: x @ w, x.astype(dtype), w.astype(dtype))
        _, result = only(partition)
        assert result.lhs.dtype == dtype
