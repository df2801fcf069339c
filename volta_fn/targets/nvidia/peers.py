"""Memory that the GPUs of a machine share, and exchanges of words through it.

Each GPU is that of a process, or one of several of a process. Every member of a group allocates a region of the same layout, and opens
those of the others by handles (`cuIpc…`), which the members exchange by their usual collectives; those of its own process it reaches by
their addresses. A region begins with a table, which tells a kernel where the other regions are. "Process" here also means a GPU of a
process that has several.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import math
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from volta_fn.core.devices import distribution
from volta_fn.errors import DeviceError, DistributedError, VoltaError
from volta_fn.runtime.llvm.text import Value, i64
from volta_fn.settings import value_of
from volta_fn.targets.gpu.driver import log
from volta_fn.targets.nvidia.kernel import GLOBAL, KernelFunction, i32
from volta_fn.targets.nvidia.library import NOT_READY, CallErrors, Context, Functions, IpcHandle

# The layout of a region.
#
# A kernel's block talks to the blocks of the same number in the other processes only. Each block has memory of its own, in several areas,
# which its exchanges take in turns: while one process leaves words of the next exchange, another may still read those of the last.

#: The most blocks of a kernel, and the most processes of a group.
BLOCKS, MOST_PROCESSES = 128, 32
#: Areas, and bytes of a block's slots in an area: the slots of all processes, for each of two kinds of words.
AREAS, KINDS, CAPACITY = 4, 2, 1 << 17

#: Offsets in a region. In the table: this process's position in its group, nanoseconds that a kernel waits, the address of the host's
#: words, a word that tells kernels of a failure, the number of kernels that are done, and the addresses of all regions.
POSITION, LIMIT, REPORT, FAILED, DONE, REGIONS = 0, 8, 16, 24, 32, 64
#: How many exchanges each block has done: 32-bit numbers.
COUNTERS = 1 << 12
#: The last exchange of each block that each process has announced, for each kind: 32-bit numbers.
FLAGS, FLAGS_BYTES = 1 << 13, 4 * BLOCKS * MOST_PROCESSES
SLOTS = 1 << 16
SIZE = SLOTS + AREAS * BLOCKS * KINDS * CAPACITY

assert FLAGS + KINDS * FLAGS_BYTES <= SLOTS
assert REGIONS + 8 * MOST_PROCESSES <= COUNTERS


#: Offsets in the host's words. Processes are numbered by their positions, from 1: that for which a kernel has waited too long, and that for
#: which one waits, with the kernel's number.
REPORTED_FAILURE, REPORTED_PEER, REPORTED_NUMBER = 0, 4, 8

# What processes tell each other: handles of their regions, and who they are.

#: Bytes of an identity: of a machine, and of a GPU.
_IDENTITY = 16
#: Whether a region could be allocated, its handle, its address and context in the process, the machine, and the GPU.
_PLACE = 2 * 8
_OFFER = 1 + ctypes.sizeof(IpcHandle) + _PLACE + 2 * _IDENTITY


def _machine() -> bytes:
    """Return an identity of this machine since it was started."""
    text = socket.gethostname()
    with contextlib.suppress(OSError):
        text += Path("/proc/sys/kernel/random/boot_id").read_text()
    return hashlib.sha256(text.encode()).digest()[:_IDENTITY]


class Region:
    """The region of this process in a group, and the host's words for its failures."""

    def __init__(self, address: int, words: Any, world: distribution.World) -> None:
        self.address, self.words, self.world = address, words, world


