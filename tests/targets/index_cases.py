"""Gathers of many kinds, for Hypothesis."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from volta_fn.primitives.data_movement.gather import GatherDimensionNumbers, GatherScatterMode

MODES = list(GatherScatterMode)
COMBINED = ("scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max")

#: Rows and columns of a matrix, at index vectors of one entry.
ROWS = GatherDimensionNumbers((1,), (0,), (0,))
COLUMNS = GatherDimensionNumbers((0,), (1,), (1,))


@st.composite
def gathers(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Return an operand, indices inside and outside of it, and how to gather."""
    rank, batch_rank = draw(st.integers(1, 3)), draw(st.integers(0, 2))
    shape = tuple(draw(st.integers(1, 5)) for _ in range(rank))
    dims = draw(st.permutations(range(rank)))
    addressed = tuple(dims[: draw(st.integers(0, rank))])
    stepping = [d for d in sorted(set(range(rank)) - set(addressed)) if batch_rank and draw(st.booleans())][:batch_rank]
    sizes = tuple(1 if d in stepping else draw(st.integers(0 if d else 1, shape[d])) for d in range(rank))
    collapsed = tuple(d for d in range(rank) if d not in stepping and sizes[d] == 1 and draw(st.booleans()))
    batch = [draw(st.integers(0, 9)) for _ in range(batch_rank)]
    partners = tuple(range(len(stepping)))
    for d, partner in zip(stepping, partners, strict=True):
        batch[partner] = shape[d]
    windows = rank - len(stepping) - len(collapsed)
    offsets = tuple(sorted(draw(st.permutations(range(windows + batch_rank)))[:windows]))
    numbers = GatherDimensionNumbers(offsets, collapsed, addressed, tuple(stepping), partners)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    dtype = draw(st.sampled_from([np.int32, np.int64, np.uint8, np.uint64, np.int8]))
    indices = rng.integers(-3, 8, (*batch, len(addressed))).astype(dtype)
    kind = draw(st.sampled_from([np.float32, np.int8, np.float64, np.complex128, np.float16]))
    x = rng.integers(-9, 9, shape).astype(kind)
    return x, indices, {"dimension_numbers": numbers, "slice_sizes": sizes, "mode": draw(st.sampled_from(MODES))}
