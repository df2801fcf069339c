"""Stacks of matrices times vectors, of dot products and of tiny matrices, which loops over kernels multiply."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax
from volta_fn.compiler.contractions import contraction_of
from volta_fn.compiler.ir.kernel import KernelCall
from volta_fn.compiler.pipeline import lower
from volta_fn.targets.cpu.target import TARGET

CPU = vf.devices("cpu")[0]
#: Operands and results of stacks: dimension numbers, and the same for `einsum`.
KINDS: dict[str, tuple[Any, str]] = {
    "matrix times vector": ((((2,), (1,)), ((0,), (0,))), "bmk,bk->bm"),
    "vector times matrix": ((((1,), (1,)), ((0,), (0,))), "bk,bkm->bm"),
    "dot products": ((((1,), (1,)), ((0,), (0,))), "bk,bk->b"),
    "a column": ((((2,), (1,)), ((0,), (0,))), "bmk,bkc->bmc"),
    "axes in another order": ((((0,), (0,)), ((2,), (1,))), "kmb,kb->bm"),
}


def operands(kind: str, dtype: str, sizes: dict[str, int]) -> list[np.ndarray]:
    """Small integers, whose sums of products are exact in every dtype but for the rounding of the result."""
    draw = np.random.default_rng(0)
    names = KINDS[kind][1].split("->")[0].split(",")
    low = 0 if dtype.startswith("u") else -3
    return [np.asarray(jnp.asarray(draw.integers(low, 4, [sizes[name] for name in axes]), dtype)) for axes in names]


def product(kind: str, x: Any, y: Any) -> Any:
    """Compute the products of a stack."""
    return lax.dot_general(x, y, KINDS[kind][0])


def exact(kind: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Compute the products in float64."""
    return np.einsum(KINDS[kind][1], x.astype(np.float64), y.astype(np.float64))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "int8", "uint16"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("b", "m", "k"), [(1, 5, 7), (130, 2, 2), (37, 3, 3), (9, 16, 33), (3, 1, 40)])
def test_products_are_exact(kind: str, dtype: str, b: int, m: int, k: int) -> None:
    x, y = operands(kind, dtype, {"b": b, "m": m, "k": k, "c": 1})
    expected = exact(kind, x, y)
    with vf.default_device(CPU):
        result = vf.jit(lambda x, y: product(kind, x, y))(x, y)
        after = vf.jit(lambda x, y: product(kind, x, y) * 2 + 1)(x, y)
    assert result.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(result), expected.astype(x.dtype))
    np.testing.assert_array_equal(np.asarray(after), expected.astype(x.dtype) * np.asarray(2, x.dtype) + np.asarray(1, x.dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["matrix times vector", "vector times matrix", "dot products"])
def test_gradients_are_those_of_sums(kind: str, dtype: str) -> None:
    x, y = operands(kind, dtype, {"b": 33, "m": 3, "k": 4})
    with vf.default_device(CPU):
        by_x, by_y = vf.jit(vf.grad(lambda x, y: jnp.sum(product(kind, x, y).astype("float32")), (0, 1)))(x, y)
    terms, result = KINDS[kind][1].split("->")
    left, right = terms.split(",")
    ones = np.ones([dict(zip(left, x.shape, strict=True)).get(name, 3) for name in result])
    np.testing.assert_array_equal(np.asarray(by_x), np.einsum(f"{result},{right}->{left}", ones, y.astype(np.float64)).astype(x.dtype))
    np.testing.assert_array_equal(np.asarray(by_y), np.einsum(f"{result},{left}->{right}", ones, x.astype(np.float64)).astype(y.dtype))


@pytest.mark.parametrize(
    ("kind", "sizes", "in_loops"),
    [
        ("matrix times vector", {"b": 500, "m": 3, "k": 3}, True),
        ("dot products", {"b": 100_000, "k": 8}, True),
        ("vector times matrix", {"b": 2, "m": 40, "k": 50}, True),
        ("matrix times vector", {"b": 1, "m": 2000, "k": 2000}, False),  # its matrix comes from memory
    ],
)
def test_large_matrices_are_left_to_routines(kind: str, sizes: dict[str, int], in_loops: bool) -> None:
    axes = [[sizes[name] for name in axes] for axes in KINDS[kind][1].split("->")[0].split(",")]
    program = vf.jit(lambda x, y: product(kind, x, y)).lower(*[vf.ShapeDtypeStruct(tuple(shape), "float32") for shape in axes])
    (item,) = lower(program.jaxpr, TARGET).items
    assert isinstance(item.node, KernelCall) == in_loops


#: Products of a stack with what comes after them, the sizes m, k and n, and whether loops compute them.
TINY: dict[str, tuple[Any, tuple[int, int, int], bool]] = {
    "2×2": (jnp.matmul, (2, 2, 2), True),
    "2×2, transposed": (lambda x, y: jnp.matmul(x, jnp.swapaxes(y, 1, 2)), (2, 2, 2), True),
    "3×3": (jnp.matmul, (3, 3, 3), False),  # a tile stores its sums by itself
    "3×3 and an epilogue": (lambda x, y: jnp.maximum(jnp.matmul(x, y) * 0.5 + x, y), (3, 3, 3), True),
    "4×4 and an epilogue": (lambda x, y: jnp.maximum(jnp.matmul(x, y) * 0.5 + x, y), (4, 4, 4), True),
    "rows and an epilogue": (lambda x, y: jnp.matmul(x, y) * 0.5 + 1, (2, 3, 8), True),
    "8×8 and an epilogue": (lambda x, y: jnp.matmul(x, y) * 0.5 + 1, (8, 8, 8), False),
    "long sums and an epilogue": (lambda x, y: jnp.matmul(x, y) * 0.5 + 1, (3, 7, 3), False),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32"])
@pytest.mark.parametrize("stack", [2, 65])
@pytest.mark.parametrize("name", TINY)
def test_tiny_matrices(name: str, stack: int, dtype: str) -> None:
    function, (m, k, n), in_loops = TINY[name]
    draw = np.random.default_rng(0)
    x, y = (np.asarray(jnp.asarray(draw.integers(-3, 4, shape), dtype)) for shape in ((stack, m, k), (stack, k, n)))
    program = vf.jit(function).lower(x, y)
    kernels = [item.node.kernel for item in lower(program.jaxpr, TARGET).items if isinstance(item.node, KernelCall)]
    assert [TARGET.uses_product_routine(kernel) for kernel in kernels if contraction_of(kernel) is not None] == [not in_loops]
    with vf.default_device(CPU):
        result = np.asarray(vf.jit(function)(x, y))
    expected = np.asarray(function(x.astype(np.float64), y.astype(np.float64)))
    np.testing.assert_array_equal(result, expected.astype(result.dtype))
