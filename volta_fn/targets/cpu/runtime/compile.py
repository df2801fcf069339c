"""Programs compiled: traced programs to artifacts."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from volta_fn.compiler.buffers.memory_layout import Output
from volta_fn.compiler.program import LoweredProgram
from volta_fn.core.array import host_buffer
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.targets.cpu.runtime.artifact import Artifact
from volta_fn.targets.cpu.runtime.code_cache import LIBRARY, LoadedPhase
from volta_fn.targets.cpu.runtime.control_flow import CONTROL_FLOW
from volta_fn.targets.cpu.runtime.host import HostCall
from volta_fn.targets.cpu.runtime.slots import layout_of
from volta_fn.targets.cpu.runtime.support_code import machinery
from volta_fn.targets.cpu.runtime.writer import Writer
from volta_fn.targets.cpu.target import TARGET

#: A program of more nanoseconds than this lets other Python threads run.
_LONG = 20_000.0


class Built(NamedTuple):
    """An artifact, the phases that its words speak of, and the functions of NumPy arrays whose addresses are among them."""

    artifact: Artifact
    phases: list[LoadedPhase]
    hosts: list[HostCall]


def build(closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Any) -> Built:
    """Compile a program, and in the meantime what programs need of the process, which they ask for next."""
    with ThreadPoolExecutor(1) as meanwhile:
        meanwhile.submit(machinery)
        return _build(pipeline.lower(closed, TARGET), donated)


def _build(program: LoweredProgram, donated: Sequence[bool]) -> Built:
    keys = program.routine_keys()
    writer = Writer(dict(zip([k.key for k in keys], LIBRARY.load(keys), strict=True)), CONTROL_FLOW)
    writer.write(program)
    outputs = tuple([_on_host(output) for output in program.outputs()])
    specs = tuple([(v.aval.shape, v.aval.dtype) for v in program.results])
    layout = layout_of(writer.slots)
    words, places, phases = writer.code()
    artifact = Artifact(words, places, layout, bool(writer.cost > _LONG), outputs, specs, program.reusable(donated))
    return Built(artifact, phases, writer.hosts)


def _on_host(output: Output) -> Output:
    return output if output.constant is None else output._replace(constant=host_buffer(output.constant))
