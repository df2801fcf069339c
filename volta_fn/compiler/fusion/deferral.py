"""Kernels moved to later positions, next to others that do not depend on them.

There a target can fuse them horizontally.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

from volta_fn.compiler.ir.contraction import contraction_of
from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.compiler.ir.nodes import FusedProgram, KernelCall, Node, writes
from volta_fn.core.jaxpr import Var


def defer_small_kernels(found: FusedProgram, is_small: Callable[[Kernel], bool]) -> FusedProgram:
    """Move small kernels as late as possible.

    A deferred kernel has a *level*: the length of the longest chain of deferred kernels that it depends on. When a node needs a
    deferred kernel, all kernels of that level and of lower ones are placed before the node, level by level.
    """
    result: list[Node] = []
    #: The deferred kernels by level, and the levels of the variables that they compute.
    deferred: list[list[Node]] = []
    levels: dict[Var, int] = {}
    for node in found.nodes:
        level = max([levels.get(v, -1) for v in found.reads(node)], default=-1) + 1
        if isinstance(node, KernelCall) and is_small(node.kernel):
            deferred += [[]] * (level == len(deferred))
            deferred[level] = [*deferred[level], node]
            levels.update(dict.fromkeys(node.results, level))
            continue
        if level:
            result += chain(*deferred[:level])
            deferred = deferred[level:]
            levels = {v: old - level for v, old in levels.items() if old >= level}
        result.append(node)
    return found._replace(nodes=(*result, *chain(*deferred)))


class DeferralPolicy(NamedTuple):
    """Which matrix products to defer, and when that is worthwhile."""

    is_small: Callable[[Kernel], bool]
    #: Bytes of operands that may be kept for deferred products.
    max_bytes: int
    min_products: int


def defer_products(found: FusedProgram, policy: DeferralPolicy) -> FusedProgram:
    """Move small matrix products to the end, to run in one dispatch.

    These are products that no other product depends on, as the gradients of weights: where they are, they would stand between products
    that depend on each other. Their operands must be kept until then, so only the last of them are deferred, as far as memory permits.
    Programs of control flow stay as they are.
    """
    chosen = set() if found.nested else _independent_products(found, policy)
    nodes = found.nodes
    end = max(chosen, default=0)
    read_before = {v for node in nodes[:end] for v in found.reads(node)}
    chosen = {n for n in chosen if read_before.isdisjoint(writes(nodes[n]))}
    if len(chosen) < policy.min_products:
        return found
    calls = [node for n in sorted(chosen) if isinstance(node := nodes[n], KernelCall)]
    batch = sum(math.prod(call.kernel.sizes) for call in calls)
    rest = [node for n, node in enumerate(nodes[:end]) if n not in chosen]
    return found._replace(nodes=(*rest, *[call._replace(batch_products=batch) for call in calls], *nodes[end + 1 :]))


def _independent_products(found: FusedProgram, policy: DeferralPolicy) -> set[int]:
    """Return the last small products that no product or equation depends on."""
    needed: set[Var] = set()
    chosen: set[int] = set()
    budget = policy.max_bytes
    for number in reversed(range(len(found.nodes))):
        node = found.nodes[number]
        is_needed = not needed.isdisjoint(writes(node))
        is_product = not isinstance(node, KernelCall) or contraction_of(node.kernel) is not None
        if is_product and not is_needed and isinstance(node, KernelCall) and policy.is_small(node.kernel):
            budget -= sum(b.size * b.dtype.itemsize for b in node.kernel.inputs)
            if budget >= 0:
                chosen.add(number)
        if is_product or is_needed:
            needed.update(found.reads(node))
    return chosen
