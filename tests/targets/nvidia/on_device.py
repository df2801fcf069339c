"""Checks of NVIDIA's driver on a GPU: `python -m tests.targets.nvidia.on_device` runs and times them, without pytest.

Kernels are PTX, so that no compiler is needed; the last checks compile WGSL where llvmlite is installed.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from volta_fn.errors import DeviceError, OutOfMemoryError
from volta_fn.lazy_imports import is_installed
from volta_fn.targets.gpu.driver import LOST, BoundDispatch, BoundRange
from volta_fn.targets.nvidia import compilation
from volta_fn.targets.nvidia import driver as nvidia
from volta_fn.targets.nvidia.compilation import Compiler, architecture_of
from volta_fn.targets.nvidia.driver import NvidiaAdapter, NvidiaDriver
from volta_fn.targets.nvidia.library import driver_version, functions, gpus

_HEAD = """
.version 6.3
.target sm_75
.address_size 64
.visible .entry main(
    .param .u64 first, .param .u64 second, .param .u64 first_bytes, .param .u64 second_bytes, .param .u64 grid
)
{
    .reg .pred %p<4>;
    .reg .b32 %r<9>;
    .reg .b64 %rd<8>;
"""

#: Adds the 32-bit numbers of the first binding to those of the second, unless its grid is empty.
ADD = (
    _HEAD
    + """
    ld.param.b64 %rd6, [grid];
    setp.eq.b64 %p1, %rd6, 0;
    @%p1 bra WORK;
    ld.global.b32 %r1, [%rd6];
    setp.eq.b32 %p2, %r1, 0;
    @%p2 bra END;
WORK:
    ld.param.b64 %rd5, [second_bytes];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %tid.x;
    shl.b32 %r4, %r2, 6;
    add.s32 %r5, %r4, %r3;
    mul.wide.u32 %rd7, %r5, 4;
    setp.ge.u64 %p3, %rd7, %rd5;
    @%p3 bra END;
    ld.param.b64 %rd4, [second];
    ld.param.b64 %rd3, [first];
    add.s64 %rd1, %rd3, %rd7;
    add.s64 %rd2, %rd4, %rd7;
    ld.global.b32 %r6, [%rd1];
    ld.global.b32 %r7, [%rd2];
    add.s32 %r8, %r7, %r6;
    st.global.b32 [%rd2], %r8;
END:
    ret;
}
"""
)

#: Stores to an address that no memory has.
FAULT = _HEAD + "    mov.u64 %rd1, 64;\n    st.global.b32 [%rd1], 7;\n    ret;\n}\n"

#: Waits for some tenths of a second.
WAIT = (
    _HEAD
    + """
    mov.u32 %r1, 0;
