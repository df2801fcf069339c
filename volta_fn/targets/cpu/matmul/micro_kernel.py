"""Register tiles: dtypes of sums, grouped instructions, and the micro-kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np

from volta_fn.compiler.contractions import Operand, Problem
from volta_fn.runtime.llvm.host import cache_for_host, host
from volta_fn.runtime.llvm.text import Function, SharedFunction, Value, i64, lanes_of, shared_function, vector_of
from volta_fn.targets.cpu.scalars.number import bfloat16_bits, first_of, masked_load, masked_store
from volta_fn.targets.cpu.scalars.values import Lanes, overload

# Groups of narrow numbers, adjacent along k, which an instruction multiplies and sums to a lane of 32 bits.
#
# x86's `vdpbf16ps` sums the products of two pairs of bfloat16 in float32, twice as many as a multiplication of float32; `vpdpbusd` those of
# four unsigned and four signed bytes in int32, four times as many. ARM has `bfdot` and `sdot` (of signed bytes).
#
# `vdpbf16ps` takes subnormal numbers for 0, in operands and sums: an operand below 1.2e-38 contributes nothing. It rounds to nearest,
# whatever the environment says.
#
# Sums of bytes are exact, and wrap around as those of int32 do. Where both operands are signed, 128 is added to the left one's (their top
# bit is flipped), and the sums begin with -128 times those of the right one's columns.

_BFLOAT16, _INT8, _UINT8 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.int8), np.dtype(np.uint8)


def grouped_type(problem: Problem) -> ComputeType | None:
    """Return the compute type of groups in which to multiply; None if there is none.

    Both operands have to be contiguous along k, or along m and n.
    """
    if not (_is_contiguous(problem.lhs) and _is_contiguous(problem.rhs)):
        return None
    return type_of_groups((problem.lhs.dtype, problem.rhs.dtype), problem.dtype)


def type_of_groups(dtypes: tuple[np.dtype, np.dtype], result: np.dtype) -> ComputeType | None:
    """Return the compute type of groups for operands and a result.

    None if there is none for these dtypes.
    """
    cpu, lanes = host(), host().lanes(4)
    on_x86 = cpu.triple.startswith("x86")
    if dtypes == (_BFLOAT16, _BFLOAT16) and result in (_BFLOAT16, np.float32):
        has_pairs = cpu.vector_bytes == 64 and cpu.has("avx512bf16") if on_x86 else cpu.has("bf16")
        return ComputeType("float", 4, lanes, group=2) if has_pairs else None
    if not set(dtypes) <= {_INT8, _UINT8} or result.kind not in "iu" or result.itemsize > 4:
        return None
    unsigned = [side for side, dtype in enumerate(dtypes) if dtype == _UINT8]
    if not on_x86:
        return ComputeType("i32", 4, lanes, group=4) if not unsigned and cpu.has("dotprod") else None
    feature = {64: "avx512vnni", 32: "avxvnni"}.get(cpu.vector_bytes)
    if feature is None or not cpu.has(feature) or len(unsigned) == 2:
        return None
    return ComputeType("i32", 4, lanes, group=4, unsigned=unsigned[0] if unsigned else 0, biased=not unsigned)


def _is_contiguous(operand: Operand) -> bool:
    return operand.inner.stride == 1 or (operand.outer.stride == 1 and operand.inner.stride is not None)


# The dtype in which a product computes, and conversions from and to others.
#
# float32, float64 and the integers of 32 and 64 bits compute in themselves; float16 and bfloat16 in float32, rounded once at the end;
# narrower integers in 32 bits, of which the low ones are theirs; bools in "any of (a and b)". Where the machine has instructions that sum
# the products of two bfloat16, or of four int8, to a lane of 32 bits, the lanes of operands are such groups.

_FLOATS = {np.dtype(np.float16): "half", np.dtype(np.float32): "float", np.dtype(np.float64): "double"}


class ComputeType(NamedTuple):
    """The type of sums, its size in bytes, and how many fill a vector register.

    A lane of an operand is a number of the same type, or a group of narrower numbers that are adjacent along k.
    """

    type: str
    itemsize: int
    lanes: int
    boolean: bool = False
    #: How many terms of a sum a multiplication adds: the numbers of a lane of the operands.
    group: int = 1
    #: The operand whose groups are unsigned numbers, 0 or 1; None: neither.
    unsigned: int | None = None
    #: Whether 128 is added to the int8 of the left operand, which makes them unsigned; sums are corrected for it.
    biased: bool = False

    @property
    def element(self) -> str:
        """The type of a lane of an operand."""
        return self.type if self.group == 1 else f"i{8 * self.itemsize}"

    def packed(self, side: int) -> ComputeType:
        """Return the type of an operand's lanes: of the left one, 0, or the right one, 1."""
        return self._replace(type=self.element, biased=self.biased and side == 0)

    @property
    def vector(self) -> str:
        """The type of a full register."""
        return vector_of(self.type, self.lanes)

    def zero(self, lanes: int | None = None) -> Value:
        """Return a vector of zeros."""
        return Value(vector_of(self.type, lanes or self.lanes), "zeroinitializer")

    def add(self, f: Function, x: Value, y: Value) -> Value:
        """Emit the sum of two sums."""
        return f.binary("or" if self.boolean else "fadd" if self.type in ("float", "double") else "add", x, y)

    def multiply_add(self, f: Function, x: Value, y: Value, total: Value) -> Value:
        """Emit ``total + x * y``, rounded once where the machine has an instruction.

        Of groups, emit the total plus the sum of their products.
        """
        if self.group > 1:
            return _add_group(f, self, x, y, total)
        if self.type in ("float", "double"):
            if not host().has_fma:
                return f.binary("fadd", total, f.binary("fmul", x, y))
            return f.intrinsic(f"llvm.fma.{overload(total.type)}", total.type, x, y, total)
        return self.add(f, total, f.binary("and" if self.boolean else "mul", x, y))


