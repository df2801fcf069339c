"""A device's stream: launches of kernels, CUDA graphs, and copies to the host."""

from __future__ import annotations

import contextlib
import ctypes
import struct
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn.core.caches import KeyedWeakref
from volta_fn.errors import DeviceError, VoltaError
from volta_fn.targets.gpu.driver import LOST, BoundDispatch, BoundRange, DriverStep, Repeat
from volta_fn.targets.nvidia.kernel import MAP_BYTES, KernelHeader, MapEncoder, TableFinder, parameter_block
from volta_fn.targets.nvidia.library import CallErrors, Context, Functions

# Dispatches.
#
# A graph is launched in the time of one or two kernels, whatever its length, and its kernels start without the host. An edge stands for
# each dependence, so that kernels that do not depend on each other may run at the same time. What a `while` loop repeats is a graph in a
# conditional node, which runs it until a kernel of it says that it was the last time.

# Kernels and the parameters of their launches.

_WORD = struct.Struct("<Q")


class LoadedKernel(NamedTuple):
    """A compiled shader: a function, and the library that has it."""

    function: int
    library: int
    #: Invocations of a workgroup.
    threads: tuple[int, int, int]
    #: The bindings that it writes.
    written_bindings: frozenset[int]
    #: Bytes of dynamic shared memory.
    shared: int = 0


class Parameters:
    """The parameters of a launch, and the array of their addresses.

    The driver copies each to where the kernel has it: tensor maps are aligned there, and the first one need not be at the beginning.
    """

    __slots__ = ("_addresses", "_block", "address")

    def __init__(self, block: bytes, maps: int = 0) -> None:
        """Hold a block of tensor maps, and of words of 64 bits after them."""
        self._block = ctypes.create_string_buffer(block, len(block))
        first, words = ctypes.addressof(self._block), MAP_BYTES * maps
        offsets = [*range(0, words, MAP_BYTES), *range(words, len(block), _WORD.size)]
        self._addresses = (ctypes.c_void_p * (len(offsets) + 1))(*[first + offset for offset in offsets], None)
        #: The address of the array, which ends with null.
        self.address = ctypes.addressof(self._addresses)


class Range(NamedTuple):
    """A range of addresses in one block of memory."""

    #: The address of the block.
    block: int
    start: int
    end: int

    def overlaps(self, other: Range) -> bool:
        """Return True if the ranges, of the same block, have an address in common."""
        return self.start < other.end and other.start < self.end

    def covers(self, other: Range) -> bool:
        """Return True if the range has all addresses of another one of the same block."""
        return self.start <= other.start and other.end <= self.end


class BindGroup(NamedTuple):
    """Ranges of memory as the parameters of a launch."""

    #: The ranges in the order of a shader's bindings.
    ranges: tuple[Range, ...]
    #: The parameters, of which the last one is the address of an indirect grid, here null. The others are the addresses of the ranges and
    #: their bytes for a shader; for other kernels, see `parameter_block`.
    words: bytes
    #: The number of tensor maps among them.
    maps: int
    direct: Parameters
    #: The ranks of the processes whose memory the kernel reaches, which all such kernels use one after another.
    peers: tuple[int, ...] = ()
    #: Whether its blocks wait for each other.
    cooperative: bool = False


#: Bytes of an indirect grid.
_GRID_BYTES = 12


def bind_group(header: KernelHeader | None, ranges: Sequence[BoundRange], encode: MapEncoder, table: TableFinder) -> BindGroup:
    """Return the bind group of some ranges of blocks.

    Args:
        header: the header of a kernel that is not WGSL; None for a shader.
        ranges: a range for each binding.
        encode: encodes a tensor map.
        table: gives the address of the table of a group of processes.
    """
    addresses = [block.handle + offset for block, offset, _ in ranges]
    spans = tuple([Range(block.handle, block.handle + offset, block.handle + offset + size) for block, offset, size in ranges])
    if header is None:
        words = struct.pack(f"<{2 * len(ranges) + 1}Q", *addresses, *[size for _, _, size in ranges], 0)
        return BindGroup(spans, words, 0, Parameters(words))
    words, maps = parameter_block(header, addresses, encode, table), len(header.maps)
    return BindGroup(spans, words, maps, Parameters(words, maps), header.peers, header.cooperative)


