"""What goes wrong on a GPU: each time a typed error, and the next step that fits runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import numpy as jnp
from volta_fn.core.devices.device import Device
from volta_fn.core.primitive import Primitive
from volta_fn.core.trace import bind
from volta_fn.errors import DeviceError
from volta_fn.targets import wgpu
from volta_fn.targets.gpu.backend import GpuBackend, adapters
from volta_fn.targets.gpu.driver import LOST
from volta_fn.targets.gpu.memory import Trend
from volta_fn.targets.wgpu import WgpuAdapter, WgpuDriver

GPU = vf.devices("gpu")[0]


@pytest.fixture
def device() -> Iterator[Device]:
    """A device of its own, which may be broken."""
    other = Device("gpu", 0, GPU.device_kind, GpuBackend(GPU.backend.handle.adapter))
    with vf.default_device(other):
        yield other


def test_no_room(device: Device) -> None:
    pool = device.backend.gpu.pool
    vf.set_memory_limit(1 << 20, device)
    small = jnp.ones(1000)
    step = vf.jit(lambda x: x * 2)
    with pytest.raises(vf.errors.OutOfMemoryError, match=r"beyond the limit of 1048576 bytes.*donate"):
        jnp.ones((1 << 19,))
    with pytest.raises(vf.errors.OutOfMemoryError):
        vf.device_put(np.ones(1 << 18, np.float32), device)
    for _ in range(3):
        half = vf.device_put(np.ones(1 << 17, np.float32), device)  # no room for two, so the first must go
        assert float(half[5]) == 1.0
        del half
    assert float(step(small)[3]) == 2.0
    assert vf.device_memory_stats(device).held == pool.held <= 1 << 20
    vf.set_memory_limit(None, device)
    assert float(jnp.ones(1 << 19).sum()) == 1 << 19


def test_memory_is_given_back(device: Device) -> None:
    array = 1 << 18
    x = jnp.ones(array // 4)
    (x + 1).block_until_ready()
    before = vf.device_memory_stats(device)
    assert array <= before.in_use < array + 4096 < 2 * array <= before.held
    assert before.peak >= 2 * array
    vf.free_memory(device)
    assert array <= vf.device_memory_stats(device).held < array + 4096
    assert float((x + 1)[7]) == 2.0
    del x
    assert vf.device_memory_stats(device).in_use < 1 << 12


def test_temporary_values_for_which_room_was_made(device: Device) -> None:
    vf.set_memory_limit(29 << 19, device)  # 14.5 MiB: not enough for the temporary values of both programs

    def scanned(x: Any) -> Any:
        return jnp.cumsum(jnp.cumsum(x)[::-1] * 2)[::-1]

    step, other = vf.jit(lambda x: scanned(x) * 1e-12, donate_argnums=0), vf.jit(lambda x: scanned(x)[:4])
    x, large = vf.device_put(np.ones(1 << 18, np.float32), device), vf.device_put(np.ones(1 << 20, np.float32), device)
    gpu, x = device.backend.gpu, step(step(x))
    for _ in range(3):
        other(large)
        x = step(x)  # takes the room of the other's temporary values, while it leases its own
        assert gpu.scratch
    arrays = [vf.device_put(np.full(1 << 18, 7, np.float32), device) for _ in range(2)]
    step(x).block_until_ready()
    for array in arrays:
        np.testing.assert_array_equal(np.asarray(array), np.full(1 << 18, 7, np.float32))


def test_temporary_values_if_the_wait_for_memory_is_interrupted(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = device.backend.gpu
    step = vf.jit(lambda x: jnp.cumsum(jnp.cumsum(x)[::-1] * 2)[::-1] * 1e-6)
    x = vf.device_put(np.ones(1 << 16, np.float32), device)
    for _ in range(3):
        expected = np.asarray(step(x))
    gpu.pipelines.upgrades.settle()
    expected = np.asarray(step(x))
    (blocks,) = [len(leases) for size, leases in gpu.scratch.items() if size == 4 << 16]

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(gpu.queue, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            gpu.pool.release_unused()
    with gpu.queue.lock:
        gpu.queue.submit()
    arrays = [vf.device_put(np.full(1 << 16, 7, np.float32), device) for _ in range(blocks)]
    np.testing.assert_array_equal(np.asarray(step(x)), expected)
    for array in arrays:
        np.testing.assert_array_equal(np.asarray(array), np.full(1 << 16, 7, np.float32))


def test_many_temporary_values_for_which_room_was_made(device: Device) -> None:
    gpu = device.backend.gpu
    gpu.free_memory()
    vf.set_memory_limit(gpu.pool.held + (8 << 20), device)
    with gpu.queue.lock:
        gpu.lease_scratch([4 << 20])
        leases = gpu.lease_scratch([2 << 20] * 4)  # the third has no room
        assert gpu.lease_scratch([2 << 20] * 4) == leases
    assert len({lease.block.number for lease in leases}) == 4


def test_temporary_values_while_room_is_made_for_a_recording(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = device.backend.gpu
    step = vf.jit(lambda x: jnp.cumsum(jnp.cumsum(x)[::-1] * 2)[::-1] * 1e-6)
    x = vf.device_put(np.ones(1 << 16, np.float32), device)
    expected = np.asarray(step(x))
    scratch = [lease.block for leases in gpu.scratch.values() for lease in leases]
    lengths: list[int] = []

    def recording(steps: Any) -> None:
        gpu.queue.driver.release_free_blocks()
        lengths.append(len(steps))

    monkeypatch.setattr(gpu.queue.driver, "replay_parts", recording)
    np.testing.assert_array_equal(np.asarray(step(x)), expected)
    assert lengths and scratch and all(gpu.pool.blocks.get(block.number) is block for block in scratch)


@pytest.mark.parametrize("short", ["grids", "pool"])
def test_blocks_of_either_pool_make_room_for_the_other(device: Device, monkeypatch: pytest.MonkeyPatch, short: str) -> None:
    """A branch of a conditional needs a block for its grids, and arrays need room that free blocks of grids have."""
    gpu = device.backend.gpu
    gpu.free_memory()
    sizes: dict[int, int] = {}
    allocate, free = gpu.driver.allocate, gpu.driver.free

    def allocate_within(size: int, *, grids: bool = False) -> Any:
        if sum(sizes.values()) + size > 1 << 20:
            raise vf.errors.OutOfMemoryError("no memory")
        handle = allocate(size, grids=grids)
        sizes[id(handle)] = size
        return handle

    def free_counted(handle: Any) -> None:
        sizes.pop(id(handle), None)
        free(handle)

    monkeypatch.setattr(gpu.driver, "allocate", allocate_within)
    monkeypatch.setattr(gpu.driver, "free", free_counted)
    pools = {"grids": gpu.grids, "pool": gpu.pool}
    wanting = pools.pop(short)
    (other,) = pools.values()
    with gpu.queue.lock:
        epoch = gpu.recordings_epoch
        del [*map(other.lease, [1 << 18] * 4)][:]
        assert sum(sizes.values()) == 1 << 20
        lease = wanting.lease(4096)
        assert lease.block.size == wanting.blocks[lease.block.number].size and not other.blocks.keys() - other.free.keys()
        assert gpu.recordings_epoch > epoch


def test_a_block_as_large_as_any_is_reused(device: Device) -> None:
    pool = device.backend.gpu.pool
    pool.largest = 300_000  # between the bytes that are asked for and their size class
    with device.backend.gpu.queue.lock:
        blocks = [pool.lease(size).block for size in (290_000, 290_000, 295_000)]
    assert blocks[0] is blocks[1] is blocks[2]


def test_an_array_larger_than_any_buffer(device: Device) -> None:
    device.backend.gpu.pool.largest = 1 << 20
    with pytest.raises(vf.errors.OutOfMemoryError, match="larger than the GPU's largest buffer"):
        jnp.ones(1 << 19)


def test_a_lost_device_is_opened_again(device: Device) -> None:
    step = vf.jit(lambda x: x + 1)
    x = jnp.ones(1000)
    y = step(x)
    assert float(y[0]) == 2.0
    vf.set_memory_limit(1 << 26, device)
    device.backend.gpu.driver.destroy()
    for use in (lambda: np.asarray(y), lambda: step(x), lambda: x + x, lambda: np.asarray(x)):
        with pytest.raises(vf.errors.DeviceError, match=r"The array float32\[1000\] that was there is gone; make it again|make them again"):
            use()
    assert float(step(jnp.ones(1000))[3]) == 2.0
    assert vf.device_memory_stats(device).limit == 1 << 26


def test_an_adapter_that_a_reset_has_changed_is_looked_for(device: Device) -> None:
    class Stale(WgpuAdapter):
        def open(self) -> WgpuDriver:
            raise DeviceError("the adapter is gone")

    x = jnp.ones(3)
    device.backend.gpu.driver.destroy()
    with pytest.raises(DeviceError):
        np.asarray(x + 1)
    device.backend.handle.adapter = Stale(GPU.backend.handle.adapter.adapter)
    assert float((jnp.ones(3) + 1)[0]) == 2.0
    assert not isinstance(device.backend.handle.adapter, Stale)


def test_a_device_lost_while_it_works_is_known_to_be_lost(device: Device) -> None:
    """Its arrays are gone; new ones are on the device that is opened next, and the first step there runs."""
    step = vf.jit(lambda x: (x @ x * 0.01, x.sum()))
    x, total = step(jnp.ones((100, 100)))
    float(total)  # from now on totals are sent at once
    x, total = step(x)
    queue = device.backend.gpu.queue
    with queue.lock:
        queue.submit()
        device.backend.gpu.driver.destroy()
    with pytest.raises(vf.errors.DeviceError) as caught:
        readbacks = queue.driver.readbacks
        readbacks.statuses.clear()
        readbacks.statuses.update(dict.fromkeys(readbacks.expected, 3))  # what the library says of copies that will never arrive
        float(total)
    assert "the GPU was lost" in caught.value.message and "The array float32[] that was there is gone" in caught.value.message
    assert float(step(jnp.ones((100, 100)))[1]) == 10_000


def test_what_a_loss_has_left_invalid_is_no_bad_command(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bind group that was made while the device was lost makes commands invalid, and the library says only that."""
    queue = device.backend.gpu.queue
    typed, said = wgpu.typed, list[str]()

    def invalid_first(kind: str, message: str) -> Any:
        said.append(message)
        if len(said) == 1:
            queue.errors.device_lost = False
            return DeviceError("BindGroup is invalid")
        return typed(kind, message)

    with queue.lock:
        queue.driver.open_pass()
        queue.driver.destroy()
        monkeypatch.setattr(wgpu, "typed", invalid_first)
        with pytest.raises(DeviceError, match="the GPU was lost"):
            queue.submit()
    assert queue.errors.device_lost
    np.testing.assert_allclose(jnp.cos(jnp.zeros(2)), 1)


