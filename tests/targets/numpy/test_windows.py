"""Window reductions on the CPU against the definition, over all parameters, in blocks so small that every loop runs; and their memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.naive_windows import reduce_windows, winners
from volta_fn.targets.numpy import reductions

FLOATS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
DTYPES = [*FLOATS, np.bool_, np.int8, np.uint16, np.int32, np.uint64]


@st.composite
def geometries(draw: st.DrawFn) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Return a shape and how windows lie on it."""
    rank = draw(st.integers(0, 3))
    per_axis = lambda values: tuple(draw(st.lists(values, min_size=rank, max_size=rank)))
    geometry = {
        "window_dimensions": per_axis(st.integers(1, 3)),
        "window_strides": per_axis(st.integers(1, 3)),
        "padding": per_axis(st.tuples(st.integers(0, 3), st.integers(0, 3)) | st.just((-1, 2)) | st.just((1, -1))),
        "base_dilation": per_axis(st.sampled_from([1, 1, 2, 3])),
        "window_dilation": per_axis(st.sampled_from([1, 1, 2])),
    }
    return per_axis(st.integers(1, 6)), geometry


def sample(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, nan: bool) -> np.ndarray:
    """Few distinct values, so that windows have ties; some of them NaN on request."""
    values = np.asarray(rng.integers(0 if dtype.kind in "ub" else -3, 4, shape)).astype(dtype)
    if nan and dtype.kind in "fV":
        values[rng.random(shape) < 0.2] = np.nan
    return values


def extremum(x: np.ndarray, op: str) -> Any:
    """Return a function of a list of elements: NumPy's maximum or minimum, or the value that the reduction of nothing has."""
    if x.dtype.kind in "fV":
        empty: Any = -np.inf if op == "max" else np.inf
    else:
        low, high = (0, 1) if x.dtype.kind == "b" else (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)
        empty = low if op == "max" else high
    reduce = np.max if op == "max" else np.min
    return lambda elements: reduce(np.array(elements)) if elements else empty


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Equal shapes, dtypes and elements; a NaN equals a NaN."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    half = got.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(got.astype(np.float32) if half else got, want.astype(np.float32) if half else want)


@pytest.fixture(params=[8, 1 << 17])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reductions, "_BLOCK_ELEMENTS", request.param)


@pytest.mark.usefixtures("block")
@pytest.mark.filterwarnings("ignore:invalid value")
class TestAnyParameters:
    @given(geometries(), st.sampled_from(["max", "min"]), st.sampled_from(DTYPES), st.booleans(), st.integers(0, 1000))
    def test_extrema(self, case: tuple, op: str, dtype: type, nan: bool, seed: int) -> None:
        shape, geometry = case
        x = sample(np.random.default_rng(seed), shape, np.dtype(dtype), nan)
        same(reductions.reduce_window(x, op=op, **geometry), reduce_windows(x, extremum(x, op), **geometry))

    @given(geometries(), st.sampled_from([d for d in DTYPES if d is not np.bool_]), st.integers(0, 1000))
    def test_sums(self, case: tuple, dtype: type, seed: int) -> None:
        shape, geometry = case
        x = sample(np.random.default_rng(seed), shape, np.dtype(dtype), nan=False)
        wide = np.float32 if x.dtype in map(np.dtype, FLOATS[2:]) else x.dtype
        same(
            reductions.reduce_window(x, op="sum", **geometry),
            reduce_windows(x.astype(wide), lambda v: np.sum(v, dtype=wide), **geometry).astype(dtype),
        )

    @given(geometries(), st.sampled_from(["ge", "le"]), st.sampled_from(FLOATS), st.booleans(), st.integers(0, 1000))
    def test_tangents_come_from_winners_and_go_to_them(self, case: tuple, select: str, dtype: type, nan: bool, seed: int) -> None:
        shape, geometry = case
        rng = np.random.default_rng(seed)
        x = sample(rng, shape, np.dtype(dtype), nan)
        won = winners(x, extremum(x, "max" if select == "ge" else "min"), **geometry)
        rates = sample(rng, shape, np.dtype(np.float32), nan=False)
        gathered = np.zeros(reductions.reduce_window(x, op="max", **geometry).shape, np.float32)
        sent = sample(rng, gathered.shape, np.dtype(np.float32), nan=False)
        scattered = np.zeros(shape, np.float32)
        for place, at in won.items():
            gathered[place] = rates[at]
            scattered[at] += sent[place]
        same(reductions.select_and_gather_add(rates, x, select=select, **geometry), gathered)
        same(reductions.select_and_scatter_add(sent, x, select=select, **geometry), scattered)


def geometry(taps: int, stride: int, padding: int) -> dict[str, Any]:
    """Windows over the two middle axes of four."""
    around = lambda value, other: (other, value, value, other)
    return {
        "window_dimensions": around(taps, 1),
        "window_strides": around(stride, 1),
        "padding": around((padding, padding), (0, 0)),
        "base_dilation": (1, 1, 1, 1),
        "window_dilation": (1, 1, 1, 1),
    }


def test_halves_sum_in_float32() -> None:
    x = np.array([2048, 1, 1], np.float16).reshape(1, 3, 1, 1)
    got = reductions.reduce_window(x, op="sum", **{**geometry(1, 1, 0), "window_dimensions": (1, 3, 1, 1)})
    assert got.item() == 2050


def test_an_infinite_cotangent_reaches_only_the_winner() -> None:
    x = np.array([[1.0, 3.0], [2.0, 0.0]]).reshape(1, 2, 2, 1)
    got = reductions.select_and_scatter_add(np.full((1, 1, 1, 1), np.inf), x, select="ge", **geometry(2, 2, 0))
    np.testing.assert_array_equal(got.reshape(2, 2), [[0, np.inf], [0, 0]])


@pytest.mark.parametrize(("taps", "stride", "padding"), [(2, 2, 0), (3, 1, 1), (512, 1, 0)])
def test_scratch_memory_is_bounded(taps: int, stride: int, padding: int) -> None:
    x = np.ones((2, 512, 512, 4), np.float32)
    windows_of = geometry(taps, stride, padding)
    pooled = reductions.reduce_window(x, op="max", **windows_of)
    runs = [lambda: reductions.reduce_window(x, op="sum", **windows_of)]
    if taps < 10:
        runs += [
            lambda: reductions.select_and_scatter_add(pooled, x, select="ge", **windows_of),
            lambda: reductions.select_and_gather_add(x, x, select="ge", **windows_of),
        ]
    for run in runs:
        tracemalloc.start()
        result = run()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak - result.nbytes <= 8 << 20
