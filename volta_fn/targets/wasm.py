"""WebAssembly: the CPU's routines for web pages without WebGPU.

LLVM, which llvmlite contains, generates WebAssembly from the same LLVM IR as machine code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.buffers import Output
from volta_fn.compiler.emission import CommandScope, Slot
from volta_fn.compiler.ir.kernel import KernelCall, interpret
from volta_fn.compiler.target import HostStep, Item, LoweredProgram, Passes
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.errors import CompilerError
from volta_fn.runtime.llvm.host import Host, generating_for, llvm
from volta_fn.runtime.llvm.machine import LoadedCode, cleaning_passes, compiler_errors
from volta_fn.targets.cpu.routine import Routine, routine_of
from volta_fn.targets.cpu.runtime.compile import CONTROL_FLOW, CommandWriter, LoadedLaunch, LoadedRoutine, assemble
from volta_fn.targets.cpu.runtime.executor import Mode
from volta_fn.targets.cpu.target import CpuTarget

# Routines as one WebAssembly module.
#
# LLVM writes relocatable objects, which a linker would join. All routines of a page are one module of LLVM's, so that the object is whole:
# what is left is to export its functions, by the symbol table of its section "linking" (`Linking.md` of WebAssembly's tool conventions),
# and to drop the sections that only linkers read. Data are at the beginning of the memory, as the object has them.

#: What every browser with WebAssembly's vectors has (2021: Chrome 91, Firefox 89; Safari 16.4).
FEATURES = ("simd128", "bulk-memory", "nontrapping-fptoint", "sign-ext")

#: The machine: vectors of 16 bytes, and as many registers as x86's, on which most browsers run.
MACHINE = Host("wasm32-unknown-unknown", "generic", ",".join(f"+{feature}" for feature in FEATURES), 16, 16)

#: Numbers of sections, in the order in which they stand in a module.
_CUSTOM, _IMPORT, _EXPORT = 0, 2, 7
_ORDER = [1, 2, 3, 4, 5, 13, 6, 7, 8, 9, 12, 10, 11]
_SYMBOL_TABLE, _FUNCTION, _DATA, _SECTION = 8, 0, 1, 3
_UNDEFINED, _EXPLICIT_NAME = 0x10, 0x40

#: Bytes of a page of memory.
_PAGE = 1 << 16

#: Pointers have four bytes there, which alignments in texts for 64-bit machines exceed.
_POINTER_LOAD = re.compile(r"(load ptr, ptr [^,\n]+), align 8")
_POINTER_STORE = re.compile(r"(store ptr [^,\n]+, ptr [^,\n]+), align 8")


class WasmModule(NamedTuple):
    """A module of functions ``(buffers: i32, begin: i64, end: i64)``."""

    code: bytes
    #: Names of functions that it needs and that are not in it.
    missing: tuple[str, ...]
    #: Bytes at the beginning of the memory that its data take, in whole pages.
    data_bytes: int


def compile_module(routines: Iterable[tuple[str, Routine]]) -> WasmModule:
    """Compile routines; their symbols get a suffix each.

    Raises:
        CompilerError: LLVM refuses a text.
    """
    machine = _machine()
    shared: set[str] = set()
    with compiler_errors():
        whole = _parsed("", machine)
        for suffix, routine in routines:
            for function in routine.shared:
                if function.name not in shared:
                    shared.add(function.name)
                    whole.link_in(_parsed(function.text, machine))
            module = _parsed(routine.text, machine)
            for named in (*module.functions, *module.global_variables):
                if not named.is_declaration:
                    named.name += suffix
            whole.link_in(module)
        passes, builder = cleaning_passes(machine)
        passes.run(whole, builder)
        code = machine.emit_object(whole)
    return _assembled(list(_sections(code)))


def _machine() -> Any:
    binding = llvm()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    target = binding.Target.from_triple(MACHINE.triple)
    return target.create_target_machine(cpu=MACHINE.cpu, features=MACHINE.features, opt=3, reloc="static")


def _parsed(text: str, machine: Any) -> Any:
    # Modules that are linked belong to one context, llvmlite's own; those of machine code have a context each.
    text = _POINTER_STORE.sub(r"\1, align 4", _POINTER_LOAD.sub(r"\1, align 4", text))
    module = llvm().parse_assembly(text)
    module.triple = MACHINE.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    return module


class _Section(NamedTuple):
    kind: int
    content: bytes


def _sections(code: bytes) -> Iterator[_Section]:
    reader = _Reader(code, 8)
    while reader.at < len(code):
        kind, size = reader.byte(), reader.number()
        yield _Section(kind, reader.take(size))


class _Reader:
    """Reads the numbers and names of WebAssembly's binary format."""

    def __init__(self, content: bytes, at: int = 0) -> None:
        self.content, self.at = content, at

    def byte(self) -> int:
        self.at += 1
        return self.content[self.at - 1]

    def number(self) -> int:
        """Read an unsigned LEB128 number."""
        result = shift = 0
        while True:
            byte = self.byte()
            result |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return result

    def take(self, size: int) -> bytes:
        self.at += size
        return self.content[self.at - size : self.at]

    def name(self) -> str:
        return self.take(self.number()).decode()