def _add_group(f: Function, work: ComputeType, x: Value, y: Value, total: Value) -> Value:
    """Emit a total plus the products of two vectors of groups, by one instruction."""
    lanes = lanes_of(total.type)
    narrow = {2: "bfloat", 4: "i8"}[work.group]
    on_x86 = host().triple.startswith("x86")
    if on_x86 and narrow == "i8":
        unsigned, signed = (y, x) if work.unsigned == 1 else (x, y)
        return f.intrinsic(f"llvm.x86.avx512.vpdpbusd.{lanes * 32}", total.type, total, unsigned, signed)
    x, y = [f.cast("bitcast", value, vector_of(narrow, lanes * work.group)) for value in (x, y)]
    if on_x86:
        return f.intrinsic(f"llvm.x86.avx512bf16.dpbf16ps.{lanes * 32}", total.type, total, x, y)
    name = "bfdot" if narrow == "bfloat" else "sdot"
    return f.intrinsic(f"llvm.aarch64.neon.{name}.{overload(total.type)}.{overload(x.type)}", total.type, total, x, y)


def compute_type(dtype: np.dtype) -> ComputeType | None:
    """Return what products with results of a dtype compute in; None for complex."""
    if dtype.kind in "iu":
        itemsize = max(4, dtype.itemsize)
        return ComputeType(f"i{itemsize * 8}", itemsize, host().lanes(itemsize))
    if dtype == np.bool_:
        return ComputeType("i32", 4, host().lanes(4), boolean=True)
    if dtype == np.float64:
        return ComputeType("double", 8, host().lanes(8))
    return ComputeType("float", 4, host().lanes(4)) if dtype == np.float32 or _half(dtype) else None


def readable(dtype: np.dtype) -> bool:
    """Return True if `read` and `write` support a dtype on this machine."""
    if dtype == np.float16:
        return host().converts_float16
    return dtype == np.bool_ or dtype == _BFLOAT16 or dtype in _FLOATS or dtype.kind in "iu"


def stored_as(dtype: np.dtype) -> str:
    """Return the LLVM type of a dtype's elements in memory."""
    return _FLOATS.get(dtype, f"i{dtype.itemsize * 8}")


def is_itself(work: ComputeType, dtype: np.dtype) -> bool:
    """Return True if numbers of a dtype need no conversion to the compute type."""
    return stored_as(dtype) == work.type and dtype != np.bool_