def parameters_of(step: BoundDispatch) -> Parameters:
    """Return the parameters of a dispatch, with its grid if that is indirect."""
    group: BindGroup = step.bind_group
    if step.grid_buffer is None:
        return group.direct
    return Parameters(group.words[: -_WORD.size] + _WORD.pack(step.grid_buffer + step.grid_offset), group.maps)


def peers_of(steps: Sequence[DriverStep]) -> list[tuple[int, ...]]:
    """Return the groups of processes of the collectives among dispatches.

    None of them is repeated.
    """
    return [step.bind_group.peers for step in steps if isinstance(step, BoundDispatch) and step.bind_group.peers]


class LaunchConfiguration(ctypes.Structure):
    """CUlaunchConfig: the grid of a launch, its workgroups, and its stream."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


# Find the dependences among accesses to memory.


class Accesses(NamedTuple):
    """The ranges that a dispatch reads only, and those that it writes and may read."""

    reads: tuple[Range, ...]
    writes: tuple[Range, ...]


def flag_of(step: Repeat) -> Range:
    """Return the memory that says whether dispatches are repeated."""
    block, offset, size = step.flag
    return Range(block.handle, block.handle + offset, block.handle + offset + size)


def accesses_of(step: DriverStep) -> Accesses:
    """Return the memory that a dispatch, or all that are repeated, read and write."""
    if isinstance(step, Repeat):
        flag, inner = flag_of(step), [accesses_of(each) for each in step.steps]
        read, written = [span for each in inner for span in each.reads], [span for each in inner for span in each.writes]
        return Accesses(tuple(dict.fromkeys([flag, *read])), tuple(dict.fromkeys(written)))
    written = step.pipeline.written_bindings
    spans: tuple[Range, ...] = step.bind_group.ranges
    reads = [span for number, span in enumerate(spans) if number not in written]
    if step.grid_buffer is not None:
        start = step.grid_buffer + step.grid_offset
        reads.append(Range(step.grid_buffer, start, start + _GRID_BYTES))
    writes = [span for number, span in enumerate(spans) if number in written]
    if step.bind_group.peers:
        writes.append(_SHARED_BY_PROCESSES)
    if step.bind_group.cooperative:
        writes.append(_MULTIPROCESSORS)
    return Accesses(tuple(reads), tuple(writes))


#: Memory of all processes, as a range of a block: kernels that reach it run one after another, in the same order in all processes.
_SHARED_BY_PROCESSES = Range(0, 0, 1)

#: The multiprocessors, as another one: of two kernels whose blocks wait for each other, some blocks of each might wait for room.
_MULTIPROCESSORS = Range(0, 1, 2)

#: Comparisons of ranges for a recording and for each of its dispatches, beyond which dependences are not cheap to find.
_COMPARISONS, _COMPARISONS_EACH = 4096, 256


class _History:
    """The accesses to a block on which later ones may depend."""

    def __init__(self) -> None:
        #: The dispatches that read a range, and the last one that wrote it.
        self.reads: dict[Range, list[int]] = {}
        self.writes: dict[Range, int] = {}

    def read(self, span: Range, number: int) -> set[int]:
        """Add a read; return the dispatches on which it depends."""
        self.reads.setdefault(span, []).append(number)
        return {writer for written, writer in self.writes.items() if span.overlaps(written)}

    def write(self, span: Range, number: int) -> set[int]:
        """Add a write; return the dispatches on which it depends."""
        predecessors = {writer for written, writer in self.writes.items() if span.overlaps(written)}
        for read, readers in self.reads.items():
            if span.overlaps(read):
                predecessors.update(readers)
        # What would depend on an access that is covered depends on this one, which comes after it.
        self.reads = {read: readers for read, readers in self.reads.items() if not span.covers(read)}
        self.writes = {written: writer for written, writer in self.writes.items() if not span.covers(written)}
        self.writes[span] = number
        return predecessors


def dependences(dispatches: Sequence[Accesses]) -> list[list[int]]:
    """Return for each dispatch the earlier ones that it must wait for.

    Those that others in its list wait for are left out. If too many ranges would have to be compared, each dispatch waits for the one
    before.
    """
    histories: dict[int, _History] = {}
    edges: list[list[int]] = []
    #: The dispatches that a dispatch waits for, directly or not, as bits.
    ancestors: list[int] = []
    remaining = _COMPARISONS + _COMPARISONS_EACH * len(dispatches)
    for number, accesses in enumerate(dispatches):
        predecessors: set[int] = set()
        for span in accesses.reads:
            history = histories.setdefault(span.block, _History())
            remaining -= len(history.writes)
            predecessors |= history.read(span, number)
        for span in accesses.writes:
            history = histories.setdefault(span.block, _History())
            remaining -= len(history.reads) + len(history.writes)
            predecessors |= history.write(span, number)
        if remaining < 0:
            return chain(len(dispatches))
        predecessors.discard(number)
        direct, reached = [], 0
        for predecessor in sorted(predecessors, reverse=True):
            if not reached >> predecessor & 1:
                direct.append(predecessor)
                reached |= ancestors[predecessor] | 1 << predecessor
        edges.append(direct)
        ancestors.append(reached)
    return edges


def chain(count: int) -> list[list[int]]:
    """Return the edges of dispatches each of which waits for the one before."""
    return [[number - 1] if number else [] for number in range(count)]


# Build graphs.


class KernelNodeParameters(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


class ConditionalNodeParameters(ctypes.Structure):
    """CUgraphNodeParams of a conditional node."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("reserved", ctypes.c_int * 3),
        ("handle", ctypes.c_uint64),
        ("condition", ctypes.c_int),
        ("graphs", ctypes.c_uint),
        ("bodies", ctypes.POINTER(ctypes.c_void_p)),
        ("context", ctypes.c_void_p),
        ("rest", ctypes.c_int64 * 26),
    )


