"""Shaders are compiled by processes that may end, and kept on disk."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from volta_fn.errors import DeviceError
from volta_fn.runtime import caches
from volta_fn.targets.nvidia import compilation
from volta_fn.targets.nvidia.compilation import Compiler, architecture_of, compile_ptx
from volta_fn.targets.nvidia.processes import WorkerPool
from volta_fn.targets.nvidia.translation import translate
from volta_fn.targets.wgsl.scalars.number import _BFLOAT16_ROUNDED

HOPPER = "sm_90a+ptx83"

KERNEL = """
define ptx_kernel void @main(ptr addrspace(1) %x, i64 %bytes, ptr addrspace(1) %grid) {
  %a = load float, ptr addrspace(1) %x
  %product = fmul float %a, %a
  %sum = fadd float %product, %a
  %quotient = fdiv float %sum, %a
  %root = call float @llvm.sqrt.f32(float %quotient)
  store float %root, ptr addrspace(1) %x
  ret void
}
declare float @llvm.sqrt.f32(float)
"""

#: What LLVM has no instruction for.
UNKNOWN = """
define ptx_kernel void @main(ptr addrspace(1) %x) {
  %a = load float, ptr addrspace(1) %x
  %b = call float @llvm.sin.f32(float %a)
  store float %b, ptr addrspace(1) %x
  ret void
}
declare float @llvm.sin.f32(float)
"""

#: A process whose shaders are LLVM IR.
PROGRAM = """
import sys, types
from collections import namedtuple
from volta_fn.targets.nvidia import compilation
from volta_fn.errors import CompilerError

def translate(source, *, is_checked):
    if source == "refused":
        raise CompilerError.of("translation", "it is no WGSL")
    if is_checked:
        source = source.replace(") {{", ") {{\\n  call void @llvm.trap()", 1) + "declare void @llvm.trap()"
    return namedtuple("Shader", "llvm_ir threads")(source, (64, 2, 1))