def rounds_to(dtype: np.dtype, other: np.dtype) -> bool:
    """Return True if `write` to another dtype converts sums of a dtype.

    It rounds, or drops high bits. Other conversions need the sums in their own dtype first.
    """
    if dtype == other:
        return True
    if dtype.kind in "iu":
        return other.kind in "iu" and other.itemsize <= dtype.itemsize
    return readable(other) and ((dtype == np.float32 and _half(other)) or (dtype == np.float64 and other == np.float32))


def read(f: Function, work: ComputeType, dtype: np.dtype, pointer: Value, lanes: int, mask: Value | None = None) -> Value:
    """Load `lanes` adjacent numbers in the compute type; zero where masked out.

    Of a type of groups, load groups that are adjacent.
    """
    if work.group > 1:
        return with_bias(f, work, load(f, work.element, dtype.itemsize, pointer, lanes, mask))
    value = load(f, stored_as(dtype), dtype.itemsize, pointer, lanes, mask)
    type_ = vector_of(work.type, lanes)
    if value.type == type_:
        return value
    if dtype == _BFLOAT16:
        value = (Lanes(f, value).cast("zext", "i32") << 16).as_float().value
    if dtype.kind == "f" or dtype == _BFLOAT16:
        return f.cast("fpext", value, type_)
    to_float = work.type in ("float", "double")  # because of the other operand's dtype
    return f.cast(("sitofp" if to_float else "sext") if dtype.kind == "i" else ("uitofp" if to_float else "zext"), value, type_)


#: 128 in each byte of a group: what is added to int8, without carries, to make them unsigned.
_BIAS = Value("i32", str(-0x7F7F7F80))


def with_bias(f: Function, work: ComputeType, groups: Value) -> Value:
    """Emit groups of the left operand with the bias of a biased type."""
    return f.binary("xor", groups, f.splat(_BIAS, lanes_of(groups.type))) if work.biased else groups


def bias_of(f: Function, work: ComputeType, groups: Value, total: Value) -> Value:
    """Emit a total plus what the bias adds to products with groups on the right."""
    return work.multiply_add(f, f.splat(_BIAS, work.lanes), groups, total)


def write(f: Function, work: ComputeType, dtype: np.dtype, value: Value, lanes: int, pointer: Value, mask: Value | None = None) -> None:
    """Convert numbers of the compute type to a dtype and store them under a mask."""
    type_ = vector_of(stored_as(dtype), lanes)
    if dtype == _BFLOAT16:
        value = bfloat16_bits(Lanes(f, f.cast("fptrunc", value, vector_of("float", lanes)))).cast("trunc", "i16").value
    elif value.type != type_:
        value = f.cast("fptrunc" if dtype.kind == "f" else "trunc", value, type_)
    if mask is None:
        f.store(value, pointer, dtype.itemsize)
    else:
        masked_store(f, value, pointer, dtype.itemsize, mask)


def load(f: Function, type_: str, itemsize: int, pointer: Value, lanes: int, mask: Value | None = None) -> Value:
    """Load a vector, zero where a mask leaves lanes out."""
    vector = vector_of(type_, lanes)
    return f.load(vector, pointer, itemsize) if mask is None else masked_load(f, vector, pointer, itemsize, mask)


def store_lanes(f: Function, work: ComputeType, value: Value, pointer: Value, room: int) -> None:
    """Store a register of the compute type, or its first `room` lanes."""
    mask = first_lanes(room, work.lanes)
    if mask is None:
        f.store(value, pointer, work.itemsize)
    else:
        masked_store(f, value, pointer, work.itemsize, mask)


def first_lanes(count: int, lanes: int) -> Value | None:
    """Return the mask of the first `count` lanes; None if these are all."""
    return None if count >= lanes else first_of(count, lanes)


def _half(dtype: np.dtype) -> bool:
    return dtype == np.float16 or dtype == _BFLOAT16


# The micro-kernel: a register tile of C, summed over k.
#
# A tile has a few rows by a few vectors of columns. For each k the micro-kernel loads the vectors of B's row once and multiplies them by
# every row's number of A, broadcast from memory. So that the multiplications, and not the loads, take the time, tiles are as large as
# registers allow. `multiply` is compiled once for all products: matrices' sizes are arguments.

