"""Parts of references: indices with sizes (`Slice`), and views (`ref.at[…]`).

An index is read and written in two steps: its slices with traced starts and its traced scalars are one block of the array
(`dynamic_slice`), and the rest is an index of that block, as NumPy has it. So a block that would reach beyond the array is moved inside.

A view is a reference and a list of transforms, each of which reads a part of an array, and writes one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import Shape, ShapedArray, Typed
from volta_fn.core.refs import Ref, converted
from volta_fn.core.staging import trace_to_jaxpr
from volta_fn.core.trace import is_concrete
from volta_fn.errors import ArgumentError, OutOfBoundsError, RefError, ShapeError, UnsupportedError
from volta_fn.primitives.call import stop_gradient
from volta_fn.primitives.data_movement.dynamic_slicing import dynamic_slice, dynamic_update_slice
from volta_fn.primitives.data_movement.movement import reshape, transpose
from volta_fn.primitives.elementwise.cast import bitcast_convert_type

# Slices by start and size, of which the start may be traced.


@dataclass(frozen=True)
class Slice:
    """A slice of `size` elements, `stride` apart, from `start`, which may be traced.

    It is an index of references, and of nothing else. Raises `ArgumentError` for a negative stride.
    """

    start: Any
    size: Any
    stride: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.stride, int) and self.stride < 0:
            raise ArgumentError(f"a Slice's stride must not be negative, got {self.stride}")

    @property
    def is_dynamic_start(self) -> bool:
        """Whether the start is an array."""
        return not isinstance(self.start, (int, np.integer))

    @property
    def is_dynamic_size(self) -> bool:
        """Whether the size is an array."""
        return not isinstance(self.size, (int, np.integer))

    @classmethod
    def from_slice(cls, slc: slice, size: int) -> Slice:
        """Return Python's slice of a dimension of `size` elements, with a positive step."""
        start, stop, step = slc.indices(size)
        if step < 1:
            raise ArgumentError(f"slice must have a step >= 1 (found: {step})")
        return cls(start, len(range(start, stop, step)), step)


def dslice(start: Any, size: Any = None, stride: int | None = None) -> slice | Slice:
    """Return a slice of `size` elements from `start`, which may be traced.

    As `slice` does, ``dslice(None)`` means all and ``dslice(n)`` the first n elements.

    >>> from volta_fn.experimental import pallas as pl
    >>> vf.new_ref(vf.numpy.arange(5))[pl.dslice(vf.numpy.int32(3), 2)]
    Array([3, 4], dtype=int32)
    """
    if start is None:
        return slice(None)
    step = 1 if stride is None else stride
    if size is None:
        if not isinstance(start, (int, np.integer)):
            raise ArgumentError("dslice: the size must be a Python integer, but the only argument is an array; write dslice(start, size)")
        return Slice(0, int(start), step)
    return Slice(start, size, step)


# Indices as a block of the array, and an index of the block.


class _Block(NamedTuple):
    """The block of an array with all elements of an index, and their index in it."""

    starts: list[Any]
    sizes: list[int]
    rest: tuple[Any, ...]
    #: Whether the rest is all of the block, but for its dimensions of scalar indices.
    is_whole: bool
    shape: Shape

    def of(self, value: Array) -> Array:
        """Return the block."""
        return value if self.sizes == [*value.shape] else dynamic_slice(value, self.starts, self.sizes)


def _items(index: Any, rank: int) -> list[Any]:
    """Return an index with an item for each dimension."""
    items = list(index) if isinstance(index, tuple) else [index]
    gaps = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(gaps) > 1:
        raise OutOfBoundsError("an index can have one Ellipsis ('...') only")
    if len(items) - len(gaps) > rank:
        raise OutOfBoundsError(f"too many indices: a reference with {rank} dimensions got {len(items) - len(gaps)}")
    missing = [slice(None)] * (rank - len(items) + len(gaps))
    at = gaps[0] if gaps else len(items)
    return [*items[:at], *missing, *items[at + len(gaps) :]]


