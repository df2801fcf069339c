"""`dot_general` as machine code, against NumPy in float64 (and in integers)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import volta_fn as vf
from tests.targets import products
from tests.targets.cpu.matmul.products import native
from tests.targets.products import LAYOUTS, MATRICES, arrays, operands
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.cpu.matmul import ROUTINES

pytest.importorskip("llvmlite")

SIZES = st.sampled_from([0, 1, 2, 3, 5, 8, 15, 16, 17, 31, 40])


def check(lhs: np.ndarray, rhs: np.ndarray, dims: Any, preferred: Any = None, chunks: int = 1) -> None:
    """Compare with NumPy."""
    products.check(lambda *operands: native(*operands, chunks), lhs, rhs, dims, preferred)


@settings(max_examples=40, deadline=None)
@given(SIZES, SIZES, SIZES, st.sampled_from(LAYOUTS), st.sampled_from([np.float32, np.float64]), st.integers(0, 99))
def test_matrices_of_any_shape_and_layout(m: int, n: int, k: int, dims: Any, dtype: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lhs, rhs = operands(rng, (m, n, k), dims, dtype)
    check(lhs, rhs, dims, chunks=seed % 3 + 1)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_axes_in_any_order(data: st.DataObject) -> None:
    names = data.draw(st.permutations("abcmnkl"))
    sizes = {name: data.draw(st.sampled_from([1, 2, 3, 5])) for name in names}
    left = data.draw(st.permutations([x for x in names if x in "abmkl"]))
    right = data.draw(st.permutations([x for x in names if x in "abnckl"]))
    inner = ((left.index("k"), left.index("l")), (right.index("k"), right.index("l")))
    stack = ((left.index("b"), left.index("a")), (right.index("b"), right.index("a")))
    rng = np.random.default_rng(0)
    lhs, rhs = (arrays(rng, tuple(sizes[x] for x in axes), np.float32) for axes in (left, right))
    check(lhs, rhs, (inner, stack))


@pytest.mark.parametrize("dims", LAYOUTS)
@pytest.mark.parametrize(("m", "n", "k"), [(100, 70, 1100), (9, 20, 6000), (130, 300, 64), (1, 700, 90), (300, 1, 90), (300, 10, 128)])
def test_shapes_that_are_cut_into_blocks_and_parts(dims: Any, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(1)
    lhs, rhs = operands(rng, (m, n, k), dims, np.float32)
    check(lhs, rhs, dims)
    np.testing.assert_array_equal(native(lhs, rhs, dims), native(lhs, rhs, dims, chunks=5))


@pytest.mark.parametrize(
    "dtype", [np.float16, ml_dtypes.bfloat16, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.bool_]
)
@pytest.mark.parametrize("k", [21, 600])
def test_dtypes(dtype: Any, k: int) -> None:
    rng = np.random.default_rng(2)
    for dims in (MATRICES, LAYOUTS[-1]):
        check(arrays(rng, (18, k), dtype), arrays(rng, (k, 35) if dims == MATRICES else (35, k), dtype), dims)


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, ml_dtypes.bfloat16, np.bool_])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 5), (2, 33, 70), (3, 17, 9), (1, 1, 64)])
def test_nothing_is_written_beside_a_last_narrow_number(dtype: Any, m: int, n: int, k: int) -> None:
    """LLVM makes of a truncation, and of a store with one lane that is known, a store of the untruncated number."""
    rng = np.random.default_rng(6)
    check(arrays(rng, (m, k), dtype), arrays(rng, (k, n), dtype), MATRICES)
    check(arrays(rng, (m, k), dtype), arrays(rng, (n, k), dtype), LAYOUTS[-1])


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
    check(arrays(rng, (20, 33), lhs), arrays(rng, (33, 18), rhs), MATRICES, preferred)


def test_nan_and_infinity_reach_what_they_touch() -> None:
    lhs, rhs = np.zeros((17, 20), np.float32), np.ones((20, 18), np.float32)
    rhs[3, 4], rhs[5, 6] = np.inf, np.nan
    lhs[2, 7] = np.inf
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(native(lhs, rhs, MATRICES), np.matmul(lhs, rhs))


def test_no_terms_make_zeros() -> None:
    assert (native(np.zeros((3, 0), np.float32), np.zeros((0, 20), np.float32), MATRICES) == 0).all()


def test_complex_numbers_are_left_to_others() -> None:
    aval = ShapedArray((2, 2), np.dtype(np.complex64), False)
    assert ROUTINES["dot_general"]((aval, aval), {"dimension_numbers": MATRICES, "preferred_element_type": None}) is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 100), (1, 1337, 100), (1337, 1, 96), (1, 300, 512), (8, 21, 70), (13, 5, 333), (1, 3, 40_000)]
)
def test_few_rows_along_k(dtype: Any, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(4)
    check(arrays(rng, (m, k), dtype), arrays(rng, (n, k), dtype), LAYOUTS[3], chunks=2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16, np.bool_])
@pytest.mark.parametrize(("n", "k"), [(256, 1), (1000, 20), (1543, 9)])
def test_a_row_times_a_matrix(dtype: Any, n: int, k: int) -> None:
    rng = np.random.default_rng(5)
    check(arrays(rng, (1, k), dtype), arrays(rng, (k, n), dtype), MATRICES, chunks=2)
    check(arrays(rng, (k, n), dtype), arrays(rng, (k, 1), dtype), LAYOUTS[0])
    check(arrays(rng, (3, k), dtype), arrays(rng, (3, k, n), dtype), (((1,), (1,)), ((0,), (0,))))


@pytest.mark.parametrize("dims", LAYOUTS)
@pytest.mark.parametrize(("m", "n", "k"), [(120, 512, 128), (150, 1024, 400), (1024, 64, 64)])
def test_lines_that_fall_upon_one_another(dims: Any, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(6)
    lhs, rhs = operands(rng, (m, n, k), dims, np.float32)
    check(lhs, rhs, dims, chunks=3)


@pytest.mark.parametrize("dims", LAYOUTS)
@pytest.mark.parametrize(
    ("m", "n", "dtype"), [(520, 150, np.float32), (400, 600, np.float32), (400, 150, np.float64), (400, 150, ml_dtypes.bfloat16)]
)
def test_operands_packed_beforehand(dims: Any, m: int, n: int, dtype: Any) -> None:
    """Whole and cut panels, blocks of k that are no multiple of the lines packed at a time; of the first two, one is past the caches."""
    rng = np.random.default_rng(7)
    lhs, rhs = operands(rng, (m, n, 500), dims, dtype)
    check(lhs, rhs, dims, chunks=7)


def test_stacks_packed_beforehand() -> None:
    rng = np.random.default_rng(8)
    lhs, rhs = arrays(rng, (3, 500, 330), np.float32), arrays(rng, (3, 500, 150), np.float32)
    check(lhs, rhs, (((1,), (1,)), ((0,), (0,))), chunks=5)


def test_a_large_operand_is_not_packed_ahead() -> None:
    """It would need as much memory again: the gradient by the head of a language model multiplies the transpose of its logits."""
    shapes = vf.ShapeDtypeStruct((4096, 50257), "float32"), vf.ShapeDtypeStruct((4096, 768), "float32")
    assert vf.jit(lambda logits, x: logits.T @ x).lower(*shapes).memory().temporaries < 32 << 20
