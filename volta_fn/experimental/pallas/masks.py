"""Reading and writing references under a mask.

A block at a traced position that reaches beyond the array is read as it lies, unlike ``ref[…]``, which moves it inside: what is beyond is
uninitialized, and dropped where it is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.refs import Ref, converted
from volta_fn.experimental.pallas.specs import uninitialized
from volta_fn.numpy.indexing import where
from volta_fn.primitives.array_operations.ref_views import RefView, Slice, read_part, write_part
from volta_fn.primitives.data_movement.movement import broadcast_to
from volta_fn.primitives.data_movement.slicing import pad
from volta_fn.primitives.data_movement.slicing import slice as slice_


def _split(ref: Ref | RefView) -> tuple[RefView, Any]:
    return ref.split() if isinstance(ref, RefView) else (RefView(ref, ()), ...)


def _padded(value: Array, index: Any) -> Array:
    """Return an array with what a block at a traced position may reach behind it."""
    items = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(item, Slice) and item.is_dynamic_start for item in items):
        return value
    return pad(value, uninitialized(value.aval.update(shape=())), [(0, size, 0) for size in value.shape])


def masked_read(ref: Ref | RefView, mask: Any = None, other: Any = None) -> Array:
    """Return the elements of a reference or view, and `other` where not `mask`.

    Without `other`, the mask has no effect.
    """
    base, index = _split(ref)
    elements = read_part(_padded(base[...], index), index)
    if mask is None or other is None:
        return elements
    return where(mask, elements, as_value(other).astype(elements.dtype))


def masked_write(ref: Ref | RefView, value: Any, mask: Any = None, combine: Callable[[Array, Array], Array] | None = None) -> Array:
    """Write `value` where `mask` is True; return the old elements.

    With `combine`, what is written is that function of the old and the new elements.
    """
    base, index = _split(ref)
    array = base[...]
    padded = _padded(array, index)
    old = read_part(padded, index)
    update = broadcast_to(converted(value, ref.dtype), old.shape)
    new = update if combine is None else combine(old, update)
    result = write_part(padded, index, new if mask is None else where(mask, new, old))
    base[...] = slice_(result, [0] * array.ndim, array.shape) if padded is not array else result
    return old
