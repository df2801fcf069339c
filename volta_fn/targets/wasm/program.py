"""Programs as WebAssembly: routines, and the commands that call them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from volta_fn.compiler.buffers import Output
from volta_fn.compiler.emission import Block, Slot
from volta_fn.compiler.ir.program import KernelCall
from volta_fn.compiler.ir.specification import interpret
from volta_fn.compiler.target import HostStep, Item, LoweredProgram
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.errors import CompilerError
from volta_fn.runtime.llvm.host import generating_for
from volta_fn.runtime.llvm.machine import LoadedCode
from volta_fn.targets.cpu.routine import Routine, routine_of
from volta_fn.targets.cpu.runtime.compile import CONTROL_FLOW, CommandWriter, LoadedLaunch, LoadedRoutine, assemble
from volta_fn.targets.cpu.runtime.executor import Mode
from volta_fn.targets.cpu.target import CpuTarget
from volta_fn.targets.wasm.module import MACHINE, compile_module

if TYPE_CHECKING:
    from volta_fn.compiler.target import Pipeline


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

    def item(self, item: Item, operands: Sequence[Slot], results: Sequence[Slot], block: Block) -> None:
        """Write an item."""
        node = item.node
        if isinstance(node, KernelCall) and not any(source.size for source in node.kernel.inputs):
            arrays = [np.empty(source.size, source.dtype) for source in node.kernel.inputs]
            for slot, value in zip(results, interpret(node.kernel, *arrays), strict=True):
                self.copy(slot, self.slots.constant(np.asarray(value)), np.asarray(value).nbytes, block)
        elif any(var.aval.size for var in item.results):
            super().item(item, operands, results, block)


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


def compile_programs(traced: Mapping[str, tuple[ClosedJaxpr, Sequence[bool]]], pipeline: Pipeline) -> WasmPrograms:
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
    name: str, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Pipeline, routines: dict[Any, tuple[str, Routine]]
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
    launches = [LoadedLaunch(0, launch.tasks, Mode(0), launch.symbol + suffix, "", LoadedCode([])) for launch in routine.launches]
    return LoadedRoutine(tuple(launches), routine.workspace, 0.0)


def _items(program: LoweredProgram) -> Iterator[Item]:
    for item in program.items:
        yield item
        for inner in item.programs:
            yield from _items(inner)
