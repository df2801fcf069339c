"""What describes a kernel: grids, blocks of arrays, memory, costs."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, aval_of
from volta_fn.core.aval import ShapedArray, ShapeDtypeStruct
from volta_fn.core.refs import AbstractRef
from volta_fn.errors import ArgumentError, ArgumentTypeError
from volta_fn.primitives.array_operations.operators import full

# The dimensions of a block.


@dataclass(frozen=True)
class Blocked:
    """A dimension of a block whose index counts blocks; an integer means the same."""

    block_size: int


@dataclass(frozen=True)
class Element:
    """A dimension of a block whose index counts elements.

    The array is padded by ``padding[0]`` elements in front and ``padding[1]`` behind.
    """

    block_size: int
    padding: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Squeezed:
    """A dimension of size 1 that the kernel does not see; None means the same."""


@dataclass(frozen=True)
class BoundedSlice:
    """A dimension of a block whose index is a slice, ``pl.ds(start, size)``.

    The size is at most `block_size`. The kernel sees `block_size` elements from the start.
    """

    block_size: int


@dataclass(frozen=True)
class Indirect:
    """A dimension of a block whose index is an array; kernels cannot have it here."""

    block_size: int


squeezed = Squeezed()
BlockDim = Element | Squeezed | Blocked | BoundedSlice | Indirect


def block_dim(dim: Any) -> BlockDim:
    """Return a dimension of a block shape; raise `ArgumentError` for anything else."""
    if dim is None:
        return squeezed
    if isinstance(dim, (Element, Squeezed, Blocked, BoundedSlice, Indirect)):
        return dim
    try:
        return Blocked(int(dim))
    except (TypeError, ValueError):
        raise ArgumentError(
            f"Unsupported block dimension type: {type(dim)}. Allowed types: `pl.Squeezed`, `pl.Blocked`, `pl.Element`, `int`, `None`."
        ) from None


def size_of(dim: BlockDim) -> int:
    """Return the number of elements of a dimension of a block."""
    return 1 if isinstance(dim, Squeezed) else dim.block_size


# Memory: one kind, whatever its name.


@dataclass(frozen=True)
class MemoryRef:
    """The type of a reference that a kernel gets: an array's type and its memory.

    The memory has no meaning here.
    """

    inner_aval: Any
    memory_space: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple(self.inner_aval.shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the array."""
        return self.inner_aval.dtype

    def get_array_aval(self) -> ShapedArray:
        """Return the type of the array."""
        return ShapedArray(self.shape, dtypes.as_dtype(self.dtype))

    def get_ref_aval(self) -> AbstractRef:
        """Return the type of the reference."""
        return AbstractRef(self.get_array_aval())


class _Space(enum.Enum):
    """Kinds of memory, each of which makes types of references."""

    def from_type(self, type: Any) -> MemoryRef:
        """Return the type of a reference to an array of this type."""
        return MemoryRef(type, self)

    def like(self, shape_dtype_like: Any) -> MemoryRef:
        """Return the type of a reference to an array like this one."""
        return MemoryRef(aval_of(shape_dtype_like), self)

    def __call__(self, shape: Sequence[int], dtype: Any) -> MemoryRef:
        return MemoryRef(ShapedArray(tuple(shape), dtypes.as_dtype(dtype)), self)

    def __str__(self) -> str:
        return str(self.value)


class MemorySpace(_Space):
    """Kinds of memory by what they are for."""

    ANY = "any"
    DEFAULT = "default"
    ERROR = "error"
    INDEX = "index"
    KEY = "key"
    HOST = "host"


ANY, HOST = MemorySpace.ANY, MemorySpace.HOST


class TpuMemorySpace(_Space):
    """Kinds of memory of a TPU, which are all the same here."""

    VMEM = "vmem"
    VMEM_SHARED = "vmem_shared"
    SMEM = "smem"
    CMEM = "cmem"
    SEMAPHORE = "semaphore_mem"
    HBM = "hbm"

    def __repr__(self) -> str:
        return self.name


