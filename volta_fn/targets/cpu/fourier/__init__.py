"""Fourier transforms of several signals at a time, one per lane of a vector.

In the order in which to read: `signals` has transforms of a few numbers (butterflies), one for each factor of a length, reads and writes
the elements of neighbouring signals as vectors, and makes half spectra of real signals. `routine` says which transforms are generated and
divides signals among tasks: it transforms signals by a pass for each factor, and long ones as matrices, whose columns and then rows are
transformed. SciPy computes all others, on the host.
"""

from __future__ import annotations

from volta_fn.compiler.target import RoutineMaker
from volta_fn.lazy_imports import deferred

_ROUTINE = deferred("volta_fn.targets.cpu.fourier.routine")

#: Makers of routines, by the names of primitives.
ROUTINES: dict[str, RoutineMaker] = {"fft": lambda avals, params: _ROUTINE.fft(avals, params)}
