"""Samples of `conv_general_dilated`: every parameter at a value where it matters."""

from __future__ import annotations

from typing import Any

from tests.naive_windows import convolve
from tests.samples.sample import COMPLEX, FLOATS, Arg, Sample
from volta_fn import lax

_PLAIN = ("float32", "float64")


def _conv(label: str, lhs: tuple[int, ...], rhs: tuple[int, ...], dtypes: Any = _PLAIN, numbers: Any = None, **options: Any) -> Sample:
    rank = len(lhs) - 2
    one = (1,) * rank
    params = {"window_strides": one, "padding": ((0, 0),) * rank, "lhs_dilation": one, "rhs_dilation": one} | options
    specs = lax.conv_dimension_numbers(lhs, rhs, numbers)
    return Sample(
        "conv_general_dilated",
        lambda x, w: lax.conv_general_dilated(x, w, dimension_numbers=specs, **params),
        (Arg(lhs), Arg(rhs)),
        lambda x, w: convolve(x, w, dimension_numbers=specs, **params),
        dtypes=dtypes,
        linear=(0, 1),
        label=label,
    )


SAMPLES = [
    _conv("plain", (1, 2, 4, 3), (2, 2, 3, 2), (*FLOATS, *COMPLEX, "int8", "uint16", "int32", "int64")),
    _conv("strided-padded", (1, 1, 5, 4), (2, 1, 3, 2), window_strides=(2, 3), padding=((1, 2), (0, 3))),
    _conv("cropped", (1, 1, 6, 5), (1, 1, 2, 2), padding=((-1, 2), (-2, -1))),
    _conv("lhs-dilated", (1, 1, 3, 4), (1, 1, 3, 2), lhs_dilation=(2, 3), padding=((1, 1), (2, 0)), window_strides=(1, 2)),
    _conv("rhs-dilated", (1, 1, 6, 7), (1, 1, 2, 3), rhs_dilation=(3, 2), window_strides=(2, 1), padding=((1, 1), (0, 0))),
    _conv("channels-last", (1, 4, 3, 2), (2, 3, 2, 3), numbers=("NHWC", "HWIO", "NHWC"), padding=((1, 0), (0, 1))),
    _conv("mixed-order", (2, 4, 1, 3), (3, 2, 2, 2), numbers=("CHNW", "WOHI", "HWCN"), window_strides=(1, 2)),
    _conv("feature-groups", (2, 4, 5), (6, 2, 2), feature_group_count=2, window_strides=(2,), padding=((1, 1),)),
    _conv("depthwise", (1, 3, 4, 4), (6, 1, 2, 2), feature_group_count=3, padding=((1, 0), (1, 0))),
    _conv("batch-groups", (4, 2, 5), (6, 2, 3), batch_group_count=2, padding=((1, 1),), lhs_dilation=(2,)),
    _conv("one-axis", (2, 1, 6), (2, 1, 3), window_strides=(2,), rhs_dilation=(2,), padding=((2, 1),)),
    _conv("three-axes", (1, 1, 3, 2, 3), (1, 1, 2, 2, 2), padding=((0, 0), (1, 0), (0, 1)), window_strides=(1, 1, 2)),
    _conv("no-axis", (3, 2), (4, 2)),
    _conv("pointwise", (2, 3, 2, 2), (2, 3, 1, 1), window_strides=(2, 1)),
    _conv("empty-batch", (0, 2, 4), (3, 2, 2)),
    _conv("no-channels", (2, 0, 4), (3, 0, 2)),
    _conv("no-room", (1, 1, 2), (1, 1, 4)),
]
