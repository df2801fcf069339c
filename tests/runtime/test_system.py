"""What machine code calls of the operating system: here by running it, of Windows by its symbols."""

from __future__ import annotations

import ctypes
import re
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

import volta_fn as vf
from tests.samples import all_samples
from volta_fn.compiler import pipeline
from volta_fn.runtime import system
from volta_fn.runtime.fastcall import write_entry_points
from volta_fn.runtime.llvm.host import Host, generating_for, llvm
from volta_fn.runtime.llvm.machine import compile_object, load_objects
from volta_fn.runtime.llvm.text import Function, Module, Value, i64
from volta_fn.runtime.result_allocator import write_blocks
from volta_fn.targets.cpu.routine import routine_of
from volta_fn.targets.cpu.runtime.executor import write_executor, write_pool
from volta_fn.targets.cpu.target import TARGET

#: Windows, whose objects are ELF files under Windows's calling convention, as llvmlite has them there.
WINDOWS = Host("x86_64-pc-windows-msvc-elf", "x86-64-v3", "+avx2,+fma,+f16c", 32, 16)

#: What a process on Windows has: of kernel32.dll, of Python's library, of ntdll.dll, and of the C library (ucrtbase.dll).
KERNEL = {
    "AcquireSRWLockExclusive", "GetTickCount64", "QueryPerformanceCounter", "QueryPerformanceFrequency", "ReleaseSRWLockExclusive",
    "SleepConditionVariableSRW", "VirtualAlloc", "VirtualFree", "WakeAllConditionVariable",
}  # fmt: skip
PYTHON = re.compile(r"Py_?[A-Z]\w+")
LIBRARY = {"memcpy", "memmove", "memset", "__chkstk", "fmod", "fmodf", "fmax", "fmaxf", "fmin", "fminf", "round", "roundf"}
#: What the process binds when it loads objects.
BOUND = re.compile(r"volta_(lapack|numpy_sort)_\w+|__truncdfhf2")

SAMPLES = [(sample, name) for sample in all_samples() for name in sample.dtypes][7::41]


def undefined(code: bytes) -> set[str]:
    """Return the symbols that an ELF file needs of others."""
    (sections_at,), (size, count) = struct.unpack_from("<Q", code, 40), struct.unpack_from("<HH", code, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, sections_at + k * size) for k in range(count)]
    names = set()
    for _, kind, _, _, start, length, link, *_ in sections:
        for at in range(start, start + length, 24) if kind == 2 else ():
            name, _, _, section = struct.unpack_from("<IBBH", code, at)
            first = sections[link][4] + name
            if name and not section:
                names.add(code[first : code.index(b"\0", first)].decode())
    return names


def strange(code: bytes) -> set[str]:
    """Return the symbols that no process on Windows has."""
    return {name for name in undefined(code) - KERNEL - LIBRARY if not PYTHON.fullmatch(name) and not BOUND.fullmatch(name)}


@pytest.fixture(autouse=True)
def targets() -> None:
    """LLVM's code generators of other CPUs than this one."""
    llvm().initialize_all_targets()
    llvm().initialize_all_asmprinters()


def test_support_code_needs_what_windows_has() -> None:
    with generating_for(WINDOWS):
        module = Module()
        for write in (write_pool, write_executor, write_entry_points, write_blocks):
            write(module)
        code = compile_object(str(module))
    needed = undefined(code)
    assert strange(code) == set()
    assert {"SleepConditionVariableSRW", "VirtualAlloc", "GetTickCount64", "PyMem_RawFree", "PyGILState_Ensure"} <= needed


def test_routines_need_what_windows_has() -> None:
    codes, shared = [], {}
    with generating_for(WINDOWS):
        for sample, name in SAMPLES:
            avals = [vf.ShapeDtypeStruct(arg.shape, arg.dtype or name) for arg in sample.args]
            for key in pipeline.lower(vf.jit(sample.function).lower(*avals).jaxpr, TARGET).routine_keys():
                if (routine := routine_of(key)) is not None:
                    codes.append(compile_object(routine.text))
                    shared |= {function.name: function.text for function in routine.shared}
        codes += [compile_object(text) for text in shared.values()]
    assert len(codes) > 80
    assert set().union(*map(strange, codes)) - set(shared) == set()


