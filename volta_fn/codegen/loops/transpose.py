"""Transposes: kernels whose loads and stores are contiguous along different axes."""

from __future__ import annotations

from collections import Counter

from volta_fn.compiler.ir.analysis import KernelAnalysis, coefficient


def crossing_loads(analysis: KernelAnalysis, axis: int, least: int, *, backward: bool) -> tuple[int, list[int]] | None:
    """Return the crossing loads, and the axis along which they are contiguous.

    That axis has at least `least` iterations; if `backward`, reversed loads count, too. None if there is no such axis.
    """
    sizes, steps = analysis.kernel.sizes, (1, -1) if backward else (1,)
    across = {n: p for n, p in analysis.load_offsets.items() if coefficient(p, axis) not in (0, 1, -1)}
    found = Counter(a for p in across.values() for a, c in p.terms if c in steps and sizes[a] >= least)
    if not found:
        return None
    other = min(found, key=lambda a: (-found[a], a))
    return other, [n for n, p in across.items() if coefficient(p, other) in steps]
