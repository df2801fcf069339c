"""What flattens trees: optree, or the same in Python where it is not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from volta_fn.lazy_imports import load

if TYPE_CHECKING:
    import optree as optree
else:
    try:
        optree = load("optree")
    except ImportError:
        optree = load("volta_fn.tree.python_trees")
