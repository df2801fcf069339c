"""Convolution by Fourier transforms, against the definition."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from volta_fn.compiler.contractions import fft_is_faster
from volta_fn.targets.numpy.convolution import conv_general_dilated

FORMS: list[dict[str, Any]] = [
    {"padding": ((2, 3), (0, -1))},
    {"window_strides": (2, 3), "rhs_dilation": (1, 2)},
    {"lhs_dilation": (2, 1), "padding": ((1, 1), (-1, 4))},
    {"feature_group_count": 2},
    {"batch_group_count": 2, "dimension_numbers": ((1, 0, 2, 3), (1, 0, 3, 2), (3, 0, 1, 2))},
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(np.float32, 1e-6), (np.float64, 1e-14), (np.complex128, 1e-14), (np.float16, 2e-3), (ml_dtypes.bfloat16, 1e-2)],
)
def test_spectra_give_what_the_definition_gives(form: dict[str, Any], dtype: Any, tolerance: float) -> None:
    plain = {"window_strides": (1, 1), "padding": ((0, 0), (0, 0)), "lhs_dilation": (1, 1), "rhs_dilation": (1, 1)}
    params = {**plain, "dimension_numbers": ((0, 1, 2, 3),) * 3, **form}
    rng = np.random.default_rng(0)
    groups = form.get("feature_group_count", 1)
    spec = params["dimension_numbers"]
    shapes = [np.array(shape)[np.argsort(order)] for shape, order in zip([(4, 2 * groups, 11, 13), (6, 2, 4, 5)], spec[:2], strict=True)]
    x, w = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    if np.dtype(dtype).kind == "c":
        w = w * (1 + 2j)
    wide = np.complex128 if np.dtype(dtype).kind == "c" else np.float64
    expected = conv_general_dilated(x.astype(wide), w.astype(wide), **params, algorithm="direct")
    actual = conv_general_dilated(x, w, **params, algorithm="fft")
    assert actual.dtype == x.dtype
    assert np.abs(actual.astype(wide) - expected).max() <= tolerance * np.abs(expected).max()


def test_infinity_stays_where_its_windows_are() -> None:
    x = np.zeros((1, 1, 9), np.float32)
    x[0, 0, 4] = np.inf
    params = {
        "window_strides": (1,),
        "padding": ((0, 0),),
        "lhs_dilation": (1,),
        "rhs_dilation": (1,),
        "dimension_numbers": ((0, 1, 2),) * 3,
    }
    result = conv_general_dilated(x, np.ones((1, 1, 2), np.float32), **params, algorithm="fft")
    np.testing.assert_array_equal(result[0, 0], [0, 0, 0, np.inf, np.inf, 0, 0, 0])


def test_transforms_are_chosen_for_large_windows_alone() -> None:
    assert fft_is_faster((1, 1, 1, 600, 600), (1, 1, 1, 300, 300), (1, 1, 1, 301, 301))
    assert not fft_is_faster((1, 8, 64, 56, 56), (1, 64, 64, 3, 3), (1, 8, 64, 56, 56))
    assert not fft_is_faster((1, 64, 8, 58, 58), (1, 64, 8, 56, 56), (1, 64, 64, 3, 3))
