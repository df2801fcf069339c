"""Compute contractions of few terms, or of few results, without tiles.

With *few terms*, an invocation sums all terms of one result. Depthwise convolutions and outer products are of this kind. With *few
results*, the invocations of a workgroup divide the terms of a few sums, or of chunks of them, and add up their partial sums. Products of
rows with few columns and the gradients by weights of depthwise convolutions are of this kind.
"""

from __future__ import annotations

from volta_fn.compiler.contractions.index_maps import IndexedContraction
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.matmul.compute_dtype import Working
from volta_fn.targets.wgsl.matmul.elements import Elements
from volta_fn.targets.wgsl.matmul.epilogues import Epilogue
from volta_fn.targets.wgsl.matmul.indices import digits, times, total
from volta_fn.targets.wgsl.matmul.results import partial, results
from volta_fn.targets.wgsl.matmul.split_k_combine import combine
from volta_fn.targets.wgsl.matmul.tiles import BufferNumbers
from volta_fn.targets.wgsl.routine import Routine
from volta_fn.targets.wgsl.scalars.shader import Shader

_INVOCATIONS = 128

#: Terms up to which the loop is unrolled, and up to which one invocation sums a result.
_WRITTEN_OUT, _FEW_TERMS = 32, 128

#: The most results of a workgroup, and the fewest terms for which that pays.
_TOGETHER, _MANY_TERMS = 9, 256

#: Fewer workgroups do not saturate a large device: sums are split until there are enough, in chunks of at least so many terms.
_TOO_FEW, _ENOUGH, _CHUNK = 512, 2048, 2048


def is_of_few_terms(c: IndexedContraction) -> bool:
    """Return whether terms are so few, and so rarely reused, that tiles do not pay."""
    return 0 < c.k <= _FEW_TERMS and (min(c.m, c.n) <= 2 or c.products <= 1 << 15)


