"""Convolutions as machine code, against the NumPy backend's evaluation in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.targets.convolutions import ORDERS, configurations, params_of, placed
from tests.targets.cpu.running import check_rooms, run_routine
from volta_fn.core.aval import ShapedArray
from volta_fn.runtime.llvm.host import host
from volta_fn.targets.cpu.convolution.winograd_weight_gradient import WinogradSumsPlan
from volta_fn.targets.cpu.target import ROUTINES
from volta_fn.targets.numpy.convolution import conv_general_dilated

maker = ROUTINES["conv_general_dilated"]


def check(lhs: tuple[int, ...], rhs: tuple[int, ...], params: dict[str, Any], dtype: Any, tolerance: float, chunks: int = 2) -> None:
    """Compare a routine with the oracle, relative to the largest result."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(dtype) for shape in (lhs, rhs))
    routine = maker((ShapedArray(lhs, x.dtype), ShapedArray(rhs, w.dtype)), params)
    assert routine is not None
    assert routine.workspace <= 32 << 20
    conv_params = {k: v for k, v in params.items() if k != "algorithm"}
    expected = conv_general_dilated(x.astype(np.float64), w.astype(np.float64), **conv_params)
    (actual,) = run_routine(routine, [x, w], [(expected.shape, x.dtype)], chunks)
    error = np.abs(actual.astype(np.float64) - expected).max()
    assert error <= tolerance * max(np.abs(expected).max(), 1e-30)


@given(configurations(9, 5), st.sampled_from([(np.float32, 2e-6), (np.float64, 1e-14)]), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_small_convolutions_of_any_form(configuration: Any, dtype: tuple[Any, float], chunks: int) -> None:
    check(*configuration, *dtype, chunks)


@given(configurations(20, 40), st.sampled_from(["auto", "igemm", "direct", "winograd"]))
@settings(max_examples=15, deadline=None)
def test_larger_convolutions_of_any_form_by_every_algorithm(configuration: Any, algorithm: str) -> None:
    lhs, rhs, params = configuration
    check(lhs, rhs, {**params, "algorithm": algorithm}, np.float32, 1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float16, 1e-3), (ml_dtypes.bfloat16, 8e-3)])
@pytest.mark.parametrize("numbers", ORDERS)
def test_half_precision_is_rounded_once(dtype: Any, tolerance: float, numbers: tuple[tuple[int, ...], ...]) -> None:
    params = params_of(2, dimension_numbers=numbers, padding=((1, 2), (0, -1)), window_strides=(1, 2))
    check(placed((2, 5, 9, 11), numbers[0]), placed((18, 5, 3, 2), numbers[1]), params, dtype, tolerance)


def test_a_long_sum_is_split_into_pieces_and_added_in_order() -> None:
    params = params_of(2, padding=((1, 1), (1, 1)), dimension_numbers=((1, 0, 2, 3), (1, 0, 2, 3), (1, 0, 2, 3)))
    lhs, rhs = (4, 8, 30, 30), (4, 16, 30, 30)
    routine = maker((ShapedArray(lhs, np.dtype(np.float32)), ShapedArray(rhs, np.dtype(np.float32))), params)
    assert routine is not None
    assert routine.launches[0].tasks > 1
    check(lhs, rhs, params, np.float32, 1e-5, 3)


