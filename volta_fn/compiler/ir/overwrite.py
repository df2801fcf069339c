"""Which input of a kernel an output may overwrite: one of its size whose every element is read for the last time where it is written."""

from __future__ import annotations

import math

from volta_fn.compiler.ir.kernel import Kernel, Load, Reduce
from volta_fn.compiler.ir.views import row_major


def overwritable(kernel: Kernel, output: int) -> list[int]:
    """The inputs whose memory may hold an output.

    Each turn of the loop reads such an input at no other place than that to which it writes the output, and the kernel goes over its
    rows once (a later pass might read what an earlier one has overwritten). Each turn writes an element of its own: one that several
    share, such as one per row, would be overwritten before the last of them has read it.
    """
    result = kernel.outputs[output]
    if result.size != math.prod(kernel.sizes) or any(isinstance(node, Reduce) for node in kernel.nodes):
        return []
    store = kernel.stores[output]
    place = row_major(store.index, store.shape)
    fitting = [i for i, b in enumerate(kernel.inputs) if (b.size, b.dtype) == (result.size, result.dtype)]
    loads = [node for node in kernel.nodes if isinstance(node, Load)]
    return [i for i in fitting if all(not n.mask and row_major(n.index, n.shape) == place for n in loads if n.input == i)]
