"""Convolutions of bfloat16 and of integers: exact for integers, as near as float32 sums of exact products for bfloat16."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
from tests.targets.convolutions import ORDERS, params_of, placed
from tests.targets.cpu.running import run_routine
from volta_fn import lax
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.cpu.matmul.micro_kernel import type_of_groups
from volta_fn.targets.cpu.target import ROUTINES
from volta_fn.targets.numpy.convolution import conv_general_dilated

RNG = np.random.default_rng(0)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
maker = ROUTINES["conv_general_dilated"]

#: Windows with and without steps, padding on either side and holes in either operand.
FORMS: list[dict[str, Any]] = [
    {"padding": ((1, 2), (0, -1)), "window_strides": (1, 2)},
    {"window_strides": (2, 2)},
    {"padding": ((1, 1), (2, 1)), "rhs_dilation": (2, 1)},
    {"padding": ((1, 1), (2, 1)), "lhs_dilation": (2, 2)},
]
#: Operands and results: signed and unsigned bytes, which instructions sum in groups, and wider integers.
INTEGERS = [
    ("int8", "int8", "int32"),
    ("uint8", "int8", "int32"),
    ("int8", "uint8", "int32"),
    ("uint8", "uint8", "int32"),
    ("int8", "int8", "int8"),
    ("int32", "int32", "int32"),
    ("int16", "int8", "int64"),
]


def numbers_of(dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of a dtype; of integers, its extremes among them."""
    kind = np.dtype(dtype)
    if kind.kind not in "iu":
        return RNG.standard_normal(shape).astype(kind)
    limits = np.iinfo(kind)
    x = RNG.integers(limits.min, limits.max + 1, shape, dtype=kind)
    x.flat[: x.size // 3] = RNG.choice(np.array([limits.min, limits.max], kind), x.size // 3)
    return x


def check(lhs: tuple[int, ...], rhs: tuple[int, ...], params: dict[str, Any], dtypes: Any, tolerance: float = 0) -> str:
    """Compare a routine with the NumPy backend in 64 bits; return its text."""
    x, w = (numbers_of(dtype, shape) for dtype, shape in zip(dtypes[:2], (lhs, rhs), strict=True))
    y_dtype = np.dtype(dtypes[2])
    params = {**params, "preferred_element_type": y_dtype}
    routine = maker((ShapedArray(lhs, x.dtype), ShapedArray(rhs, w.dtype)), params)
    assert routine is not None
    assert routine.workspace <= 32 << 20
    plain = {k: v for k, v in params.items() if k not in ("algorithm", "preferred_element_type")}
    wide = np.int64 if y_dtype.kind == "i" else np.float64
    expected = conv_general_dilated(x.astype(wide), w.astype(wide), **plain)
    (actual,) = run_routine(routine, [x, w], [(expected.shape, y_dtype)], 2)
    if wide == np.int64:
        np.testing.assert_array_equal(actual, expected.astype(y_dtype))
    else:
        error = np.abs(actual.astype(np.float64) - expected).max()
        assert error <= tolerance * np.abs(expected).max()
    return routine.text


@pytest.mark.parametrize(
    ("form", "dtype", "tolerance"), [*((form, np.dtype(np.float32), 1e-6) for form in FORMS), (FORMS[0], BFLOAT16, 4e-3)]
)
@pytest.mark.parametrize("channels", [3, 16, 19])
@pytest.mark.parametrize("numbers", ORDERS)
def test_bfloat16(numbers: Any, channels: int, dtype: np.dtype, tolerance: float, form: dict[str, Any]) -> None:
    params = params_of(2, dimension_numbers=numbers, algorithm="igemm", **form)
    lhs, rhs = placed((2, channels, 9, 11), numbers[0]), placed((18, channels, 3, 2), numbers[1])
    text = check(lhs, rhs, params, (BFLOAT16, BFLOAT16, dtype), tolerance)
    if numbers == ORDERS[0] and type_of_groups((BFLOAT16, BFLOAT16), dtype):
        assert "bf16ps" in text or "bfdot" in text


@pytest.mark.parametrize("dtypes", INTEGERS)
@pytest.mark.parametrize("channels", [1, 3, 16, 19])
@pytest.mark.parametrize("numbers", ORDERS)
def test_integers_are_exact(numbers: Any, channels: int, dtypes: tuple[str, str, str]) -> None:
    params = params_of(2, dimension_numbers=numbers, **FORMS[0])
    lhs, rhs = placed((2, channels, 9, 11), numbers[0]), placed((18, channels, 3, 2), numbers[1])
    text = check(lhs, rhs, params, dtypes)
    kinds = (np.dtype(dtypes[0]), np.dtype(dtypes[1]))
    if channels > 1 and numbers == ORDERS[0] and type_of_groups(kinds, np.dtype(dtypes[2])):
        assert "vpdpbusd" in text or "sdot" in text


@pytest.mark.parametrize("dtypes", [*INTEGERS[:4], (BFLOAT16, BFLOAT16, np.float32)])
@pytest.mark.parametrize("numbers", ORDERS[:2])
@pytest.mark.parametrize("step", [1, 2])
def test_one_tap(step: int, numbers: Any, dtypes: Any) -> None:
    params = params_of(2, dimension_numbers=numbers, window_strides=(step, step))
    check(placed((2, 21, 16, 17), numbers[0]), placed((33, 21, 1, 1), numbers[1]), params, dtypes, 1e-6)


@pytest.mark.parametrize("dtypes", [("int8", "int8", "int32"), (BFLOAT16, BFLOAT16, np.float32)])
@pytest.mark.parametrize("groups", [4, 32])
@pytest.mark.parametrize("numbers", ORDERS[:2])
@pytest.mark.parametrize("algorithm", ["auto", "igemm", "direct"])
def test_groups_of_features(algorithm: str, numbers: Any, groups: int, dtypes: Any) -> None:
    params = params_of(2, dimension_numbers=numbers, feature_group_count=groups, padding=((1, 1), (2, 0)), algorithm=algorithm)
    check(placed((2, 32, 7, 21), numbers[0]), placed((32, 32 // groups, 3, 3), numbers[1]), params, dtypes, 1e-6)


@pytest.mark.parametrize("images", [1, 5])
@pytest.mark.parametrize("numbers", [((1, 0, 2, 3),) * 3, ((3, 0, 1, 2), (3, 0, 1, 2), (2, 3, 0, 1))])
@pytest.mark.parametrize("size", [(14, 23), (48, 70)])
def test_sums_over_many_positions(size: tuple[int, int], numbers: Any, images: int) -> None:
    """As in gradients by the weights, where groups are of images."""
    params = params_of(2, dimension_numbers=numbers, padding=((1, 1), (1, 1)), algorithm="igemm")
    lhs, rhs = placed((8, images, *size), numbers[0]), placed((20, images, *size), numbers[1])
    check(lhs, rhs, params, (BFLOAT16, BFLOAT16, np.float32), 2e-6)


def test_bytes_with_windows_as_large_as_the_image() -> None:
    check((2, 8, 30, 30), (5, 8, 29, 30), params_of(2), ("int8", "int8", "int32"))


@pytest.mark.parametrize("algorithm", ["winograd", "direct", "auto"])
@pytest.mark.parametrize("numbers", ORDERS[:2])
def test_bfloat16_by_other_algorithms(numbers: Any, algorithm: str) -> None:
    params = params_of(2, dimension_numbers=numbers, padding=((1, 1), (1, 1)), algorithm=algorithm)
    dtypes = (BFLOAT16, BFLOAT16, np.float32)
    check(placed((2, 24, 12, 14), numbers[0]), placed((20, 24, 3, 3), numbers[1]), params, dtypes, 2e-5)


def test_numbers_beside_a_group_do_not_matter() -> None:
    """A channel that a group lacks is neither read nor multiplied: the infinity that follows in memory stays out."""
    x, w = np.ones((2, 3, 4, 4), BFLOAT16), np.ones((1, 3, 2, 2), BFLOAT16)
    x[1, 0] = np.inf
    routine = maker((ShapedArray(x.shape, x.dtype), ShapedArray(w.shape, w.dtype)), params_of(2, algorithm="igemm"))
    assert routine is not None
    (actual,) = run_routine(routine, [x, w], [((2, 1, 3, 3), BFLOAT16)])
    np.testing.assert_array_equal(actual[0].astype(np.float32), np.full((1, 3, 3), 12))
    assert np.isposinf(actual[1].astype(np.float32)).all()


@pytest.mark.parametrize(("groups", "step"), [(1, 1), (1, 2), (2, 1), (12, 1)])
def test_gradients_of_bfloat16(groups: int, step: int) -> None:
    """Both gradients are those of float64, rounded to bfloat16."""
    x, w = numbers_of(BFLOAT16, (3, 12, 10, 9)), numbers_of(BFLOAT16, (24, 12 // groups, 3, 3))

    def convolve(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (step, step), [(1, 1), (1, 1)], feature_group_count=groups)

    ct = numbers_of(BFLOAT16, convolve(x, w).shape)
    gradients = vf.jit(lambda x, w, ct: vf.vjp(convolve, x, w)[1](ct))(x, w, ct)
    expected = vf.vjp(convolve, x.astype(np.float64), w.astype(np.float64))[1](ct.astype(np.float64))
    for actual, right in zip(gradients, expected, strict=True):
        assert actual.dtype == BFLOAT16
        error = np.abs(np.asarray(actual).astype(np.float64) - np.asarray(right)).max()
        assert error <= 4e-3 * np.abs(np.asarray(right)).max()
