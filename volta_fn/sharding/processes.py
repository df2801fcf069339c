"""Functions mapped over the processes of a mesh."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.core.array import Array, as_value
from volta_fn.core.axes import ProcessAxis, ProcessGrid, bound_axis
from volta_fn.core.distribution.sharding import PartitionSpec
from volta_fn.core.staging import eval_jaxpr, trace_to_jaxpr
from volta_fn.errors import ArgumentError
from volta_fn.primitives.collectives.casts import pcast
from volta_fn.primitives.collectives.gathers import axis_index
from volta_fn.primitives.collectives.reductions import psum
from volta_fn.primitives.data_movement.movement import broadcast
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.primitives.elementwise.comparison import eq
from volta_fn.primitives.elementwise.selection import select
from volta_fn.sharding.variance import Variance, variance_of

Flat = Callable[..., Sequence[Array]]


def without(spec: PartitionSpec, grid: ProcessGrid) -> PartitionSpec:
    """Return a spec without the axes of processes."""
    return PartitionSpec(*[[name for name in spec.axes_of(i) if name not in grid.names] for i in range(len(spec))])


class OverProcesses:
    """Runs a function of arrays in every process of a grid."""

    def __init__(self, grid: ProcessGrid, names: Sequence[Any]) -> None:
        self.axes = {name: ProcessAxis(name, grid) for name in names if name in grid.names}

    def run(
        self, function: Flat, values: Sequence[Array], in_specs: Sequence[PartitionSpec], out_specs: Callable[[], Sequence[PartitionSpec]],
        check: bool,
    ) -> list[Array]:  # fmt: skip
        """Return the results: `out_specs` gives their specs, once the function has run."""
        varying = [self._named(spec) for spec in in_specs]
        inner = [pcast(x, self._others(own), "varying") for x, own in zip(values, varying, strict=True)]
        with contextlib.ExitStack() as stack:
            for name, axis in self.axes.items():
                stack.enter_context(bound_axis(name, axis))
            closed = trace_to_jaxpr(function, [x.aval for x in inner], "shard_map")
            outs = eval_jaxpr(closed, *inner)
            differs = variance_of(closed, varying)
            specs = [self._named(spec) for spec in out_specs()]
            return [self._leaving(o, d, s, check) for o, d, s in zip(outs, differs, specs, strict=True)]

    def _named(self, spec: PartitionSpec) -> Variance:
        return frozenset([self.axes[name] for name in spec.names() if name in self.axes])

    def _others(self, named: Variance) -> tuple[ProcessAxis, ...]:
        return tuple([axis for axis in self.axes.values() if axis not in named])

    def _leaving(self, out: Array, differs: Variance, named: Variance, check: bool) -> Array:
        """Return a result for the program outside."""
        wrong = tuple([axis for axis in self.axes.values() if axis in differs - named])
        if wrong and check:
            raise ArgumentError(
                f"shard_map: a result differs between the shards along {wrong[0].name!r}, which its spec does not name. Combine them, as "
                "by lax.psum, name the axis in out_specs, or pass check_vma=False for the first shard's"
            )
        return pcast(_of_first(out, wrong) if wrong else out, self._others(named), "replicated")


def _of_first(out: Array, axes: tuple[ProcessAxis, ...]) -> Array:
    """Return the value of the first process along some axes in all of them."""
    is_first = broadcast(eq(axis_index(axes), as_value(np.int32(0))), out.shape)
    total = psum(select(is_first, out, broadcast(as_value(np.zeros((), out.dtype)), out.shape)), axes)
    return convert_element_type(total, out.dtype)
