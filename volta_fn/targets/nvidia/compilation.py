"""Shaders compiled to machine code, and kept on disk.

WGSL becomes LLVM IR (`translation`), LLVM's back end makes PTX of it, and the driver makes a *cubin*, machine code for one architecture.
`python -m volta_fn.targets.nvidia.compilation` starts processes that make PTX of shaders that they read.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
import struct
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from volta_fn.errors import DeviceError, VoltaError
from volta_fn.lazy_imports import is_installed, load
from volta_fn.runtime import caches
from volta_fn.runtime.caches import cache_dir, sources_digest
from volta_fn.targets.gpu.driver import log
from volta_fn.targets.nvidia import processes
from volta_fn.targets.nvidia.library import CallErrors, Functions
from volta_fn.targets.nvidia.processes import WorkerPool

# PTX without what the driver's compiler gets wrong.
#
# Two faults of it are known. Both change results without a message, so every text that LLVM writes is rewritten where it has what they
# need.

#: An instruction as LLVM writes it: its name, the registers that it sets, and its operands.
_INSTRUCTION = re.compile(r"^\t(?:@\S+ )?([a-z][\w.:]*) \s*(\{[^}]*\}|\([^)]*\)|[^,;]*), (.*);$", re.MULTILINE)
_REGISTER = re.compile(r"%\w+")


def corrected(ptx: str) -> str:
    """Return PTX, as LLVM writes it, in words that are translated rightly."""
    return _SIGNED_EXTREMUM.sub(_as_selection, _with_conditions(ptx))


# The least of three negated numbers.

#: A minimum or maximum of signed numbers of 32 bits.
_SIGNED_EXTREMUM = re.compile(r"^\t(min|max)\.s32 \t(\S+), (\S+), (\S+);$", re.MULTILINE)


def _as_selection(extremum: re.Match[str]) -> str:
    """Return a minimum or maximum as a comparison and a selection.

    The driver's compiler for Hopper takes the least of three negated numbers for another one. Shaders select for that reason
    (`wgsl/scalars/operations.py`), but LLVM makes minima of selections.
    """
    name, result, x, y = extremum.groups()
    comparison = {"min": "lt", "max": "gt"}[name]
    return f"\t{{ .reg .pred %first; setp.{comparison}.s32 %first, {x}, {y}; selp.b32 {result}, {x}, {y}, %first; }}"


# Bitwise operations on ones and zeros.
#
# The compiler (ptxas 13.0) computes `a | b` of numbers that are selected by predicates from these. Where the numbers are used besides, and
# the result in further logic, it forgets that it has negated the predicates: `(a | b) != 0 and c` becomes `not (a and b) and c`. So that is
# done here: all logic is that of predicates, by which each number is selected anew. Of 2,200 random texts that are written so it translates
# one wrongly, `a and (a or b)`, which LLVM never writes.

_BITWISE = re.compile(r"^(or|and|xor)\.b(16|32|64)$")
#: A comparison of a number with zero.
_WITH_ZERO = re.compile(r"^setp\.(eq|ne)\.[bsu](?:16|32|64)$")
_PREDICATE_REGISTERS = re.compile(r"^\t\.reg \.pred .*$", re.MULTILINE)


def _with_conditions(ptx: str) -> str:
    """Compute with predicates instead of the numbers 1 and 0."""
    if not any(f"\t{name}.b" in ptx for name in ("or", "and", "xor")) or "\tselp.b" not in ptx:
        return ptx
    definitions: dict[str, tuple[str, list[str]]] = {}
    counts = Counter[str]()
    for name, result, operands in _INSTRUCTION.findall(ptx):
        definitions[result] = name, operands.split(", ")
        counts.update(_REGISTER.findall(result))
    #: The predicate of each number that is 1 where it holds, else 0; None: there is none. A register that is set in several places is a
    #: variable of a loop, or of several paths.
    predicates: dict[str, str | None] = {register: None for register, count in counts.items() if count > 1}
    combined = 0

    def predicate(register: str) -> str | None:
        nonlocal combined
        if register not in predicates:
            name, operands = definitions.get(register, ("", []))
            predicates[register] = None
            if name.startswith("selp.b") and operands[:2] == ["1", "0"] and counts[operands[2]] == 1:
                predicates[register] = operands[2]
            elif _BITWISE.match(name) and None not in [predicate(operand) for operand in operands]:
                predicates[register] = f"%holds{combined}"
                combined += 1
        return predicates[register]

    def rewritten(instruction: re.Match[str]) -> str:
        name, result, operands = instruction[1], instruction[2], instruction[3].split(", ")
        bitwise, comparison = _BITWISE.match(name), _WITH_ZERO.match(name)
        if bitwise and predicate(result):
            x, y = [predicate(operand) for operand in operands]
            operation, bits = bitwise.groups()
            return f"\t{operation}.pred \t{predicate(result)}, {x}, {y};\n\tselp.b{bits} \t{result}, 1, 0, {predicate(result)};"
        if comparison and operands[1] == "0" and predicate(operands[0]):
            return f"\t{'mov' if comparison[1] == 'ne' else 'not'}.pred \t{result}, {predicate(operands[0])};"
        return instruction[0]

    result = _INSTRUCTION.sub(rewritten, ptx)
    return _PREDICATE_REGISTERS.sub(rf"\g<0>\n\t.reg .pred %holds<{combined}>;", result) if combined else result


# Architectures, and versions of PTX.


#: The processors that LLVM 20 and later know, as their compute capabilities.
_PROCESSORS = ((7, 0), (7, 2), (7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (12, 0))
#: The first processor with features that later ones lack, which a suffix names.
_SPECIFIC = (9, 0)
#: The version of PTX for processors whose own version is older, and the version of CUDA that reads it: tensor maps need it.
_PTX, _PTX_DRIVER = 83, 12030


def architecture_of(capability: tuple[int, int], driver: int) -> str:
    """Return the architecture for a compute capability and a driver of this version.

    It is LLVM's name of a processor, and of a version of PTX if that is not the processor's own. Machine code of a processor that LLVM does
    not know is made of the PTX of an earlier one.

    >>> architecture_of((9, 0), 13000)
    'sm_90a+ptx83'
    >>> architecture_of((12, 1), 13000)
    'sm_120'
    """
    major, minor = max(processor for processor in _PROCESSORS if processor <= capability)
    suffix = "a" if _SPECIFIC <= (major, minor) == capability else ""
    features = f"+ptx{_PTX}" if driver >= _PTX_DRIVER and major < 10 else ""
    return f"sm_{major}{minor}{suffix}{features}"


# Compile LLVM IR to PTX, and PTX to machine code.

_TRIPLE = "nvptx64-nvidia-cuda"
#: LLVM's level of optimisation. The driver's compiler optimises again: higher levels took longer for the same machine code.
_LEVEL = 1


@functools.cache
def _llvm() -> Any:
    """Import llvmlite's binding, with all targets."""
    binding = load("llvmlite.binding")
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    return binding


