"""Kernels store what is several outputs several times, as long as they have room for more buffers."""

from __future__ import annotations

import numpy as np

from tests.compiler.ir.oracle import partition_of, run
from volta_fn.compiler.fusion.duplicate_outputs import stored_again
from volta_fn.compiler.fusion.fuse import Fused, Partition
from volta_fn.core.jaxpr import ClosedJaxpr, Jaxpr

X = np.arange(6, dtype=np.float32)


def with_outputs_apart(most: int) -> Partition:
    """``y = x + 1; z = 2 y`` as (y, y, z, y, x, x), with at most so many buffers."""
    partition = partition_of(lambda x: [x + 1, (x + 1) * 2], X)
    y, z = partition.program.jaxpr.outvars
    (x,) = partition.program.jaxpr.invars
    items, outputs = stored_again(partition.items, [y, y, z, y, x, x], {}, most)
    jaxpr = partition.program.jaxpr
    program = ClosedJaxpr(Jaxpr(jaxpr.constvars, jaxpr.invars, outputs, jaxpr.eqns), partition.program.consts)
    return Partition(program, tuple(items))


def test_values_are_stored_several_times() -> None:
    for most, stores, different in ((8, 4, 5), (4, 3, 4), (3, 2, 3)):
        partition = with_outputs_apart(most)
        assert [len(item.kernel.stores) for item in partition.items if isinstance(item, Fused)] == [stores]
        assert len(set(partition.program.jaxpr.outvars)) == different
        for found, wanted in zip(run(partition, X), [X + 1, X + 1, 2 * (X + 1), X + 1, X, X], strict=True):
            np.testing.assert_array_equal(found, wanted)
