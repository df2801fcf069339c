"""Products that matrix units can compute, their operands, and their schedules."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.contractions import Axes, Operand, PhasesAxis, Problem, Walk, contiguous_strides
from volta_fn.compiler.ir.index import Affine, Range, along
from volta_fn.compiler.ir.kernel import Apply, Buffer, Constant, Inside, Kernel, Load, Node, Store
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.nvidia.kernel import TensorMap, Windows

_BFLOAT16, _FLOAT32 = np.dtype(dtypes.bfloat16), np.dtype(np.float32)
_INT8, _INT32 = np.dtype(np.int8), np.dtype(np.int32)

#: Dtypes of operands with their names in PTX; float32 is rounded to 11 significant bits.
FORMATS = {_BFLOAT16: "bf16", np.dtype(np.float16): "f16", _FLOAT32: "tf32", _INT8: "s8"}

#: Those of 16 bits, which every matrix unit has, and which need not be contiguous along k.
HALVES = frozenset([dtype for dtype in FORMATS if dtype.itemsize == 2])

#: Bytes of the units in which operands are copied, and of a row of a tile in shared memory.
UNIT, ROW = 16, 128

#: The most axes of a stack of products, as tensor maps have five axes.
_STACK_AXES = 3


class MatrixOperand(NamedTuple):
    """A stack of matrices that are contiguous along k, or along m or n.

    Strides are in elements.
    """

    #: The number of its binding.
    binding: int
    dtype: np.dtype
    #: Whether it is contiguous along k.
    along_k: bool
    #: Rows of the left operand, or columns of the right one, and terms of the sums.
    outer: int
    inner: int
    #: From one row of contiguous elements to the next.
    stride: int
    #: The sizes of the stack's axes, outermost first, and their strides.
    stack: Walk
    #: Elements before the first matrix.
    start: int
    #: Whether it is a copy of the kernel's operand (`copy_kernel`).
    is_copy: bool = False
    #: Parts of a row of terms, each of `inner`, and the elements from one to the next; sums of several parts have zeros after each.
    parts: int = 1
    part_stride: int = 0

    @property
    def padded(self) -> int:
        """The terms of a part, and the zeros after them: whole slices."""
        atom = ROW // self.dtype.itemsize
        return self.inner if self.parts == 1 else ceil(self.inner / atom) * atom

    @property
    def terms(self) -> int:
        """The terms of the sums."""
        return self.parts * self.padded

    def steps(self) -> list[tuple[int, int, int]]:
        """Return the axes of the stack that lead to other matrices, innermost first.

        Each is given by its number, size and stride.
        """
        axes = enumerate(zip(self.stack.sizes, self.stack.strides, strict=True))
        return [(axis, size, stride) for axis, (size, stride) in reversed([*axes]) if stride]

    def tensor_map(self, tile: int) -> TensorMap:
        """Return the tensor map for tiles of so many rows or columns.

        Along the contiguous axis a box has one row of shared memory. The last axis is that of parts.
        """
        size = self.dtype.itemsize
        atom = ROW // size
        dims, box = ([self.inner, self.outer], [atom, tile]) if self.along_k else ([self.outer, self.inner], [atom, atom])
        strides = [self.stride]
        for _, count, stride in self.steps():
            dims.append(count)
            strides.append(stride)
            box.append(1)
        if self.parts > 1:
            dims.append(self.parts)
            strides.append(self.part_stride)
            box.append(1)
        return TensorMap(self.binding, self.dtype.name, self.start * size, tuple(dims), tuple(x * size for x in strides), tuple(box))


# Windows of images: a convolution is a product of matrices, of which one has an element for each position of the window, and for each tap
# and channel. That matrix is never stored. The tensor memory accelerator gathers parts of it from images whose channels are contiguous: the
# same tap of consecutive positions, some channels of each. What lies outside an image is zero.

#: Bits of a signed corner, and of an unsigned offset, of tensor maps with 1 to 3 spatial axes; the largest step from window to window.
_CORNER_BITS, _OFFSET_BITS, _LARGEST_STEP = (16, 8, 5), (16, 8, 5), 8


class WindowAxis(NamedTuple):
    """An axis of images along which windows slide.

    Tap t of window p is element ``p * step + t * dilation - low``, if there is one.
    """

    size: int
    windows: int
    step: int
    taps: int
    dilation: int
    low: int

    @property
    def corners(self) -> tuple[int, int]:
        """The first taps of the first window, and of the last one.

        The latter is relative to the last element.
        """
        return -self.low, (self.windows - 1) * self.step - self.low - (self.size - 1)

    def fits(self, axes: int) -> bool:
        """Return whether a tensor map with so many spatial axes can have it."""
        bound, most = 1 << (_CORNER_BITS[axes - 1] - 1), 1 << _OFFSET_BITS[axes - 1]
        in_range = all(-bound <= corner < bound for corner in self.corners)
        return in_range and (self.taps - 1) * self.dilation < most and self.step <= _LARGEST_STEP


class WindowOperand(NamedTuple):
    """A stack of matrices of windows: of all positions, and all taps and channels.

    Strides are in elements. Channels are contiguous.
    """

    #: The number of its binding.
    binding: int
    dtype: np.dtype
    #: Whether sums are over taps and channels, or else over windows.
    along_k: bool
    images: int
    axes: tuple[WindowAxis, ...]
    #: The channels of a matrix of the stack, whose channels follow one another.
    channels: int
    stack: Walk
    #: Of images and axes.
    strides: tuple[int, ...]
    #: Elements before the first image.
    start: int
    #: Whether it is a copy of the convolution's operand.
    is_copy: bool = False
    #: By axis, how taps are divided among phases, which are the stack then; empty if there are none.
    phases: tuple[PhasesAxis, ...] = ()

    @property
    def groups(self) -> int:
        """The groups of channels."""
        return 1 if self.phases else self.stack.size

    @property
    def grows(self) -> bool:
        """Whether the last phase has more taps than the first."""
        first, last = (math.prod([axis.taps_of(-last % axis.phases) for axis in self.phases]) for last in (0, 1))
        return first < last

    @property
    def atom(self) -> int:
        """The channels of a row of shared memory; those of a tap are padded to a multiple."""
        return ROW // self.dtype.itemsize

    @property
    def padded(self) -> int:
        """The channels of a tap, and the zeros after them."""
        return -(-self.channels // self.atom) * self.atom

    @property
    def windows(self) -> int:
        """The positions of windows."""
        return self.images * math.prod([axis.windows for axis in self.axes])

    @property
    def features(self) -> int:
        """The taps and channels of a window, with zeros after the channels of each tap."""
        return self.padded * math.prod([axis.taps for axis in self.axes])

    @property
    def outer(self) -> int:
        """The rows of the left operand, or columns of the right one."""
        return self.windows if self.along_k else self.features

    @property
    def terms(self) -> int:
        """The terms of the sums; with phases, those of an average one."""
        if self.phases:
            return -(-self.padded * math.prod([axis.taps for axis in self.phases]) // self.stack.size)
        return self.features if self.along_k else self.windows

    def tensor_map(self, tile: int) -> TensorMap:
        """Return the tensor map for boxes of so many windows."""
        size = self.dtype.itemsize
        innermost_first = self.axes[::-1]
        corners = [axis.corners for axis in innermost_first]
        windows = Windows(
            tuple([low for low, _ in corners]), tuple([high for _, high in corners]), tuple([a.step for a in innermost_first])
        )
        dims = (self.channels * self.groups, *[axis.size for axis in innermost_first], self.images)
        strides = tuple([x * size for x in self.strides[::-1]])
        return TensorMap(self.binding, self.dtype.name, self.start * size, dims, strides, (self.atom, tile), windows)


ProductOperand = MatrixOperand | WindowOperand


class MatrixProduct(NamedTuple):
    """A stack of products of matrices, or of pairs with the same left operand."""

    lhs: ProductOperand
    rhs: ProductOperand
    #: The right operand of the second of a pair, which has the sizes and strides of the first.
    second: MatrixOperand | None = None

    @property
    def right(self) -> list[ProductOperand]:
        """The right operands."""
        return [self.rhs] if self.second is None else [self.rhs, self.second]

    @property
    def stack(self) -> Axes:
        """The sizes of the stack's axes, outermost first."""
        return self.lhs.stack.sizes

    @property
    def batch(self) -> int:
        """The number of products."""
        return math.prod(self.stack)

    @property
    def transposes(self) -> bool:
        """Whether slices of the right operand are transposed in shared memory.

        `wgmma` reads those of other than 16 bits along k alone.
        """
        return not self.rhs.along_k and self.rhs.dtype not in HALVES

    @property
    def sum_dtype(self) -> np.dtype:
        """The dtype of sums."""
        return _sum_dtype(self.lhs.dtype)

    @property
    def m(self) -> int:
        """The rows of each."""
        return self.lhs.outer

    @property
    def n(self) -> int:
        """The columns of each."""
        return self.rhs.outer

    @property
    def k(self) -> int:
        """The terms of each sum."""
        return self.lhs.terms

    @property
    def layout(self) -> str:
        """N for row-major operands, (m, k) and (k, n); T for transposed ones."""
        return ("N" if self.lhs.along_k else "T") + ("T" if self.rhs.along_k else "N")

    @property
    def name(self) -> str:
        """What a schedule is chosen by."""
        pair = "" if self.second is None else "2*"
        return f"{FORMATS[self.lhs.dtype]} {self.layout} {self.batch}x{self.m}x{pair}{self.n}x{self.k}"


