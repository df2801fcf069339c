"""Kernels in fewer axes: what merges, what must not, and that values stay, to the last bit, for all samples and rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.compiler.fusion.test_fuse import ROWS, values_for
from tests.compiler.ir.oracle import fuse_function
from tests.laws.common import arrays, assert_same_bits, draw
from tests.samples import samples_of_code
from tests.samples.sample import Sample
from volta_fn import dtypes, lax
from volta_fn.compiler.ir.axes import overwritable, simplified
from volta_fn.compiler.ir.kernel import Kernel, KernelCall, Load, Reduce, check_kernel, interpret


def simple(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Kernel:
    (kernel,) = fuse_function(function, *[vf.ShapeDtypeStruct(s, "float32") for s in shapes]).kernels
    result = simplified(kernel)
    check_kernel(result)
    return result


@pytest.mark.parametrize(
    ("function", "shapes", "sizes"),
    [
        (lambda x, y: lax.sin(x) * y, [(2, 3, 4, 5), (2, 3, 4, 5)], (120,)),
        (lambda x: lax.rev(x, (0, 1, 2)) * 2.0, [(2, 3, 4)], (24,)),
        (lambda x, b: x + b, [(2, 3, 4), (4,)], (6, 4)),
        (lambda x, b: x + b, [(2, 3, 4), (3, 1)], (2, 3, 4)),
        (lambda x, b: x + b, [(2, 3, 4), (3, 4)], (2, 12)),
        (lambda x, b: x + b, [(2, 3, 4), (1, 1, 1)], (24,)),
        (lambda x: x.transpose(2, 0, 1) * 2.0, [(2, 3, 4)], (4, 6)),
        (lambda x: x[1:2, 1:] * 2.0, [(2, 3, 4)], (8,)),
        (lambda x: x[:, 1:] * 2.0, [(2, 3, 4)], (2, 8)),
        (lambda x: x * 2.0, [(1, 1)], ()),
        (lambda x: lax.reduce_sum(x, (0, 1)), [(2, 3, 4)], (4, 6)),
        (lambda x: lax.reduce_sum(x, (1, 2)), [(2, 3, 4)], (2, 12)),
        (lambda x: lax.reduce_sum(x, (0, 2)), [(2, 3, 4)], (3, 2, 4)),
        (lambda x: lax.pad(x, np.float32(1), [(0, 0, 0), (1, 1, 0), (0, 0, 0)]), [(2, 3, 4)], (2, 5, 4)),
        (lambda x: lax.pad(x, np.float32(1), [(1, 0, 0), (0, 0, 0), (0, 0, 0)]), [(2, 3, 4)], (3, 12)),
        (lambda x: x + lax.broadcasted_iota("float32", (2, 3), 1), [(2, 3)], (2, 3)),
    ],
)
def test_axes_that_are_walked_as_one_are_one(function: Any, shapes: Any, sizes: tuple[int, ...]) -> None:
    assert simple(function, *shapes).sizes == sizes


def test_loads_are_seen_in_one_dimension_unless_conditions_speak_of_more() -> None:
    assert [n.shape for n in simple(lambda x, b: x + b, (2, 3, 4), (3, 1)).nodes if isinstance(n, Load)] == [(24,), (3,)]
    padded = simple(lambda x: lax.pad(x, np.float32(1), [(0, 0, 0), (1, 1, 0), (0, 0, 0)]), (2, 3, 4))
    assert [n.shape for n in padded.nodes if isinstance(n, Load)] == [(2, 3, 4)]


def test_a_row_of_one_element_is_no_reduction() -> None:
    (kernel,) = fuse_function(lambda x: lax.reduce_sum(x.reshape(1, 8) * 2.0, (0,)), vf.ShapeDtypeStruct((8,), "float32")).kernels
    assert not any(isinstance(n, Reduce) for n in simplified(kernel).nodes)


@pytest.mark.parametrize(
    ("function", "operands"),
    [
        (lambda x: x * 2, [[0]]),
        (lambda x: x / x.sum(1, keepdims=True), [[0]]),
        (lambda x: lax.exp(x - x.max(1, keepdims=True)) / lax.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True), [[0]]),
        (lambda x: (x * 2, x / x.sum(1, keepdims=True)), [[], [0]]),  # the first result is written in a pass before the last
        (lambda x: (x * 2, x.sum(1)), [[], []]),  # or in a pass of its own, where the sum is computed in another launch
        (lambda x: x[:, ::-1] / x.sum(1, keepdims=True), [[]]),
    ],
    ids=["elementwise", "rows", "softmax", "an earlier pass", "a sum beside", "at another offset"],
)
def test_results_of_the_last_pass_may_overwrite_operands(function: Callable[..., Any], operands: list[list[int]]) -> None:
    (kernel,) = fuse_function(function, vf.ShapeDtypeStruct((5, 8), "float32")).kernels
    assert [[*overwritable(kernel, number)] for number in range(len(kernel.stores))] == operands


def keeps_values(kernel: Kernel, inputs: list[np.ndarray], what: str) -> None:
    simple = simplified(kernel)
    check_kernel(simple)
    assert simplified(simple) == simple
    assert len(simple.sizes) <= len(kernel.sizes)
    for actual, expected in zip(interpret(simple, *inputs), interpret(kernel, *inputs), strict=True):
        assert_same_bits(actual.reshape(expected.shape), expected, what)


@pytest.mark.parametrize(("name", "function", "args"), ROWS, ids=[r[0] for r in ROWS])
def test_rows(name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    partition = fuse_function(function, *args)
    (item,) = partition.nodes
    assert isinstance(item, KernelCall)
    values = dict(zip(partition.closed.jaxpr.invars, values_for(args), strict=True))
    keeps_values(item.kernel, [values[v] for v in item.operands], name)


@pytest.mark.parametrize("sample", list(samples_of_code()), ids=str)
def test_samples(sample: Sample) -> None:
    inputs = draw(sample, dtypes.as_dtype(sample.dtypes[0]))
    partition = fuse_function(lambda *args: vf.tree.leaves(sample.function(*args)), *arrays(inputs))
    rng = np.random.default_rng(0)
    for kernel in partition.kernels:
        values = [rng.integers(0, 5, b.size).astype(b.dtype) for b in kernel.inputs]
        keeps_values(kernel, values, f"{sample}")