#: The attribute of a kernel's priority, the flag of graphs whose nodes have priorities, and the bytes of an attribute.
_PRIORITY, _USE_PRIORITIES, _ATTRIBUTE_BYTES = 8, 8, 64
#: CUDA's numbers of conditional nodes, and of those that repeat a graph.
_CONDITIONAL, _WHILE = 13, 1


class KernelNode(NamedTuple):
    """A kernel of a graph."""

    function: int
    grid: tuple[int, int, int]
    threads: tuple[int, int, int]
    shared_bytes: int
    #: The parameters, whose addresses the driver reads.
    parameters: Parameters
    #: The lower it is, the earlier its blocks start when several kernels are ready.
    priority: int = 0

    def parameters_of_node(self) -> KernelNodeParameters:
        """Return what the driver is told of the node."""
        return KernelNodeParameters(self.function, self.grid, self.threads, self.shared_bytes, self.parameters.address, None, None, None)


class LoopNode(NamedTuple):
    """A graph that is repeated while a word in memory is not zero."""

    #: The address of the word.
    flag: int
    nodes: tuple[Node, ...]
    #: For each node, and for the one that reads the word, the earlier ones that it waits for.
    edges: Sequence[Sequence[int]]


Node = KernelNode | LoopNode


#: A priority above that of other nodes.
_HIGH = -1