#: The function by which shaders round to bfloat16 (`wgsl/scalars/number.py`), and what is one instruction of processors from 8.0 on: it
#: rounds two numbers, here to the upper half, and 0 to the lower one. Only the bits of NaN differ.
_ROUNDING = re.compile(r"^(define [^\n]*float @f\.bfloat16_rounded\(float %a\.x\b[^\n]*\n)[^}]*^\}$", re.MULTILINE)
_ROUNDED = r"""\1entry:
  %bits = call i32 asm "cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f"(float %a.x, float 0.0)
  %result = bitcast i32 %bits to float
  ret float %result
}"""
_WITH_BFLOAT16 = 80


def compile_ptx(llvm_ir: str, architecture: str) -> bytes:
    """Compile LLVM IR to PTX.

    LLVM ends the process where it has no instruction for something, so it is called in a process of its own (`processes`). Products and
    sums are not contracted: LLVM writes them as instructions that round.

    Raises:
        RuntimeError: The text is not LLVM IR.
    """
    binding = _llvm()
    processor, _, version = architecture.partition("+")
    features = f"+{version}" if version else ""
    if int(processor.removeprefix("sm_").rstrip("af")) >= _WITH_BFLOAT16:
        llvm_ir = _ROUNDING.sub(_ROUNDED, llvm_ir)
    machine = binding.Target.from_triple(_TRIPLE).create_target_machine(cpu=processor, features=features, opt=_LEVEL)
    module = binding.parse_assembly(llvm_ir, binding.create_context())
    module.triple, module.data_layout = _TRIPLE, str(machine.target_data)
    module.verify()
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=_LEVEL))
    builder.getModulePassManager().run(module, builder)
    ptx: str = machine.emit_assembly(module)
    return corrected(ptx).encode()