def few_terms(c: IndexedContraction, work: Working, device: TargetCapabilities, epilogue: Epilogue, buffers: BufferNumbers) -> Routine:
    """Return the routine in which every invocation computes one result."""
    f = Shader(device, _INVOCATIONS)
    a, b = Elements(f, work, c.lhs, buffers.lhs), Elements(f, work, c.rhs, buffers.rhs)
    put = results(f, work, c, buffers.result, epilogue, 1)
    number = f.let("u32", f"group * {_INVOCATIONS}u + local")
    size = c.batch * c.m * c.n
    with f.block(f"if ({number} < {size}u)"):
        walks = c.target.stack, c.target.rows, c.target.columns
        sizes = c.batch, c.m, c.n
        order = sorted(range(3), key=lambda i: -walks[i].strides[-1] if walks[i].strides else -size)  # the contiguous axis last
        found = digits(f, number, [sizes[i] for i in order])
        stack, row, column = [found[order.index(i)] for i in range(3)]
        left, right = a.row(stack, row), b.row(stack, column)
        sum_ = f.var(work.type, f"{work.type}()")
        if c.k <= _WRITTEN_OUT:
            for k in range(c.k):
                f.emit(f"{sum_} = {work.fused(a.load(left, k), b.load(right, k), sum_)};")
        else:
            with f.loop(c.k) as i:
                f.emit(f"{sum_} = {work.fused(a.load(left, i), b.load(right, i), sum_)};")
        f.emit(f"{put}({stack}, {row}, {column}, {sum_});")
    return Routine((f.dispatch(-(-size // _INVOCATIONS), c.products),))


def is_of_few_results(c: IndexedContraction) -> bool:
    """Return whether sums are long and operands rarely shared, so tiles do not pay."""
    near = c.lhs.inner.strides[-1:] == c.rhs.inner.strides[-1:] == (1,)
    return c.k >= _MANY_TERMS and min(c.m, c.n) <= 2 and (near or c.m * c.n <= _TOGETHER)


def few_results(c: IndexedContraction, work: Working, device: TargetCapabilities, epilogue: Epilogue, buffers: BufferNumbers) -> Routine:
    """Return the routine in which a workgroup computes a few results or partial sums."""
    f = Shader(device, _INVOCATIONS)
    fours = work.lanes == 4 and c.lhs.fours(along_inner=True) and c.rhs.fours(along_inner=True)
    a, b = [Elements(f, work, map_, k, fours=fours) for map_, k in ((c.lhs, buffers.lhs), (c.rhs, buffers.rhs))]
    rows, columns = _together(c)
    down, across = -(-c.m // rows), -(-c.n // columns)
    length, splits = _cut(c, c.batch * down * across)
    put = results(f, work, c, buffers.result, epilogue, 1) if splits == 1 else partial(f, work, c, buffers.workspace, splits, 1)
    split, stack, i, j = digits(f, f.group, (splits, c.batch, down, across))
    first = f.let("u32", f"{i} * {rows}u"), f.let("u32", f"{j} * {columns}u")
    left = [a.row(stack, _within(f, first[0], r, c.m)) for r in range(rows)]
    right = [b.row(stack, _within(f, first[1], s, c.n)) for s in range(columns)]
    each, type_ = (4, work.vector) if fours else (1, work.type)
    sums = [[f.var(type_, f"{type_}()") for _ in right] for _ in left]
    begin = f.let("u32", f"{split} * {length}u") if splits > 1 else "0u"
    end = f.let("u32", f"min({begin} + {length}u, {c.k}u)") if splits > 1 else c.k
    start = f.let("u32", f"{begin} + local * {each}u")
    with f.loop(end, start, _INVOCATIONS * each) as k:
        xs, ys = [a.load(operand, k) for operand in left], [b.load(operand, k) for operand in right]
        for x, totals in zip(xs, sums, strict=True):
            for y, sum_ in zip(ys, totals, strict=True):
                f.emit(f"{sum_} = {work.fused(x, y, sum_)};")
    flat = [sum_ for totals in sums for sum_ in totals]
    shared = f.workgroup("totals", work.type, len(flat) * _INVOCATIONS)
    for sum_index, sum_ in enumerate(flat):
        f.emit(f"{shared}[local + {sum_index * _INVOCATIONS}u] = {work.across(sum_) if fours else sum_};")
    add_up(f, work, shared, len(flat), _INVOCATIONS)
    with f.block(f"if (local < {len(flat)}u)"):
        r, s = digits(f, "local", (rows, columns))
        where = stack if splits == 1 else total(f, times(split, c.batch), stack)
        f.emit(f"{put}({where}, {total(f, first[0], r)}, {total(f, first[1], s)}, {shared}[local * {_INVOCATIONS}u]);")
    partial_sums = f.dispatch(splits * c.batch * down * across, c.products)
    if splits == 1:
        return Routine((partial_sums,))
    size = splits * c.batch * c.m * c.n * work.dtype.itemsize
    return Routine((partial_sums, combine(c, work, splits, device, epilogue, buffers.workspace, buffers.result)), (size,))


def _together(c: IndexedContraction) -> tuple[int, int]:
    """Return how many rows and columns of results a workgroup computes: all, if few."""
    if c.m * c.n <= _TOGETHER:
        return c.m, c.n
    rows = c.m if c.m * min(c.n, 2) <= _TOGETHER else min(c.m, 2)
    return rows, min(c.n, max(1, 4 // rows))


def _cut(c: IndexedContraction, groups: int) -> tuple[int, int]:
    """Return the terms of a chunk of a sum, and how many chunks there are."""
    wanted = max(1, min(_ENOUGH // groups, c.k // _CHUNK)) if groups < _TOO_FEW else 1
    length = -(-c.k // wanted // 4) * 4
    return length, -(-c.k // length)


def _within(f: Shader, first: str, further: int, size: int) -> str:
    """Return ``first + further``, limited to the last index."""
    return f.let("u32", f"min({first} + {further}u, {size - 1}u)")


def add_up(f: Shader, work: Working, shared: str, count: int, invocations: int, left: int = 1) -> None:
    """Add up what the invocations have stored in `shared`.

    It is an array for each of `count` sums; `left` totals of each remain: total i is that of the elements i, i + left, i + 2 left, ….
    """
    with f.block(f"for (var half = {invocations // 2}u; half >= {left}u; half /= 2u)"):
        f.emit("workgroupBarrier();")
        with f.block("if (local < half)"):
            for sum_index in range(count):
                mine, other = (f"{shared}[local + {sum_index * invocations}u{more}]" for more in ("", " + half"))
                f.emit(f"{mine} = {work.add(mine, other)};")
    f.emit("workgroupBarrier();")