AGAIN:
    nanosleep.u32 1000000;
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p1, %r1, 300;
    @%p1 bra AGAIN;
    ret;
}
"""
)

WGSL = """
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> b: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < 100u) { b[id.x] = a[id.x] * 2.0 + b[id.x]; }
}
"""


class Block(NamedTuple):
    """What bind groups need of a `memory.Block`."""

    handle: int


class _Identity:
    """Compiling processes whose PTX is the source."""

    def ask(self, request: Any) -> list[bytes]:
        return [b"ptx", compilation._THREADS.pack(64, 1, 1), request[0]]


def opened(model: Any = None) -> NvidiaDriver:
    """Open a GPU, whose shaders are PTX."""
    device = NvidiaAdapter(model or gpus()[0]).open()
    device._compiler = Compiler(architecture_of((9, 0), 13000), "checks", _Identity())  # type: ignore[arg-type]
    return device


def step(device: NvidiaDriver, source: str, a: int, b: int, count: int = 1000, **grid: int) -> BoundDispatch:
    """Return a dispatch of a kernel on two arrays of `count` numbers."""
    kernel, layout = device.compile(source, 2, frozenset([1]), 0)
    group = device.bind(layout, [BoundRange(Block(a), 0, 4 * count), BoundRange(Block(b), 0, 4 * count)])
    return BoundDispatch(kernel, group, (-(-count // 64), 1, 1), **grid)


def finish(device: NvidiaDriver) -> None:
    """Submit a batch and wait for it, for ten seconds at most."""
    number = device.progress.submitted + 1
    device.submit(number)
    end = time.perf_counter() + 10
    while device.poll() < number:
        assert time.perf_counter() < end, "the batch is not done"


def read(device: NvidiaDriver, memory: int, count: int, offset: int = 0) -> np.ndarray:
    """Return 32-bit numbers of memory."""
    readback = device.readbacks.request(memory, 4 * count, offset)
    finish(device)
    assert device.readbacks.arrived(readback)
    data = device.readbacks.take(readback).view(np.uint32)
    device.readbacks.keep(readback)
    return data


def array(device: NvidiaDriver, values: Any) -> int:
    """Return memory with 32-bit numbers."""
    data = np.asarray(values, np.uint32)
    memory = device.allocate(data.nbytes)
    device.write(memory, data.view(np.uint8), 0)
    return memory


def measure(name: str, run: Callable[[], object], times: int) -> None:
    """Print the time of a call."""
    start = time.perf_counter()
    for _ in range(times):
        run()
    print(f"    {name}: {(time.perf_counter() - start) / times * 1e6:.2f} us", flush=True)


def compile_one(device: NvidiaDriver) -> Callable[[str], object]:
    """Return a function that compiles a shader with two bindings."""
    return lambda text: device.compile(text, 2, frozenset([1]), 0)


def commands(device: NvidiaDriver) -> None:
    """Dispatches, writes, copies and readbacks are executed in order."""
    a, b = array(device, range(1000)), array(device, range(1000))
    device.play([step(device, ADD, a, b)] * 3)
    first = device.readbacks.request(b, 4000)
    device.copy(a, b, 400, 400)
    device.play([step(device, ADD, a, b)])
    np.testing.assert_array_equal(read(device, b, 100), np.arange(100) * 4 + (np.arange(100) + 100) * 4)
    np.testing.assert_array_equal(device.readbacks.take(first).view(np.uint32), np.arange(1000) * 4)
    np.testing.assert_array_equal(read(device, a, 5, 400), np.arange(100, 105))
    for memory in (a, b):
        device.free(memory)


def grids(device: NvidiaDriver) -> None:
    """Kernels read their grids, in launches and in graphs."""
    a, b, words = array(device, [1] * 1000), array(device, [0] * 1000), array(device, [9, 16, 1, 1, 0, 0, 0])
    full, empty = (step(device, ADD, a, b, grid_buffer=words, grid_offset=offset) for offset in (4, 16))
    device.play([full, empty, full])
    assert set(read(device, b, 1000).tolist()) == {2}
    parts = device.replay_parts([full, empty, full, empty])
    parts[0].write()
    assert set(read(device, b, 1000).tolist()) == {4}


def recordings(device: NvidiaDriver) -> None:
    """Check that a graph gives what its dispatches give, whatever the order of those that are independent."""
    blocks = [array(device, [1] * 1000) for _ in range(12)]
    rng = np.random.default_rng(0)
    pairs = [rng.choice(12, 2, replace=False) for _ in range(300)]
    expected = [1] * 12
    for _ in range(3):
        for i, j in pairs:
            expected[j] = (expected[j] + expected[i]) % (1 << 32)
    parts = device.replay_parts([step(device, ADD, blocks[i], blocks[j]) for i, j in pairs])
    assert parts[0].dispatches == 300
    for _ in range(3):
        parts[0].write()
    assert [set(read(device, block, 1000).tolist()) for block in blocks] == [{n} for n in expected]
    del parts
    finish(device)


def waiting(device: NvidiaDriver) -> None:
    """Submitting and polling do not wait for a long kernel, nor does freeing."""
    a = array(device, [1])
    device.play([step(device, WAIT, a, a, 1)])
    start = time.perf_counter()
    number = device.progress.submitted + 1
    device.submit(number)
    device.free(a)
    assert device.poll() < number
    assert time.perf_counter() - start < 0.1, "a call waited"
    finish(device)


def times(device: NvidiaDriver) -> None:
    """Timestamps enclose their dispatches."""
    a, b = array(device, [1] * 1000), array(device, [1] * 1000)
    stamps = device.timestamps()
    stamps.play(step(device, ADD, a, b))
    stamps.play(step(device, WAIT, a, b, 1))
    finish(device)
    (begin, end), (second, last) = stamps.read().tolist()
    print(f"    ns: {begin} {end} {second} {last}")
    assert begin == 0 <= end <= second < last and 1e7 < last - second < 5e9


def room(device: NvidiaDriver) -> None:
    """Memory that does not exist is refused; the device goes on."""
    try:
        device.allocate(1 << 46)
    except OutOfMemoryError as error:
        print(f"    {error.message}")
    else:
        raise AssertionError("64 TiB were allocated")
    for _ in range(100):
        device.free(device.allocate(1 << 30))
    device.check()


def refused(device: NvidiaDriver) -> None:
    """Text that is no PTX gives an error with the compiler's messages."""
    try:
        device.compile(ADD.replace("setp.eq", "setp.what"), 2, frozenset([1]), 0)
    except DeviceError as error:
        print("    " + error.message[:300].replace("\n", "\n    "))
        assert "setp" in error.message[:300]
    else:
        raise AssertionError("it was compiled")