class Peers:
    """The regions that an open GPU shares with those of other processes.

    Methods that talk to other processes are called by all processes of a group, in the same order.
    """

    def __init__(self, loaded: Functions, errors: CallErrors, context: Context, stream: int, device: int) -> None:
        self._functions, self._errors, self._context, self._stream, self._device = loaded, errors, context, stream, device
        #: By the ranks of a group; None for one whose processes do not all reach each other's memory.
        self._regions: dict[tuple[int, ...], Region | None] = {}
        #: The addresses of opened regions of other processes.
        self._handles: set[int] = set()
        #: A stream beside that of kernels, through which they are interrupted.
        self._beside = 0
        #: By the ranks of a group, how many of its kernels were launched since it began anew.
        self._launches: Counter[tuple[int, ...]] = Counter()
        #: The kernels that have waited for long when that was last asked, by their groups, with their numbers and since when.
        self._waiting: dict[tuple[int, ...], tuple[int, float]] = {}
        #: Held while another thread reads the host's words.
        self._reading = threading.Lock()

    def connect(self, ranks: tuple[int, ...]) -> bool:
        """Return whether the processes of a group share memory.

        They begin to do so on first use. Those that compile the last program for another driver do not.
        """
        drivers = distribution.current().drivers
        if len(ranks) > MOST_PROCESSES or any(drivers[rank] != "nvidia" for rank in ranks):
            return False
        if ranks not in self._regions:
            self._regions[ranks] = self._shared(ranks)
        return self._regions[ranks] is not None

    def table(self, ranks: tuple[int, ...]) -> int:
        """Return the address of this process's table in a connected group."""
        region = self._regions.get(ranks)
        if region is None:
            raise DeviceError(f"the GPUs of the processes {list(ranks)} share no memory here")
        return region.address

    def launched(self, ranks: tuple[int, ...]) -> None:
        """Count a kernel of a group that is about to run."""
        self._launches[ranks] += 1
        distribution.current().launched(ranks)

    def launches(self) -> dict[tuple[int, ...], int]:
        """Return how many kernels of each group were launched."""
        return dict(self._launches)

    def has_settled(self, launches: Mapping[tuple[int, ...], int]) -> bool:
        """Return whether the GPU is idle, or waits in a kernel after these.

        A kernel tells that it waits when it has for some time. Any thread may call it.
        """
        with self._context:
            if self._functions.cuStreamQuery(self._stream) != NOT_READY:
                return True
        with self._reading:
            waiting = [
                region.words[REPORTED_NUMBER // 4] - launches.get(ranks, 0)
                for ranks, region in self._connected()
                if region.words[REPORTED_PEER // 4]
            ]
        return any(0 < later & 0xFFFFFFFF < 1 << 31 for later in waiting)  # numbers wrap around

    def may_wait(self) -> bool:
        """Return whether a kernel may wait for another process now."""
        return bool(self._launches) and self._functions.cuStreamQuery(self._stream) == NOT_READY

    def _connected(self) -> list[tuple[tuple[int, ...], Region]]:
        return [(ranks, region) for ranks, region in self._regions.copy().items() if region is not None]

    def check(self) -> None:
        """Raise `DistributedError` if a kernel waits in vain.

        It has waited too long for another process, or waits for a device that has failed.
        """
        with self._reading:
            reports = [(ranks, region.world, *region.words[:2]) for ranks, region in self._connected()]
        for ranks, world, report, awaited in reports:
            world.check_members(ranks, ranks[awaited - 1] if awaited else None)
            if report:
                late = ranks[report - 1]
                group = f"processes {list(ranks)} on their GPUs" if world.member == "process" else f"GPUs {list(ranks)}"
                raise DistributedError(
                    f"{world.member} {world.rank} has waited longer than {world.limit:g} s in a collective of the {group}: {world.member} "
                    f"{late} has not come"
                )

    def check_device(self) -> None:
        """Raise `DeviceError` if the GPU has failed."""
        with self._context:
            status = self._functions.cuStreamQuery(self._stream)
        if status != NOT_READY:
            self._errors.check(status, "cuStreamQuery")

    def interrupt(self) -> None:
        """End all kernels that wait for other processes; their results are undefined.

        Any thread may call it.
        """
        failed = np.ones(1, np.uint32)
        with contextlib.suppress(DeviceError), self._context:
            if not self._beside:
                stream = ctypes.c_void_p()
                self._errors.call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
                self._beside = stream.value or 0
            for _, region in self._connected():
                self._write(region.address + FAILED, failed, self._beside)
            self._wait(self._beside)

    def drain(self) -> None:
        """Wait for the GPU, whose kernels were interrupted."""
        with contextlib.suppress(DeviceError), self._context:
            self._wait(self._stream)

    def reset(self) -> None:
        """Let the next kernels begin anew; no GPU of a group runs one now."""
        with contextlib.suppress(DeviceError), self._context:
            for _, region in self._connected():
                region.words[:] = [0] * len(region.words)
                for begin, end in ((FAILED, REGIONS), (COUNTERS, SLOTS)):
                    self._write(region.address + begin, np.zeros(end - begin, np.uint8), self._stream)
            self._wait(self._stream)
        self._launches.clear()

    def waiting(self) -> list[distribution.DeviceCall]:
        """Return the kernels that wait for other processes, and have for long.

        Any thread may call it.
        """
        before, now = self._waiting, time.monotonic()
        self._waiting = {}
        with self._reading:
            for ranks, region in self._connected():
                if region.words[REPORTED_PEER // 4]:
                    number = region.words[REPORTED_NUMBER // 4]
                    since = before[ranks][1] if ranks in before and before[ranks][0] == number else now
                    self._waiting[ranks] = number, since
        return [distribution.DeviceCall(ranks, number, since) for ranks, (number, since) in self._waiting.items()]

    def forget(self) -> None:
        """Forget all regions, which end with the context."""
        with self._reading:
            self._regions.clear()
        self._beside = 0

    # connecting

    def _shared(self, ranks: tuple[int, ...]) -> Region | None:
        world = distribution.current()
        communicator = world.communicator(ranks)
        is_alone = world.member != "process"  # all members are GPUs of this process
        address, offer = self._offer(is_alone)
        offers = communicator.gather(offer, "the exchange of handles of GPU memory")
        opened = self._open(offers, communicator.index, address, is_alone)
        words = None if not address or opened is None else self._fill(communicator.index, opened, world.limit)
        agreed = communicator.gather(np.array([words is not None], np.uint8), "the agreement on shared GPU memory")
        if agreed.all():
            log.debug("the processes %s share memory of their GPUs", ranks)
            if not self._connected():
                world.watch_device(self)
            return Region(address, words, world)
        log.debug("the GPUs of the processes %s share no memory: collectives go through the host", ranks)
        self._close(address, opened or [])
        return None

    def _offer(self, is_alone: bool) -> tuple[int, np.ndarray]:
        """Allocate a region, unless VOLTA_PEER_MEMORY=0 forbids it.

        Return its address, or 0, and what to tell the others.
        """
        if value_of("VOLTA_PEER_MEMORY") == "0":
            return 0, np.zeros(_OFFER, np.uint8)
        address, handle = ctypes.c_uint64(), IpcHandle()
        identity = ctypes.create_string_buffer(_IDENTITY)
        try:
            with self._context:
                self._errors.call("cuDeviceGetUuid", identity, self._device)
                self._errors.call("cuMemAlloc_v2", ctypes.byref(address), SIZE)
                self._write(address.value, np.zeros(SLOTS, np.uint8), self._stream)
                self._wait(self._stream)
                if not is_alone:
                    self._errors.call("cuIpcGetMemHandle", ctypes.byref(handle), address)
        except VoltaError as error:
            log.debug("GPU memory cannot be shared: %s", error)
            if address.value and not self._errors.device_lost:
                self._close(address.value, [])
            return 0, np.zeros(_OFFER, np.uint8)
        place = np.array([address.value, self._context.handle], np.uint64).tobytes()
        return address.value, np.frombuffer(b"\1" + bytes(handle) + place + _machine() + identity.raw, np.uint8)

    def _open(self, offers: np.ndarray, position: int, address: int, is_alone: bool) -> list[int] | None:
        """Open the others' regions.

        None unless all are there, on GPUs of their own in this machine.
        """
        told = [offer.tobytes() for offer in offers]
        machines, devices = {text[-2 * _IDENTITY : -_IDENTITY] for text in told}, {text[-_IDENTITY:] for text in told}
        if not all(text[0] for text in told) or len(machines) > 1 or len(devices) < len(told):
            return None
        opened: list[int] = []
        for number, text in enumerate(told):
            if number == position:
                opened.append(address)
                continue
            result, handle = ctypes.c_uint64(), IpcHandle.from_buffer_copy(text[1:])
            other, context = np.frombuffer(text[-2 * _IDENTITY - _PLACE : -2 * _IDENTITY], np.uint64).tolist()
            with self._context:
                if is_alone:
                    result.value, status = other, self._functions.cuCtxEnablePeerAccess(context, 0)
                    status = 0 if status == _ALREADY_ENABLED else status
                else:
                    status = self._functions.cuIpcOpenMemHandle_v2(ctypes.byref(result), handle, _LAZY_PEER_ACCESS)
            if status:
                log.debug("memory of another GPU cannot be opened: status %d", status)
                self._close(0, opened)
                return None
            opened.append(result.value)
            if not is_alone:
                self._handles.add(result.value)
        return opened

    def _fill(self, position: int, opened: list[int], limit: float) -> Any:
        """Write the table of a region.

        Return the host's words for failures, or None if that was not possible.
        """
        table = np.zeros(COUNTERS, np.uint8)
        try:
            with self._context:
                host = ctypes.c_void_p()
                self._errors.call("cuMemHostAlloc", ctypes.byref(host), _REPORT_BYTES, _MAPPED)
                words = (ctypes.c_uint32 * 3).from_address(host.value or 0)
                words[:] = [0, 0, 0]
                table[:REGIONS].view(np.uint64)[:3] = position, _nanoseconds(limit), host.value or 0
                table[REGIONS:].view(np.uint64)[: len(opened)] = opened
                self._write(opened[position], table, self._stream)
                self._wait(self._stream)
        except VoltaError as error:
            log.debug("GPU memory cannot be shared: %s", error)
            return None
        return words

    def _write(self, address: int, data: np.ndarray, stream: int) -> None:
        """Copy bytes to the GPU, which `_wait` waits for; called in the context."""
        self._errors.call("cuMemcpyHtoDAsync_v2", address, data.ctypes.data, data.nbytes, stream)

    def _wait(self, stream: int) -> None:
        """Wait for a stream."""
        while (status := self._functions.cuStreamQuery(stream)) == NOT_READY:
            time.sleep(0)
        self._errors.check(status, "cuStreamQuery")

    def _close(self, address: int, opened: list[int]) -> None:
        """Close the regions of other processes, and release this process's."""
        with contextlib.suppress(DeviceError), self._context:
            for other in self._handles.intersection(opened):
                self._functions.cuIpcCloseMemHandle(other)
                self._handles.remove(other)
            if address:
                self._functions.cuMemFree_v2(address)


#: The status of access to another context's memory that was allowed before, and the flag of a stream that waits for no other.
_ALREADY_ENABLED, _NON_BLOCKING = 704, 1
#: The flag by which opened memory can be accessed from this GPU, and those of memory of the host that all contexts reach.
_LAZY_PEER_ACCESS = 1
_MAPPED = 3
_REPORT_BYTES = 4096


def _nanoseconds(seconds: float) -> int:
    """Return seconds as nanoseconds that fit in 62 bits."""
    return int(min(seconds * 1e9, float(1 << 62))) if math.isfinite(seconds) else 1 << 62


# Kernels that exchange words with the same kernel in other processes.
#
# A block works through its share of the words in *exchanges* of as many as its slots have room for. In each it leaves words in slots of the
# other processes' memory (a *post*), announces them by a flag there, and waits for the flags of the others. Words of the next exchange are
# posted before it waits, so that the way is never idle. The flags are stored with release semantics and loaded with acquire semantics, in
# the scope of the system, so that what was left before is there.
#
# An exchange may have a second round, of another kind, for results. Slots are safe to write where they are written: those of an area were
# read in the fourth exchange before, and whoever has announced the third has read them.

#: Bytes of the largest word.
WORD = 16

#: The kinds of words: those that processes leave for others, and results.
POSTS, RESULTS = 0, 1

#: Stores a number once all stores before are there.
RELEASE = "st.release.sys.global.u32 [$0], $1;"

#: Nanoseconds after which a kernel tells the host that it waits.
_LONG = 500_000_000

#: Waits until a number is there. The host is told after a while for whom it waits, and in which kernel, and after too long that it has
#: given up: then later waits end at once.
ACQUIRE = f"""{{
.reg .pred p, long;
.reg .b32 v;
.reg .b64 s, e;
mov.u64 s, %globaltimer;
setp.ne.u64 long, s, s;
WAIT:
ld.acquire.sys.global.u32 v, [$0];
sub.s32 v, v, $1;
setp.ge.s32 p, v, 0;
@p bra DONE;
ld.relaxed.sys.global.u32 v, [$2];
setp.ne.u32 p, v, 0;
@p bra DONE;
mov.u64 e, %globaltimer;
sub.u64 e, e, s;
setp.gt.u64 long, e, {_LONG};
@long st.relaxed.sys.global.u32 [$4+{REPORTED_NUMBER}], $6;
@long st.relaxed.sys.global.u32 [$4+{REPORTED_PEER}], $5;
setp.lt.u64 p, e, $3;
@p bra WAIT;
st.relaxed.sys.global.u32 [$2], $5;
st.relaxed.sys.global.u32 [$4], $5;
DONE:
mov.b32 v, 0;
@long st.relaxed.sys.global.u32 [$4+{REPORTED_PEER}], v;
}}"""


class Division(NamedTuple):
    """How words are divided among blocks and their exchanges."""

    #: All words, and those of one exchange of one block.
    words: int
    each: int
    blocks: int
    exchanges: int


def divided(words: int, most: int, fewest: int, most_blocks: int) -> Division:
    """Divide words: at most `most` in an exchange, and at least `fewest` in a block."""
    blocks = max(1, min(most_blocks, -(-words // fewest)))
    exchanges = -(-words // (blocks * most))
    return Division(words, -(-words // (blocks * exchanges)), blocks, exchanges)


class PeerFunction(KernelFunction):
    """A kernel under construction that exchanges words in a group of `size` processes."""

    def __init__(self, bindings: int, size: int, threads: int, unroll: int) -> None:
        super().__init__(0, bindings + 1, threads)
        self.size, self._unroll = size, unroll
        #: Bytes of a slot where every process has one.
        self.slot_bytes = CAPACITY // size // WORD * WORD
        self._table = self.bindings.pop()
        #: This process's position in the group.
        self.position = self.load("i32", self._entry_of(POSITION), 8)
        self.block = self.special("ctaid.x")
        self._region = self.region(self.position)
        self._counter = self._at(self._region, self.plus(self.times(self.block, 4), i32(COUNTERS)))
        self._done = self._at(self._region, i32(DONE))
        #: The number of this kernel among all of the region, and that of the exchanges that the block has done in others.
        self._kernel = self.binary("add", self.load("i32", self._done, 4), i32(1))
        self.before = self.load("i32", self._counter, 4)

    # addresses

    def _entry_of(self, offset: int) -> Value:
        return self.further(self._table, i64(offset))

    def _at(self, region: Value, offset: Value) -> Value:
        """Emit the pointer to a byte of a region, whose address is an i64."""
        return self.let(GLOBAL, f"inttoptr {self.binary('add', region, self.widened_index(offset))} to {GLOBAL}")

    def region(self, position: Value) -> Value:
        """Emit the address of a process's region."""
        entry = self.further(self._entry_of(REGIONS), self.times(position, 8))
        return self.load("i64", entry, 8)

    def other(self, distance: int) -> Value:
        """Emit the position of the process so far behind this one, in a ring."""
        total = self.plus(self.position, i32(distance))
        return self.select(self.below(total, self.size), total, self.minus(total, i32(self.size)))

    def slot(self, owner: Value, sender: Value, exchange: Value, kind: int, size: int) -> Value:
        """Emit the pointer to a sender's slot of `size` bytes in a process's memory."""
        area = self.binary("and", self.binary("add", self.before, exchange), i32(AREAS - 1))
        number = self.plus(self.times(self.plus(self.times(area, BLOCKS), self.block), KINDS), i32(kind))
        offset = self.plus(self.times(number, CAPACITY), self.times(sender, size), i32(SLOTS))
        return self._at(self.region(owner), offset)

    def received(self, exchange: Value, kind: int = POSTS) -> list[Value]:
        """Emit the pointers to the slots of all processes in this one's memory."""
        return [self.slot(self.position, i32(sender), exchange, kind, self.slot_bytes) for sender in range(self.size)]

    def word(self, pointer: Value, number: Value, size: int) -> Value:
        """Emit the pointer to a word of `size` bytes behind another one."""
        return self.further(pointer, self.wide_times(number, size))

    # flags

    def _peer(self) -> Value:
        """Emit whether a thread stands for another process.

        Its number is that one's position.
        """
        return self.binary("and", self.below(self.thread, self.size), self.compare("icmp ne", self.thread, self.position))

    def _flag(self, region: Value, sender: Value, kind: int) -> Value:
        number = self.plus(self.times(self.block, MOST_PROCESSES), sender)
        return self.binary("add", region, self.widened_index(self.plus(self.times(number, 4), i32(FLAGS + kind * FLAGS_BYTES))))

    def _number(self, exchange: Value) -> Value:
        """Emit how many exchanges the block has done after this one: it wraps around."""
        return self.binary("add", self.binary("add", self.before, exchange), i32(1))

    def announce(self, exchange: Value, kind: int) -> None:
        """Tell the other processes that this block has left the words of an exchange."""
        self.synchronise()
        with self.only_if(self._peer()):
            flag = self._flag(self.region(self.thread), self.position, kind)
            self.ptx(RELEASE, flag, self._number(exchange))

    def wait(self, exchange: Value, kind: int) -> None:
        """Wait until all other processes have left the words of an exchange.

        It waits for their blocks of the same number.
        """
        with self.only_if(self._peer()):
            flag = self._flag(self._region, self.thread, kind)
            failed = self.binary("add", self._region, i64(FAILED))
            limit, report = self.load("i64", self._entry_of(LIMIT), 8), self.load("i64", self._entry_of(REPORT), 8)
            self.ptx(ACQUIRE, flag, self._number(exchange), failed, limit, report, self.plus(self.thread, i32(1)), self._kernel)
        self.synchronise()

    # loops

    def words(self, count: Value, load: Callable[[Value], Sequence[Value]], store: Callable[[Value, Sequence[Value]], None]) -> None:
        """Append a loop of all threads over words.

        Each loads several before it stores the first.
        """
        step, last = self.threads, self.minus(count, i32(1))

        def body(index: Value, _: list[Value]) -> list[Value]:
            numbers = [self.plus(index, i32(k * step)) for k in range(self._unroll)]
            values = [load(self.umin(number, last) if k else number) for k, number in enumerate(numbers)]
            for k, (number, value) in enumerate(zip(numbers, values, strict=True)):
                with self.only_if(self.below(number, count) if k else None):
                    store(number, value)
            return []

        with self.only_if(self.below(self.thread, count)):
            self.repeat(self.thread, count, i32(self._unroll * step), [], body)

    def exchanges(
        self, count: int, post: Callable[[Value], None], take: Callable[[Value], None], finish: Callable[[Value], None] | None = None
    ) -> None:
        """Append all exchanges of a block.

        Args:
            count: how many there are.
            post: leaves the words of an exchange.
            take: reads those that have arrived, and may leave results.
            finish: reads the results that have arrived, if there are any.
        """

        def posted(exchange: Value) -> None:
            post(exchange)
            self.announce(exchange, POSTS)

        def finished(exchange: Value) -> None:
            if finish is not None:
                self.wait(exchange, RESULTS)
                finish(exchange)

        def body(exchange: Value, _: list[Value]) -> list[Value]:
            following = self.plus(exchange, i32(1))
            with self.only_if(self.below(following, count)):
                posted(following)
            self.wait(exchange, POSTS)
            take(exchange)
            if finish is not None:
                self.announce(exchange, RESULTS)
            with self.only_if(self.compare("icmp ne", exchange, i32(0))):
                finished(self.minus(exchange, i32(1)))
            return []

        posted(i32(0))
        if count > 1:
            self.repeat(i32(0), i32(count), i32(1), [], body)
        else:
            self.wait(i32(0), POSTS)
            take(i32(0))
            if finish is not None:
                self.announce(i32(0), RESULTS)
        finished(i32(count - 1))
        with self.only_if(self.equals(self.thread, 0)):
            self.store(self._number(i32(count - 1)), self._counter, 4)
            with self.only_if(self.equals(self.block, 0)):
                self.store(self._kernel, self._done, 4)
