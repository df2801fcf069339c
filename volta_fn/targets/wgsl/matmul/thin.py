"""Multiply a matrix, contiguous along the results, by one or two vectors.

Each element of the matrix is used once or twice, so memory bandwidth bounds the speed: a workgroup computes a narrow strip of results, of
which its invocations read four at a time, each for other terms of the sums; the partial sums are added up at the end.
"""

from __future__ import annotations

from volta_fn.compiler.contractions.index_maps import IndexedContraction, OperandMap
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.matmul.compute_dtype import Working
from volta_fn.targets.wgsl.matmul.direct import add_up
from volta_fn.targets.wgsl.matmul.elements import Elements, OperandRow
from volta_fn.targets.wgsl.matmul.epilogues import Epilogue
from volta_fn.targets.wgsl.matmul.indices import digits, times, total
from volta_fn.targets.wgsl.matmul.results import partial, results
from volta_fn.targets.wgsl.matmul.split_k_combine import combine
from volta_fn.targets.wgsl.matmul.tiles import BufferNumbers
from volta_fn.targets.wgsl.routine import Dispatch, Routine
from volta_fn.targets.wgsl.scalars.shader import Shader

#: Invocations of a workgroup: the fewest, the most, and the iterations that each has at least if there are more than the fewest.
_FEWEST, _MOST, _ITERATIONS = 256, 1024, 2

#: The most vectors, and the fewest terms of a sum.
_VECTORS, _TERMS = 2, 256

#: Vectors of results in a strip, widest first, and the strips that there must be for that. (Eight are a cache row.)
_STRIPS = ((32, 256), (16, 256), (8, 64), (4, 0))

#: Below so many workgroups sums are split into chunks of at least so many terms.
_FEW, _CHUNK = 32, 2048

#: Terms that an invocation reads at a time.
_TOGETHER = 16


def is_thin(c: IndexedContraction, work: Working) -> bool:
    """Return whether a contraction is such a product."""
    return c.k >= _TERMS and can_be_thin(c, work)


def can_be_thin(c: IndexedContraction, work: Working) -> bool:
    """Return whether a contraction can be computed so, however short its sums are."""
    return work.lanes == 4 and c.k > 0 and min(c.m, c.n) <= _VECTORS and _sides(c)[1].fours(along_inner=False)


def thin(
    c: IndexedContraction, work: Working, device: TargetCapabilities, epilogue: Epilogue, buffers: BufferNumbers, *, may_split: bool
) -> Routine:
    """Return the routine; sums are only split if `may_split` allows it."""
    wide = _strip(c.batch * max(c.m, c.n))
    strips = -(-max(c.m, c.n) // (4 * wide))
    length, splits = _cut(c.k, c.batch * strips) if may_split else (c.k, 1)
    first = _Strips(c, work, device, buffers, wide, _invocations(c, work, device, wide, length)).dispatch(epilogue, strips, length, splits)
    if splits == 1:
        return Routine((first,))
    size = splits * c.batch * c.m * c.n * work.dtype.itemsize
    return Routine((first, combine(c, work, splits, device, epilogue, buffers.workspace, buffers.result)), (size,))


def _sides(c: IndexedContraction) -> tuple[OperandMap, OperandMap]:
    """Return the vectors, and the matrix."""
    return (c.lhs, c.rhs) if c.m <= c.n else (c.rhs, c.lhs)


def _strip(results: int) -> int:
    """Return the vectors of results of a workgroup."""
    return next(wide for wide, strips in _STRIPS if results >= 4 * wide * strips)


def _cut(terms: int, groups: int) -> tuple[int, int]:
    """Return the terms of a chunk of a sum, and how many chunks there are."""
    wanted = max(1, min(2 * _FEW // groups, terms // _CHUNK)) if groups < _FEW else 1
    length = -(-terms // wanted // _TOGETHER) * _TOGETHER
    return length, -(-terms // length)


def _invocations(c: IndexedContraction, work: Working, device: TargetCapabilities, wide: int, length: int) -> int:
    """Return how many invocations compute a strip's sums of `length` terms.

    They are as many as have enough to do and the device allows.
    """
    room = device.workgroup_memory // (min(c.m, c.n) * work.lanes * work.dtype.itemsize)
    most = min(_MOST, device.invocations, room, length * wide // (_TOGETHER * _ITERATIONS))
    return max(_FEWEST, 1 << most.bit_length() >> 1)


class _Strips:
    """A shader under construction, for strips of `wide` vectors of results."""

    def __init__(
        self, c: IndexedContraction, work: Working, device: TargetCapabilities, buffers: BufferNumbers, wide: int, invocations: int
    ) -> None:
        self.c, self.work, self.buffers, self.wide, self.invocations = c, work, buffers, wide, invocations
        self.f = f = Shader(device, invocations)
        self.by_row = c.m <= c.n
        self.few, self.many = sorted((c.m, c.n))
        vectors, matrix = _sides(c)
        numbers = (buffers.lhs, buffers.rhs) if self.by_row else (buffers.rhs, buffers.lhs)
        self.vectors = Elements(f, work, vectors, numbers[0], fours=vectors.fours(along_inner=True))
        self.matrix = Elements(f, work, matrix, numbers[1], fours=True)

    def dispatch(self, epilogue: Epilogue, strips: int, length: int, splits: int) -> Dispatch:
        """Return the finished dispatch, with sums in `splits` chunks of `length` terms."""
        c, f, work, few, wide, all_ = self.c, self.f, self.work, self.few, self.wide, self.invocations
        split, stack, strip = digits(f, f.group, (splits, c.batch, strips))
        begin = f.let("u32", f"{split} * {length}u") if splits > 1 else "0u"
        end = f.let("u32", f"min({begin} + {length}u, {c.k}u)") if splits > 1 else f"{c.k}u"
        shared = f.workgroup("totals", work.vector, few * all_)
        for position, sum_ in enumerate(self._sums(stack, strip, begin, end)):
            f.emit(f"{shared}[local + {position * all_}u] = {sum_};")
        add_up(f, work, shared, few, all_, wide)
        number, results_ = self.buffers.result, self.buffers.workspace
        put = results(f, work, c, number, epilogue, 1) if splits == 1 else partial(f, work, c, results_, splits, 1)
        where = stack if splits == 1 else total(f, times(split, c.batch), stack)
        with f.block(f"if (local < {few * wide * 4}u)"):
            vector, result = digits(f, "local", (few, wide * 4))
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
        together = next(n for n in (_TOGETHER, 8, 4, 2, 1) if self.c.k % n == 0)
        start = f.let("u32", f"{begin} + {y} * {together}u")
        with f.loop(end, start, self.invocations // wide * together) as k:
            terms = [k, *[f.let("u32", f"{k} + {i}u") for i in range(1, together)]]
            fours = [self.matrix.load(row, term) for term in terms]
            for vector, sum_ in zip(rows, sums, strict=True):
                for factor, four in zip(self._factors(vector, terms), fours, strict=True):
                    f.emit(f"{sum_} = {work.multiply_add(factor, four, sum_)};")
        return sums

    def _factors(self, vector: OperandRow, terms: list[str]) -> list[str]:
        """Load a vector's numbers for terms, of which those after the first follow it."""
        if not self.vectors.fours:
            return [self.vectors.load(vector, term) for term in terms]
        return [f"{four}.{c}" for four in [self.vectors.load(vector, term) for term in terms[::4]] for c in "xyzw"]
