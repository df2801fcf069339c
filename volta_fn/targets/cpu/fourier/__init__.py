"""Fourier transforms, as many signals at a time as a vector has lanes.

`routine` says which transforms there is code for, and divides the signals among tasks in `groups`; others are SciPy's, on the host. A task
has its signals' elements side by side (`signals` reads and writes them in memory, `buffers` there), and transforms all of them by `passes`,
each of which does the `butterflies` of one factor of the length; those of longer primes are in `primes`. `spectra` makes half spectra of
real signals. A long signal is a matrix (`long_signals`), whose columns and rows are transformed so, with `roots` of unity between them;
`pairs` makes its half spectrum.
"""

from __future__ import annotations

from volta_fn.compiler.target import RoutineMaker
from volta_fn.lazy_imports import deferred

_ROUTINE = deferred("volta_fn.targets.cpu.fourier.routine")

#: Makers of routines, by the names of primitives.
ROUTINES: dict[str, RoutineMaker] = {"fft": lambda avals, params: _ROUTINE.fft(avals, params)}
