"""Values that are several outputs of a program: the kernel that makes one stores it several times, so that it need not be copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from volta_fn.compiler.fusion.emit_kernels import Fused, Item
from volta_fn.core.jaxpr import Atom, Var


def stored_again(items: Sequence[Item], outputs: Sequence[Atom], roots: Mapping[Var, Var], most: int) -> tuple[list[Item], list[Atom]]:
    """The items, and the program's outputs, of which those that were one variable are different ones where a kernel makes them.

    `roots` maps variables to those whose memory they are. No kernel gets more than `most` buffers.
    """
    made = {v: number for number, item in enumerate(items) if isinstance(item, Fused) for v in item.results}
    items, found, seen = list(items), list[Atom](), set[Var]()
    for out in outputs:
        root = roots.get(out, out) if isinstance(out, Var) else None
        number = made.get(root) if root in seen else None
        item = items[number] if number is not None else None
        if root is not None and number is not None and isinstance(item, Fused) and len(item.operands) + len(item.results) < most:
            out = Var(root.aval)
            kernel = replace(item.kernel, stores=(*item.kernel.stores, item.kernel.stores[item.results.index(root)]))
            items[number] = Fused(kernel, item.operands, (*item.results, out))
        elif root is not None:
            seen.add(root)
        found.append(out)
    return items, found