@pytest.mark.parametrize("algorithm", ["igemm", "direct"])
@pytest.mark.parametrize(("groups", "by_channels"), [(1, False), (1, True), (64, True)])
def test_blocks_within_the_padding_stay_in_their_rooms(algorithm: str, groups: int, by_channels: bool) -> None:
    order = (0, 2, 1) if by_channels else (0, 1, 2)
    numbers = (order, (2, 1, 0) if by_channels else order, order)
    params = params_of(1, padding=((5000, 1),), dimension_numbers=numbers, feature_group_count=groups, algorithm=algorithm)
    lhs, rhs = placed((1, 64, 8), numbers[0]), placed((64 if groups > 1 else 16, 64 // groups, 3), numbers[1])
    x, w = np.ones(lhs, np.float32), np.ones(rhs, np.float32)
    routine = maker((ShapedArray(lhs, x.dtype), ShapedArray(rhs, w.dtype)), params)
    assert routine is not None
    check_rooms(routine, [x, w], [((rhs[numbers[1][0]], 5007), x.dtype)])
    check(lhs, rhs, params, np.float32, 1e-6)


def test_what_is_not_supported_is_left_alone() -> None:
    def avals(*shapes: tuple[int, ...], dtype: Any = np.float32) -> tuple[ShapedArray, ...]:
        return tuple([ShapedArray(shape, np.dtype(dtype)) for shape in shapes])

    assert maker(avals((1, 1, 3), (1, 1, 2), dtype=np.bool_), params_of(1)) is None
    assert maker(avals((1, 1, 3), (1, 1, 2), dtype=np.complex64), params_of(1)) is None
    assert maker(avals((0, 1, 3), (1, 1, 2)), params_of(1)) is None
    assert maker(avals((1, 1, 3), (1, 1, 4)), params_of(1)) is None


def test_infinity_stays_where_its_windows_are() -> None:
    x = np.zeros((1, 1, 8), np.float32)
    x[0, 0, 4] = np.inf
    w = np.ones((1, 1, 2), np.float32)
    params = params_of(1, padding=((1, 1),))
    routine = maker((ShapedArray(x.shape, x.dtype), ShapedArray(w.shape, w.dtype)), params)
    assert routine is not None
    (result,) = run_routine(routine, [x, w], [((1, 1, 9), x.dtype)])
    np.testing.assert_array_equal(result[0, 0], [0, 0, 0, 0, np.inf, np.inf, 0, 0, 0])


@pytest.mark.parametrize(("algorithm", "windows"), [("igemm", 9), ("winograd", 16)])
def test_infinity_spreads_to_tiles_by_winograds_algorithm_alone(algorithm: str, windows: int) -> None:
    """As `docs/differences.md` says."""
    x, w = np.ones((1, 16, 16, 16), np.float32), np.ones((16, 16, 3, 3), np.float32)
    x[0, 0, 6, 6] = np.inf
    params = params_of(2, padding=((1, 1), (1, 1)), algorithm=algorithm)
    routine = maker((ShapedArray(x.shape, x.dtype), ShapedArray(w.shape, w.dtype)), params)
    assert routine is not None
    (result,) = run_routine(routine, [x, w], [((1, 16, 16, 16), x.dtype)])
    assert (~np.isfinite(result)).any(1).sum() == windows


@given(
    st.sampled_from(ORDERS),
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 14), st.integers(1, 14), st.integers(1, 40)),
    st.integers(2, 8),
    st.tuples(st.integers(1, 3), st.integers(1, 2)),
    st.tuples(st.integers(-1, 2), st.integers(0, 3)),
    st.sampled_from([(np.float32, 2e-5), (np.float64, 1e-12)]),
)
@settings(max_examples=16, deadline=None)
def test_winograd(
    numbers: Any, sizes: tuple[int, ...], taps: int, dilation: tuple[int, int], padding: tuple[int, int], dtype: tuple[Any, float]
) -> None:
    images, channels, height, width, outputs = sizes
    assume(all(size + sum(padding) > (taps - 1) * step for size, step in zip((height, width), dilation, strict=True)))
    params = params_of(2, dimension_numbers=numbers, padding=(padding, padding), rhs_dilation=dilation, algorithm="winograd")
    check(placed((images, channels, height, width), numbers[0]), placed((outputs, channels, taps, taps), numbers[1]), params, *dtype)


