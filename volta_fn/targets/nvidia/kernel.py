"""Kernels in LLVM IR that are no WGSL: functions, modules, and launches.

The text of such a module is LLVM IR whose first line is a comment that tells how it is launched. Parameters are, in this order, the tensor
maps of 128 bytes, a pointer for each binding, a pointer to the table of shared memory if the kernel reaches that of other processes, and
a pointer to the grid of a conditional dispatch, or null.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.contractions import Walk
from volta_fn.runtime.llvm.text import Function, Module, Value, element_of, i64, lanes_of, vector_of
from volta_fn.targets.wgsl.routine import Dispatch
from volta_fn.targets.wgsl.shader import Binding, ShaderModule

# Functions, with inline PTX where LLVM has no intrinsic.

#: Pointers to global and to shared memory.
GLOBAL, SHARED = "ptr addrspace(1)", "ptr addrspace(3)"

#: Letters of inline assembly for registers by type.
_REGISTERS = {"i16": "h", "i32": "r", "i64": "l", "float": "f"}

#: The dynamic shared memory of a block, whose size the launch sets.
_SHARED_MEMORY = "@shared_memory"

#: The results of `mma` and of `ldmatrix`.
_SUMS, _WORDS = "{float, float, float, float}", "{i32, i32, i32, i32}"

#: The most rows of tiles of a band.
_BAND = 8

#: Bytes of a row of a tile that the tensor memory accelerator copies, in the swizzle of 128 bytes.
_ROW = 128

_WAIT = """{
.reg .pred done;
WAIT_${:uid}:
mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1;
@done bra DONE_${:uid};
bra WAIT_${:uid};
DONE_${:uid}:
}"""

_WAIT_FOR_COUNT = """{
.reg .pred before;
.reg .b32 number;
WAIT_${:uid}:
ld.acquire.gpu.global.u32 number, [$0];
setp.lt.u32 before, number, $1;
@before bra WAIT_${:uid};
}"""

_ARRIVE_IN_FIRST_LANE = """{
.reg .pred first;
setp.eq.u32 first, $1, 0;
@first mbarrier.arrive.shared::cta.b64 _, [$0];
}"""


def i32(number: int) -> Value:
    """Return a constant 32-bit integer."""
    return Value("i32", str(number))


def f32(number: float) -> Value:
    """Return a constant float32."""
    return Value("float", f"0x{int(np.float64(np.float32(number)).view(np.uint64)):016X}")


ZERO = Value("float", "0.0")

#: The least finite float32, and less than that.
LOWEST, MINUS_INFINITY = f32(-float(np.finfo(np.float32).max)), f32(-np.inf)


def half_type(dtype: np.dtype) -> str:
    """Return the type of a 16-bit float."""
    return "half" if dtype == np.float16 else "bfloat"


class KernelFunction(Function):
    """The kernel `main` of a module.

    Indices have 32 bits and are below 2^31; offsets in arrays that may have more bytes are computed in 64 bits.
    Its parameters are pointers to tensor maps, a pointer per binding, and one to the grid of a conditional dispatch.
    """

    def __init__(self, maps: int, bindings: int, threads: int, blocks: int = 1) -> None:
        self.maps = [Value("ptr", f"%map{number}") for number in range(maps)]
        self.bindings = [Value(GLOBAL, f"%binding{number}") for number in range(bindings)]
        grid = Value(GLOBAL, "%grid")
        parameters = [Value('ptr byval([128 x i8]) align 64 "nvvm.grid_constant"', each.name) for each in self.maps]
        parameters += [Value(f"{GLOBAL} noalias align 16", each.name) for each in self.bindings]
        super().__init__(Module(), "main", [*parameters, grid], "ptx_kernel void", "#0")
        #: Threads of a block, and the blocks that a multiprocessor shall have room for.
        self.threads, self.blocks = threads, blocks
        self.module.declare(_SHARED_MEMORY, f"{_SHARED_MEMORY} = external addrspace(3) global [0 x i8], align 1024")
        self._leave_if_empty(grid)
        self.thread = self.special("tid.x")
        self.lane = self.remainder(self.thread, 32)
        #: The number of the thread's warp, from its first lane: the compiler shall see that it is the same in all lanes.
        self.warp = self.intrinsic("llvm.nvvm.shfl.sync.idx.i32", "i32", i32(-1), self.quotient(self.thread, 32), i32(0), i32(31))

    def _leave_if_empty(self, grid: Value) -> None:
        """Return at once if the first word of a conditional dispatch's grid is 0."""
        self.do(f"br {self.compare('icmp eq', grid, Value(GLOBAL, 'null'))}, label %begin, label %conditional")
        self.label("conditional")
        empty = self.compare("icmp eq", self.load("i32", grid, 4), i32(0))
        self.do(f"br {empty}, label %empty, label %begin")
        self.label("empty")
        self.do("ret void")
        self.label("begin")

    def text(self) -> str:
        """Return the finished module."""
        self.finish()
        attributes = f'nounwind "nvvm.maxntid"="{self.threads}" "nvvm.minctasm"="{self.blocks}"'
        return f'target triple = "nvptx64-nvidia-cuda"\n{self.module}\nattributes #0 = {{ {attributes} }}\n'

    # indices

    def index(self, number: int) -> Value:
        """Return a constant."""
        return i32(number)

    def exclusive_or(self, x: Value, y: Value | int) -> Value:
        """Emit x ^ y."""
        y = y if isinstance(y, Value) else i32(y)
        a, b = self.known(x), self.known(y)
        if a is not None and b is not None:
            return i32(a ^ b)
        return y if a == 0 else x if b == 0 else self.binary("xor", x, y)

    def below(self, x: Value, end: Value | int) -> Value:
        """Emit x < end, an i1."""
        return self.compare("icmp ult", x, end if isinstance(end, Value) else i32(end))

    def equals(self, x: Value, number: int) -> Value:
        """Emit x == number, an i1."""
        return self.compare("icmp eq", x, i32(number))

    def widened_index(self, x: Value) -> Value:
        """Emit an index as one of 64 bits."""
        number = self.known(x)
        return self.cast("zext", x, "i64") if number is None else Value("i64", str(number))

    def wide_times(self, index: Value, number: int) -> Value:
        """Emit an index times a number, in 64 bits."""
        return self.binary("mul", self.widened_index(index), i64(number))

    def umin(self, x: Value, y: Value) -> Value:
        """Emit the smaller of two indices."""
        return self.intrinsic("llvm.umin.i32", "i32", x, y)

    def offset(self, index: Value, walk: Walk) -> Value:
        """Emit how far an index walks, in elements, as 64 bits."""
        digits = self.coordinates(index, walk.sizes)
        steps = [self.wide_times(digit, stride) for digit, stride in zip(digits, walk.strides, strict=True) if stride]
        total = i64(0)
        for step in steps:
            total = step if total.name == "0" else self.binary("add", total, step)
        return total

    def raster(self, number: Value, down: int, across: int) -> tuple[Value, Value]:
        """Emit the row and the column of a tile by its number.

        Tiles are numbered column by column within bands of some rows of tiles, so that neighbours share operands in the cache.
        """
        band = next(rows for rows in range(min(_BAND, down), 0, -1) if down % rows == 0)
        outer, inner = self.divided(number, band * across)
        column, row = self.divided(inner, band)
        return self.plus(self.times(outer, band), row), column

    # control flow

    def repeat(
        self, first: Value, end: Value, step: Value, carried: Sequence[Value], body: Callable[[Value, list[Value]], Sequence[Value] | None]
    ) -> list[Value]:
        """Append a loop over unsigned indices that has at least one iteration; see `loop`."""
        before, head, done = self._label, self.fresh("repeat"), self.fresh("done")
        self.do(f"br label %{head}")
        self.label(head)
        phis_at = len(self._text_lines)
        index = Value("i32", f"%i.{head}")
        phis = [Value(v.type, f"%c{k}.{head}") for k, v in enumerate(carried)]
        results = list(body(index, phis) or ())
        following = self.binary("add", index, step)
        more = self.below(following, end)
        last = self._label
        self.do(f"br {more}, label %{head}, label %{done}")
        self._put_phis(phis_at, [index, *phis], (before, [first, *carried]), (last, [following, *results]))
        self.label(done)
        return results

    @contextmanager
    def only_if(self, condition: Value | None) -> Iterator[None]:
        """Enclose what is written within ``with`` in a branch on an i1; None is true."""
        if condition is None:
            yield
            return
        then, done = self.fresh("then"), self.fresh("end")
        self.do(f"br {condition}, label %{then}, label %{done}")
        self.label(then)
        yield
        self.do(f"br label %{done}")
        self.label(done)

    # PTX

    def special(self, name: str) -> Value:
        """Read a special register, such as tid.x."""
        return self.intrinsic(f"llvm.nvvm.read.ptx.sreg.{name}", "i32")

    def ptx(self, code: str, *operands: Value, results: Sequence[str] = (), tied: Sequence[Value] = ()) -> list[Value]:
        """Append inline PTX and return its results.

        These are the updated values of `tied`, then values of the types `results`.

        In `code`, ``$0``, ``$1``, … are the results in this order, then the same registers for the values of `tied` before, then the
        operands.
        """
        types = [*[x.type for x in tied], *results]
        constraints = [f"={_REGISTERS[t]}" for t in types] + [str(k) for k in range(len(tied))] + [_REGISTERS[x.type] for x in operands]
        result = "void" if not types else types[0] if len(types) == 1 else f"{{{', '.join(types)}}}"
        arguments = ", ".join(map(str, (*tied, *operands)))
        text = code.replace("\n", "\\0A")
        call = f'call {result} asm sideeffect "{text}", "{",".join([*constraints, "~{memory}"])}"({arguments})'
        if not types:
            self.do(call)
            return []
        value = self.let(result, call)
        return [value] if len(types) == 1 else [self.let(t, f"extractvalue {value}, {k}") for k, t in enumerate(types)]

    def run_intrinsic(self, name: str, *args: Value) -> None:
        """Append a call of an intrinsic without a result."""
        self.module.declare(name, f"declare void @{name}({', '.join(a.type for a in args)})")
        self.run(name, *args)

    def synchronise(self) -> None:
        """Wait for all threads of the block."""
        self.run_intrinsic("llvm.nvvm.barrier.cta.sync.aligned.all", i32(0))

    def synchronise_warp(self) -> None:
        """Wait for all lanes of the warp."""
        self.run_intrinsic("llvm.nvvm.bar.warp.sync", i32(-1))

    def count(self, counter: Value) -> None:
        """Add 1 to a word that blocks count in, once this thread's stores are there."""
        self.ptx("red.release.gpu.global.add.u32 [$0], 1;", counter)

    def wait_for_count(self, counter: Value, number: Value) -> None:
        """Wait until blocks have counted to a number."""
        self.ptx(_WAIT_FOR_COUNT, counter, number)

    # floats

    def fadd(self, x: Value, y: Value) -> Value:
        """Emit x + y."""
        return self.binary("fadd", x, y)

    def fsub(self, x: Value, y: Value) -> Value:
        """Emit x - y."""
        return self.binary("fsub", x, y)

    def fmul(self, x: Value, y: Value) -> Value:
        """Emit x * y."""
        return self.binary("fmul", x, y)

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        """Emit x * y + z of float32, rounded once."""
        return self.intrinsic("llvm.fma.f32", "float", x, y, z)

    def fmax(self, x: Value, y: Value) -> Value:
        """Emit the larger of two float32 numbers; the other one if one is NaN."""
        return self.intrinsic("llvm.maxnum.f32", "float", x, y)

    def exp2(self, x: Value) -> Value:
        """Emit 2 to the power of a float32, with an error of two units in the last place.

        Results below the normal numbers are 0.
        """
        return self.intrinsic("llvm.nvvm.ex2.approx.ftz.f", "float", x)

    def reduce_lanes(self, combine: Callable[[Value, Value], Value], x: Value, bits: Sequence[int] = (16, 8, 4, 2, 1)) -> Value:
        """Combine float32 numbers of lanes, each of which gets the result.

        They are the lanes whose numbers differ in these bits, by default all of a warp.
        """
        for bit in bits:
            x = combine(x, self.intrinsic("llvm.nvvm.shfl.sync.bfly.f32", "float", i32(-1), x, i32(bit), i32(31)))
        return x

    def rounded(self, x: Value, dtype: np.dtype) -> Value:
        """Emit the bits of float32 numbers rounded to a dtype of 16 bits.

        They are a vector or one number.
        """
        lanes = lanes_of(x.type)
        return self.cast("bitcast", self.cast("fptrunc", x, vector_of(half_type(dtype), lanes)), vector_of("i16", lanes))

    def unpacked(self, word: Value, dtype: np.dtype) -> tuple[Value, Value]:
        """Emit the two 16-bit floats of a word as float32.

        That of the lower half is the first.
        """
        if dtype == np.float16:
            low, high = self.elements(self.cast("fpext", self.cast("bitcast", word, "<2 x half>"), "<2 x float>"))
            return low, high
        low, high = self.binary("shl", word, i32(16)), self.binary("and", word, i32(-0x10000))
        return self.cast("bitcast", low, "float"), self.cast("bitcast", high, "float")

    # vectors

    def vector(self, numbers: Sequence[Value]) -> Value:
        """Emit a vector of numbers."""
        result = Value(vector_of(numbers[0].type, len(numbers)), "poison")
        for k, number in enumerate(numbers):
            result = self.let(result.type, f"insertelement {result}, {number}, i32 {k}")
        return result

    def elements(self, vector: Value) -> list[Value]:
        """Emit the numbers of a vector."""
        if lanes_of(vector.type) == 1:
            return [vector]
        return [self.let(element_of(vector.type), f"extractelement {vector}, i32 {k}") for k in range(lanes_of(vector.type))]

    # memory

    def shared_base(self) -> Value:
        """Emit the address of shared memory, in 32 bits, as PTX wants it."""
        return self.let("i32", f"ptrtoint {SHARED} {_SHARED_MEMORY} to i32")

    def shared(self, offset: Value) -> Value:
        """Emit the pointer to a byte of shared memory."""
        return self.let(SHARED, f"getelementptr i8, {SHARED} {_SHARED_MEMORY}, {offset}")

    def further(self, pointer: Value, offset: Value) -> Value:
        """Emit the pointer so many bytes further."""
        if pointer.type == GLOBAL and offset.type == "i32":
            offset = self.widened_index(offset)
        return pointer if self.known(offset) == 0 else self.let(pointer.type, f"getelementptr i8, {pointer}, {offset}")

    def element(self, base: Value, index: Value, size: int) -> Value:
        """Emit the pointer to an element of `size` bytes, by an index of 64 bits."""
        return self.further(base, self.binary("mul", index, i64(size)))

    # copies to shared memory, and products of fragments

    def copy_unit(self, target: Value, source: Value, size: Value) -> None:
        """Begin to copy 16 bytes to shared memory.

        `target` is an offset there. Bytes from `size` on become zeros.
        """
        self.run_intrinsic("llvm.nvvm.cp.async.cg.shared.global.16.s", self.shared(target), source, size)

    def commit_copies(self) -> None:
        """End a group of this thread's copies."""
        self.run_intrinsic("llvm.nvvm.cp.async.commit.group")

    def wait_for_copies(self, groups: int) -> None:
        """Wait until at most so many groups of this thread's copies are under way."""
        self.run_intrinsic("llvm.nvvm.cp.async.wait.group", i32(groups))

    def load_matrices(self, pointer: Value, *, transposed: bool) -> list[Value]:
        """Load four matrices of 8 by 8 elements.

        Each lane gets two elements of each in a register. Lanes point to the 32 rows, matrix by matrix.
        """
        name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4{'.trans' if transposed else ''}.b16.p3"
        words = self.intrinsic(name, _WORDS, pointer)
        return [self.let("i32", f"extractvalue {words}, {k}") for k in range(4)]

    def multiply_add(self, dtype: np.dtype, left: Sequence[Value], right: Sequence[Value], sums: Sequence[Value]) -> list[Value]:
        """Add the product of fragments to sums in float32.

        The fragments are (16, 16) and (16, 8) of 16-bit floats, or (16, 8) and (8, 8) of float32 that are rounded to TensorFloat-32.
        """
        name, words = "llvm.nvvm.mma.m16n8k16.row.col.bf16", [*left, *right]
        if dtype == np.float32:
            name = "llvm.nvvm.mma.m16n8k8.row.col.tf32"
        if dtype == np.float16:
            name, words = "llvm.nvvm.mma.m16n8k16.row.col.f32.f32", [self.cast("bitcast", word, "<2 x half>") for word in words]
        result = self.intrinsic(name, _SUMS, *words, *sums)
        return [self.let("float", f"extractvalue {result}, {k}") for k in range(4)]

    # barriers, copies of boxes, and matrices in shared memory for `wgmma`

    def begin_barrier(self, address: Value, arrivals: int) -> None:
        """Initialise a barrier whose phases end with so many arrivals."""
        self.ptx("mbarrier.init.shared::cta.b64 [$0], $1;", address, i32(arrivals))

    def publish_barriers(self) -> None:
        """Let the tensor memory accelerator see barriers that were initialised."""
        self.ptx("fence.mbarrier_init.release.cluster;")

    def wait_for_barrier(self, address: Value, parity: Value) -> None:
        """Wait until a barrier's phase of this parity has ended."""
        self.ptx(_WAIT, address, parity)

    def expect_bytes(self, address: Value, count: int) -> None:
        """Arrive at a barrier whose phase ends when so many bytes have been copied, too."""
        self.ptx("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", address, i32(count))

    def arrive_in_first_lane(self, address: Value) -> None:
        """Arrive at a barrier once for the warp."""
        self.ptx(_ARRIVE_IN_FIRST_LANE, address, self.lane)

    def copy_box(self, to: Value, tensor_map: Value, position: Sequence[Value], barrier: Value, taps: Sequence[Value] = ()) -> None:
        """Begin to copy a box of a tensor map, which then arrives at a barrier.

        Of a tensor map of windows it has a tap of each, `taps` from the first one.
        """
        numbers = [f"${k + 2}" for k in range(len(position) + len(taps))]
        at, offsets = ", ".join(numbers[: len(position)]), ", ".join(numbers[len(position) :])
        self.ptx(
            f"cp.async.bulk.tensor.{len(position)}d.shared::cluster.global{'.im2col' if taps else ''}.mbarrier::complete_tx::bytes "
            f"[$0], [$1, {{{at}}}], [${len(numbers) + 2}]{f', {{{offsets}}}' if taps else ''};",
            *(to, self.cast("ptrtoint", tensor_map, "i64"), *position, *taps, barrier),
        )

    def prefetch_maps(self) -> None:
        """Begin to load the tensor maps, which the first copies would wait for."""
        for each in self.maps:
            self.ptx("prefetch.tensormap [$0];", self.cast("ptrtoint", each, "i64"))

    def copy_bytes(self, to: Value, source: Value, count: int, barrier: Value) -> None:
        """Begin to copy bytes, multiples of 16, which then arrive at a barrier."""
        operands = to, self.cast("ptrtoint", source, "i64"), i32(count), barrier
        self.ptx("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];", *operands)

    def descriptor(self, address: Value, between_boxes: int, between_eights: int = 8 * _ROW) -> Value:
        """Emit the descriptor of a matrix in rows of 128 bytes, by its address.

        Bits 16 to 29 are the bytes between boxes, bits 32 to 45 those between groups of eight rows, both in units of 16 bytes; bit 62
        selects the swizzle of 128 bytes, which depends on the address of a row alone: a matrix may begin at any row, and groups may be any
        number of rows apart.
        """
        bits = self.widened_index(self.quotient(self.binary("and", address, i32(0x3FFFF)), 16))
        constant = (between_boxes >> 4) << 16 | (between_eights >> 4) << 32 | 1 << 62
        return self.binary("or", bits, i64(constant))


