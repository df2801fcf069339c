"""Convolutions in WGSL, against the NumPy backend's evaluation in wider numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.targets.convolutions import ORDERS, configurations, params_of, placed
from tests.targets.products import arrays
from tests.targets.wgsl.running import capabilities, run_routine
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.numpy.convolution import conv_general_dilated
from volta_fn.targets.wgsl.convolution import ROUTINES

PLAIN = TargetCapabilities(float64=capabilities().float64, int64=capabilities().int64)

maker = ROUTINES["conv_general_dilated"]

#: Dimensions as they are in gradients by the weights of images with channels first, and last.
BY_WEIGHTS = [((1, 0, 2, 3),) * 3, ((3, 0, 1, 2), (3, 0, 1, 2), (2, 3, 0, 1))]


def check(lhs: tuple[int, ...], rhs: tuple[int, ...], params: dict[str, Any], dtype: Any = np.float32, tolerance: float = 2e-6) -> None:
    """Compare a routine with the oracle, relative to the largest result."""
    rng = np.random.default_rng(0)
    x, w = arrays(rng, lhs, dtype), arrays(rng, rhs, dtype)
    routine = maker((ShapedArray(lhs, x.dtype), ShapedArray(rhs, w.dtype)), params, PLAIN)
    assert routine is not None
    exact = x.dtype.kind in "iub"
    wide = x.dtype if exact else np.dtype(np.complex128 if x.dtype.kind == "c" else np.float64)
    expected = conv_general_dilated(x.astype(wide), w.astype(wide), **params)
    (actual,) = run_routine(routine, [x, w], [(expected.shape, x.dtype)])
    if exact:
        np.testing.assert_array_equal(actual, expected)
    else:
        assert np.abs(actual.astype(wide) - expected).max() <= tolerance * max(np.abs(expected).max(), 1e-30)


@given(configurations(9, 5))
@settings(max_examples=12, deadline=None)
def test_small_convolutions_of_any_form(configuration: Any) -> None:
    check(*configuration)


@given(configurations(20, 40), st.sampled_from([np.float32, np.float16, np.int32]))
@settings(max_examples=6, deadline=None)
def test_larger_convolutions_of_any_form(configuration: Any, dtype: Any) -> None:
    check(*configuration, dtype, 1e-3 if dtype == np.float16 else 1e-5)


DTYPES = [(ml_dtypes.bfloat16, 8e-3), (np.float64, 1e-14), (np.complex64, 2e-6), (np.int8, 0), (np.bool_, 0)]


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_dtypes(dtype: Any, tolerance: float) -> None:
    numbers = ORDERS[1]
    params = params_of(2, dimension_numbers=numbers, padding=((1, 2), (0, -1)), window_strides=(1, 2))
    check(placed((2, 5, 9, 11), numbers[0]), placed((18, 5, 3, 2), numbers[1]), params, dtype, tolerance)


@pytest.mark.parametrize(("numbers", "stride"), [(ORDERS[0], 1), (ORDERS[1], 2), (ORDERS[2], 1)])
def test_many_channels(numbers: Any, stride: int) -> None:
    params = params_of(2, dimension_numbers=numbers, padding=((1, 1), (1, 1)), window_strides=(stride, stride))
    check(placed((2, 32, 17, 20), numbers[0]), placed((48, 32, 3, 3), numbers[1]), params, tolerance=1e-5)


@pytest.mark.parametrize("numbers", BY_WEIGHTS)
def test_by_the_weights(numbers: Any) -> None:
    params = params_of(2, dimension_numbers=numbers, padding=((1, 1), (1, 1)))
    check(placed((16, 4, 28, 32), numbers[0]), placed((24, 4, 28, 32), numbers[1]), params, tolerance=1e-5)


@pytest.mark.parametrize("numbers", ORDERS[:2])
def test_by_the_input_of_strides(numbers: Any) -> None:
    params = params_of(2, dimension_numbers=numbers, padding=((1, 2), (1, 2)), lhs_dilation=(2, 2))
    check(placed((2, 16, 8, 8), numbers[0]), placed((16, 16, 3, 2), numbers[1]), params, tolerance=1e-5)
    check(placed((2, 16, 8, 8), numbers[0]), placed((16, 16, 1, 1), numbers[1]), {**params, "padding": ((0, 1), (0, 1))}, tolerance=1e-5)


@given(
    st.sampled_from(ORDERS),
    st.tuples(st.integers(1, 2), st.integers(1, 9), st.integers(1, 14), st.integers(1, 14), st.integers(1, 9)),
    st.sampled_from([3, 5]),
    st.tuples(st.integers(-1, 2), st.integers(0, 3)),
)
@settings(max_examples=5, deadline=None)
def test_winograd(numbers: Any, sizes: tuple[int, ...], taps: int, padding: tuple[int, int]) -> None:
    images, channels, height, width, outputs = sizes
    assume(min(height, width) + sum(padding) >= taps)
    params = params_of(2, dimension_numbers=numbers, padding=(padding, padding), algorithm="winograd")
    check(
        placed((images, channels, height, width), numbers[0]), placed((outputs, channels, taps, taps), numbers[1]), params, tolerance=2e-5
    )


@pytest.mark.parametrize("numbers", BY_WEIGHTS)
@pytest.mark.parametrize(
    ("sizes", "taps", "groups", "dtype"),
    [
        ((3, 6, 5, 9, 13), 3, 1, np.float32),  # images, channels, outputs, height and width of the convolution
        ((5, 7, 4, 4, 4), 3, 1, np.float32),
        ((2, 3, 5, 6, 11), 5, 1, np.float32),
        ((2, 6, 4, 7, 8), 3, 2, ml_dtypes.bfloat16),
    ],
)
def test_winograd_by_the_weights(numbers: Any, sizes: tuple[int, ...], taps: int, groups: int, dtype: Any) -> None:
    images, channels, outputs, height, width = sizes
    padding = ((taps // 2, taps // 2),) * 2
    params = params_of(2, dimension_numbers=numbers, padding=padding, algorithm="winograd", batch_group_count=groups)
    x, w = placed((channels, images, height, width), numbers[0]), placed((outputs, images, height, width), numbers[1])
    check(x, w, params, dtype, 2e-5 if dtype == np.float32 else 8e-3)


@pytest.mark.parametrize(("groups", "channels", "dtype"), [(3, 4, np.float32), (1, 132, np.float32), (1, 8, ml_dtypes.bfloat16)])
def test_winograd_of_groups_of_many_channels_and_of_halves(groups: int, channels: int, dtype: Any) -> None:
    params = params_of(2, padding=((1, 1), (1, 1)), algorithm="winograd", feature_group_count=groups)
    check((1, groups * channels, 7, 9), (groups * 8, channels, 3, 3), params, dtype, 2e-5 if dtype == np.float32 else 8e-3)


def test_what_winograd_does_faster_is_left_to_it() -> None:
    avals = ShapedArray((64, 256, 16, 16), np.dtype(np.float32)), ShapedArray((256, 256, 3, 3), np.dtype(np.float32))
    routine = maker(avals, params_of(2, padding=((1, 1), (1, 1))), PLAIN)
    assert routine is not None
    assert len(routine.workspaces) == 3


def test_workspaces_can_be_bound() -> None:
    avals = ShapedArray((64, 256, 32, 32), np.dtype(np.float32)), ShapedArray((256, 256, 3, 3), np.dtype(np.float32))
    params = params_of(2, padding=((1, 1), (1, 1)))
    for binding in (1 << 30, 1 << 27):
        routine = maker(avals, params, PLAIN._replace(binding=binding))
        assert routine is not None
        assert max(routine.workspaces, default=0) <= binding


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("numbers", ORDERS[:2])
def test_depthwise(numbers: Any, stride: int) -> None:
    changed = {"feature_group_count": 32, "padding": ((1, 1), (2, 0)), "window_strides": (stride, stride)}
    params = params_of(2, dimension_numbers=numbers, **changed)
    check(placed((2, 32, 13, 21), numbers[0]), placed((32, 1, 3, 3), numbers[1]), params)


@pytest.mark.parametrize(
    ("sizes", "taps", "groups", "changed", "dtype"),
    [
        ((2, 70, 3, 9, 13), (3, 4), 1, {}, np.float32),  # images, channels, outputs, height and width
        ((1, 6, 4, 8, 6), (4, 1), 2, {"rhs_dilation": (2, 1), "window_strides": (1, 2)}, np.int32),
        ((2, 5, 3, 11, 12), (7, 7), 1, {"lhs_dilation": (2, 2)}, np.float32),
        ((2, 3, 2, 7, 9), (2, 3), 1, {"window_strides": (3, 1)}, ml_dtypes.bfloat16),
    ],
)
def test_few_outputs(sizes: tuple[int, ...], taps: tuple[int, int], groups: int, changed: dict[str, Any], dtype: Any) -> None:
    images, channels, outputs, height, width = sizes
    params = params_of(2, padding=((2, 3), (1, 4)), feature_group_count=groups, **changed)
    exact = {np.int32: 0, np.float32: 5e-6}
    check((images, groups * channels, height, width), (groups * outputs, channels, *taps), params, dtype, exact.get(dtype, 8e-3))


@pytest.mark.parametrize("numbers", BY_WEIGHTS)
def test_depthwise_by_the_weights(numbers: Any) -> None:
    params = params_of(2, dimension_numbers=numbers, padding=((1, 1), (1, 1)), batch_group_count=32)
    check(placed((32, 3, 40, 21), numbers[0]), placed((32, 3, 40, 21), numbers[1]), params, tolerance=1e-5)


def test_infinity_stays_where_its_windows_are() -> None:
    x, w = np.zeros((1, 1, 8), np.float32), np.ones((1, 1, 2), np.float32)
    x[0, 0, 4] = np.inf
    routine = maker((ShapedArray(x.shape, x.dtype), ShapedArray(w.shape, w.dtype)), params_of(1, padding=((1, 1),)), PLAIN)
    assert routine is not None
    (result,) = run_routine(routine, [x, w], [((1, 1, 9), x.dtype)])
    np.testing.assert_array_equal(result[0, 0], [0, 0, 0, 0, np.inf, np.inf, 0, 0, 0])


def test_empty_operands_and_results() -> None:
    def avals(*shapes: tuple[int, ...]) -> tuple[ShapedArray, ...]:
        return tuple([ShapedArray(shape, np.dtype(np.float32)) for shape in shapes])

    assert maker(avals((0, 1, 3), (1, 1, 2)), params_of(1), PLAIN) is None
    assert maker(avals((1, 1, 3), (1, 1, 4)), params_of(1), PLAIN) is None
    check((2, 0, 5), (3, 0, 2), params_of(1))