class RevisitMode(enum.Enum):
    """When a block of an output may be visited again: at any time here."""

    IMMEDIATE = "immediate"
    ANY = "any"


@dataclass(frozen=True)
class Buffered:
    """How many buffers a block has, which has no meaning here."""

    buffer_count: int
    use_lookahead: bool = False
    revisit: RevisitMode | None = None


# Blocks and grids.


class _IndexMap:
    """An index map whose result is a tuple."""

    def __init__(self, index_map: Callable[..., Any]) -> None:
        self.index_map = index_map
        functools.update_wrapper(self, index_map)

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        result = self.index_map(*args, **kwargs)
        return tuple(result) if isinstance(result, (list, tuple)) else (result,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _IndexMap) and self.index_map == other.index_map

    def __hash__(self) -> int:
        return hash(self.index_map)


@dataclass
class BlockSpec:
    """Which block of an array each step of a grid works on.

    Args:
        block_shape: a size for each dimension of the array, or one of `Blocked`, `Element`, `Squeezed` and `BoundedSlice`; None for a
            dimension of size 1 that the kernel does not see. Without it, the block is all of the array.
        index_map: a function of the step's indices that returns the block's index along each dimension. Without it, these are zeros.
        memory_space, pipeline_mode: accepted; they have no effect.

    >>> from volta_fn.experimental import pallas as pl
    >>> pl.BlockSpec((8, None), lambda i, j: (i, j)).index_map(1, 2)
    (1, 2)
    """

    block_shape: Sequence[Any] | None = None
    index_map: Callable[..., Any] | None = None
    pipeline_mode: Buffered | None = None
    _: KW_ONLY
    memory_space: Any = None

    def __post_init__(self) -> None:
        if self.index_map is not None and not isinstance(self.index_map, _IndexMap):
            self.index_map = _IndexMap(self.index_map)

    def replace(self, **changes: Any) -> BlockSpec:
        """Return a specification with other values of some fields."""
        return dataclasses.replace(self, **changes)


class NoBlockSpec:
    """The type of `no_block_spec`: blocks are whole arrays."""

    def __repr__(self) -> str:
        return "NoBlockSpec"


no_block_spec = NoBlockSpec()


@dataclass(init=False, kw_only=True)
class GridSpec:
    """A grid, the blocks of inputs and outputs, and scratch memory.

    They are what `pallas_call` takes by the same names. Raises `ArgumentError` for `in_specs` that are no sequence, and for a grid that has
    something other than integers and arrays.
    """

    grid: tuple[Any, ...]
    grid_names: tuple[Hashable, ...] | None
    in_specs: Any
    out_specs: Any
    scratch_shapes: Any = ()

    def __init__(self, grid: Any = (), in_specs: Any = no_block_spec, out_specs: Any = no_block_spec, scratch_shapes: Any = ()) -> None:
        if isinstance(in_specs, list):
            in_specs = tuple(in_specs)
        elif in_specs is not no_block_spec and not isinstance(in_specs, Sequence):
            raise ArgumentError(f"`in_specs` must be a tuple or a list. Found: {in_specs}")
        self.in_specs = in_specs
        self.out_specs = tuple(out_specs) if isinstance(out_specs, list) else out_specs
        self.scratch_shapes = scratch_shapes
        grid = (grid,) if isinstance(grid, (int, np.integer)) or hasattr(grid, "dtype") else tuple(grid)
        named = bool(grid) and isinstance(grid[0], tuple)
        self.grid_names = tuple([name for name, _ in grid]) if named else None
        sizes = tuple([size for _, size in grid]) if named else grid
        for size in sizes:
            if not isinstance(size, (int, np.integer, Array)):
                raise ArgumentError(f"Grid must be a tuple of integers or jax.Array, got {sizes}")
        self.grid = tuple([int(s) if isinstance(s, np.integer) else s for s in sizes])