@pytest.mark.parametrize(
    ("image", "taps", "changed"),
    [
        ((24, 24), 7, {"padding": ((3, 3), (3, 3))}),
        ((28, 21), 3, {"padding": ((2, 2), (2, 2)), "rhs_dilation": (2, 2)}),
        ((20, 20), 4, {"padding": ((2, 2), (2, 2)), "lhs_dilation": (2, 2)}),
    ],
    ids=["many taps", "dilated taps", "holes between elements"],
)
def test_what_winograd_computes_by_choice(image: tuple[int, int], taps: int, changed: dict[str, Any]) -> None:
    lhs, rhs = (3, 40, *image), (33, 40, taps, taps)
    avals = ShapedArray(lhs, np.dtype(np.float32)), ShapedArray(rhs, np.dtype(np.float32))
    chosen, asked = [maker(avals, params_of(2, **changed, algorithm=name)) for name in ("auto", "winograd")]
    assert chosen == asked != maker(avals, params_of(2, **changed, algorithm="igemm"))
    check(lhs, rhs, params_of(2, **changed), np.float32, 1e-5, 3)


@pytest.mark.parametrize("numbers", ORDERS)
def test_many_channels_by_a_chosen_algorithm(numbers: Any) -> None:
    params = params_of(2, dimension_numbers=numbers, padding=((1, 1), (1, 1)))
    check(placed((2, 64, 17, 19), numbers[0]), placed((48, 64, 3, 3), numbers[1]), params, np.float32, 1e-5, 3)


@pytest.mark.parametrize("algorithm", ["auto", "igemm", "direct"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("numbers", [ORDERS[0], ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))])
def test_depthwise(numbers: Any, stride: int, algorithm: str) -> None:
    changed = {"feature_group_count": 32, "padding": ((1, 1), (2, 0)), "window_strides": (stride, stride), "algorithm": algorithm}
    params = params_of(2, dimension_numbers=numbers, **changed)
    check(placed((2, 32, 13, 21), numbers[0]), placed((32, 1, 3, 3), numbers[1]), params, np.float32, 2e-6, 3)


@pytest.mark.parametrize("numbers", [((1, 0, 2, 3),) * 3, ((3, 0, 1, 2), (3, 0, 1, 2), (2, 3, 0, 1))])
def test_depthwise_by_the_weights(numbers: Any) -> None:
    params = params_of(2, dimension_numbers=numbers, padding=((1, 1), (1, 1)), batch_group_count=32)
    check(placed((32, 3, 40, 21), numbers[0]), placed((32, 3, 40, 21), numbers[1]), params, np.float32, 1e-5)


@pytest.mark.parametrize("numbers", ORDERS[:2])
def test_winograd_of_many_channels_multiplies_all_tiles_together(numbers: Any) -> None:
    params = params_of(2, dimension_numbers=numbers, padding=((1, 1), (1, 1)), algorithm="winograd")
    lhs, rhs = placed((2, 128, 10, 13), numbers[0]), placed((100, 128, 3, 3), numbers[1])
    routine = maker((ShapedArray(lhs, np.dtype(np.float32)), ShapedArray(rhs, np.dtype(np.float32))), params)
    assert routine is not None
    assert len(routine.launches) == 4
    check(lhs, rhs, params, np.float32, 2e-5, 3)


#: Operands of gradients by the weights, of images with channels second and last.
BY_WEIGHTS = [((1, 0, 2, 3),) * 3, ((3, 0, 1, 2), (3, 0, 1, 2), (2, 3, 0, 1))]


@pytest.mark.parametrize("points", [4, 6])
@pytest.mark.parametrize("numbers", BY_WEIGHTS)
@pytest.mark.parametrize(
    ("images", "outputs", "channels", "taps", "padding"),
    [
        (17, 33, 3, (6, 11), ((1, 1), (1, 1))),
        (5, 3, 2, (4, 8), ((0, 0), (2, 1))),
        (9, 16, 2, (50, 90), ((1, 1), (0, 0))),  # sums of more terms than are summed up at once
        (300, 5, 1, (5, 70), ((1, 1), (1, 1))),  # rows of more tiles than are transformed together
    ],
)
def test_few_places_and_many_taps_at_points(
    monkeypatch: pytest.MonkeyPatch, images: int, outputs: int, channels: int, taps: Any, padding: Any, numbers: Any, points: int
) -> None:
    monkeypatch.setattr(WinogradSumsPlan, "nanoseconds", property(lambda tiling: float(tiling.points != points)))
    params = params_of(2, dimension_numbers=numbers, padding=padding)
    sizes = [n + 2 - sum(pad) for n, pad in zip(taps, padding, strict=True)]
    lhs, rhs = placed((images, channels, *sizes), numbers[0]), placed((outputs, channels, *taps), numbers[1])
    routine = maker((ShapedArray(lhs, np.dtype(np.float32)), ShapedArray(rhs, np.dtype(np.float32))), params)
    assert routine is not None
    assert [launch.tasks for launch in routine.launches][2] == points**2
    check(lhs, rhs, params, np.float32, 1e-5, 3)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-13), (np.float16, 1e-3)])
