"""The numbers of each query from which the gradients of attention follow.

A first dispatch writes them to a workspace.
"""

from __future__ import annotations

import math

import numpy as np

from volta_fn.compiler.attention import Attention, Rows
from volta_fn.runtime.llvm.text import Value, i64
from volta_fn.targets.nvidia.attention.tiles import ELEMENTS, FragmentKernel
from volta_fn.targets.nvidia.function import ZERO, KernelFunction, f32, i32
from volta_fn.targets.nvidia.kernel import KernelHeader, kernel_dispatch
from volta_fn.targets.nvidia.matmul.problem import UNIT
from volta_fn.targets.wgsl.routine import Dispatch

# The buffers of the routine.
_Q, _K, _V, _OUT, _STATISTICS, _COTANGENT, TO_Q, TO_K, TO_V, _WORK = range(10)

#: The first bindings of the kernels of gradients, which follow.
OPERANDS = _Q, _K, _V, _COTANGENT, _WORK

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
    head, position = f.divided(f.umin(row, i32(count - 1)), _padded(a))
    query = f.umin(position, i32(a.queries - 1))
    results, cotangents = (_unit(f, f.bindings[binding], rows, head, query, unit) for binding, rows in ((0, a.out), (2, cotangent)))
    total = ZERO
    for x, y in zip(results, cotangents, strict=True):
        total = f.fma(x, y, total)
    total = f.reduce_lanes(f.fadd, total, [units >> k for k in range(1, units.bit_length())])
    with f.only_if(f.binary("and", f.equals(unit, 0), f.below(row, count))):
        at = f.further(f.bindings[1], f.times(f.plus(f.times(head, a.queries), query), 8))
        largest, weights = f.load("float", at, 8), f.load("float", f.further(at, i64(4)), 4)
        exponent = f.intrinsic("llvm.nvvm.lg2.approx.f", "float", weights)
        exponent = f.fma(largest, f32(math.log2(math.e)), exponent)
        to = pair_pointer(f, a, 3, head, position)
        exists = f.below(position, a.queries)
        for k, x in enumerate((exponent, total)):
            f.store(f.select(exists, f.let("float", f"fneg {x}"), ZERO), f.further(to, i64(4 * k)), 8 - 4 * k)
    buffers, blocks = (_OUT, _STATISTICS, _COTANGENT, _WORK), -(-count * units // _THREADS)
    return kernel_dispatch(KernelHeader(_THREADS, 0), buffers, 1, f.text(), blocks)


def _unit(f: KernelFunction, base: Value, rows: Rows, head: Value, row: Value, unit: Value) -> list[Value]:
    """Load eight neighbours of a row, as float32."""
    offset = f.wide_times(row, rows.step)
    total = f.binary("add", f.offset(head, rows.heads), f.binary("add", offset, f.widened_index(f.times(unit, ELEMENTS))))
    words = f.load("<4 x i32>", f.element(base, total, 2), 16)
    if rows.dtype == np.float16:
        return [f.cast("fpext", half, "float") for half in f.elements(f.cast("bitcast", words, "<8 x half>"))]
    return [number for word in f.elements(words) for number in f.unpacked(word, rows.dtype)]


# What other kernels read.


def pair_pointer(f: KernelFunction, a: Attention, binding: int, head: Value, query: Value) -> Value:
    """Return the pointer to the numbers of a query in the workspace."""
    return f.further(f.bindings[binding], f.times(f.plus(f.times(head, _padded(a)), query), PAIR))


def row_pair(f: KernelFunction, a: Attention, binding: int, head: Value, query: Value) -> list[Value]:
    """Load the numbers of a query; those beyond the last get its own."""
    at = pair_pointer(f, a, binding, head, f.umin(query, i32(a.queries - 1)))
    return [f.load("float", at, 8), f.load("float", f.further(at, i64(4)), 4)]


def column_pairs(kernel: FragmentKernel, offset: Value, columns: int) -> list[list[list[Value]]]:
    """Load the pairs of the lane's two queries of each eight, from shared memory."""
    f = kernel.f
    base = f.plus(offset, f.times(kernel.t, UNIT))
    result = []
    for n in range(columns // 8):
        numbers = f.elements(f.load("<4 x float>", f.shared(f.plus(base, i32(8 * PAIR * n))), 16))
        result.append([numbers[:2], numbers[2:]])
    return result
