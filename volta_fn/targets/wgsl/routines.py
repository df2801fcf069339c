"""List the routines of kernels and equations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.compiler.target import TargetCapabilities, forced
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl import attention, convolution, library, loops, matmul
from volta_fn.targets.wgsl.loops.emit_values import Buffers
from volta_fn.targets.wgsl.loops.routine import FusedKernels, Member, is_small
from volta_fn.targets.wgsl.routine import Routine

#: A function that generates an equation's routine: (operands' types, parameters, capabilities) -> routine, or None if it has none.
RoutineMaker = Callable[[tuple[ShapedArray, ...], dict[str, Any], TargetCapabilities], Routine | None]

#: By the names of primitives.
ROUTINES: dict[str, RoutineMaker] = {**attention.ROUTINES, **matmul.ROUTINES, **convolution.ROUTINES, **library.ROUTINES}

#: Primitives whose routines let the result be the memory of the operand at a position. Their first dispatch, which copies it, is left out
#: then.
IN_PLACE: dict[str, int] = library.IN_PLACE


def kernel_routine(
    kernel: Kernel, device: TargetCapabilities, shared: Mapping[int, int] = {}, batch_products: int = 0
) -> Routine:  # never changed
    """Generate a kernel's routine; `shared` maps outputs to inputs of the same memory.

    For a product that runs in one dispatch with others, `batch_products` counts the multiplications of all of them.
    """
    product = matmul.contraction(kernel, device, batch_products) if not shared else None
    return product or loops.routine(kernel, device, shared)


def kernel_routines(kernel: Kernel, device: TargetCapabilities, shared: Mapping[int, int] = {}) -> Iterator[tuple[str, Routine]]:
    """Yield every routine that may be generated for a kernel.

    Each comes with the choices that are forced for it.
    """
    if not shared:
        for product in matmul.contraction_options(kernel, device):
            if (routine := matmul.contraction(kernel, device, options=product)) is not None:
                yield f"product: {forced(product)}", routine
    for options in loops.options_of(kernel, device):
        yield f"loops: {forced(options)}", loops.routine(kernel, device, shared, options)
    if not shared and kernel.stores and is_small(kernel, device) and (routine := _twice(kernel, device)) is not None:
        yield "in one dispatch with another", routine


def _twice(kernel: Kernel, device: TargetCapabilities) -> Routine | None:
    """Return a dispatch of a small kernel twice, first with workspaces for results."""
    count, stores = len(kernel.inputs), len(kernel.stores)
    inputs = tuple(range(count))
    together = FusedKernels(device)
    first = together.add(Member(kernel, Buffers(inputs, tuple(range(count + stores, count + 2 * stores)))))
    if first is None:
        return None
    both = together.add(Member(kernel, Buffers(inputs, tuple(range(count, count + stores)))))
    return None if both is None else Routine((both,), tuple([b.size * b.dtype.itemsize for b in kernel.outputs]))
