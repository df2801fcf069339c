"""Kernels that are no WGSL: their modules, and the parameters of a launch.

The text of such a module is LLVM IR whose first line is a comment that tells how it is launched. Parameters are, in this order, the tensor
maps of 128 bytes, a pointer for each binding, a pointer to the table of shared memory if the kernel reaches that of other processes, and
a pointer to the grid of a conditional dispatch, or null.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from volta_fn.targets.wgsl.routine import Dispatch
from volta_fn.targets.wgsl.shader import Binding, ShaderModule

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
    module = ShaderModule(declarations, header.threads, (), "", foreign=f"{header}{llvm_ir}")
    return Dispatch(module, tuple(buffers), (blocks, 1, 1))


#: Encodes a tensor map of an array whose first element is at an address, in 128 bytes.
MapEncoder = Callable[[TensorMap, int], bytes]


#: Gives the address of this process's table in a group of processes that share memory, by their ranks.
TableFinder = Callable[[tuple[int, ...]], int]


def parameter_block(header: KernelHeader, addresses: Sequence[int], grid: int, encode: MapEncoder, table: TableFinder) -> bytes:
    """Return the parameters of a launch as one block.

    The block must be aligned to 64 bytes.

    Args:
        header: the kernel's header.
        addresses: the device's address of each binding.
        grid: the address of the three words of a conditional dispatch's grid; 0 if the dispatch is unconditional.
        encode: encodes a tensor map.
        table: gives the address of a table.
    """
    if header.peers:
        addresses = [*addresses, table(header.peers)]
    maps = [encode(each, addresses[each.binding] + each.offset) for each in header.maps]
    assert all(len(each) == MAP_BYTES for each in maps)
    return b"".join(maps) + struct.pack(f"<{len(addresses) + 1}Q", *addresses, grid)
