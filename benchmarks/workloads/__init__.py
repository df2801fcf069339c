"""All workloads, in the order of the report; the part of a name before "/" is its group."""

from __future__ import annotations

from benchmarks.workloads import calls, convolutions, derivatives, large, networks, operations, products, sequences
from benchmarks.workloads.case import Workload

WORKLOADS: list[Workload] = [
    *networks.WORKLOADS,
    *sequences.WORKLOADS,
    *derivatives.WORKLOADS,
    *operations.WORKLOADS,
    *products.WORKLOADS,
    *convolutions.WORKLOADS,
    *calls.WORKLOADS,
]


def named(name: str) -> Workload:
    """The workload of that name, the GPU's among them."""
    return next(workload for workload in (*WORKLOADS, *large.WORKLOADS) if workload.name == name)