def speed(device: NvidiaDriver) -> None:
    """Print the host's times."""
    a, b = array(device, [1] * 1000), array(device, [1] * 1000)
    dispatch = step(device, ADD, a, b)
    many = [dispatch] * 100
    parts = device.replay_parts(many)
    write = parts[0].write
    finish(device)
    measure("100 dispatches by play", lambda: device.play(many), 5)
    finish(device)
    measure("a recording of 100", write, 20)
    finish(device)
    measure("a recording of 100, on the device too", lambda: [write() for _ in range(20)] and finish(device), 5)
    measure("making it", lambda: device.replay_parts(many), 5)
    shortest = nvidia._SHORTEST_GRAPH
    for count in (1, 2, 3, 6):
        for kind, least in (("launches", 1000), ("a graph", 1)):
            nvidia._SHORTEST_GRAPH = least
            some = device.replay_parts([dispatch] * count)[0].write
            finish(device)
            measure(f"{count} dispatches by {kind}", some, 20)
            finish(device)
            measure("    20 times, on the device too", lambda some=some: [some() for _ in range(20)] and finish(device), 5)
    nvidia._SHORTEST_GRAPH = shortest
    measure("entering the context", lambda: device.context.__enter__() or device.context.__exit__(None, None, None), 1000)
    measure("submit", lambda: device.submit(device.progress.submitted + 1), 50)
    measure("poll", device.poll, 50)
    small, large = np.zeros(64, np.uint8), np.zeros(1 << 28, np.uint8)
    memory = device.allocate(large.nbytes)
    measure("write of 64 bytes", lambda: device.write(memory, small, 0), 50)
    measure("write of 256 MiB", lambda: device.write(memory, large, 0), 2)
    finish(device)
    measure("read of 4 bytes", lambda: read(device, a, 1), 50)
    for which in ("first", "second"):
        measure(f"{which} read of 256 MiB", lambda: read(device, memory, 1 << 26), 1)
    measure("allocate and free 1 MiB", lambda: device.free(device.allocate(1 << 20)), 50)
    measure("link", lambda: device._link(ADD.encode()), 3)


def losses(device: NvidiaDriver) -> None:
    """Check that a kernel that faults loses the device, for the rest of the process."""
    a = array(device, [1])
    device.play([step(device, FAULT, a, a, 1)])
    try:
        finish(device)
    except DeviceError as error:
        assert error.message == LOST, error
    else:
        raise AssertionError("nothing was reported")
    assert device.errors.device_lost
    device.free(a)
    try:
        opened()
    except DeviceError as error:
        assert "start the process again" in error.message, error
    else:
        raise AssertionError("the driver gives a new context: programs may go on there")
    device.release()
    device.destroy()


def everywhere(device: NvidiaDriver) -> None:
    """Check that all GPUs can be open at once."""
    others = [opened(model) for model in gpus()]
    for other in others:
        commands(other)
    for other in others:
        other.destroy()
    commands(device)


def shaders(device: NvidiaDriver) -> None:
    """WGSL is compiled, by a process that makes PTX; a second time it comes from the disk."""
    if not is_installed("llvmlite"):
        print("    llvmlite is not installed")
        return
    loaded, model = functions(), gpus()[0]
    compiler = device._compiler
    device._compiler = Compiler(architecture_of(model.capability, loaded.version), driver_version(loaded))
    reply = compilation.pool().ask([WGSL.encode(), device._compiler.architecture.encode(), b"unchecked", b""])
    print(f"    an answer of the kind {reply[0].decode()}, {len(reply[2])} bytes")
    for which in ("first", "second"):
        text = f"{WGSL}// {os.getpid()} {time.time_ns() if which == 'first' else ''}"
        measure(f"{which} compilation", lambda text=text: device.compile(text, 2, frozenset([1]), 0), 1)
    measure("from the disk", lambda: device.compile(text, 2, frozenset([1]), 0), 3)
    texts = [f"{WGSL}// {time.time_ns()} {number}" for number in range(64)]
    with ThreadPoolExecutor(16) as threads:
        measure("64 compilations on 16 threads", lambda: list(threads.map(compile_one(device), texts)), 1)
    print(f"    by {len(compilation.pool()._workers)} processes")
    a, b = array(device, np.arange(1000, dtype=np.float32).view(np.uint32)), array(device, [0] * 1000)
    device.play([step(device, WGSL, a, b)])
    np.testing.assert_array_equal(read(device, b, 100).view(np.float32), 2 * np.arange(100, dtype=np.float32))
    device._compiler = compiler
    assert reply[0] == b"ptx", reply[2][:500]


CHECKS: list[Callable[[NvidiaDriver], None]] = [
    commands, grids, recordings, waiting, times, room, refused, everywhere, speed, shaders, losses,
]  # fmt: skip


def main() -> int:
    """Run all checks; return the number of those that failed."""
    print(*gpus(), driver_version(functions()), sep="\n")
    failed = 0
    for check in CHECKS:
        print(check.__name__, flush=True)
        start = time.perf_counter()
        device = opened()
        print(f"    opened in {time.perf_counter() - start:.3f} s")
        try:
            check(device)
        except Exception:
            failed += 1
            traceback.print_exc(file=sys.stdout)
        device.destroy()
    print(f"{failed} of {len(CHECKS)} checks failed")
    return failed


if __name__ == "__main__":
    sys.exit(main())
