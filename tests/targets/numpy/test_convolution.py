"""The convolution kernel against the definition, over all parameters, with tiles small enough that every loop runs; and its memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.naive_windows import convolve
from volta_fn.targets.numpy import convolution
from volta_fn.targets.numpy.convolution import conv_general_dilated

DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.complex64, np.bool_, np.int8, np.uint16, np.int32, np.uint64]
NCHW = ((0, 1, 2, 3),) * 3
NHWC = ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))


def sample(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Small whole numbers, so that every order of summation gives the same; any integer in an integer dtype."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    values = rng.integers(-3, 4, shape)
    return (values + 1j * rng.integers(-3, 4, shape) if dtype.kind == "c" else values).astype(dtype)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    """Shapes of the operands and the parameters."""
    rank = draw(st.integers(0, 3))
    feature_groups, batch_groups = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (3, 1), (1, 2)]))
    per_axis = lambda values: tuple(draw(st.lists(values, min_size=rank, max_size=rank)))
    sizes, taps = per_axis(st.integers(1, 6)), per_axis(st.integers(1, 3))
    batch, channels = draw(st.integers(0, 3)) * batch_groups, draw(st.integers(0, 3))
    features = draw(st.integers(1, 3)) * feature_groups * batch_groups
    specs = tuple(tuple(draw(st.permutations(range(rank + 2)))) for _ in range(3))
    placed = lambda spec, shape: tuple(shape[spec.index(i)] for i in range(rank + 2))
    shapes = {
        "lhs": placed(specs[0], (batch, channels * feature_groups, *sizes)),
        "rhs": placed(specs[1], (features, channels, *taps)),
    }
    params = {
        "window_strides": per_axis(st.integers(1, 3)),
        "padding": per_axis(st.tuples(st.integers(0, 3), st.integers(0, 3)) | st.just((-1, 2)) | st.just((1, -1))),
        "lhs_dilation": per_axis(st.sampled_from([1, 1, 2, 3])),
        "rhs_dilation": per_axis(st.sampled_from([1, 1, 2, 3])),
        "dimension_numbers": specs,
        "feature_group_count": feature_groups,
        "batch_group_count": batch_groups,
    }
    return shapes, params


def exact(params: dict[str, Any], lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Compute the definition, in the dtype that a kernel sums in, rounded once."""
    half = lhs.dtype in (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
    wide = np.float32 if half else lhs.dtype
    return convolve(lhs.astype(wide), rhs.astype(wide), **params).astype(lhs.dtype)


@pytest.mark.parametrize("tile_bytes", [64, 1024, 1 << 20])
@given(case=convolutions(), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 1000))
def test_any_parameters(tile_bytes: int, case: tuple, dtype: type, seed: int) -> None:
    shapes, params = case
    rng = np.random.default_rng(seed)
    lhs, rhs = (sample(rng, shapes[name], np.dtype(dtype)) for name in ("lhs", "rhs"))
    with pytest.MonkeyPatch.context() as patch, np.errstate(over="ignore"):
        patch.setattr(convolution, "_TILE_BYTES", tile_bytes)
        got = conv_general_dilated(lhs, rhs, **params, preferred_element_type=None)
        want = exact(params, lhs, rhs)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("few", [False, True])
@given(case=convolutions(), dtype=st.sampled_from(DTYPES), tile_bytes=st.sampled_from([64, 1024, 1 << 20]))
def test_every_method_takes_any_parameters(few: bool, case: tuple, dtype: type, tile_bytes: int) -> None:
    """Both methods give what the definition gives wherever they apply, not only where they are chosen."""
    shapes, params = case
    rng = np.random.default_rng(0)
    lhs, rhs = (sample(rng, shapes[name], np.dtype(dtype)) for name in ("lhs", "rhs"))
    with pytest.MonkeyPatch.context() as patch, np.errstate(over="ignore"):
        patch.setattr(convolution, "_TILE_BYTES", tile_bytes)
        patch.setattr(convolution, "_has_few_outputs", lambda w, y: few)
        got = conv_general_dilated(lhs, rhs, **params)
        want = exact(params, lhs, rhs)
    np.testing.assert_array_equal(got, want)


def test_products_are_shifted_where_outputs_are_few() -> None:
    def few(w: tuple[int, ...], y: tuple[int, ...]) -> bool:
        return convolution._has_few_outputs(np.empty(w, np.float32), np.empty(y, np.float32))

    assert few((1, 3, 64, 3, 3), (1, 2, 3, 7, 7))
    assert not few((1, 64, 64, 3, 3), (1, 2, 64, 7, 7))
    assert not few((64, 1, 1, 3, 3), (64, 2, 1, 7, 7))


def test_preferred_element_type_is_the_dtype_of_the_sums() -> None:
    lhs, rhs = np.full((1, 4, 5), 127, np.int8), np.full((2, 4, 3), 127, np.int8)
    params = {
        "window_strides": (1,),
        "padding": ((0, 0),),
        "lhs_dilation": (1,),
        "rhs_dilation": (1,),
        "dimension_numbers": ((0, 1, 2),) * 3,
    }
    got = conv_general_dilated(lhs, rhs, **params, preferred_element_type=np.dtype(np.int32))
    np.testing.assert_array_equal(got, np.full((1, 2, 3), 127 * 127 * 12, np.int32))


