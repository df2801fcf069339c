"""Shaders are compiled by processes that may end, and kept on disk."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from volta_fn.errors import DeviceError
from volta_fn.runtime import caches
from volta_fn.targets.nvidia import compilation
from volta_fn.targets.nvidia.compilation import Compiler, CompilerPool, architecture_of, compile_ptx, receive, send
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


#: Text that translates by a function of this name, after a statement.
AFTER = "inner = translate\ndef translate(source, **options): {}; return inner(source, **options)"


def pool_of(text: str = "", most: int = 1) -> CompilerPool:
    """Return a pool of processes that run some text first."""
    return CompilerPool(("-P", "-c", PROGRAM.format(text)), most)


@pytest.fixture(scope="module")
def processes() -> Iterator[CompilerPool]:
    pool = pool_of(most=2)
    yield pool
    pool.close()


def request(source: str = KERNEL, ordinal: str = "") -> list[bytes]:
    return [source.encode(), HOPPER.encode(), ordinal.encode(), b"unchecked"]


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


# messages


@pytest.mark.parametrize(("architecture", "count"), [("sm_75", 0), ("sm_80", 1), ("sm_90a+ptx83", 1), ("sm_120", 1)])
def test_rounding_to_bfloat16_is_one_instruction(architecture: str, count: int) -> None:
    shader = f"""@group(0) @binding(0) var<storage, read_write> x: array<f32>;
{_BFLOAT16_ROUNDED}
@compute @workgroup_size(32) fn main(@builtin(local_invocation_index) local: u32) {{ x[local] = bfloat16_rounded(x[local]); }}
"""
    ptx = compile_ptx(translate(shader).llvm_ir, architecture).decode()
    assert ptx.count("cvt.rn.bf16x2.f32") == count


def test_messages() -> None:
    pipe = io.BytesIO()
    send(pipe, [b"", b"a\0\n", bytes(1000)])
    send(pipe, [])
    pipe.seek(0)
    assert receive(pipe) == [b"", b"a\0\n", bytes(1000)]
    assert receive(pipe) == []
    with pytest.raises(EOFError):
        receive(pipe)
    with pytest.raises(EOFError):
        receive(io.BytesIO(b"\1\0\0\0\4\0\0\0\0\0\0\0abc"))


# processes


def test_a_process_compiles(processes: CompilerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # where there is a GPU, it would make machine code of it
    kind, threads, ptx = processes.ask(request())
    assert kind == b"ptx" and compilation._THREADS.unpack(threads) == (64, 2, 1)
    assert ptx == compile_ptx(KERNEL, HOPPER)
    assert processes.ask(request(ordinal="0"))[0] == b"ptx"  # without a GPU
    assert len(processes._workers) == 1


#: A process with a stand-in for the driver, whose machine code is PTX.
WITH_DRIVER = """
from tests.targets.nvidia.fake_cuda import FakeCuda
from volta_fn.targets.nvidia import library
fake = FakeCuda()
library.open_library = lambda: fake
fake.failures = {}
"""


def test_a_process_makes_machine_code() -> None:
    pool = pool_of(WITH_DRIVER.format({"cuLinkComplete": [0, 218]}))
    kinds = [pool.ask(request(ordinal=ordinal))[0] for ordinal in ("0", "0", "0", "", "0")]
    assert kinds == [b"cubin", b"ptx", b"cubin", b"ptx", b"cubin"]  # the second time linking fails
    pool.close()


def test_whole_programs_are_not_linked() -> None:
    kernel = KERNEL.replace("  ret void", '  call void asm sideeffect "wgmma.fence.sync.aligned;", ""()\n  ret void', 1)
    pool = pool_of(WITH_DRIVER.format({"cuLinkCreate_v2": [218] * 3, "cuModuleLoadData": [0, 218]}))
    kind, _, code = pool.ask(request(kernel, ordinal="0"))
    assert (kind, code) == (b"cubin", compile_ptx(kernel, HOPPER) + b"\0")
    assert pool.ask(request(kernel, ordinal="0"))[0] == b"ptx"  # it cannot be loaded
    pool.close()


def test_a_process_without_a_context_makes_ptx() -> None:
    pool = pool_of(WITH_DRIVER.format({"cuCtxCreate_v2": [2]}))
    assert [pool.ask(request(ordinal="0"))[0] for _ in range(2)] == [b"ptx", b"cubin"]
    pool.close()


@pytest.mark.parametrize(("source", "message"), [("refused", "it is no WGSL"), ("define nonsense", "LLVM refuses the module")])
def test_refused_shaders(processes: CompilerPool, source: str, message: str) -> None:
    kind, _, text = processes.ask(request(source))
    assert kind == b"error" and message in text.decode()


def test_a_process_that_llvm_ends_is_replaced(processes: CompilerPool) -> None:
    with pytest.raises(DeviceError, match=r"by signal 6: (.|\n)*Cannot select"):
        processes.ask(request(UNKNOWN))
    assert processes.ask(request())[0] == b"ptx"


def test_a_process_that_was_killed_while_idle_is_replaced(processes: CompilerPool) -> None:
    processes.ask(request())
    for worker in processes._workers:
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
    assert processes.ask(request())[0] == b"ptx"


def test_threads_share_a_few_processes() -> None:
    pool = pool_of(
        "import time\n" + AFTER.format("time.sleep(0.1)"),
        2,
    )
    answers: list[bytes] = []
    threads = [threading.Thread(target=lambda: answers.append(pool.ask(request())[0])) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [b"ptx"] * 6
    assert len(pool._workers) == len(pool._idle) == 2
    pool.close()


def test_what_libraries_print_is_no_answer() -> None:
    pool = pool_of(AFTER.format("print('noise', flush=True)"))
    assert pool.ask(request())[0] == b"ptx"
    pool.close()


def test_a_process_without_requests_ends() -> None:
    pool = pool_of("compilation._IDLE_S = 0.2")
    pool.ask(request())
    (worker,) = pool._workers
    assert worker.process.wait(20) == 0
    assert pool.ask(request())[0] == b"ptx"
    pool.close()


def test_a_process_that_cannot_start() -> None:
    pool = CompilerPool(("-c", "raise SystemExit('no such module')"), 1)
    for _ in range(2):
        with pytest.raises(DeviceError, match="with status 1: no such module"):
            pool.ask(request())


def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        for _ in range(2):
            with pytest.raises(DeviceError, match="no process that compiles shaders can be started"):
                pool.ask(request())
    assert pool.ask(request())[0] == b"ptx"
    pool.close()


def test_closing_ends_requests() -> None:
    pool = pool_of("import time\n" + AFTER.format("time.sleep(100)"))
    errors: list[str] = []

    def ask() -> None:
        try:
            pool.ask(request())
        except DeviceError as error:
            errors.append(error.message)

    thread = threading.Thread(target=ask)
    thread.start()
    while not pool._workers:
        time.sleep(0.01)
    pool.close()
    thread.join()
    assert "by signal 9" in errors[0]
    assert not pool._workers


def test_an_interrupted_request_leaves_no_answer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of()
    with monkeypatch.context() as patch:
        patch.setattr(compilation, "receive", lambda pipe: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            pool.ask(request("refused"))
    assert pool.ask(request())[0] == b"ptx"
    pool.close()


@pytest.mark.parametrize("place", ["_take", "_start", "_give_back"])
def test_ctrl_c_between_requests_loses_no_process(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It arrives when a process was taken, when one was started, and when one was given back."""
    pool, inner = pool_of(), getattr(CompilerPool, place)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        result = inner(*arguments, **options)
        signal.raise_signal(signal.SIGINT)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(CompilerPool, place, interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.ask(request())
    answers: list[bytes] = []
    thread = threading.Thread(target=lambda: answers.append(pool.ask(request())[0]), daemon=True)
    thread.start()
    thread.join(60)
    assert answers == [b"ptx"]
    assert len(pool._workers) == len(pool._idle) == 1
    pool.close()


def test_ctrl_c_ends_a_wait_for_a_process() -> None:
    pool = pool_of("import time\n" + AFTER.format("time.sleep(100)"))

    def ask() -> None:
        with contextlib.suppress(DeviceError):
            pool.ask(request())

    thread = threading.Thread(target=ask)
    thread.start()
    while not pool._workers:
        time.sleep(0.01)
    interrupt = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        pool.ask(request())
    pool.close()
    thread.join()


SCRIPT = """
import os, sys
from tests.targets.nvidia.test_compilation import pool_of, request
pool = pool_of()
assert pool.ask(request())[0] == b"ptx"
(worker,) = pool._workers
print(worker.process.pid, flush=True)
{}
"""


def ended(pid: int) -> bool:
    """Wait until a process has ended."""
    for _ in range(100):
        with contextlib.suppress(FileNotFoundError):
            if Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
                time.sleep(0.1)
                continue
        return True
    return False


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)", "sys.exit(3)"], ids=["end", "kill", "exit"])
def test_processes_end_with_their_parent(end: str) -> None:
    result = subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT.format(end)], capture_output=True, text=True)
    assert not result.stderr
    assert ended(int(result.stdout))


