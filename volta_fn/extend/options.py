"""Options of JAX that choose among XLA's ways to compile and to reduce.

Programs pass them on; here each has one meaning, and they have no effect.
"""

from __future__ import annotations

import enum


class CompilerEffortLevel(enum.Enum):
    """How much time XLA takes for a program."""

    UNKNOWN = 0
    O0 = 9
    O1 = 19
    O2 = 29
    O3 = 39

    @classmethod
    def _missing_(cls, value: object) -> CompilerEffortLevel | None:
        """Return the level of a name: `CompilerEffortLevel("O1")`."""
        return cls.__members__.get(value) if isinstance(value, str) else None


class Inline(enum.Enum):
    """Where `jit(inline=...)` makes a call a part of the calling program."""

    JAX_EARLY = "jax_early"
    JAX_LATE = "jax_late"
    XLA_EARLY = "xla_early"
    XLA_LATE = "xla_late"
    AUTO = "auto"


class UnreducedKind(enum.Enum):
    """By what the parts of an array with unreduced axes are to be combined."""

    sum = enum.auto()
    max = enum.auto()
    min = enum.auto()
