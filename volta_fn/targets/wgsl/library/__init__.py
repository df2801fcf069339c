"""Routines of equations that loops over kernels cannot express.

These are gathers, scatters, scans, sorts, windows, factorisations and some casts. In the order in which to read:

- `movement`: gathers and dynamic slices, which move elements without computing with them;
- `small_sort` (sorting problems, and rows that a workgroup holds), by comparisons or by digits; `sort` (longer rows, in passes over digits,
  the choice between all of these, and the first few elements of long rows);
- `scatter`;
- `cumulative`, also over windows;
- `linalg`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.cumulative import cumulative, reduce_window, select_and_gather_add, select_and_scatter_add
from volta_fn.targets.wgsl.library.linalg import cholesky_panel, eigh, lu, qr, svd, triangular_solve
from volta_fn.targets.wgsl.library.linalg import panel_width as panel_width
from volta_fn.targets.wgsl.library.movement import axis_index, bitcast_convert_type, dynamic_slice, dynamic_update_slice, gather
from volta_fn.targets.wgsl.library.scatter import scatter
from volta_fn.targets.wgsl.library.sort import sort, top_k
from volta_fn.targets.wgsl.routine import Routine

#: Primitive name -> maker of its routine, given the operands' types, parameters and the device's capabilities; None if there is none.
ROUTINES: dict[str, Callable[[tuple[ShapedArray, ...], dict[str, Any], TargetCapabilities], Routine | None]] = {
    "axis_index": axis_index,
    "bitcast_convert_type": bitcast_convert_type,
    "gather": gather,
    **{name: partial(scatter, name=name) for name in ("scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max")},
    "wrapped_gather": partial(gather, wraps=True),
    "wrapped_scatter_add": partial(scatter, name="scatter_add", wraps=True),
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice,
    **{name: partial(cumulative, name=name) for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")},
    **{name: partial(reduce_window, name=name) for name in ("reduce_window_sum", "reduce_window_max", "reduce_window_min")},
    "select_and_gather_add": select_and_gather_add,
    "select_and_scatter_add": select_and_scatter_add,
    "sort": sort,
    "top_k": top_k,
    "cholesky_panel": cholesky_panel,
    "triangular_solve": triangular_solve,
    "lu": lu,
    "qr": qr,
    "eigh": eigh,
    "svd": svd,
}

#: By a primitive's name the operand whose memory the result may be: the first dispatch copies that operand into the result, and is left
#: out then; the others do not bind it.
IN_PLACE: dict[str, int] = dict.fromkeys(
    ["scatter", "scatter_add", "wrapped_scatter_add", "scatter_mul", "scatter_min", "scatter_max", "dynamic_update_slice"], 0
)