def test_operands_may_be_views_of_any_strides() -> None:
    rng = np.random.default_rng(0)
    lhs = np.broadcast_to(rng.integers(-3, 4, (1, 5, 4)).astype(np.float32), (2, 3, 5, 4))[:, :, ::-1]
    rhs = rng.integers(-3, 4, (3, 3, 6, 4)).astype(np.float32)[:, :, ::-2, ::2]
    params = {
        "window_strides": (1, 2),
        "padding": ((1, 1), (0, 1)),
        "lhs_dilation": (1, 2),
        "rhs_dilation": (1, 1),
        "dimension_numbers": NCHW,
    }
    np.testing.assert_array_equal(conv_general_dilated(lhs, rhs, **params), convolve(lhs, rhs, **params))


# Memory: a layer and its two gradients, as the transposition rule forms them.


def layer(
    batch: int, channels: int, features: int, size: int, taps: int, stride: int, pad: int, groups: int, numbers: Any
) -> dict[str, Callable]:
    """Return a layer's forward pass and gradients by its input and weights, as functions without arguments."""
    lhs_spec, rhs_spec, out_spec = numbers
    placed = lambda spec, shape: tuple(shape[spec.index(i)] for i in range(4))
    swap = lambda spec: (spec[1], spec[0], *spec[2:])
    x = np.ones(placed(lhs_spec, (batch, channels, size, size)), np.float32)
    w = np.ones(placed(rhs_spec, (features, channels // groups, taps, taps)), np.float32)
    back = np.ones(placed(rhs_spec, (features // groups, channels, taps, taps)), np.float32)
    count = (size + 2 * pad - taps) // stride + 1
    ct = np.ones(placed(out_spec, (batch, features, count, count)), np.float32)
    one, strides = (1, 1), (stride, stride)
    high = size - (count - 1) * stride - 1 + pad
    over = (count - 1) * stride + taps - size - pad
    plain = {"lhs_dilation": one, "rhs_dilation": one, "window_strides": one}
    by_weights = {"dimension_numbers": (swap(lhs_spec), swap(out_spec), swap(rhs_spec)), "batch_group_count": groups}
    by_input = {"dimension_numbers": (out_spec, swap(rhs_spec), lhs_spec), "feature_group_count": groups}
    forward = {"dimension_numbers": numbers, "feature_group_count": groups}
    return {
        "forward": lambda: conv_general_dilated(x, w, **{**plain, **forward, "window_strides": strides, "padding": ((pad, pad),) * 2}),
        "by input": lambda: conv_general_dilated(
            ct, back, **{**plain, **by_input, "lhs_dilation": strides, "padding": ((taps - 1 - pad, high),) * 2}
        ),
        "by weights": lambda: conv_general_dilated(
            x, ct, **{**plain, **by_weights, "rhs_dilation": strides, "padding": ((pad, over),) * 2}
        ),
    }


@pytest.mark.parametrize(
    "shape",
    [
        (8, 16, 16, 128, 3, 1, 1, 1),  # long rows
        (2, 256, 1100, 9, 3, 1, 1, 1),  # wide channels
        (4, 3, 32, 128, 7, 2, 3, 1),  # few channels, strides
        (4, 64, 64, 64, 3, 1, 1, 64),  # depthwise
        (16, 512, 8, 32, 1, 1, 0, 1),  # pointwise
    ],
    ids=["rows", "channels", "stem", "depthwise", "pointwise"],
)
@pytest.mark.parametrize("numbers", [NCHW, NHWC], ids=["NCHW", "NHWC"])
def test_scratch_memory_is_bounded(shape: tuple[int, ...], numbers: Any) -> None:
    for name, run in layer(*shape, numbers).items():
        tracemalloc.start()
        result = run()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak - result.nbytes <= 32 << 20, name
        assert result.flat[result.size // 2] != 0


def test_dilation_far_beyond_the_operand_takes_no_memory() -> None:
    """Windows that reach over millions of zeros gather what they meet, not what lies between."""
    tracemalloc.start()
    got = conv_general_dilated(
        np.ones((1, 1, 3)),
        np.ones((1, 1, 2)),
        window_strides=(999_983,),
        padding=((3_000_000, 50_000_000),),
        lhs_dilation=(1,),
        rhs_dilation=(3_000_001,),
        dimension_numbers=((0, 1, 2),) * 3,
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert got[0, 0, 0] == 1
    assert peak <= 32 << 20


@pytest.mark.filterwarnings("ignore:invalid value")  # which backends silence
@pytest.mark.parametrize("weight", [np.nan, np.inf])
def test_weights_that_are_not_finite_meet_the_padding(weight: float) -> None:
    """Whichever algorithm computes it: with few outputs, products are shifted."""
    rng = np.random.default_rng(0)
    for channels, outputs in ((1, 4), (16, 4), (16, 32)):
        x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, channels, 5, 7), (outputs, channels, 3, 3)))
        w[1, 0, 0, 2] = weight
        options = {"window_strides": (1, 1), "lhs_dilation": (1, 1), "rhs_dilation": (1, 1), "dimension_numbers": NCHW}
        got = conv_general_dilated(x, w, padding=((1, 1), (1, 1)), **options)
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        expected = conv_general_dilated(padded, w, padding=((0, 0), (0, 0)), **options)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)  # sums of up to 144 products, in another order
        assert np.isnan(got[:, 1, 0]).all()