def with_priorities(nodes: Sequence[Node], edges: Sequence[Sequence[int]], collectives: Sequence[bool]) -> tuple[Node, ...]:
    """Give priority to collectives and to the kernels that they wait for.

    What no collective waits for is then left to run beside them.
    """
    leads = [*collectives]
    for number in reversed(range(len(nodes))):
        for predecessor in edges[number]:
            leads[predecessor] |= leads[number]
    if all(leads):
        return tuple(nodes)
    priorities = [_HIGH if each else 0 for each in leads]
    pairs = zip(nodes, priorities, strict=True)
    return tuple([node._replace(priority=priority) if isinstance(node, KernelNode) else node for node, priority in pairs])


class ConditionKernel(NamedTuple):
    """The kernel that sets the condition of a conditional node.

    It holds if a word in memory is not zero. The parameters are the address of the word, the handle of the condition, the address of a
    number on the host, and a null grid.
    """

    function: int
    #: The address of the number, which changes each time.
    changing: int
    #: The context of conditional nodes.
    context: int


#: The code of that kernel. The driver has the function that it calls.
CONDITION_KERNEL = f"""{KernelHeader(1, 0)}target triple = "nvptx64-nvidia-cuda"
declare void @cudaGraphSetConditional(i64, i32)
declare i64 @llvm.nvvm.read.ptx.sreg.globaltimer()
define ptx_kernel void @main(ptr addrspace(1) %flag, i64 %handle, ptr addrspace(1) %changing, ptr addrspace(1) %grid) {{
  %word = load i32, ptr addrspace(1) %flag
  %is_set = icmp ne i32 %word, 0
  %condition = zext i1 %is_set to i32
  call void @cudaGraphSetConditional(i64 %handle, i32 %condition)
  %time = call i64 @llvm.nvvm.read.ptx.sreg.globaltimer()
  store volatile i64 %time, ptr addrspace(1) %changing, align 8
  ret void
}}
"""


class _Builder:
    """Adds nodes to graphs."""

    def __init__(self, errors: CallErrors, condition: ConditionKernel | None) -> None:
        self._errors, self._condition = errors, condition

    def add(self, graph: int, nodes: Sequence[Node], edges: Sequence[Sequence[int]]) -> list[int]:
        """Add nodes, each with the earlier ones that it waits for; return their handles."""
        handles: list[int] = []
        for node, predecessors in zip(nodes, edges, strict=True):
            before = [handles[number] for number in predecessors]
            handles.append(self._kernel(graph, node, before) if isinstance(node, KernelNode) else self._loop(graph, node, before))
        return handles

    def _kernel(self, graph: int, kernel: KernelNode, before: Sequence[int]) -> int:
        node, result = kernel.parameters_of_node(), ctypes.c_void_p()
        array = (ctypes.c_void_p * len(before))(*before) if before else None
        self._errors.call("cuGraphAddKernelNode_v2", ctypes.byref(result), graph, array, len(before), ctypes.byref(node))
        if kernel.priority:
            attribute = ctypes.create_string_buffer(struct.pack("<i", kernel.priority), _ATTRIBUTE_BYTES)
            self._errors.call("cuGraphKernelNodeSetAttribute", result, _PRIORITY, ctypes.addressof(attribute))
        return result.value or 0

    def _loop(self, graph: int, loop: LoopNode, before: Sequence[int]) -> int:
        """Add a conditional node.

        Its condition is set by a kernel before it, and by one at the end of its graph.
        """
        assert self._condition is not None
        handle, result = ctypes.c_uint64(), ctypes.c_void_p()
        self._errors.call("cuGraphConditionalHandleCreate", ctypes.byref(handle), graph, self._condition.context, 0, 0)
        parameters = Parameters(struct.pack("<4Q", loop.flag, handle.value, self._condition.changing, 0))
        setter = KernelNode(self._condition.function, (1, 1, 1), (1, 1, 1), 0, parameters)
        first = (ctypes.c_void_p * 1)(self._kernel(graph, setter, before))
        context = self._condition.context
        node = ConditionalNodeParameters(kind=_CONDITIONAL, handle=handle.value, condition=_WHILE, graphs=1, context=context)
        self._errors.call("cuGraphAddNode", ctypes.byref(result), graph, first, 1, ctypes.byref(node))
        body = node.bodies[0]
        self.add(body, (*loop.nodes, setter), loop.edges)
        return result.value or 0


