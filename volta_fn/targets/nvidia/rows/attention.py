"""Attention of one query of each head to many keys, as a decoder's step has it.

The keys of a group of heads, which share them, are divided among blocks: each weights the values of some keys, relative to the largest
logit among these. A second dispatch combines the blocks' sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from math import ceil, isfinite
from typing import Any

from volta_fn.compiler.attention import Attention, attention_of
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.call import Form, Window
from volta_fn.runtime.llvm.text import Value, vector_of
from volta_fn.targets.nvidia.kernel import LOWEST, MINUS_INFINITY, ZERO, KernelFunction, KernelHeader, f32, i32, kernel_dispatch
from volta_fn.targets.nvidia.matmul.problem import HALVES
from volta_fn.targets.nvidia.rows.kernel import as_float
from volta_fn.targets.wgsl.routine import Dispatch, Routine

#: Keys and threads of a block, and the most blocks that divide the keys of a group.
_KEYS, _THREADS, _MOST_SPLITS = 64, 128, 32

#: The most heads of a group, and the numbers of features of which threads have equal shares.
_MOST_HEADS, _WIDTHS = 8, (32, 64, 128)

_LOG2_E = f32(math.log2(math.e))


def attends_by_one_query(avals: tuple[ShapedArray, ...], form: Form, device: TargetCapabilities) -> bool:
    """Return whether the kernels compute an attention."""
    plain = form.cotangent is None and not form.softcap and not form.biased and form.window == Window() and form.masks <= 1
    has_contiguous_rows = all(axes.features == len(axes.order) - 1 for axes in (form.q, form.k, form.v))
    if not device.matrix_units or not plain or not has_contiguous_rows or not isfinite(form.unseen):
        return False
    a = attention_of(avals, form)
    if a.queries != 1 or not _KEYS <= a.keys <= _KEYS * _MOST_SPLITS or a.shared > _MOST_HEADS or a.stack * a.keys * a.q.width >= 1 << 31:
        return False
    if {a.q.dtype, a.k.dtype, a.v.dtype} - HALVES or {a.q.width, a.k.width, a.v.width} - {a.q.width} or a.q.width not in _WIDTHS:
        return False
    return not any(n % 8 for rows in (a.k, a.v) for n in (rows.step, *rows.heads.strides))


def attention(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine | None:
    """Return the routine of an attention of one query; None for others."""
    if not attends_by_one_query(avals, params["form"], device):
        return None
    a = attention_of(avals, params["form"])
    splits, count = ceil(a.keys / _KEYS), len(avals)
    out, workspace = count, count + 2
    parts = _Parts(a, splits, count)
    dispatch = kernel_dispatch(parts.header, (*range(count), workspace), 1, parts.text(), a.groups * splits)
    return Routine((dispatch, _combining_dispatch(a, splits, (workspace, out, out + 1))), (4 * a.stack * splits * (a.q.width + 2),))


def _exponential(f: KernelFunction, x: Value) -> Value:
    """Emit e to the power of a number."""
    return f.exp2(f.fmul(x, _LOG2_E))


def _largest(f: KernelFunction, x: Value, y: Value) -> Value:
    return f.select(f.compare("fcmp ogt", x, y), x, y)


class _Parts:
    """The kernel in which a block attends to some keys, for all heads of a group.

    Bindings are q, k, v, perhaps a mask, and the workspace: for each head and split the weighted values, and after all of these the largest
    logit and the sum of the weights.
    """

    def __init__(self, a: Attention, splits: int, count: int) -> None:
        self.a, self.splits, self.width, self.heads = a, splits, a.q.width, a.shared
        self.f = KernelFunction(0, count + 1, _THREADS)
        self._count = count
        #: Key groups whose values threads weight, and offsets in shared memory: of q, of the logits, and of sums.
        self.shares = 2 * _THREADS // self.width
        self._logits = 4 * self.heads * self.width
        self._sums = self._logits + 4 * self.heads * _KEYS

    @property
    def header(self) -> KernelHeader:
        """How the kernel is launched."""
        return KernelHeader(_THREADS, self._sums + 4 * self.shares * self.heads * self.width)

    def text(self) -> str:
        """Return the finished module."""
        f, a, width = self.f, self.a, self.width
        group, self.split = f.divided(f.special("ctaid.x"), self.splits)
        self.head = f.times(group, self.heads)
        self.first = f.times(self.split, _KEYS)
        key, half = f.divided(f.thread, 2)
        key = f.plus(self.first, key)
        keys = self._row(1, a.k, key)
        units = [self._words(keys, f.plus(f.times(half, 8), i32(16 * unit)), 4) for unit in range(width // 16)]
        share, pair = f.divided(f.thread, width // 2)
        values = [self._values(f.plus(self.first, share, i32(n * self.shares)), pair) for n in range(_KEYS // self.shares)]
        self._load_queries()
        f.synchronise()
        self._store_logits(key, half, units)
        f.synchronise()
        self._weigh()
        f.synchronise()
        self._sum_values(share, pair, values)
        return f.text()

    def _row(self, binding: int, rows: Any, key: Value) -> Value:
        """Emit the pointer to a row of keys or values; beyond the end it is the last one."""
        f = self.f
        inside = f.umin(key, i32(self.a.keys - 1))
        offset = f.binary("add", f.offset(self.head, rows.heads), f.wide_times(inside, rows.step))
        return f.element(f.bindings[binding], offset, 2)

    def _words(self, row: Value, feature: Value, count: int) -> list[Value]:
        """Load words of two features each."""
        f = self.f
        pointer = f.further(row, f.times(feature, 2))
        return f.elements(f.load(vector_of("i32", count), pointer, 4 * count))

    def _values(self, key: Value, pair: Value) -> Value:
        """Load two values of a key.

        Beyond the end they are zeros: those of the last key, which are read, may be infinite.
        """
        f = self.f
        (word,) = self._words(self._row(2, self.a.v, key), f.times(pair, 2), 1)
        return f.select(f.below(key, self.a.keys), word, i32(0)) if self.a.keys % _KEYS else word

    def _shared(self, begin: int, *offsets: Value) -> Value:
        return self.f.shared(self.f.plus(i32(begin), *offsets))

    def _features(self) -> Iterator[Value]:
        """Yield this thread's numbers of features of all heads, each where it exists."""
        f, count = self.f, self.heads * self.width
        for begin in range(0, count, _THREADS):
            index = f.plus(f.thread, i32(begin))
            with f.only_if(f.below(index, count) if begin + _THREADS > count else None):
                yield index

    def _load_queries(self) -> None:
        """Store the queries times the scale in shared memory."""
        f, a = self.f, self.a
        for index in self._features():
            head, feature = f.divided(index, self.width)
            place = f.binary("add", f.offset(f.plus(self.head, head), a.q.heads), f.widened_index(feature))
            bits = f.load("i16", f.element(f.bindings[0], place, 2), 2)
            number = as_float(f, bits, a.q.dtype)
            f.store(f.fmul(number, f32(a.scale)), self._shared(0, f.times(index, 4)), 4)

    def _store_logits(self, key: Value, half: Value, units: Sequence[Sequence[Value]]) -> None:
        """Store the logits of a key, to which two threads contribute."""
        f = self.f
        numbers = [[n for word in unit for n in f.unpacked(word, self.a.k.dtype)] for unit in units]
        sees = self._sees(key)
        for head in range(self.heads):
            total = ZERO
            for unit, features in enumerate(numbers):
                at = f.plus(f.times(half, 32), i32(4 * (head * self.width + 16 * unit)))
                for four in range(2):
                    queries = f.load("<4 x float>", f.shared(f.plus(at, i32(16 * four))), 16)
                    for k, one in enumerate(f.elements(queries)):
                        total = f.fma(one, features[4 * four + k], total)
            total = sees(f.reduce_lanes(f.fadd, total, (1,)), head)
            f.store(total, self._shared(self._logits + 4 * head * _KEYS, f.times(f.quotient(f.thread, 2), 4)), 4)

    def _sees(self, key: Value) -> Any:
        """Return a function that emits a logit.

        The mask may hide it, and it may not exist.
        """
        f, a = self.f, self.a
        unseen = f32(a.unseen)

        def logit(total: Value, head: int) -> Value:
            if a.masks:
                mask = a.masks[0]
                inside = f.umin(key, i32(a.keys - 1))
                place = f.offset(f.plus(self.head, i32(head)), mask.heads)
                place = f.binary("add", place, f.wide_times(inside, mask.key))
                is_seen = f.compare("icmp ne", f.load("i8", f.further(f.bindings[3], place), 1), Value("i8", "0"))
                total = f.select(is_seen, total, unseen)
            return f.select(f.below(key, a.keys), total, MINUS_INFINITY) if a.keys % _KEYS else total

        return logit

    def _weigh(self) -> None:
        """Replace logits by weights; a warp has some of the heads.

        Store the largest logits and the sums of weights.
        """
        f = self.f
        warps = _THREADS // 32
        for turn in range(ceil(self.heads / warps)):
            head = f.plus(f.warp, i32(turn * warps))
            with f.only_if(f.below(head, self.heads) if (turn + 1) * warps > self.heads else None):
                places = [self._shared(self._logits + 128 * k, f.times(head, 4 * _KEYS), f.times(f.lane, 4)) for k in range(_KEYS // 32)]
                logits = [f.load("float", place, 4) for place in places]
                # Finite, so that logits of minus infinity alone have the weight 0.
                top = _largest(f, f.reduce_lanes(partial(_largest, f), _largest(f, *logits)), LOWEST)
                weights = [_exponential(f, f.fsub(logit, top)) for logit in logits]
                for place, weight in zip(places, weights, strict=True):
                    f.store(weight, place, 4)
                total = f.reduce_lanes(f.fadd, f.fadd(*weights))
                with f.only_if(f.equals(f.lane, 0)):
                    number = f.plus(f.times(f.plus(self.head, head), self.splits), self.split)
                    at = f.plus(i32(self.a.stack * self.splits * self.width), f.times(number, 2))
                    for k, value in enumerate((top, total)):
                        f.store(value, self._result(f.plus(at, i32(k))), 4)

    def _result(self, index: Value) -> Value:
        return self.f.further(self.f.bindings[self._count], self.f.times(index, 4))

    def _sum_values(self, share: Value, pair: Value, values: Sequence[Value]) -> None:
        """Store the weighted sums of values."""
        f, width = self.f, self.width
        sums = [[ZERO, ZERO] for _ in range(self.heads)]
        for n, word in enumerate(values):
            numbers = f.unpacked(word, self.a.v.dtype)
            for head, both in enumerate(sums):
                at = f.plus(f.times(share, 4), i32(4 * (head * _KEYS + n * self.shares)))
                weight = f.load("float", self._shared(self._logits, at), 4)
                for e in range(2):
                    both[e] = f.fma(weight, numbers[e], both[e])
        for head, both in enumerate(sums):
            for e in range(2):
                at = f.plus(f.times(share, 4 * self.heads * width), f.times(pair, 8), i32(4 * (head * width + e)))
                f.store(both[e], self._shared(self._sums, at), 4)
        f.synchronise()
        for index in self._features():
            total = f.load("float", self._shared(self._sums, f.times(index, 4)), 4)
            for other in range(1, self.shares):
                one = f.load("float", self._shared(self._sums + 4 * other * self.heads * width, f.times(index, 4)), 4)
                total = f.fadd(total, one)
            which, feature = f.divided(index, width)
            number = f.plus(f.times(f.plus(self.head, which), self.splits), self.split)
            f.store(total, self._result(f.plus(f.times(number, width), feature)), 4)


def _combining_dispatch(a: Attention, splits: int, buffers: tuple[int, int, int]) -> Dispatch:
    """Return the dispatch that combines the parts of each head.

    Its buffers are the workspace, the result, and the statistics.
    """
    width = a.q.width
    f = KernelFunction(0, 3, width)
    head = f.special("ctaid.x")
    first = f.times(head, splits)

    def number(index: Value) -> Value:
        return f.load("float", f.further(f.bindings[0], f.times(index, 4)), 4)

    statistics = i32(a.stack * splits * width)
    tops, totals, sums = [], [], []
    for split in range(splits):
        part = f.plus(first, i32(split))
        tops.append(number(f.plus(statistics, f.times(part, 2))))
        totals.append(number(f.plus(statistics, f.times(part, 2), i32(1))))
        sums.append(number(f.plus(f.times(part, width), f.thread)))
    top = tops[0]
    for other in tops[1:]:
        top = _largest(f, top, other)
    total, result = ZERO, ZERO
    for each, weight, value in zip(tops, totals, sums, strict=True):
        factor = _exponential(f, f.fsub(each, top))
        total = f.fma(factor, weight, total)
        result = f.fma(factor, value, result)
    result = f.rounded(f.binary("fdiv", result, total), a.q.dtype)
    place = f.binary("add", f.offset(head, a.out.heads), f.widened_index(f.thread))
    f.store(result, f.element(f.bindings[1], place, 2), 2)
    with f.only_if(f.equals(f.thread, 0)):
        for k, value in enumerate((top, total)):
            f.store(value, f.further(f.bindings[2], f.plus(f.times(head, 8), i32(4 * k))), 4)
    return kernel_dispatch(KernelHeader(width, 0), buffers, 2, f.text(), a.stack)