def _block_of(index: Any, shape: Shape) -> _Block | None:
    """Return the block of an index; None if it has neither `Slice` nor traced scalars."""
    flat = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(item, Slice) or _is_traced_scalar(item) for item in flat):
        return None
    if any(item is None or isinstance(item, bool) for item in flat):
        raise ArgumentError(
            "an index of a reference that has slices by size or traced scalars cannot have None or bools: reshape what is read"
        )
    starts: list[Any] = [0] * len(shape)
    sizes, result = [*shape], []
    rest: list[Any] = []
    is_whole = True
    for dim, (item, size) in enumerate(zip(_items(index, len(shape)), shape, strict=True)):
        if isinstance(item, Slice):
            if item.is_dynamic_size:
                raise UnsupportedError(
                    "a slice's size must be known when the program is traced, but it is an array: pass it as a static argument"
                )
            extent = max((int(item.size) - 1) * item.stride + 1, 0)
            if extent > size or (not item.is_dynamic_start and item.start + extent > size):
                raise OutOfBoundsError(f"Out of bound slice: start={item.start}, size={item.size}, stride={item.stride}, dim={size}.")
            starts[dim], sizes[dim] = item.start, extent
            rest.append(slice(None, None, max(item.stride, 1)))
            result.append(int(item.size))
            is_whole = is_whole and item.stride == 1
        elif _is_traced_scalar(item):
            starts[dim], sizes[dim] = item, 1
            rest.append(0)
        elif item == slice(None) if isinstance(item, slice) else False:
            rest.append(item)
            result.append(size)
        else:
            rest.append(item)
            is_whole = False
    return _Block(starts, sizes, tuple(rest), is_whole, tuple(result))


def _is_traced_scalar(item: Any) -> bool:
    return isinstance(item, Array) and not item.ndim and item.dtype in dtypes.INTEGERS and not is_concrete(item)


def read_part(value: Array, index: Any) -> Array:
    """Return the elements of an array at an index."""
    index = _without_refs(index)
    block = _block_of(index, value.shape)
    if block is None:
        return value[index]
    part = block.of(value)
    return reshape(part, block.shape) if block.is_whole else part[block.rest]


def write_part(value: Array, index: Any, update: Array, method: str = "set") -> Array:
    """Return an array with other elements at an index, by a method of `at[index]`."""
    index = _without_refs(index)
    block = _block_of(index, value.shape)
    if block is None:
        result: Array = getattr(value.at[index], method)(update)
        return result
    if method == "set" and block.is_whole and update.shape == block.shape:
        part = reshape(update, block.sizes)
    else:
        part = getattr(block.of(value).at[block.rest], method)(update)
    return part if block.sizes == [*value.shape] else dynamic_update_slice(value, part, block.starts)


def _without_refs(index: Any) -> Any:
    """Return an index with the values of references that are used as indices."""
    if isinstance(index, tuple):
        return tuple([_without_refs(item) for item in index])
    return index[...] if isinstance(index, (Ref, RefView)) else index


# Views: a reference and transforms.


class _Index(NamedTuple):
    """Elements at an index."""

    index: Any

    def read(self, value: Array) -> Array:
        return read_part(value, self.index)

    def write(self, value: Array, update: Array) -> Array:
        return write_part(value, self.index, update)


class _Reshape(NamedTuple):
    """All elements in another shape."""

    shape: Shape

    def read(self, value: Array) -> Array:
        return reshape(value, self.shape)

    def write(self, value: Array, update: Array) -> Array:
        return reshape(update, value.shape)


class _Transpose(NamedTuple):
    """The elements with permuted dimensions."""

    permutation: tuple[int, ...]

    def read(self, value: Array) -> Array:
        return transpose(value, self.permutation)

    def write(self, value: Array, update: Array) -> Array:
        return transpose(update, tuple(np.argsort(self.permutation).tolist()))


class _Bitcast(NamedTuple):
    """The bits as elements of another dtype; see `RefView.bitcast`."""

    dtype: np.dtype

    def read(self, value: Array) -> Array:
        return _bitcast(value, self.dtype)

    def write(self, value: Array, update: Array) -> Array:
        return _bitcast(update, value.dtype)


