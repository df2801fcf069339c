"""Trees of arrays as text, and in notebooks as HTML that unfolds."""

from __future__ import annotations

from typing import Any

from volta_fn import tree
from volta_fn.core.array import Array, aval_of
from volta_fn.core.html import statistics
from volta_fn.core.trace import is_concrete
from volta_fn.nn.module import unfolding


class View:
    """What `view` returns: a tree that is shown leaf by leaf."""

    __slots__ = ("tree",)

    def __init__(self, shown: Any) -> None:
        self.tree = shown

    def __repr__(self) -> str:
        leaves = tree.leaves_with_path(self.tree)
        names = [tree.keystr(path) or "the tree" for path, _ in leaves]
        width = max(map(len, names), default=0)
        return "\n".join(f"{name:{width}}  {_described(leaf)}".rstrip() for name, (_, leaf) in zip(names, leaves, strict=True))

    def _repr_html_(self) -> str:
        return unfolding(self.tree, type(self.tree).__name__)


def view(shown: Any) -> View:
    """Return a pytree as it should be shown: type, range, mean and NaN of each array.

    Notebooks show a tree that unfolds, down to the elements; elsewhere there is a line for each leaf.

    >>> params = {"w": vf.numpy.arange(4.0), "layers": [vf.numpy.ones((2, 3))], "name": "net"}
    >>> vf.debug.view(params)
    ['layers'][0]  f32[2,3]  all 1
    ['name']       'net'
    ['w']          f32[4]  0 … 3, mean 1.5 █▁▁▁▁█▁▁▁▁█▁▁▁▁█
    """
    return View(shown)


def _described(leaf: Any) -> str:
    if not isinstance(leaf, Array):
        return repr(leaf) if getattr(leaf, "dtype", None) is None else repr(aval_of(leaf))
    if not is_concrete(leaf) or leaf.is_deleted():
        return repr(leaf.aval)
    return f"{leaf.aval!r}  {statistics(leaf.host())}".rstrip()
