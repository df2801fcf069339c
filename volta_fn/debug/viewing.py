"""Trees of arrays, and how arrays are split between devices, as text and HTML."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import tree
from volta_fn.core.array import Array, ConcreteArray, as_value, aval_of
from volta_fn.core.distribution.placement import group_of, indices_of, known_sharding
from volta_fn.core.distribution.sharding import Sharding, SingleDeviceSharding
from volta_fn.core.html import statistics
from volta_fn.core.trace import is_concrete
from volta_fn.errors import ShapeError
from volta_fn.nn.module import unfolding

# ------------------------------------------------------------------------------
# Trees of arrays as text, and in notebooks as HTML that unfolds.
# ------------------------------------------------------------------------------


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


# ------------------------------------------------------------------------------
# How arrays are split between devices, in text.
# ------------------------------------------------------------------------------


def visualize_sharding(shape: Sequence[int], sharding: Sharding, **options: Any) -> None:
    """Print which devices hold which part of an array of this shape.

    Options, of colours and widths, are accepted for compatibility. Raises `ShapeError` for other than one or two dimensions.

    >>> import volta_fn as vf
    >>> visualize_sharding((4, 2), vf.sharding.SingleDeviceSharding("cpu"))
    +-------+
    | CPU 0 |
    +-------+
    """
    if len(shape) not in (1, 2):
        raise ShapeError(f"visualize_sharding: an array of one or two dimensions can be shown, not one of shape {tuple(shape)}")
    cells: dict[tuple[int, ...], list[int]] = {}
    for device, index in indices_of(sharding, shape).items():
        cells.setdefault(tuple([s.start or 0 for s in index]), []).append(device.id)
    rows = sorted({at[0] if len(shape) == 2 else 0 for at in cells})
    columns = sorted({at[-1] for at in cells})
    platform = group_of(sharding).platform.upper()
    table = [[cells[(r, c) if len(shape) == 2 else (c,)] for c in columns] for r in rows]
    texts = [[f"{platform} {','.join(map(str, sorted(ids)))}" for ids in row] for row in table]
    width = max(len(text) for row in texts for text in row)
    border = "+" + "+".join(["-" * (width + 2)] * len(columns)) + "+"
    shown = [border]
    for row in texts:
        shown += ["|" + "|".join(f" {text:^{width}} " for text in row) + "|", border]
    builtins.print("\n".join(shown))


def visualize_array_sharding(arr: Any, **options: Any) -> None:
    """Print which devices hold which part of an array.

    In a function that is being traced, as far as it is known. Raises `ShapeError` for other than one or two dimensions.

    >>> import volta_fn as vf
    >>> visualize_array_sharding(vf.numpy.ones(3))
    +-------+
    | CPU 0 |
    +-------+
    """
    visualize_sharding(np.shape(arr), _sharding(arr), **options)


def inspect_array_sharding(value: Any, *, callback: Callable[[Sharding], None]) -> None:
    """Call a function with an array's sharding: at once, also while tracing.

    >>> import volta_fn as vf
    >>> inspect_array_sharding(vf.numpy.ones(3), callback=print)
    SingleDeviceSharding(device=CpuDevice(id=0))
    """
    callback(_sharding(value))


def _sharding(value: Any) -> Sharding:
    array = as_value(value)
    return known_sharding(array) or SingleDeviceSharding(array.device if isinstance(array, ConcreteArray) else "cpu")
