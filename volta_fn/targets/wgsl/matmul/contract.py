"""Select the algorithm of a contraction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from volta_fn.compiler.contractions.index_maps import IndexedContraction
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.matmul.choice import choose
from volta_fn.targets.wgsl.matmul.compute_dtype import Working, working
from volta_fn.targets.wgsl.matmul.direct import few_results, few_terms, is_of_few_results, is_of_few_terms
from volta_fn.targets.wgsl.matmul.epilogues import Epilogue, rounded
from volta_fn.targets.wgsl.matmul.schedule import Schedule
from volta_fn.targets.wgsl.matmul.thin import can_be_thin, is_thin, thin
from volta_fn.targets.wgsl.matmul.tiles import BufferNumbers, tiled
from volta_fn.targets.wgsl.routine import Routine


class ProductOptions(NamedTuple):
    """Choices of a contraction's routine that are forced.

    None stands for the routine's own choice.
    """

    #: "few terms", "few results", "thin" or "tiled", which needs a schedule.
    algorithm: str | None = None
    schedule: Schedule | None = None
    #: Whether the operands are swapped.
    swapped: bool | None = None


CHOSEN = ProductOptions()

#: Schedules of tests: all forms of tiles, small ones, so that small products have several.
_SCHEDULES = (
    Schedule(32, 32, 16, 4, 4),
    Schedule(16, 16, 8, 4, 4, band=1),
    Schedule(16, 32, 8, 4, 8, lane_rows=2, lane_columns=16, pad=0),
    Schedule(16, 16, 8, 4, 4, ahead=False),
    Schedule(16, 16, 8, 4, 4, twice=True, unroll=4),
    Schedule(16, 16, 8, 4, 4, once=True, brief=True, unroll=2, ahead=False),
    Schedule(16, 16, 8, 4, 4, splits=2),
    Schedule(16, 16, 8, 4, 4, splits=3, twice=True),
    Schedule(4, 128, 32, 4, 4),
)


def legal_options(c: IndexedContraction, device: TargetCapabilities, may_split: bool) -> Iterator[ProductOptions]:
    """Yield options that differ from what is chosen."""
    work = working(c.target.dtype)
    yield CHOSEN
    if c.k:
        yield from (ProductOptions("few terms"), ProductOptions("few results"))
    if can_be_thin(c, work):
        yield ProductOptions("thin")
    yield from [ProductOptions("tiled", s) for s in _SCHEDULES if s.fits(work, device) and (may_split or s.splits == 1)]


def contract(
    c: IndexedContraction,
    device: TargetCapabilities,
    buffers: BufferNumbers,
    epilogue: Epilogue | None = None,
    *,
    may_split: bool = True,
    batch_products: int = 0,
    alone: bool = False,
    options: ProductOptions = CHOSEN,
) -> Routine:
    """Return the routine of a contraction with results.

    The epilogue gets rows and columns as they are in `c`. Sums are only split if `may_split` says that the device can bind all that adding
    them needs. `batch_products`: see `choose`; `alone`: see `tiled`.
    """
    work, finish = working(c.target.dtype), epilogue or rounded(c.target.dtype)
    algorithm = options.algorithm or _algorithm(c, work)
    if algorithm == "few terms":
        return few_terms(c, work, device, finish, buffers)
    if algorithm == "few results":
        return few_results(c, work, device, finish, buffers)
    if algorithm == "thin":
        return thin(c, work, device, finish, buffers, may_split=may_split)
    schedule = options.schedule or choose(c, work, device, batch_products)
    return tiled(c, work, schedule if may_split else schedule.split(1), device, finish, buffers, alone=alone)


def _algorithm(c: IndexedContraction, work: Working) -> str:
    if is_of_few_terms(c):
        return "few terms"
    return "few results" if is_of_few_results(c) else "thin" if is_thin(c, work) else "tiled"


def is_tiled(c: IndexedContraction) -> bool:
    """Return whether a contraction is computed by tiles, which have schedules."""
    return _algorithm(c, working(c.target.dtype)) == "tiled"


def oriented(c: IndexedContraction) -> tuple[IndexedContraction, BufferNumbers]:
    """Return a contraction whose columns are the more contiguous axis of the results."""
    rows, columns = c.target.rows.strides, c.target.columns.strides
    if rows and (not columns or rows[-1] < columns[-1]):
        return c.swapped(), BufferNumbers().swapped()
    return c, BufferNumbers()
