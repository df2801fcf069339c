"""Recomputation: what is cheap is computed again instead of stored, what is expensive never, and values stay."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.compiler.fusion.test_fuse import layer_norm, same_as_jit, values_for
from tests.compiler.ir.oracle import SimpleTarget, fuse_function, run
from tests.laws.common import assert_close
from tests.test_random_programs import drawn, programs
from tests.test_random_programs import run as run_program
from volta_fn import lax, nn
from volta_fn.compiler.ir.kernel import Apply, FusedProgram, KernelCall, Reduce

X = vf.ShapeDtypeStruct((64, 32), "float32")
W = vf.ShapeDtypeStruct((32, 32), "float32")
B = vf.ShapeDtypeStruct((32,), "float32")

#: What a kernel may compute more often than the program does.
CHEAP = {"add", "sub", "mul", "neg", "max", "min", "abs", "gt", "lt", "ge", "le", "eq", "ne", "and", "or", "not", "select_n", "integer_pow",
         "convert_element_type", "clamp", "is_finite", "sign"}  # fmt: skip


def stored(partition: FusedProgram) -> list[tuple[Any, ...]]:
    """Shapes of what each kernel stores."""
    return [tuple(s.shape for s in k.stores) for k in partition.kernels]


def test_the_gradient_of_gelu_keeps_the_tanh_alone() -> None:
    loss = lambda w, x, b: ((nn.gelu(x @ w + b) @ w) ** 2).sum()
    partition = fuse_function(vf.grad(loss), W, X, B)
    first = partition.kernels[0]
    assert len(first.stores) == 2  # the activation, for the product, and its tanh
    retained = {first.nodes[s.value].op for s in first.stores}  # type: ignore[union-attr]  # scalar operations are stored
    assert retained == {"tanh", "mul"}
    same_as_jit(vf.grad(loss), partition, *values_for((W, X, B)))


def test_small_masks_are_stored() -> None:
    """A rectifier keeps a byte per element: to compute the mask again, four bytes would be read."""
    loss = lambda w, x: (jnp.where(x @ w > 0, x @ w, 0.0) @ w).sum()
    partition = fuse_function(vf.grad(loss), W, X)
    assert any(b.dtype == np.bool_ for k in partition.kernels for b in k.outputs)
    same_as_jit(vf.grad(loss), partition, *values_for((W, X)))


def test_what_is_in_memory_anyway_is_read_instead() -> None:
    f = lambda x, w: (lambda y: (y @ w, (y * 3.0)[1:] - (y * 3.0)[:-1]))(jnp.tanh(x))
    partition = fuse_function(f, X, W)
    assert stored(partition) == [((64, 32),), ((63, 32),)]
    same_as_jit(f, partition, *values_for((X, W)))


@pytest.mark.parametrize("buffers", [5, 8, 64])
def test_nothing_expensive_is_computed_twice(buffers: int) -> None:
    def network(x: Any, layers: Any) -> Any:
        for w, a, b in layers:
            x = x + nn.gelu(layer_norm(x, a, b) @ w)
        return -nn.log_softmax(x)[:, 0].mean()

    layers = [(W, B, B)] * 3
    partition = fuse_function(vf.grad(network, argnums=(0, 1)), X, layers, target=SimpleTarget(kernel_buffers=buffers, recompute_above=0))
    computed = Counter(n.op for k in partition.kernels for n in k.nodes if isinstance(n, Apply))
    arguments = Counter(e.primitive.name for e in partition.closed.eqns)
    assert all(computed[op] <= arguments[op] for op in computed if op not in CHEAP)
    assert all(len(k.inputs) + len(k.outputs) <= buffers for k in partition.kernels)
    same_as_jit(vf.grad(network, argnums=(0, 1)), partition, *values_for_tree((X, layers)))


def values_for_tree(args: Any) -> Any:
    rng = np.random.default_rng(0)
    return vf.tree.map(lambda a: rng.normal(size=a.shape).astype(a.dtype), args)


def test_long_chains_are_not_computed_again() -> None:
    def long(x: Any, w: Any) -> Any:
        y = lax.sin(x)
        for n in range(40):
            y = y * 1.5 + float(n)
        return y @ w, lax.rev(y, (0,)).sum(0), y * 2.0

    partition = fuse_function(lambda x, w: (lambda a: a[1:])(long(x, w)), X, W, target=SimpleTarget(recompute_above=0))
    again = sum(isinstance(n, Apply) for k in partition.kernels for n in k.nodes)
    assert again < 100
    same_as_jit(lambda x, w: long(x, w)[1:], partition, *values_for((X, W)))


def rows_and_columns(partition: FusedProgram) -> tuple[list[int], list[int]]:
    """Count the sums of the activations that kernels over rows have, and those that kernels over columns have."""
    sums = lambda k: sum(isinstance(n, Reduce) for n in k.nodes)
    kernels = [k for k in partition.kernels if sums(k)]
    return [sums(k) for k in kernels if k.sizes == (64, 32)], [sums(k) for k in kernels if k.sizes == (32, 64)]


def test_sums_over_columns_of_one_array_are_one_kernel() -> None:
    """The product with the normalised rows, which the second sum needs, is computed there, and so it reads what the first one reads."""
    loss = lambda x, a, b, w: ((layer_norm(x, a, b) @ w) @ w).sum()
    partition = fuse_function(vf.grad(loss, argnums=(0, 1, 2)), X, B, B, W)
    assert rows_and_columns(partition) == ([2, 3], [2])
    same_as_jit(vf.grad(loss, argnums=(0, 1, 2)), partition, *values_for((X, B, B, W)))


def test_sums_over_columns_leave_rows_their_operands() -> None:
    """A cotangent that is a sum of two goes into the rows' kernel, not into that of the columns."""
    loss = lambda x, a, b, w: (lambda y: ((y @ w) ** 2 + (y @ jnp.tanh(w)) ** 2).sum())(layer_norm(x, a, b))
    partition = fuse_function(vf.grad(loss, argnums=(0, 1, 2)), X, B, B, W, target=SimpleTarget(kernel_buffers=16))
    assert rows_and_columns(partition) == ([2, 3], [2])
    same_as_jit(vf.grad(loss, argnums=(0, 1, 2)), partition, *values_for((X, B, B, W)))


