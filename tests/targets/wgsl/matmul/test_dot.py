"""`dot_general` in WGSL, against NumPy in wider numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.targets.products import LAYOUTS, MATRICES, arrays, check, operands
from tests.targets.wgsl.running import capabilities, run_routine
from volta_fn.compiler.contractions import of_problem, problem_of
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.contraction import dot_general_p
from volta_fn.targets.wgsl.matmul import ROUTINES
from volta_fn.targets.wgsl.matmul.contract import candidates, oriented
from volta_fn.targets.wgsl.matmul.results import rounded, working
from volta_fn.targets.wgsl.matmul.tiles import Schedule, tiled

#: What every device has, but for 64-bit numbers where this one has them.
PLAIN = TargetCapabilities(float64=capabilities().float64, int64=capabilities().int64)


def product(lhs: np.ndarray, rhs: np.ndarray, dims: Any, preferred: Any = None) -> np.ndarray:
    """Return the product as the maker's routine has it."""
    params = {"dimension_numbers": dims, "preferred_element_type": None if preferred is None else np.dtype(preferred)}
    avals = ShapedArray(lhs.shape, lhs.dtype, False), ShapedArray(rhs.shape, rhs.dtype, False)
    out = dot_general_p.result_avals(avals, params)
    routine = ROUTINES["dot_general"](avals, params, PLAIN)
    assert routine is not None
    return run_routine(routine, [lhs, rhs], [(out.shape, out.dtype)])[0]


def by(schedule: Schedule) -> Any:
    """Return the product by a schedule."""

    def run(lhs: np.ndarray, rhs: np.ndarray, dims: Any, _: Any) -> np.ndarray:
        c, buffers = oriented(of_problem(problem_of(lhs.shape, rhs.shape, dims, (lhs.dtype,) * 3)))
        work = working(lhs.dtype)
        assert schedule.fits(work, PLAIN)
        routine = tiled(c, work, schedule, PLAIN, rounded(lhs.dtype), buffers)
        shape = lhs.shape[1 - dims[0][0][0]], rhs.shape[1 - dims[0][1][0]]
        return run_routine(routine, [lhs, rhs], [(shape, lhs.dtype)])[0]

    return run


@settings(max_examples=8, deadline=None)
@given(st.tuples(*[st.sampled_from([1, 3, 16, 20, 33, 68])] * 3), st.sampled_from(LAYOUTS))
def test_matrices_of_any_shape_and_layout(sizes: tuple[int, int, int], dims: Any) -> None:
    check(product, *operands(np.random.default_rng(0), sizes, dims, np.float32), dims)


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_axes_in_any_order(data: st.DataObject) -> None:
    names = data.draw(st.permutations("abcmnkl"))
    sizes = {name: data.draw(st.sampled_from([1, 2, 3, 4, 8])) for name in names}
    left = data.draw(st.permutations([x for x in names if x in "abmkl"]))
    right = data.draw(st.permutations([x for x in names if x in "abnckl"]))
    inner = ((left.index("k"), left.index("l")), (right.index("k"), right.index("l")))
    stack = ((left.index("b"), left.index("a")), (right.index("b"), right.index("a")))
    rng = np.random.default_rng(0)
    lhs, rhs = (arrays(rng, tuple(sizes[x] for x in axes), np.float32) for axes in (left, right))
    check(product, lhs, rhs, (inner, stack))


FLOATS = [np.float64, np.float16, ml_dtypes.bfloat16, np.complex64, np.complex128]
INTEGERS = [np.bool_, np.int8, np.uint16, np.int32, np.int64, np.uint64]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_dtypes(dtype: Any) -> None:
    rng = np.random.default_rng(2)
    for dims, sizes in ((MATRICES, (18, 35, 21)), (LAYOUTS[3], (20, 36, 24))):
        check(product, *operands(rng, sizes, dims, dtype), dims)


@pytest.mark.parametrize(
    ("lhs", "rhs", "preferred"),
    [
        (np.float16, np.float32, None),
        (ml_dtypes.bfloat16, ml_dtypes.bfloat16, np.float32),
        (np.float32, np.float32, np.float64),
        (np.int8, np.int8, np.int32),
        (np.uint8, np.uint8, np.uint64),
    ],
)
def test_operands_narrower_than_the_result(lhs: Any, rhs: Any, preferred: Any) -> None:
    rng = np.random.default_rng(3)
    check(product, arrays(rng, (20, 33), lhs), arrays(rng, (33, 18), rhs), MATRICES, preferred)


def test_nan_and_infinity_reach_what_they_touch() -> None:
    lhs, rhs = np.zeros((17, 20), np.float32), np.ones((20, 18), np.float32)
    rhs[3, 4], rhs[5, 6] = np.inf, np.nan
    lhs[2, 7] = np.inf
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(product(lhs, rhs, MATRICES), np.matmul(lhs, rhs))


