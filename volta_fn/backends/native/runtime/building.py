"""Programs compiled: traced programs to artifacts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from volta_fn.backends.native.lane import LANE
from volta_fn.backends.native.runtime.artifact import Artifact, Output
from volta_fn.backends.native.runtime.code import LIBRARY, LoadedPhase
from volta_fn.backends.native.runtime.control_flow import CONTROL_FLOW
from volta_fn.backends.native.runtime.host import HostCall
from volta_fn.backends.native.runtime.slots import layout_of
from volta_fn.backends.native.runtime.writer import Writer
from volta_fn.compiler.bodies import Body, body_of, sources_in
from volta_fn.compiler.slots import Slot
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Literal, Var

#: A program of more nanoseconds than this lets other Python threads run.
_LONG = 20_000.0


class Built(NamedTuple):
    """An artifact, the phases that its words speak of, and the functions of NumPy arrays whose addresses are among them."""

    artifact: Artifact
    phases: list[LoadedPhase]
    hosts: list[HostCall]


def build(closed: ClosedJaxpr, donated: Sequence[bool]) -> Built:
    """Compile a program."""
    body = body_of(closed, LANE)
    sources = sources_in(body)
    writer = Writer(dict(zip([s.key for s in sources], LIBRARY.load(sources), strict=True)), CONTROL_FLOW)
    made = _write(writer, body)
    outputs = tuple([_output(body, v, made) for v in body.program.jaxpr.outvars])
    specs = tuple([(v.aval.shape, v.aval.dtype) for v in made])
    layout = layout_of(writer.slots)
    words, places, phases = writer.code()
    artifact = Artifact(words, places, layout, bool(writer.cost > _LONG), outputs, specs, _reuse(body, made, donated))
    return Built(artifact, phases, writer.hosts)


def _write(writer: Writer, body: Body) -> list[Var]:
    """Write a program's commands; the variables that the caller gives memory for."""
    jaxpr = body.program.jaxpr
    inputs = [writer.slots.caller() for _ in jaxpr.invars]
    made = list(dict.fromkeys([body.root(v) for v in jaxpr.outvars if isinstance(v, Var) and body.root(v) in body.makers]))
    targets = {var: writer.slots.caller() for var in made}
    places: list[Slot | None] = [targets.get(body.root(v)) if isinstance(v, Var) else None for v in jaxpr.outvars]
    once: set[Slot] = set()
    for number, place in enumerate(places):
        if place in once:
            places[number] = None
        elif place is not None:
            once.add(place)
    writer.body(body, inputs, places, writer.slots.outermost)
    return made


def _output(body: Body, atom: Atom, made: list[Var]) -> Output:
    if isinstance(atom, Literal):
        return Output(None, None, atom.val.buffer(), atom.aval.shape)
    root, jaxpr = body.root(atom), body.program.jaxpr
    if root in body.makers:
        return Output(made.index(root), None, None, atom.aval.shape)
    if root in jaxpr.constvars:
        return Output(None, None, body.program.consts[jaxpr.constvars.index(root)].buffer(), atom.aval.shape)
    return Output(None, jaxpr.invars.index(root), None, atom.aval.shape)


def _reuse(body: Body, made: list[Var], donated: Sequence[bool]) -> tuple[tuple[int, int], ...]:
    """Results that go into the memory of donated arguments: pairs of their numbers."""
    free = [i for i, d in enumerate(donated) if d]
    pairs = []
    for number, var in enumerate(made):
        found = next((i for i in free if body.may_share(body.program.jaxpr.invars[i], var)), None)
        if found is not None:
            free.remove(found)
            pairs.append((number, found))
    return tuple(pairs)