_UNROLLED = 56  # multiplications unrolled in an iteration of the loop, at most
_AHEAD = 24  # k by which packed panels are prefetched
CACHE_LINE = 64  # bytes of a cache line, on most CPUs
_SHARE = 3  # rows that share a pointer
_NEAR = 128  # most bytes between A's k for which A is prefetched


class MatrixView(NamedTuple):
    """Numbers in memory: A by (row, k) or B by (k, column); strides in elements.

    The stride of A's rows may be a value, in bytes, that is known only when the code runs.
    """

    pointer: Value
    outer: int | Value
    inner: int
    #: Whether it is an operand in place, whose groups lack the bias of a biased type.
    is_raw: bool = False


class TileAddress(NamedTuple):
    """The address of a tile's first row, and the stride of rows in bytes."""

    pointer: Value
    stride: Value


class ResultTile(NamedTuple):
    """A tile of the result: its sums by row and vector, and where they belong.

    Only the first `columns` columns exist.
    """

    work: ComputeType
    buffers: Value
    batch: Value
    row: Value
    column: Value
    sums: Sequence[Sequence[Value]]
    columns: int

    def mask(self, vector: int) -> Value | None:
        """Return the mask of the lanes of a vector that exist; None if all do."""
        return first_lanes(self.columns - vector * self.work.lanes, self.work.lanes)


def tile_shapes() -> dict[int, int]:
    """Return the most rows that fit the registers for each number of vectors.

    A tile needs registers for its sums, a row of B and a number of A.
    """
    if host().vector_registers >= 32:
        return {1: 24, 2: 14, 3: 8, 4: 6, 5: 5, 6: 4, 8: 2, 16: 1}
    return {1: 12, 2: 6, 3: 4, 4: 2, 8: 1}