#: CUDA's numbers of the kind of input and of the options of a linker, and the bytes for its messages.
_INPUT_PTX = 1
_ERROR_LOG, _ERROR_LOG_SIZE = 5, 6
_LOG_BYTES = 1 << 14


def _is_whole(ptx: bytes) -> bool:
    """Return whether PTX must be compiled as a whole program.

    The linker compiles it as one of several units: then it ignores `setmaxnreg`, and lets products of warp groups wait for each other.
    """
    return b"wgmma" in ptx


def link(loaded: Functions, errors: CallErrors, ptx: bytes) -> bytes:
    """Return the machine code that the driver makes of PTX.

    It is for the GPU of the current context. Raises `DeviceError` with the driver's messages, or `OutOfMemoryError`.

    Whole programs are their own machine code, which the driver compiles when it is loaded.
    """
    if _is_whole(ptx):
        return ptx + b"\0"
    messages = ctypes.create_string_buffer(_LOG_BYTES)
    options, values = (ctypes.c_int * 2)(_ERROR_LOG, _ERROR_LOG_SIZE), (ctypes.c_void_p * 2)(ctypes.addressof(messages), _LOG_BYTES)
    state, code, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
    errors.call("cuLinkCreate_v2", 2, options, values, ctypes.byref(state))
    try:
        text = ptx + b"\0"
        status = loaded.cuLinkAddData_v2(state, _INPUT_PTX, text, len(text), b"shader", 0, None, None)
        status = status or loaded.cuLinkComplete(state, ctypes.byref(code), ctypes.byref(size))
        errors.check(status, f"cuLink: {messages.value.decode(errors='replace').strip()}")
        return ctypes.string_at(code.value or 0, size.value)
    finally:
        loaded.cuLinkDestroy(state)


# A process that compiles.
#
# A request is a shader's WGSL, an architecture, whether indices are checked when it runs, and the threads of a block if it is LLVM IR
# instead. The answer is its kind, the size of a workgroup, and PTX or a message.

_PTX_TEXT, _ERROR = b"ptx", b"error"
_CHECKED, _UNCHECKED = b"checked", b"unchecked"
_THREADS = struct.Struct("<3I")
_TRANSLATION = "volta_fn.targets.nvidia.translation"


def serve() -> None:
    """Start processes that compile, as standard input says (`processes.serve`)."""
    load(_TRANSLATION)
    _llvm()
    processes.serve(_answer)


def _answer(source: bytes, architecture: bytes, indices: bytes, threads: bytes) -> tuple[bytes, bytes, bytes]:
    try:
        text, size = source.decode(), (int(threads or 0), 1, 1)
        if not threads:
            text, size = load(_TRANSLATION).translate(text, is_checked=indices == _CHECKED)
        return _PTX_TEXT, _THREADS.pack(*size), compile_ptx(text, architecture.decode())
    except VoltaError as error:
        return _ERROR, b"", error.message.encode()
    except RuntimeError as error:
        return _ERROR, b"", f"LLVM refuses the module: {str(error).strip()}".encode()


