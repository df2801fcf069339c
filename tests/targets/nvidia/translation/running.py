"""Where tests run kernels: emulated on the CPU, or on a card if VOLTA_TRANSLATION_TESTS is "card"."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from tests.targets.nvidia.translation import card, emulation

#: Whether kernels run on a card. One that accesses memory out of range would end the GPU for the process, and all tests after it.
ON_CARD = os.environ.get("VOLTA_TRANSLATION_TESTS") == "card"


def run(source: str, groups: Sequence[int], arrays: Sequence[np.ndarray], grid: np.ndarray | None = None) -> None:
    """Run a shader on arrays, which it writes to; `grid` holds the words of an indirect grid."""
    runner = card if ON_CARD else emulation
    runner.run(source, groups, arrays, grid)
