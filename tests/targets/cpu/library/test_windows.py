"""Windows of many shapes, from Hypothesis, and of sizes that need more than one vector or tile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import volta_fn as vf
from tests.targets.cpu.library.checking import check
from tests.targets.reference import reference
from volta_fn import lax


def geometry(taps: tuple[int, ...], **options: Any) -> dict[str, Any]:
    one = (1,) * len(taps)
    plain = {
        "window_dimensions": taps,
        "window_strides": one,
        "padding": ((0, 0),) * len(taps),
        "base_dilation": one,
        "window_dilation": one,
    }
    return plain | options


def check_all(x: np.ndarray, params: dict[str, Any]) -> None:
    """Check all window primitives."""
    rng = np.random.default_rng(1)
    for op in ("sum", "max", "min"):
        check(f"reduce_window_{op}", [x], params, exact=op != "sum")
    (out,) = reference("reduce_window_max", [x], params)
    for select in ("ge", "le"):
        check("select_and_gather_add", [rng.normal(size=x.shape).astype(np.float32), x], params | {"select": select})
        check("select_and_scatter_add", [rng.normal(size=out.shape).astype(np.float32), x], params | {"select": select}, exact=False)


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], dict[str, Any]]:
    rank = draw(st.integers(1, 3))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank)))

    taps, dilations = each(1, 3), each(1, 2)
    padding = tuple((draw(st.integers(-1, 2)), draw(st.integers(-1, 2))) for _ in range(rank))
    options = {"window_strides": each(1, 6), "padding": padding, "base_dilation": each(1, 2), "window_dilation": dilations}
    shape = tuple(draw(st.integers(2, 20)) for _ in range(rank))
    return shape, geometry(taps, **options)


@given(cases())
@settings(max_examples=25)
def test_windows_of_any_shape(case: tuple[tuple[int, ...], dict[str, Any]]) -> None:
    shape, params = case
    x = np.random.default_rng(0).choice(np.array([0.5, 1.0, -2.0, -np.inf, np.nan, 3.0], np.float32), shape)
    check_all(x, params)


CASES = [
    ((2, 3, 28, 28), geometry((1, 1, 2, 2), window_strides=(1, 1, 2, 2))),
    ((2, 2, 20, 41), geometry((1, 1, 3, 3), window_strides=(1, 1, 2, 2), padding=((0, 0), (0, 0), (1, 1), (1, 1)))),
    ((2, 9, 9, 21), geometry((1, 3, 3, 1), window_strides=(1, 2, 2, 1), padding=((0, 0), (1, 1), (1, 1), (0, 0)))),
    ((3, 5000), geometry((1, 4), window_strides=(1, 3), padding=((0, 0), (2, 1)))),
    ((70000,), geometry((40000,))),
    ((2, 7, 7), geometry((1, 7, 7))),
    ((2, 6), geometry((1, 3), window_strides=(1, 10**9))),  # a single window, whose stride is no step
    ((20_000,), geometry((3,), window_strides=(5000,))),  # of strides too long for a row on the stack
    ((6,), geometry((3,), window_strides=(1 << 20,), padding=((0, 1 << 20),))),
]


@pytest.mark.parametrize(("shape", "params"), CASES, ids=[str(shape) for shape, _ in CASES])
def test_larger_windows(shape: tuple[int, ...], params: dict[str, Any]) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    if shape == (70000,):
        check("reduce_window_max", [x[:45000]], params)
    else:
        check_all(x, params)


def test_windows_too_far_apart_for_32_bits_are_left_to_the_host() -> None:
    x, stride = vf.numpy.array([1.0, 5.0, 2.0, 7.0]), 1 << 32
    largest = lambda x: lax.reduce_window(x, -np.inf, lax.max, (3,), (stride,), [(0, stride)])
    assert vf.jit(largest)(x).tolist() == [5.0, -np.inf]
    assert vf.jit(vf.grad(lambda x: largest(x)[0]))(x).tolist() == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint32", "int64"])
def test_dtypes_that_decide(dtype: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 9, (3, 6, 19)).astype(dtype)
    params = geometry((1, 2, 3), window_strides=(1, 2, 2)) | {"select": "ge"}
    moved = "float32" if x.dtype.kind in "iu" else dtype
    check("select_and_gather_add", [rng.normal(size=x.shape).astype(moved), x], params)
    check("select_and_scatter_add", [rng.normal(size=(3, 3, 9)).astype(moved), x], params, exact=False)


@pytest.mark.parametrize(
    ("shape", "window"),
    [
        ((1_000_000,), (1_000_000,)),
        ((300_000, 3), (300_000, 1)),
        ((300_000, 3), (100_000, 1)),
        ((3, 90_000), (1, 3000)),
        ((600, 500), (600, 500)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_rounding_errors_of_long_windows_do_not_add_up(shape: tuple[int, ...], window: tuple[int, ...], dtype: str) -> None:
    """Added up, they are 2e-6 to 1e-5 of the sum."""
    x = np.random.default_rng(0).uniform(size=shape).astype(dtype)
    wide = x.astype(np.result_type(dtype, np.float64))
    blocks = wide.reshape([n for size, taps in zip(shape, window, strict=True) for n in (size // taps, taps)])
    expected = blocks.sum(tuple(range(1, blocks.ndim, 2)))
    sums = vf.jit(lambda v: lax.reduce_window(v, np.zeros((), dtype), lax.add, window, window, "VALID"))(x)
    np.testing.assert_allclose(np.asarray(sums), expected, rtol=1e-6)
