"""Time schedules on the device, check their results, and remember the fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.contractions.index_maps import IndexedContraction
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.matmul.choice import candidates
from volta_fn.targets.wgsl.matmul.compute_dtype import Working
from volta_fn.targets.wgsl.matmul.epilogues import rounded
from volta_fn.targets.wgsl.matmul.schedule import Schedule
from volta_fn.targets.wgsl.matmul.tiles import BufferNumbers, tiled
from volta_fn.targets.wgsl.matmul.tuned_schedules import Choices, class_of, learn, read, write
from volta_fn.targets.wgsl.routine import Routine

#: The plain schedule whose results are the reference.
SIMPLE = Schedule(32, 32, 8, 4, 4, ahead=False, unroll=4)

#: Terms of a sum that is accurate enough for a reference.
_LONGEST = 1 << 14

#: Runs a routine on flat operands, given the number and dtype of the result's elements; returns the result and the seconds.
Trial = Callable[[Routine, Sequence[np.ndarray], int, np.dtype], tuple[np.ndarray, float]]


class Timing(NamedTuple):
    """The time of a schedule."""

    seconds: float
    schedule: Schedule


def timings(
    c: IndexedContraction,
    work: Working,
    device: TargetCapabilities,
    schedules: Iterable[Schedule],
    trial: Trial,
    buffers: BufferNumbers | None = None,
) -> list[Timing]:
    """Return the times of schedules, of which the first is trusted.

    Those whose results differ from its results (up to rounding) are left out.
    """
    buffers = buffers or BufferNumbers()
    rng = np.random.default_rng(0)
    sides = sorted([(buffers.lhs, c.lhs), (buffers.rhs, c.rhs)], key=lambda side: side[0])
    operands = [_numbers(rng, side.elements, side.dtype) for _, side in sides]
    found: list[Timing] = []
    trusted: np.ndarray | None = None
    for schedule in schedules:
        routine = tiled(c, work, schedule, device, rounded(c.target.dtype), buffers)
        result, seconds = trial(routine, operands, c.target.elements, c.target.dtype)
        trusted = result if trusted is None else trusted
        if _alike(result, trusted, c.k):
            found.append(Timing(seconds, schedule))
    return sorted(found, key=lambda timing: timing.seconds)


def _numbers(rng: np.random.Generator, size: int, dtype: np.dtype) -> np.ndarray:
    return rng.integers(0, 2, size).astype(dtype) if dtype.kind in "iub" else rng.standard_normal(size, np.float32).astype(dtype)


def _alike(x: np.ndarray, y: np.ndarray, terms: int) -> bool:
    if x.dtype.kind in "iub":
        return bool((x == y).all())
    wide = np.complex128 if x.dtype.kind == "c" else np.float32
    coarse = 1e-2 if x.dtype.itemsize < 4 else 1e-5
    return bool((np.abs(x.astype(wide) - y.astype(wide)) <= coarse * max(terms, 16) ** 0.5 * 4).all())


def tried(c: IndexedContraction, work: Working, device: TargetCapabilities, count: int = 8) -> list[Schedule]:
    """Return the schedules to try: a plain one, which is trusted, and promising ones."""
    return [SIMPLE.split(max(1, -(-c.k // _LONGEST))), *candidates(c, work, device, count)]


def tune(
    c: IndexedContraction,
    work: Working,
    device: TargetCapabilities,
    trial: Trial,
    buffers: BufferNumbers | None = None,
    path: Path | None = None,
    count: int = 8,
) -> list[Timing]:
    """Time schedules and remember the fastest, also in a file if its path is given."""
    found = timings(c, work, device, tried(c, work, device, count), trial, buffers)
    best: Choices = {device.adapter: {class_of(c): found[0].schedule}}
    learn(best)
    if path is not None:
        known = read(path)
        known.setdefault(device.adapter, {}).update(best[device.adapter])
        write(path, known)
    return found
