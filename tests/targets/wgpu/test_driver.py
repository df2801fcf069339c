"""wgpu behind the interface of GPU drivers: replays by machine code, and readbacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn import numpy as jnp
from volta_fn.targets import wgpu

GPU = vf.devices("gpu")[0]


@pytest.fixture(autouse=True)
def on_the_gpu() -> Iterator[None]:
    """Run the programs of each test on the GPU."""
    with vf.default_device(GPU):
        yield


def test_machine_code_writes_the_same_dispatches_as_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(x: Any) -> Any:
        return lax.cond(x[0, 0] < 0.5, lambda x: jnp.cumsum(x, 0) / 7, lambda x: x @ x / 9, jnp.sort(x) + 0.25)

    def results() -> list[np.ndarray]:
        result, x, run = [], jnp.arange(20.0 * 20).reshape(20, 20) / 400, vf.jit(step)
        for _ in range(5):
            x = run(x)
            result.append(np.asarray(x))
        return result

    assert wgpu.compiled_replay() is not None
    calls: list[int] = []
    write = wgpu.compiled_replay()
    monkeypatch.setattr(wgpu, "compiled_replay", lambda: lambda run, first, count: (calls.append(count), write(run, first, count)))
    quick = results()
    monkeypatch.setattr(wgpu, "compiled_replay", lambda: None)
    slow = results()
    assert sum(calls) > 10
    assert all(np.array_equal(x, y) for x, y in zip(quick, slow, strict=True))


def test_memory_of_a_copy_that_nobody_reads_is_used_again_when_it_has_arrived() -> None:
    gpu = GPU.backend.gpu
    queue, size = gpu.queue, 1 << 20
    queue.wait()
    lease = gpu.pool.lease(size)
    with queue.lock:
        unread = queue.request(lease.block, size)
        queue.submit()
        handle = unread.copy.handle
        del unread
        readback = queue.request(lease.block, size)
        assert readback.copy.handle != handle
    assert queue.take(readback).nbytes == size
    with queue.lock:
        assert handle in [queue.request(lease.block, size).copy.handle for _ in range(2)]