def test_a_processs_own_objects_are_read_alike() -> None:
    text = "declare void @elsewhere()\ndefine void @here() {\n  call void @elsewhere()\n  ret void\n}"
    with generating_for(WINDOWS):
        assert undefined(compile_object(text)) == strange(compile_object(text)) == {"elsewhere"}


def run(write: Callable[[Function], Value]) -> int:
    """Return the result of a function of machine code."""
    module = Module()
    f = Function(module, "f", [], "i64")
    f.finish(write(f))
    loaded = load_objects([compile_object(str(module))], ["f"])
    return ctypes.CFUNCTYPE(ctypes.c_int64)(loaded.addresses[0])()


def test_clocks_are_those_of_python() -> None:
    before = time.perf_counter_ns()
    moment = run(system.nanoseconds)
    assert before <= moment <= time.perf_counter_ns()
    before_seconds = int(time.time())
    assert before_seconds <= run(system.seconds) <= time.time()


@pytest.mark.parametrize("size", [1, 4096, 1 << 22])
def test_memory_is_writable_and_freed(size: int) -> None:
    def allocated(f: Function) -> Value:
        block = system.allocate(f, i64(size))
        f.store(i64(1), block, 1) if size >= 8 else f.store(Value("i8", "1"), block, 1)
        return f.cast("ptrtoint", block, "i64")

    system.release_from_python(run(allocated))

    def mapped(f: Function) -> Value:
        block = system.map_pages(f, i64(max(size, 4096)))
        first = f.load("i64", block, 8)
        system.ask_for_huge_pages(f, block, i64(max(size, 4096)))
        system.unmap_pages(f, block, i64(max(size, 4096)))
        system.release(f, system.allocate_pages(f, i64(1 << 21), 1 << 21))
        return first

    assert run(mapped) == 0, "pages are zero"
    assert run(lambda f: f.cast("ptrtoint", system.map_pages(f, i64(1 << 62)), "i64")) == 0, "null where there is no memory"


def test_routines_tell_whether_they_have_float16() -> None:
    """Also of numbers in the functions that they share, and of lanes of vectors; sorting them by their bits takes none."""
    functions: dict[str, Callable[..., Any]] = {
        "sum": lambda x: x.sum(0),
        "round": lambda x: x + x.astype("float16").astype(x.dtype),
        "product": lambda x: x @ x,
        "one row": lambda x: x[0] @ x,
        "sort": lambda x: vf.numpy.sort(x, 0),
        "cumulative": lambda x: vf.numpy.cumsum(x, 1),
        "copy": lambda x: vf.numpy.roll(x, 3, 0),
        "convolution": lambda x: vf.lax.conv(x[None, :16, :8].reshape(1, 16, 8), x[:8, :48].reshape(8, 16, 3), (1,), "SAME"),
    }
    for name, function in functions.items():
        for dtype in ("float16", "bfloat16", "float32"):
            lowered = pipeline.lower(vf.jit(function).lower(vf.ShapeDtypeStruct((64, 64), dtype)).jaxpr, TARGET)
            routines = [routine for key in lowered.routine_keys() if (routine := routine_of(key)) is not None]
            texts = ["".join([routine.text, *[shared.text for shared in routine.shared]]) for routine in routines]
            assert any(routine.has_float16 for routine in routines) == (name == "round" or (dtype == "float16" and name != "sort"))
            assert [routine.has_float16 for routine in routines] == [" half" in text for text in texts], (name, dtype)


def test_half_needs_conversions() -> None:
    """A machine without instructions for float16 leaves it to NumPy."""
    without = Host("x86_64-unknown-linux-gnu", "x86-64", "+sse2", 16, 16)
    assert WINDOWS.converts_float16 and not without.converts_float16
    lowered = vf.jit(vf.numpy.cumsum).lower(vf.ShapeDtypeStruct((5,), "float16"))
    for machine, has_routine in ((WINDOWS, True), (without, False)):
        with generating_for(machine):
            program = pipeline.lower(lowered.jaxpr, TARGET)
            (key,) = program.routine_keys()
            assert (routine_of(key) is not None) == has_routine
            assert [step.primitive for step in program.host_steps()] == ([] if has_routine else ["cumsum"])