# Modules and launches.

#: What the first line of such a text begins with.
_MARK = "; nvidia "

#: Bytes of an encoded tensor map.
MAP_BYTES = 128


class Windows(NamedTuple):
    """How a tensor map reads the same tap of consecutive windows of images (im2col).

    Axes are the spatial ones, from the innermost outwards.
    """

    #: Where the first tap of the first window is, and that of the last window relative to the last element.
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    #: Elements from one window to the next.
    steps: tuple[int, ...]


class TensorMap(NamedTuple):
    """An array as the tensor memory accelerator reads it, in boxes of `box` elements.

    Sizes are listed from the contiguous axis outwards. Rows of a box have 128 bytes, which are stored in the 128-byte swizzle; elements out
    of range are zeros.
    """

    binding: int
    #: "int8", "bfloat16", "float16" or "float32"; the last is rounded to TF32 when it is read.
    dtype: str
    #: Bytes from the beginning of the binding to the first element.
    offset: int
    dims: tuple[int, ...]
    #: Bytes between elements along every axis but the contiguous one.
    strides: tuple[int, ...]
    box: tuple[int, ...]
    #: If it reads windows of images (channels, …, images): then a box has channels of consecutive windows.
    windows: Windows | None = None


class KernelHeader(NamedTuple):
    """How a kernel is launched."""

    #: Threads of a block.
    threads: int
    #: Bytes of dynamic shared memory.
    shared: int
    maps: tuple[TensorMap, ...] = ()
    #: The ranks of the processes whose memory it reaches; empty for a kernel of this process alone.
    peers: tuple[int, ...] = ()
    #: Whether its blocks wait for each other, so that all must run at once: no two such kernels do.
    cooperative: bool = False

    def __str__(self) -> str:
        fields = {**self._asdict(), "maps": [each._asdict() for each in self.maps]}
        return f"{_MARK}{json.dumps(fields)}\n"