def test_few_places_and_many_taps_of_other_types(monkeypatch: pytest.MonkeyPatch, dtype: Any, tolerance: float) -> None:
    monkeypatch.setattr(WinogradSumsPlan, "nanoseconds", 0.0)
    params = params_of(2, dimension_numbers=BY_WEIGHTS[0], padding=((1, 1), (1, 1)))
    check((3, 10, 9, 12), (3, 20, 9, 12), params, dtype, tolerance)


def test_large_gradients_by_the_weights_are_made_at_points() -> None:
    """Chosen by itself, where it takes a third of the products."""
    avals = [ShapedArray(shape, np.dtype(np.float32)) for shape in ((8, 256, 14, 14), (8, 256, 14, 14))]
    routine = maker((avals[0], avals[1]), params_of(2, dimension_numbers=BY_WEIGHTS[0], padding=((1, 1), (1, 1))))
    assert routine is not None
    assert [launch.tasks for launch in routine.launches][2] == 36


def test_what_transforms_do_faster_is_left_to_them() -> None:
    avals = tuple([ShapedArray(shape, np.dtype(np.float32)) for shape in ((1, 1, 600, 600), (1, 1, 300, 300))])
    assert maker(avals, params_of(2)) is None
    assert maker(avals, params_of(2, algorithm="igemm")) is not None


@pytest.mark.parametrize(
    ("numbers", "sizes", "changed"),
    [
        (ORDERS[0], (3, 24, 9, 13, 17), {}),
        (((0, 1, 2, 3), (1, 0, 2, 3), (0, 1, 2, 3)), (2, 300, 8, 8, 9), {}),  # as in a gradient by the input, of more channels than a block
        (ORDERS[1], (3, 20, 5, 7, 33), {}),
        (ORDERS[0], (4, 16, 8, 9, 12), {"feature_group_count": 2}),
        (ORDERS[1], (4, 16, 8, 9, 12), {"feature_group_count": 2}),
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float16, 1e-3)])
def test_one_tap_is_a_product_of_matrices(
    numbers: Any, sizes: tuple[int, ...], changed: dict[str, Any], dtype: Any, tolerance: float
) -> None:
    images, channels, height, width, outputs = sizes
    width = max(width, -(-8 * host().lanes(4) // height) | 1)  # at least eight vectors of pixels, and not a multiple of any vector
    params = params_of(2, dimension_numbers=numbers, **changed)
    lhs = placed((images, channels, height, width), numbers[0])
    rhs = placed((outputs, channels // params["feature_group_count"], 1, 1), numbers[1])
    routine = maker((ShapedArray(lhs, np.dtype(dtype)), ShapedArray(rhs, np.dtype(dtype))), params)
    assert routine is not None
    assert routine.launches[-1].symbol == "convolution"
    check(lhs, rhs, params, dtype, tolerance, 3)


@pytest.mark.parametrize("algorithm", ["winograd", "im2col"])
def test_what_does_not_apply_is_computed_by_implicit_gemm(algorithm: str) -> None:
    avals = ShapedArray((2, 17, 20, 20), np.dtype(np.float32)), ShapedArray((1, 17, 3, 2), np.dtype(np.float32))
    asked, plain, chosen = [maker(avals, params_of(2, algorithm=name)) for name in (algorithm, "igemm", "auto")]
    assert asked == plain
    assert chosen != plain  # vectors along one output are mostly empty