def _written(number: int) -> bytes:
    """Return a number as unsigned LEB128."""
    result = b""
    while number > 127:
        result += bytes([number & 127 | 128])
        number >>= 7
    return result + bytes([number])


def _functions(linking: bytes) -> list[tuple[str, int]]:
    """Return the functions of a symbol table, with their numbers."""
    reader = _Reader(linking)
    assert (reader.name(), reader.number()) == ("linking", 2), "a version of the section that is not known"
    functions = []
    while reader.at < len(linking):
        kind, size = reader.byte(), reader.number()
        if kind != _SYMBOL_TABLE:
            reader.take(size)
            continue
        for _ in range(reader.number()):
            symbol, flags = reader.byte(), reader.number()
            if symbol == _DATA:
                reader.name()
                if not flags & _UNDEFINED:
                    for _ in range(3):
                        reader.number()
            elif symbol == _SECTION:
                reader.number()
            else:
                number, is_named = reader.number(), not flags & _UNDEFINED or bool(flags & _EXPLICIT_NAME)
                name = reader.name() if is_named else ""
                if symbol == _FUNCTION and not flags & _UNDEFINED:
                    functions.append((name, number))
    return functions


def _imports(content: bytes) -> tuple[list[str], int]:
    """Return the functions and the pages of memory that a section imports."""
    reader, names, pages = _Reader(content), [], 0
    for _ in range(reader.number()):
        reader.name()
        name, kind = reader.name(), reader.byte()
        if kind == 0:
            reader.number()
            names.append(name)
        elif kind == 3:
            reader.take(2)
        else:  # a table, which has the type of its elements, or a memory
            reader.take(1 if kind == 1 else 0)
            flags = reader.byte()
            limits = [reader.number() for _ in range(1 + (flags & 1))]
            pages = limits[0] if kind == 2 else pages
    return names, pages


def _assembled(sections: Sequence[_Section]) -> WasmModule:
    """Return the module of an object's sections, which exports its functions."""
    linking = next(s.content for s in sections if s.kind == _CUSTOM and _Reader(s.content).name() == "linking")
    functions = _functions(linking)
    entries = b"".join(_written(len(name)) + name.encode() + b"\0" + _written(number) for name, number in functions)
    remaining = [s for s in sections if s.kind != _CUSTOM] + [_Section(_EXPORT, _written(len(functions)) + entries)]
    remaining.sort(key=lambda section: _ORDER.index(section.kind))
    code = b"\0asm\1\0\0\0" + b"".join(bytes([s.kind]) + _written(len(s.content)) + s.content for s in remaining)
    missing, pages = _imports(next(s.content for s in remaining if s.kind == _IMPORT))
    return WasmModule(code, tuple(missing), pages * _PAGE)


# Programs: routines, and the commands that call them.


class WasmTarget(CpuTarget):
    """The CPU of a browser."""

    name = "wasm"


TARGET = WasmTarget()

#: Functions of C's library that the page's runtime has (`web/runtime/wasm.js`).
LIBRARY = frozenset(f"{name}{suffix}" for name in ("fmax", "fmin", "fmod", "round") for suffix in ("", "f"))