def accumulate(
    f: Function,
    work: ComputeType,
    rows: int,
    count: int,
    a: MatrixView,
    b: MatrixView,
    depth: Value,
    *,
    padded: bool,
    initial: Sequence[Value] | None = None,
) -> list[list[Value]]:
    """Emit the sums of ``A(i, k) B(k, j)`` over `depth` k, by row and vector.

    They begin with `initial`, a vector for each one of a row, or with zeros.

    `padded` says that B is packed: it may be read beyond the last column, up to a full vector, and is prefetched. Rows of B
    in place may be so distant that prefetching evicts others.
    """
    vectors = -(-count // work.lanes)
    masks = [None if padded else first_lanes(count - v * work.lanes, work.lanes) for v in range(vectors)]
    unrolled = max(1, min(8, _UNROLLED // (rows * vectors)))
    sums = list(initial or [work.zero()] * vectors) * rows
    row_pointers = RowPointers(f, a.outer * work.itemsize if isinstance(a.outer, int) else a.outer, rows)

    def iterations(steps: int, carried: Sequence[Value]) -> list[Value]:
        a_pointers, b_pointer, totals = (
            carried[: row_pointers.pointers],
            carried[row_pointers.pointers],
            list(carried[row_pointers.pointers + 1 :]),
        )
        for step in range(steps):
            if padded and 1 < a.inner * work.itemsize <= _NEAR and a.outer == 1:
                prefetch(f, _beyond(f, a_pointers[0], (step + _AHEAD) * a.inner * work.itemsize))
            for start in range(0, vectors * work.lanes * work.itemsize if padded else 0, CACHE_LINE):
                prefetch(f, _beyond(f, b_pointer, (step + _AHEAD) * b.inner * work.itemsize + start))
            b_row = [
                load(
                    f,
                    work.element,
                    work.itemsize // work.group,
                    _beyond(f, b_pointer, (step * b.inner + v * work.lanes) * work.itemsize),
                    work.lanes,
                    masks[v],
                )
                for v in range(vectors)
            ]
            for i in range(rows):
                address = _beyond(f, row_pointers.row(f, a_pointers, i), step * a.inner * work.itemsize)
                x = f.splat(f.load(work.element, address, work.itemsize // work.group), work.lanes)
                x = with_bias(f, work, x) if a.is_raw else x
                for v in range(vectors):
                    totals[i * vectors + v] = work.multiply_add(f, x, b_row[v], totals[i * vectors + v])
        ahead = [_beyond(f, p, steps * a.inner * work.itemsize) for p in a_pointers]
        return [*ahead, _beyond(f, b_pointer, steps * b.inner * work.itemsize), *totals]

    unrolled_end = f.binary("sub", depth, f.binary("urem", depth, i64(unrolled)))
    carried = [*row_pointers.starts(f, a.pointer), b.pointer, *sums]
    carried = f.loop(i64(0), unrolled_end, unrolled, carried, lambda _, values: iterations(unrolled, values))
    if unrolled > 1:
        carried = f.loop(unrolled_end, depth, 1, carried, lambda _, values: iterations(1, values))
    totals = carried[row_pointers.pointers + 1 :]
    return [totals[i * vectors : (i + 1) * vectors] for i in range(rows)]


class RowPointers:
    """The addresses of rows.

    Where their stride is known only when the code runs, three rows share a pointer, to which addressing modes add the stride.
    """

    def __init__(self, f: Function, stride: int | Value, rows: int) -> None:
        self.stride = stride
        #: How many pointers there are.
        self.pointers = 1 if isinstance(stride, int) else -(-rows // _SHARE)
        if isinstance(stride, Value):
            self._steps = [stride, f.binary("shl", stride, i64(1)), f.binary("mul", stride, i64(_SHARE))]

    def starts(self, f: Function, first: Value) -> list[Value]:
        """Emit the pointers, from the address of the first row."""
        starts = [first]
        while len(starts) < self.pointers:
            starts.append(f.at(starts[-1], "i8", self._steps[-1]))
        return starts

    def row(self, f: Function, pointers: Sequence[Value], row: int) -> Value:
        """Emit the address of a row from pointers that may have advanced along the rows."""
        if isinstance(self.stride, int):
            return _beyond(f, pointers[0], row * self.stride)
        pointer, rest = pointers[row // _SHARE], row % _SHARE
        return f.at(pointer, "i8", self._steps[rest - 1]) if rest else pointer


def _beyond(f: Function, pointer: Value, bytes_: int) -> Value:
    return f.let("ptr", f"getelementptr inbounds i8, {pointer}, i64 {bytes_}") if bytes_ else pointer


def prefetch(f: Function, pointer: Value, *, to_write: bool = False, soon: bool = True) -> None:
    """Emit a prefetch: into the level-1 cache if it is needed `soon`, else level 2."""
    f.module.declare("llvm.prefetch.p0", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    f.do(f"call void @llvm.prefetch.p0({pointer}, i32 {int(to_write)}, i32 {3 if soon else 2}, i32 1)")


_NULL = Value("ptr", "null")
_WORTH_FETCHING = 32  # least k, which give the prefetch of a tile time


class MicroKernel(NamedTuple):
    """A micro-kernel's parameters: the tile's size, and the strides of A and B."""

    work: ComputeType
    rows: int
    columns: int
    #: The stride of A's rows in elements; None if it is an argument, in bytes.
    a_outer: int | None
    a_inner: int
    b_inner: int
    #: Whether B may be read beyond the last column, to a full vector.
    padded: bool
    #: Whether A is an operand in place, whose groups lack the bias of a biased type.
    is_raw: bool = False


@cache_for_host
def micro_kernel(kind: MicroKernel) -> SharedFunction:
    """Return the micro-kernel, a function that adds products to a tile.

    Its arguments are A's address and the bytes between its rows, B's address, the number of k, and two tiles, each by its address
    and the bytes between its rows: the sums so far (null if there are none), and where the sums belong. One of a biased type begins with
    what `write_corrections` stores after B.
    """
    work, rows, columns = kind[:3]
    name = f"multiply_{type_name(work)}_{rows}x{columns}_a{'' if kind.a_outer is None else kind.a_outer}_{kind.a_inner}_b{kind.b_inner}"
    pointers = ("a", "b", "source", "target")
    names = ("a", "a_apart", "b", "depth", "source", "source_apart", "target", "target_apart")

    def write(f: Function) -> None:
        a, a_stride, b, depth, source, source_stride, target, target_stride = f.parameters
        fresh = f.compare("icmp eq", source, _NULL)
        first, stride = f.select(fresh, target, source), f.select(fresh, target_stride, source_stride)
        f.branch(f.compare("icmp sge", depth, i64(_WORTH_FETCHING)), lambda: _prefetch_tile(f, kind, first, stride))
        view = MatrixView(a, a_stride if kind.a_outer is None else kind.a_outer, kind.a_inner, kind.is_raw)
        initial = [
            f.load(work.vector, _element(f, work, b, depth, kind.b_inner, start), work.itemsize)
            for start in range(0, columns * work.biased, work.lanes)
        ]
        sums = accumulate(f, work, rows, columns, view, MatrixView(b, 1, kind.b_inner), depth, padded=kind.padded, initial=initial)
        flat = [vector for row in sums for vector in row]
        flat = f.branch(fresh, lambda: flat, lambda: _added(f, kind, flat, source, source_stride))
        for (vector, address), value in zip(_vectors(f, kind, target, target_stride), flat, strict=True):
            store_lanes(f, work, value, address, columns - vector * work.lanes)

    parameters = [Value("ptr" if parameter in pointers else "i64", f"%{parameter}") for parameter in names]
    return shared_function(f"{name}{'' if kind.padded else '_exact'}{'_raw' if kind.is_raw else ''}", parameters, write)


@cache_for_host
def write_corrections(work: ComputeType, columns: int) -> SharedFunction:
    """Return the function that stores the row with which sums of a biased type begin.

    It lies after a packed panel of B, whose address and number of k are the arguments.
    """
    width = columns + -columns % work.lanes
    starts = range(0, width, work.lanes)

    def write(f: Function) -> None:
        b, depth = f.parameters

        def row(k: Value, totals: list[Value]) -> list[Value]:
            groups = [f.load(vector_of(work.element, work.lanes), _element(f, work, b, k, width, start), 4) for start in starts]
            return [bias_of(f, work, x, total) for x, total in zip(groups, totals, strict=True)]

        for start, total in zip(starts, f.loop(i64(0), depth, 1, [work.zero()] * len(starts), row), strict=True):
            f.store(f.binary("sub", work.zero(), total), _element(f, work, b, depth, width, start), work.itemsize)

    return shared_function(f"bias_{type_name(work)}_{columns}", [Value("ptr", "%b"), Value("i64", "%depth")], write)


def _element(f: Function, work: ComputeType, b: Value, k: Value, width: int, column: int) -> Value:
    """Emit the address of a column in row `k` of a panel of B."""
    return f.at(f.at(b, f"[{width * work.itemsize} x i8]", k), work.type, i64(column))


def _vectors(f: Function, kind: MicroKernel, first: Value, stride: Value) -> list[tuple[int, Value]]:
    """Emit the number and the address of each vector of a tile, row by row."""
    across = -(-kind.columns // kind.work.lanes)
    row_pointers = RowPointers(f, stride, kind.rows)
    starts = row_pointers.starts(f, first)
    addresses = [(row_pointers.row(f, starts, row), vector) for row in range(kind.rows) for vector in range(across)]
    return [(vector, f.at(address, kind.work.type, i64(vector * kind.work.lanes))) for address, vector in addresses]


def _prefetch_tile(f: Function, kind: MicroKernel, first: Value, stride: Value) -> None:
    for _, address in _vectors(f, kind, first, stride):
        prefetch(f, address, to_write=True)


def _added(f: Function, kind: MicroKernel, sums: list[Value], first: Value, stride: Value) -> list[Value]:
    """Emit sums plus what a tile in memory has."""
    work = kind.work
    masks = [first_lanes(kind.columns - start, work.lanes) for start in range(0, kind.columns, work.lanes)]
    return [
        work.add(f, load(f, work.type, work.itemsize, address, work.lanes, masks[vector]), value)
        for (vector, address), value in zip(_vectors(f, kind, first, stride), sums, strict=True)
    ]


def type_name(work: ComputeType) -> str:
    """Return how names of functions call a compute type."""
    if work.group > 1:
        return f"{work.type}_{work.group}{'' if work.unsigned is None else 'lr'[work.unsigned]}{'b' if work.biased else ''}"
    return "bool" if work.boolean else work.type
