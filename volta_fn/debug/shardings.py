"""How arrays are split between devices, in text."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.core.array import ConcreteArray, as_value
from volta_fn.core.distribution.placement import group_of, indices_of, known_sharding
from volta_fn.core.distribution.sharding import Sharding, SingleDeviceSharding
from volta_fn.errors import ShapeError


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
