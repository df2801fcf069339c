"""Tuning: schedules are tried on the device, those that are right are timed, and the fastest is remembered.

What is remembered is a JSON object: for each adapter by name, the schedules of classes of contractions. One comes with the package;
choices made later may be kept in a file of the user's.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from volta_fn.backends.wgsl.facts import Facts
from volta_fn.backends.wgsl.matmul.epilogues import rounded
from volta_fn.backends.wgsl.matmul.schedule import Schedule
from volta_fn.backends.wgsl.matmul.tiles import Buffers, tiled
from volta_fn.backends.wgsl.matmul.working import Working
from volta_fn.backends.wgsl.routine import Routine
from volta_fn.compiler.contractions.maps import Contraction, Map

#: The schedules that come with the package.
SHIPPED = Path(__file__).with_name("tuned.json")

#: What runs a routine on operands, given as flat arrays: the result's bytes of so many elements of a dtype, and the seconds of a run.
Trial = Callable[[Routine, Sequence[np.ndarray], int, np.dtype], tuple[np.ndarray, float]]


class Timing(NamedTuple):
    """How long a schedule took."""

    seconds: float
    schedule: Schedule


def class_of(c: Contraction) -> str:
    """What contractions have in common that one schedule serves: dtypes, sizes, and how operands and results lie in memory."""
    dtypes = ",".join(x.dtype.name for x in (c.lhs, c.rhs, c.target))
    forms = _form(c.lhs), _form(c.rhs), "4" if c.target.fours else "1"
    return f"{dtypes} {c.batch}x{c.m}x{c.n}x{c.k} {' '.join(forms)}"


def _form(map_: Map) -> str:
    """How neighbours lie: fours along the index summed over (k4), or along the other (o4), or neither; with how many bounds."""
    fours = [name for name, inner in (("k4", True), ("o4", False)) if map_.fours(along_inner=inner)]
    return "".join(fours or ["1"]) + ("b" * len(map_.bounds))


def timings(
    c: Contraction, work: Working, facts: Facts, schedules: Iterable[Schedule], trial: Trial, buffers: Buffers | None = None
) -> list[Timing]:
    """The times of schedules, the first of which is trusted; those that give other results than it (up to rounding) are left out."""
    buffers = buffers or Buffers()
    rng = np.random.default_rng(0)
    sides = sorted([(buffers.lhs, c.lhs), (buffers.rhs, c.rhs)], key=lambda side: side[0])
    operands = [_numbers(rng, side.elements, side.dtype) for _, side in sides]
    found: list[Timing] = []
    trusted: np.ndarray | None = None
    for schedule in schedules:
        routine = tiled(c, work, schedule, facts, rounded(c.target.dtype), buffers)
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


# what is remembered


Choices = dict[str, dict[str, Schedule]]


def read(path: Path) -> Choices:
    """The schedules that a file has; none if there is no such file, or if it is not one of ours."""
    try:
        content = json.loads(path.read_text())
        return {adapter: {key: Schedule(**value) for key, value in known.items()} for adapter, known in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def write(path: Path, choices: Choices) -> None:
    """Write a file that `read` reads."""
    content = {adapter: {key: value.as_dict() for key, value in sorted(known.items())} for adapter, known in sorted(choices.items())}
    path.write_text(json.dumps(content, indent=1) + "\n")


@functools.cache
def shipped() -> Choices:
    """The schedules that come with the package."""
    return read(SHIPPED)


#: What has been learnt in this process.
_learnt: Choices = {}


def learn(adapter: str, c: Contraction, schedule: Schedule) -> None:
    """Remember the fastest schedule of a class of contractions, in this process."""
    _learnt.setdefault(adapter, {})[class_of(c)] = schedule


def remembered(c: Contraction, work: Working, facts: Facts) -> Schedule | None:
    """The schedule that was found to be the fastest on a device of this name, if it fits this one."""
    for choices in (_learnt, shipped()):
        found = choices[facts.adapter].get(class_of(c)) if facts.adapter in choices else None
        if found is not None and found.fits(work, facts):
            return found
    return None
