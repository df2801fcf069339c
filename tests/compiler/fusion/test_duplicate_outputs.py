"""Kernels store what is several outputs several times, as long as they have room for more buffers."""

from __future__ import annotations

import numpy as np

from tests.compiler.ir.oracle import fuse_function, run
from volta_fn.compiler.ir.kernel import FusedProgram, KernelCall
from volta_fn.compiler.node_passes import duplicate_outputs
from volta_fn.core.jaxpr import ClosedJaxpr, Jaxpr

X = np.arange(6, dtype=np.float32)


def with_separate_outputs(most: int) -> FusedProgram:
    """``y = x + 1; z = 2 y`` as (y, y, z, y, x, x), with at most so many buffers."""
    result = fuse_function(lambda x: [x + 1, (x + 1) * 2], X)
    jaxpr = result.closed.jaxpr
    (y, z), (x,) = jaxpr.outvars, jaxpr.invars
    closed = ClosedJaxpr(Jaxpr(jaxpr.constvars, jaxpr.invars, [y, y, z, y, x, x], jaxpr.eqns), result.closed.consts)
    return duplicate_outputs(result._replace(closed=closed, nested=True), most)


def test_values_are_stored_several_times() -> None:
    for most, stores, different in ((8, 4, 5), (4, 3, 4), (3, 2, 3)):
        actual = with_separate_outputs(most)
        assert [len(item.kernel.stores) for item in actual.nodes if isinstance(item, KernelCall)] == [stores]
        assert len(set(actual.closed.jaxpr.outvars)) == different
        for result, wanted in zip(run(actual, X), [X + 1, X + 1, 2 * (X + 1), X + 1, X, X], strict=True):
            np.testing.assert_array_equal(result, wanted)


def test_outputs_keep_their_shapes() -> None:
    """A reshape of a value in memory is stored again in its own shape."""
    actual = fuse_function(lambda x: [(y := x + 1), y.reshape(2, 3)], X)
    (y, reshaped), (kernel, _) = actual.closed.jaxpr.outvars, actual.nodes
    separate = duplicate_outputs(actual._replace(nodes=(kernel,), roots={reshaped: y}, nested=True), 8)
    assert len(set(map(separate.root, separate.closed.jaxpr.outvars))) == 2
    assert [v.aval.shape for v in separate.closed.jaxpr.outvars] == [(6,), (2, 3)]
    for result, wanted in zip(run(separate, X), [X + 1, (X + 1).reshape(2, 3)], strict=True):
        np.testing.assert_array_equal(result, wanted)
