"""Which input of a kernel an output may overwrite.

It has the output's size, and every element is read for the last time in the iteration that writes it.
"""

from __future__ import annotations

import math

from volta_fn.compiler.ir.kernel import Kernel, Load, Reduce
from volta_fn.compiler.ir.views import row_major


def overwritable(kernel: Kernel, output: int) -> list[int]:
    """Return the inputs whose memory may hold an output.

    Each iteration reads such an input at the offset that it writes the output to and at no other, and the kernel makes one pass over its
    rows (a later pass might read what an earlier one has overwritten). Each iteration writes an element of its own: one that several
    share, such as one per row, would be overwritten before the last of them has read it.
    """
    result = kernel.outputs[output]
    if result.size != math.prod(kernel.sizes) or any(isinstance(node, Reduce) for node in kernel.nodes):
        return []
    store = kernel.stores[output]
    offset = row_major(store.index, store.shape)
    fitting = [i for i, b in enumerate(kernel.inputs) if (b.size, b.dtype) == (result.size, result.dtype)]
    loads = [node for node in kernel.nodes if isinstance(node, Load)]
    return [i for i in fitting if all(not n.mask and row_major(n.index, n.shape) == offset for n in loads if n.input == i)]
