"""The gradient of attention by its bias, block by block.

It is the cotangent of the logits, P (D Vᵀ - δ), summed over all that share an element of the bias: heads, queries or keys along which it is
broadcast. A workgroup computes the elements of a block of keys and a block of queries of one of the bias's heads, of which there are one
where the bias is broadcast. It recomputes the blocks of weights that share its elements, and adds up their cotangents in registers. So no
block is stored, and no two workgroups add to the same element.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod

from volta_fn.compiler.attention import LogitWalk
from volta_fn.primitives.call import Window
from volta_fn.targets.wgsl.attention.blocks import BARRIER, FLOAT, AttentionShader, Patch, component, sum_of
from volta_fn.targets.wgsl.matmul.results import Working, strided_offset
from volta_fn.targets.wgsl.routine import Dispatch
from volta_fn.targets.wgsl.shader import times

#: ``body(head, query, key, sums)`` adds the cotangents of a head's block of logits to sums.
AddBlock = Callable[[str, str, str, Patch], None]


def bias_gradient(b: AttentionShader, bias: LogitWalk, result: int, add_block: AddBlock) -> Dispatch:
    """Return the dispatch of the gradient by a bias, which is the buffer `result`.

    Rows of blocks are keys, columns are queries.
    """
    a, f, s = b.a, b.f, b.schedule
    tiles, blocks = -(-a.keys // s.rows), -(-a.queries // s.columns)
    heads = [*zip(bias.heads.sizes, bias.heads.strides, strict=True)]
    distinct = [size for size, stride in heads if stride]
    shared = [size for size, stride in heads if not stride]
    sizes = (prod(distinct), tiles if bias.key else 1, blocks if bias.query else 1)
    bias_head, tile, block = f.digits(f.group, sizes)
    fixed = f.digits(bias_head, distinct)
    sums = b.zeros(s.across)

    with f.loop(prod(shared)) as index:
        coordinates = {True: iter(fixed), False: iter(f.digits(index, shared))}
        head = "0u"
        for size, stride in heads:
            head = f.let("u32", f"{head} * {size}u + {next(coordinates[stride != 0])}")
        with f.loop(1 if bias.key else tiles) as i, f.loop(1 if bias.query else blocks) as j:
            key, query = f.let("u32", f"({tile} + {i}) * {s.rows}u"), f.let("u32", f"({block} + {j}) * {s.columns}u")
            start, end = b.seen_range(key, s.rows, Window(a.window.after, a.window.before), a.queries, s.columns)
            with f.block(f"if ({query} >= {start} && {query} < {end})"):
                add_block(head, query, key, sums)
    array = f.buffer(result, bias.dtype, True)
    at = strided_offset(f, fixed, [stride for stride in bias.heads.strides if stride])
    keys, queries = b.row_numbers(f"{tile} * {s.rows}u"), b.column_numbers(f"{block} * {s.columns}u")

    def store(key: str, query: str, value: str, *conditions: str) -> None:
        exists = [f"{key} < {a.keys}u"] if bias.key else []
        exists += [f"{query} < {a.queries}u"] if bias.query else []
        with f.block(f"if ({' && '.join([*conditions, *exists]) or 'true'})"):
            index = f.let("u32", f"{at} + {times(key, bias.key)} + {times(query, bias.query)}")
            array.store(index, Working(FLOAT).convert_sum(f, value, bias.dtype))

    if bias.key and bias.query:
        for (r, key), (c, query) in product(enumerate(keys), enumerate(queries)):
            store(key, query, component(sums, r, c))
    elif bias.key:
        for key, total in zip(keys, _over_columns(b, sums), strict=True):
            store(key, "0u", total, f"{b.x} == 0u")
    elif bias.query:
        for query, total in zip(queries, _over_rows(b, sums), strict=True):
            store("0u", query, total, f"{b.y} == 0u")
    else:
        store("0u", "0u", _over_all(b, sums), f"{b.x} == 0u", f"{b.y} == 0u")
    return f.dispatch(prod(sizes), a.products)


def _over_columns(b: AttentionShader, sums: Patch) -> list[str]:
    """Emit the sums over the columns of a block, for each of an invocation's rows."""
    b.exchange([b.f.let("f32", sum_of(b.f, vectors)) for vectors in sums])
    return [b.f.let("f32", sum_of(b.f, b.exchanged(row))) for row in b.row_numbers("0u")]


def _over_rows(b: AttentionShader, sums: Patch) -> list[str]:
    """Emit the sums over the rows of a block, for each of an invocation's columns."""
    f, s = b.f, b.schedule
    assert s.across <= s.down, "there is memory for a number of each invocation's rows"
    width = s.x * s.across
    for n, vectors in enumerate(zip(*sums, strict=True)):
        f.emit(f"{b.memory}[{b.after_weights}u + {b.y} * {width}u + {b.x} + {n * s.x}u] = {' + '.join(vectors)};")
    f.emit(BARRIER)
    totals = [f.var("vec4<f32>", "vec4<f32>()") for _ in range(s.across)]
    with f.loop(s.y) as y:
        for n, total in enumerate(totals):
            f.emit(f"{total} += {b.memory}[{b.after_weights}u + {y} * {width}u + {b.x} + {n * s.x}u];")
    return [f"{total}.{c}" for total in totals for c in "xyzw"]


def _over_all(b: AttentionShader, sums: Patch) -> str:
    """Emit the sum over a block."""
    f, s = b.f, b.schedule
    b.exchange([f.let("f32", sum_of(f, vectors)) for vectors in sums])
    total = f.var("vec4<f32>", "vec4<f32>()")
    with f.loop(s.rows * s.x // 4) as n:
        f.emit(f"{total} += {b.memory}[{b.after_weights}u + {n}];")
    return sum_of(f, [total])
