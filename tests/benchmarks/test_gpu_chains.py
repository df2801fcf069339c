"""What the benchmarks of GPUs put in the place of the queue's functions: chains of a program's dispatches, and its profile."""

from __future__ import annotations

import numpy as np

import volta_fn as vf
from benchmarks.gpu.chains import chain, steps_of
from benchmarks.gpu.profile import measure
from volta_fn import numpy as jnp

GPU = vf.devices("gpu")[0]


def test_a_chain_has_the_dispatches_of_a_call() -> None:
    with vf.default_device(GPU):
        x = jnp.arange(300.0)
        program = vf.jit(lambda x: jnp.cumsum(jnp.sort(x)[::-1]) * 0.5)
        steps, kept = steps_of(lambda: program(x))
        before = GPU.backend.counters.dispatches
        np.testing.assert_allclose(np.asarray(program(x)), np.cumsum(np.arange(300.0)[::-1]) * 0.5)
        assert kept and len(steps) == GPU.backend.counters.dispatches - before
        assert chain(lambda: program(x), 2)() > 0


def test_a_profile_has_all_dispatches_of_a_call() -> None:
    with vf.default_device(GPU):
        x = jnp.arange(300.0)
        program = vf.jit(lambda x: jnp.cumsum(jnp.sort(x)[::-1]) * 0.5)
        costs = measure(lambda: program(x), vf.block_until_ready, 1)
        steps, _ = steps_of(lambda: program(x))
    assert sum(cost.times for cost in costs) == len(steps)
    assert all(cost.seconds > 0 for cost in costs)
