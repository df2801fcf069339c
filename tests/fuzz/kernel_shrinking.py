"""Smaller kernels that still show a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.kernel_drawing import moved, pruned
from volta_fn.compiler.ir.axes import rewritten
from volta_fn.compiler.ir.index import ZERO, along, combine
from volta_fn.compiler.ir.kernel import Apply, Buffer, Constant, Kernel, Load, Reduce, Store, affines, check_kernel, operands
from volta_fn.errors import VoltaError

#: Attempts after which a kernel is small enough.
_ATTEMPTS = 400


def shrunk(kernel: Kernel, fails: Callable[[Kernel], bool]) -> Kernel:
    """Return a small kernel that fails, given one that does."""
    attempts = 0
    while True:
        for smaller in _smaller(kernel):
            if not _is_well_formed(smaller):
                continue
            attempts += 1
            if attempts > _ATTEMPTS:
                return kernel
            if fails(smaller):
                kernel = smaller
                break
        else:
            return kernel


def _is_well_formed(kernel: Kernel) -> bool:
    try:
        check_kernel(kernel)
    except (VoltaError, IndexError):
        return False
    depends = _depends(kernel)
    return bool(kernel.stores) and all(depends[s.value] <= {a for i in s.index for a in i.axes} | _single(kernel) for s in kernel.stores)


def _single(kernel: Kernel) -> set[int]:
    return {a for a, n in enumerate(kernel.sizes) if n == 1}


def _depends(kernel: Kernel) -> list[set[int]]:
    result: list[set[int]] = []
    for node in kernel.nodes:
        axes = {a for affine in affines(node) for a in affine.axes}.union(*[result[i] for i in operands(node)])
        result.append(axes - set(kernel.reduction_axes) if isinstance(node, Reduce) else axes)
    return result


def _smaller(kernel: Kernel) -> Iterator[Kernel]:
    """Yield kernels that are smaller by one step, the much smaller ones first."""
    for s in range(len(kernel.stores)):
        yield pruned(replace(kernel, stores=kernel.stores[:s] + kernel.stores[s + 1 :]))
    for axis, size in enumerate(kernel.sizes):
        for fewer in dict.fromkeys([1, 2, size // 4, size // 2, size - 1]):
            if 0 < fewer < size:
                yield _resized(kernel, axis, fewer)
    if 1 in kernel.sizes:
        yield _without_single_axes(kernel)
    for n in reversed(range(len(kernel.nodes))):
        yield from _without(kernel, n)
    yield from _inputs(kernel)


def _without(kernel: Kernel, number: int) -> Iterator[Kernel]:
    """Yield the kernel with a node replaced by one of its operands, or by a constant, or without its mask."""
    node = kernel.nodes[number]
    for operand in operands(node):
        if kernel.nodes[operand].dtype == node.dtype:
            numbers = {n: operand if n == number else n for n in range(len(kernel.nodes))}
            nodes = tuple([moved(x, numbers, {i: i for i in range(len(kernel.inputs))}) for x in kernel.nodes])
            yield pruned(replace(kernel, nodes=nodes, stores=tuple([replace(s, value=numbers[s.value]) for s in kernel.stores])))
    for s, store in enumerate(kernel.stores):
        if store.value == number:
            for operand in operands(node):
                stores = (*kernel.stores[:s], replace(store, value=operand), *kernel.stores[s + 1 :])
                yield pruned(replace(kernel, stores=stores))
    if not isinstance(node, Constant):
        yield pruned(_with(kernel, number, Constant.of(1, node.dtype)))
    if isinstance(node, Load) and node.mask:
        yield _with(kernel, number, replace(node, mask=(), fill=Constant.of(0, node.dtype)))
        for k in range(len(node.mask)):
            yield _with(kernel, number, replace(node, mask=node.mask[:k] + node.mask[k + 1 :]))
    if isinstance(node, Apply) and node.op in ("sub", "mul", "div", "max", "min") and node.dtype.kind != "b":
        yield _with(kernel, number, replace(node, op="add", params=()))


def _with(kernel: Kernel, number: int, node: object) -> Kernel:
    return replace(kernel, nodes=(*kernel.nodes[:number], node, *kernel.nodes[number + 1 :]))  # type: ignore[arg-type]


def _resized(kernel: Kernel, axis: int, size: int) -> Kernel:
    """Return the kernel with fewer iterations of an axis; outputs have one dimension per axis."""
    sizes = (*kernel.sizes[:axis], size, *kernel.sizes[axis + 1 :])
    stores = []
    for store in kernel.stores:
        shape, index = [], []
        for affine in store.index:
            shape.append(affine.bounds(sizes)[1] - affine.bounds(sizes)[0] + 1)
            index.append(affine.plus(-affine.bounds(sizes)[0]))
        stores.append(Store(tuple(shape), tuple(index), store.value))
    return replace(kernel, sizes=sizes, stores=tuple(stores))


def _without_single_axes(kernel: Kernel) -> Kernel:
    rest = [a for a, n in enumerate(kernel.sizes) if n != 1]
    axes = {a: along(rest.index(a)) if a in rest else ZERO for a in range(len(kernel.sizes))}
    smaller = rewritten(kernel, tuple([kernel.sizes[a] for a in rest]), sum(a < kernel.parallel for a in rest), axes)
    stores = []
    for store in smaller.stores:
        places = [d for d, n in enumerate(store.shape) if n != 1]
        stores.append(Store(tuple([store.shape[d] for d in places]), tuple([store.index[d] for d in places]), store.value))
    return replace(smaller, stores=tuple(stores))


def _inputs(kernel: Kernel) -> Iterator[Kernel]:
    """Yield the kernel with an input of fewer elements, or seen without offsets and steps."""
    for number, buffer in enumerate(kernel.inputs):
        loads = {n: node for n, node in enumerate(kernel.nodes) if isinstance(node, Load) and node.input == number}
        shapes = {node.shape for node in loads.values()}
        if len(shapes) != 1:
            continue
        (shape,) = shapes
        for d, size in enumerate(shape):
            needed = max([node.index[d].bounds(kernel.sizes)[1] + 1 for node in loads.values()])
            for fewer in dict.fromkeys([needed, size // 2, size - 1]):
                if 0 < fewer < size:
                    yield _reshaped(kernel, number, buffer, (*shape[:d], fewer, *shape[d + 1 :]))
            if size == 1 and len(loads) == 1:
                ((n, node),) = loads.items()
                rest = replace(node, shape=shape[:d] + shape[d + 1 :], index=node.index[:d] + node.index[d + 1 :])
                yield _with(kernel, n, rest)
        for n, node in loads.items():
            for d, affine in enumerate(node.index):
                plain = combine([(1, along(a)) for a in sorted(affine.axes)])
                if plain != affine and not node.mask:
                    yield _with(kernel, n, replace(node, index=(*node.index[:d], plain, *node.index[d + 1 :])))


def _reshaped(kernel: Kernel, number: int, buffer: Buffer, shape: tuple[int, ...]) -> Kernel:
    size = 1
    for n in shape:
        size *= n
    inputs = (*kernel.inputs[:number], Buffer(size, buffer.dtype), *kernel.inputs[number + 1 :])
    nodes = [replace(n, shape=shape) if isinstance(n, Load) and n.input == number else n for n in kernel.nodes]
    return replace(kernel, inputs=inputs, nodes=tuple(nodes))
