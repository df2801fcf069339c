"""Functions whose programs have products as kernels, and checks of such kernels against the interpreter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.compiler.ir.oracle import SimpleTarget, fuse_function
from volta_fn import lax, nn
from volta_fn.compiler.ir.axes import simplified
from volta_fn.compiler.ir.index import Range, along, row_major
from volta_fn.compiler.ir.kernel import Apply, Constant, Inside, Kernel, Node, Position, Reduce, Store, interpret, operands
from volta_fn.dtypes import as_dtype


def kernels_in(function: Callable[..., Any], shapes: Sequence[tuple[int, ...]], dtype: Any, target: SimpleTarget) -> list[Kernel]:
    """Return the kernels of a function's program for arguments of these shapes."""
    return fuse_function(function, *[vf.ShapeDtypeStruct(shape, np.dtype(dtype)) for shape in shapes], target=target).kernels


def inputs_of(kernel: Kernel) -> list[np.ndarray]:
    """Small numbers for a kernel."""
    rng = np.random.default_rng(0)
    inputs = []
    for buffer in kernel.inputs:
        drawn = rng.integers(-4, 5, buffer.size) if buffer.dtype.kind in "iub" else rng.standard_normal(buffer.size)
        inputs.append(drawn.astype(buffer.dtype))
    return inputs


def check_results(kernel: Kernel, inputs: Sequence[np.ndarray], got: Sequence[np.ndarray]) -> None:
    """Check that the results are what the kernel means."""
    for result, want in zip(got, interpret(kernel, *inputs), strict=True):
        wide = np.complex128 if result.dtype.kind == "c" else np.float64
        error = {"float16": 2e-2, "float64": 1e-12}.get(result.dtype.name, 1e-4) if result.dtype.kind in "fc" else 0.0
        scale = float(np.abs(want.astype(wide)).max()) + 1.0
        np.testing.assert_allclose(result.astype(wide), want.astype(wide), rtol=error, atol=error * scale)


def outer_product_and_sum(e: Any, d: Any) -> Any:
    """Compute a product that is stored per term of its sum."""
    product = e[:, :, None] * d[:, None, :]
    return product, product.sum(0)


def products_and_more() -> dict[str, Kernel]:
    """Return a matrix product that stores more than a function of its sums, by what that is."""
    (kernel,) = kernels_in(lambda x, w: x @ w + 1, [(6, 5), (5, 7)], np.float16, SimpleTarget(keeps_as_kernel=lambda kernel: True))
    kernel = simplified(kernel)
    (total,) = [n for n, node in enumerate(kernel.nodes) if isinstance(node, Reduce)]
    product = operands(kernel.nodes[total])[0]
    lhs, rhs = operands(kernel.nodes[product])
    every, size = row_major((along(0), along(1), along(2)), kernel.sizes), math.prod(kernel.sizes)
    last = len(kernel.nodes)
    one = Constant.of(1, kernel.nodes[product].dtype)

    def storing(value: int, *nodes: Node) -> Kernel:
        return replace(kernel, nodes=(*kernel.nodes, *nodes), stores=(*kernel.stores, Store((size,), (every,), value)))

    largest = Reduce(kernel.nodes[product].dtype, "reduce_max", product)
    return {
        "the terms": storing(product),
        "an operand": storing(lhs),
        "the other operand": storing(rhs),
        "a function of the terms": storing(last + 1, one, Apply(one.dtype, "add", (product, last))),
        "the sum, per term": storing(total),
        "a constant, per term": storing(last, one),
        "the term's number": storing(last, Position(np.dtype(np.int32), along(2))),
        "whether it is the first term": storing(last, Inside((Range(along(2), 0, 1),))),
        "another reduction": replace(
            kernel, nodes=(*kernel.nodes, largest), stores=(*kernel.stores, replace(kernel.stores[0], value=last))
        ),
    }


#: Dtypes of operands and of their sums, where those are not the operands'.
SUMS = [
    *[(name, None) for name in ("bool", "int8", "uint16", "int32", "uint32", "int64", "float16", "bfloat16", "float32", "float64")],
    *[("int8", "int16"), ("int8", "int32"), ("uint8", "uint32"), ("int16", "int64"), ("int32", "int64")],
    *[("float16", "float32"), ("bfloat16", "float32"), ("float32", "float64")],
]
CONVERTED = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64")


def converted_product(operand: str, sums: str | None, result: str, target: SimpleTarget) -> tuple[Kernel, list[np.ndarray]]:
    """Return a product that is converted, and operands of which all sums are exact."""
    dtype = as_dtype(operand)

    def function(x: Any, w: Any) -> Any:
        return lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=sums).astype(result)

    (kernel,) = kernels_in(function, [(5, 19), (19, 21)], dtype, target)
    least = 0 if dtype.kind in "ub" else -4
    rng = np.random.default_rng(1)
    return kernel, [rng.integers(least, 5, buffer.size).astype(dtype) for buffer in kernel.inputs]


def gelu_layer(x: Any, w: Any, b: Any) -> Any:
    """Compute a layer before and after its activation."""
    hidden = x @ w + b
    return hidden, nn.gelu(hidden)


def attention(qkv: Any) -> Any:
    """Compute the scores, which are masked, and a product that is stored as the next one wants it."""
    q, k, v = (qkv[:, :, 24 * i : 24 * (i + 1)].reshape(2, 21, 3, 8) for i in range(3))
    scores = jnp.einsum("bthd,bshd->bhts", q, k) * 0.3
    scores = jnp.where(jnp.tril(jnp.ones((21, 21), bool)), scores, -1.0)
    return jnp.einsum("bhts,bshd->bthd", scores, v).reshape(42, 24)
