"""How long stress tests go on."""

from __future__ import annotations

import os


def rounds(sample: int) -> int:
    """Return how often to try: `sample` times, or VOLTA_STRESS times as often."""
    return sample * int(os.environ.get("VOLTA_STRESS", "1"))
