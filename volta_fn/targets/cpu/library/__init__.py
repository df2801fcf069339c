"""Routines of equations that loops over kernels cannot express.

These are gathers, scatters, scans, sorts and windows. In the order in which to read:

- `movement` (gathers, scatters and dynamic slices);
- `sort` (short and long rows by keys, and by NumPy's functions; the greatest elements of rows);
- `scans` (cumulative operations, and control flow over single numbers);
- `pooling` (sliding windows).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from volta_fn.core.aval import ShapedArray
from volta_fn.targets.cpu.library.movement import dynamic_slice, dynamic_update_slice, gather, scatter
from volta_fn.targets.cpu.library.pooling import reduce_window, select_and_gather_add, select_and_scatter_add
from volta_fn.targets.cpu.library.scans import cumulative
from volta_fn.targets.cpu.library.sort import sort, top_k
from volta_fn.targets.cpu.routine import Routine

#: Makers of routines, by the names of primitives: of operands' avals and parameters, None if there is no routine for these.
ROUTINES: dict[str, Callable[[tuple[ShapedArray, ...], dict[str, Any]], Routine | None]] = {
    "gather": gather,
    "wrapped_gather": partial(gather, wraps=True),
    **{name: partial(scatter, name=name) for name in ("scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max")},
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice,
    **{name: partial(cumulative, name=name) for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")},
    **{name: partial(reduce_window, name=name) for name in ("reduce_window_sum", "reduce_window_max", "reduce_window_min")},
    "select_and_gather_add": select_and_gather_add,
    "select_and_scatter_add": select_and_scatter_add,
    "sort": sort,
    "top_k": top_k,
}

#: By a primitive's name the operand whose memory the result may be: routines see where they are the same (`Launch.is_copy`).
IN_PLACE: dict[str, int] = dict.fromkeys(["scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max", "dynamic_update_slice"], 0)