class ExecutableGraph(NamedTuple):
    """The handles of a graph that can be launched, and of its source."""

    handle: int
    source: int
    #: The nodes of the source, by which those of the graph are changed.
    nodes: Sequence[int]

    def change(self, errors: CallErrors, number: int, kernel: KernelNode) -> None:
        """Change a node for launches from now on, in the current context."""
        node = kernel.parameters_of_node()
        errors.call("cuGraphExecKernelNodeSetParams_v2", self.handle, self.nodes[number], ctypes.byref(node))

    def destroy(self, loaded: Functions) -> None:
        """Destroy both graphs; launches that are under way end first."""
        loaded.cuGraphExecDestroy(self.handle)
        loaded.cuGraphDestroy(self.source)


def instantiate(
    loaded: Functions,
    errors: CallErrors,
    nodes: Sequence[Node],
    edges: Sequence[Sequence[int]],
    stream: int,
    condition: ConditionKernel | None = None,
) -> ExecutableGraph:
    """Return an executable graph, which the caller destroys.

    It is uploaded in a stream, whose context is current. Loops need a `condition`. Raises `DeviceError` or `OutOfMemoryError`.
    """
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    errors.call("cuGraphCreate", ctypes.byref(graph), 0)
    source = graph.value or 0
    try:
        handles = _Builder(errors, condition).add(source, nodes, edges)
        flags = _USE_PRIORITIES if any(isinstance(node, KernelNode) and node.priority for node in nodes) else 0
        errors.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, flags)
    except VoltaError:
        loaded.cuGraphDestroy(graph)
        raise
    result = ExecutableGraph(executable.value or 0, source, handles)
    try:
        errors.call("cuGraphUpload", result.handle, stream)
    except VoltaError:
        result.destroy(loaded)
        raise
    return result


# Copies to the host.
#
# A copy goes to memory of the host that the GPU reaches, and arrives when its batch is done. That memory is reused: allocating it takes
# long.


class Progress:
    """The batches that were submitted and that are done, by their numbers."""

    __slots__ = ("done", "is_pending", "submitted")

    def __init__(self) -> None:
        self.submitted = self.done = 0
        #: Whether commands were written that are not submitted.
        self.is_pending = False

    @property
    def last_use(self) -> int:
        """The number of the batch after which no command that was written runs."""
        return self.submitted + self.is_pending


# The host's memory, and the ends of readbacks.

#: The most bytes that are kept for reuse.
_MOST_RETAINED = 1 << 28
#: Capacities are powers of two from the least on, and multiples of the other one beyond that.
_LEAST_CAPACITY, _LARGE_CAPACITY = 1 << 8, 1 << 24


