"""Kernels that exchange words with the same kernel in other processes.

A block works through its share of the words in *exchanges* of as many as its slots have room for. In each it leaves words in slots of the
other processes' memory (a *post*), announces them by a flag there, and waits for the flags of the others. Words of the next exchange are
posted before it waits, so that the way is never idle. The flags are stored with release semantics and loaded with acquire semantics, in
the scope of the system, so that what was left before is there.

An exchange may have a second round, of another kind, for results. Slots are safe to write where they are written: those of an area were
read in the fourth exchange before, and whoever has announced the third has read them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from volta_fn.runtime.llvm.text import Value, i64
from volta_fn.targets.nvidia.kernel import GLOBAL, KernelFunction, i32
from volta_fn.targets.nvidia.peers.memory import (
    AREAS,
    BLOCKS,
    CAPACITY,
    COUNTERS,
    DONE,
    FAILED,
    FLAGS,
    FLAGS_BYTES,
    KINDS,
    LIMIT,
    MOST_PROCESSES,
    POSITION,
    REGIONS,
    REPORT,
    REPORTED_NUMBER,
    REPORTED_PEER,
    SLOTS,
)

#: Bytes of the largest word.
WORD = 16

#: The most words that a thread copies to shared memory before it stores the first, and the bytes of the least.
_MOST_STAGES, _LEAST_COPY = 16, 4

#: What emits the pointers to what is read for a word, by its number, and what stores the word, from that.
Sources = Callable[[Value], Sequence[Value]]
Store = Callable[[Value, Sequence[Value]], None]

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


def word_type(size: int) -> str:
    """Return the type as which a word of so many bytes is loaded and stored."""
    return "<4 x i32>" if size == 16 else f"i{8 * size}"


class PeerSchedule(NamedTuple):
    """How a collective's kernel runs."""

    threads: int = 512
    #: The most blocks, and those for `many` bytes or more. Fewer leave multiprocessors to kernels that run at the same time.
    blocks: int = 64
    most_blocks: int = BLOCKS
    many: int = 1 << 26
    #: Words that a thread loads before it stores the first.
    unroll: int = 4
    #: The most bytes of an array that processes send whole, so that each reduces all of it. More are reduced in shares, of which each
    #: process sends its own to all: this takes a second round, and less traffic if there are more than two processes.
    whole: int = 1 << 18
    #: The most registers of a thread; None leaves them to the compiler.
    registers: int | None = None
    #: Bytes of shared memory through which words go, if there is room for two of each thread; 0: through registers.
    shared: int = 0

    def blocks_for(self, size: int) -> int:
        """Return the most blocks for an array of so many bytes."""
        return self.most_blocks if size >= self.many else self.blocks


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

    def __init__(self, bindings: int, size: int, schedule: PeerSchedule) -> None:
        super().__init__(0, bindings + 1, schedule.threads, registers=schedule.registers)
        self.size, self.schedule = size, schedule
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

    def words(self, count: Value, sizes: Sequence[int], sources: Sources, store: Store) -> None:
        """Append a loop of all threads over words.

        Args:
            count: how many there are.
            sizes: the bytes of what is read for a word.
            sources: emits the pointers to that, by the word's number.
            store: stores the word of a number, from what was read.
        """
        is_staged = 2 * self.threads * sum(sizes) <= self.schedule.shared and min(sizes) >= _LEAST_COPY
        with self.only_if(self.below(self.thread, count)):
            (self._words_in_shared_memory if is_staged else self._words_in_registers)(count, sizes, sources, store)

    def _words_in_registers(self, count: Value, sizes: Sequence[int], sources: Sources, store: Store) -> None:
        """Append a loop in which a thread loads several words before it stores the first."""
        step, last, unroll = self.threads, self.minus(count, i32(1)), self.schedule.unroll

        def load(number: Value) -> list[Value]:
            return [self.load(word_type(size), pointer, size) for size, pointer in zip(sizes, sources(number), strict=True)]

        def body(index: Value, _: list[Value]) -> list[Value]:
            numbers = [self.plus(index, i32(k * step)) for k in range(unroll)]
            values = [load(self.umin(number, last) if k else number) for k, number in enumerate(numbers)]
            for k, (number, value) in enumerate(zip(numbers, values, strict=True)):
                with self.only_if(self.below(number, count) if k else None):
                    store(number, value)
            return []

        self.repeat(self.thread, count, i32(unroll * step), [], body)

    def _words_in_shared_memory(self, count: Value, sizes: Sequence[int], sources: Sources, store: Store) -> None:
        """Append a loop in which a thread copies words to shared memory long before it stores them.

        Each reads only what it has copied itself.
        """
        step, last, stage_bytes = self.threads, self.minus(count, i32(1)), self.threads * sum(sizes)
        depth = min(self.schedule.shared // stage_bytes, _MOST_STAGES)
        starts = [self.threads * sum(sizes[:k]) for k in range(len(sizes))]

        def places(stage: Value) -> list[Value]:
            return [self.plus(stage, self.times(self.thread, size), i32(start)) for size, start in zip(sizes, starts, strict=True)]

        def copy(stage: Value, number: Value) -> None:
            for place, size, pointer in zip(places(stage), sizes, sources(self.umin(number, last)), strict=True):
                self.copy_word(place, pointer, size)
            self.commit_copies()

        def begin(stage: Value, _: list[Value]) -> list[Value]:
            copy(self.times(stage, stage_bytes), self.plus(self.thread, self.times(stage, step)))
            return []

        def body(number: Value, state: list[Value]) -> list[Value]:
            (stage,) = state
            self.wait_for_copies(depth - 1)
            store(number, [self.load(word_type(size), self.shared(place), size) for place, size in zip(places(stage), sizes, strict=True)])
            copy(stage, self.plus(number, i32(depth * step)))
            following = self.plus(stage, i32(stage_bytes))
            return [self.select(self.equals(following, depth * stage_bytes), i32(0), following)]

        self.repeat(i32(0), i32(depth), i32(1), [], begin)
        self.repeat(self.thread, count, i32(step), [i32(0)], body)
        self.wait_for_copies(0)

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
