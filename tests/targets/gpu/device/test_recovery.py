"""A lost GPU leaves nothing: no program keeps it, and the driver's objects are released."""

import gc
import weakref

import numpy as np
import wgpu

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.fuzz.losses import own_device


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
