"""Routines as one WebAssembly module.

LLVM writes relocatable objects, which a linker would join. All routines of a page are one module of LLVM's, so that the object is whole:
what is left is to export its functions, by the symbol table of its section "linking" (`Linking.md` of WebAssembly's tool conventions), and
to drop the sections that only linkers read. Data are at the beginning of the memory, as the object has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from volta_fn.errors import CompilerError
from volta_fn.runtime.llvm.host import Host, llvm
from volta_fn.targets.cpu.routine import Routine

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
    binding, machine = llvm(), _machine()
    whole = _parsed("", machine)
    shared: set[str] = set()
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
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=1))
    passes = binding.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(whole, builder)
    sections = list(_sections(machine.emit_object(whole)))
    return _assembled(sections)


def _machine() -> Any:
    binding = llvm()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    target = binding.Target.from_triple(MACHINE.triple)
    return target.create_target_machine(cpu=MACHINE.cpu, features=MACHINE.features, opt=3, reloc="static")


def _parsed(text: str, machine: Any) -> Any:
    # Modules that are linked belong to one context, llvmlite's own; those of machine code have a context each.
    text = _POINTER_STORE.sub(r"\1, align 4", _POINTER_LOAD.sub(r"\1, align 4", text))
    try:
        module = llvm().parse_assembly(text)
        module.triple = MACHINE.triple
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise CompilerError.of("code generation", f"LLVM refuses the module: {str(error).strip()}") from error
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