def header_of(text: str) -> KernelHeader | None:
    """Return the header of a module's text; None if the text is WGSL."""
    if not text.startswith(_MARK):
        return None
    fields = json.loads(text[len(_MARK) : text.index("\n")])
    maps, peers = tuple(map(_tensor_map, fields.pop("maps"))), tuple(fields.pop("peers"))
    return KernelHeader(maps=maps, peers=peers, **fields)


def _tensor_map(fields: dict[str, Any]) -> TensorMap:
    dims, strides, box = [tuple(fields[name]) for name in ("dims", "strides", "box")]
    windows = None if fields["windows"] is None else Windows(*map(tuple, fields["windows"]))
    return TensorMap(fields["binding"], fields["dtype"], fields["offset"], dims, strides, box, windows)


def kernel_dispatch(header: KernelHeader, buffers: Sequence[int], results: int, llvm_ir: str, blocks: int) -> Dispatch:
    """Return the dispatch of so many blocks of a kernel in LLVM IR.

    It writes the last `results` of its buffers.
    """
    first = len(buffers) - results
    declarations = tuple([Binding(f"b{number}", "u32", number >= first) for number in range(len(buffers))])
    module = ShaderModule(declarations, header.threads, (), "", final_text=f"{header}{llvm_ir}")
    return Dispatch(module, tuple(buffers), (blocks, 1, 1))


#: Encodes a tensor map of an array whose first element is at an address, in 128 bytes.
MapEncoder = Callable[[TensorMap, int], bytes]


#: Gives the address of this process's table in a group of processes that share memory, by their ranks.
TableFinder = Callable[[tuple[int, ...]], int]


def parameter_block(header: KernelHeader, addresses: Sequence[int], encode: MapEncoder, table: TableFinder) -> bytes:
    """Return the parameters of a launch as one block, which ends with a null grid.

    Args:
        header: the kernel's header.
        addresses: the device's address of each binding.
        encode: encodes a tensor map.
        table: gives the address of a table.
    """
    if header.peers:
        addresses = [*addresses, table(header.peers)]
    maps = [encode(each, addresses[each.binding] + each.offset) for each in header.maps]
    assert all(len(each) == MAP_BYTES for each in maps)
    return b"".join(maps) + struct.pack(f"<{len(addresses) + 1}Q", *addresses, 0)
