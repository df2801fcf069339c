"""All workloads, in the report's order; a name's prefix up to "/" is its group."""

from __future__ import annotations

import difflib

from benchmarks.workloads import (
    attention,
    calls,
    convolutions,
    derivatives,
    language,
    large,
    linear_algebra,
    networks,
    operations,
    products,
    sequences,
)
from benchmarks.workloads.case import Workload

WORKLOADS: list[Workload] = [
    *networks.WORKLOADS,
    *sequences.WORKLOADS,
    *derivatives.WORKLOADS,
    *operations.WORKLOADS,
    *attention.WORKLOADS,
    *products.WORKLOADS,
    *convolutions.WORKLOADS,
    *linear_algebra.WORKLOADS,
    *language.WORKLOADS,
    *calls.WORKLOADS,
]


def named(name: str) -> Workload:
    """Return the workload of a name, of the CPU or of the GPU.

    Raises `ValueError` for a name that none has; tables of the GPU leave out the first word of its names.
    """
    workloads = {workload.name: workload for workload in (*WORKLOADS, *large.WORKLOADS)}
    if name not in workloads:
        similar = " or ".join(map(repr, difflib.get_close_matches(name, workloads)))
        raise ValueError(f"no workload is called {name!r}" + (f"; did you mean {similar}?" if similar else ""))
    return workloads[name]
