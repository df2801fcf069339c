"""Which products matrix units compute, and by which schedules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.targets.nvidia.planning import AMPERE, HOPPER
from volta_fn.compiler.contractions import problem_of
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.nvidia.matmul.problem import (
    SHIPPED,
    MatrixOperand,
    MatrixProduct,
    Schedule,
    WarpSchedule,
    candidates,
    choose,
    chunk,
    faster_transposed,
    is_legal,
    matrix_product,
    read,
    tiles,
)

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT32, INT8 = np.dtype(np.float32), np.dtype(np.int8)


def product(m: int, n: int, k: int, layout: str = "NN", batch: int = 0, dtype: np.dtype = BFLOAT16) -> MatrixProduct | None:
    """Return a product of contiguous matrices, if matrix units can compute it."""
    stack = (batch,) if batch else ()
    lhs, rhs = (m, k) if layout[0] == "N" else (k, m), (k, n) if layout[1] == "N" else (n, k)
    first = len(stack)
    inner = (first + (layout[0] == "N"),), (first + (layout[1] == "T"),)
    axes = tuple(range(first))
    problem = problem_of((*stack, *lhs), (*stack, *rhs), (inner, (axes, axes)), (dtype, dtype, FLOAT32))
    return matrix_product(problem, 0, 1)


def existing(*args: Any, **options: Any) -> MatrixProduct:
    """Return a product that matrix units can compute."""
    result = product(*args, **options)
    assert result is not None
    return result


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_tensor_maps_list_the_contiguous_axis_first(layout: str) -> None:
    p = existing(128, 256, 64, layout, batch=3)
    assert p.layout == layout
    assert (p.m, p.n, p.k, p.batch) == (128, 256, 64, 3)
    left, right = p.lhs.tensor_map(64), p.rhs.tensor_map(64)
    assert left.dims == ((64, 128, 3) if layout[0] == "N" else (128, 64, 3))
    assert right.dims == ((256, 64, 3) if layout[1] == "N" else (64, 256, 3))
    assert left.strides == (2 * left.dims[0], 2 * 64 * 128)
    assert left.box == right.box == (64, 64, 1)


def test_rows_begin_at_multiples_of_16_bytes() -> None:
    def copies(*args: Any) -> tuple[bool, bool]:
        p = existing(*args)
        return p.lhs.is_copy, p.rhs.is_copy

    assert copies(100, 104, 96) == (False, False)
    assert copies(104, 100, 96) == (False, True)  # rows of the right operand have 200 bytes
    assert copies(104, 100, 96, "NT") == (False, False)
    assert copies(104, 104, 100) == (True, False)
    assert existing(104, 100, 96).rhs.stride == 104
    assert existing(104, 100, 96).layout == "NN"


def test_float32_is_refused_unless_it_may_be_rounded() -> None:
    assert product(128, 128, 128, dtype=FLOAT32) is None
    matrices = ((1,), (0,)), ((), ())
    problem = problem_of((128, 64), (64, 96), matrices, (FLOAT32,) * 3)
    rounded = matrix_product(problem, 0, 1, {FLOAT32})
    assert rounded is not None
    assert (rounded.lhs.is_copy, rounded.rhs.is_copy) == (False, True)
    assert rounded.layout == "NT"
    assert rounded.rhs.tensor_map(64).dtype == "float32"


def test_integers_of_8_bits_are_summed_in_32() -> None:
    matrices = ((1,), (0,)), ((), ())
    problem = problem_of((128, 64), (64, 96), matrices, (INT8, INT8, np.dtype(np.int32)))
    assert matrix_product(problem, 0, 1) is None
    integers = matrix_product(problem, 0, 1, {INT8})
    assert integers is not None
    assert integers.sum_dtype == np.int32
    assert integers.name == "s8 NT 1x128x96x64"
    assert (integers.lhs.is_copy, integers.rhs.is_copy) == (False, True)
    assert integers.lhs.tensor_map(64).box == (128, 64)
    assert matrix_product(replace(problem, dtype=INT8), 0, 1, {INT8}) is None


def test_pairs_are_copies_with_three_times_as_many_terms() -> None:
    problem = problem_of((128, 61), (61, 96), (((1,), (0,)), ((), ())), (FLOAT32,) * 3)
    pairs = matrix_product(problem, 0, 1, pairs=True)
    assert pairs is not None
    assert (pairs.k, pairs.lhs.stride, pairs.layout) == (192, 192, "NT")
    assert pairs.lhs.is_copy
    assert pairs.rhs.is_copy
    assert pairs.lhs.dtype == BFLOAT16
    half = problem_of((128, 61), (61, 96), (((1,), (0,)), ((), ())), (BFLOAT16, BFLOAT16, FLOAT32))
    assert matrix_product(half, 0, 1, pairs=True) is None


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_operands_that_are_not_contiguous_along_k_are_copied_in_whole_boxes(layout: str) -> None:
    p = existing(128, 256, 64, layout)
    assert is_legal(p, Schedule(32, 1, stages=8)) == (layout[1] == "T")  # there is no room for more columns
    assert is_legal(p, Schedule(208, 2, stages=5)) == (layout[1] == "T")
    assert is_legal(p, Schedule(208, 2, stages=4))
    assert is_legal(p, WarpSchedule(32, 64, 16, 32)) == (layout[0] == "N")
    assert is_legal(p, WarpSchedule(64, 32, 32, 32)) == (layout[1] == "T")
    assert is_legal(p, WarpSchedule(64, 64, 32, 32))
    schedule = choose(p, HOPPER)
    assert is_legal(p, schedule)


@pytest.mark.parametrize(("m", "n", "k", "transposes"), [(256, 64, 100352, True), (64, 256, 100352, True), (4096, 4096, 4096, False)])
def test_long_sums_of_few_results_are_of_operands_that_are_transposed_in_shared_memory(m: int, n: int, k: int, transposes: bool) -> None:
    """To transpose slices for every tile takes less time than a copy if there are few tiles."""
    problem = problem_of((k, m), (k, n), (((0,), (0,)), ((), ())), (FLOAT32,) * 3)
    in_place, copied = [matrix_product(problem, 0, 1, {FLOAT32}, transposes=each) for each in (True, False)]
    assert in_place is not None
    assert copied is not None
    assert in_place.transposes
    assert in_place.layout == "TN"
    assert not in_place.rhs.is_copy
    assert copied.rhs.is_copy
    assert not is_legal(in_place, Schedule(256, 2, stages=4)), "there is room for two slices of columns"
    best = faster_transposed([in_place], copied, HOPPER)
    assert best == (in_place if transposes else None)
    assert best is None or is_legal(best, choose(best, HOPPER))


@pytest.mark.parametrize("device", [AMPERE, HOPPER, AMPERE._replace(block_memory=99 << 10)], ids=["mma", "wgmma", "small mma"])
def test_schedules_fit(device: TargetCapabilities) -> None:
    assert candidates(device)
    for schedule in candidates(device):
        assert schedule.shared <= device.block_memory
        if isinstance(schedule, Schedule):
            # a multiprocessor has 228 KiB, of which each block takes one more
            assert schedule.residents * (schedule.shared + 1024) <= 228 << 10
        else:
            assert schedule.rows % schedule.warp_rows == schedule.columns % schedule.warp_columns == 0


def test_large_products_have_large_tiles() -> None:
    schedule = choose(existing(8192, 8192, 8192), HOPPER)
    assert isinstance(schedule, Schedule)
    assert schedule.rows * schedule.columns >= 128 * 128
    assert schedule.splits == 1


def test_long_sums_of_few_tiles_are_split() -> None:
    p = existing(256, 256, 1 << 15, "TN")
    for device in (AMPERE, HOPPER):
        schedule = choose(p, device)
        assert schedule.splits > 4
        assert chunk(p, schedule.splits) * schedule.splits >= 512


def test_pairs_of_products_have_half_of_the_columns_each() -> None:
    p = existing(512, 4864, 896, "NT")
    assert isinstance(p.rhs, MatrixOperand)
    pair = p._replace(second=p.rhs._replace(binding=2))
    assert pair.name == "bf16 NT 1x512x2*4864x896"
    assert tiles(pair, Schedule(192, 2)) == (4, 51)
    assert is_legal(pair, Schedule(96, 2))
    assert not is_legal(pair, Schedule(48, 2))  # results of 16 columns of each are staged together
    assert not is_legal(pair, Schedule(192, 2, splits=2))
    assert not is_legal(pair, WarpSchedule())
    schedule = choose(pair, HOPPER)
    assert schedule.splits == 1


def test_shipped_schedules_are_valid() -> None:
    for schedules in read(SHIPPED).values():
        for schedule in schedules.values():
            assert isinstance(schedule, Schedule | WarpSchedule)
            assert schedule.shared <= 227 << 10


def test_a_file_of_schedules(tmp_path: Any) -> None:
    path = tmp_path / "tuned.json"
    path.write_text('{"a GPU": {"bf16 NN 1x512x512x512": {"kind": "wgmma", "columns": 64, "groups": 1}}}')
    assert read(path) == {"a GPU": {"bf16 NN 1x512x512x512": Schedule(64, 1)}}
    path.write_text('{"a GPU": {"x": {"kind": "wgmma", "width": 1}}}')
    assert read(path) == {}