def test_no_terms_make_zeros() -> None:
    assert (product(np.zeros((3, 0), np.float32), np.zeros((0, 20), np.float32), MATRICES) == 0).all()


def test_what_has_no_routine() -> None:
    wide, empty = ShapedArray((2, 2), np.dtype(np.float64), False), ShapedArray((0, 2), np.dtype(np.float32), False)
    params = {"dimension_numbers": MATRICES, "preferred_element_type": None}
    assert ROUTINES["dot_general"]((wide, wide), params, TargetCapabilities()) is None
    assert ROUTINES["dot_general"]((empty, ShapedArray((2, 2), np.dtype(np.float32), False)), params, TargetCapabilities()) is None


#: Tiles of many forms.
SCHEDULES = [
    Schedule(64, 128, 16, 8, 8, unroll=8),
    Schedule(128, 64, 8, 8, 8, unroll=4, band=3, ahead=False),
    Schedule(64, 64, 16, 4, 8, pad=0),
    Schedule(32, 32, 32, 4, 4, lane_rows=2, lane_columns=4, unroll=4, splits=3),
    Schedule(16, 128, 8, 4, 8, unroll=4, splits=2, lane_rows=1, twice=True),
    Schedule(8, 64, 32, 4, 4, unroll=4, ahead=False),
]


@pytest.mark.parametrize("number", range(len(SCHEDULES)))
def test_schedules(number: int) -> None:
    rng = np.random.default_rng(4)
    for sizes, turn in (((128, 256, 192), 0), ((75, 134, 130), 2)):
        dims = LAYOUTS[(number + turn) % 4]
        check(by(SCHEDULES[number]), *operands(rng, sizes, dims, np.float32), dims)


@pytest.mark.parametrize("number", range(len(SCHEDULES)))
def test_short_ones_give_the_same_bits(number: int) -> None:
    dims = LAYOUTS[number % 4]
    agree(SCHEDULES[number], operands(np.random.default_rng(8), (75, 134, 130), dims, np.float32), dims)


@pytest.mark.parametrize("dtype", [np.float16, np.complex64, np.int64])
def test_short_ones_of_other_dtypes_do_so_too(dtype: Any) -> None:
    agree(Schedule(16, 16, 8, 4, 4, splits=3), operands(np.random.default_rng(9), (21, 23, 70), MATRICES, dtype), MATRICES)


def agree(schedule: Schedule, pair: Any, dims: Any) -> None:
    short = schedule.short(working(pair[0].dtype), PLAIN, always=True)
    assert short is not None
    assert by(short)(*pair, dims, None).tobytes() == by(schedule)(*pair, dims, None).tobytes()


@pytest.mark.parametrize("dtype", [np.float16, np.complex64, np.int64])
def test_parts_of_sums_of_other_dtypes(dtype: Any) -> None:
    schedule = Schedule(16, 16, 8, 4, 4, splits=3)
    for sizes in ((20, 24, 70), (21, 23, 70)):
        check(by(schedule), *operands(np.random.default_rng(5), sizes, MATRICES, dtype), MATRICES)


FEW = [(1, 21, 516), (2, 5, 300), (70, 1, 1000), (1, 1, 999), (300, 1, 7), (2, 9, 40)]


@pytest.mark.parametrize(("m", "n", "k"), FEW)
def test_few_rows_or_few_columns(m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(6)
    for dims in (LAYOUTS[1], LAYOUTS[3]):
        check(product, *operands(rng, (m, n, k), dims, np.float32), dims)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 68, 516), (2, 36, 301), (72, 1, 1000), (1, 64, 4100), (2, 512, 8200)])
def test_a_matrix_whose_neighbours_belong_to_different_results_by_few_vectors(m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(7)
    for dims in (LAYOUTS[0], LAYOUTS[1]):
        check(product, *operands(rng, (m, n, k), dims, np.float32), dims)


@pytest.mark.parametrize("dtype", [np.float16, np.complex64, np.bool_])
def test_few_rows_or_few_columns_of_other_dtypes(dtype: Any) -> None:
    for sizes in ((2, 5, 300), (2, 9, 40)):
        check(product, *operands(np.random.default_rng(6), sizes, LAYOUTS[3], dtype), LAYOUTS[3])


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_all_candidates_fit_what_every_device_has(dtype: Any) -> None:
    aval = ShapedArray((300, 300), np.dtype(dtype), False)
    c = of_problem(problem_of(aval.shape, aval.shape, MATRICES, (aval.dtype,) * 3))
    result = candidates(c, working(aval.dtype), PLAIN, 100)
    assert len(result) > 3
    assert all(schedule.fits(working(aval.dtype), TargetCapabilities()) for schedule in result)
