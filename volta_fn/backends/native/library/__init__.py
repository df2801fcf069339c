"""Routines of the primitives that are no loops over elements: gathers, scatters, scans, sorts, windows, random bits.

`whole`, `writing`, `moving` and `starts` are what they share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn.backends.native.library.dynamic_slices import dynamic_slice, dynamic_update_slice
from volta_fn.backends.native.library.gather import gather
from volta_fn.backends.native.library.threefry import random_bits, threefry2x32
from volta_fn.backends.native.routine import Routine
from volta_fn.core.aval import ShapedArray

#: By a primitive's name what makes its routine, of operands' avals and parameters; None for what there is no routine for.
ROUTINES: dict[str, Callable[[tuple[ShapedArray, ...], dict[str, Any]], Routine | None]] = {
    "gather": gather,
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice,
    "random_bits": random_bits,
    "threefry2x32": threefry2x32,
}

#: By a primitive's name the operand whose memory the result may be. The first phase copies that operand to the result (and does no
#: more than that); it sees where they are the same and does nothing then, so that it may as well be left out.
IN_PLACE: dict[str, int] = {"dynamic_update_slice": 0}
