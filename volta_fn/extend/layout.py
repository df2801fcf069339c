"""Memory layouts, as in `jax.experimental.layout`, which targets alone choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Layout:
    """The order of an array's dimensions in memory."""

    major_to_minor: tuple[int, ...]
    tiling: Any = None
    #: Lets the target choose, as it does anyway.
    AUTO: ClassVar[Any] = None


@dataclass(frozen=True)
class Format:
    """A layout and a sharding of an array."""

    layout: Layout | None = None
    sharding: Any = None


def with_layout_constraint(x: Any, layout: Layout) -> Any:
    """Return `x`: targets choose layouts, and no value depends on them.

    >>> import volta_fn as vf
    >>> with_layout_constraint(vf.numpy.ones(2), Layout((0,)))
    Array([1., 1.], dtype=float32)
    """
    return x