class _CommandWriter(CommandWriter):
    """Writes the commands of a program.

    What is computed of empty arrays, for which there are no routines, is a constant.
    """

    def item(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], scope: CommandScope) -> None:
        """Write an item."""
        node = item.node
        if isinstance(node, KernelCall) and not any(source.size for source in node.kernel.inputs):
            arrays = [np.empty(source.size, source.dtype) for source in node.kernel.inputs]
            for slot, value in zip(results, interpret(node.kernel, *arrays), strict=True):
                self.copy(slot, self.slots.constant(np.asarray(value)), np.asarray(value).nbytes, scope)
        elif any(var.aval.size for var in item.results):
            super().item(item, operands, results, scope)


class WasmProgram(NamedTuple):
    """A program: its commands, and the table of slots that they work on.

    The first slots are arguments and results, then come slots of the arena and constants; the pointers of others are set by commands.
    """

    #: The words of the executor's commands (`targets.cpu.runtime.executor`); those at `launches` are functions, by their names.
    words: tuple[int, ...]
    launches: Mapping[int, str]
    slots: int
    arguments: int
    results: tuple[int, ...]
    #: The offsets of slots in the arena, and the arena's bytes.
    offsets: tuple[int, ...]
    arena: int
    constants: tuple[np.ndarray, ...]
    outputs: tuple[Output, ...]
    #: The results that are written into the memory of donated arguments, by their numbers.
    reuse: Mapping[int, int]


class WasmPrograms(NamedTuple):
    """Programs by name, and the module that has their functions."""

    programs: Mapping[str, WasmProgram]
    code: bytes
    #: Bytes at the beginning of the memory that the module's data take.
    data_bytes: int


def compile_programs(traced: Mapping[str, tuple[ClosedJaxpr, Sequence[bool]]], pipeline: Passes) -> WasmPrograms:
    """Compile programs, each with its flags of donated arguments, to one module.

    Raises:
        CompilerError: a program has a step that needs Python or a library.
    """
    routines: dict[Any, tuple[str, Routine]] = {}
    with generating_for(MACHINE):
        programs = {name: _program(name, *program, pipeline, routines) for name, program in traced.items()}
        module = compile_module(routines.values())
    if missing := [name for name in module.missing if name not in LIBRARY]:
        raise CompilerError.of("code generation", f"WebAssembly has no {', '.join(missing)}")
    return WasmPrograms(programs, module.code, module.data_bytes)


def _program(
    name: str, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Passes, routines: dict[Any, tuple[str, Routine]]
) -> WasmProgram:
    lowered = pipeline.lower(closed, TARGET)
    loaded: dict[Any, LoadedRoutine | None] = {}
    for key in lowered.routine_keys():
        if key.key not in routines:
            routine = routine_of(key)
            if routine is None:
                continue
            routines[key.key] = f"_{len(routines)}", routine
        loaded[key.key] = _loaded(*routines[key.key])
    for item in _items(lowered):
        if item.key is not None:
            loaded.setdefault(item.key.key, None)
    writer = _CommandWriter(loaded, CONTROL_FLOW)
    artifact, launches, hosts = assemble(lowered, donated, writer)
    if hosts:
        step = HostStep.of(writer.on_host[0], TARGET.explain_host(writer.on_host[0]))
        raise CompilerError.of("code generation", f"in {name!r}, {step}, and a page has no Python")
    layout = artifact.layout
    return WasmProgram(
        words=tuple(artifact.words.tolist()),
        launches={int(place): launches[int(artifact.words[place])].symbol for place in artifact.launch_words},
        slots=layout.slots,
        arguments=layout.callers - len(artifact.specs),
        results=tuple(int(np.prod(shape)) * dtype.itemsize for shape, dtype in artifact.specs),
        offsets=tuple(layout.offsets.tolist()),
        arena=layout.arena,
        constants=layout.constants,
        outputs=artifact.outputs,
        reuse=dict(artifact.reuse),
    )


def _loaded(suffix: str, routine: Routine) -> LoadedRoutine:
    """Return a routine as the writer of commands takes it.

    Functions have names in place of addresses.
    """
    launches = [LoadedLaunch(0, p.tasks, Mode(0), p.symbol + suffix, "", LoadedCode([]), p.is_copy) for p in routine.launches]
    return LoadedRoutine(tuple(launches), routine.workspace, 0.0)


def _items(program: LoweredProgram) -> Iterator[Item]:
    for item in program.items:
        yield item
        for inner in item.programs:
            yield from _items(inner)