class PrefetchScalarGridSpec(GridSpec):
    """A grid whose first `num_scalar_prefetch` inputs index maps get, too.

    Index maps get them as references after the step's indices. The kernel gets them first, and they have no blocks: `in_specs` has entries
    for the other inputs alone.
    """

    num_scalar_prefetch: int

    def __init__(
        self,
        num_scalar_prefetch: int,
        grid: Any = (),
        in_specs: Any = no_block_spec,
        out_specs: Any = no_block_spec,
        scratch_shapes: Any = (),
    ) -> None:
        super().__init__(grid, in_specs, out_specs, scratch_shapes)
        self.num_scalar_prefetch = num_scalar_prefetch


# What compilers of kernels are told elsewhere: accepted, as targets here choose for themselves.


@dataclass(frozen=True)
class CostEstimate:
    """What a kernel costs: numbers of operations and of bytes.

    Raises `ArgumentTypeError` for numbers that are no integers.
    """

    flops: int
    transcendentals: int
    bytes_accessed: int
    remote_bytes_transferred: int = 0

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not isinstance(value, int):
                raise ArgumentTypeError(f"All fields in CostEstimate must be ints. {name} is not an int: {type(value)}({value})")

    def to_json(self) -> bytes:
        """Return the numbers as JSON."""
        return ("{" + ", ".join(f'"{name}": {value}' for name, value in dataclasses.asdict(self).items()) + "}").encode()


class CompilerParams:
    """The base of parameters of compilers of kernels, which have no effect here."""


class SemaphoreType(enum.Enum):
    """Kinds of semaphores, which are counters here.

    ``SemaphoreType.DMA((2,))`` is the type of two.
    """

    REGULAR = "regular"
    DMA = "dma"
    BARRIER = "barrier"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a single semaphore."""
        return ()

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the counter."""
        return np.dtype(np.int32)

    def __call__(self, shape: Sequence[int]) -> MemoryRef:
        return MemoryRef(ShapedArray(tuple(shape), self.dtype), TpuMemorySpace.SEMAPHORE)

    def get_array_aval(self) -> ShapedArray:
        """Return the type of the counter."""
        return ShapedArray((), self.dtype)

    def get_ref_aval(self) -> AbstractRef:
        """Return the type of a reference to the counter."""
        return AbstractRef(self.get_array_aval())


def memory_aval(type: Any) -> ShapedArray:
    """Return the type of the array that a type of memory is about.

    Arrays and their descriptions are taken, too. Raises `ArgumentTypeError` for anything else.
    """
    if hasattr(type, "get_array_aval"):
        aval: ShapedArray = type.get_array_aval()
        return aval
    if isinstance(type, (ShapedArray, ShapeDtypeStruct)) or (hasattr(type, "shape") and hasattr(type, "dtype")):
        return ShapedArray(tuple(type.shape), dtypes.as_dtype(type.dtype))
    raise ArgumentTypeError(f"expected a type of memory such as pltpu.VMEM((8, 128), jnp.float32), got {type!r:.80}")


def uninitialized(aval: ShapedArray) -> Array:
    """Return what elements are before they are written.

    These are NaN, the smallest integer or False.
    """
    if aval.dtype in dtypes.INTEGERS:
        fill: Any = 0 if aval.dtype.kind == "u" else np.iinfo(aval.dtype).min
    else:
        fill = False if aval.dtype == np.bool_ else np.nan
    return full(aval.shape, np.asarray(fill).astype(aval.dtype))


def allocated(type: Any) -> Array:
    """Return what memory of a type holds before it is written; counters are zero."""
    aval = memory_aval(type)
    if isinstance(type, SemaphoreType) or getattr(type, "memory_space", None) is TpuMemorySpace.SEMAPHORE:
        return full(aval.shape, np.zeros((), aval.dtype))
    return uninitialized(aval)
