"""A stand-in for NVIDIA's driver: its functions are Python's, called through ctypes as the driver's are, and memory is the host's.

Work in streams happens when `run` is called, or at once if the library is `eager`. Kernels are Python functions by the text of their code,
called with the words of their parameters and their grid.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from volta_fn.targets.nvidia import library
from volta_fn.targets.nvidia.compilation import Compiler
from volta_fn.targets.nvidia.stream import ConditionalNodeParameters, KernelNodeParameters, LaunchConfiguration

INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE, INVALID_CONTEXT, NOT_READY, ILLEGAL_ADDRESS = 1, 2, 100, 201, 600, 700
PEER_ACCESS_ALREADY_ENABLED = 704

#: Functions that need no current context.
_WITHOUT_CONTEXT = ("cuInit", "cuDriver", "cuDevice", "cuCtx", "cuGetError", "cuLibraryUnload")


class Fault(Exception):
    """What a kernel raises that accesses an address out of range."""


def at(address: int, type_: Any) -> Any:
    """Return the number of a type at an address."""
    return type_.from_address(address)


class FakeContext:
    """A context, with the status of all further calls and what is allocated in it."""

    def __init__(self) -> None:
        self.status = 0
        self.memory: dict[int, Any] = {}
        self.host_memory: dict[int, Any] = {}
        self.destroyed = False
        #: The contexts whose memory it may access.
        self.peers: set[int] = set()


class FakeCuda:
    """The library: an attribute for each function, and what was done with them."""

    def __init__(self, names: tuple[str, ...] = ("NVIDIA H200",), *, eager: bool = False) -> None:
        self.names, self.eager = names, eager
        self.version, self.capability, self.total = 13000, (9, 0), 1 << 37
        self.kernels: dict[str, Callable[[list[int], tuple[int, int, int]], None]] = {}
        #: Statuses that the next calls of a function return, by its name; those with 0 are made.
        self.failures: dict[str, list[int]] = {}
        #: Whether it is an error to wait for work.
        self.strict = True
        #: The most bytes that can be allocated.
        self.room = 1 << 40
        #: Names of calls, launches as (code, words, grid, threads), and functions that failed to run.
        self.calls: list[str] = []
        self.launches: list[tuple[str, list[int], tuple[int, int, int], tuple[int, int, int]]] = []
        self.broken: list[BaseException] = []
        self.contexts: dict[int, FakeContext] = {}
        self.work: list[Callable[[], None]] = []
        self.objects: dict[int, Any] = {}
        self.events: dict[int, tuple[bool, float]] = {}
        self.clock = 0.0
        #: The priorities of graphs' kernels, by their handles.
        self.priorities: dict[int, int] = {}
        #: The conditions of loops in graphs, by their handles, and the arrays of their graphs.
        self.conditions: dict[int, int] = {}
        self._bodies: list[Any] = []
        self._handles = itertools.count(0x1000, 16)
        self._thread = threading.local()
        self._bound: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        """Return a function with the driver's parameters."""
        if name not in library.SIGNATURES:
            raise AttributeError(name)
        if name not in self._bound:
            self._bound[name] = ctypes.CFUNCTYPE(ctypes.c_int, *library.SIGNATURES[name])(lambda *args: self._called(name, args))
        return self._bound[name]

    def _called(self, name: str, args: tuple[Any, ...]) -> int:
        try:
            self.calls.append(name)
            planted = self.failures[name].pop(0) if self.failures.get(name) else 0
            if planted:
                return planted
            if not name.startswith(_WITHOUT_CONTEXT):
                context = self.context
                if context is None:
                    return INVALID_CONTEXT
                if context.status:
                    return context.status
            return getattr(self, "do_" + name)(*args) or 0
        except BaseException as error:
            error.add_note(name)
            self.broken.append(error)
            return 999

    # what tests use

    @property
    def stack(self) -> list[int]:
        """The thread's contexts."""
        return self._thread.__dict__.setdefault("stack", [])

    @property
    def context(self) -> FakeContext | None:
        return self.contexts[self.stack[-1]] if self.stack else None

    def run(self, count: int | None = None) -> None:
        """Do the first `count` pieces of the work in streams, or all."""
        work = self.work[:count]
        del self.work[:count]
        for piece in work:
            self.clock += 1.0
            piece()

    def live_memory(self) -> int:
        """Return how many allocations of the GPU are not freed."""
        return sum(len(context.memory) for context in self.contexts.values() if not context.destroyed)

    def live_host_memory(self) -> int:
        """Return how many allocations of the host's memory are not freed."""
        return sum(len(context.host_memory) for context in self.contexts.values() if not context.destroyed)

    def count(self, name: str) -> int:
        """Return how often a function was called."""
        return self.calls.count(name)

    def _enqueue(self, piece: Callable[[], None], stream: int) -> None:
        context = self.context
        assert context is not None

        def run() -> None:
            if not context.status and not context.destroyed:
                piece()

        if self.eager:
            self._start(run, stream)
        else:
            self.work.append(run)

    def _start(self, piece: Callable[[], None], stream: int) -> None:
        """Do a piece of the work in a stream at once."""
        self.clock += 1.0
        piece()

    def _make(self, result: int, value: Any) -> None:
        handle = next(self._handles)
        self.objects[handle] = value
        at(result, ctypes.c_void_p).value = handle

    # the driver and its GPUs

    def do_cuInit(self, flags: int) -> int:
        return 0 if self.names else NO_DEVICE

    def do_cuDriverGetVersion(self, result: int) -> None:
        at(result, ctypes.c_int).value = self.version

    def do_cuGetErrorName(self, status: int, result: int) -> None:
        self._text = ctypes.create_string_buffer(b"CUDA_ERROR_OF_TEST")
        at(result, ctypes.c_void_p).value = ctypes.addressof(self._text)

    def do_cuGetErrorString(self, status: int, result: int) -> int:
        return INVALID_VALUE

    def do_cuDeviceGetCount(self, result: int) -> None:
        at(result, ctypes.c_int).value = len(self.names)

    def do_cuDeviceGet(self, result: int, ordinal: int) -> None:
        at(result, ctypes.c_int).value = 70 + ordinal

    def do_cuDeviceGetName(self, result: int, length: int, device: int) -> None:
        name = self.names[device - 70].encode() + b"\0"
        ctypes.memmove(result, name, min(len(name), length))

    def do_cuDeviceTotalMem_v2(self, result: int, device: int) -> None:
        at(result, ctypes.c_size_t).value = self.total

    def do_cuDeviceGetAttribute(self, result: int, attribute: int, device: int) -> None:
        at(result, ctypes.c_int).value = {75: self.capability[0], 76: self.capability[1], 18: 0, 16: 132, 97: 227 << 10}[attribute]

    # contexts

    def do_cuCtxCreate_v2(self, result: int, flags: int, device: int) -> int:
        if any(context.status and not context.destroyed for context in self.contexts.values()):
            return ILLEGAL_ADDRESS
        context = FakeContext()
        self._make(result, context)
        handle = at(result, ctypes.c_void_p).value
        self.contexts[handle] = context
        self.stack.append(handle)
        return 0

    def do_cuCtxDestroy_v2(self, context: int) -> None:
        assert not self.contexts[context].destroyed
        self.contexts[context].destroyed = True
        self.work.clear()

    def do_cuCtxEnablePeerAccess(self, context: int, flags: int) -> int:
        assert context != self.stack[-1] and not self.contexts[context].destroyed and not flags
        if context in self.context.peers:
            return PEER_ACCESS_ALREADY_ENABLED
        self.context.peers.add(context)
        return 0

    def do_cuCtxPushCurrent_v2(self, context: int) -> None:
        assert not self.contexts[context].destroyed
        self.stack.append(context)

    def do_cuCtxPopCurrent_v2(self, result: int) -> None:
        at(result, ctypes.c_void_p).value = self.stack.pop()

    # memory

    def _allocate(self, result: int, size: int, memory: dict[int, Any], type_: Any) -> int:
        if size > self.room:
            return OUT_OF_MEMORY
        buffer = ctypes.create_string_buffer(b"\xcd" * size, size)
        at(result, type_).value = ctypes.addressof(buffer)
        memory[ctypes.addressof(buffer)] = buffer
        return 0

    def do_cuMemAlloc_v2(self, result: int, size: int) -> int:
        return self._allocate(result, size, self.context.memory, ctypes.c_uint64)

    def do_cuMemFree_v2(self, address: int) -> None:
        assert not (self.work and self.strict), "the driver would wait"
        del self.context.memory[address]

    def do_cuMemHostAlloc(self, result: int, size: int, flags: int) -> int:
        return self._allocate(result, size, self.context.host_memory, ctypes.c_void_p)

    def do_cuMemFreeHost(self, address: int) -> None:
        del self.context.host_memory[address]

    def do_cuDeviceGetUuid(self, result: int, device: int) -> None:
        ctypes.memmove(result, f"GPU {device:<12d}".encode(), 16)

    def do_cuIpcGetMemHandle(self, result: int, address: int) -> None:
        assert address in self.context.memory
        library.IpcHandle.from_address(result).bytes[:8] = list(address.to_bytes(8, "little"))

    def do_cuIpcOpenMemHandle_v2(self, result: int, handle: library.IpcHandle, flags: int) -> None:
        assert flags == 1
        address = int.from_bytes(bytes(handle)[:8], "little")
        assert address not in self.context.memory, "a process cannot open its own memory"
        at(result, ctypes.c_uint64).value = address

    def do_cuIpcCloseMemHandle(self, address: int) -> None:
        assert address not in self.context.memory

    def do_cuMemcpyHtoDAsync_v2(self, target: int, source: int, size: int, stream: int) -> None:
        data = ctypes.string_at(source, size)
        self._enqueue(lambda: ctypes.memmove(target, data, size) and None, stream)

    def do_cuMemcpyDtoHAsync_v2(self, target: int, source: int, size: int, stream: int) -> None:
        self._enqueue(lambda: ctypes.memmove(target, source, size) and None, stream)

    def do_cuMemcpyDtoDAsync_v2(self, target: int, source: int, size: int, stream: int) -> None:
        self._enqueue(lambda: ctypes.memmove(target, source, size) and None, stream)

    # streams and events

    def do_cuStreamCreate(self, result: int, flags: int) -> None:
        assert flags == 1
        self._make(result, "stream")

    def do_cuStreamQuery(self, stream: int) -> int:
        return NOT_READY if self.work else 0

    def do_cuEventCreate(self, result: int, flags: int) -> None:
        self._make(result, flags)

    def do_cuEventRecord(self, event: int, stream: int) -> None:
        assert self.objects[stream] == "stream"
        self.events[event] = False, 0.0

        def reach() -> None:
            self.events[event] = True, self.clock

        self._enqueue(reach, stream)

    def do_cuEventQuery(self, event: int) -> int:
        return 0 if self.events[event][0] else NOT_READY

    def do_cuEventElapsedTime(self, result: int, first: int, second: int) -> int:
        assert self.objects[first] == self.objects[second] == 0, "the events have no times"
        if not (self.events[first][0] and self.events[second][0]):
            return NOT_READY
        at(result, ctypes.c_float).value = self.events[second][1] - self.events[first][1]
        return 0

    # code

    def do_cuLinkCreate_v2(self, count: int, options: int, values: int, result: int) -> None:
        log = [at(values + 8 * i, ctypes.c_uint64).value for i in range(count)]
        self._make(result, {"log": log, "text": b""})

    def do_cuLinkAddData_v2(self, state: int, kind: int, data: int, size: int, name: bytes, count: int, options: Any, values: Any) -> int:
        text = ctypes.string_at(data, size)
        assert kind == 1 and text.endswith(b"\0")
        if text.startswith(b"bad"):
            message = b"ptxas: syntax error\0"
            ctypes.memmove(self.objects[state]["log"][0], message, len(message))
            return 218
        self.objects[state]["text"] += text[:-1]
        return 0

    def do_cuLinkComplete(self, state: int, result: int, size: int) -> None:
        text = self.objects[state]["text"]
        self.objects[state]["cubin"] = buffer = ctypes.create_string_buffer(text)
        at(result, ctypes.c_void_p).value = ctypes.addressof(buffer)
        at(size, ctypes.c_size_t).value = len(text)

    def do_cuLinkDestroy(self, state: int) -> None:
        del self.objects[state]

    def do_cuLibraryLoadData(self, result: int, image: int, *options: Any) -> None:
        assert not any(options)
        self._make(result, ctypes.string_at(image).decode())

    def do_cuLibraryGetModule(self, result: int, library: int) -> None:
        self._make(result, self.objects[library])

    def do_cuLibraryUnload(self, library: int) -> None:
        assert not (self.work and self.strict), "the driver would wait"
        del self.objects[library]

    def do_cuModuleGetFunction(self, result: int, module: int, name: bytes) -> int:
        if name != b"main" or self.objects[module] not in self.kernels:
            return 500
        self._make(result, self.objects[module])
        return 0

    # launches

    def _launch(self, function: int, grid: tuple[int, ...], threads: tuple[int, ...], parameters: int) -> Callable[[], None]:
        assert all(grid), "the driver refuses empty grids"
        words = []
        while address := at(parameters + 8 * len(words), ctypes.c_uint64).value:
            words.append(at(address, ctypes.c_uint64).value)
        code, context = self.objects[function], self.context

        def run() -> None:
            self.launches.append((code, words, tuple(grid), tuple(threads)))
            grid_address = words[-1]
            if grid_address and not at(grid_address, ctypes.c_uint32).value:
                return
            try:
                self.kernels[code](words, tuple(grid))
            except Fault:
                context.status = ILLEGAL_ADDRESS

        return run

    def do_cuLaunchKernel(self, function: int, *args: Any) -> int:
        *sizes, shared, stream, parameters, extra = args
        assert not shared and not extra and self.objects[stream] == "stream"
        self._enqueue(self._launch(function, tuple(sizes[:3]), tuple(sizes[3:]), parameters), stream)
        return 0

    def do_cuLaunchKernelEx(self, configuration: int, function: int, parameters: int, extra: Any) -> None:
        launch = LaunchConfiguration.from_address(configuration)
        assert self.objects[launch.stream] == "stream" and not (extra or launch.attributes or launch.attribute_count)
        self._enqueue(self._launch(function, tuple(launch.grid), tuple(launch.threads), parameters), launch.stream)

    def do_cuGraphCreate(self, result: int, flags: int) -> None:
        self._make(result, [])

    def do_cuGraphAddKernelNode_v2(self, result: int, graph: int, before: int | None, count: int, parameters: int) -> None:
        node = KernelNodeParameters.from_address(parameters)
        predecessors = {at(before + 8 * i, ctypes.c_uint64).value for i in range(count)} if before else set()
        run = self._launch(node.function, tuple(node.grid), tuple(node.threads), node.parameters)
        self._make(result, run)
        handle = at(result, ctypes.c_void_p).value
        assert predecessors <= {other for other, *_ in self.objects[graph]}
        self.objects[graph].append((handle, predecessors, run))

    def do_cuGraphConditionalHandleCreate(self, result: int, graph: int, context: int, default: int, flags: int) -> None:
        assert context == self.stack[-1] and not flags
        handle = at(result, ctypes.c_uint64).value = next(self._handles)
        self.conditions[handle] = default

    def do_cuGraphAddNode(self, result: int, graph: int, before: int | None, count: int, parameters: int) -> None:
        node = ConditionalNodeParameters.from_address(parameters)
        assert (node.kind, node.condition, node.graphs, node.context) == (13, 1, 1, self.stack[-1])
        self._bodies.append((ctypes.c_void_p * 1)())
        node.bodies = self._bodies[-1]
        self._make(ctypes.addressof(self._bodies[-1]), [])
        handle, body = node.handle, self.objects[self._bodies[-1][0]]

        def run() -> None:
            while self.conditions[handle]:
                self._run_nodes(body)

        self._make(result, run)
        predecessors = {at(before + 8 * i, ctypes.c_uint64).value for i in range(count)} if before else set()
        assert predecessors <= {other for other, *_ in self.objects[graph]}
        self.objects[graph].append((at(result, ctypes.c_void_p).value, predecessors, run))

    def set_condition(self, words: list[int], grid: tuple[int, int, int]) -> None:
        """Do what the kernel does that sets the condition of a loop."""
        flag, handle, changing, _ = words
        self.conditions[handle] = at(flag, ctypes.c_uint32).value != 0
        at(changing, ctypes.c_uint64).value += 1

    def do_cuGraphKernelNodeSetAttribute(self, node: int, attribute: int, value: int) -> None:
        assert attribute == 8, "the priority"
        self.priorities[node] = at(value, ctypes.c_int).value

    def do_cuGraphInstantiateWithFlags(self, result: int, graph: int, flags: int) -> None:
        self._make(result, ("executable", list(self.objects[graph])))

    def do_cuGraphDestroy(self, graph: int) -> None:
        del self.objects[graph]

    def do_cuGraphExecDestroy(self, executable: int) -> None:
        del self.objects[executable]

    def do_cuGraphUpload(self, executable: int, stream: int) -> None:
        assert self.objects[executable][0] == "executable"

    def do_cuGraphExecKernelNodeSetParams_v2(self, executable: int, handle: int, parameters: int) -> None:
        node = KernelNodeParameters.from_address(parameters)
        run = self._launch(node.function, tuple(node.grid), tuple(node.threads), node.parameters)
        nodes = self.objects[executable][1]
        (number,) = [number for number, (other, *_) in enumerate(nodes) if other == handle]
        nodes[number] = (*nodes[number][:2], run)

    def do_cuGraphLaunch(self, executable: int, stream: int) -> None:
        nodes = list(self.objects[executable][1])  # changes concern later launches
        self._enqueue(lambda: self._run_nodes(nodes), stream)

    def _run_nodes(self, nodes: list[Any]) -> None:
        """Run nodes in the order that is farthest from theirs."""
        waiting, done = list(nodes), set()
        while waiting:
            node = next(node for node in reversed(waiting) if node[1] <= done)
            waiting.remove(node)
            done.add(node[0])
            node[2]()

    def graphs(self) -> list[list[Any]]:
        """Return the nodes of the executable graphs that are not destroyed."""
        return [value[1] for value in self.objects.values() if isinstance(value, tuple) and value[0] == "executable"]


@contextlib.contextmanager
def replaced(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """Replace the driver by a stand-in of one GPU, and check at the end that it was used well.

    No processes are started that compile for it.
    """
    fake = FakeCuda()
    monkeypatch.setattr(Compiler, "prepare", lambda compiler: None)
    monkeypatch.setattr(library, "open_library", lambda: fake)
    library._functions.cache_clear()
    yield fake
    library._functions.cache_clear()
    assert not fake.broken, fake.broken
    assert not fake.stack, "a context was left on the thread's stack"
