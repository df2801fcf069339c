"""Kernels in as few axes as possible: the form that code generators print from.

Axes of one iteration go; two axes that every load, store, position and condition walks as one (a step of the first is as long as all steps
of the second) become one; arrays are seen in as few dimensions as their conditions allow. Values, and the order of reductions, stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from volta_fn.compiler.ir.index import ZERO, Affine, Index, Range, combine
from volta_fn.compiler.ir.kernel import Apply, Constant, Inside, Kernel, Load, Node, Position, Reduce, Store, affines
from volta_fn.compiler.ir.views import row_major
from volta_fn.core.aval import Shape


@lru_cache(maxsize=1024)
def simplified(kernel: Kernel) -> Kernel:
    """Return the same kernel in fewer axes; outputs have at most one dimension."""
    kernel = _without_reductions_of_single_elements(_without_single_axes(kernel))
    if 0 in kernel.sizes:
        return kernel
    kernel = replace(
        kernel, nodes=tuple([_flattened(kernel, node) for node in kernel.nodes]), stores=tuple([_flat_store(s) for s in kernel.stores])
    )
    while (pair := next(_mergeable(kernel), None)) is not None:
        kernel = _merged(kernel, *pair)
    return kernel


def rewritten(kernel: Kernel, sizes: tuple[int, ...], parallel: int, axes: Mapping[int, Affine]) -> Kernel:
    """Write every axis of a kernel in terms of others."""

    def index(old: Index) -> Index:
        return tuple([a.replaced(axes) for a in old])

    def ranges(old: Sequence[Range]) -> tuple[Range, ...]:
        return tuple([r._replace(value=r.value.replaced(axes)).canonical() for r in old])

    def node(old: Node) -> Node:
        if isinstance(old, Load):
            return replace(old, index=index(old.index), mask=ranges(old.mask))
        if isinstance(old, Position):
            return replace(old, value=old.value.replaced(axes))
        return replace(old, ranges=ranges(old.ranges)) if isinstance(old, Inside) else old

    stores = tuple([replace(s, index=index(s.index)) for s in kernel.stores])
    return replace(kernel, sizes=sizes, parallel=parallel, nodes=tuple(map(node, kernel.nodes)), stores=stores)


def _without_single_axes(kernel: Kernel) -> Kernel:
    """Drop axes of one iteration."""
    if 1 not in kernel.sizes:
        return kernel
    kept = [a for a, n in enumerate(kernel.sizes) if n != 1]
    axes = {a: Affine(((kept.index(a), 1),), 0) if a in kept else ZERO for a in range(len(kernel.sizes))}
    return rewritten(kernel, tuple([kernel.sizes[a] for a in kept]), sum(a < kernel.parallel for a in kept), axes)


def _without_reductions_of_single_elements(kernel: Kernel) -> Kernel:
    """Replace reductions over rows of one element by that element."""
    if kernel.reduction_axes:
        return kernel
    nodes: list[Node] = []
    new: list[int] = []
    for node in kernel.nodes:
        if isinstance(node, Reduce) and not node.is_index:
            new.append(new[node.operand])
            continue
        if isinstance(node, Reduce):
            node = Constant.of(0, node.dtype)
        elif isinstance(node, Apply):
            node = replace(node, operands=tuple([new[i] for i in node.operands]))
        new.append(len(nodes))
        nodes.append(node)
    return replace(kernel, nodes=tuple(nodes), stores=tuple([replace(s, value=new[s.value]) for s in kernel.stores]))


def _flattened(kernel: Kernel, node: Node) -> Node:
    """Drop conditions that always hold, and merge dimensions without conditions."""
    if isinstance(node, Inside):
        ranges = _undecided(node.ranges, kernel.sizes)
        return replace(node, ranges=ranges) if ranges else Constant.of(ranges is not None, np.dtype(np.bool_))
    if not isinstance(node, Load):
        return node
    mask = _undecided(node.mask, kernel.sizes)
    if mask is None:
        return node.fill
    shape: list[int] = []
    index: list[Affine] = []
    free = False  # whether the dimension before may take in another
    for size, affine in zip(node.shape, node.index, strict=True):
        inside = bool(Range(affine, 0, size).holds(kernel.sizes))
        if inside and (free or size == 1):
            if size != 1:
                shape[-1], index[-1] = shape[-1] * size, combine([(size, index[-1]), (1, affine)])
            continue
        shape.append(size)
        index.append(affine)
        free = inside
    return replace(node, shape=tuple(shape), index=tuple(index), mask=mask)


def _undecided(ranges: Sequence[Range], sizes: Sequence[int]) -> tuple[Range, ...] | None:
    """Return the conditions that do not always hold; None if one never holds."""
    held = [(r, r.holds(sizes)) for r in ranges]
    return None if any(h is False for _, h in held) else tuple([r for r, h in held if h is None])


def _flat_store(store: Store) -> Store:
    shape: Shape = (math.prod(store.shape),)
    return (
        replace(store, shape=shape, index=(row_major(store.index, store.shape),)) if shape != (1,) else replace(store, shape=(), index=())
    )


def _mergeable(kernel: Kernel) -> Iterator[tuple[int, int]]:
    """Yield pairs of axes that can be merged.

    A step of the first is as long as all steps of the second. Reduction axes must be neighbours, because their order counts.
    """
    used = {a for node in kernel.nodes for a in affines(node)} | {a for store in kernel.stores for a in store.index}
    terms = [dict(a.terms) for a in used]
    for first in range(len(kernel.sizes)):
        others = range(kernel.parallel) if first < kernel.parallel else range(first + 1, min(first + 2, len(kernel.sizes)))
        for second in others:
            size = kernel.sizes[second]
            if first != second and all(t.get(first, 0) == t.get(second, 0) * size for t in terms):
                yield first, second


def _merged(kernel: Kernel, first: int, second: int) -> Kernel:
    """Merge the axis `first` into `second`."""
    kept = [a for a in range(len(kernel.sizes)) if a != first]
    sizes = tuple([kernel.sizes[a] * (kernel.sizes[first] if a == second else 1) for a in kept])
    axes = {a: Affine(((kept.index(a), 1),), 0) for a in kept} | {first: ZERO}
    return rewritten(kernel, sizes, kernel.parallel - (first < kernel.parallel), axes)
