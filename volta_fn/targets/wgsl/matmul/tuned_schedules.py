"""Remember the fastest schedules measured, by adapter and class of contraction.

Some are shipped with the package, in a JSON file; others were measured in this process, or in an earlier one and are in such a file in the
user's cache folder. Where none is known and tuning is enabled, schedules are measured (see `tuning`).
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path

from volta_fn.compiler.contractions.index_maps import IndexedContraction, OperandMap
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.runtime.cache_dir import cache_dir
from volta_fn.targets.wgsl.matmul.compute_dtype import Working
from volta_fn.targets.wgsl.matmul.schedule import Schedule

#: The schedules that come with the package.
SHIPPED = Path(__file__).with_name("tuned.json")

#: Elements of a vector, of which tiles consist, and the largest side of a tile and number of splits.
_VECTOR, _LARGEST = 4, 1 << 12

#: Schedules by adapter and class.
Choices = dict[str, dict[str, Schedule]]


def class_of(c: IndexedContraction) -> str:
    """Return the class of a contraction, for which one schedule serves.

    It consists of dtypes, sizes, and how operands and results lie in memory.
    """
    dtypes = ",".join(x.dtype.name for x in (c.lhs, c.rhs, c.target))
    forms = _form(c.lhs), _form(c.rhs), "4" if c.target.fours else "1"
    return f"{dtypes} {c.batch}x{c.m}x{c.n}x{c.k} {' '.join(forms)}"


def _form(map_: OperandMap) -> str:
    """Describe the indices that allow vectors of four: summed (k4) or other (o4).

    Bounds follow.
    """
    fours = [name for name, inner in (("k4", True), ("o4", False)) if map_.fours(along_inner=inner)]
    return "".join(fours or ["1"]) + ("b" * len(map_.bounds))


def read(path: Path) -> Choices:
    """Read a file of schedules; empty if it is missing or has another format.

    Schedules that no code can be generated for are left out.
    """
    try:
        content = json.loads(path.read_text())
        choices = {adapter: {key: Schedule(**value) for key, value in known.items()} for adapter, known in content.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {adapter: {key: value for key, value in known.items() if is_valid(value)} for adapter, known in choices.items()}


def is_valid(schedule: Schedule) -> bool:
    """Return True for sizes of the types and magnitudes that code is generated for."""
    values = schedule.as_dict()
    if any(type(value) is not type(default) for value, default in zip(values.values(), Schedule().as_dict().values(), strict=True)):
        return False
    tile = schedule.rows, schedule.columns, schedule.depth, schedule.thread_rows, schedule.thread_columns
    in_bounds = all(_VECTOR <= size <= _LARGEST and not size & (size - 1) for size in tile)
    patches = all(size > 0 and not size & (size - 1) for size in (schedule.lane_rows, schedule.lane_columns))
    divides = schedule.thread_rows <= schedule.rows and schedule.thread_columns <= schedule.columns
    counts = schedule.band > 0 and 0 < schedule.splits <= _LARGEST and 0 <= schedule.pad <= _VECTOR
    return in_bounds and patches and divides and counts and 0 <= schedule.unroll <= schedule.depth


def write(path: Path, choices: Choices) -> None:
    """Write a file that `read` reads."""
    content = {adapter: {key: value.as_dict() for key, value in sorted(known.items())} for adapter, known in sorted(choices.items())}
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(json.dumps(content, indent=1) + "\n")
    new.replace(path)


@functools.cache
def shipped() -> Choices:
    """Return the schedules that come with the package."""
    return read(SHIPPED)


def users_file() -> Path | None:
    """Return the file of schedules measured on the user's devices, if any.

    It is None without a cache folder.
    """
    where = cache_dir()
    return None if where is None else where / "schedules.json"


@functools.cache
def _users() -> Choices:
    where = users_file()
    return {} if where is None else read(where)


#: The schedules that were measured in this process.
_learnt: Choices = {}

#: Measures the fastest schedule of a contraction; by the names of adapters for which tuning is enabled.
Finder = Callable[[IndexedContraction, Working, TargetCapabilities], Schedule]
_finders: dict[str, Finder] = {}


def learn(choices: Choices) -> None:
    """Remember schedules in this process."""
    for adapter, known in choices.items():
        _learnt.setdefault(adapter, {}).update(known)


def find_by(adapter: str, finder: Finder) -> None:
    """Measure unknown schedules on a device from now on."""
    _finders[adapter] = finder


def remembered(c: IndexedContraction, work: Working, device: TargetCapabilities) -> Schedule | None:
    """Return the schedule measured to be fastest on such a device, if it fits.

    With a finder for the device, it is measured now; None if it is unknown.
    """
    name = class_of(c)
    for choices in (_learnt, _users(), shipped()):
        found = choices[device.adapter].get(name) if device.adapter in choices else None
        if found is not None and found.fits(work, device):
            return found
    finder = _finders.get(device.adapter)
    return None if finder is None else finder(c, work, device)
