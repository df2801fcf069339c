"""Programs ready to run: functions of NumPy arrays, compiled or from the disk."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from volta_fn.compiler.buffers.memory_layout import Output
from volta_fn.core.array import ArraySpec
from volta_fn.core.interned import Left
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.errors import OutOfMemoryError
from volta_fn.lazy_imports import load
from volta_fn.runtime.compiling import undisturbed
from volta_fn.runtime.internals.array_calls import MOST_OPERANDS, MOST_RESULTS
from volta_fn.runtime.internals.fastcall import NO_MEMORY, NOT_CONTIGUOUS, Record, release
from volta_fn.runtime.internals.result_allocator import LARGE
from volta_fn.targets.cpu.runtime import program_cache
from volta_fn.targets.cpu.runtime.host_calls import failure
from volta_fn.targets.cpu.runtime.host_interrupts import interruptible
from volta_fn.targets.cpu.runtime.program_cache import Artifact
from volta_fn.targets.cpu.runtime.support_code import libc_free, support_code_of_process

if TYPE_CHECKING:
    from volta_fn.compiler.program import Pipeline


#: Records of programs, whose tables are freed when other programs are made after their end.
_records: Left[np.ndarray] = Left()


@functools.cache
def _building() -> Any:
    """Load the compiler, when the first program is compiled that is not on disk."""
    return load("volta_fn.targets.cpu.runtime.compile")


class Program:
    """A compiled program: a function ``(donate, *arrays) -> arrays``."""

    @classmethod
    def of(cls, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Pipeline) -> Program:
        """Return a traced program, compiled unless it is on disk."""
        return undisturbed(cls._of, closed, donated, pipeline)

    @classmethod
    def _of(cls, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Pipeline) -> Program:
        key = program_cache.key_of(closed, donated)
        kept = None if key is None else program_cache.find(key)
        if kept is not None:
            return cls(kept.artifact, kept.code.addresses, [kept.code])
        built = _building().build(closed, donated, pipeline)
        if key is not None and not built.hosts:
            program_cache.keep(key, built.artifact, [(launch.entry, launch.symbol) for launch in built.launches])
        return cls(built.artifact, [launch.address for launch in built.launches], [launch.code for launch in built.launches], built.hosts)

    def __init__(self, artifact: Artifact, addresses: Sequence[int], code: Sequence[Any], hosts: Sequence[Any] = ()) -> None:
        """Take a program, its launches' addresses in loaded code, and host functions."""
        self.outputs, self.reuse, layout = artifact.outputs, dict(artifact.reuse), artifact.layout
        large = support_code_of_process().large_empty
        #: The allocator, shape and dtype of each array that a call makes.
        shapes = {output.made: output.shape for output in reversed(artifact.outputs)}  # of the first output that each array is
        self.specs = [
            (large if math.prod(s) * d.itemsize >= LARGE else np.empty, shapes.get(number, s), d)
            for number, (s, d) in enumerate(artifact.specs)
        ]
        self.code = artifact.words.copy()
        self.code[artifact.launch_words] = np.array(addresses, np.int64)[artifact.words[artifact.launch_words]]
        self.template = np.zeros(layout.slots, np.int64)
        constants = layout.callers + len(layout.offsets)
        self.template[layout.callers : constants] = layout.offsets
        self.template[constants : constants + len(layout.constants)] = [array.ctypes.data for array in layout.constants]
        self.kept = (hosts, layout.constants, code)
        #: Whether steps run in NumPy.
        self.calls_host = bool(hosts)
        words = {
            Record.CODE: self.code.ctypes.data,
            Record.END: self.code.ctypes.data + self.code.nbytes,
            Record.SLOTS: layout.slots,
            Record.CALLER: layout.callers,
            Record.ARENA_FIRST: layout.callers,
            Record.ARENA_SLOTS: len(layout.offsets),
            Record.ARENA_BYTES: layout.arena,
            Record.TEMPLATE: self.template.ctypes.data,
            Record.TABLE: 0,
            Record.LONG: int(artifact.long),
        }
        self.record = np.array([words[name] for name in Record], np.int64)
        for record in _records.take():
            release(record, libc_free)
        _records.leave(self, self.record)
        enter = support_code_of_process().entry.function(self.record)
        self.enter = interruptible(enter) if hosts else enter
        #: Not empty after a call that copied arguments because their buffers were not contiguous.
        self.copied: list[bool] = []
        #: Bytes of the arena, and of what one function of NumPy needs for itself.
        self.temporaries = layout.arena + max([host.workspace for host in hosts], default=0)

    def function(self) -> Callable[..., Sequence[np.ndarray]]:
        """Return the program as a plain function; the common case skips output remapping.

        In that case all results are freshly allocated.
        """
        plain = [(o.made, o.shape) for o in self.outputs] == [(number, shape) for number, (_, shape, _) in enumerate(self.specs)]
        if self.reuse or not plain:
            return self
        specs, enter, failed = self.specs, self.enter, self._failed

        def run(donate: bool, *arguments: np.ndarray) -> Sequence[np.ndarray]:
            made = [empty(shape, dtype) for empty, shape, dtype in specs]
            status = enter(*arguments, *made)
            if status:
                failed(status, arguments, made)
            return made

        run.copied = self.copied  # type: ignore[attr-defined]  # functions carry attributes
        if self.calls_host or not specs:  # a failing callback must not be called again
            return run
        has_built_in = self.record[Record.CALLER] - len(specs) <= MOST_OPERANDS
        if len(specs) > 1:
            if has_built_in and len(specs) <= MOST_RESULTS:
                run.of_arrays = self._of_arrays  # type: ignore[attr-defined]  # functions carry attributes
            return run
        ((empty, shape, dtype),) = specs

        def run_one(donate: bool, *arguments: np.ndarray) -> Sequence[np.ndarray]:
            out = empty(shape, dtype)
            return (out,) if not enter(*arguments, out) else run(donate, *arguments)

        run_one.copied = self.copied  # type: ignore[attr-defined]  # functions carry attributes

        if has_built_in:
            run_one.of_arrays = self._of_arrays  # type: ignore[attr-defined]  # functions carry attributes
        return run_one

    def _of_arrays(
        self, specs: Sequence[ArraySpec], within: type[tuple] | type[list] | None, otherwise: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return the program as a function of arrays that returns those of the specs.

        They are in a tuple or a list, or it is one alone. It calls `otherwise` with arrays whose elements do not lie one after another.
        """
        makes = [functools.partial(empty, shape, dtype) for empty, shape, dtype in self.specs]
        return support_code_of_process().entry.of_arrays(self, self.record, makes, specs, within, otherwise)

    def __call__(self, donate: bool, *arguments: np.ndarray) -> Sequence[np.ndarray]:
        """Return the results; donated arguments may be overwritten if `donate` says so."""
        over = self.reuse if donate else {}
        made = [
            _shaped(arguments[over[number]], shape) if number in over else empty(shape, dtype)
            for number, (empty, shape, dtype) in enumerate(self.specs)
        ]
        status = self.enter(*arguments, *made)
        if status:
            self._failed(status, arguments, made)
        return tuple([self._result(output, arguments, made) for output in self.outputs])

    def _result(self, output: Output, arguments: Sequence[np.ndarray], made: Sequence[np.ndarray]) -> np.ndarray:
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
        self.copied.append(True)
        made[:] = [empty(shape, dtype) for empty, shape, dtype in self.specs]
        status = self.enter(*[np.require(a, requirements=["C", "A"]) for a in arguments], *made)
        if status:
            self._failed(status, arguments, made)


def _shaped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return array if array.shape == shape else array.reshape(shape)
