"""`dot_general` on the CPU against `np.einsum` in a wide dtype, over axes, dtypes and layouts."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import volta_fn as vf
from volta_fn.targets.numpy.linalg import dot_general, dot_general_plan

MATRIX = (((1,), (0,)), ((), ()))
EXACT = [np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
HALF = [np.float16, ml_dtypes.bfloat16]
WIDE = [np.float32, np.float64, np.complex64, np.complex128]


def sample(rng: np.random.Generator, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Small whole numbers for inexact dtypes, so that sums are exact; the whole range for integers."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    if dtype.kind == "b":
        return rng.random(shape) < 0.3
    values = rng.integers(-3, 4, shape).astype(np.float64)
    return (values + 1j * rng.integers(-3, 4, shape)).astype(dtype) if dtype.kind == "c" else values.astype(dtype)


def oracle(lhs: np.ndarray, rhs: np.ndarray, dimension_numbers: tuple, dtype: np.dtype) -> np.ndarray:
    """Return the same sum by `np.einsum`; Python integers stand in for the integer dtypes, so that wrapping is done here."""
    (lc, rc), (lb, rb) = dimension_numbers
    left, right = list(range(lhs.ndim)), list(range(100, 100 + rhs.ndim))
    for i, j in [*zip(lc, rc, strict=True), *zip(lb, rb, strict=True)]:
        right[j] = left[i]
    names = {n: i for i, n in enumerate(dict.fromkeys([*left, *right]))}
    left, right = [names[n] for n in left], [names[n] for n in right]
    free = [left[i] for i in range(lhs.ndim) if i not in (*lc, *lb)] + [right[j] for j in range(rhs.ndim) if j not in (*rc, *rb)]
    out = [left[i] for i in lb] + free
    if dtype.kind in "iu":
        exact = np.einsum(lhs.astype(object), left, rhs.astype(object), right, out)
        return np.asarray(np.asarray(exact, dtype=object) % (1 << 8 * dtype.itemsize), np.uint64).astype(dtype)
    if dtype.kind == "b":
        return np.asarray(np.einsum(lhs.astype(np.int64), left, rhs.astype(np.int64), right, out) > 0)
    wide = np.complex128 if dtype.kind == "c" else np.float64
    return np.asarray(np.einsum(lhs.astype(wide), left, rhs.astype(wide), right, out)).astype(dtype)


@st.composite
def contractions(draw: st.DrawFn) -> tuple:
    """Shapes, memory layouts and dimension numbers of two operands."""
    sizes = st.integers(0, 4)
    contract, batch, left, right = (draw(st.lists(sizes, max_size=2)) for _ in range(4))
    places = []
    for free in (left, right):
        axes = [("c", i) for i in range(len(contract))] + [("b", i) for i in range(len(batch))] + [("f", i) for i in range(len(free))]
        places.append(draw(st.permutations(axes)))
    length = {("c", i): n for i, n in enumerate(contract)} | {("b", i): n for i, n in enumerate(batch)}
    shapes = [
        tuple((length | {("f", i): n for i, n in enumerate(free)})[axis] for axis in place)
        for free, place in zip((left, right), places, strict=True)
    ]
    numbers = tuple(
        tuple(tuple(place.index((kind, i)) for i in range(count)) for place in places)
        for kind, count in (("c", len(contract)), ("b", len(batch)))
    )
    layouts = [draw(st.permutations(range(len(shape)))) for shape in shapes]
    return shapes, layouts, numbers


def laid_out(array: np.ndarray, order: list[int]) -> np.ndarray:
    """`array` with its axes in memory in the given order."""
    return array.transpose(order).copy().transpose([order.index(i) for i in range(array.ndim)])


@settings(max_examples=60, deadline=None)
@given(contractions(), st.sampled_from(EXACT + HALF + WIDE), st.integers(0, 2**32 - 1))
def test_any_axes_any_dtype(case: tuple, dtype: type, seed: int) -> None:
    shapes, layouts, numbers = case
    rng = np.random.default_rng(seed)
    lhs, rhs = (laid_out(np.asarray(sample(rng, shape, dtype)), list(order)) for shape, order in zip(shapes, layouts, strict=True))
    got = dot_general(lhs, rhs, dimension_numbers=numbers, preferred_element_type=None)
    want = oracle(lhs, rhs, numbers, np.dtype(dtype))
    assert got.dtype == want.dtype
    assert not np.shares_memory(got, lhs) and not np.shares_memory(got, rhs)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("dtype", "preferred"),
    [
        (np.int8, np.int32),
        (np.uint8, np.uint64),
        (np.int16, np.int64),
        (np.int32, np.int64),
        (np.float16, np.float32),
        (ml_dtypes.bfloat16, np.float64),
    ],
)
def test_preferred_element_type_sums_in_the_wider_dtype(dtype: type, preferred: type) -> None:
    rng = np.random.default_rng(0)
    lhs, rhs = sample(rng, (5, 300), dtype), sample(rng, (300, 4), dtype)
    got = dot_general(lhs, rhs, dimension_numbers=MATRIX, preferred_element_type=np.dtype(preferred))
    np.testing.assert_array_equal(got, oracle(lhs, rhs, MATRIX, np.dtype(preferred)))
    assert got.dtype == preferred


def test_operands_of_two_dtypes_meet_in_the_preferred_one() -> None:
    lhs, rhs = np.ones((2, 3), np.float16), np.full((3, 2), 2.0**-30, np.float32)
    got = dot_general(lhs, rhs, dimension_numbers=MATRIX, preferred_element_type=np.dtype(np.float32))
    np.testing.assert_array_equal(got, np.full((2, 2), np.float32(3 * 2.0**-30)))


def test_halves_are_rounded_once() -> None:
    """2048 + 1 is no float16; the sum of 2048 and two ones is, if it was not rounded on the way."""
    lhs, rhs = np.array([[2048, 1, 1]], np.float16), np.ones((3, 1), np.float16)
    assert dot_general(lhs, rhs, dimension_numbers=MATRIX)[0, 0] == 2050


def test_integer_sums_longer_than_a_float64_holds_wrap_exactly() -> None:
    count = (1 << 20) + 3
    lhs, rhs = np.full((1, count), 2**32 - 1, np.uint32), np.full((count, 1), 2**32 - 5, np.uint32)
    assert int(dot_general(lhs, rhs, dimension_numbers=MATRIX)[0, 0]) == (count * 5) % 2**32


def test_nan_and_infinity_meet_zero() -> None:
    lhs, rhs = np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[np.inf, 1.0], [1.0, np.nan]])
    with np.errstate(invalid="ignore"):
        got = dot_general(lhs, rhs, dimension_numbers=MATRIX)
    np.testing.assert_array_equal(got, [[np.nan, np.nan], [np.nan, np.nan]])


def test_a_matrix_product_is_numpys_own_function() -> None:
    assert dot_general_plan(2, 2, MATRIX, np.dtype(np.float32), np.dtype(np.float32)) is np.dot
    assert dot_general_plan(3, 3, (((2,), (1,)), ((0,), (0,))), np.dtype(np.float32), np.dtype(np.float32)) is np.matmul


def test_products_of_rows_are_no_matrix_product() -> None:
    """One batch axis and one contracted axis: as many axes as a matrix product has."""
    lhs, rhs = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(dot_general(lhs, rhs, dimension_numbers=(((1,), (1,)), ((0,), (0,)))), [3.0, 12.0])


@pytest.mark.filterwarnings("ignore:invalid value")  # which backends silence
@pytest.mark.parametrize(("m", "n"), [(1, 8), (8, 1), (1, 1)])
@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_products_with_one_zero_keep_nan(m: int, n: int, special: float) -> None:
    for a, b in ((np.zeros((m, 1)), np.full((1, n), special)), (np.full((m, 1), special), np.zeros((1, n)))):
        numbers = (((1,), (0,)), ((), ()))
        assert np.isnan(dot_general(a, b, dimension_numbers=numbers)).all()
        assert np.isnan(vf.numpy.asarray(a) @ vf.numpy.asarray(b)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_long_sums_of_products_lose_a_few_roundings(dtype):
    """BLAS adds half a million equal terms with a hundred times the error."""
    rng = np.random.default_rng(0)
    x, y = (rng.random((3, 500_001)).astype(dtype) for _ in range(2))
    wide, other = (a.astype("complex128" if dtype == np.complex64 else "float64") for a in (x, y))
    summed = (((0,), (0,)), ((), ()))
    np.testing.assert_allclose(dot_general(x[0], y[0], dimension_numbers=summed), wide[0] @ other[0], rtol=1e-6)
    np.testing.assert_allclose(dot_general(x.T, y.T, dimension_numbers=summed), wide @ other.T, rtol=1e-6)
    out = np.empty((3, 3), dtype)
    dot_general(x, y, dimension_numbers=(((1,), (1,)), ((), ())), out=out)
    np.testing.assert_allclose(out, wide @ other.T, rtol=1e-6)
    batched = dot_general(x, y, dimension_numbers=(((1,), (1,)), ((0,), (0,))))
    np.testing.assert_allclose(batched, (wide * other).sum(1), rtol=1e-6)