def test_limits_say_what_kernels_compute() -> None:
    f = lambda x: lax.exp(lax.sin(x) * 2.0) + 1.0
    partition = fuse_function(f, X, target=SimpleTarget(computes=lambda eqn: eqn.primitive.name != "exp"))
    names = [
        [n.op for n in i.kernel.nodes if isinstance(n, Apply)] if isinstance(i, KernelCall) else i.primitive.name for i in partition.nodes
    ]
    assert names == [["sin", "mul"], "exp", ["add"]]
    same_as_jit(f, partition, *values_for((X,)))


def test_equal_kernels_are_lowered_once() -> None:
    def network(x: Any, layers: Any) -> Any:
        for w, a, b in layers:
            x = x + nn.gelu(layer_norm(x, a, b) @ w)
        return (x * x).sum()

    kernels = fuse_function(vf.grad(network), X, [(W, B, B)] * 6).kernels
    assert len({id(k) for k in kernels}) == len(set(kernels)) < len(kernels)


@given(steps=programs)
@settings(max_examples=20)
def test_random_gradients(steps: Any) -> None:
    inputs = drawn(1, 2, np.float64)
    f = vf.value_and_grad(lambda x, y: (run_program(steps, (x, y), True) * x).sum(), argnums=(0, 1))
    flat = lambda x, y: vf.tree.leaves(f(x, y))
    for target in (
        SimpleTarget(recompute_above=0),
        SimpleTarget(recompute_above=0, kernel_buffers=64),
        SimpleTarget(recompute_above=0, kernel_buffers=5, longest_row=4),
    ):
        partition = fuse_function(flat, *inputs, target=target)
        alone = partition._replace(nodes=tuple(partition.closed.eqns))
        for actual, expected in zip(run(partition, *inputs), run(alone, *inputs), strict=True):
            assert_close(actual, expected, 1e-10, f"{steps}", atol=1e-12)


def peak(x: Any, y: Any) -> Any:
    return jnp.max(jnp.abs(x * y + x), -1)


def masked_peak(x: Any, y: Any) -> Any:
    value = x * y + x
    return jnp.where(value >= lax.stop_gradient(value.max(0)), value * y, 0.0)


def rectified(x: Any, y: Any) -> Any:
    return jnp.maximum(x * y + x, y) @ y.T


@pytest.mark.parametrize("size", [7, 300])
@pytest.mark.parametrize(("function", "again"), [(peak, 1), (masked_peak, 1), (rectified, 0)])
def test_what_is_compared_with_a_choice_from_it_is_computed_once(function: Any, again: int, size: int) -> None:
    """Compilers of shaders round the sum and the product once in one kernel and twice in another, so a second value need not be equal."""
    x = vf.ShapeDtypeStruct((64, size), "float32")
    gradient = vf.grad(lambda x, y: function(x, y).sum(), argnums=(0, 1))
    target = SimpleTarget(recompute_above=0, kernel_buffers=64)
    partition = fuse_function(gradient, x, x, target=target)
    assert sum(fused_sums(k) for k in partition.kernels) == 1
    for kernel in partition.kernels:
        reduced = [n.operand for n in kernel.nodes if isinstance(n, Reduce) and n.op in ("reduce_max", "reduce_min")]
        compared = [n for n in kernel.nodes if isinstance(n, Apply) and n.op in ("eq", "ge")]
        assert not (again and reduced and compared), "a second pass computes what the first one reduced"
    same_as_jit(gradient, partition, *values_for((x, x)))
    exact = fuse_function(gradient, x, x, target=SimpleTarget(recompute_above=0, kernel_buffers=64, fp_contract=False))
    assert len(exact.kernels) <= len(partition.kernels)


def fused_sums(kernel: Any) -> int:
    """Count the sums of a kernel, of those that are compared or reduced to an extremum, that have a product of the kernel as an operand."""
    nodes = kernel.nodes
    return sum(
        isinstance(n, Apply) and n.op == "add" and any(isinstance(nodes[o], Apply) and nodes[o].op == "mul" for o in n.operands)
        and any(choice in reached(kernel, i) for choice in ("reduce_max", "max", "eq", "ge"))
        for i, n in enumerate(nodes)
    )  # fmt: skip


def reached(kernel: Any, number: int) -> set[str]:
    """Return the operations whose operands are a node, perhaps with another sign."""
    results: set[str] = set()
    for i, n in enumerate(kernel.nodes):
        operands = n.operands if isinstance(n, Apply) else (n.operand,) if isinstance(n, Reduce) else ()
        if number in operands:
            results |= reached(kernel, i) if n.op in ("abs", "neg") else {n.op}
    return results


def test_values_compared_with_others_are_computed_again() -> None:
    """The sign of a sum is no choice from it: rectifiers recompute."""
    loss = lambda x, y: (jnp.where(x * y + x > 0, x * y + x, 0.0) @ y.T).sum()
    partition = fuse_function(vf.grad(loss), X, X, target=SimpleTarget(recompute_above=0))
    exact = fuse_function(vf.grad(loss), X, X, target=SimpleTarget(recompute_above=0, fp_contract=False))
    assert stored(partition) == stored(exact)
