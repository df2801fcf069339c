"""The driver of NVIDIA's GPUs, on a stand-in for their library."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.targets.nvidia.fake_cuda import FakeCuda, Fault, replaced
from volta_fn.errors import DeviceError, OutOfMemoryError
from volta_fn.targets.gpu.driver import FORKED, LOST, BoundDispatch, BoundRange, Repeat
from volta_fn.targets.gpu.memory import Pool
from volta_fn.targets.gpu.queue import Queue
from volta_fn.targets.nvidia import library, stream
from volta_fn.targets.nvidia.compilation import Compiler
from volta_fn.targets.nvidia.driver import NvidiaAdapter, NvidiaDriver, adapters, describe
from volta_fn.targets.nvidia.kernel import KernelHeader
from volta_fn.targets.nvidia.stream import CONDITION_KERNEL

GROUPS = (1, 1, 1)


class Block(NamedTuple):
    """What bind groups need of a `memory.Block`."""

    handle: int


class Translator:
    """Compiling processes whose PTX is the source."""

    def ask(self, request: Any) -> list[bytes]:
        return [b"ptx", (8).to_bytes(4, "little") + (2).to_bytes(4, "little") + (1).to_bytes(4, "little"), request[0]]


def opened(adapter: NvidiaAdapter | None = None) -> NvidiaDriver:
    """Open the GPU, with shaders that are names of kernels."""
    device = (adapter or adapters()[0]).open()
    device._compiler = Compiler("sm_90a", "fake", Translator())  # type: ignore[arg-type]
    return device


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    with replaced(monkeypatch) as fake:
        yield fake


@pytest.fixture
def device(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Iterator[NvidiaDriver]:
    monkeypatch.setenv("VOLTA_CACHE_DIR", "")
    cuda.kernels.update(double=_double, add=_add)
    device = opened()
    yield device
    device.destroy()


def numbers(address: int, count: int) -> Any:
    """Return 32-bit numbers at an address as an array."""
    return np.ctypeslib.as_array((ctypes.c_uint32 * count).from_address(address))


def _double(words: list[int], grid: tuple[int, int, int]) -> None:
    """Double the numbers of the first binding in place."""
    numbers(words[0], words[len(words) // 2] // 4)[:] *= 2


def _add(words: list[int], grid: tuple[int, int, int]) -> None:
    """Add the numbers of the first binding to those of the second."""
    count = words[2] // 4
    numbers(words[1], count)[:] += numbers(words[0], count)


def array(*values: int) -> np.ndarray:
    return np.array(values, np.uint32).view(np.uint8)


def step(
    device: NvidiaDriver, name: str, *memory: tuple[int, int], written: int, groups: tuple[int, int, int] = (1, 1, 1), **grid: int
) -> BoundDispatch:
    """Return a dispatch of a kernel on ranges of (memory, bytes)."""
    kernel, layout = device.compile(name, len(memory), frozenset([written]), 0)
    return BoundDispatch(kernel, device.bind(layout, [BoundRange(Block(address), 0, size) for address, size in memory]), groups, **grid)


def read(device: NvidiaDriver, cuda: FakeCuda, memory: int, size: int, offset: int = 0) -> list[int]:
    """Return 32-bit numbers of memory, as of the commands written."""
    readback = device.readbacks.request(memory, size, offset)
    device.submit(device.progress.submitted + 1)
    cuda.run()
    assert device.poll() == device.progress.submitted
    data = device.readbacks.take(readback)
    device.readbacks.keep(readback)
    return data.view(np.uint32).tolist()


# order


def test_commands_run_in_order(device: NvidiaDriver, cuda: FakeCuda) -> None:
    a, b = device.allocate(16), device.allocate(16)
    device.write(a, array(1, 2, 3, 4), 0)
    device.write(b, array(10, 10, 10, 10), 0)
    device.write(a, array(7), 4)
    device.play([step(device, "double", (a, 16), written=0), step(device, "add", (a, 16), (b, 16), written=1)])
    device.copy(a, b, 8, 8)
    assert device.is_pending
    assert not cuda.launches
    assert read(device, cuda, a, 16) == [16, 18, 6, 8]
    assert read(device, cuda, b, 8, offset=8) == [16, 18]
    assert not device.is_pending


def test_parameters_are_addresses_sizes_and_the_grid(device: NvidiaDriver, cuda: FakeCuda) -> None:
    a, b = device.allocate(64), device.allocate(64, grids=True)
    device.write(a, array(*range(16)), 0)
    kernel, layout = device.compile("double", 2, frozenset([0]), 0)
    assert layout is None
    group = device.bind(layout, [BoundRange(Block(a), 16, 8), BoundRange(Block(b), 0, 12)])
    device.write(b, array(5, 5, 5, 0), 16)
    device.play(
        [
            BoundDispatch(kernel, group, (3, 2, 1)),
            BoundDispatch(kernel, group, (4, 1, 1), b, 16),
            BoundDispatch(kernel, group, (9, 1, 1), b, 28),
        ]
    )
    cuda.run()
    words = [a + 16, b, 8, 12]
    threads = (8, 2, 1)
    assert cuda.launches == [
        ("double", [*words, 0], (3, 2, 1), threads),
        ("double", [*words, b + 16], (4, 1, 1), threads),
        ("double", [*words, b + 28], (9, 1, 1), threads),
    ]
    assert numbers(b, 16)[7] == 0  # a grid of zeros: the kernel returns at once


def test_empty_grids_are_not_launched(device: NvidiaDriver, cuda: FakeCuda) -> None:
    a = device.allocate(16)
    empty = step(device, "double", (a, 16), written=0, groups=(4, 0, 1))
    device.play([empty])
    parts = device.replay_parts([empty] * 5)
    assert parts[0].dispatches == 5
    parts[0].write()
    cuda.run()
    assert not cuda.launches


def test_batches_are_done_in_order(device: NvidiaDriver, cuda: FakeCuda) -> None:
    a = device.allocate(4)
    for number in (1, 2, 3):
        device.play([step(device, "double", (a, 4), written=0)])
        device.submit(number)
        assert not device.is_pending
    done = []
    for _ in range(6):
        cuda.run(1)
        done.append(device.poll())
    assert done == [0, 1, 1, 2, 2, 3]
    device.submit(4)  # without commands
    cuda.run()
    assert device.poll() == 4
    assert cuda.count("cuEventCreate") == 3  # the fourth batch has an event of an earlier one


def test_threads_poll_at_once(device: NvidiaDriver, cuda: FakeCuda) -> None:
    cuda.eager = True
    seen: list[int] = []
    ended = threading.Event()

    def poll() -> None:
        while not ended.is_set():
            seen.append(device.poll())

    pollers = [threading.Thread(target=poll) for _ in range(3)]
    for poller in pollers:
        poller.start()
    for number in range(1, 200):
        device.submit(number)
    ended.set()
    for poller in pollers:
        poller.join()
    assert device.poll() == 199
    assert max(seen) <= 199
    assert len(set(device._events.free)) == len(device._events.free)


# readbacks


def test_readbacks_arrive_with_their_batch(device: NvidiaDriver, cuda: FakeCuda) -> None:
    a = device.allocate(8)
    device.write(a, array(1, 2), 0)
    first = device.readbacks.request(a, 8)
    assert not first.submitted and not device.readbacks.arrived(first)
    device.submit(1)
    device.play([step(device, "double", (a, 8), written=0)])
    second = device.readbacks.request(a, 4, 4)
    assert first.submitted and not second.submitted
    cuda.run(3)
    device.poll()
    assert device.readbacks.arrived(first)
    assert device.readbacks.take(first).view(np.uint32).tolist() == [1, 2]
    device.submit(2)
    assert not device.readbacks.arrived(second)
    cuda.run()
    device.poll()
    assert device.readbacks.take(second).view(np.uint32).tolist() == [4]


def test_memory_of_readbacks_is_reused_once_it_is_kept(device: NvidiaDriver, cuda: FakeCuda) -> None:
    a = device.allocate(1000)
    for _ in range(5):
        read(device, cuda, a, 4)
    assert cuda.count("cuMemHostAlloc") == 1
    read(device, cuda, a, 1000)
    assert cuda.count("cuMemHostAlloc") == 2
    device.readbacks.clear()
    assert cuda.live_host_memory() == 0


@pytest.mark.parametrize(("status", "error"), [(1, DeviceError), (2, OutOfMemoryError)])
def test_memory_of_refused_readbacks_is_reused(device: NvidiaDriver, cuda: FakeCuda, status: int, error: type[Exception]) -> None:
    a = device.allocate(4)
    cuda.failures = {"cuMemcpyDtoHAsync_v2": [status]}
    with pytest.raises(error):
        device.readbacks.request(a, 4)
    read(device, cuda, a, 4)
    assert cuda.count("cuMemHostAlloc") == 1


def test_dropped_readbacks_are_reused_after_they_arrive(device: NvidiaDriver, cuda: FakeCuda) -> None:
    a = device.allocate(4)
    device.readbacks.request(a, 4)
    device.submit(1)
    device.readbacks.request(a, 4)
    assert cuda.count("cuMemHostAlloc") == 2
    cuda.run()
    device.poll()
    device.readbacks.request(a, 4)  # in the memory of the first; the second one is not submitted
    assert cuda.count("cuMemHostAlloc") == 2
    device.readbacks.request(a, 4)
    assert cuda.count("cuMemHostAlloc") == 3
    device.submit(2)
    cuda.run()
    device.poll()
    device.readbacks.clear()
    assert cuda.live_host_memory() == 0


def test_readbacks_in_cycles_are_reused(device: NvidiaDriver, cuda: FakeCuda) -> None:
    a = device.allocate(4)
    cycle: list[Any] = [device.readbacks.request(a, 4)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    device.submit(1)
    cuda.run()
    device.poll()
    device.readbacks.request(a, 4)
    assert cuda.count("cuMemHostAlloc") == 1


def test_much_memory_is_not_kept(device: NvidiaDriver, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_MOST_RETAINED", 1 << 10)
    a = device.allocate(4096)
    read(device, cuda, a, 4096)
    assert cuda.live_host_memory() == 0


@pytest.mark.parametrize(("size", "capacity"), [(0, 256), (257, 512), (1 << 24, 1 << 24), ((1 << 24) + 1, 1 << 25), (3 << 24, 3 << 24)])
def test_capacities(size: int, capacity: int) -> None:
    assert stream._capacity(size) == capacity


def test_threads_at_once(device: NvidiaDriver, cuda: FakeCuda) -> None:
    """Each thread adds to numbers of its own and reads them; some readbacks are dropped."""
    cuda.strict = False  # work of other threads may be pending
    lock, ended, failures = threading.Lock(), threading.Event(), list[BaseException]()

    def execute() -> None:
        while not ended.is_set() or cuda.work:
            cuda.run(1)
            time.sleep(1e-5)

    def submit() -> int:
        device.submit(device.progress.submitted + 1)
        return device.progress.submitted

    def use(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(30):
                count = int(rng.integers(1, 300))
                with lock:
                    a = device.allocate(4 * count)
                    device.write(a, array(*range(count)), 0)
                    for _ in range(int(rng.integers(0, 4))):
                        device.readbacks.request(a, 4 * count)
                    steps = [step(device, "double", (a, 4 * count), written=0)] * int(rng.integers(1, 5))
                    device.replay_parts(steps)[0].write()
                    readback = device.readbacks.request(a, 4 * count)
                    device.play(steps)  # later
                    device.free(a)
                    batch = submit()
                while device.poll() < batch:
                    time.sleep(1e-4)
                assert device.readbacks.arrived(readback)
                expected = np.arange(count, dtype=np.uint32) << len(steps)
                np.testing.assert_array_equal(device.readbacks.take(readback).view(np.uint32), expected)
                with lock:
                    device.readbacks.keep(readback)
        except BaseException as error:
            failures.append(error)

    executor, users = threading.Thread(target=execute), [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in (executor, *users):
        thread.start()
    for user in users:
        user.join()
    ended.set()
    executor.join()
    assert not failures
    submit()
    cuda.run()
    submit()
    device.readbacks.clear()
    assert cuda.live_memory() == cuda.live_host_memory() == 0
    assert not cuda.graphs()


def test_nothing_grows_from_step_to_step(device: NvidiaDriver, cuda: FakeCuda) -> None:
    cuda.eager = True
    steps, blocks = chain_of(device, 4)
    parts = device.replay_parts(steps)

    def train(count: int) -> tuple[int, ...]:
        for _ in range(count):
            parts[0].write()
            device.write(blocks[0], array(1), 0)
            device.readbacks.request(blocks[-1], 4)
            device.play(steps[:1])
            device.timestamps().play(steps[0])
            device.submit(device.progress.submitted + 1)
            device.poll()
            cuda.launches.clear()
        pending = (device._batches, device._retired, device._sources, device._copies._orphans, device._copies._used)
        return (len(cuda.objects), cuda.live_memory(), cuda.live_host_memory(), *map(len, pending))

    assert train(10) == train(500)


# memory


def test_memory_is_freed_when_its_commands_are_done(device: NvidiaDriver, cuda: FakeCuda) -> None:
    a, b = device.allocate(4), device.allocate(4)
    device.play([step(device, "double", (a, 4), written=0)])
    device.free(a)
    device.submit(1)
    device.free(b)
    assert cuda.live_memory() == 2
    cuda.run()
    device.poll()
    c = device.allocate(4)
    assert cuda.live_memory() == 1
    device.free(c)
    assert cuda.live_memory() == 0


def test_a_copy_from_the_host_is_awaited_like_a_command(device: NvidiaDriver, cuda: FakeCuda) -> None:
    """Memory that it writes is not freed before, where the driver would wait for it."""
    queue = Queue(device, Pool(device, None))
    a = device.allocate(4)
    device.write(a, array(7), 0)
    device.free(a)
    assert cuda.live_memory() == 1
    assert not queue.is_done()
    cuda.run()
    assert queue.is_done()
    device.allocate(4)
    assert cuda.live_memory() == 1


def test_data_is_kept_until_it_is_written(device: NvidiaDriver, cuda: FakeCuda) -> None:
    a, data = device.allocate(4), array(1)
    end = weakref.ref(data)
    device.write(a, data, 0)
    del data
    device.submit(1)
    assert end() is not None
    cuda.run()
    device.submit(2)
    assert end() is None


def test_no_room(device: NvidiaDriver, cuda: FakeCuda) -> None:
    cuda.room = 100
    with pytest.raises(OutOfMemoryError, match="no room"):
        device.allocate(1000)
    device.free(device.allocate(100))
    assert not device.errors.device_lost


def test_kernels_are_released_when_their_commands_are_done(device: NvidiaDriver, cuda: FakeCuda) -> None:
    a = device.allocate(4)
    dispatch = step(device, "double", (a, 4), written=0)
    device.play([dispatch])
    device.release_pipeline(dispatch.pipeline)
    device.submit(1)
    cuda.run()
    device.poll()
    assert not cuda.count("cuLibraryUnload")
    device.submit(2)
    assert cuda.count("cuLibraryUnload") == 1


def test_kernels_are_released_with_the_device(device: NvidiaDriver, cuda: FakeCuda) -> None:
    """Their libraries belong to the process."""
    for name in ("double", "add"):
        device.compile(name, 2, frozenset([1]), 0)
    device.destroy()
    device.destroy()
    assert cuda.count("cuLibraryUnload") == 2


# graphs


def chain_of(device: NvidiaDriver, count: int) -> tuple[list[BoundDispatch], list[int]]:
    """Return dispatches each of which adds one block to the next, and the blocks."""
    blocks = [device.allocate(4) for _ in range(count + 1)]
    for block in blocks:
        device.write(block, array(1), 0)
    return [step(device, "add", (a, 4), (b, 4), written=1) for a, b in itertools.pairwise(blocks)], blocks


def test_a_recording_runs_as_its_dispatches_do(device: NvidiaDriver, cuda: FakeCuda) -> None:
    steps, blocks = chain_of(device, 6)
    (part,) = device.replay_parts(steps)
    assert part.dispatches == 6
    device.submit(1)
    assert not device.is_pending
    part.write()
    assert device.is_pending
    assert read(device, cuda, blocks[-1], 4) == [7]
    part.write()
    assert read(device, cuda, blocks[-1], 4) == [7 + 27 - 6]
    assert cuda.count("cuGraphLaunch") == 2
    assert [len(node[1]) for node in cuda.graphs()[0]] == [0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("count", [2, 6], ids=["launches", "a graph"])
def test_dispatches_of_a_recording_are_changed(count: int, device: NvidiaDriver, cuda: FakeCuda) -> None:
    """For what is written from then on; empty dispatches, which the driver does not see, have numbers, too."""
    steps, blocks = chain_of(device, count)
    steps.insert(1, steps[0]._replace(workgroups=(0, 1, 1)))
    (part,) = device.replay_parts(steps)
    part.write()
    assert read(device, cuda, blocks[-1], 4) == [1 + count]
    other = device.allocate(4)
    device.write(other, array(5), 0)
    assert part.change({count: step(device, "add", (blocks[-2], 4), (other, 4), written=1), 1: steps[1]})
    part.write()
    before = read(device, cuda, blocks[-2], 4)[0]
    assert read(device, cuda, blocks[-1], 4) == [1 + count]
    assert read(device, cuda, other, 4) == [5 + before]
    assert cuda.count("cuGraphExecKernelNodeSetParams_v2") == (count > 2)


def test_recordings_with_indirect_grids(device: NvidiaDriver, cuda: FakeCuda) -> None:
    a, grids = device.allocate(4), device.allocate(16, grids=True)
    device.write(a, array(1), 0)
    device.write(grids, array(0, 1, 1, 1), 0)
    steps = [
        step(device, "double", (grids, 4), written=0),  # leaves a zero
        step(device, "double", (a, 4), written=0, grid_buffer=grids, grid_offset=0),
        step(device, "double", (a, 4), written=0, grid_buffer=grids, grid_offset=4),
        step(device, "double", (grids, 16), written=0),
    ]
    parts = device.replay_parts(steps)
    parts[0].write()
    assert read(device, cuda, a, 4) == [2]
    assert read(device, cuda, grids, 16) == [0, 2, 2, 2]


def test_few_dispatches_are_no_graph(device: NvidiaDriver, cuda: FakeCuda) -> None:
    steps, blocks = chain_of(device, 2)
    grids = device.allocate(12, grids=True)
    device.write(grids, array(0, 1, 1), 0)
    (part,) = device.replay_parts([steps[0]._replace(workgroups=(2, 3, 4)), steps[1]])
    (nothing,) = device.replay_parts([steps[0]._replace(grid_buffer=grids)])
    for write in (part.write, nothing.write, part.write):
        write()
    assert device.is_pending
    assert read(device, cuda, blocks[-1], 4) == [6]
    assert [launch[2] for launch in cuda.launches] == [(2, 3, 4), GROUPS, GROUPS, (2, 3, 4), GROUPS]
    assert not cuda.count("cuGraphCreate")


def test_graphs_of_dropped_recordings_are_destroyed(device: NvidiaDriver, cuda: FakeCuda) -> None:
    steps, _ = chain_of(device, 3)
    parts = device.replay_parts(steps)
    parts[0].write()
    assert len(cuda.graphs()) == 1
    del parts
    device.submit(1)
    assert not cuda.graphs()


def test_without_room_for_a_graph_its_dispatches_are_launched(device: NvidiaDriver, cuda: FakeCuda) -> None:
    steps, blocks = chain_of(device, 3)
    cuda.failures = {"cuGraphInstantiateWithFlags": [2, 2], "cuGraphUpload": [2, 2]}
    for _ in range(2):  # it cannot be instantiated, and cannot be uploaded
        device.replay_parts(steps)[0].write()
        assert not cuda.graphs()
    assert read(device, cuda, blocks[-1], 4) == [10]
    parts = device.replay_parts(steps)
    assert len(cuda.graphs()) == 1
    del parts


# loops


def loop_of(device: NvidiaDriver, cuda: FakeCuda, count: int) -> tuple[Repeat, int, int]:
    """Return a loop that doubles a number and counts down, with the addresses of the number and of the counter."""
    x, counter, less = [device.allocate(4) for _ in range(3)]
    for memory, number in ((x, 1), (counter, count), (less, (1 << 32) - 1)):
        device.write(memory, array(number), 0)
    cuda.kernels[CONDITION_KERNEL] = cuda.set_condition
    body = step(device, "double", (x, 4), written=0), step(device, "add", (less, 4), (counter, 4), written=1)
    return Repeat(BoundRange(Block(counter), 0, 4), body), x, counter


@pytest.mark.parametrize("count", [0, 4, 8])
@pytest.mark.parametrize("record", [True, False])
def test_a_loop_in_a_graph(device: NvidiaDriver, cuda: FakeCuda, count: int, record: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    repeat, x, counter = loop_of(device, cuda, count)
    steps = [step(device, "double", (x, 4), written=0), repeat, step(device, "double", (x, 4), written=0)]
    if record:
        (part,) = device.replay_parts(steps) or ()
        part.write()
    else:
        device.play(steps)
    assert read(device, cuda, x, 4) == [4 << count]
    assert read(device, cuda, counter, 4) == [0]
    assert bool(device.progress_mark)  # which has changed, so that waiting goes on
    assert cuda.count("cuLaunchKernel") == (0 if record else 2)


def test_iterations_of_a_device_that_another_thread_closes(device: NvidiaDriver, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    repeat, x, _ = loop_of(device, cuda, 4)
    device.play([repeat])
    assert read(device, cuda, x, 4) == [16]
    assert device.progress_mark

    @contextlib.contextmanager
    def after_closing() -> Iterator[None]:
        device.call_errors.device_lost = True  # as `destroy` does before it takes the lock
        yield

    with monkeypatch.context() as patch:
        patch.setattr(device._copies, "reading", after_closing())
        assert device.progress_mark == 0  # the memory is not read


def test_short_iterations_are_repeated_together(device: NvidiaDriver, cuda: FakeCuda) -> None:
    repeat, _, _ = loop_of(device, cuda, 1)
    assert len(device._loop(repeat).nodes) == 2 * 4
    assert [len(edges) for edges in device._loop(repeat).edges] == [0, 0, *[1] * 6, 1]
    large = Repeat(repeat.flag, (repeat.steps[0]._replace(workgroups=(1 << 11, 1, 1)), repeat.steps[1]._replace(workgroups=(0, 1, 1))))
    assert len(device._loop(large).nodes) == 1
    assert len(device._loop(Repeat(repeat.flag, (repeat, repeat.steps[1]))).nodes) == 2


def test_which_loops_graphs_have(device: NvidiaDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    collective = f"{KernelHeader(128, 0, peers=(0, 1))}define"
    assert device.can_repeat(["double", f"{KernelHeader(128, 0)}define"])
    assert not device.can_repeat(["double", collective])
    monkeypatch.setattr(device.functions, "version", 12030)
    assert not device.can_repeat(["double"])


def test_without_room_for_a_graph_there_is_no_recording_of_a_loop(device: NvidiaDriver, cuda: FakeCuda) -> None:
    repeat, x, _ = loop_of(device, cuda, 4)
    cuda.failures = {"cuGraphInstantiateWithFlags": [2, 2]}
    assert device.replay_parts([repeat]) is None
    device.play([repeat])
    assert read(device, cuda, x, 4) == [16]


def test_a_graph_gets_the_room_of_free_blocks(device: NvidiaDriver, cuda: FakeCuda) -> None:
    repeat, x, _ = loop_of(device, cuda, 4)
    freed: list[bool] = []
    device.release_free_blocks = lambda: freed.append(True)
    cuda.failures = {"cuGraphInstantiateWithFlags": [2]}
    device.play([repeat])
    assert freed and read(device, cuda, x, 4) == [16]


# timestamps


def test_timestamps(device: NvidiaDriver, cuda: FakeCuda) -> None:
    steps, blocks = chain_of(device, 3)
    stamps = device.timestamps()
    assert stamps.read().shape == (0, 2)
    for dispatch in steps:
        stamps.play(dispatch)
    assert read(device, cuda, blocks[-1], 4) == [4]
    ms = 1_000_000
    assert stamps.read().tolist() == [[0, 2 * ms], [3 * ms, 5 * ms], [6 * ms, 8 * ms]]
    created = cuda.count("cuEventCreate")
    del stamps
    other = device.timestamps()
    for dispatch in steps:
        other.play(dispatch)
    assert cuda.count("cuEventCreate") == created


# errors


def test_a_refused_call_is_no_loss(device: NvidiaDriver, cuda: FakeCuda) -> None:
    cuda.failures = {"cuMemAlloc_v2": [1]}
    with pytest.raises(DeviceError, match="CUDA_ERROR_OF_TEST"):
        device.allocate(4)
    assert not device.errors.device_lost
    device.check()


def _fault(words: list[int], grid: tuple[int, int, int]) -> None:
    raise Fault


ACTIONS: dict[str, Callable[[NvidiaDriver, int], object]] = {
    "check": lambda device, a: device.check(),
    "allocate": lambda device, a: device.allocate(4),
    "write": lambda device, a: device.write(a, array(1), 0),
    "copy": lambda device, a: device.copy(a, a, 0, 4),
    "play": lambda device, a: device.play([step(device, "double", (a, 4), written=0)]),
    "request": lambda device, a: device.readbacks.request(a, 4),
    "submit": lambda device, a: device.submit(2),
    "poll": lambda device, a: device.poll(),
    "compile": lambda device, a: device.compile("double", 1, frozenset(), 0),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_a_kernel_that_faults_loses_the_device(device: NvidiaDriver, cuda: FakeCuda, action: str) -> None:
    cuda.kernels["fault"] = _fault
    a = device.allocate(4)
    steps = [step(device, "double", (a, 4), written=0)] * 3
    parts = device.replay_parts(steps)
    readback = device.readbacks.request(a, 4)
    device.play([step(device, "fault", (a, 4), written=0)])
    device.submit(1)
    cuda.run()
    with pytest.raises(DeviceError) as error:
        ACTIONS[action](device, a)
    assert error.value.message == LOST
    assert any(": 700 (CUDA_ERROR_OF_TEST)" in note for note in error.value.__notes__)
    assert device.errors.device_lost
    calls = len(cuda.calls)
    for further in (*ACTIONS.values(), lambda device, a: device.readbacks.take(readback), lambda device, a: parts[0].write()):
        with pytest.raises(DeviceError) as error:
            further(device, a)
        assert error.value.message == LOST
    device.free(a)
    assert len(cuda.calls) == calls  # none was made
    again = opened(adapters()[0].again())
    b = again.allocate(4)
    again.write(b, array(21), 0)
    again.play([step(again, "double", (b, 4), written=0)])
    assert read(again, cuda, b, 4) == [42]
    device.release()
    device.destroy()
    assert read(again, cuda, b, 4) == [42]
    again.destroy()


def test_a_shader_that_is_refused(device: NvidiaDriver) -> None:
    with pytest.raises(DeviceError, match="cuLink: ptxas: syntax error: 218"):
        device.compile("bad text", 1, frozenset(), 0)
    with pytest.raises(DeviceError, match="cuModuleGetFunction"):
        device.compile("unknown kernel", 1, frozenset(), 0)
    assert not device.errors.device_lost


# opening and closing


def test_every_gpu_once_by_its_index(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.names = ("NVIDIA H200", "NVIDIA H200", "NVIDIA L4")
    listed = adapters()
    assert [(adapter.driver, adapter.name, adapter.index) for adapter in listed] == [
        ("nvidia", "NVIDIA H200", 0), ("nvidia", "NVIDIA H200", 1), ("nvidia", "NVIDIA L4", 2)
    ]  # fmt: skip


def test_capabilities(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    description = describe(library.gpus()[0])
    capabilities = description.capabilities
    assert (description.name, description.kind, description.largest) == ("NVIDIA H200", "discrete", cuda.total)
    assert capabilities.float64 and capabilities.int64 and capabilities.subgroups and not capabilities.fp_contract
    assert (capabilities.subgroup_least, capabilities.subgroup_most, capabilities.groups) == (32, 32, 65535)
    assert description.limits["max-buffer-size"] == cuda.total
    monkeypatch.setenv("VOLTA_GPU_LIMITS", "webgpu")
    least = describe(library.gpus()[0])
    assert least.capabilities.buffers == 8 and not least.capabilities.float64 and least.largest == 1 << 28 and not least.features


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": ()}, "cuInit: 100"),
        ({"version": 11080}, "CUDA 11.8: update it to version 525"),
        ({"capability": (6, 1)}, "no GPU of compute capability 7.0"),
    ],
)
def test_why_there_is_no_gpu(cuda: FakeCuda, change: dict[str, Any], message: str) -> None:
    for name, value in change.items():
        setattr(cuda, name, value)
    with pytest.raises(DeviceError, match=message):
        adapters()


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    library._functions.cache_clear()
    monkeypatch.setattr(library, "_NAME", "libnone.so.1")
    with pytest.raises(DeviceError, match="NVIDIA's driver is not installed"):
        adapters()


def test_without_a_compiler(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("volta_fn.targets.nvidia.compilation.is_installed", lambda package: False)
    with pytest.raises(DeviceError, match=r"pip install 'volta-fn\[native\]'"):
        adapters()


def test_forked_processes_are_refused(device: NvidiaDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = os.getpid()
    a = device.allocate(4)
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: pid + 1)
        for action in (lambda: adapters(), lambda: device.allocate(4), lambda: device.submit(1)):
            with pytest.raises(DeviceError) as error:
                action()
            assert error.value.message == FORKED
        device.free(a)
        device.release()
    device.check()


FORK = """
import os, sys
from tests.targets.nvidia.fake_cuda import FakeCuda
from volta_fn.targets.nvidia import library
from volta_fn.targets.nvidia.driver import adapters
fake = FakeCuda(eager=True)
library.open_library = lambda: fake
device = adapters()[0].open()
memory = device.allocate(4)
readback = device.readbacks.request(memory, 4)
child = os.fork()
before = len(fake.calls)
if not child:
    device.free(memory)
    del readback
    device.release()
    device.destroy()
    assert len(fake.calls) == before
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
device.submit(1)
assert device.poll() == 1
"""


def test_a_fork_ends_without_calls() -> None:
    result = subprocess.run([sys.executable, "-W", "error", "-c", FORK], capture_output=True, text=True)
    assert not result.returncode, result.stderr
    assert not result.stderr


def test_contexts_of_dropped_devices_are_destroyed(device: NvidiaDriver, cuda: FakeCuda) -> None:
    other = opened()
    other.destroy()
    other = opened()
    assert sum(not context.destroyed for context in cuda.contexts.values()) == 2
    del other
    gc.collect()
    third = opened()
    assert sum(not context.destroyed for context in cuda.contexts.values()) == 2
    third.destroy()


def test_a_context_is_destroyed_when_threads_have_left_it(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    device = opened()
    (context,) = cuda.contexts.values()
    left = threading.Event()

    def stay() -> None:
        with device.context:
            left.wait()

    thread = threading.Thread(target=stay)
    thread.start()
    while not device.context._entered:
        time.sleep(1e-3)
    destroyer = threading.Thread(target=device.destroy)
    destroyer.start()
    time.sleep(0.05)
    assert not context.destroyed
    with pytest.raises(DeviceError):
        device.check()
    left.set()
    destroyer.join()
    thread.join()
    assert context.destroyed
    monkeypatch.setattr(library, "_LEAVE_S", 0.0)
    stuck = opened()
    with stuck.context:
        stuck.destroy()
    assert [context.destroyed for context in cuda.contexts.values()] == [True, False]


def test_other_libraries_keep_their_context(device: NvidiaDriver, cuda: FakeCuda) -> None:
    other = opened()
    with other.context:
        before = list(cuda.stack)
        device.submit(1)
        device.poll()
        assert cuda.stack == before
    other.destroy()
