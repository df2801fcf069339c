"""Samples of `ragged_dot`: rows by matrices or their transposes, and sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.samples.sample import Arg, Sample, integers
from volta_fn.core.trace import bind
from volta_fn.primitives.contraction import ROWS, SUMS, TRANSPOSED_ROWS, ragged_dot_p


def _sample(kind: str, y: tuple[int, ...], groups: int) -> Sample:
    def reference(x: Any, y: Any, sizes: Any) -> Any:
        members = np.arange(len(x)) < np.cumsum(sizes)[:, None]
        members[1:] &= ~members[:-1]
        if kind == SUMS:
            return np.einsum("gm,mk,mn->gkn", members, x, y)
        return np.einsum("gm,mk,gkn->mn", members, x, y.swapaxes(1, 2) if kind == TRANSPOSED_ROWS else y)

    def product(x: Any, y: Any, sizes: Any) -> Any:
        return bind(ragged_dot_p, x, y, sizes, kind=kind, rounds=False, dtype=np.result_type(x.dtype, y.dtype))

    arguments = (Arg((7, 3)), Arg(y), Arg((groups,), integers(0, 4), np.int32))
    return Sample("ragged_dot", product, arguments, reference, linear=(0, 1), label=kind.replace(" ", "-"))


SAMPLES = [_sample(ROWS, (3, 3, 4), 3), _sample(TRANSPOSED_ROWS, (2, 4, 3), 2), _sample(SUMS, (7, 2), 3)]
