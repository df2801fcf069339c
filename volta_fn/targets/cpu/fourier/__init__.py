"""Fourier transforms of many signals, as many at a time as a vector has lanes.

`routine` says which transforms there is code for, and divides the signals among tasks; others are SciPy's, on the host. A task has its
signals' elements side by side (`signals` reads and writes them), and transforms all of them by `passes`, each of which does the
`butterflies` of one factor of the length. `spectra` makes half spectra of real signals.
"""

from __future__ import annotations

from volta_fn.compiler.target import RoutineMaker
from volta_fn.targets.cpu.fourier.routine import fft

#: Makers of routines, by the names of primitives.
ROUTINES: dict[str, RoutineMaker] = {"fft": fft}
