"""Trees as vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn import numpy as vnp
from volta_fn import tree
from volta_fn.core.array import Array, as_value


def raveled(values: Any) -> tuple[Array, Callable[[Any], Any]]:
    """Return all leaves as one vector, and the function from such a vector to a tree.

    The vector has the dtype in which the leaves combine; the tree's leaves have their own again.
    """
    leaves, treedef = tree.flatten(values)
    arrays = [as_value(x) for x in leaves]
    ends = [0]
    for x in arrays:
        ends.append(ends[-1] + x.size)

    def unraveled(vector: Any) -> Any:
        values_of_leaves = [
            vector[start:end].reshape(x.shape).astype(x.dtype) for x, start, end in zip(arrays, ends, ends[1:], strict=False)
        ]
        return treedef.unflatten(values_of_leaves)

    return vnp.concatenate([x.reshape(-1) for x in arrays]) if arrays else vnp.zeros(0), unraveled
