"""Trees as text: their containers, and the types and sizes of their arrays."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.errors import ArgumentError
from volta_fn.tree.registry import DictKey, GetAttrKey
from volta_fn.tree.structures import flatten_with_path

_BRACKETS: dict[type, tuple[str, str]] = {dict: ("{", "}"), list: ("[", "]"), tuple: ("(", ")")}


class _Sizes(NamedTuple):
    """The number of arrays in a tree, of their elements and of their bytes."""

    arrays: int
    elements: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.arrays:,} array{'s' * (self.arrays != 1)}, {self.elements:,} elements, {self.bytes:,} bytes"


def pformat(tree: Any, *, width: int = 80, indent: int = 2) -> str:
    """Format a tree with the types of its arrays and the sizes of its containers.

    Nothing is computed or copied: leaves may be arrays of any library, `ShapeDtypeStruct`, or traced. A container that does not fit in a
    row takes a row for each child, and tells how many arrays, elements and bytes it has. Leaves that are no arrays are shown by `repr`.

    Args:
        tree: any pytree.
        width: the most columns of a container in one row.
        indent: the columns by which children are indented.

    Raises:
        ArgumentError: `width` or `indent` is negative.

    >>> import volta_fn as vf
    >>> params = {"layers": [{"w": vf.numpy.ones((784, 512)), "b": vf.numpy.ones(512)}] * 2, "step": 3}
    >>> print(vf.tree.pformat(params, width=40))
    {  # 4 arrays, 803,840 elements, 3,215,360 bytes
      'layers': [  # 4 arrays, 803,840 elements, 3,215,360 bytes
        {'b': f32[512], 'w': f32[784,512]},
        {'b': f32[512], 'w': f32[784,512]},
      ],
      'step': 3,
    }
    """
    if width < 0 or indent < 0:
        raise ArgumentError(f"pformat: width and indent must not be negative, got {width} and {indent}")
    return "\n".join(_rows(tree, "", width, " " * indent)[0])


def pprint(tree: Any, *, width: int = 80, indent: int = 2) -> None:
    """Print a tree with the types of its arrays and its sizes; see `pformat`.

    >>> import volta_fn as vf
    >>> vf.tree.pprint((vf.numpy.ones(3), None))
    (f32[3], None)
    """
    print(pformat(tree, width=width, indent=indent))


def _rows(node: Any, margin: str, width: int, step: str) -> tuple[list[str], _Sizes]:
    """Return the rows of a node, of which the first has no margin, and its sizes."""
    entries = flatten_with_path(node, is_leaf=lambda inner: inner is not node)[0]
    if len(entries) == 1 and not entries[0][0]:
        return [_leaf(node, width)], _sizes(node)
    if node is None:
        return ["None"], _Sizes(0, 0, 0)
    opening, closing = _BRACKETS.get(type(node)) or (f"{type(node).__name__}(", ")")
    children = [(_label(path[0]), *_rows(child, margin + step, width, step)) for path, child in entries]
    sizes = _Sizes(*map(sum, zip(_Sizes(0, 0, 0), *[sizes for _, _, sizes in children], strict=True)))
    if all(len(rows) == 1 for _, rows, _ in children):
        lonely = "," * (type(node) is tuple and len(children) == 1)
        row = f"{opening}{', '.join([label + rows[0] for label, rows, _ in children])}{lonely}{closing}"
        if len(margin) + len(row) <= width or not children:
            return [row], sizes
    shown = [f"{opening}  # {sizes}"]
    for label, rows, _ in children:
        shown += [f"{margin}{step}{label}{rows[0]}", *rows[1:]]
        shown[-1] += ","
    return [*shown, f"{margin}{closing}"], sizes


def _label(key: Any) -> str:
    if isinstance(key, DictKey):
        return f"{key.key!r}: "
    return f"{key.name}=" if isinstance(key, GetAttrKey) else ""


def _is_array(leaf: Any) -> bool:
    return isinstance(getattr(leaf, "shape", None), tuple) and hasattr(leaf, "dtype")


def _leaf(leaf: Any, width: int) -> str:
    if not _is_array(leaf):
        text = " ".join(repr(leaf).split())
        return text if len(text) <= width else f"{text[: max(width - 1, 1)]}…"
    name = dtypes.short_name(leaf.dtype) if isinstance(leaf.dtype, np.dtype) else str(leaf.dtype)
    return f"{name}[{','.join(map(str, leaf.shape))}]"


def _sizes(leaf: Any) -> _Sizes:
    if not _is_array(leaf):
        return _Sizes(0, 0, 0)
    elements = math.prod(leaf.shape)
    return _Sizes(1, elements, elements * int(leaf.dtype.itemsize))
