"""Select the algorithm of a contraction."""

from __future__ import annotations

from volta_fn.compiler.contractions.index_maps import IndexedContraction
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.matmul.choice import choose
from volta_fn.targets.wgsl.matmul.compute_dtype import working
from volta_fn.targets.wgsl.matmul.direct import few_results, few_terms, is_of_few_results, is_of_few_terms
from volta_fn.targets.wgsl.matmul.epilogues import Epilogue, rounded
from volta_fn.targets.wgsl.matmul.thin import is_thin, thin
from volta_fn.targets.wgsl.matmul.tiles import BufferNumbers, tiled
from volta_fn.targets.wgsl.routine import Routine


def contract(
    c: IndexedContraction,
    device: TargetCapabilities,
    buffers: BufferNumbers,
    epilogue: Epilogue | None = None,
    *,
    may_split: bool = True,
    batch_products: int = 0,
    alone: bool = False,
) -> Routine:
    """Return the routine of a contraction with results.

    The epilogue gets rows and columns as they are in `c`. Sums are only split if `may_split` says that the device can bind all that adding
    them needs. `batch_products`: see `choose`; `alone`: see `tiled`.
    """
    work, finish = working(c.target.dtype), epilogue or rounded(c.target.dtype)
    if is_of_few_terms(c):
        return few_terms(c, work, device, finish, buffers)
    if is_of_few_results(c):
        return few_results(c, work, device, finish, buffers)
    if is_thin(c, work):
        return thin(c, work, device, finish, buffers, may_split=may_split)
    schedule = choose(c, work, device, batch_products)
    return tiled(c, work, schedule if may_split else schedule.split(1), device, finish, buffers, alone=alone)


def is_tiled(c: IndexedContraction) -> bool:
    """Return whether a contraction is computed by tiles, which have schedules."""
    return not (is_of_few_terms(c) or is_of_few_results(c) or is_thin(c, working(c.target.dtype)))


def oriented(c: IndexedContraction) -> tuple[IndexedContraction, BufferNumbers]:
    """Return a contraction whose columns are the more contiguous axis of the results."""
    rows, columns = c.target.rows.strides, c.target.columns.strides
    if rows and (not columns or rows[-1] < columns[-1]):
        return c.swapped(), BufferNumbers().swapped()
    return c, BufferNumbers()