#: The arguments by which Python starts a process that compiles.
_COMMAND = ("-P", "-m", "volta_fn.targets.nvidia.compilation")


@functools.cache
def pool() -> WorkerPool:
    """Return the pool that all devices share."""
    return WorkerPool(_COMMAND)


# Machine code by shaders, on disk.


class ShaderBinary(NamedTuple):
    """The machine code of a shader, and the invocations of a workgroup."""

    threads: tuple[int, int, int]
    code: bytes


def _binary(entry: bytes) -> ShaderBinary:
    """Return the machine code of an entry, which begins with the size of a workgroup."""
    return ShaderBinary(_THREADS.unpack_from(entry), entry[_THREADS.size :])


def missing_compiler() -> str | None:
    """Return what is missing to compile shaders, with advice; None if nothing is."""
    if is_installed("llvmlite"):
        return None
    return "shaders for NVIDIA's driver are compiled by the package llvmlite, which is not installed: pip install 'volta-fn[native]'"


class Compiler:
    """The compiler of an architecture's shaders, with the cache on disk."""

    def __init__(self, architecture: str, linker: str, workers: WorkerPool | None = None) -> None:
        """Prepare a compiler.

        `linker` identifies the driver and the GPU that turn PTX into machine code: it is part of the keys on disk.
        """
        self.architecture, self._linker = architecture, linker
        self._workers = workers
        #: Whether the disk has the marker that this compiler has entries there (`prepare`).
        self._has_entries = False

    def prepare(self) -> None:
        """Start the processes that compile, unless they are hardly needed.

        Where there is machine code of this compiler on disk, most programs find theirs. They start while the GPU is opened.
        """
        folder = cache_dir()
        if missing_compiler() is None and (folder is None or caches.read(folder, self._name("")) is None):
            (self._workers or pool()).prepare()

    def binary(self, source: str, link_ptx: Callable[[bytes], bytes], *, threads: int = 0, is_checked: bool = False) -> ShaderBinary:
        """Return the machine code of a shader, from the disk or compiled.

        `link_ptx` makes machine code of PTX. With the threads of a block, the shader is LLVM IR; otherwise `is_checked` is that of
        `translate`. Raises `DeviceError` if the shader cannot be compiled.
        """
        folder = cache_dir()
        if folder is None:
            return _binary(self._compiled(source, link_ptx, threads, is_checked))
        name = self._name(source, is_checked)
        entry = caches.read(folder, name)
        if entry is None:
            entry = self._compiled(source, link_ptx, threads, is_checked)
            caches.write(folder, name, entry)
            if not self._has_entries:
                caches.write(folder, self._name(""), b"")
                self._has_entries = True
        return _binary(entry)

    def _compiled(self, source: str, link_ptx: Callable[[bytes], bytes], threads: int, is_checked: bool) -> bytes:
        missing = missing_compiler()
        if missing is not None:
            raise DeviceError(missing)
        start = time.perf_counter()
        request = [source.encode(), self.architecture.encode(), _CHECKED if is_checked else _UNCHECKED, str(threads or "").encode()]
        kind, size, data = (self._workers or pool()).ask(request)
        if kind == _ERROR:
            raise DeviceError(data.decode())
        code = link_ptx(data)
        log.debug("a shader of %d characters compiled in %.3f s, %d bytes", len(source), time.perf_counter() - start, len(code))
        return size + code

    def _name(self, source: str, is_checked: bool = False) -> str:
        circumstances = repr((_compiler_version(), self._linker, self.architecture, is_checked))
        return hashlib.sha256(f"{circumstances}\0{source}".encode()).hexdigest()


@functools.cache
def _compiler_version() -> tuple[str, str]:
    """Return the state of this package, and the version of llvmlite."""
    version = load("llvmlite").__version__ if is_installed("llvmlite") else ""
    return sources_digest(Path(__file__).parents[2], cache_dir()), version


if __name__ == "__main__":
    serve()
