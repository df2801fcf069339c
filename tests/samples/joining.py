"""Samples of concatenate and pad, with negative and interior padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.samples.sample import ALL, Arg, Sample
from volta_fn import lax


def _padded(x: np.ndarray, value: np.ndarray, config: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """Pad one axis at a time: spread the elements, then attach or cut the edges."""
    for axis, (low, high, interior) in enumerate(config):
        rows = list(np.moveaxis(x, axis, 0))
        rest = x.shape[:axis] + x.shape[axis + 1 :]
        filler = np.full(rest, value, x.dtype)
        spread = [row for r in rows for row in (r, *[filler] * interior)]
        spread = spread[: len(spread) - interior] if rows else []
        padded = [filler] * max(low, 0) + spread[max(-low, 0) :] if low >= 0 or -low <= len(spread) else []
        cut = -low - len(spread) if low < 0 and -low > len(spread) else 0
        padded = padded + [filler] * max(high - cut, 0) if high >= 0 else padded[: len(padded) + high]
        x = np.moveaxis(np.stack(padded) if padded else np.zeros((0, *rest), x.dtype), 0, axis)
    return x


def _pad_sample(
    shape: tuple[int, ...], config: Sequence[tuple[int, int, int]], label: str, dtypes: Sequence[str] = ("float32", "float64", "complex128")
) -> Sample:
    return Sample(
        "pad",
        lambda x, v: lax.pad(x, v, config),
        (Arg(shape), Arg(())),
        lambda x, v: _padded(x, v, config),
        dtypes=dtypes,
        linear=(0, 1),
        label=label,
    )


SAMPLES = [
    Sample(
        "concatenate",
        lambda x, y, z: lax.concatenate([x, y, z], 1),
        (Arg((2, 3)), Arg((2, 1)), Arg((2, 2))),
        lambda x, y, z: np.concatenate([x, y, z], 1),
        dtypes=ALL,
        linear=(0, 1, 2),
    ),
    Sample(
        "concatenate",
        lambda x, y: lax.concatenate([x, y, x], 0),
        (Arg((2,)), Arg((0,))),
        lambda x, y: np.concatenate([x, y, x]),
        linear=(0,),
        label="twice",
    ),
    Sample(
        "concatenate", lambda x, y: lax.concatenate([x, y], -2), (Arg((1, 0)), Arg((2, 0))), lambda x, y: np.zeros((3, 0)), label="empty"
    ),
    _pad_sample((3,), [(1, 2, 0)], "edges", ALL),
    _pad_sample((3, 2), [(2, 1, 1), (0, 3, 2)], "interior"),
    _pad_sample((5, 3), [(-1, -2, 0), (1, -1, 0)], "negative"),
    _pad_sample((4, 4), [(-2, 3, 1), (2, -3, 2)], "negative-interior"),
    _pad_sample((3,), [(-4, 3, 1)], "cut-past-elements"),
    _pad_sample((2,), [(-3, 4, 0)], "all-cut"),
    _pad_sample((0, 2), [(1, 1, 3), (0, 0, 1)], "empty-operand"),
    _pad_sample((2,), [(-1, -1, 0)], "empty-result"),
]
