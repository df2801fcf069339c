"""JAX's choices between fast and exact code, the option `accuracy`."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class AccuracyMode(enum.Enum):
    """The accuracy of an elementwise function; all code here is of the highest.

    >>> import volta_fn as vf
    >>> vf.lax.exp(0.0, accuracy=vf.lax.AccuracyMode.HIGHEST)
    Array(1., dtype=float32, weak_type=True)
    """

    HIGHEST = 1
    DEFAULT = 2


@dataclass(frozen=True)
class Tolerance:
    """The errors that a caller accepts, the last one in units in the last place.

    >>> import volta_fn as vf
    >>> vf.lax.exp(0.0, accuracy=vf.lax.Tolerance(rtol=1e-3))
    Array(1., dtype=float32, weak_type=True)
    """

    atol: float = 0.0
    rtol: float = 0.0
    ulps: int = 0
