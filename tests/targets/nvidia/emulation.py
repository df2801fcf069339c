"""Kernels for NVIDIA GPUs on a CPU: LLVM compiles them, and Python does what only a GPU has instructions for.

Every thread of a block is one of the host's. An instruction of a warp, or of a warp group, meets its threads, and one of them computes for
all. Blocks run one after another, those of cooperative kernels at once. It is slow, and for small products.
"""

from __future__ import annotations

import ctypes
import itertools
import re
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np

from volta_fn.targets.nvidia.kernel import KernelHeader, TensorMap, header_of
from volta_fn.targets.wgsl.routine import Routine

_CALL = re.compile(r'call (void|\{[^}]*\}|\S+) asm sideeffect "((?:[^"\\]|\\.)*)", "([^"]*)"\((.*)\)$', re.MULTILINE)
_DECLARED = re.compile(r"^declare (void|\{[^}]*\}|<[^>]*>|\S+) @(llvm\.nvvm\.[\w.]+)\(([^)]*)\)$", re.MULTILINE)
_DTYPES = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in ("bfloat16", "float16", "float32", "int8")}
#: The operands of `wgmma` by their names in PTX.
_FORMATS = {"bf16": "bfloat16", "f16": "float16", "tf32": "float32", "s8": "int8"}
_TIMEOUT = 60
#: The alignment of shared memory.
_ALIGNMENT = 1024

#: What LLVM calls on hosts without an instruction for it.
_TO_BFLOAT16 = """
define bfloat @__truncsfbf2(float %x) noinline {
  %bits = bitcast float %x to i32
  %shifted = lshr i32 %bits, 16
  %odd = and i32 %shifted, 1
  %half = add i32 %odd, 32767
  %up = add i32 %bits, %half
  %high = lshr i32 %up, 16
  %word = trunc i32 %high to i16
  %result = bitcast i16 %word to bfloat
  ret bfloat %result
}
"""


class _Meeting:
    """A barrier of some threads, at which one of them works for all."""

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count)
        self.given: dict[int, list[Any]] = {}
        self.taken: dict[int, Sequence[Any]] = {}

    def meet(self, thread: int, arguments: list[Any], compute: Callable[[dict[int, list[Any]]], dict[int, Sequence[Any]]]) -> Sequence[Any]:
        """Give arguments, and return this thread's results."""
        self.given[thread] = arguments
        if self.barrier.wait(_TIMEOUT) == 0:
            self.taken = compute(self.given)
        self.barrier.wait(_TIMEOUT)
        return self.taken.get(thread, ())


class _Transactions:
    """A barrier in shared memory: arrivals and bytes that are awaited, and its phase."""

    def __init__(self, count: int) -> None:
        self.count = self.pending = count
        self.bytes = self.phase = 0


