"""A lost GPU leaves nothing: no program keeps it, and the driver's objects are released."""

import gc
import weakref

import numpy as np
import pytest
import wgpu

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.fuzz.losses import own_device
from volta_fn.targets.gpu.memory import Block


def pipelines():
    """Return how many pipelines the driver's library has."""
    return wgpu.diagnostics.wgpu_native_counts.get_dict()["ComputePipeline"]["count"]


def test_lost_gpus_are_freed():
    device, gpus, counts = own_device(), [], []
    with vf.default_device(device):
        vf.set_recovery("checkpoint", every=3)
        step = vf.jit(lambda p, x: (jnp.tanh(p - 0.1 * x @ p), jnp.sum(p * p)), donate_argnums=0)
        once = vf.jit(lambda x: jnp.cumsum(x) * 2)  # not called again after the first loss
        p, x = jnp.eye(16), jnp.ones((16, 16))
        retained = once(jnp.arange(9.0))
        for _ in range(10):
            p, total = step(p, x)
            gpus.append(weakref.ref(device.backend.gpu))
            device.backend.gpu.driver.destroy()
            assert np.isfinite(float(step(p, x)[1]) + float(total))
            p, _ = step(jnp.eye(16), x)
            counts.append(pipelines())
        gc.collect()
        assert len({id(gpu()) for gpu in gpus if gpu() is not None} | {id(device.backend.gpu)}) == 1
        assert max(counts) < 4 * counts[0]  # the one in use, the one before, and shaders that are compiled in the background
        np.testing.assert_array_equal(np.asarray(retained), np.cumsum(np.arange(9.0)) * 2)
        np.testing.assert_array_equal(np.asarray(once(jnp.arange(9.0))), np.asarray(retained))


def test_a_checkpoint_that_fails_leaves_no_old_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    device = own_device()
    with vf.default_device(device):
        vf.set_recovery("checkpoint", every=100)
        step = vf.jit(lambda p: (p[0] + 1, p[1] + 1), donate_argnums=0)
        weights = step((jnp.zeros(1000), jnp.zeros(1000)))
        recovery = device.backend.recovery

        def interrupted(buffer: object) -> np.ndarray:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(recovery, "_copied", interrupted)
            with pytest.raises(KeyboardInterrupt):
                recovery.checkpoint()
        weights = step(weights)  # in the same memory
        for values in weights:
            np.testing.assert_array_equal(np.asarray(values), np.full(1000, 2, np.float32))
        weights = step(weights)
        recovery.checkpoint()
        device.backend.gpu.driver.destroy()
        for values in weights:
            np.testing.assert_array_equal(np.asarray(values), np.full(1000, 3, np.float32))


def test_a_checkpoint_without_room_for_all_copies_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    device = own_device()
    with vf.default_device(device):
        vf.set_recovery("checkpoint", every=100)
        arrays = vf.jit(lambda x: (x + 1, x * 2, x - 3))(jnp.ones(1000))
        queue, pending = device.backend.gpu.queue, list[object]()
        request, take = queue.request, queue.take

        def limited(block: Block, size: int, offset: int = 0) -> object:
            if pending:
                raise vf.errors.OutOfMemoryError("the host has no room")
            pending.append(request(block, size, offset))
            return pending[-1]

        def taken(readback: object) -> np.ndarray:
            pending.clear()
            return take(readback)

        monkeypatch.setattr(queue, "request", limited)
        monkeypatch.setattr(queue, "take", taken)
        device.backend.recovery.checkpoint()
        device.backend.gpu.driver.destroy()
        for array, value in zip(arrays, (2, 2, -2), strict=True):
            np.testing.assert_array_equal(np.asarray(array), np.full(1000, value, np.float32))
