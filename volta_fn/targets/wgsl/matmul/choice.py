"""Choose schedules by an estimate of their time on a large GPU."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

from volta_fn.compiler.contractions.index_maps import IndexedContraction
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.matmul.compute_dtype import Working
from volta_fn.targets.wgsl.matmul.schedule import Schedule
from volta_fn.targets.wgsl.matmul.tuned_schedules import remembered

#: Multiprocessors of the device, and the invocations that saturate one of them.
_PROCESSORS = 132
_BUSY = 256

#: Multiplications of a multiprocessor during the latency of a slice, and of a dispatch; and of all of them during the access to a byte.
_SLICE_WAIT = 8_000
_DISPATCH_WAIT = 500_000
_BYTE = 8

#: Below this many multiplications loops are unrolled less: fetching and compiling long shaders costs more than it saves.
LITTLE = 1 << 29

#: Up to this many workgroups per multiprocessor, their number is rounded up to full waves.
_ROUNDS = 4

#: Tiles for dtypes with vectors, and the fraction of peak speed that each reaches.
_VECTORS = (
    (Schedule(64, 128, 16, 8, 8), 0.94),
    (Schedule(128, 64, 16, 8, 8), 0.94),
    (Schedule(128, 128, 8, 8, 16, lane_rows=2, lane_columns=16), 0.92),
    (Schedule(128, 128, 8, 16, 8, twice=True), 0.9),
    (Schedule(64, 128, 8, 8, 8), 0.89),
    (Schedule(128, 128, 16, 8, 8), 0.87),
    (Schedule(64, 64, 16, 8, 8), 0.89),
    (Schedule(64, 64, 8, 8, 8), 0.88),
    (Schedule(64, 128, 16, 8, 4), 0.86),
    (Schedule(128, 64, 16, 8, 4), 0.85),
    (Schedule(64, 64, 16, 8, 4), 0.84),
    (Schedule(32, 64, 16, 8, 4), 0.78),
    (Schedule(32, 64, 16, 4, 8), 0.70),
    (Schedule(32, 64, 16, 4, 4), 0.60),
    (Schedule(32, 32, 16, 4, 4), 0.52),
    (Schedule(16, 64, 32, 4, 4), 0.48),
    (Schedule(16, 32, 32, 4, 4), 0.40),
    (Schedule(16, 128, 16, 4, 8), 0.55),
    (Schedule(4, 256, 16, 4, 4), 0.3),
    (Schedule(4, 128, 32, 4, 4), 0.3),
    (Schedule(64, 16, 32, 4, 4), 0.48),
)
#: The same for other dtypes.
_SINGLES = (
    (Schedule(32, 32, 16, 4, 4), 0.5),
    (Schedule(32, 32, 8, 4, 4), 0.45),
    (Schedule(16, 16, 16, 2, 2), 0.3),
)

#: Variations worth a try on large contractions.
_VARIATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"band": 4},
    {"band": 16},
    {"band": 1},
    {"unroll": 8},
    {"unroll": 4},
    {"twice": True},
    {"once": True},
    {"lane_rows": 8, "lane_columns": 4},
    {"lane_rows": 2, "lane_columns": 16},
    {"pad": 0},
    {"pad": 2},
    {"ahead": False},
    {"depth": 8},
    {"depth": 32},
)

_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


def candidates(c: IndexedContraction, work: Working, device: TargetCapabilities, count: int = 8, batch_products: int = 0) -> list[Schedule]:
    """Return schedules that fit the device, the probably fastest first.

    There are at most two for each tile. `batch_products`: see `choose`.
    """
    found = []
    little = c.products < LITTLE
    for tile, efficiency in _SINGLES if work.lanes == 1 else _VECTORS:
        schedule = replace(tile, unroll=4 if little else 0, once=little)
        splits = [n for n in _SPLITS if n == 1 or c.k >= 2 * schedule.depth * n]
        timed = [(_time(c, split, efficiency, batch_products), split) for n in splits if (split := schedule.split(n)).fits(work, device)]
        found += sorted(timed, key=lambda pair: pair[0])[:2]
    return [schedule for _, schedule in sorted(found, key=lambda pair: pair[0])[:count]]


def choose(c: IndexedContraction, work: Working, device: TargetCapabilities, batch_products: int = 0) -> Schedule:
    """Return the schedule measured to be fastest, or the one estimated to be.

    If the product is deferred to run in one dispatch with others, `batch_products` counts the multiplications of all of them.
    """
    if batch_products:
        return candidates(c, work, device, 1, batch_products)[0]
    return remembered(c, work, device) or candidates(c, work, device, 1)[0]


def variations(schedule: Schedule, work: Working, device: TargetCapabilities) -> list[Schedule]:
    """Return schedules with the same tile that differ in details."""
    found = [replace(schedule, **details) for details in _VARIATIONS]
    return [x for x in found if x.fits(work, device)]


def _time(c: IndexedContraction, schedule: Schedule, efficiency: float, batch_products: int) -> float:
    """Estimate the time of a schedule, in multiplications of one multiprocessor."""
    groups, terms = schedule.groups(c), schedule.chunk(c)
    adding = 2 * schedule.splits * c.batch * c.m * c.n * 4 * _BYTE / _PROCESSORS + _DISPATCH_WAIT if schedule.splits > 1 else 0.0
    if batch_products:  # all multiprocessors are busy until the end, unless one workgroup takes longer
        busy = efficiency * schedule.invocations / _BUSY
        alone = terms / schedule.depth * _SLICE_WAIT + schedule.rows * schedule.columns * terms / busy
        return max(batch_products / _PROCESSORS / efficiency, alone) + adding
    rounds = groups / _PROCESSORS
    each = ceil(rounds) if rounds <= _ROUNDS else rounds + 0.5  # with many, multiprocessors that finish early start others
    together = min(each, max(1, 512 // schedule.invocations))
    busy = min(1.0, together * schedule.invocations / _BUSY)
    work = each * schedule.rows * schedule.columns * terms / (efficiency * busy)
    waits = ceil(each / together) * (terms / schedule.depth) * _SLICE_WAIT
    return work + waits + adding