name = "volta_fn.targets.nvidia.translation"
sys.modules[name] = types.ModuleType(name)
{}
sys.modules[name].translate = translate
compilation.serve()
"""


def pool_of(text: str = "", most: int = 1) -> WorkerPool:
    """Return a pool of processes that run some text first."""
    return WorkerPool(("-P", "-c", PROGRAM.format(text)), most)


@pytest.fixture(scope="module")
def processes() -> Iterator[WorkerPool]:
    pool = pool_of(most=2)
    yield pool
    pool.close()


def request(source: str = KERNEL) -> list[bytes]:
    return [source.encode(), HOPPER.encode(), b"unchecked", b""]


def unlinked(ptx: bytes) -> bytes:
    return b"linked " + ptx


# architectures and PTX


@pytest.mark.parametrize(
    ("capability", "driver", "architecture"),
    [
        ((7, 5), 12000, "sm_75"),
        ((8, 0), 12030, "sm_80+ptx83"),
        ((8, 9), 13000, "sm_89+ptx83"),
        ((9, 0), 12020, "sm_90a"),
        ((10, 0), 13000, "sm_100a"),
        ((10, 3), 13000, "sm_100"),
        ((12, 0), 13000, "sm_120a"),
        ((13, 0), 14000, "sm_120"),
    ],
)
def test_architectures(capability: tuple[int, int], driver: int, architecture: str) -> None:
    assert architecture_of(capability, driver) == architecture


@pytest.mark.parametrize("capability", compilation._PROCESSORS)
def test_llvm_knows_every_architecture(capability: tuple[int, int]) -> None:
    architecture = architecture_of(capability, 13000)
    ptx = compile_ptx(KERNEL, architecture).decode()
    assert f".target {architecture.partition('+')[0]}\n" in ptx


def test_float32_is_rounded_after_each_operation() -> None:
    ptx = compile_ptx(KERNEL, HOPPER).decode()
    assert re.findall(r"\b\w+(?:\.\w+)*\.f32", ptx) == ["mul.rn.f32", "add.rn.f32", "div.rn.f32", "sqrt.rn.f32"]
    assert ".version 8.3" in ptx and ".entry main(" in ptx


@pytest.mark.parametrize(("type_", "suffix"), [("half", "f16"), ("double", "f64")])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_120a"])
def test_other_floats_are_not_contracted_either(type_: str, suffix: str, architecture: str) -> None:
    text = KERNEL.replace("float %", f"{type_} %").replace("load float", f"load {type_}")
    text = "\n".join([line for line in text.splitlines() if "sqrt" not in line]).replace("%root", "%sum")
    ptx = compile_ptx(text, architecture).decode()
    assert {f"mul.rn.{suffix}", f"add.rn.{suffix}"} <= set(re.findall(r"\b(?:mul|add|fma)[.\w]*", ptx))
    assert "fma" not in ptx.partition("add.rn")[0]


@pytest.mark.parametrize(("architecture", "count"), [("sm_75", 0), ("sm_80", 1), ("sm_90a+ptx83", 1), ("sm_120", 1)])
def test_rounding_to_bfloat16_is_one_instruction(architecture: str, count: int) -> None:
    shader = f"""@group(0) @binding(0) var<storage, read_write> x: array<f32>;
{_BFLOAT16_ROUNDED}
@compute @workgroup_size(32) fn main(@builtin(local_invocation_index) local: u32) {{ x[local] = bfloat16_rounded(x[local]); }}
"""
    ptx = compile_ptx(translate(shader).llvm_ir, architecture).decode()
    assert ptx.count("cvt.rn.bf16x2.f32") == count


# processes


def test_a_process_compiles(processes: WorkerPool) -> None:
    kind, threads, ptx = processes.ask(request())
    assert kind == b"ptx" and compilation._THREADS.unpack(threads) == (64, 2, 1)
    assert ptx == compile_ptx(KERNEL, HOPPER)
    assert len(processes._workers) == 1


def test_llvm_ir_needs_no_translation(processes: WorkerPool) -> None:
    *parts, _ = request()
    kind, threads, ptx = processes.ask([*parts, b"128"])
    assert kind == b"ptx" and compilation._THREADS.unpack(threads) == (128, 1, 1)
    assert ptx == compile_ptx(KERNEL, HOPPER)


def test_processes_that_compile_load_little() -> None:
    """What plans programs takes longer to load than Python does to start."""
    text = "import sys, volta_fn.targets.nvidia.compilation, volta_fn.targets.nvidia.translation; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-P", "-c", text], capture_output=True, text=True, check=True).stdout.split()
    assert "volta_fn.targets.nvidia.library" in loaded
    assert not {"volta_fn.compiler.target", "volta_fn.targets.wgsl.target", "volta_fn.targets.nvidia.kernel"} & {*loaded}


@pytest.mark.parametrize(("source", "message"), [("refused", "it is no WGSL"), ("define nonsense", "LLVM refuses the module")])
def test_refused_shaders(processes: WorkerPool, source: str, message: str) -> None:
    kind, _, text = processes.ask(request(source))
    assert kind == b"error" and message in text.decode()


def test_a_process_that_llvm_ends_is_replaced(processes: WorkerPool) -> None:
    with pytest.raises(DeviceError, match=r"by signal 6: (.|\n)*Cannot select"):
        processes.ask(request(UNKNOWN))
    assert processes.ask(request())[0] == b"ptx"


# the cache on disk


class Counted:
    """A pool of processes whose PTX is the source, with the requests that it got."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.prepared = 0

    def prepare(self) -> None:
        self.prepared += 1

    def ask(self, request: Any) -> list[bytes]:
        self.requests.append(request)
        return [b"ptx", compilation._THREADS.pack(8, 4, 2), request[0]]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(compilation, "cache_dir", lambda: tmp_path)
    return tmp_path


def compiler(pool: Any, architecture: str = HOPPER, linker: str = "13.0 580.1 (9, 0)") -> Compiler:
    return Compiler(architecture, linker, pool)


def test_machine_code_is_kept(folder: Path) -> None:
    pool = Counted()
    first = compiler(pool).binary("shader", unlinked)
    assert first == ((8, 4, 2), b"linked shader")
    assert pool.requests == [[b"shader", b"sm_90a+ptx83", b"unchecked", b""]]
    assert compiler(pool).binary("shader", unlinked) == first
    assert len(pool.requests) == 1


