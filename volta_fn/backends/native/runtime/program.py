"""Programs compiled: traced programs to functions of NumPy arrays."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from volta_fn.backends.native.runtime.bodies import Body, body_of, sources_in
from volta_fn.backends.native.runtime.code import LIBRARY
from volta_fn.backends.native.runtime.control_flow import CONTROL_FLOW
from volta_fn.backends.native.runtime.entry import NO_MEMORY, NOT_CONTIGUOUS, Record, release
from volta_fn.backends.native.runtime.host import failure
from volta_fn.backends.native.runtime.machinery import libc_free, machinery
from volta_fn.backends.native.runtime.slots import Slot
from volta_fn.backends.native.runtime.writer import Writer
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Literal, Var
from volta_fn.errors import OutOfMemoryError

#: A program of more nanoseconds than this lets other Python threads run.
_LONG = 20_000.0


class _Output(NamedTuple):
    """A result: an array that the program makes (by number), an argument, or a constant, in a shape."""

    made: int | None
    argument: int | None
    constant: np.ndarray | None
    shape: tuple[int, ...]


class Program:
    """A compiled program: a function ``(donate, *arrays) -> arrays``."""

    def __init__(self, closed: ClosedJaxpr, donated: Sequence[bool] = ()) -> None:
        body = body_of(closed)
        sources = sources_in(body)
        loaded = dict(zip([s.key for s in sources], LIBRARY.load(sources), strict=True))
        writer = Writer(loaded, CONTROL_FLOW)
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
        self.outputs = [_output(body, v, made) for v in jaxpr.outvars]
        self.specs = [(v.aval.shape, v.aval.dtype) for v in made]
        self.reuse = _reuse(body, made, donated)
        self._finish(writer)

    def _finish(self, writer: Writer) -> None:
        slots = writer.slots
        self.template, arena, first = slots.number()
        self.code = writer.code()
        self.kept = (writer.hosts, [s.array for s in slots.constants.values()])
        end = self.code.ctypes.data + self.code.nbytes
        words = {
            Record.CODE: self.code.ctypes.data,
            Record.END: end,
            Record.SLOTS: len(self.template),
            Record.CALLER: len(slots.callers),
            Record.ARENA_FIRST: first,
            Record.ARENA_SLOTS: len(slots.arena),
            Record.ARENA_BYTES: arena,
            Record.TEMPLATE: self.template.ctypes.data,
            Record.TABLE: 0,
            Record.LONG: int(writer.cost > _LONG),
        }
        self.record = np.array([words[name] for name in Record], np.int64)
        weakref.finalize(self, release, self.record, libc_free)
        self.enter = machinery().entry.function(self.record)
        #: Bytes of the arena.
        self.temporaries = arena

    def function(self) -> Callable[..., Sequence[np.ndarray]]:
        """The program as a plain function; of the commonest kind, whose results are all made here, without a detour."""
        plain = [(o.made, o.shape) for o in self.outputs] == [(number, shape) for number, (shape, _) in enumerate(self.specs)]
        if self.reuse or not plain:
            return self.__call__
        specs, enter, empty, failed = self.specs, self.enter, np.empty, self._failed

        def run(donate: bool, *arguments: np.ndarray) -> Sequence[np.ndarray]:
            made = [empty(shape, dtype) for shape, dtype in specs]
            status = enter(*arguments, *made)
            if status:
                failed(status, arguments, made)
            return made

        if len(specs) != 1:
            return run
        ((shape, dtype),) = specs

        def run_one(donate: bool, *arguments: np.ndarray) -> Sequence[np.ndarray]:
            out = empty(shape, dtype)
            return (out,) if not enter(*arguments, out) else run(donate, *arguments)

        return run if self.kept[0] else run_one  # a failing callback must not be called again

    def __call__(self, donate: bool, *arguments: np.ndarray) -> Sequence[np.ndarray]:
        """The results for arguments, of which the donated ones may be overwritten if `donate` says so."""
        made = [np.empty(shape, dtype) for shape, dtype in self.specs]
        if donate:
            for number, argument in self.reuse:
                made[number] = _shaped(arguments[argument], self.specs[number][0])
        status = self.enter(*arguments, *made)
        if status:
            self._failed(status, arguments, made)
        return tuple([self._result(output, arguments, made) for output in self.outputs])

    def _result(self, output: _Output, arguments: Sequence[np.ndarray], made: Sequence[np.ndarray]) -> np.ndarray:
        if output.made is not None:
            array = made[output.made]
        else:
            array = output.constant if output.constant is not None else arguments[output.argument or 0]
        return _shaped(array, output.shape)

    def _failed(self, status: int, arguments: Sequence[np.ndarray], made: list[np.ndarray]) -> None:
        if status == NO_MEMORY:
            raise OutOfMemoryError(f"a program needs {self.temporaries} bytes for values between its arguments and its results")
        if status != NOT_CONTIGUOUS:
            raise failure()
        made[:] = [np.empty(shape, dtype) for shape, dtype in self.specs]
        status = self.enter(*[np.require(a, requirements=["C", "A"]) for a in arguments], *made)
        if status:
            self._failed(status, arguments, made)


def _shaped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return array if array.shape == shape else array.reshape(shape)


def _output(body: Body, atom: Atom, made: list[Var]) -> _Output:
    if isinstance(atom, Literal):
        return _Output(None, None, atom.val.buffer(), atom.aval.shape)
    root, jaxpr = body.root(atom), body.program.jaxpr
    if root in body.makers:
        return _Output(made.index(root), None, None, atom.aval.shape)
    if root in jaxpr.constvars:
        return _Output(None, None, body.program.consts[jaxpr.constvars.index(root)].buffer(), atom.aval.shape)
    return _Output(None, jaxpr.invars.index(root), None, atom.aval.shape)


def _reuse(body: Body, made: list[Var], donated: Sequence[bool]) -> list[tuple[int, int]]:
    """Results that go into the memory of donated arguments: pairs of their numbers."""
    free = [i for i, d in enumerate(donated) if d]
    pairs = []
    for number, var in enumerate(made):
        found = next((i for i in free if body.may_share(body.program.jaxpr.invars[i], var)), None)
        if found is not None:
            free.remove(found)
            pairs.append((number, found))
    return pairs