def test_a_shader_for_a_device_that_is_lost_is_no_bad_shader(device: Device) -> None:
    device.backend.gpu.driver.destroy()
    with pytest.raises(vf.errors.DeviceError) as caught:
        vf.jit(lambda x: jnp.tanh(x) + 3)(jnp.ones(5))
    assert caught.value.message == LOST


def test_a_wait_ends(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = device.backend.gpu.queue
    y = jnp.ones(1000) + 1
    monkeypatch.setattr(queue, "timeout", 0.0)
    with pytest.raises(vf.errors.DeviceError, match=r"finished nothing for 0 seconds.*waiting again may help"):
        queue.wait_for(lambda: False)
    monkeypatch.undo()
    assert float(y[0]) == 2.0


def test_dtypes_that_a_device_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLTA_GPU_LIMITS", "webgpu")
    least = Device("gpu", 0, GPU.device_kind, GpuBackend(GPU.backend.handle.adapter))
    capabilities = least.backend.gpu.capabilities
    assert not (capabilities.float64 or capabilities.int64 or capabilities.float16 or capabilities.subgroups)
    assert (capabilities.buffers, capabilities.binding, capabilities.workgroup_memory, capabilities.alignment) == (8, 1 << 27, 1 << 14, 256)
    with vf.default_device(least):
        for dtype in ("float64", "int64", "uint64", "complex128"):
            with pytest.raises(vf.errors.DTypeError, match=f"has no {dtype}.*'cpu'"):
                jnp.ones(3, dtype)
        with pytest.raises(vf.errors.DTypeError, match="has no float64"):
            vf.jit(lambda x: x.astype("float64").sum())(jnp.ones(3))
        assert float(vf.jit(lambda x: x.astype("float16").sum())(jnp.ones(3))) == 3.0


@pytest.mark.parametrize(
    ("variable", "value", "wanted"),
    [("MEMORY", "1 GiB", "bytes"), ("MEMORY", "-1", "bytes"), ("TIMEOUT", "long", "seconds"), ("LIMITS", "browser", "'webgpu'")],
)
def test_settings_that_mean_nothing(variable: str, value: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"VOLTA_GPU_{variable}", value)
    with pytest.raises(vf.errors.ArgumentError, match=f"VOLTA_GPU_{variable} is '{value}', but must be .*{wanted}"):
        GpuBackend(GPU.backend.handle.adapter).memory()


def test_what_a_device_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name and kind, and features and limits as it was opened with."""
    assert GPU.name == GPU.device_kind == GPU.backend.handle.adapter.name
    assert GPU.kind in ("discrete", "integrated", "virtual", "cpu", "unknown")
    assert GPU.limits["max-compute-workgroup-size-x"] >= 256
    assert ("shader-f16" in GPU.features) == GPU.backend.gpu.capabilities.float16
    monkeypatch.setenv("VOLTA_GPU_LIMITS", "webgpu")
    least = Device("gpu", 0, GPU.device_kind, GpuBackend(GPU.backend.handle.adapter))
    assert not least.features
    assert least.limits["max-storage-buffers-per-shader-stage"] == 8
    assert least.limits["max-storage-buffer-binding-size"] == 1 << 27


def test_no_such_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLTA_GPU_ADAPTER", "Voodoo 2")
    with pytest.raises(vf.errors.DeviceError, match=r"no GPU is called 'Voodoo 2'.*there are"):
        adapters.__wrapped__()


def test_arrays_larger_than_all_bindings(device: Device) -> None:
    gpu = device.backend.gpu
    gpu.target.capabilities = gpu.target.capabilities._replace(binding=1 << 12, buffers=8)
    x = jnp.ones((97, 97))
    with pytest.raises(vf.errors.OutOfMemoryError, match=r"see: 4096 bytes at once, 8 times, .*needs 11 times.*smaller batches"):
        x.sum()
    np.testing.assert_array_equal(np.asarray(x * 2), np.full((97, 97), 2))


def test_memory_that_grows_from_step_to_step_is_warned_of_before_it_is_exhausted(device: Device) -> None:
    step = vf.jit(lambda x: (x * 0.5, x + 1))
    vf.set_memory_limit(1 << 22, device)
    x, retained = jnp.ones(1000), []
    with pytest.warns(vf.errors.MemoryGrowthWarning, match=r"more of the GPU's memory in use at each call.*4194304 at most.*float\(loss\)"):
        for _ in range(1000):
            x, more = step(x)
            retained.append(more)
            if len(retained) % 10 == 0 and vf.device_memory_stats(device).in_use > 3 << 20:
                break
    retained.clear()
    for _ in range(1000):  # memory that does not grow is no matter
        x, more = step(x)


def test_growth_that_ends_before_the_limit_is_no_matter() -> None:
    trend = Trend()
    for call in range(1, 5000):
        trend.sample(1000 * min(call, 300), 1 << 20)


def test_an_evaluation_by_numpy_that_gives_another_shape(device: Device) -> None:
    first = Primitive("first", lambda x: x.update(shape=(2,)), evaluate=lambda x: x[:1], listed=False)
    with pytest.raises(vf.errors.ShapeError, match=r"first declares a result of shape \(2,\).*gave \(1,\)"):
        np.asarray(bind(first, jnp.ones(3)))
    assert float(jnp.ones(3).sum()) == 3
