"""Headers of kernels, and the parameters of their launches."""

from __future__ import annotations

import struct

from volta_fn.targets.nvidia.kernel import KernelHeader, TensorMap, Windows, header_of, kernel_dispatch, parameter_block
from volta_fn.targets.wgsl.shader import Binding, hand_written
from volta_fn.targets.wgsl.transforms import fused_size, is_fusible

MAP = TensorMap(1, "bfloat16", 32, (64, 96), (128,), (64, 64))
WINDOWS = TensorMap(2, "float16", 0, (64, 9, 7, 3), (128, 1152, 8064), (64, 128), Windows((-1, 0), (-1, -2), (2, 1)))
HEADER = KernelHeader(384, 1 << 16, (MAP, MAP._replace(binding=0, offset=0)))


def test_a_header_is_read_from_the_text() -> None:
    text = kernel_dispatch(HEADER, range(3), 1, "define void @main() {}", 1).source
    assert header_of(text) == HEADER
    assert text.endswith("\ndefine void @main() {}")


def test_a_map_of_windows_is_read_from_the_text() -> None:
    header = HEADER._replace(maps=(MAP, WINDOWS))
    assert header_of(kernel_dispatch(header, range(3), 1, "", 1).source) == header


def test_all_fields_are_read_from_the_text() -> None:
    header = HEADER._replace(peers=(0, 3), cooperative=True)
    assert header_of(kernel_dispatch(header, range(3), 1, "", 1).source) == header


def test_wgsl_has_no_header() -> None:
    assert header_of("@compute @workgroup_size(64) fn main() {}") is None


def test_parameters_are_maps_then_pointers_then_no_grid() -> None:
    encoded: list[tuple[TensorMap, int]] = []

    def encode(map_: TensorMap, address: int) -> bytes:
        encoded.append((map_, address))
        return bytes([len(encoded)]) * 128

    tables = {(0, 2): 1 << 43}
    block = parameter_block(HEADER, [1 << 40, 1 << 41, 1 << 42], encode, tables.__getitem__)
    assert encoded == [(MAP, (1 << 41) + 32), (HEADER.maps[1], 1 << 40)]
    assert block == b"\1" * 128 + b"\2" * 128 + struct.pack("<4Q", 1 << 40, 1 << 41, 1 << 42, 0)
    shared = parameter_block(KernelHeader(32, 0, (), (0, 2)), [1 << 40], encode, tables.__getitem__)
    assert shared == struct.pack("<3Q", 1 << 40, 1 << 43, 0)


def test_a_module_has_bindings_and_is_never_fused() -> None:
    module = kernel_dispatch(HEADER, range(3), 1, "", 1).shader
    shader = hand_written((Binding("x", "u32", written=True),), "  x[0] = 1u;\n", {}, 64)
    assert [binding.written for binding in module.bindings] == [False, False, True]
    assert module.invocations == 384
    assert not is_fusible(module)
    assert is_fusible(shader)
    assert fused_size([shader, module]) == 0