FORK = """
child = os.fork()
if not child:
    assert not pool._workers
    assert pool.ask(request())[0] == b"ptx"
    (other,) = pool._workers
    assert other.process.pid != worker.process.pid
    pool.close()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert pool.ask(request())[0] == b"ptx" and pool._workers == {worker}
"""


def test_forked_processes_have_processes_of_their_own() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT.format(FORK)], capture_output=True, text=True)
    assert not result.returncode, result.stderr
    assert not result.stderr


# the cache on disk


class Counted:
    """A pool of processes whose PTX is the source, with the requests that it got."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def ask(self, request: Any) -> list[bytes]:
        self.requests.append(request)
        return [b"ptx", compilation._THREADS.pack(8, 4, 2), request[0]]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(compilation, "cache_dir", lambda: tmp_path)
    return tmp_path


def compiler(pool: Any, architecture: str = HOPPER, linker: str = "13.0 580.1 (9, 0)") -> Compiler:
    return Compiler(architecture, linker, 3, pool)


def test_machine_code_is_kept(folder: Path) -> None:
    pool = Counted()
    first = compiler(pool).binary("shader", 0, unlinked)
    assert first == ((8, 4, 2), b"linked shader")
    assert pool.requests == [[b"shader", b"sm_90a+ptx83", b"3", b"unchecked"]]
    assert compiler(pool).binary("shader", 0, unlinked) == first
    assert len(pool.requests) == 1


VARIATIONS: list[Callable[[Any], object]] = [
    lambda pool: compiler(pool).binary("another shader", 0, unlinked),
    lambda pool: compiler(pool).binary("shader", 3, unlinked),
    lambda pool: compiler(pool, "sm_90a").binary("shader", 0, unlinked),
    lambda pool: compiler(pool, "sm_80+ptx83").binary("shader", 0, unlinked),
    lambda pool: compiler(pool, linker="13.0 580.2 (9, 0)").binary("shader", 0, unlinked),
]


@pytest.mark.parametrize("vary", VARIATIONS)
def test_other_machine_code_is_another_entry(folder: Path, vary: Callable[[Any], object]) -> None:
    pool = Counted()
    compiler(pool).binary("shader", 0, unlinked)
    vary(pool)
    assert len(pool.requests) == 2


@pytest.mark.parametrize("name", ["sources_digest", "load"])
def test_another_compiler_is_another_entry(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    pool = Counted()
    compiler(pool).binary("shader", 0, unlinked)
    compilation._compiler_version.cache_clear()

    class Other:
        __version__ = "99.0"

    monkeypatch.setattr(compilation, name, lambda *args: "other sources" if name == "sources_digest" else Other)
    compiler(pool).binary("shader", 0, unlinked)
    compilation._compiler_version.cache_clear()
    assert len(pool.requests) == 2


def test_a_checked_shader_is_another_entry(folder: Path) -> None:
    pool = Counted()
    compiler(pool).binary("shader", 0, unlinked)
    compiler(pool).binary("shader", 0, unlinked, is_checked=True)
    assert [indices for *_, indices in pool.requests] == [b"unchecked", b"checked"]


def test_a_process_checks_indices(processes: CompilerPool) -> None:
    *parts, _ = request()
    _, _, ptx = processes.ask([*parts, b"checked"])
    assert b"trap;" in ptx and b"trap;" not in processes.ask(request())[2]


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + b"?", lambda data: b""])
def test_damaged_entries_are_compiled_again(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    pool = Counted()
    first = compiler(pool).binary("shader", 0, unlinked)
    for entry in caches.entries(folder):
        entry.path.write_bytes(damage(entry.path.read_bytes()))
    assert compiler(pool).binary("shader", 0, unlinked) == first
    assert len(pool.requests) == 2


def test_without_a_folder_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "cache_dir", lambda: None)
    pool = Counted()
    for _ in range(2):
        compiler(pool).binary("shader", 0, unlinked)
    assert len(pool.requests) == 2


def test_machine_code_on_disk_needs_no_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiler(Counted()).binary("shader", 0, unlinked)
    monkeypatch.setattr(compilation, "missing_compiler", lambda: "llvmlite is missing")
    assert compiler(Counted()).binary("shader", 0, unlinked) == first
    with pytest.raises(DeviceError, match="llvmlite is missing"):
        compiler(Counted()).binary("another", 0, unlinked)


def test_errors_are_not_kept(folder: Path, processes: CompilerPool) -> None:
    for _ in range(2):
        with pytest.raises(DeviceError, match="it is no WGSL"):
            compiler(processes).binary("refused", 0, unlinked)
    assert not list(caches.entries(folder))


def test_this_process_links_if_others_do_not(folder: Path, processes: CompilerPool) -> None:
    binary = Compiler(HOPPER, "13.0 580.1 (9, 0)", None, processes).binary(KERNEL, 0, unlinked)
    assert binary.threads == (64, 2, 1)
    assert binary.code == b"linked " + compile_ptx(KERNEL, HOPPER)
