"""NVIDIA's driver behind the interface `gpu.driver`, and the GPUs that it lists.

All commands go to one stream at once, which executes them in order. Submitting a batch only records an event behind them, by which its end
is known.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.caches import Finalized, WeakIdentityDict
from volta_fn.errors import DeviceError, OutOfMemoryError
from volta_fn.settings import value_of
from volta_fn.targets.gpu.driver import (
    BoundDispatch,
    BoundRange,
    Description,
    DriverStep,
    Errors,
    Readbacks,
    Repeat,
    ReplayPart,
    log,
    with_memory,
)
from volta_fn.targets.gpu.pipelines import NONE
from volta_fn.targets.nvidia.compilation import Compiler, architecture_of, link, missing_compiler
from volta_fn.targets.nvidia.kernel import MAP_BYTES, KernelHeader, TensorMap, header_of
from volta_fn.targets.nvidia.library import NOT_READY, CallErrors, Context, GpuModel, driver_version, functions, gpus
from volta_fn.targets.nvidia.peers import Peers
from volta_fn.targets.nvidia.stream import (
    CONDITION_KERNEL,
    Accesses,
    BindGroup,
    ConditionKernel,
    ExecutableGraph,
    HostReadbacks,
    KernelNode,
    LaunchConfiguration,
    LoadedKernel,
    LoopNode,
    Node,
    Progress,
    accesses_of,
    bind_group,
    dependences,
    flag_of,
    instantiate,
    parameters_of,
    peers_of,
    with_priorities,
)
from volta_fn.targets.nvidia.target import NvidiaTarget
from volta_fn.targets.wgsl.target import LARGEST_BUFFER

# Events: marks in the stream.

_WITHOUT_TIMING = 2


class Events:
    """The events of a kind, which are reused. Methods are called in the context."""

    def __init__(self, errors: CallErrors, flags: int) -> None:
        self._errors, self._flags = errors, flags
        self.free: deque[int] = deque()

    def record(self, stream: int) -> int:
        """Return an event that is recorded behind the commands of a stream."""
        try:
            event = self.free.pop()
        except IndexError:
            result = ctypes.c_void_p()
            self._errors.call("cuEventCreate", ctypes.byref(result), self._flags)
            event = result.value or 0
        self._errors.call("cuEventRecord", event, stream)
        return event


class EventTimestamps:
    """The begin and the end of dispatches: a pair of events around each launch."""

    def __init__(self, driver: NvidiaDriver, events: Events, dropped: Finalized[list[int]]) -> None:
        self._driver, self._events = driver, events
        #: The events of all dispatches: begin, end, begin, end, …
        self._recorded: list[int] = []
        dropped.add(self, self._recorded)

    def play(self, step: BoundDispatch) -> None:
        """Write a dispatch between two timestamps."""
        driver = self._driver
        with driver.context:
            self._recorded.append(self._events.record(driver.stream))
            driver.play((step,))
            self._recorded.append(self._events.record(driver.stream))

    def read(self) -> np.ndarray:
        """Return the begins and ends in ns from the first, of shape (dispatches, 2).

        All of them are done.
        """
        driver, moments, milliseconds = self._driver, [0.0] * bool(self._recorded), ctypes.c_float()
        with driver.context:
            for first, second in pairwise(self._recorded):  # a sum of short times is more exact than a long one
                driver.call_errors.call("cuEventElapsedTime", ctypes.byref(milliseconds), first, second)
                moments.append(moments[-1] + milliseconds.value)
        return (np.array(moments, np.float64) * 1e6).astype(np.int64).reshape(-1, 2)


# The device.


class GraphReplay:
    """A graph of dispatches, launched in the stream."""

    __slots__ = ("__weakref__", "_driver", "_graph", "_peers", "_places")

    def __init__(self, driver: NvidiaDriver, graph: ExecutableGraph, steps: Sequence[DriverStep]) -> None:
        self._driver, self._graph = driver, graph
        #: The groups of processes of its collectives.
        self._peers = peers_of(steps)
        self._places = _places(steps)

    def write(self) -> None:
        """Write the dispatches."""
        driver = self._driver
        for ranks in self._peers:
            driver.peers.launched(ranks)
        with driver.context:
            status = driver.launch_graph(self._graph.handle, driver.stream)
            if status:
                driver.call_errors.check(status, "cuGraphLaunch")
        driver.progress.is_pending = True

    def change(self, changes: Mapping[int, BoundDispatch]) -> bool:
        """Change dispatches, by their numbers; False if some are collectives."""
        driver = self._driver
        if peers_of([*changes.values()]):
            return False
        with driver.context:
            for number, step in changes.items():
                if number in self._places:
                    self._graph.change(driver.call_errors, self._places[number], _kernel_node(step))
        return True


class LaunchReplay:
    """A few dispatches, whose arguments are ready to be passed."""

    __slots__ = ("_arguments", "_driver", "_launches", "_peers", "_steps")

    def __init__(self, driver: NvidiaDriver, steps: Sequence[BoundDispatch]) -> None:
        self._driver, self._steps = driver, [*steps]
        self._prepare()

    def change(self, changes: Mapping[int, BoundDispatch]) -> bool:
        """Change dispatches, by the numbers that they have among all steps."""
        for number, step in changes.items():
            self._steps[number] = step
        self._prepare()
        return True

    def _prepare(self) -> None:
        driver, steps = self._driver, [step for step in _nonempty(self._steps) if isinstance(step, BoundDispatch)]
        self._peers = peers_of(steps)
        self._launches = [
            (LaunchConfiguration(step.workgroups, step.pipeline.threads, step.pipeline.shared, driver.stream), parameters_of(step))
            for step in steps
        ]
        self._arguments = [
            (ctypes.addressof(configuration), step.pipeline.function, parameters.address, None)
            for step, (configuration, parameters) in zip(steps, self._launches, strict=True)
        ]

    def write(self) -> None:
        """Write the dispatches."""
        driver = self._driver
        launch = driver.launch_configured
        for ranks in self._peers:
            driver.peers.launched(ranks)
        with driver.context:
            driver.progress.is_pending = True
            for arguments in self._arguments:
                status = launch(*arguments)
                if status:
                    driver.call_errors.check(status, "cuLaunchKernelEx")


#: The least dispatches that are worth a graph.
_SHORTEST_GRAPH = 3
#: The flag of a stream that does not wait for the default one.
_NON_BLOCKING = 1
#: The iterations that a loop in a graph has at once, and the most blocks of one: repeating a graph of one empty kernel takes 4.4 µs, of
#: four 7 µs.
_SHORT_ITERATIONS, _SHORT_BLOCKS = 4, 1024
#: The first version of CUDA whose graphs have conditional nodes.
_CONDITIONAL_NODES = 12040
#: The attribute of a function that says how much dynamic shared memory launches may ask for.
_MOST_DYNAMIC_MEMORY = 8
#: CUDA's numbers for tensor maps: of dtypes, of the swizzle over rows of 128 bytes, and of reading them into the L2 cache at once.
_MAP_DTYPES = {"int8": 0, "float16": 6, "bfloat16": 9, "float32": 11}
_SWIZZLE_128, _PROMOTE_128 = 3, 2
_MAP_ALIGNMENT = 64


def _nonempty(steps: Sequence[DriverStep]) -> list[DriverStep]:
    """Return the steps but dispatches of no workgroups, which the driver refuses."""
    return [step for step in steps if isinstance(step, Repeat) or 0 not in step.workgroups]


def _places(steps: Sequence[DriverStep]) -> dict[int, int]:
    """Return the numbers that steps have among those that are not empty."""
    numbers = [number for number, step in enumerate(steps) if isinstance(step, Repeat) or 0 not in step.workgroups]
    return {number: place for place, number in enumerate(numbers)}


def _kernel_node(step: BoundDispatch) -> KernelNode:
    kernel = step.pipeline
    return KernelNode(kernel.function, step.workgroups, kernel.threads, kernel.shared, parameters_of(step))


class NvidiaDriver:
    """An open GPU.

    Memory is the address of its first byte. The layout of a kernel that is not WGSL is its header, that of all shaders None.
    """

    def __init__(self, model: GpuModel, description: Description) -> None:
        """Open a GPU in a context of its own. Raises `DeviceError` or `OutOfMemoryError`."""
        loaded = self.functions = functions()
        self.description = description
        self.call_errors = CallErrors(loaded)
        self.errors: Errors = self.call_errors
        linker = f"{driver_version(loaded)} {model.capability}"
        self._compiler = Compiler(architecture_of(model.capability, loaded.version), linker)
        self._compiler.prepare()
        self.context = Context(loaded, model.device, self.call_errors)
        _CONTEXTS.add(self, self.context)
        self.launch_graph, self.launch_configured, self._launch = loaded.cuGraphLaunch, loaded.cuLaunchKernelEx, loaded.cuLaunchKernel
        self.progress = Progress()
        stream = ctypes.c_void_p()
        try:
            with self.context:
                self.call_errors.call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        except BaseException:
            self.context.destroy()
            raise
        self.stream = stream.value or 0
        self._copies = HostReadbacks(loaded, self.call_errors, self.context, self.stream, self.progress)
        self.readbacks: Readbacks = self._copies
        #: The memory that it shares with GPUs of other processes.
        self.peers = Peers(loaded, self.call_errors, self.context, self.stream, model.device)
        self._events = Events(self.call_errors, _WITHOUT_TIMING)
        #: The numbers and events of batches that are not known to be done.
        self._batches: deque[tuple[int, int]] = deque()
        self._polled = threading.Lock()
        #: What is released when a batch is done: its number, a function, and a handle or an address.
        self._retired: deque[tuple[int, Callable[[int], int], int]] = deque()
        #: Data that was written, with the number of its batch: the driver may read page-locked memory later.
        self._sources: deque[tuple[int, np.ndarray]] = deque()
        #: The executable graphs of recordings, and the events of timestamps.
        self._graphs: Finalized[ExecutableGraph] = Finalized()
        self._timing = Events(self.call_errors, 0)
        self._timed: Finalized[list[int]] = Finalized()
        self._loops: ConditionKernel | None = None
        self.release_free_blocks: Callable[[], None] = lambda: None
        _OPEN.set(self, None)

    def target(self, capabilities: TargetCapabilities) -> NvidiaTarget:
        """Return the target of NVIDIA's GPUs."""
        return NvidiaTarget(capabilities, self.peers)

    # memory

    def allocate(self, size: int, *, grids: bool = False) -> int:
        """Return the address of `size` bytes."""
        address = ctypes.c_uint64()
        with self.context:
            self._release_retired()
            self.call_errors.call("cuMemAlloc_v2", ctypes.byref(address), size)
        return address.value

    def free(self, memory: int) -> None:
        """Release memory once no command that was written uses it."""
        self._retire(self.functions.cuMemFree_v2, memory)
        with contextlib.suppress(DeviceError), self.context:  # the memory of a lost device is released with its context
            self._release_retired()

    def _retire(self, release: Callable[[int], int], handle: int) -> None:
        self._retired.append((self.progress.last_use, release, handle))

    def _release_retired(self) -> None:
        """Release what no command uses any more, after graphs that used it.

        The driver's functions would wait for a command, and forever for a kernel that hangs. They wait for later commands, too, such as a
        kernel that waits for one of another GPU, which this thread may be about to launch.
        """
        self._destroy_dropped_graphs()
        retired, done = self._retired, self.progress.done
        while self._sources and self._sources[0][0] <= done:
            self._sources.popleft()
        if not retired or retired[0][0] > done or self.peers.may_wait():
            return
        while retired and retired[0][0] <= done:
            _, release, handle = retired.popleft()
            release(handle)

    def check(self) -> None:
        """Raise `DeviceError` if the device is lost."""
        with self.context:
            status = self.functions.cuStreamQuery(self.stream)
            self.call_errors.check(status if status != NOT_READY else 0, "cuStreamQuery")

    def write(self, memory: int, data: np.ndarray, offset: int) -> None:
        """Copy bytes from the host to memory that no pending command uses."""
        with self.context:
            self.call_errors.call("cuMemcpyHtoDAsync_v2", memory + offset, data.ctypes.data, data.nbytes, self.stream)
        self.progress.is_pending = True  # so that a batch ends after it: until then the driver reads the data and writes the memory
        self._sources.append((self.progress.last_use, data))

    def copy(self, target: int, source: int, offset: int, size: int) -> None:
        """Write a command that copies `size` bytes to the beginning of the target.

        They begin at an offset of the source.
        """
        with self.context:
            self.call_errors.call("cuMemcpyDtoDAsync_v2", target, source + offset, size, self.stream)
        self.progress.is_pending = True

    # shaders

    def compile(
        self, source: str, count: int, written: frozenset[int], checks: int, *, is_checked: bool = False
    ) -> tuple[LoadedKernel, KernelHeader | None]:
        """Return the kernel of a shader, or of LLVM IR with a header, and the header."""
        self.call_errors.check_device()
        header = header_of(source)
        threads, shared = (0, 0) if header is None else (header.threads, header.shared)
        binary = self._compiler.binary(source, self._link, threads=threads, is_checked=is_checked)
        function, library = self._load(binary.code, shared)
        return LoadedKernel(function, library, binary.threads, written, shared), header

    def _link(self, ptx: bytes) -> bytes:
        with self.context:
            return link(self.functions, self.call_errors, ptx)

    def _load(self, code: bytes, shared: int) -> tuple[int, int]:
        """Load machine code; return its function `main` and its library.

        The function may be launched with `shared` bytes of dynamic shared memory. The driver compiles libraries of several threads at the
        same time, modules one after another.
        """
        library, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        loaded = self.functions
        with self.context:
            self.call_errors.call("cuLibraryLoadData", ctypes.byref(library), code, None, None, 0, None, None, 0)
            status = loaded.cuLibraryGetModule(ctypes.byref(module), library)
            status = status or loaded.cuModuleGetFunction(ctypes.byref(function), module, b"main")
            if not status and shared:
                status = loaded.cuFuncSetAttribute(function, _MOST_DYNAMIC_MEMORY, shared)
            if status:
                loaded.cuLibraryUnload(library)
            self.call_errors.check(status, "cuLibraryGetModule, cuModuleGetFunction or cuFuncSetAttribute")
        self.context.add_library(library.value or 0)
        return function.value or 0, library.value or 0

    def release_pipeline(self, pipeline: LoadedKernel) -> None:
        """Release a kernel once no command that was written uses it."""
        self._retire(self.context.unload, pipeline.library)

    def bind(self, layout: KernelHeader | None, ranges: Sequence[BoundRange]) -> BindGroup:
        """Return the bind group of some ranges of blocks."""
        return bind_group(layout, ranges, self._encode, self.peers.table)

    def _encode(self, tensor_map: TensorMap, address: int) -> bytes:
        rank, dims, box = len(tensor_map.dims), tensor_map.dims, tensor_map.box
        room = ctypes.create_string_buffer(2 * _MAP_ALIGNMENT + MAP_BYTES)
        encoded = -(-ctypes.addressof(room) // _MAP_ALIGNMENT) * _MAP_ALIGNMENT
        windows = tensor_map.windows
        steps = (1,) * rank if windows is None else (1, *windows.steps, 1)
        before = (
            encoded,
            _MAP_DTYPES[tensor_map.dtype],
            rank,
            address,
            (ctypes.c_uint64 * rank)(*dims),
            (ctypes.c_uint64 * (rank - 1))(*tensor_map.strides),
        )
        after = (ctypes.c_uint32 * rank)(*steps), 0, _SWIZZLE_128, _PROMOTE_128, 0
        with self.context:
            if windows is None:
                self.call_errors.call("cuTensorMapEncodeTiled", *before, (ctypes.c_uint32 * rank)(*box), *after)
            else:
                corners = [(ctypes.c_int * (rank - 2))(*corner) for corner in (windows.lower, windows.upper)]
                self.call_errors.call("cuTensorMapEncodeIm2col", *before, *corners, *box, *after)
        return ctypes.string_at(encoded, MAP_BYTES)

    def release_group(self, group: BindGroup) -> None:
        """Do nothing: a bind group is memory of Python's."""

    # commands

    def can_repeat(self, sources: Iterable[str]) -> bool:
        """Return whether graphs can repeat dispatches of these shaders.

        Collectives are counted when they are launched, so the host repeats them.
        """
        headers = map(header_of, sources)
        return self.functions.version >= _CONDITIONAL_NODES and not any(header is not None and header.peers for header in headers)

    @property
    def is_pending(self) -> bool:
        """Whether commands were written that are not submitted."""
        return self.progress.is_pending

    def play(self, steps: Sequence[DriverStep]) -> None:
        """Write dispatches."""
        launch, stream = self._launch, self.stream
        for ranks in peers_of(steps):
            self.peers.launched(ranks)
        with self.context:
            self.progress.is_pending = True
            for step in steps:
                if isinstance(step, Repeat):
                    self._graph([step]).write()  # a graph of its own, which is dropped at once, and destroyed after it ran
                    continue
                kernel, grid = step.pipeline, step.workgroups
                if 0 in grid:  # which the driver refuses
                    continue
                parameters = parameters_of(step)
                status = launch(kernel.function, *grid, *kernel.threads, kernel.shared, stream, parameters.address, None)
                if status:
                    self.call_errors.check(status, "cuLaunchKernel")

    def replay_parts(self, steps: Sequence[DriverStep]) -> Sequence[ReplayPart] | None:
        """Return a graph of the dispatches, or their launches if they are few.

        They are launches, too, if there is no memory for a graph. None if it has loops, which cannot be launches.
        """
        dispatches = [step for step in steps if isinstance(step, BoundDispatch)]
        has_loops, graph = len(dispatches) < len(steps), None
        if has_loops or len(_nonempty(dispatches)) >= _SHORTEST_GRAPH:
            with contextlib.suppress(OutOfMemoryError):
                graph = self._graph(steps)
        if has_loops and graph is None:
            return None
        replay = graph or LaunchReplay(self, dispatches)
        return (ReplayPart(len(steps), replay.write, replay.change),)

    def _graph(self, steps: Sequence[DriverStep]) -> GraphReplay:
        """Return a graph of dispatches."""
        some = _nonempty(steps)
        nodes = self._nodes(some)
        edges = dependences([accesses_of(step) for step in some])
        nodes = with_priorities(nodes, edges, [isinstance(step, BoundDispatch) and bool(step.bind_group.peers) for step in some])
        condition = self._condition_kernel() if any(isinstance(node, LoopNode) for node in nodes) else None
        with self.context:
            self._destroy_dropped_graphs()
            instantiation = functools.partial(instantiate, self.functions, self.call_errors, nodes, edges, self.stream, condition)
            graph = with_memory(instantiation, self)
        log.debug("a graph of %d dispatches with %d edges", len(nodes), sum(map(len, edges)))
        replay = GraphReplay(self, graph, steps)
        self._graphs.add(replay, graph)
        return replay

    def _nodes(self, steps: Sequence[DriverStep]) -> tuple[Node, ...]:
        """Return the nodes of dispatches."""
        return tuple([self._loop(step) if isinstance(step, Repeat) else _kernel_node(step) for step in steps])

    def _loop(self, step: Repeat) -> LoopNode:
        """Return the node of a loop, with some iterations at once if they are short.

        Those after the last one do nothing.
        """
        body = _nonempty(step.steps)
        blocks = [math.inf if isinstance(each, Repeat) else math.prod(each.workgroups) for each in body]
        body *= _SHORT_ITERATIONS if sum(blocks) <= _SHORT_BLOCKS else 1
        flag = flag_of(step)
        edges = dependences([*[accesses_of(each) for each in body], Accesses((flag,), ())])
        return LoopNode(flag.start, self._nodes(body), edges)

    def _condition_kernel(self) -> ConditionKernel:
        """Return the kernel by which loops in graphs end."""
        if self._loops is None:
            kernel, _ = self.compile(CONDITION_KERNEL, 0, frozenset(), NONE)
            changing = ctypes.c_void_p()
            with self.context:
                self.call_errors.call("cuMemHostAlloc", ctypes.byref(changing), ctypes.sizeof(ctypes.c_uint64), 0)
            ctypes.memset(changing.value or 0, 0, ctypes.sizeof(ctypes.c_uint64))
            self._loops = ConditionKernel(kernel.function, changing.value or 0, self.context.handle)
        return self._loops

    @property
    def progress_mark(self) -> int:
        """A number that changes while the GPU repeats dispatches."""
        with self._copies.reading:  # another thread may close the device, whose memory of the host ends with it
            if self._loops is None or self.call_errors.device_lost:
                return 0
            return ctypes.c_uint64.from_address(self._loops.changing).value

    def _destroy_dropped_graphs(self) -> None:
        """Destroy the graphs of recordings that were dropped; those under way end first."""
        for graph in self._graphs.drain():
            graph.destroy(self.functions)

    def submit(self, number: int) -> None:
        """Submit the commands written since the last batch as batch `number`."""
        progress = self.progress
        if self._retired or self._sources:
            self.poll()
        with self.context:
            self._release_retired()
            event = self._events.record(self.stream)
        self._batches.append((number, event))
        self._copies.mark_submitted(number)
        progress.submitted, progress.is_pending = number, False

    def poll(self) -> int:
        """Return the number of the last batch that is done."""
        self.peers.check()
        batches, query = self._batches, self.functions.cuEventQuery
        if not batches:
            return self.progress.done
        with self.context:
            while batches:
                try:
                    batch = batches[0]
                except IndexError:  # another thread was faster
                    break
                status = query(batch[1])
                if status == NOT_READY:
                    break
                self.call_errors.check(status, "cuEventQuery")
                with self._polled:
                    if batches and batches[0] is batch:
                        batches.popleft()
                        self._events.free.append(batch[1])
                        self.progress.done = batch[0]
        return self.progress.done

    def timestamps(self) -> EventTimestamps:
        """Return new timestamps."""
        for events in self._timed.drain():
            self._timing.free.extend(events)
        return EventTimestamps(self, self._timing, self._timed)

    # the end

    def release(self) -> None:
        """Release what is released before memory, pipelines and bind groups."""
        with contextlib.suppress(DeviceError):
            self.readbacks.clear()
            with self.context:
                self._destroy_dropped_graphs()

    def destroy(self) -> None:
        """Close the device, and release everything that is left in its context."""
        self.call_errors.device_lost = True
        self.peers.forget()
        with self._copies.reading:
            self.context.destroy()
        for pending in (self._batches, self._retired, self._sources):
            pending.clear()


#: The devices that are open, or lost and not destroyed yet, and the contexts of all.
_OPEN: WeakIdentityDict[NvidiaDriver, None] = WeakIdentityDict()
_CONTEXTS: Finalized[Context] = Finalized()


def destroy_unused() -> None:
    """Destroy the contexts of devices that are lost or collected.

    After a fault the driver may refuse further contexts until that one is gone.
    """
    for driver in _OPEN:
        if driver.errors.device_lost:
            driver.destroy()
    for context in _CONTEXTS.drain():
        context.destroy()


# The GPUs of the driver, and what programs may use of them.

#: Bytes of workgroup memory that a kernel may declare, invocations of a workgroup, in its last dimension, and workgroups along one.
_WORKGROUP_MEMORY, _INVOCATIONS, _DEPTH, _GROUPS = 48 << 10, 1024, 64, 65535
#: Bindings of a shader: their parameters fit in the 4 KiB that all drivers pass.
_BINDINGS = 64
#: Bytes of a binding: its elements are numbered by 32 bits.
_LARGEST_BINDING = (1 << 31) - 4
_SUBGROUP = 32
#: Bytes of the largest access, of which addresses are multiples.
_ALIGNMENT = 16
_FEATURES = ("shader-f16", "shader-f64", "shader-int64", "subgroup", "timestamp-query")


def matrix_units_of(capability: tuple[int, int]) -> str:
    """Return `TargetCapabilities`' name of the matrix units of a compute capability."""
    return "wgmma" if capability == (9, 0) else "mma" if capability >= (8, 0) else ""


def describe(model: GpuModel) -> Description:
    """Return what programs may use of a GPU, by VOLTA_GPU_LIMITS."""
    least = value_of("VOLTA_GPU_LIMITS") == "webgpu"
    capabilities = TargetCapabilities(fp_contract=False, subgroup_least=_SUBGROUP, subgroup_most=_SUBGROUP, adapter=model.name)
    if not least:
        capabilities = capabilities._replace(
            matrix_units=matrix_units_of(model.capability),
            processors=model.processors,
            block_memory=model.block_memory,
            float16=True,
            float64=True,
            int64=True,
            subgroups=True,
            buffers=_BINDINGS,
            binding=_LARGEST_BINDING,
            workgroup_memory=_WORKGROUP_MEMORY,
            invocations=_INVOCATIONS,
            groups=_GROUPS,
            alignment=_ALIGNMENT,
        )
    largest = LARGEST_BUFFER if least else model.memory
    limits = {
        "max-storage-buffers-per-shader-stage": capabilities.buffers,
        "max-storage-buffer-binding-size": capabilities.binding,
        "max-compute-workgroup-storage-size": capabilities.workgroup_memory,
        "max-compute-invocations-per-workgroup": capabilities.invocations,
        "max-compute-workgroup-size-x": capabilities.invocations,
        "max-compute-workgroup-size-y": capabilities.invocations,
        "max-compute-workgroup-size-z": _DEPTH,
        "max-compute-workgroups-per-dimension": capabilities.groups,
        "min-storage-buffer-offset-alignment": capabilities.alignment,
        "max-buffer-size": largest,
    }
    kind = "integrated" if model.integrated else "discrete"
    return Description(model.name, kind, capabilities, largest, () if least else _FEATURES, limits)


class NvidiaAdapter:
    """A GPU that can be opened through NVIDIA's driver."""

    driver = "nvidia"

    def __init__(self, model: GpuModel) -> None:
        self.model = model
        self.name = model.name
        #: Its number among the driver's GPUs: equal ones have equal names.
        self.index = model.ordinal

    def open(self) -> NvidiaDriver:
        """Open the device.

        Raises `DeviceError` if it cannot be opened.
        """
        destroy_unused()
        try:
            return NvidiaDriver(self.model, describe(self.model))
        except OutOfMemoryError as error:
            raise DeviceError(f"the GPU {self.name} cannot be opened: {error.message}") from error

    def again(self) -> NvidiaAdapter:
        """Return itself: a reset leaves the order of GPUs."""
        return self


def adapters() -> list[NvidiaAdapter]:
    """Return the GPUs of NVIDIA's driver, in its order.

    Raises `DeviceError` if there is no driver, no GPU, or no compiler of shaders.
    """
    missing = missing_compiler()
    if missing is not None:
        raise DeviceError(missing)
    return [NvidiaAdapter(model) for model in gpus()]
