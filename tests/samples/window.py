"""Samples of window reductions, and of moving tangents to and from their winners."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.naive_windows import reduce_windows, window_counts, winners
from tests.samples.sample import NUMBERS, REALS, Arg, Draw, Sample, distinct, normal
from volta_fn import lax
from volta_fn.core.trace import bind
from volta_fn.primitives.window import select_and_gather_add_p, select_and_scatter_add_p

_PLAIN = ("float32", "float64")


def _geometry(taps: tuple[int, ...], **options: Any) -> dict[str, Any]:
    one = (1,) * len(taps)
    padding = ((0, 0),) * len(taps)
    plain = {"window_dimensions": taps, "window_strides": one, "padding": padding, "base_dilation": one, "window_dilation": one}
    return plain | options


_CASES: tuple[tuple[str, tuple[int, ...], dict[str, Any]], ...] = (
    ("pool", (1, 4, 6), _geometry((1, 2, 2), window_strides=(1, 2, 2))),
    ("overlapping-padded", (5, 4), _geometry((3, 3), window_strides=(2, 1), padding=((1, 1), (0, 2)))),
    ("dilated-window", (7,), _geometry((3,), window_dilation=(2,), padding=((1, -1),))),
    ("dilated-base", (4, 3), _geometry((2, 3), base_dilation=(2, 3), window_strides=(1, 2), padding=((1, 0), (2, 1)))),
    ("whole", (3, 4), _geometry((3, 4))),
    ("no-axis", (), _geometry(())),
    ("empty", (0, 3), _geometry((1, 2))),
    ("no-room", (2,), _geometry((3,))),
)


def _reduction(name: str, computation: Any, init: Any, reduce: Any, names: tuple[str, ...], draw: Draw, **options: Any) -> Iterator[Sample]:
    for label, shape, geometry in _CASES:
        yield Sample(
            name,
            lambda x, geometry=geometry: lax.reduce_window(x, init(np.dtype(x.dtype)), computation, **geometry),
            (Arg(shape, draw),),
            lambda x, geometry=geometry: reduce_windows(x, lambda v: reduce(v, x.dtype), **geometry),
            dtypes=names if label == "pool" else (names[-1], "float64"),
            label=label,
            **options,
        )


def _least(dtype: np.dtype) -> Any:
    return np.asarray(np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf, dtype)


def _greatest(dtype: np.dtype) -> Any:
    return np.asarray(np.iinfo(dtype).max if dtype.kind in "iu" else np.inf, dtype)


def _move(name: str, geometry: dict[str, Any], label: str, shape: tuple[int, ...], select: str) -> Sample:
    extremum: Callable[[Any], Any] = max if select == "ge" else min
    counts = window_counts(shape, *geometry.values())
    gathers = name == "select_and_gather_add"
    primitive = select_and_gather_add_p if gathers else select_and_scatter_add_p

    def reference(moved: np.ndarray, operand: np.ndarray) -> np.ndarray:
        out = np.zeros(counts if gathers else shape, moved.dtype)
        for window, at in winners(operand, extremum, **geometry).items():
            if gathers:
                out[window] = moved[at]
            else:
                out[at] += moved[window]
        return out

    return Sample(
        name,
        lambda moved, operand: bind(primitive, moved, operand, select=select, **geometry),
        (Arg(shape if gathers else counts, normal()), Arg(shape, distinct())),
        reference,
        dtypes=_PLAIN,
        linear=(0,),
        label=f"{label}-{select}",
    )


SAMPLES = [
    *_reduction(
        "reduce_window_sum",
        lax.add,
        lambda d: np.zeros((), d),
        lambda v, d: np.sum(v, dtype=d),
        (*NUMBERS, "float32"),
        normal(),
        linear=(0,),
    ),
    *_reduction("reduce_window_max", lax.max, _least, lambda v, d: max(v, default=_least(d)), (*REALS, "float32"), distinct()),
    *_reduction("reduce_window_min", lax.min, _greatest, lambda v, d: min(v, default=_greatest(d)), (*REALS, "float32"), distinct()),
    *[
        _move(name, geometry, label, shape, select)
        for name in ("select_and_gather_add", "select_and_scatter_add")
        for label, shape, geometry in _CASES
        for select in ("ge", "le")
    ],
]
