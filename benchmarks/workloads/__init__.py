"""All workloads, in the report's order; a name's prefix up to "/" is its group."""

from __future__ import annotations

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
    """Return the workload of a name, of the CPU or of the GPU."""
    return next(workload for workload in (*WORKLOADS, *large.WORKLOADS) if workload.name == name)
