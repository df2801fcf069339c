"""Products in parts, which kernels behind them add up: the same results, and who does what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler.ir.oracle import SimpleTarget, fuse_function, run, run_item
from volta_fn.compiler.contractions import contraction_of
from volta_fn.compiler.ir.kernel import FusedProgram, KernelCall
from volta_fn.compiler.node_passes import split_k_into_consumers
from volta_fn.core.jaxpr import Literal

RNG = np.random.default_rng(0)
X, W, B = (RNG.standard_normal(shape, np.float32) for shape in ((3, 4, 12), (12, 8), (8,)))
Y = RNG.standard_normal((3, 4, 8), np.float32)


def parted(function: Any, *args: Any, parts: int = 3, buffers: int = 24) -> tuple[list[np.ndarray], list[str]]:
    """Return the results with products in parts, and the names of the kernels."""
    before = fuse_function(function, *args, target=SimpleTarget(keeps_as_kernel=lambda kernel: True))
    after = split_k_into_consumers(before, lambda kernel: parts, buffers)
    result = evaluated(after, *args)
    for x, y in zip(result, run(before, *args), strict=True):
        near(x, y)
    return result, [_kind(item) for item in after.nodes if isinstance(item, KernelCall)]


def near(actual: Any, expected: Any) -> None:
    """Check that results are as near as sums of 12 products of numbers of about 1 are in float32, in any order."""
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def evaluated(partition: FusedProgram, *args: Any) -> list[np.ndarray]:
    """Return the results by items of a partition. Kernels of rows may store flat arrays, which is all the same to a device."""
    jaxpr = partition.closed.jaxpr
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*map(np.asarray, partition.closed.consts), *args], strict=True))
    for item in partition.nodes:
        names, read = (item.results, item.operands) if isinstance(item, KernelCall) else (item.outvars, item.invars)
        result = run_item(item, [np.asarray(v.val) if isinstance(v, Literal) else values[v] for v in read])
        values.update({v: x.reshape(v.aval.shape) for v, x in zip(names, result, strict=True)})
    return [values[v] for v in jaxpr.outvars]


def _kind(item: KernelCall) -> str:
    if contraction_of(item.kernel) is not None:
        return f"product{item.results[0].aval.shape}"
    return f"rows{len(item.results)}" if item.kernel.reduction_axes else "elements"


def normal(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / (1 + (centred**2).mean(-1, keepdims=True))


def test_a_normalisation_adds_up_the_product_before_it() -> None:
    (result,), kinds = parted(lambda x, w, b, y: normal(x @ w + b + y), X, W, B, Y)
    assert kinds == ["product(3, 12, 8)", "rows1"]
    z = X.astype(float) @ W + B + Y
    centred = z - z.mean(-1, keepdims=True)
    near(result, centred / (1 + (centred**2).mean(-1, keepdims=True)))


def test_a_result_that_others_need_is_stored() -> None:
    def function(x: Any, w: Any, y: Any) -> Any:
        z = x @ w + y
        return z, normal(z)

    (z, _), kinds = parted(function, X, W, Y)
    assert kinds == ["product(3, 12, 8)", "rows2"]
    near(z, X.astype(float) @ W + Y)


def test_rows_go_before_those_that_read_the_result_otherwise() -> None:
    def function(x: Any, w: Any) -> Any:
        z = x @ w
        columns = z.sum((0, 1))
        return normal(z), columns

    _, kinds = parted(function, X, W)
    assert kinds == ["product(3, 12, 8)", "rows2", "rows1"]


def test_one_product_after_another() -> None:
    def function(x: Any, w: Any, b: Any) -> Any:
        for _ in range(2):
            x = normal(normal(x @ w + b) @ w.T)
        return x

    _, kinds = parted(function, X, W, B, parts=2)
    assert kinds == [one for _ in range(2) for one in ("product(2, 12, 8)", "rows1", "product(2, 12, 12)", "rows1")]


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (lambda x, w: normal(x @ w), {"parts": 1}),
        (lambda x, w: normal(x @ w), {"parts": 5}),  # 12 terms
        (lambda x, w: normal(x @ w), {"buffers": 1}),
        (lambda x, w: (x @ w).sum((0, 1)), {}),  # rows that are columns
        (lambda x, w: normal((x @ w)[:, ::-1]), {}),  # read where it is not made
        (lambda x, w: (x @ w) * 2, {}),
    ],
)
def test_others_stay_whole(function: Any, options: dict[str, int]) -> None:
    _, kinds = parted(function, X, W, **options)
    assert kinds[0].startswith("product(3, 4, 8)")