def _sum_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which matrix units sum products of operands of a dtype."""
    return _INT32 if dtype == _INT8 else _FLOAT32


def matrix_product(
    problem: Problem,
    lhs: int,
    rhs: int,
    dtypes: Collection[np.dtype] = HALVES,
    *,
    pairs: bool = False,
    parts: bool = False,
    transposes: bool = False,
) -> MatrixProduct | None:
    """Return a problem as a product for matrix units; None if it is none.

    `lhs` and `rhs` are the bindings of the operands. Both must be of one dtype of `dtypes`, and summed as `MatrixProduct.sum_dtype` says.
    Operands are read in place if they have matrices of one axis each, of which one is contiguous, and all others are at multiples of 16
    bytes; or else from copies. Those of other than 16 bits must be contiguous along k, but for left operands of float32, which pass through
    registers. With `pairs` operands are of float32, and rounded to sums of two bfloat16 numbers: the product is one of copies with three
    times as many terms (`copy_kernel`). With `parts` terms that follow one another in several parts are read in place as well, with
    `transposes` right operands of float32 in any layout.
    """
    dtype = problem.lhs.dtype
    if dtype != problem.rhs.dtype or problem.dtype != _sum_dtype(dtype) or dtype not in ((_FLOAT32,) if pairs else dtypes):
        return None
    if len(problem.lhs.stack.sizes) > _STACK_AXES:
        return None
    if pairs:
        left, right = _copied(problem.lhs, lhs, pairs), _copied(problem.rhs, rhs, pairs)
    else:
        in_any_layout = HALVES | {_FLOAT32}
        left = _operand(problem.lhs, lhs, in_any_layout)
        right = _operand(problem.rhs, rhs, in_any_layout if transposes else HALVES)
        if parts and len(problem.lhs.inner.sizes) == 2:
            divided = _in_parts(problem.lhs, lhs), _in_parts(problem.rhs, rhs)
            left, right = divided if None not in divided else (left, right)
    return None if left is None or right is None else MatrixProduct(left, right)


def _in_parts(operand: Operand, binding: int) -> MatrixOperand | None:
    """Return an operand whose terms are in several parts as it lies in memory.

    None if it would have to be copied.
    """
    (parts, size), (far, near) = operand.inner
    unit = UNIT // operand.dtype.itemsize
    if near != 1 or len(operand.outer.sizes) != 1 or len(operand.stack.sizes) >= _STACK_AXES:
        return None
    strides = (*operand.outer.strides, far, *operand.stack.strides)
    if any(x % unit or x < 0 for x in (operand.start, *strides)) or not operand.outer.strides[0]:
        return None
    (outer,), (stride,) = operand.outer
    return MatrixOperand(binding, operand.dtype, True, outer, size, stride, operand.stack, operand.start, parts=parts, part_stride=far)


def _operand(operand: Operand, binding: int, transposed: Collection[np.dtype]) -> MatrixOperand | None:
    """Return an operand as it lies in memory, or else its copy.

    Those of dtypes `transposed` need not be contiguous along k.
    """
    outer, inner, stack = operand.outer, operand.inner, operand.stack
    unit = UNIT // operand.dtype.itemsize
    if len(outer.sizes) == len(inner.sizes) == 1:
        along_k = inner.strides[0] == 1
        stride = outer.strides[0] if along_k else inner.strides[0]
        is_aligned = stride > 0 and not any(x % unit or x < 0 for x in (stride, operand.start, *stack.strides))
        if is_aligned and (along_k or (outer.strides[0] == 1 and operand.dtype in transposed)):
            return MatrixOperand(binding, operand.dtype, along_k, outer.size, inner.size, stride, stack, operand.start)
    return _copied(operand, binding, pairs=False)


def _copied(operand: Operand, binding: int, pairs: bool) -> MatrixOperand | None:
    """Return the copy of an operand; None if it would have to be padded within rows."""
    form = _copy_form(operand, pairs)
    if form.row > form.parts * form.columns.size and len(form.columns.sizes) != 1:
        return None
    walk, inner = Walk(operand.stack.sizes, form.stack), form.row if pairs else operand.inner.size
    return MatrixOperand(binding, form.dtype, form.along_k, operand.outer.size, inner, form.row, walk, 0, is_copy=True)


# Copies of operands that cannot be read in place.


class _CopyForm(NamedTuple):
    """How a copy of an operand lies in memory."""

    dtype: np.dtype
    along_k: bool
    #: How often a row repeats its elements, in which each has another part of them.
    parts: int
    #: The walks of the operand's index from row to row, and along a row of the copy.
    rows: Walk
    columns: Walk
    #: Elements of a row, which is padded with zeros, and strides of the stack's axes, along which no matrix is copied twice.
    row: int
    stack: Axes


def _copy_form(operand: Operand, pairs: bool) -> _CopyForm:
    dtype, parts = (_BFLOAT16, 3) if pairs else (operand.dtype, 1)
    along_k = pairs or operand.dtype not in HALVES or operand.outer.strides[-1:] != (1,)
    rows, columns = (operand.outer, operand.inner) if along_k else (operand.inner, operand.outer)
    unit = UNIT // dtype.itemsize
    row = parts * -(-columns.size // unit) * unit
    strides: list[int] = []
    following = rows.size * row
    for size, stride in zip(reversed(operand.stack.sizes), reversed(operand.stack.strides), strict=True):
        strides.insert(0, following if stride else 0)
        following *= size if stride else 1
    return _CopyForm(dtype, along_k, parts, rows, columns, row, tuple(strides))


def copy_kernel(operand: Operand, elements: int, remainders: int | None = None) -> Kernel:
    """Return the kernel that copies an operand to aligned matrices.

    The operand is an array of so many elements. With `remainders`, numbers of float32 become bfloat16, and a row of the copy has them three
    times: the part of this number has what rounding left over, the others have the rounded numbers. So of rows with the remainders in
    different parts, (x, x, x') and (y, y', y), the product is x y + x y' + x' y. What infinities leave is 0.
    """
    form = _copy_form(operand, remainders is not None)
    part = form.row // form.parts
    stack = [walk for walk in zip(operand.stack.sizes, operand.stack.strides, form.stack, strict=True) if walk[1]]
    rows = [x * form.row for x in contiguous_strides(form.rows.sizes)]
    walks = [*stack, *zip(*form.rows, rows, strict=True)]
    parts_axis = len(walks)
    walks += [(form.parts, 0, part)] if remainders is not None else []
    walks += zip(*form.columns, contiguous_strides(form.columns.sizes), strict=True)
    sizes = [size for size, _, _ in walks]
    source = Affine(tuple([(axis, stride) for axis, (_, stride, _) in enumerate(walks) if stride]), operand.start)
    target = Affine(tuple([(axis, stride) for axis, (_, _, stride) in enumerate(walks)]), 0)
    exists: tuple[Range, ...] = ()
    if part > form.columns.size:
        exists = (Range(along(len(walks) - 1), 0, form.columns.size),)
        sizes[-1] = part
    nodes: list[Node] = [Load(operand.dtype, 0, (elements,), (source,), exists, Constant.of(0, operand.dtype))]
    if remainders is not None:
        nodes += _split_node(Inside((Range(along(parts_axis), remainders, remainders + 1),)))
    store = Store((math.prod(sizes),), (target,), len(nodes) - 1)
    return Kernel(tuple(sizes), len(sizes), (Buffer(elements, operand.dtype),), tuple(nodes), (store,))


def _split_node(is_remainder: Inside) -> list[Node]:
    """Return the nodes that round node 0 to bfloat16, or what that leaves over."""

    def convert(node: int, dtype: np.dtype) -> Apply:
        return Apply(dtype, "convert_element_type", (node,), (("new_dtype", dtype), ("weak_type", False)))

    rounded, wide, difference = convert(0, _BFLOAT16), convert(1, _FLOAT32), Apply(_FLOAT32, "sub", (0, 2))
    finite, zero = Apply(np.dtype(np.bool_), "is_finite", (2,)), Constant.of(0, _FLOAT32)
    remainder = convert(6, _BFLOAT16)
    left = Apply(_FLOAT32, "select_n", (4, 5, 3))
    return [rounded, wide, difference, finite, zero, left, remainder, is_remainder, Apply(_BFLOAT16, "select_n", (8, 1, 7))]


# Schedules: tiles, and how they are chosen.

#: Bytes of shared memory in which a warp transposes results: 16 rows of 128 bytes.
STAGING = 16 * ROW

# Times are in multiplications of one slice by one multiprocessor, of which there are 32 in a clock cycle: 64 terms each.

#: What a slice costs besides its products, and what a row or column of it costs to copy: 128 bytes, of which about 56 in a clock cycle.
_SLICE_COST, _ROW_COST = 4000, 73

#: What a row or column costs each time that it is written to shared memory or read there, where slices are transposed.
_SHARED_ROW_COST = 40

#: The shared memory of a multiprocessor that has `wgmma`, and what a block takes besides its own.
_MEMORY, _RESERVED = 228 << 10, 1 << 10

#: What adding up partial sums costs: a dispatch, and each partial sum that is stored and loaded.
_DISPATCH_COST, _PARTIAL_COST = 180_000, 12


@dataclass(frozen=True)
class Schedule:
    """A tiling for `wgmma`: one warp group copies, the others multiply.

    A slice is 128 bytes of every row and column of a tile along k.
    """

    kind: ClassVar = "wgmma"
    columns: int = 256
    #: Warp groups that multiply, and the blocks of 64 rows of each.
    groups: int = 2
    blocks: int = 1
    #: Slices in shared memory.
    stages: int = 4
    #: Whether each warp group has tiles of its own, so that one multiplies while the other stores.
    turns: bool = False
    #: Chunks of each sum that different blocks compute (split-K); a second dispatch adds them up.
    splits: int = 1

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return 64 * self.blocks * (1 if self.turns else self.groups)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * (self.groups + 1)

    @property
    def residents(self) -> int:
        """Blocks that a multiprocessor has room for."""
        return 2 if self.groups == 1 else 1

    @property
    def registers(self) -> tuple[int, int] | None:
        """Registers of a thread that copies, and of one that multiplies.

        None: those that the compiler gives all of them. Together they must be no more than a multiprocessor has, or a block waits for ever.
        """
        return (40, 232) if self.groups == 2 else None

    def copies(self, left_along_k: bool, right_along_k: bool) -> bool:
        """Return whether operands can be copied that are contiguous along k, or not.

        Boxes of those that are not have 64 rows or columns.
        """
        return left_along_k or self.rows % (ROW // 2) == 0

    @property
    def slice_bytes(self) -> int:
        """Bytes of a slice of both operands."""
        return (self.rows + self.columns) * ROW

    @property
    def untransposed(self) -> int:
        """Slices of the right operand alone that a stage has room for."""
        return (self.rows + self.columns) // self.columns

    @property
    def shared(self) -> int:
        """Bytes of shared memory.

        It has slices, two barriers for each, and room for each warp to transpose results.
        """
        return self.stages * (self.slice_bytes + 16) + self.groups * 4 * STAGING


@dataclass(frozen=True)
class WarpSchedule:
    """A tiling for `mma.sync`: every warp copies and multiplies."""

    kind: ClassVar = "mma"
    rows: int = 128
    columns: int = 128
    #: Rows and columns of the part of a tile that a warp multiplies.
    warp_rows: int = 64
    warp_columns: int = 64
    #: Slices of 128 bytes along k in shared memory.
    stages: int = 3
    splits: int = 1
    residents: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows // self.warp_rows * (self.columns // self.warp_columns) * 32

    def copies(self, left_along_k: bool, right_along_k: bool) -> bool:
        """Return whether operands can be copied that are contiguous along k, or not.

        Rows in shared memory have eight units of 16 bytes at least, by which they are swizzled.
        """
        return (left_along_k or self.rows >= ROW // 2) and (right_along_k or self.columns >= ROW // 2)

    @property
    def slice_bytes(self) -> int:
        """Bytes of a slice of both operands."""
        return (self.rows + self.columns) * ROW

    @property
    def shared(self) -> int:
        """Bytes of shared memory; results are staged where slices were."""
        return max(self.stages * self.slice_bytes, self.threads // 32 * STAGING)


AnySchedule = Schedule | WarpSchedule

_WGMMA = (
    Schedule(256, 2, stages=4),
    Schedule(192, 2, stages=5),
    Schedule(128, 2, blocks=2, stages=6, turns=True),
    Schedule(192, 2, stages=5, turns=True),
    Schedule(128, 2, stages=8, turns=True),
    Schedule(128, 1, stages=4),
    Schedule(64, 1, stages=6),
    Schedule(32, 1, stages=8),
)
#: Those for matrices alone, whose right operands are contiguous along k.
_WGMMA_OF_MATRICES = Schedule(160, 2, stages=5), Schedule(160, 2, blocks=2, stages=4)
_MMA = (
    WarpSchedule(128, 128, stages=3),
    WarpSchedule(64, 128, 32, 64, stages=3, residents=2),
    WarpSchedule(64, 64, 32, 32, stages=3, residents=2),
)

#: The fewest slices of a chunk of a split sum, the most chunks, and the most rounds of tiles that these fill.
_FEWEST_SLICES, _MOST_SPLITS, _MOST_ROUNDS = 8, 64, 4


def candidates(capabilities: TargetCapabilities) -> tuple[AnySchedule, ...]:
    """Return the schedules that fit a device."""
    schedules: tuple[AnySchedule, ...] = _WGMMA if capabilities.matrix_units == "wgmma" else _MMA
    return tuple([s for s in schedules if s.shared <= capabilities.block_memory])


def choose(product: MatrixProduct, capabilities: TargetCapabilities, most_splits: int = _MOST_SPLITS) -> AnySchedule:
    """Return the schedule measured to be fastest, or the one estimated to be.

    Sums are in at most so many chunks.
    """
    tuned = shipped().get(capabilities.adapter, {}).get(product.name)
    kinds = capabilities.matrix_units, WarpSchedule.kind
    fits = tuned is not None and tuned.kind in kinds and tuned.shared <= capabilities.block_memory and tuned.splits <= most_splits
    if tuned is not None and fits and is_legal(product, tuned):
        return tuned
    of_matrices = _WGMMA_OF_MATRICES if capabilities.matrix_units == "wgmma" else ()
    legal = [s for s in (*candidates(capabilities), *of_matrices) if is_legal(product, s)]
    return estimated(product, capabilities, legal, most_splits)


def estimated(
    product: MatrixProduct, capabilities: TargetCapabilities, schedules: Sequence[AnySchedule], most_splits: int = _MOST_SPLITS
) -> AnySchedule:
    """Return the schedule estimated to be fastest.

    Sums are in at most so many chunks.
    """
    processors = capabilities.processors
    options = [replace(s, splits=n) for s in schedules for n in _splits(product, s, processors) if n <= most_splits]
    return min(options, key=lambda s: cost(product, s, processors))


def _splits(product: MatrixProduct, schedule: AnySchedule, processors: int) -> list[int]:
    """Return numbers of chunks: one, and those with which tiles fill whole rounds."""
    if product.second is not None:
        return [1]
    down, across = tiles(product, schedule)
    room = processors * schedule.residents
    most = min(_MOST_SPLITS, chunk(product, 1) // _FEWEST_SLICES)
    filling = {min(most, rounds * room // (down * across * product.batch)) for rounds in range(1, _MOST_ROUNDS + 1)}
    return sorted({1, *filling} - {0})


def is_legal(product: MatrixProduct, schedule: AnySchedule) -> bool:
    """Return whether a schedule's kernel computes a product.

    That by `mma.sync` computes those of 16 bits.
    """
    if isinstance(schedule, WarpSchedule) and (product.lhs.dtype not in HALVES or product.second is not None):
        return False
    if product.second is not None and (schedule.splits > 1 or columns(product, schedule) % (16 if product.rhs.along_k else ROW // 2)):
        return False
    if product.transposes and (isinstance(schedule, WarpSchedule) or schedule.untransposed < 2):
        return False
    further = _copied_columns(product, schedule) - schedule.columns
    if isinstance(schedule, Schedule) and schedule.shared + schedule.stages * further * ROW > _MEMORY // schedule.residents - _RESERVED:
        return False
    return schedule.copies(product.lhs.along_k, product.rhs.along_k)


def _copied_columns(product: MatrixProduct, schedule: AnySchedule) -> int:
    """Return the columns of a slice that are copied.

    Where they are not contiguous along k these are whole boxes, of 128 bytes each.
    """
    box = 1 if product.rhs.along_k else ROW // product.rhs.dtype.itemsize
    return ceil(schedule.columns / box) * box


def chunk(product: MatrixProduct, splits: int) -> int:
    """Return the slices of a chunk of the sums."""
    slices = ceil(product.k * product.lhs.dtype.itemsize / ROW)
    return ceil(slices / splits)


def columns(product: MatrixProduct, schedule: AnySchedule) -> int:
    """Return the columns that a tile has of each product: of a pair, half of its own."""
    return schedule.columns // len(product.right)


def tiles(product: MatrixProduct, schedule: AnySchedule) -> tuple[int, int]:
    """Return the rows and columns of tiles."""
    return ceil(product.m / schedule.rows), ceil(product.n / columns(product, schedule))


def cost(product: MatrixProduct, schedule: AnySchedule, processors: int) -> float:
    """Estimate the time of a schedule: rounds of tiles, times what each costs.

    To store a tile is estimated to take as long as to multiply a slice.
    """
    down, across = tiles(product, schedule)
    blocks = ceil(down * across * product.batch * schedule.splits / processors)
    rounds, residents = ceil(blocks / schedule.residents), min(blocks, schedule.residents)
    each = max(schedule.rows * schedule.columns, _ROW_COST * (schedule.rows + _copied_columns(product, schedule)))
    if product.transposes:
        each = max(each, _SHARED_ROW_COST * ((3 + schedule.rows // 64) * schedule.columns + 2 * schedule.rows))
    stores = schedule.rows * schedule.columns * residents
    time = rounds * ((each * residents + _SLICE_COST) * chunk(product, schedule.splits) + stores)
    return time + split_cost(schedule.splits, product.batch * product.m * product.n, processors)


def split_cost(splits: int, results: int, processors: int) -> float:
    """Estimate the time of adding up the partial sums of results, if there are any."""
    return 0 if splits == 1 else _DISPATCH_COST + _PARTIAL_COST * (splits + 1) * results / processors


def faster_transposed(
    products: Sequence[MatrixProduct | None], copied: MatrixProduct | None, capabilities: TargetCapabilities
) -> MatrixProduct | None:
    """Return the product whose right operand is transposed soonest.

    None if it takes less time to copy it before; `copied` is the product with that copy. A product with a schedule that was measured is
    faster so.
    """

    def time(product: MatrixProduct) -> float:
        return cost(product, choose(product, capabilities), capabilities.processors)

    measured = shipped().get(capabilities.adapter, {})
    in_place = [p for p in products if p is not None and p.transposes and not (p.lhs.is_copy or p.rhs.is_copy)]
    best = min(in_place, key=lambda p: (p.name not in measured, time(p)), default=None)
    if best is None or copied is None or best.name in measured:
        return best
    copy = _DISPATCH_COST + _PARTIAL_COST * copied.batch * copied.n * copied.k / capabilities.processors
    return best if time(best) < time(copied) + copy else None


# Schedules that were measured to be the fastest, by adapter and name of product. They are shipped with the package, in a JSON file.

#: The schedules that come with the package.
SHIPPED = Path(__file__).with_name("tuned.json")

Choices = dict[str, dict[str, AnySchedule]]


def read(path: Path) -> Choices:
    """Read a file of schedules; empty if it is missing or has another format."""
    try:
        content = json.loads(path.read_text())
        return {adapter: {name: _schedule(**fields) for name, fields in schedules.items()} for adapter, schedules in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _schedule(kind: str, **fields: Any) -> AnySchedule:
    return WarpSchedule(**fields) if kind == "mma" else Schedule(**fields)


def write(path: Path, choices: Choices) -> None:
    """Write a file that `read` reads."""
    content = {
        adapter: {name: {"kind": schedule.kind, **asdict(schedule)} for name, schedule in sorted(schedules.items())}
        for adapter, schedules in sorted(choices.items())
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


@functools.cache
def shipped() -> Choices:
    """Return the schedules that come with the package."""
    return read(SHIPPED)
