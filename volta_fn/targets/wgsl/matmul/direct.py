"""Contractions without tiles: thin products, few terms, few results."""

from __future__ import annotations

from volta_fn.compiler.contractions import IndexedContraction, OperandMap
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.matmul.results import (
    BufferNumbers,
    Elements,
    Epilogue,
    OperandRow,
    Working,
    chunk,
    complete_routine,
    emit_store,
    total,
)
from volta_fn.targets.wgsl.routine import Dispatch, Routine, Shader
from volta_fn.targets.wgsl.shader import times

# Thin products: a matrix, contiguous along the results, by one or two vectors (BLAS's gemv).
#
# Each element of the matrix is used once or twice, so memory bandwidth bounds the speed: a workgroup computes a narrow strip of
# results, of which its invocations read four at a time, each for other terms of the sums; the partial sums are added up at the end.

#: Invocations of a workgroup: the fewest, the most, and the iterations that each has at least if there are more than the fewest.
_FEWEST, _MOST, _ITERATIONS = 256, 1024, 2

#: The most vectors, and the fewest terms of a sum.
_VECTORS, _TERMS = 2, 256

#: Vectors of results in a strip, widest first, and the strips that there must be for that. (Eight are a cache row.)
_STRIPS = ((32, 256), (16, 256), (8, 64), (4, 0))

#: The fewest workgroups without split sums, and the fewest terms of a chunk of a split sum.
_FEW, _THIN_CHUNK = 32, 2048

#: Terms that an invocation reads at a time.
_THIN_TOGETHER = 16


def is_thin(c: IndexedContraction, work: Working) -> bool:
    """Return whether a contraction is a thin product with long sums."""
    return c.k >= _TERMS and can_be_thin(c, work)


def can_be_thin(c: IndexedContraction, work: Working) -> bool:
    """Return whether `thin` can compute a contraction, however short its sums are."""
    return work.lanes == 4 and c.k > 0 and min(c.m, c.n) <= _VECTORS and _sides(c)[1].fours(along_inner=False)