def _capacity(size: int) -> int:
    if size > _LARGE_CAPACITY:
        return -(-size // _LARGE_CAPACITY) * _LARGE_CAPACITY
    return 1 << (max(size, _LEAST_CAPACITY) - 1).bit_length()


class _HostCopy:
    """The host's memory of a readback, which outlives it."""

    __slots__ = ("address", "batch", "capacity", "end", "size")

    def __init__(self, address: int, capacity: int, size: int) -> None:
        #: The address of the host's memory; 0 once it is kept for others.
        self.address, self.capacity, self.size = address, capacity, size
        #: The number of the batch in which it was requested; 0 before that is submitted.
        self.batch = 0
        #: The weak reference that reports the end of the readback.
        self.end: KeyedWeakref[HostReadback] | None = None


class HostReadback:
    """A pending copy to the host."""

    __slots__ = ("__weakref__", "copy")

    def __init__(self, copy: _HostCopy, dropped: deque[KeyedWeakref[HostReadback]]) -> None:
        self.copy = copy
        copy.end = KeyedWeakref(self, dropped.append)
        copy.end.key = copy

    @property
    def submitted(self) -> bool:
        """Whether the batch in which it was requested is submitted."""
        return self.copy.batch > 0


class HostReadbacks:
    """The copies from a device to the host."""

    def __init__(self, loaded: Functions, errors: CallErrors, context: Context, stream: int, progress: Progress) -> None:
        self._functions, self._errors, self._context, self._stream, self._progress = loaded, errors, context, stream, progress
        #: Copies whose memory is in use: a reference from here keeps the weak references to their readbacks.
        self._used: set[_HostCopy] = set()
        self._requested: list[_HostCopy] = []
        #: The ends of readbacks, and copies of dropped readbacks that may not have arrived.
        self._dropped: deque[KeyedWeakref[HostReadback]] = deque()
        self._orphans: list[_HostCopy] = []
        self._free: dict[int, list[int]] = {}
        self._retained = 0
        #: Held while the host's memory is read, so that the device is not closed meanwhile.
        self.reading = threading.Lock()

    def request(self, memory: int, size: int, offset: int = 0) -> HostReadback:
        """Request a copy of `size` bytes of memory, as of the commands written so far."""
        self._collect()
        capacity = _capacity(size)
        free = self._free.get(capacity)
        with self._context:
            if free:
                address = free.pop()
                self._retained -= capacity
            else:
                result = ctypes.c_void_p()
                self._errors.call("cuMemHostAlloc", ctypes.byref(result), capacity, 0)
                address = result.value or 0
            copy = _HostCopy(address, capacity, size)
            try:
                if size:
                    self._errors.call("cuMemcpyDtoHAsync_v2", address, memory + offset, size, self._stream)
            except VoltaError:
                self._recycle(copy)
                raise
        self._progress.is_pending = True
        self._used.add(copy)
        self._requested.append(copy)
        return HostReadback(copy, self._dropped)

    def mark_submitted(self, batch: int) -> None:
        """Note the number of the batch that is submitted with the copies requested so far."""
        for copy in self._requested:
            copy.batch = batch
        self._requested.clear()

    def _has_arrived(self, copy: _HostCopy) -> bool:
        return 0 < copy.batch <= self._progress.done

    def _collect(self) -> None:
        """Reuse the memory of dropped readbacks that have arrived."""
        while self._dropped:
            self._orphans.append(self._dropped.popleft().key)
        pending = []
        for copy in self._orphans:
            if self._has_arrived(copy):
                self._recycle(copy)
            elif copy.address:
                pending.append(copy)
        self._orphans = pending

    def arrived(self, readback: Any) -> bool:
        """Return whether a readback that was submitted has arrived, after `poll`."""
        return self._has_arrived(readback.copy)

    def take(self, readback: Any) -> np.ndarray:
        """Return the bytes of a readback that has arrived, once.

        Raises `DeviceError` if the device is lost.
        """
        copy: _HostCopy = readback.copy
        result = np.empty(copy.size, np.uint8)
        with self.reading:
            self._errors.check_device()
            if not self._context.is_open:
                raise DeviceError(LOST)
            ctypes.memmove(result.ctypes.data, copy.address, copy.size)
        return result

    def keep(self, readback: Any) -> None:
        """Keep the host's memory of a readback that was taken, for later ones."""
        self._recycle(readback.copy)

    def _recycle(self, copy: _HostCopy) -> None:
        self._used.discard(copy)
        address, copy.address = copy.address, 0
        if not address:
            return
        if self._retained + copy.capacity <= _MOST_RETAINED:
            self._free.setdefault(copy.capacity, []).append(address)
            self._retained += copy.capacity
        else:
            self._release(address)

    def _release(self, address: int) -> None:
        with contextlib.suppress(DeviceError), self._context:  # the memory of a lost device is released with its context
            self._functions.cuMemFreeHost(address)

    def clear(self) -> None:
        """Release the memory that is kept."""
        self._collect()
        for address in [address for free in self._free.values() for address in free]:
            self._release(address)
        self._free.clear()
        self._retained = 0