class _Block:
    """A block: its shared memory, and where its threads meet."""

    def __init__(self, number: int, header: KernelHeader) -> None:
        self.number = number
        self.memory = ctypes.create_string_buffer(header.shared + _ALIGNMENT)
        self.shared = -(-ctypes.addressof(self.memory) // _ALIGNMENT) * _ALIGNMENT
        ctypes.memset(self.shared, 0x7F, header.shared)
        warps = header.threads // 32
        self.block_meeting = _Meeting(header.threads)
        self.warp_meetings = [_Meeting(32) for _ in range(warps)]
        self.group_meetings = [_Meeting(128) for _ in range(-(-warps // 4))]
        self.condition = threading.Condition()
        self.barriers: dict[int, _Transactions] = {}
        self.named: dict[int, list[int]] = {}


class Emulator:
    """A kernel compiled for the host."""

    def __init__(self, text: str) -> None:
        header = header_of(text)
        assert header is not None
        self.header: KernelHeader = header
        self.operations: list[tuple[str, list[str], list[str]]] = []
        self._callback = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_void_p)(self._emulate)
        source = self._for_host(text)
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        module = llvm.parse_assembly(source)
        module.verify()
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten()
        )
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()
        #: For counters that several blocks wait for.
        self._counted = threading.Condition()

    # the text

    def _for_host(self, text: str) -> str:
        text = re.sub(r"@shared_memory = .*", "", text)
        text = text.replace("@shared_memory", "%shared").replace("ptx_kernel void @main(", "ptx_kernel void @main(ptr %shared, ")
        text = re.sub(r" addrspace\(\d\)", "", text)
        text = re.sub(r"addrspacecast (ptr \S+) to ptr", r"bitcast \1 to ptr", text)
        text = (
            text.replace('target triple = "nvptx64-nvidia-cuda"', "")
            .replace("ptx_kernel void @main(", "void @emulated(")
            .replace(" #0 {", " {")
        )
        text = re.sub(r"^attributes .*$", "", text, flags=re.MULTILINE)
        text = re.sub(r'byval\(\[128 x i8\]\) align 64 "nvvm.grid_constant" ', "", text)
        wrappers = [_TO_BFLOAT16]

        def assembly(match: re.Match[str]) -> str:
            result, code, _, arguments = match.groups()
            types = [a.rsplit(" ", 1)[0] for a in _split(arguments)]
            name = f"asm{len(self.operations)}"
            wrappers.append(self._wrapper(name, code.replace("\\0A", "\n"), result, types))
            return f"call {result} @{name}({arguments})"

        def intrinsic(match: re.Match[str]) -> str:
            result, name, types = match.groups()
            wrappers.append(self._wrapper(name, name, result, _split(types)))
            return ""

        text = _CALL.sub(assembly, text)
        text = _DECLARED.sub(intrinsic, text)
        return text.replace("llvm.nvvm.", "nvvm.") + "\n".join(wrappers).replace("llvm.nvvm.", "nvvm.")

    def _wrapper(self, name: str, code: str, result: str, types: list[str]) -> str:
        """Return a function that passes its arguments in an array of 8-byte words, in which it finds its results."""
        results = [] if result == "void" else _split(result[1:-1]) if result.startswith("{") else [result]
        self.operations.append((code, results, types))
        lines = [f"define internal {result} @{name}({', '.join(f'{t} %a{k}' for k, t in enumerate(types))}) noinline {{"]
        lines.append(f"%words = alloca [{max(len(results), len(types), 1)} x i64]")
        for k, type_ in enumerate(types):
            lines += [f"%p{k} = getelementptr i64, ptr %words, i64 {k}", f"store {type_} %a{k}, ptr %p{k}"]
        emulate = ctypes.cast(self._callback, ctypes.c_void_p).value
        lines.append(f"call void inttoptr (i64 {emulate} to ptr)(i32 {len(self.operations) - 1}, ptr %words)")
        total = "poison"
        for k, type_ in enumerate(results):
            lines += [f"%q{k} = getelementptr i64, ptr %words, i64 {k}", f"%r{k} = load {type_}, ptr %q{k}"]
            if result.startswith("{"):
                lines.append(f"%s{k} = insertvalue {result} {total}, {type_} %r{k}, {k}")
                total = f"%s{k}"
        lines.append("ret void" if not results else f"ret {result} {total if result.startswith('{') else '%r0'}")
        return "\n".join([*lines, "}"])

    # running

    def run(self, arrays: Sequence[np.ndarray], blocks: int, grid: np.ndarray | None = None) -> None:
        """Run all blocks on arrays, one for each binding; a conditional dispatch has three words of a grid."""
        self.arrays, self.grid = arrays, grid
        at_once = blocks if self.header.cooperative else 1
        for first in range(0, blocks, at_once):
            failures: list[BaseException] = []
            threads = [
                threading.Thread(target=self._thread, args=(block, blocks, number, failures))
                for block in [_Block(number, self.header) for number in range(first, first + at_once)]
                for number in range(self.header.threads)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not failures, failures[:3]

    def _thread(self, block: _Block, blocks: int, number: int, failures: list[BaseException]) -> None:
        self.local.block, self.local.blocks, self.local.number, self.local.failure = block, blocks, number, None
        maps = [ctypes.c_void_p(k + 1) for k in range(len(self.header.maps))]
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in self.arrays]
        function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(maps) + len(pointers) + 2))(
            self._engine.get_function_address("emulated")
        )
        function(block.shared, *maps, *pointers, None if self.grid is None else ctypes.c_void_p(self.grid.ctypes.data))
        if self.local.failure is not None:
            failures.append(self.local.failure)

    local = threading.local()

    def _emulate(self, number: int, words: int) -> None:
        try:
            code, results, types = self.operations[number]
            arguments = [_read(words + 8 * k, t) for k, t in enumerate(types)]
            values = self._do(code, arguments, len(results))
            for k, (type_, value) in enumerate(zip(results, values, strict=True)):
                ctypes.memmove(words + 8 * k, _bytes(type_, value), 4)
        except BaseException as error:
            self.local.failure = error
            raise

    def _address(self, address: int) -> int:
        """Return the host's address of one in shared memory, in 32 bits."""
        shared: int = self.local.block.shared
        return shared + ((address - shared) & 0xFFFFFFFF)

    def _do(self, code: str, a: list[Any], count: int) -> Sequence[Any]:
        thread, local, block = self.local.number, self.local, self.local.block
        lane, warp = thread % 32, thread // 32
        if "sreg" in code:
            return [{"tid.x": thread, "ctaid.x": block.number, "nctaid.x": local.blocks}[code.partition("sreg.")[2]]]
        if "shfl.sync.bfly" in code:
            return block.warp_meetings[warp].meet(lane, a, lambda given: {k: [given[k ^ given[k][2]][1]] for k in given})
        if "shfl" in code:
            return [a[1]]  # equal in all lanes
        if "ex2.approx" in code:
            return [float(np.exp2(np.float32(a[0])))]
        if "rcp.approx" in code:
            return [float(np.float32(1) / np.float32(a[0]))]
        if "lg2.approx" in code:
            return [float(np.log2(np.float32(a[0])))]
        if "nvvm.prmt" in code:
            both = struct.pack("<2I", a[0] & 0xFFFFFFFF, a[1] & 0xFFFFFFFF)
            return [int.from_bytes(bytes([both[a[2] >> 4 * k & 7] for k in range(4)]), "little")]
        if "bar.warp" in code:
            return block.warp_meetings[warp].meet(lane, [], lambda _: {})
        if "barrier.cta" in code:
            return block.block_meeting.meet(thread, [], lambda _: {})
        if "cp.async.cg" in code:
            ctypes.memset(a[0], 0, 16)
            ctypes.memmove(a[0], a[1], a[2])
            return []
        if "ldmatrix" in code:
            return block.warp_meetings[warp].meet(lane, a, lambda given: _ldmatrix(given, ".trans" in code))
        if "stmatrix" in code:
            return block.warp_meetings[warp].meet(lane, a, lambda given: self._stmatrix(given, ".trans" in code))
        if "nvvm.mma" in code:
            dtype = _DTYPES["bfloat16" if "bf16" in code else "float32" if "tf32" in code else "float16"]
            return block.warp_meetings[warp].meet(lane, a, lambda given: _mma(given, dtype))
        if "wgmma.mma_async" in code:
            return block.group_meetings[warp // 4].meet(thread % 128, a, lambda given: self._wgmma(given, code, count))
        if "wgmma.wait_group" in code:
            return a
        if "e4m3x2" in code or "e5m2x2" in code:
            dtype = np.dtype(ml_dtypes.float8_e4m3fn if "e4m3x2" in code else ml_dtypes.float8_e5m2)
            if "satfinite" not in code:
                two = np.array([a[0] & 0xFFFF], np.uint16).view(dtype).astype(np.float16)
                return [int(two.view(np.uint32)[0])]
            most = float(ml_dtypes.finfo(dtype).max)
            two = np.clip(np.array([a[1], a[0]], np.float32), -most, most).astype(dtype)
            return [int(two.view(np.uint16)[0])]
        if code.startswith("cvt.rn.") or ".ff2" in code:
            dtype = _DTYPES["bfloat16" if "bf16x2" in code else "float16"]
            return [int(np.array([a[1], a[0]], np.float32).astype(dtype).view(np.uint32)[0])]
        if code.startswith("cvt.rna.tf32"):
            return [int(np.array([a[0]], np.float32).view(np.uint32)[0]) + 0x1000 & 0xFFFFE000]
        if "v4.b32" in code:
            return struct.unpack("<4I", ctypes.string_at(a[0], 16))
        if ".gpu.global" in code:
            return self._count(code, a)
        if any(name in code for name in ("setmaxnreg", "prefetch.", "fence.", "commit", "wait.group", "bulk.wait_group")):
            return []
        return self._synchronise(code, a)

    def _count(self, code: str, a: list[Any]) -> Sequence[Any]:
        """Arrive at a counter in memory, take a number from it, or wait for a number there."""
        counter = ctypes.c_uint32.from_address(a[0])
        with self._counted:
            if code.startswith("red.release"):
                counter.value += 1
                self._counted.notify_all()
            elif code.startswith("atom."):
                counter.value += 1
                return [counter.value - 1]
            else:
                assert self._counted.wait_for(lambda: counter.value >= a[1], _TIMEOUT), "a counter never reaches its number"
        return []

    def _synchronise(self, code: str, a: list[Any]) -> Sequence[Any]:
        block = self.local.block
        with block.condition:
            if "mbarrier.init" in code:
                block.barriers[self._address(a[0])] = _Transactions(a[1])
            elif "expect_tx" in code:
                self._arrive(self._address(a[0]), a[1])
            elif "mbarrier.arrive" in code:
                if a[1] == 0:
                    self._arrive(self._address(a[0]), 0)
            elif "try_wait" in code:
                barrier = block.barriers[self._address(a[0])]
                assert block.condition.wait_for(lambda: barrier.phase & 1 != a[1], _TIMEOUT), "a barrier's phase never ends"
            elif "bulk.shared" in code:
                ctypes.memmove(self._address(a[0]), a[1], a[2])
                self._arrive(self._address(a[3]), 0, a[2])
            elif "bulk.global" in code:
                target, source = [np.frombuffer((ctypes.c_char * a[2]).from_address(x), np.float32) for x in (a[0], self._address(a[1]))]
                target[:] = target + source if "add.f32" in code else source
            elif "bulk.tensor" in code:
                self._copy_box(a, code.count("$") - 3)
            elif "bar." in code:
                number = a[0] if a else int(code.split()[1].rstrip(","))
                state = block.named.setdefault(number, [0, 0])
                generation = state[1]
                state[0] += 1
                if state[0] == int(code.rstrip(";").split(",")[1]):
                    state[:] = 0, generation + 1
                    block.condition.notify_all()
                elif "sync" in code:
                    assert block.condition.wait_for(lambda: state[1] != generation, _TIMEOUT), f"too few threads reach barrier {number}"
            else:
                raise NotImplementedError(code)
        return []

    def _arrive(self, address: int, expected: int, copied: int = 0) -> None:
        block = self.local.block
        barrier = block.barriers[address]
        barrier.bytes += expected - copied
        barrier.pending -= not copied
        if barrier.pending == 0 and barrier.bytes == 0:
            barrier.pending, barrier.phase = barrier.count, barrier.phase + 1
            block.condition.notify_all()

    def _copy_box(self, a: list[Any], numbers: int) -> None:
        """Copy a box as a tensor map says, swizzled; `numbers` are its coordinates and offsets."""
        map_ = self.header.maps[a[1] - 1]
        dtype, rank = _DTYPES[map_.dtype], len(map_.dims)
        at = np.array(a[2 : 2 + rank], np.uint32).view(np.int32).astype(np.int64)
        memory = self.arrays[map_.binding].view(np.uint8).reshape(-1)[map_.offset :]
        strides = np.array([dtype.itemsize, *map_.strides])
        box = np.zeros(map_.box[::-1], dtype)
        starts = itertools.repeat(at) if map_.windows is None else _windows(map_, at, [x & 0xFFFF for x in a[2 + rank : 2 + numbers]])
        for index, start in zip(np.ndindex(*map_.box[::-1]), starts, strict=False):
            position = start + index[::-1] if map_.windows is None else start
            if (position >= 0).all() and (position < map_.dims).all():
                offset = int(position @ strides)
                box[index] = memory[offset : offset + dtype.itemsize].view(dtype)[0]
        if map_.dtype == "float32":  # rounded to the nearest
            box = ((box.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
        rows, count = box.reshape(-1, map_.box[0]), 16 // dtype.itemsize
        assert rows.shape[1] * dtype.itemsize == 128
        for number, row in enumerate(rows):
            for unit in range(8):
                target = _swizzled(self._address(a[0]) + 128 * number + 16 * unit)
                ctypes.memmove(target, row[unit * count : unit * count + count].tobytes(), 16)
        self._arrive(self._address(a[-1]), 0, rows.size * dtype.itemsize)

    def _stmatrix(self, given: dict[int, list[Any]], transposed: bool) -> dict[int, Sequence[Any]]:
        for matrix in range(4):
            words = [[given[4 * row + t][1 + matrix] & 0xFFFFFFFF for t in range(4)] for row in range(8)]
            elements = np.array(words, np.uint32).view(np.uint16)
            for row, line in enumerate(elements.T if transposed else elements):
                ctypes.memmove(self._address(given[8 * matrix + row][0]), line.tobytes(), 16)
        return {}

    def _wgmma(self, given: dict[int, list[Any]], code: str, count: int) -> dict[int, Sequence[Any]]:
        """Multiply by all instructions of a piece of PTX, which has so many sums."""
        kind = re.search(r"m64n(\d+)k\d+\.\w+\.(\w+)\.", code)
        assert kind is not None
        columns, dtype = int(kind[1]), _DTYPES[_FORMATS[kind[2]]]
        signed = (lambda x: np.array(x, np.uint32).view(np.int32)) if dtype == np.int8 else np.array
        sums = {t: np.zeros(count) if ", none," in code else signed(given[t][:count]).astype(np.float64) for t in given}
        offsets: dict[str, int] = {}
        for line in code.splitlines():
            if match := re.match(r"add.s64 (\w+), \$(\d+), (\d+);", line):
                offsets[match[1]] = given[0][int(match[2]) - count] + int(match[3])
            if match := re.match(r"wgmma.mma_async\S* \{\$(\d+),[^}]*\}, (\w+|\{[^}]*\}), b, (?:adds|none)(?:, 1, 1)?((?:, \d)*);", line):
                *transposed_left, transposed = match[3].split(", ")[1:] or ["0", "0"]
                if match[2].startswith("{"):
                    left = _rows({t: [x[int(k) - count] for k in re.findall(r"\d+", match[2])] for t, x in given.items()}, dtype)
                else:
                    left = self._matrix(offsets[match[2]], 64, transposed_left == ["1"], dtype)
                product = left @ self._matrix(offsets["b"], columns, transposed == "1", dtype).T
                for t, own in sums.items():
                    row, column = t // 32 * 16 + t % 32 // 4, t % 4 * 2
                    for y in range(columns // 8):
                        for half in range(2):
                            at = int(match[1]) + 4 * y + 2 * half
                            own[at : at + 2] += product[row + 8 * half, 8 * y + column : 8 * y + column + 2]
        return {t: list(map(int if dtype == np.int8 else float, x)) for t, x in sums.items()}

    def _matrix(self, descriptor: int, rows: int, transposed: bool, dtype: np.dtype) -> np.ndarray:
        """Return a matrix in shared memory, with 32 bytes of terms in each row."""
        assert descriptor >> 62 == 1, "the swizzle of 128 bytes"
        low = (descriptor & 0x3FFF) << 4
        start = self.local.block.shared + ((low - self.local.block.shared) & 0x3FFFF)
        leading, stride = [((descriptor >> bits) & 0x3FFF) << 4 for bits in (16, 32)]
        size = dtype.itemsize
        result = np.zeros((rows, 32 // size), np.float64)
        for r in range(rows):
            for k in range(32 // size):
                if transposed:
                    address = start + r // 64 * leading + k // 8 * stride + k % 8 * 128 + r % 64 * 2
                else:
                    address = start + r // 8 * stride + r % 8 * 128 + k * size
                result[r, k] = np.frombuffer((ctypes.c_char * size).from_address(_swizzled(address)), dtype)[0]
        return result


def _windows(map_: TensorMap, at: np.ndarray, offsets: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield the positions of a box of windows: of all channels of a window, then of the next one."""
    assert map_.windows is not None
    lower, upper, steps = map(np.array, map_.windows)
    last = np.array(map_.dims[1:-1]) - 1 + upper
    window, image = at[1:-1].copy(), int(at[-1])
    assert ((window >= lower) & (window <= last) & ((window - lower) % steps == 0)).all(), "a box begins at a window"
    for _ in range(map_.box[1]):
        for channel in range(map_.box[0]):
            yield np.array([at[0] + channel, *(window + offsets), image])
        for axis in range(len(window)):
            window[axis] += steps[axis]
            if window[axis] <= last[axis]:
                break
            window[axis] = lower[axis]
        else:
            image += 1


def _swizzled(address: int) -> int:
    return address ^ ((address >> 7 & 7) << 4)


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth, part = [], 0, ""
    for character in text:
        depth += (character in "<{(") - (character in ">})")
        if character == "," and not depth:
            parts.append(part.strip())
            part = ""
        else:
            part += character
    return [*parts, part.strip()] if part.strip() else parts


def _read(address: int, type_: str) -> Any:
    if type_ == "float":
        return ctypes.c_float.from_address(address).value
    wide = type_ in ("i64", "ptr")
    return (ctypes.c_uint64 if wide else ctypes.c_uint32).from_address(address).value


def _bytes(type_: str, value: Any) -> bytes:
    if type_ == "float":
        with np.errstate(over="ignore"):  # sums of what memory had before
            return np.float32(value).tobytes()
    return struct.pack("<I", value & 0xFFFFFFFF)


def _ldmatrix(given: dict[int, list[Any]], transposed: bool) -> dict[int, Sequence[Any]]:
    results: dict[int, Sequence[Any]] = {lane: [] for lane in range(32)}
    for matrix in range(4):
        rows = [np.frombuffer((ctypes.c_char * 16).from_address(given[8 * matrix + r][0]), np.uint16) for r in range(8)]
        values = np.array(rows).T if transposed else np.array(rows)
        for lane in range(32):
            low, high = values[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2]
            results[lane] = [*results[lane], int(low) | int(high) << 16]
    return results


def _rows(words: dict[int, list[int]], dtype: np.dtype) -> np.ndarray:
    """Return 64 rows of 32 bytes of terms from the registers of a warp group."""
    each = 4 // dtype.itemsize  # elements of a register
    result = np.zeros((64, 8 * each))
    for thread, four in words.items():
        row, column = thread // 32 * 16 + thread % 32 // 4, thread % 4 * each
        for k, word in enumerate(four):
            elements = np.array([word & 0xFFFFFFFF], np.uint32).view(dtype).astype(np.float64)
            start = column + k // 2 * 4 * each
            result[row + k % 2 * 8, start : start + each] = elements
    return result


def _mma(given: dict[int, list[Any]], dtype: np.dtype) -> dict[int, Sequence[Any]]:
    """Multiply 16 rows by 8 columns of 32 bytes, from fragments."""
    each = 4 // dtype.itemsize  # terms of a word
    left, right = np.zeros((16, 8 * each)), np.zeros((8 * each, 8))
    for lane, arguments in given.items():
        g, t = divmod(lane, 4)
        words = [np.array([word & 0xFFFFFFFF], np.uint32).view(dtype).astype(np.float64) for word in arguments[:6]]
        for k, (row, term) in enumerate([(g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4)]):
            left[row, each * term : each * term + each] = words[k]
        for k, term in enumerate((t, t + 4)):
            right[each * term : each * term + each, g] = words[4 + k]
    product = left @ right
    results: dict[int, Sequence[Any]] = {}
    for lane, arguments in given.items():
        g, t = divmod(lane, 4)
        added = [product[g, 2 * t], product[g, 2 * t + 1], product[g + 8, 2 * t], product[g + 8, 2 * t + 1]]
        results[lane] = [x + float(y) for x, y in zip(arguments[6:], added, strict=True)]
    return results


def run_kernel(routine: Routine, buffers: Sequence[np.ndarray], grid: np.ndarray | None = None) -> None:
    """Run the only dispatch of a routine that is no shader on its buffers, by their numbers."""
    (dispatch,) = [each for each in routine.dispatches if header_of(each.source)]
    Emulator(dispatch.source).run([buffers[number] for number in dispatch.buffers], dispatch.workgroups[0], grid)