def thin(
    c: IndexedContraction, work: Working, capabilities: TargetCapabilities, epilogue: Epilogue, buffers: BufferNumbers, *, may_split: bool
) -> Routine:
    """Return the routine of a thin product; sums are split only if `may_split` is set."""
    wide = next(wide for wide, strips in _STRIPS if c.batch * max(c.m, c.n) >= 4 * wide * strips)
    strips = -(-max(c.m, c.n) // (4 * wide))
    length, splits = _cut_thin(c.k, c.batch * strips) if may_split else (c.k, 1)
    first = _Strips(c, work, capabilities, buffers, wide, _invocations(c, work, capabilities, wide, length)).dispatch(
        epilogue, strips, length, splits
    )
    return complete_routine(first, c, work, splits, capabilities, epilogue, buffers)


def _sides(c: IndexedContraction) -> tuple[OperandMap, OperandMap]:
    """Return the vectors, and the matrix."""
    return (c.lhs, c.rhs) if c.m <= c.n else (c.rhs, c.lhs)


def _cut_thin(terms: int, groups: int) -> tuple[int, int]:
    """Return the terms of a chunk of a sum, and how many chunks there are."""
    slices = max(1, min(2 * _FEW // groups, terms // _THIN_CHUNK)) if groups < _FEW else 1
    length = -(-terms // slices // _THIN_TOGETHER) * _THIN_TOGETHER
    return length, -(-terms // length)


def _invocations(c: IndexedContraction, work: Working, capabilities: TargetCapabilities, wide: int, length: int) -> int:
    """Return the number of invocations that compute a strip's sums of `length` terms.

    It is the most that the device allows and that have enough iterations each.
    """
    room = capabilities.workgroup_memory // (min(c.m, c.n) * work.lanes * work.dtype.itemsize)
    most = min(_MOST, capabilities.invocations, room, length * wide // (_THIN_TOGETHER * _ITERATIONS))
    return max(_FEWEST, 1 << most.bit_length() >> 1)


class _Strips:
    """A shader under construction, for strips of `wide` vectors of results."""

    def __init__(
        self, c: IndexedContraction, work: Working, capabilities: TargetCapabilities, buffers: BufferNumbers, wide: int, invocations: int
    ) -> None:
        self.c, self.work, self.buffers, self.wide, self.invocations = c, work, buffers, wide, invocations
        self.f = f = Shader(capabilities, invocations)
        self.by_row = c.m <= c.n
        self.few, self.many = sorted((c.m, c.n))
        vectors, matrix = _sides(c)
        numbers = (buffers.lhs, buffers.rhs) if self.by_row else (buffers.rhs, buffers.lhs)
        self.vectors = Elements(f, work, vectors, numbers[0], fours=vectors.fours(along_inner=True))
        self.matrix = Elements(f, work, matrix, numbers[1], fours=True)

    def dispatch(self, epilogue: Epilogue, strips: int, length: int, splits: int) -> Dispatch:
        """Return the finished dispatch, with sums in `splits` chunks of `length` terms."""
        c, f, work, few, wide, all_ = self.c, self.f, self.work, self.few, self.wide, self.invocations
        split, stack, strip = f.digits(f.group, (splits, c.batch, strips))
        begin, end = chunk(f, split, length, splits, c.k)
        shared = f.workgroup("totals", work.vector, few * all_)
        for position, sum_ in enumerate(self._sums(stack, strip, begin, end)):
            f.emit(f"{shared}[local + {position * all_}u] = {sum_};")
        add_up(f, work, shared, few, all_, wide)
        put = emit_store(f, work, c, epilogue, self.buffers, 1, splits)
        where = stack if splits == 1 else total(f, times(split, c.batch), stack)
        with f.block(f"if (local < {few * wide * 4}u)"):
            vector, result = f.digits("local", (few, wide * 4))
            value = f.let(work.type, f"{shared}[{vector} * {all_}u + {result} / 4u][{result} % 4u]")
            where_in = vector, f.let("u32", f"{strip} * {4 * wide}u + {result}")
            f.emit(f"{put}({where}, {', '.join(where_in if self.by_row else where_in[::-1])}, {value});")
        return f.dispatch(splits * c.batch * strips, c.products)

    def _sums(self, stack: str, strip: str, begin: str, end: str) -> list[str]:
        """Compute an invocation's sums of four results of each vector."""
        f, work, wide = self.f, self.work, self.wide
        x, y = f.let("u32", f"local % {wide}u"), f.let("u32", f"local / {wide}u")
        column = f.let("u32", f"min(({strip} * {wide}u + {x}) * 4u, {self.many - 4}u)")
        row = self.matrix.row(stack, column)
        rows = [self.vectors.row(stack, f"{i}u") for i in range(self.few)]
        sums = [f.var(work.vector, work.zero) for _ in rows]
        together = next(n for n in (_THIN_TOGETHER, 8, 4, 2, 1) if self.c.k % n == 0)
        start = f.let("u32", f"{begin} + {y} * {together}u")
        with f.loop(end, start, self.invocations // wide * together) as k:
            terms = [k, *[f.let("u32", f"{k} + {i}u") for i in range(1, together)]]
            fours = [self.matrix.load(row, term) for term in terms]
            for vector, sum_ in zip(rows, sums, strict=True):
                for factor, four in zip(self._factors(vector, terms), fours, strict=True):
                    f.emit(f"{sum_} = {work.add_scaled(factor, four, sum_)};")
        return sums

    def _factors(self, vector: OperandRow, terms: list[str]) -> list[str]:
        """Load a vector's numbers for terms, of which those after the first follow it."""
        if not self.vectors.fours:
            return [self.vectors.load(vector, term) for term in terms]
        return [f"{four}.{c}" for four in [self.vectors.load(vector, term) for term in terms[::4]] for c in "xyzw"]


# Compute contractions of few terms, or of few results, without tiles.
#
# With *few terms*, an invocation sums all terms of one result. Depthwise convolutions and outer products are of this kind. With *few
# results*, the invocations of a workgroup divide the terms of a few sums, or of chunks of them, and add up their partial sums. Products
# of rows with few columns and the gradients by weights of depthwise convolutions are of this kind.

_INVOCATIONS = 128

#: Terms up to which the loop is unrolled, and up to which one invocation sums a result.
_WRITTEN_OUT, _FEW_TERMS = 32, 128

#: The most results of a workgroup, and the fewest terms for which that pays.
_TOGETHER, _MANY_TERMS = 9, 256

#: Fewer than `_TOO_FEW` workgroups do not saturate a large device: sums are split until there are `_ENOUGH`, in chunks of at least `_CHUNK`
#: terms.
_TOO_FEW, _ENOUGH, _CHUNK = 512, 2048, 2048


def is_of_few_terms(c: IndexedContraction) -> bool:
    """Return whether terms are so few, and so rarely reused, that tiles do not pay."""
    return 0 < c.k <= _FEW_TERMS and (min(c.m, c.n) <= 2 or c.products <= 1 << 15)


def few_terms(
    c: IndexedContraction, work: Working, capabilities: TargetCapabilities, epilogue: Epilogue, buffers: BufferNumbers
) -> Routine:
    """Return the routine in which every invocation computes one result."""
    f = Shader(capabilities, _INVOCATIONS)
    a, b = Elements(f, work, c.lhs, buffers.lhs), Elements(f, work, c.rhs, buffers.rhs)
    put = emit_store(f, work, c, epilogue, buffers, 1)
    size = c.batch * c.m * c.n

    def sum_terms(number: str) -> None:
        walks = c.target.stack, c.target.rows, c.target.columns
        sizes = c.batch, c.m, c.n
        order = sorted(range(3), key=lambda i: -walks[i].strides[-1] if walks[i].strides else -size)  # the contiguous axis last
        coordinates = f.digits(number, [sizes[i] for i in order])
        stack, row, column = [coordinates[order.index(i)] for i in range(3)]
        left, right = a.row(stack, row), b.row(stack, column)
        sum_ = f.var(work.type, f"{work.type}()")
        if c.k <= _WRITTEN_OUT:
            for k in range(c.k):
                f.emit(f"{sum_} = {work.add_product(a.load(left, k), b.load(right, k), sum_)};")
        else:
            with f.loop(c.k) as i:
                f.emit(f"{sum_} = {work.add_product(a.load(left, i), b.load(right, i), sum_)};")
        f.emit(f"{put}({stack}, {row}, {column}, {sum_});")

    return Routine((f.for_each(size, sum_terms, c.products),))


def is_of_few_results(c: IndexedContraction) -> bool:
    """Return whether sums are long and operands rarely shared, so tiles do not pay."""
    near = c.lhs.inner.strides[-1:] == c.rhs.inner.strides[-1:] == (1,)
    return c.k >= _MANY_TERMS and min(c.m, c.n) <= 2 and (near or c.m * c.n <= _TOGETHER)


def few_results(
    c: IndexedContraction, work: Working, capabilities: TargetCapabilities, epilogue: Epilogue, buffers: BufferNumbers
) -> Routine:
    """Return the routine in which a workgroup computes a few results or partial sums."""
    f = Shader(capabilities, _INVOCATIONS)
    fours = work.lanes == 4 and c.lhs.fours(along_inner=True) and c.rhs.fours(along_inner=True)
    a, b = [Elements(f, work, map_, k, fours=fours) for map_, k in ((c.lhs, buffers.lhs), (c.rhs, buffers.rhs))]
    rows, columns = _together(c)
    down, across = -(-c.m // rows), -(-c.n // columns)
    length, splits = _cut(c, c.batch * down * across)
    put = emit_store(f, work, c, epilogue, buffers, 1, splits)
    split, stack, i, j = f.digits(f.group, (splits, c.batch, down, across))
    first = f.let("u32", f"{i} * {rows}u"), f.let("u32", f"{j} * {columns}u")
    left = [a.row(stack, _within(f, first[0], r, c.m)) for r in range(rows)]
    right = [b.row(stack, _within(f, first[1], s, c.n)) for s in range(columns)]
    each, type_ = (4, work.vector) if fours else (1, work.type)
    sums = [[f.var(type_, f"{type_}()") for _ in right] for _ in left]
    begin, end = chunk(f, split, length, splits, c.k)
    start = f.let("u32", f"{begin} + local * {each}u")
    with f.loop(end, start, _INVOCATIONS * each) as k:
        xs, ys = [a.load(operand, k) for operand in left], [b.load(operand, k) for operand in right]
        for x, totals in zip(xs, sums, strict=True):
            for y, sum_ in zip(ys, totals, strict=True):
                f.emit(f"{sum_} = {work.add_product(x, y, sum_)};")
    flat = [sum_ for totals in sums for sum_ in totals]
    shared = f.workgroup("totals", work.type, len(flat) * _INVOCATIONS)
    for sum_index, sum_ in enumerate(flat):
        f.emit(f"{shared}[local + {sum_index * _INVOCATIONS}u] = {work.sum_components(sum_) if fours else sum_};")
    add_up(f, work, shared, len(flat), _INVOCATIONS)
    with f.block(f"if (local < {len(flat)}u)"):
        r, s = f.digits("local", (rows, columns))
        where = stack if splits == 1 else total(f, times(split, c.batch), stack)
        f.emit(f"{put}({where}, {total(f, first[0], r)}, {total(f, first[1], s)}, {shared}[local * {_INVOCATIONS}u]);")
    partial_sums = f.dispatch(splits * c.batch * down * across, c.products)
    return complete_routine(partial_sums, c, work, splits, capabilities, epilogue, buffers)


def _together(c: IndexedContraction) -> tuple[int, int]:
    """Return how many rows and columns of results a workgroup computes: all, if few."""
    if c.m * c.n <= _TOGETHER:
        return c.m, c.n
    rows = c.m if c.m * min(c.n, 2) <= _TOGETHER else min(c.m, 2)
    return rows, min(c.n, max(1, 4 // rows))


def _cut(c: IndexedContraction, groups: int) -> tuple[int, int]:
    """Return the terms of a chunk of a sum, and how many chunks there are."""
    slices = max(1, min(_ENOUGH // groups, c.k // _CHUNK)) if groups < _TOO_FEW else 1
    length = -(-c.k // slices // 4) * 4
    return length, -(-c.k // length)


def _within(f: Shader, first: str, further: int, size: int) -> str:
    """Return ``first + further``, limited to the last index."""
    return f.let("u32", f"min({first} + {further}u, {size - 1}u)")


def add_up(f: Shader, work: Working, shared: str, count: int, invocations: int, totals: int = 1) -> None:
    """Add up the partial sums of the invocations in `shared`.

    It has an array for each of `count` sums. `totals` of each remain: total i is that of the elements i, i + totals, i + 2 totals, ….
    """
    with f.block(f"for (var half = {invocations // 2}u; half >= {totals}u; half /= 2u)"):
        f.emit("workgroupBarrier();")
        with f.block("if (local < half)"):
            for sum_index in range(count):
                mine, other = (f"{shared}[local + {sum_index * invocations}u{more}]" for more in ("", " + half"))
                f.emit(f"{mine} = {work.add(mine, other)};")
    f.emit("workgroupBarrier();")