VARIATIONS: list[Callable[[Any], object]] = [
    lambda pool: compiler(pool).binary("another shader", unlinked),
    lambda pool: compiler(pool, "sm_90a").binary("shader", unlinked),
    lambda pool: compiler(pool, "sm_80+ptx83").binary("shader", unlinked),
    lambda pool: compiler(pool, linker="13.0 580.2 (9, 0)").binary("shader", unlinked),
]


@pytest.mark.parametrize("vary", VARIATIONS)
def test_other_machine_code_is_another_entry(folder: Path, vary: Callable[[Any], object]) -> None:
    pool = Counted()
    compiler(pool).binary("shader", unlinked)
    vary(pool)
    assert len(pool.requests) == 2


@pytest.mark.parametrize("name", ["sources_digest", "load"])
def test_another_compiler_is_another_entry(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    pool = Counted()
    compiler(pool).binary("shader", unlinked)
    compilation._compiler_version.cache_clear()

    class Other:
        __version__ = "99.0"

    monkeypatch.setattr(compilation, name, lambda *args: "other sources" if name == "sources_digest" else Other)
    compiler(pool).binary("shader", unlinked)
    compilation._compiler_version.cache_clear()
    assert len(pool.requests) == 2


def test_a_checked_shader_is_another_entry(folder: Path) -> None:
    pool = Counted()
    compiler(pool).binary("shader", unlinked)
    compiler(pool).binary("shader", unlinked, is_checked=True)
    assert [indices for *_, indices, _ in pool.requests] == [b"unchecked", b"checked"]


def test_a_process_checks_indices(processes: WorkerPool) -> None:
    *parts, _, block = request()
    _, _, ptx = processes.ask([*parts, b"checked", block])
    assert b"trap;" in ptx and b"trap;" not in processes.ask(request())[2]


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + b"?", lambda data: b""])
def test_damaged_entries_are_compiled_again(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    pool = Counted()
    first = compiler(pool).binary("shader", unlinked)
    for entry in caches.entries(folder):
        entry.path.write_bytes(damage(entry.path.read_bytes()))
    assert compiler(pool).binary("shader", unlinked) == first
    assert len(pool.requests) == 2


def test_without_a_folder_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "cache_dir", lambda: None)
    pool = Counted()
    for _ in range(2):
        compiler(pool).binary("shader", unlinked)
    assert len(pool.requests) == 2


def test_machine_code_on_disk_needs_no_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiler(Counted()).binary("shader", unlinked)
    monkeypatch.setattr(compilation, "missing_compiler", lambda: "llvmlite is missing")
    assert compiler(Counted()).binary("shader", unlinked) == first
    with pytest.raises(DeviceError, match="llvmlite is missing"):
        compiler(Counted()).binary("another", unlinked)


def test_processes_are_prepared_where_nothing_was_compiled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Counted()
    for _ in range(2):
        compiler(pool).prepare()
    assert pool.prepared == 2 and not pool.requests
    compiler(pool).binary("shader", unlinked)
    compiler(pool).prepare()
    assert pool.prepared == 2
    compiler(pool, "sm_80").prepare()
    compiler(pool, linker="13.0 580.2 (9, 0)").prepare()
    assert pool.prepared == 4
    monkeypatch.setattr(compilation, "cache_dir", lambda: None)
    compiler(pool).prepare()
    assert pool.prepared == 5
    monkeypatch.setattr(compilation, "missing_compiler", lambda: "llvmlite is missing")
    compiler(pool).prepare()
    assert pool.prepared == 5


def test_errors_are_not_kept(folder: Path, processes: WorkerPool) -> None:
    for _ in range(2):
        with pytest.raises(DeviceError, match="it is no WGSL"):
            compiler(processes).binary("refused", unlinked)
    assert not list(caches.entries(folder))


def test_this_process_links(folder: Path, processes: WorkerPool) -> None:
    binary = Compiler(HOPPER, "13.0 580.1 (9, 0)", processes).binary(KERNEL, unlinked)
    assert binary.threads == (64, 2, 1)
    assert binary.code == b"linked " + compile_ptx(KERNEL, HOPPER)
