"""Kernels as values: equal ones are equal, constants are told apart by their bits, and the specification refuses malformed ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.compiler.fusion.test_fuse import X
from tests.compiler.ir.oracle import fuse_function
from volta_fn import lax, nn
from volta_fn.compiler.ir.index import Range, along
from volta_fn.compiler.ir.kernel import (
    Apply,
    Buffer,
    Constant,
    Kernel,
    Load,
    PendingStores,
    Reduce,
    Store,
    check_kernel,
    interpret,
    levels,
    remainder,
    stages,
)
from volta_fn.errors import JaxprError, VoltaError

F32 = np.dtype(np.float32)
ROWS, COLUMNS = along(0), along(1)


def kernel_of(function: Any, *args: Any) -> Kernel:
    (kernel,) = fuse_function(function, *args).kernels
    return kernel


def test_constants_are_their_bits() -> None:
    assert Constant.of(np.nan, F32) == Constant.of(np.nan, F32)
    assert Constant.of(0.0, F32) != Constant.of(-0.0, F32)
    assert Constant.of(1.5, F32).value == np.float32(1.5)


def test_equal_programs_have_equal_kernels() -> None:
    first, second = kernel_of(nn.softmax, X), kernel_of(lambda x: nn.softmax(x), X)
    assert first == second and hash(first) == hash(second) and first is not second
    assert first != kernel_of(lambda x: nn.softmax(x * -0.0), X)
    assert kernel_of(lambda x: x + 0.0, X) != kernel_of(lambda x: x + -0.0, X)


def test_levels_and_stages() -> None:
    kernel = kernel_of(nn.softmax, X)
    ops = [getattr(n, "op", type(n).__name__) for n in kernel.nodes]
    assert levels(kernel)[ops.index("exp")] and not levels(kernel)[ops.index("reduce_sum")]
    assert [stages(kernel)[ops.index(op)] for op in ("Load", "reduce_max", "exp", "reduce_sum", "div")] == [0, 1, 1, 2, 2]


def copy(**changes: Any) -> Kernel:
    """Return a kernel that copies an array of shape (3, 2), with changes."""
    load = Load(F32, 0, (3, 2), (ROWS, COLUMNS), (), Constant.of(0, F32))
    return replace(Kernel((3, 2), 2, (Buffer(6, F32),), (load,), (Store((3, 2), (ROWS, COLUMNS), 0),)), **changes)


def test_a_copy_copies() -> None:
    check_kernel(copy())
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert np.array_equal(interpret(copy(), x)[0], x)
    with pytest.raises(VoltaError, match="takes"):
        interpret(copy(), x.astype(np.float64))


ROW = Load(F32, 0, (3, 2), (ROWS, COLUMNS), (), Constant.of(0, F32))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": (Apply(F32, "neg", (1,)), ROW)}, "reads a later node"),
        ({"nodes": (replace(ROW, index=(ROWS, along(5))),)}, "does not exist"),
        ({"nodes": (replace(ROW, index=(ROWS, COLUMNS.plus(1))),)}, "outside of its buffer"),
        ({"nodes": (replace(ROW, shape=(2, 2)),)}, "another array"),
        ({"stores": (Store((3, 2), (ROWS, ROWS), 0),)}, "twice"),
        ({"stores": (Store((3, 4), (ROWS, COLUMNS), 0),)}, "twice|fill"),
        ({"parallel": 1, "stores": (Store((3,), (ROWS,), 0),)}, "one of a row's many"),
    ],
)
def test_malformed_kernels(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(JaxprError, match=message):
        check_kernel(copy(**changes))


def test_a_masked_load_may_point_outside() -> None:
    masked = replace(ROW, index=(ROWS, COLUMNS.plus(1)), mask=(Range(COLUMNS, -1, 1),), fill=Constant.of(7, F32))
    kernel = copy(nodes=(masked,))
    check_kernel(kernel)
    assert interpret(kernel, np.arange(6, dtype=np.float32))[0].tolist() == [[1, 7], [3, 7], [5, 7]]


def test_interior_padding_splits_the_axis() -> None:
    """Where the size is a multiple of the step, the place of an element is affine after all."""
    x = np.arange(1, 4, dtype=np.float32)
    spread = kernel_of(lambda x: lax.pad(x, np.float32(0), [(0, 1, 1)]), x)
    assert spread.sizes == (3, 2)
    assert interpret(spread, x)[0].tolist() == [1, 0, 2, 0, 3, 0]


def row_sums(*stores: Store) -> Kernel:
    """Return a kernel that sums the rows of an array of shape (3, 2), twice each sum, and the stores that are given."""
    load = Load(F32, 0, (3, 2), (ROWS, COLUMNS), (), Constant.of(0, F32))
    bias = Load(F32, 1, (3,), (ROWS,), (), Constant.of(0, F32))
    nodes = (load, Reduce(F32, "reduce_sum", 0), bias, Apply(F32, "add", (1, 2)))
    return Kernel((3, 2), 1, (Buffer(6, F32), Buffer(3, F32)), nodes, (Store((3,), (ROWS,), 3), *stores))


SUMS = Load(F32, 0, (3,), (ROWS,), (), Constant.of(0, F32))


def test_the_remainder_has_all_stores_and_no_row() -> None:
    rest = remainder(row_sums(Store((3,), (ROWS,), 2)), {1: SUMS})
    assert rest is not None
    kernel, inputs = rest
    check_kernel(kernel)
    assert (kernel.sizes, kernel.parallel, inputs) == ((3,), 1, (1,))
    x, b = np.arange(3, dtype=np.float32), np.array([5, 6, 7], np.float32)
    for got, wanted in zip(interpret(kernel, x, b), (x + b, b), strict=True):
        assert np.array_equal(got, wanted)


@pytest.mark.parametrize("value", [0, 1, 2])
def test_there_is_no_remainder_where_something_is_stored_per_element(value: int) -> None:
    kernel = row_sums(Store((3, 2), (ROWS, COLUMNS), value))
    check_kernel(kernel)
    assert remainder(kernel, {1: SUMS}) is None


def test_there_is_no_remainder_with_another_reduction() -> None:
    assert remainder(row_sums(), {}) is None


def test_stores_without_code_are_an_error() -> None:
    pending = PendingStores(row_sums(Store((3,), (ROWS,), 1)))
    with pytest.raises(JaxprError, match=r"stores \[0, 1\]"):
        pending.check()
    pending.discard(0)
    pending.check(later=[1])
    with pytest.raises(JaxprError, match=r"stores \[1\]"):
        pending.check()
