"""The order of small kernels: side by side, and never behind what reads them."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as vf
from tests.compiler.ir.oracle import SimpleTarget, fuse_function, run
from volta_fn.compiler.contractions import contraction_of
from volta_fn.compiler.ir.kernel import DefUse, FusedProgram, KernelCall
from volta_fn.compiler.node_passes import DeferralPolicy, defer_products, defer_small_kernels

X = np.ones((4, 4), np.float32)


def order(function: Any, *args: Any) -> list[str]:
    """List the items in their order: sums by the dimension that they keep, everything else by its primitive's name."""
    result = defer_small_kernels(fuse_function(function, *args), lambda kernel: kernel.parallel < len(kernel.sizes))
    check(result)
    return [str(node.results[0].aval.shape) if isinstance(node, KernelCall) else node.primitive.name for node in result.nodes]


def check(result: FusedProgram) -> None:
    """Producers come before consumers."""
    producers = DefUse(result.nodes).producers
    assert all(producers.get(v, -1) < n for n, node in enumerate(result.nodes) for v in result.reads(node))


def test_sums_wait_until_the_end() -> None:
    def function(x: Any) -> Any:
        y = vf.lax.sort(x)
        first = y.sum(0)
        z = vf.lax.sort(y)
        return first, z.sum(0), z

    assert order(function, X) == ["sort", "sort", "(4,)", "(4,)"]


def test_one_that_is_needed_comes_with_those_that_wait_for_as_few() -> None:
    def function(x: Any) -> Any:
        total = x.sum(0)
        extreme = x[:2].max(1)
        again = total.sum()
        return vf.lax.sort(total), extreme, again

    assert order(function, X) == ["(4,)", "(2,)", "sort", "()"]


def layers(x: Any, *weights: Any) -> Any:
    for w in weights:
        x = vf.numpy.tanh(x @ w)
    return x.sum()


def put_off(least: int = 1, most_bytes: int = 1 << 20) -> tuple[list[str], list[int]]:
    """Return the products of three layers' gradients in order, by their shapes, and the numbers of those that are deferred."""
    weights = [np.linspace(-1, 1, n * m, dtype=np.float32).reshape(n, m) for n, m in ((4, 5), (5, 6), (6, 7))]
    before = fuse_function(vf.grad(layers, (1, 2, 3)), X, *weights, target=SimpleTarget(keeps_as_kernel=lambda kernel: True))
    result = defer_products(before, DeferralPolicy(lambda kernel: True, most_bytes, least))
    check(result)
    for x, y in zip(run(result, X, *weights), run(before, X, *weights), strict=True):
        np.testing.assert_array_equal(x, y)
    products = [node for node in result.nodes if isinstance(node, KernelCall) and contraction_of(node.kernel) is not None]
    return [str(node.results[0].aval.shape) for node in products], [k for k, node in enumerate(products) if node.deferred_work]


def test_products_that_no_other_waits_for_come_last() -> None:
    """Forward products, then cotangents of activations, then those of weights."""
    assert put_off() == (["(4, 5)", "(4, 6)", "(4, 7)", "(4, 6)", "(4, 5)", "(6, 7)", "(5, 6)", "(4, 5)"], [5, 6, 7])


def test_few_deferrable_products_stay_where_they_are() -> None:
    assert put_off(least=4) == (["(4, 5)", "(4, 6)", "(4, 7)", "(6, 7)", "(4, 6)", "(5, 6)", "(4, 5)", "(4, 5)"], [])


def test_what_is_kept_for_deferred_products_is_limited() -> None:
    """The last two read 16 and 20, and 20 and 24 numbers."""
    _, deferred = put_off(most_bytes=4 * (16 + 20 + 20 + 24))
    assert deferred == [6, 7]
