"""Kernels as machine code: every routine that the CPU has for one, run in several ways."""

from __future__ import annotations

import ctypes
import itertools
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tests.fuzz.kernels import Run
from volta_fn import dtypes
from volta_fn.compiler.contractions import accumulators
from volta_fn.compiler.ir.axes import overwritable
from volta_fn.compiler.ir.kernel import Kernel, Reduce
from volta_fn.runtime.llvm.machine import compile_object, load_objects
from volta_fn.runtime.llvm.text import SharedFunction
from volta_fn.targets.cpu.routine import Routine
from volta_fn.targets.cpu.scalars.number import is_supported
from volta_fn.targets.cpu.target import TARGET

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_PAGE = mmap.PAGESIZE
#: Guard bytes before and after an array, and what they are. Results are full of ones before they are written: NaN.
_MARGIN, _GUARD, _UNWRITTEN = 128, 0xA5, 0xFF


class Arena:
    """Memory that ends at a page which must not be touched."""

    def __init__(self, size: int) -> None:
        pages = -(-size // _PAGE) + 1
        self.map = mmap.mmap(-1, pages * _PAGE)
        self.bytes = np.frombuffer(self.map, np.uint8)
        self.end = (pages - 1) * _PAGE
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(self.bytes.ctypes.data + self.end), _PAGE, 0):
            raise OSError(ctypes.get_errno(), "mprotect")


class Place:
    """The place of an array in an arena: at its end, or at an odd offset between guard bytes."""

    def __init__(self, arena: Arena, size: int, itemsize: int, at_end: bool) -> None:
        self.start = arena.end - size if at_end else 2 * _MARGIN + itemsize * 3
        self.memory = arena.bytes
        self.size = size
        self.stop = min(self.start + size + _MARGIN, arena.end)
        self.memory[self.start - _MARGIN : self.stop] = _GUARD
        self.inside[:] = _UNWRITTEN

    @property
    def inside(self) -> np.ndarray:
        """The bytes of the array."""
        return self.memory[self.start : self.start + self.size]

    @property
    def address(self) -> int:
        """The address of the array."""
        return self.memory.ctypes.data + self.start

    @property
    def is_guarded(self) -> bool:
        """True if no guard byte was changed."""
        before, after = self.memory[self.start - _MARGIN : self.start], self.memory[self.start + self.size : self.stop]
        return bool((before == _GUARD).all() and (after == _GUARD).all())


