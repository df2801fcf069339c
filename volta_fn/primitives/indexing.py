"""What gather and scatter mean: the numbering of their dimensions, and what an index out of range does.

Jargon. A gather reads a *window* (a block of ``slice_sizes``) of the operand at each of many *start indices*, and lays the windows
out in the result; a scatter writes windows of *updates* into the operand. The start indices are one integer array, whose last
dimension holds the vector of coordinates of one window; its other dimensions are the *batch*. Dimensions named in
``operand_batching_dims`` and their partners in the indices run in step: example i of the indices reads example i of the operand.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class GatherDimensionNumbers(NamedTuple):
    """How the dimensions of operand, start indices and result of a gather belong together (the names are XLA's).

    Attributes:
        offset_dims: the result's dimensions that run within a window, in the order of the operand's dimensions.
        collapsed_slice_dims: operand dimensions of window size 1 that the result lacks.
        start_index_map: for each entry of an index vector, the operand dimension that it addresses.
        operand_batching_dims: operand dimensions (window size 1, absent from the windows) that run in step with the indices.
        start_indices_batching_dims: their partners among the dimensions of the indices.
    """

    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    start_indices_batching_dims: tuple[int, ...] = ()


class ScatterDimensionNumbers(NamedTuple):
    """How the dimensions of operand, scatter indices and updates of a scatter belong together (the names are XLA's).

    Attributes:
        update_window_dims: the updates' dimensions that run within a window, in the order of the operand's dimensions.
        inserted_window_dims: operand dimensions of window size 1 that the updates lack.
        scatter_dims_to_operand_dims: for each entry of an index vector, the operand dimension that it addresses.
        operand_batching_dims: operand dimensions (window size 1, absent from the windows) that run in step with the indices.
        scatter_indices_batching_dims: their partners among the dimensions of the indices.
    """

    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    scatter_dims_to_operand_dims: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    scatter_indices_batching_dims: tuple[int, ...] = ()


class GatherScatterMode(enum.Enum):
    """What happens to a window that does not lie wholly inside the operand."""

    #: The window moves to the nearest place inside.
    CLIP = "clip"
    #: A gather fills the whole window with a fill value; a scatter leaves the window out.
    FILL_OR_DROP = "fill_or_drop"
    #: The caller promises that there is none. A broken promise reads as CLIP and writes as FILL_OR_DROP.
    PROMISE_IN_BOUNDS = "promise_in_bounds"
