"""Sorting, of lengths that each way of sorting takes, with ties, NaN and zeros of either sign."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.keys import numbers, params
from tests.targets.reference import assert_same, reference
from tests.targets.wgsl.library.checking import check, least_capabilities, results, routine_of
from tests.targets.wgsl.running import known_width, run_routine
from volta_fn.lazy_imports import load
from volta_fn.targets.wgsl.library.small_sort import Tile, digit_bits

#: A module whose package has a function of its name.
sort = load("volta_fn.targets.wgsl.library.sort")


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int32", "int64", "uint64", "float16", "bfloat16", "float32", "float64", "complex64"]
)
def test_one_operand(dtype: str) -> None:
    check("sort", [numbers(dtype, (60, 3))], params(0, stable=False))


@pytest.mark.parametrize("size", [33, 64, 700, 2048])
def test_keys_alone(size: int) -> None:
    x = numbers("float32", (3, size))
    check("sort", [x], params(1))
    check("sort", [-np.sort(x, axis=1)], params(1))


@pytest.mark.parametrize("size", [7, 200, 1500])
def test_zeros_keep_their_order(size: int) -> None:
    x = np.where(np.arange(size) % 3 == 0, -0.0, np.where(np.arange(size) % 5 == 0, 0.0, -1.0)).astype(np.float32)
    (got,) = results("sort", [x], params(0), least_capabilities(), [x])
    np.testing.assert_array_equal(np.signbit(got), np.signbit(x[np.argsort(x, kind="stable")]))


@pytest.mark.parametrize("dtype", ["float16", "complex128"])
def test_several_operands(dtype: str) -> None:
    size = 700
    keys, places = numbers(dtype, (2, size)), np.tile(np.arange(size, dtype=np.int32), (2, 1))
    check("sort", [keys, places], params(1))
    check("sort", [keys, places, numbers("complex64", (2, size))], params(1))
    check("sort", [numbers("int8", (2, size)), keys, places], params(1, keys=2))


def test_very_short_rows() -> None:
    check("sort", [numbers("float32", (7000, 3))], params(1))
    check("sort", [numbers("int8", (20, 9)), numbers("int8", (20, 9), 1), numbers("float64", (20, 9))], params(1, keys=2))


def test_more_workgroups_than_one_dimension_has() -> None:
    x = numbers("int8", (50, 33))
    (got,) = results("sort", [x], params(1), least_capabilities()._replace(groups=7), [x])
    np.testing.assert_array_equal(got, np.sort(x, 1))


def test_long_rows() -> None:
    x = numbers("float16", (2, 5000))
    x[0, ::3], x[0, 1::5] = -0.0, 0.0
    check("sort", [x], params(1))
    (got,) = results("sort", [x], params(1), least_capabilities(), [x])
    wanted = np.take_along_axis(x, np.argsort(x, axis=1, kind="stable"), 1)
    np.testing.assert_array_equal(np.signbit(got) & ~np.isnan(got), np.signbit(wanted) & ~np.isnan(wanted))
    check("sort", [numbers("uint8", (33_000,))], params(0))


def test_large_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sort, "_MUCH", 1)
    byte, half = numbers("int8", (70_000,)), numbers("float16", (70_000,))
    check("sort", [byte, half, numbers("complex64", half.shape)], params(0, keys=2))


def check_ballots(operands: list[np.ndarray], axis: int = 0, keys: int = 1) -> None:
    """Elements sorted by ballots are those that the primitive means."""
    arguments = params(axis, keys)
    routine = routine_of("sort", operands, arguments, known_width())
    assert any("subgroupBallot" in dispatch.source for dispatch in routine.dispatches)
    expected = reference("sort", operands, arguments)
    for got, wanted in zip(run_routine(routine, operands, [(x.shape, x.dtype) for x in expected]), expected, strict=True):
        assert_same(got, wanted)


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float32"])
def test_short_rows_by_ballots(dtype: str) -> None:
    places = np.tile(np.arange(700, dtype=np.int32), (3, 1))
    check_ballots([numbers(dtype, (3, 700)), places], 1)
    check_ballots([numbers("int8", (3, 700)), numbers(dtype, (3, 700), 1), places], 1, keys=2)


def test_long_rows_by_ballots(monkeypatch: pytest.MonkeyPatch) -> None:
    tile = Tile(1 << digit_bits(known_width()), 3)
    monkeypatch.setattr(sort, "_TILE", tile)
    for size in (13 * tile.size + 4, 18 * tile.size + 44):  # everyone counts all digits; they are counted first
        keys, places = numbers("float16", (2, size)), np.tile(np.arange(size, dtype=np.int32), (2, 1))
        check_ballots([keys, places], 1)
        check_ballots([keys], 1)
    check_ballots([numbers("bool", (2, size)), keys, places], 1, keys=2)
