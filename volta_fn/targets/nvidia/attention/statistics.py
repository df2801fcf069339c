"""The numbers of each query from which the gradients of attention follow.

A first dispatch writes them to a workspace.
"""

from __future__ import annotations

import math

from volta_fn.compiler.attention import Attention, Rows
from volta_fn.runtime.llvm.text import Value
from volta_fn.targets.nvidia.attention.tiles import ELEMENTS, ZERO, FragmentKernel, number
from volta_fn.targets.nvidia.kernel import KernelHeader, kernel_module
from volta_fn.targets.nvidia.matmul.function import KernelFunction, i32
from volta_fn.targets.nvidia.matmul.problem import UNIT
from volta_fn.targets.wgsl.routine import Dispatch

# The buffers of the routine.
Q, K, V, _OUT, _STATISTICS, COTANGENT, TO_Q, TO_K, TO_V, WORK = range(10)

#: Bytes of a query's numbers in the workspace: the logarithm to base 2 of the sum of its weights' numerators, and δ, both negated.
PAIR = 8

#: Threads of a block of the first dispatch.
_THREADS = 128


#: What the number of a head's pairs is a multiple of: the queries of the largest tile. Those beyond the last query are zeros.
MOST_QUERIES = 64


def _padded(a: Attention) -> int:
    """Return the pairs of a head in the workspace."""
    return -(-a.queries // MOST_QUERIES) * MOST_QUERIES


def workspace(a: Attention) -> int:
    """Return the bytes of the workspace."""
    return PAIR * a.stack * _padded(a)


# The numbers of each query.


def statistics_dispatch(a: Attention, cotangent: Rows) -> Dispatch:
    """Return the dispatch that writes the numbers of each query to the workspace."""
    f = KernelFunction(0, 4, _THREADS)
    units = a.out.width // ELEMENTS
    line, unit = f.divided(f.thread, units)
    row = f.plus(f.times(f.special("ctaid.x"), _THREADS // units), line)
    count = a.stack * _padded(a)
    head, position = f.divided(f.intrinsic("llvm.umin.i32", "i32", row, i32(count - 1)), _padded(a))
    query = f.intrinsic("llvm.umin.i32", "i32", position, i32(a.queries - 1))
    results, cotangents = (_unit(f, f.bindings[binding], rows, head, query, unit) for binding, rows in ((0, a.out), (2, cotangent)))
    total = ZERO
    for x, y in zip(results, cotangents, strict=True):
        total = f.intrinsic("llvm.fma.f32", "float", x, y, total)
    bit = units // 2
    while bit:
        total = f.binary("fadd", total, f.intrinsic("llvm.nvvm.shfl.sync.bfly.f32", "float", i32(-1), total, i32(bit), i32(31)))
        bit //= 2
    with f.only_if(f.binary("and", f.equals(unit, 0), f.below(row, count))):
        at = f.further(f.bindings[1], f.widened_index(f.times(f.plus(f.times(head, a.queries), query), 8)))
        largest, weights = f.load("float", at, 8), f.load("float", f.further(at, Value("i64", "4")), 4)
        exponent = f.intrinsic("llvm.nvvm.lg2.approx.f", "float", weights)
        exponent = f.intrinsic("llvm.fma.f32", "float", largest, number(math.log2(math.e)), exponent)
        to = pair_pointer(f, a, 3, head, position)
        exists = f.below(position, a.queries)
        for k, x in enumerate((exponent, total)):
            f.store(f.select(exists, f.let("float", f"fneg {x}"), ZERO), f.further(to, Value("i64", str(4 * k))), 8 - 4 * k)
    module = kernel_module(KernelHeader(_THREADS, 0), 4, (3,), f.text())
    groups = -(-count * units // _THREADS)
    return Dispatch(module, (_OUT, _STATISTICS, COTANGENT, WORK), (groups, 1, 1))


def _unit(f: KernelFunction, base: Value, rows: Rows, head: Value, row: Value, unit: Value) -> list[Value]:
    """Load eight neighbours of a row, as float32."""
    offset = f.binary("mul", f.widened_index(row), Value("i64", str(rows.step)))
    total = f.binary("add", f.offset(head, rows.heads), f.binary("add", offset, f.widened_index(f.times(unit, ELEMENTS))))
    words = f.load("<4 x i32>", f.further(base, f.binary("mul", total, Value("i64", "2"))), 16)
    numbers = []
    for k in range(4):
        word = f.let("i32", f"extractelement {words}, i64 {k}")
        if rows.dtype.name == "bfloat16":
            halves = [f.binary("shl", word, i32(16)), f.binary("and", word, i32(-(1 << 16)))]
            numbers += [f.cast("bitcast", half, "float") for half in halves]
        else:
            pair = f.cast("bitcast", word, "<2 x half>")
            numbers += [f.cast("fpext", f.let("half", f"extractelement {pair}, i64 {e}"), "float") for e in range(2)]
    return numbers


# What other kernels read.


def pair_pointer(f: KernelFunction, a: Attention, binding: int, head: Value, query: Value) -> Value:
    """Return the pointer to the numbers of a query in the workspace."""
    return f.further(f.bindings[binding], f.widened_index(f.times(f.plus(f.times(head, _padded(a)), query), PAIR)))


def row_pair(f: KernelFunction, a: Attention, binding: int, head: Value, query: Value) -> list[Value]:
    """Load the numbers of a query; those beyond the last get its own."""
    at = pair_pointer(f, a, binding, head, f.intrinsic("llvm.umin.i32", "i32", query, i32(a.queries - 1)))
    return [f.load("float", at, 8), f.load("float", f.further(at, Value("i64", "4")), 4)]


def column_pairs(kernel: FragmentKernel, offset: Value, columns: int) -> list[list[list[Value]]]:
    """Load the pairs of the lane's two queries of each eight, from shared memory."""
    f = kernel.f
    base = f.plus(offset, f.times(kernel.t, UNIT))
    result = []
    for n in range(columns // 8):
        four = f.load("<4 x float>", f.shared(f.plus(base, i32(8 * PAIR * n))), 16)
        numbers = [f.let("float", f"extractelement {four}, i64 {k}") for k in range(4)]
        result.append([numbers[:2], numbers[2:]])
    return result
