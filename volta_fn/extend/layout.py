"""Memory layouts, as in `jax.experimental.layout`, which targets alone choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Layout:
    """The order of an array's dimensions in memory."""

    major_to_minor: tuple[int, ...]
    tiling: Any = None


@dataclass(frozen=True)
class Format:
    """A layout and a sharding of an array."""

    layout: Layout | None = None
    sharding: Any = None
