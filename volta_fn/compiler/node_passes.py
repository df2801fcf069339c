"""Passes over the nodes of a fused program.

All targets need the first two, and add what else they need. Long sums of matrix products are split into chunks, whose partial sums the
consuming kernel adds. Kernels move next to kernels that do not depend on them, so that a target may run them in one dispatch. A value
that is several outputs is stored once for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from volta_fn.compiler.contractions import Contraction, contraction_of
from volta_fn.compiler.ir.axes import rewritten, simplified
from volta_fn.compiler.ir.index import ZERO, Affine, along, combine, is_alias, row_major
from volta_fn.compiler.ir.kernel import (
    Apply,
    Buffer,
    DefUse,
    FusedProgram,
    Kernel,
    KernelCall,
    Load,
    Node,
    ProgramNode,
    Store,
    renumbered,
    restricted,
    without_unused_inputs,
    writes,
)
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Atom, Equation, Var
from volta_fn.primitives.call import optimization_barrier_p
from volta_fn.primitives.data_movement.slicing import concatenate_p

# Passes that all targets need: concatenations of many arrays, and aliases.


def split_concatenations(program: FusedProgram, most: int) -> FusedProgram:
    """Split concatenations of more arrays than a kernel can bind."""
    return program._replace(nodes=tuple([new for node in program.nodes for new in _in_groups(node, most)]))


def _in_groups(node: ProgramNode, most: int) -> list[ProgramNode]:
    if isinstance(node, KernelCall) or node.primitive is not concatenate_p or len(node.invars) < most:
        return [node]
    groups = [node.invars[i : i + most - 1] for i in range(0, len(node.invars), most - 1)]
    joined = [Var(node.primitive.abstract(*[v.aval for v in group], **node.params)) for group in groups]
    first: list[ProgramNode] = [node.replace(invars=group, outvars=[var]) for group, var in zip(groups, joined, strict=True)]
    return [*first, *_in_groups(node.replace(invars=[*joined]), most)]


def drop_aliases(program: FusedProgram) -> FusedProgram:
    """Drop reshapes of values in memory, and barriers.

    Their results share their operands' memory. A barrier has done its work when equations are kernels, which keep the order of the program.
    """
    roots: dict[Var, Var] = dict(program.roots)
    nodes: list[ProgramNode] = []
    for node in program.nodes:
        if not isinstance(node, Equation) or not (node.primitive is optimization_barrier_p or is_alias(node)):
            nodes.append(node)
            continue
        literals: list[tuple[Atom, Var]] = []  # which are in no memory yet
        for operand, result in zip(node.invars, node.outvars, strict=True):
            if isinstance(operand, Var):
                roots[result] = roots.get(operand, operand)
            else:
                literals.append((operand, result))
        if literals:
            nodes.append(node.replace(invars=[operand for operand, _ in literals], outvars=[result for _, result in literals]))
    return program._replace(nodes=tuple(nodes), roots=roots)


# Kernels moved to later positions, next to others that do not depend on them.
#
# A target can fuse neighbouring kernels horizontally.


def defer_small_kernels(program: FusedProgram, is_small: Callable[[Kernel], bool]) -> FusedProgram:
    """Move small kernels as late as possible."""
    # A deferred kernel has a *level*: the length of the longest chain of deferred kernels that it depends on. When a node needs a deferred
    # kernel, all kernels of that level and of lower ones are placed before the node, level by level.
    result: list[ProgramNode] = []
    #: The deferred kernels by level, and the levels of the variables that they compute.
    deferred: list[list[ProgramNode]] = []
    levels: dict[Var, int] = {}
    for node in program.nodes:
        level = max([levels.get(v, -1) for v in program.reads(node)], default=-1) + 1
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
    return program._replace(nodes=(*result, *chain(*deferred)))


class DeferralPolicy(NamedTuple):
    """Which matrix products to defer, and when that is worthwhile."""

    is_small: Callable[[Kernel], bool]
    #: Bytes of operands that may be kept for deferred products.
    max_bytes: int
    min_products: int


def defer_products(program: FusedProgram, policy: DeferralPolicy) -> FusedProgram:
    """Move small matrix products to the end, to run in one dispatch."""
    # These are products that no other product depends on, as the gradients of weights: where they are, they would stand between products
    # that depend on each other. Their operands must be kept until then, so only the last of them are deferred, as far as memory permits.
    # Programs of control flow stay as they are.
    chosen = set() if program.nested else _independent_products(program, policy)
    nodes = program.nodes
    end = max(chosen, default=0)
    read_before = {v for node in nodes[:end] for v in program.reads(node)}
    chosen = {n for n in chosen if read_before.isdisjoint(writes(nodes[n]))}
    if len(chosen) < policy.min_products:
        return program
    calls = [node for n in sorted(chosen) if isinstance(node := nodes[n], KernelCall)]
    work = sum(math.prod(call.kernel.sizes) for call in calls)
    rest = [node for n, node in enumerate(nodes[:end]) if n not in chosen]
    return program._replace(nodes=(*rest, *[call._replace(deferred_work=work) for call in calls], *nodes[end + 1 :]))


def _independent_products(program: FusedProgram, policy: DeferralPolicy) -> set[int]:
    """Return the last small products without dependent products or equations."""
    needed: set[Var] = set()
    chosen: set[int] = set()
    budget = policy.max_bytes
    for number in reversed(range(len(program.nodes))):
        node = program.nodes[number]
        is_needed = not needed.isdisjoint(writes(node))
        is_product = not isinstance(node, KernelCall) or contraction_of(node.kernel) is not None
        if is_product and not is_needed and isinstance(node, KernelCall) and policy.is_small(node.kernel):
            budget -= sum(b.size * b.dtype.itemsize for b in node.kernel.inputs)
            if budget >= 0:
                chosen.add(number)
        if is_product or is_needed:
            needed.update(program.reads(node))
    return chosen


# Values that are several outputs: stored once for each, rather than copied.


def duplicate_outputs(program: FusedProgram, most: int) -> FusedProgram:
    """Store an output that aliases another separately, in the kernel that computes it.

    This concerns programs in control flow, whose outputs are stored separately. No kernel gets more than `most` buffers.
    """
    if not program.nested:
        return program
    producers = {v: number for number, node in enumerate(program.nodes) if isinstance(node, KernelCall) for v in node.results}
    nodes: list[ProgramNode] = [*program.nodes]
    outputs, seen, roots = list[Atom](), set[Var](), dict(program.roots)
    for out in program.outputs:
        root = program.root(out) if isinstance(out, Var) else None
        number = producers.get(root) if root in seen else None
        node = nodes[number] if number is not None else None
        if root is not None and number is not None and isinstance(node, KernelCall) and len(node.operands) + len(node.results) < most:
            stored, out = Var(root.aval), Var(out.aval)
            roots[out] = stored  # of another shape, if the output is a reshape
            kernel = replace(node.kernel, stores=(*node.kernel.stores, node.kernel.stores[node.results.index(root)]))
            nodes[number] = node._replace(kernel=kernel, results=(*node.results, stored))
        elif root is not None:
            seen.add(root)
        outputs.append(out)
    return program._replace(closed=program.closed.replace(outvars=outputs), nodes=tuple(nodes), roots=roots)


# Split-K: long sums of matrix products are split in chunks.
#
# A product with few results and long sums is fastest as a stack of products over chunks of its sum, because then there is work for all
# of a device. Adding the partial sums is little work, but a dispatch of its own would be one more to wait for. Where a kernel over rows
# reads the result, it adds the partial sums itself, applies the product's epilogue, and stores the result if other nodes need it.

#: The longest rows: a device may make several passes over a longer one, and would compute the prologue in each.
_LONGEST = 2048


def split_k_into_consumers(program: FusedProgram, splits: Callable[[Kernel], int], most: int) -> FusedProgram:
    """Split matrix products whose partial sums a consumer can add.

    `splits` gives the best number of chunks of a product. No kernel gets more than `most` buffers.
    """
    index = DefUse(program.nodes, program.roots)
    outputs = {program.root(v) for v in program.outputs if isinstance(v, Var)}
    nodes: list[ProgramNode | None] = [*program.nodes]
    inserted: dict[int, list[ProgramNode]] = {}
    for number, node in enumerate(program.nodes):
        if not isinstance(node, KernelCall) or nodes[number] is not node:
            continue
        split = split_product(node, splits(node.kernel))
        use = None if split is None else _consumer(program, index, outputs, split.adding, nodes)
        if split is not None and use is not None and len(use.call.operands) + len(use.call.results) <= most:
            nodes[number], nodes[use.number] = split.products, None
            inserted.setdefault(use.before, []).append(use.call)
    return program._replace(
        nodes=tuple([x for n, node in enumerate(nodes) for x in (*inserted.get(n, []), *([] if node is None else [node]))])
    )


class _Consumer(NamedTuple):
    """The node that adds partial sums."""

    number: int
    #: Its replacement, and the number of the node to insert that before.
    call: KernelCall
    before: int


def _consumer(
    program: FusedProgram, index: DefUse, outputs: Collection[Var], adding: KernelCall, nodes: Sequence[ProgramNode | None]
) -> _Consumer | None:
    """Return the first consumer of a product that can add its partial sums.

    No other node may read the product's results before it.
    """
    consumers = sorted({n for v in adding.results for n in index.consumers.get(v, [])})
    for n in consumers:
        node = nodes[n]
        if not isinstance(node, KernelCall) or node is not program.nodes[n]:
            continue
        between = {v for other in program.nodes[consumers[0] : n] for v in writes(other)}
        if not between.isdisjoint(program.reads(node)):
            continue
        stored = {v for v in adding.results if v in outputs or set(index.consumers.get(v, [])) - {n}}
        call = fuse_prologue(adding, node, stored, program.root)
        if call is not None:
            return _Consumer(n, call, consumers[0])
    return None


class SplitProduct(NamedTuple):
    """A stack of products over chunks of a sum, and the kernel that adds its results.

    The stack's result has the shape (chunks, rows, columns).
    """

    products: KernelCall
    adding: KernelCall


def split_product(call: KernelCall, chunks: int) -> SplitProduct | None:
    """Split the sum of a matrix product in equal chunks; None if that is impossible."""
    product = contraction_of(call.kernel)
    if product is None or chunks < 2 or len(product.summed) != 1 or product.kernel.sizes[-1] % chunks:
        return None
    kernel = product.kernel
    terms, last = kernel.sizes[-1] // chunks, kernel.parallel
    axes = {a: along(a + 1) for a in range(last)} | {last: combine([(terms, along(0)), (1, along(last + 1))])}
    stack = rewritten(kernel, (chunks, *kernel.sizes[:-1], terms), last + 1, axes)
    dimensions = [(*product.batch, *product.rows), product.columns]
    sizes = [tuple([kernel.sizes[a] for a in axes]) for axes in dimensions]
    index = [row_major(tuple([along(a + 1) for a in axes]), size) for axes, size in zip(dimensions, sizes, strict=True)]
    shape = (chunks, *[product.size(axes) for axes in dimensions])
    kernel, inputs = without_unused_inputs(restricted(replace(stack, stores=(Store(shape, (along(0), *index), product.total),)), [0]))
    sums = Var(ShapedArray(kernel.stores[0].shape, kernel.outputs[0].dtype))
    products = KernelCall(kernel, tuple([call.operands[n] for n in inputs]), (sums,))
    kernel, inputs = _summing_kernel(product, chunks)
    return SplitProduct(products, KernelCall(kernel, (sums, *[call.operands[n] for n in inputs]), call.results))


def _summing_kernel(product: Contraction, chunks: int) -> tuple[Kernel, tuple[int, ...]]:
    """Return the kernel that adds partial sums and applies the epilogue.

    Its first input has the partial sums; return which of the product's inputs follow.
    """
    kernel, inputs = product.epilogue()
    nodes: list[Node] = []
    new: dict[int, int] = {}
    for n, node in enumerate(kernel.nodes):
        if isinstance(node, Load) and node.input == 0:
            # Append the loads of all partial sums and their additions, one after the other.
            for chunk in range(chunks):
                nodes.append(replace(node, shape=(chunks, *node.shape), index=(ZERO.plus(chunk), *node.index)))
                if chunk:
                    nodes.append(Apply(node.dtype, "add", (len(nodes) - 2, len(nodes) - 1)))
        else:
            nodes.append(renumbered(node, new))
        new[n] = len(nodes) - 1
    sums = kernel.inputs[0]
    stores = tuple([replace(s, value=new[s.value]) for s in kernel.stores])
    return replace(kernel, inputs=(Buffer(chunks * sums.size, sums.dtype), *kernel.inputs[1:]), nodes=tuple(nodes), stores=stores), inputs


# Prologue fusion: an elementwise kernel joins the row kernel that reads its results.


def fuse_prologue(first: KernelCall, second: KernelCall, stored: Collection[Var], root: Callable[[Var], Var]) -> KernelCall | None:
    """Return the second kernel with the first as its prologue; None if impossible.

    The fused kernel also stores the results of the first that are in `stored`. `root` gives the variable whose memory a variable has.
    """
    read = [root(v) for v in second.operands]
    forms = [(rows, _axes(first, rows, read)) for rows in (simplified(second.kernel), second.kernel)]
    rows, axes = next((form for form in forms if form[1] is not None), forms[0])
    if axes is None:
        return None
    head = rewritten(first.kernel, rows.sizes, rows.parallel, axes)
    variables = list(dict.fromkeys([*[root(v) for v in first.operands], *[v for v in read if v not in first.results]]))
    inputs = {n: variables.index(root(v)) for n, v in enumerate(first.operands)}
    nodes = [renumbered(node, {n: n for n in range(len(head.nodes))}, inputs) for node in head.nodes]
    computed = {v: s.value for v, s in zip(first.results, head.stores, strict=True)}
    inputs = {n: variables.index(v) for n, v in enumerate(read) if v not in computed}
    new: dict[int, int] = {}
    for n, node in enumerate(rows.nodes):
        if isinstance(node, Load) and node.input not in inputs:
            new[n] = computed[read[node.input]]
        else:
            new[n] = len(nodes)
            nodes.append(renumbered(node, new, inputs))
    stores = [(replace(s, value=new[s.value]), v) for s, v in zip(rows.stores, second.results, strict=True)]
    stores += [(s, v) for s, v in zip(head.stores, first.results, strict=True) if v in stored]
    buffers = dict(zip([*[root(v) for v in first.operands], *read], (*head.inputs, *rows.inputs), strict=True))
    kernel = Kernel(rows.sizes, rows.parallel, tuple([buffers[v] for v in variables]), tuple(nodes), tuple([s for s, _ in stores]))
    return KernelCall(kernel, tuple(variables), tuple([v for _, v in stores]))


def _axes(first: KernelCall, rows: Kernel, read: Sequence[Var]) -> dict[int, Affine] | None:
    """Return the first kernel's axes as those of the second.

    None unless the second reads each element where it is computed.
    """
    if len(rows.reduction_axes) != 1 or rows.sizes[-1] > _LONGEST:
        return None
    candidates: list[dict[int, Affine]] = []
    for load in [node for node in rows.nodes if isinstance(node, Load) and read[node.input] in first.results]:
        store = first.kernel.stores[first.results.index(read[load.input])]
        stored, loaded = row_major(store.index, store.shape), row_major(load.index, load.shape)
        strides = {(stride, rows.sizes[axis]): axis for axis, stride in loaded.terms}
        axes = {axis: along(strides[key]) for axis, stride in stored.terms if (key := (stride, first.kernel.sizes[axis])) in strides}
        one_to_one = len(axes) == len(first.kernel.sizes) == len(rows.sizes) and not load.mask and stored.offset == loaded.offset
        if not one_to_one or strides.get((1, rows.sizes[-1])) != rows.parallel:
            return None
        candidates.append(axes)
    return candidates[0] if candidates and all(axes == candidates[0] for axes in candidates) else None