def _bitcast(value: Array, dtype: np.dtype) -> Array:
    old, new = dtypes.bits(value.dtype), dtypes.bits(dtype)
    if old == new:
        return bitcast_convert_type(value, dtype)
    if value.ndim < 2 or (old < new and value.shape[-2] % (new // old)):
        raise ShapeError(f"bitcast: a reference of shape {value.shape} cannot have elements of {new} instead of {old} bits")
    *batch, rows, columns = value.shape
    if old > new:
        parts = bitcast_convert_type(value, dtype)
        return reshape(_swap_last(parts), (*batch, rows * (old // new), columns))
    ratio = new // old
    return bitcast_convert_type(_swap_last(reshape(value, (*batch, rows // ratio, ratio, columns))), dtype)


def _swap_last(value: Array) -> Array:
    return transpose(value, (*range(value.ndim - 2), value.ndim - 1, value.ndim - 2))


_Transform = _Index | _Reshape | _Transpose | _Bitcast


def _write(value: Array, transforms: Sequence[_Transform], update: Array) -> Array:
    """Return an array whose part behind the transforms is `update`."""
    if not transforms:
        return update
    first, *others = transforms
    return first.write(value, _write(first.read(value), others, update) if others else update)


class RefView(Typed):
    """A part of a reference, or all of it in another form.

    Reading and writing a view reads and writes the reference.

    >>> ref = vf.new_ref(vf.numpy.arange(6.0))
    >>> view = ref.reshape(2, 3).at[1]
    >>> view[0] = 9.0
    >>> view, ref
    (RefView(f32[3]), Ref([0., 1., 2., 9., 4., 5.], dtype=float32))
    """

    __slots__ = ("_aval", "ref", "transforms")

    def __init__(self, ref: Ref, transforms: tuple[_Transform, ...]) -> None:
        self.ref, self.transforms = ref, transforms
        self._aval: ShapedArray | None = None

    @property
    def aval(self) -> ShapedArray:
        """The type of the part."""
        if self._aval is None:
            self._aval = trace_to_jaxpr(lambda x: [self._read(x)], [self.ref.aval], "view").out_avals[0]
        return self._aval

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def _read(self, value: Array) -> Array:
        for transform in self.transforms:
            value = transform.read(value)
        return value

    def split(self) -> tuple[RefView, Any]:
        """Return a view and an index, which together are this view."""
        *others, last = self.transforms or ((),)
        if isinstance(last, _Index):
            return RefView(self.ref, tuple(others)), last.index
        return self, ...

    def __repr__(self) -> str:
        return f"RefView({self.aval})"

    def __len__(self) -> int:
        return len(self[...])

    def __iter__(self) -> Iterator[Array]:
        return iter(self[...])

    def __getitem__(self, index: Any) -> Array:
        value = self._read(self.ref.get())
        return value if index is Ellipsis else read_part(value, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        update = converted(value, self.dtype)
        is_full = index is Ellipsis and update.shape == self.shape
        transforms = self.transforms if is_full else (*self.transforms, _Index(index))
        self.ref.put(_write(self.ref.get(), transforms, update))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise RefError("a view of a reference is no array: read its value with view[...]")

    def get(self) -> Array:
        """Return the elements."""
        return self[...]

    def set(self, value: Any, idx: Any = ...) -> None:
        """Write ``view[idx] = value``."""
        self[idx] = value

    def swap(self, value: Any, idx: Any = ...) -> Array:
        """Write ``view[idx] = value`` and return the old elements."""
        old = self[idx]
        self[idx] = value
        return old

    def addupdate(self, value: Any, idx: Any = ...) -> None:
        """Add `value` to the elements at `idx`."""
        self.ref.put(_write(self.ref.get(), self.transforms, self[...].at[idx].add(value)))

    @property
    def at(self) -> RefIndexer:
        """``view.at[index]`` is a view of a part of this one."""
        return RefIndexer(self)

    @property
    def T(self) -> RefView:
        """The view with its dimensions in reverse order."""
        return self.transpose()

    def reshape(self, *shape: Any) -> RefView:
        """Return a view of the elements in another shape; one size may be -1."""
        return _extended(self, _Reshape(_full_shape(self.shape, shape)))

    def transpose(self, *permutation: Any) -> RefView:
        """Return a view with permuted dimensions; without arguments, in reverse order."""
        return _extended(self, _Transpose(_permutation(self.ndim, permutation)))

    def bitcast(self, dtype: Any) -> RefView:
        """Return a view of the bits as elements of another dtype.

        Narrower elements multiply the last dimension but one, wider ones divide it.
        """
        return _extended(self, _Bitcast(dtypes.as_dtype(dtype)))


class RefIndexer(NamedTuple):
    """What ``ref.at`` is: ``ref.at[index]`` is a view."""

    ref_or_view: Ref | RefView

    def __getitem__(self, index: Any) -> RefView:  # type: ignore[override]  # no tuple's index
        return _extended(self.ref_or_view, _Index(index))


def _extended(base: Ref | RefView, transform: _Transform) -> RefView:
    view = RefView(base, (transform,)) if isinstance(base, Ref) else RefView(base.ref, (*base.transforms, transform))
    _ = view.aval  # which raises for what does not fit
    return view


def _full_shape(shape: Shape, arguments: tuple[Any, ...]) -> Shape:
    """Return the shape that `reshape` is asked for."""
    sizes = tuple(arguments[0]) if len(arguments) == 1 and isinstance(arguments[0], (tuple, list)) else arguments
    count = math.prod(shape)
    product = math.prod([s for s in sizes if s != -1])
    if sizes.count(-1) > 1 or (-1 in sizes and (not product or count % product)) or (-1 not in sizes and product != count):
        raise ShapeError(f"cannot reshape a reference of shape {shape} into {sizes}")
    return tuple([count // product if s == -1 else int(s) for s in sizes])


def _permutation(rank: int, arguments: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the permutation that `transpose` is asked for."""
    axes = tuple(arguments[0]) if len(arguments) == 1 and isinstance(arguments[0], (tuple, list)) else arguments
    permutation = axes or tuple(range(rank))[::-1]
    if sorted(permutation) != [*range(rank)]:
        raise ShapeError(f"{permutation} is no permutation of the {rank} dimensions of a reference")
    return tuple(permutation)


# Views as arguments of traced functions: nodes of a reference and the arrays in indices.


class ViewNode:
    """A view as a pytree. Unflattening returns the view."""

    def __init__(self, view: RefView) -> None:
        self.view = view

    def flatten(self) -> tuple[list[Any], Any]:
        """Return the reference and the arrays in the transforms, and the rest of these."""
        arrays: list[Any] = []
        return [self.view.ref, arrays], _without_arrays(self.view.transforms, arrays)


def _with_view_nodes(arguments: Any) -> Any:
    return tree.map(lambda x: ViewNode(x) if isinstance(x, RefView) else x, arguments, is_leaf=lambda x: isinstance(x, ViewNode))


class _ArrayAt(NamedTuple):
    """Stands for an array in a transform."""

    position: int


def _without_arrays(item: Any, arrays: list[Any]) -> Any:
    """Return a transform, or a part of one, as something hashable; collect its arrays."""
    if isinstance(item, (Array, np.ndarray)):
        arrays.append(item)
        return _ArrayAt(len(arrays) - 1)
    if isinstance(item, slice):
        return slice, *[_without_arrays(x, arrays) for x in (item.start, item.stop, item.step)]
    if isinstance(item, Slice):
        return Slice, *[_without_arrays(x, arrays) for x in (item.start, item.size, item.stride)]
    if isinstance(item, _Index):
        return _Index, _without_arrays(item.index, arrays)
    return (tuple, *[_without_arrays(x, arrays) for x in item]) if type(item) is tuple else item


def _with_arrays(item: Any, arrays: Sequence[Any]) -> Any:
    """Undo `_without_arrays`."""
    if isinstance(item, _ArrayAt):
        return arrays[item.position]
    if type(item) is not tuple:
        return item
    kind, *parts = item
    values = [_with_arrays(x, arrays) for x in parts]
    return tuple(values) if kind is tuple else kind(*values)


tree.register_pytree_node(ViewNode, ViewNode.flatten, lambda aux, children: RefView(children[0], _with_arrays(aux, children[1])))


def _as_view(ref: Ref) -> RefView:
    return RefView(ref, ())


def _attach(name: str, member: Callable[..., Any] | property) -> None:
    setattr(Ref, name, member)


_attach("read_part", staticmethod(read_part))
_attach("write_part", staticmethod(write_part))
_attach("stop_gradient", staticmethod(stop_gradient))
_attach("with_view_nodes", staticmethod(_with_view_nodes))
_attach("at", property(RefIndexer))
_attach("T", property(lambda ref: _as_view(ref).T))
_attach("reshape", lambda ref, *shape: _as_view(ref).reshape(*shape))
_attach("transpose", lambda ref, *permutation: _as_view(ref).transpose(*permutation))
_attach("bitcast", lambda ref, dtype: _as_view(ref).bitcast(dtype))