class MachineCode:
    """Runs every routine of a kernel on this CPU."""

    fused = False

    def __init__(self) -> None:
        self._arenas: list[Arena] = []
        self._shared: dict[str, bytes] = {}
        self._threads: ThreadPoolExecutor | None = None

    def supports(self, dtype: np.dtype) -> bool:
        """Return True if the CPU's kernels may have a dtype."""
        return is_supported(dtype)

    def routines(self, kernel: Kernel) -> dict[Routine, str]:
        """Return the distinct routines of a kernel, with the choices that lead to each."""
        result: dict[Routine, str] = {}
        for way, routine in TARGET.all_kernel_routines(kernel):
            result.setdefault(routine, way)
        return result

    def runs(self, kernel: Kernel, inputs: Sequence[np.ndarray]) -> Iterator[Run]:
        """Run each routine as a whole, in parts, and in place; see `Machine`."""
        routines = self.routines(kernel)
        entries = self._loaded(list(routines))
        chosen = TARGET.kernel_routine(kernel)
        same = None if _sums(kernel) else b""
        zeros_have_signs = not _chooses_among_zeros(kernel)
        for (routine, way), addresses in zip(routines.items(), entries, strict=True):
            whole = self._run(kernel, routine, addresses, inputs, 1, {})
            yield Run(way, *whole)
            bits = _bits(whole[0])
            if same is not None:
                between = _bits(whole[0], zeros_have_signs)
                same = same or between
                yield Run(way, whole[0], "" if same == between else "bits differ from those of another schedule")
            for parts in (3, 4):
                results, fault = self._run(kernel, routine, addresses, inputs, parts, {})
                differs = _bits(results) != bits
                yield Run(f"in {parts} parts, {way}", results, fault or ("bits differ from those of the whole" if differs else ""))
            placements = list(placements_of(kernel, OVERWRITABLE[kind_of(way)]))
            if routine == chosen:  # which the target places by a rule of its own
                placements += [places for places in placements_of(kernel, TARGET.overwritable_inputs) if places not in placements]
            for places in placements:
                results, fault = self._run(kernel, routine, addresses, inputs, 1, places)
                differs = _bits(results) != bits
                yield Run(f"results in operands {places}, {way}", results, fault or ("bits differ from those elsewhere" if differs else ""))

    def _loaded(self, routines: Sequence[Routine]) -> list[list[int]]:
        codes, symbols = [], []
        for number, routine in enumerate(routines):
            codes.append(compile_object(routine.text, f"_{number}"))
            symbols.append([f"{launch.symbol}_{number}" for launch in routine.launches])
        shared = {function.name: self._code(function) for routine in routines for function in routine.shared}
        loaded = load_objects([*codes, *shared.values()], [s for names in symbols for s in names])
        self._latest = loaded  # until the next kernel's code is loaded
        addresses = iter(loaded.addresses)
        return [[next(addresses) for _ in names] for names in symbols]

    def _code(self, function: SharedFunction) -> bytes:
        if function.name not in self._shared:
            self._shared[function.name] = compile_object(function.text, clean=False)
        return self._shared[function.name]

    def _arena(self, number: int, size: int) -> Arena:
        while len(self._arenas) <= number:
            self._arenas.append(Arena(1 << 20))
        if self._arenas[number].end < size + 8 * _MARGIN:
            self._arenas[number] = Arena(size + 8 * _MARGIN)
        return self._arenas[number]

    def _run(
        self,
        kernel: Kernel,
        routine: Routine,
        addresses: Sequence[int],
        inputs: Sequence[np.ndarray],
        parts: int,
        places: Mapping[int, int],
    ) -> tuple[list[np.ndarray], str]:
        """Run a routine's tasks in so many parts, last ones first: four run on four threads. Return results, and what was touched."""
        buffers = [*kernel.inputs, *kernel.outputs]
        at_end = parts == 1 and not places
        held = []
        for number, b in enumerate(buffers):
            output = number - len(inputs)
            if output in places:
                held.append(held[places[output]])
                continue
            held.append(Place(self._arena(number, b.size * b.dtype.itemsize), b.size * b.dtype.itemsize, b.dtype.itemsize, at_end))
            if output < 0:
                held[number].inside[:] = inputs[number].reshape(-1).view(np.uint8)
        if routine.workspace:
            space = Place(self._arena(len(buffers), routine.workspace + 64), routine.workspace, 0, False)
            shift = -space.address % 64
            held.append(Place(self._arena(len(buffers), routine.workspace + 64), routine.workspace, 0, False) if not shift else space)
        pointers = np.array([place.address for place in held], np.int64)
        for launch, address in zip(routine.launches, addresses, strict=True):
            cuts = np.linspace(0, launch.tasks, min(parts, launch.tasks) + 1).astype(int).tolist()
            ranges = list(itertools.pairwise(cuts))[::-1]
            if len(ranges) == 4:
                list(self._pool().map(lambda ends, address=address: _ENTRY(address)(pointers.ctypes.data, *ends), ranges))
            else:
                for begin, end in ranges:
                    _ENTRY(address)(pointers.ctypes.data, begin, end)
        fault = ""
        for number, place in enumerate(held):
            name = f"x{number}" if number < len(inputs) else f"y{number - len(inputs)}" if number < len(buffers) else "the workspace"
            if not place.is_guarded:
                fault = fault or f"bytes next to {name} changed"
            if number < len(inputs) and number not in places.values() and place.inside.tobytes() != inputs[number].tobytes():
                fault = fault or f"{name} changed"
        outputs = zip(held[len(inputs) : len(buffers)], kernel.outputs, strict=True)
        return [place.inside.tobytes() and np.frombuffer(place.inside.tobytes(), b.dtype) for place, b in outputs], fault

    def _pool(self) -> ThreadPoolExecutor:
        self._threads = self._threads or ThreadPoolExecutor(4)
        return self._threads


def _bits(results: Sequence[np.ndarray], zeros_have_signs: bool = True) -> bytes:
    """Return the bits of results, those of NaN being the same whatever its sign, and those of zeros too if they have none."""
    parts = []
    for x in results:
        if x.dtype in dtypes.INEXACT:
            x = np.where(np.isnan(x), np.array(np.nan, x.dtype), x)
            x = x if zeros_have_signs else np.where(x == 0, np.array(0, x.dtype), x)
        parts.append(x.tobytes())
    return b"".join(parts)


def _sums(kernel: Kernel) -> bool:
    return any(isinstance(node, Reduce) and node.reduction.rounds and node.dtype.kind not in "iub" for node in kernel.nodes)


def _chooses_among_zeros(kernel: Kernel) -> bool:
    """Return True if a kernel has a maximum or a minimum of floats: of +0 and -0 it may be either, by the order of its elements."""
    reductions = [node for node in kernel.nodes if isinstance(node, Reduce) and node.dtype in dtypes.INEXACT]
    return any(node.reduction.step in ("max", "min") for node in reductions)


#: The inputs whose memory may hold an output, by the kind of the routine.
OVERWRITABLE: dict[str, Callable[[Kernel, int], Sequence[int]]] = {"loops": overwritable, "product": accumulators}


def kind_of(way: str) -> str:
    """Return the kind of a routine, of the choices that lead to it."""
    return way.partition(":")[0]


def placements_of(kernel: Kernel, inputs_of: Callable[[Kernel, int], Sequence[int]]) -> Iterator[dict[int, int]]:
    """Yield which results may lie in which operands' memory: each by itself, and as many as possible together."""
    together: dict[int, int] = {}
    for output in range(len(kernel.stores)):
        for operand in inputs_of(kernel, output):
            yield {output: operand}
            if output not in together and operand not in together.values():
                together[output] = operand
    if len(together) > 1:
        yield together
