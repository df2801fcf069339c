"""Time a program's items, and record traces of the host and of devices."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from volta_fn.compiler.target import Item, LoweredProgram
from volta_fn.core.arrays.array import host_buffer
from volta_fn.core.devices.device import Device
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Var, interpret_jaxpr
from volta_fn.errors import ArgumentError, DeviceError
from volta_fn.inspection.explanation import Attribution, Roofline, Step, aligned, describe, flops_of, locations_of, samples
from volta_fn.inspection.report import duration
from volta_fn.jit import compile as compilation
from volta_fn.jit.cache import clear_caches
from volta_fn.jit.compile import TracedProgram
from volta_fn.jit.eager import PIPELINE

# The steps of a program that NumPy runs: its equations, timed one by one.


def numpy_steps(
    program: ClosedJaxpr, traced: ClosedJaxpr, buffers: Sequence[Any], device: Device, calls: int, roofline: Roofline | None
) -> tuple[list[Step], float | None, float]:
    """Return equations as steps, the seconds of a call, and those between steps."""
    # Each equation runs as its kernel in NumPy; a call runs the plan of `traced`, which saves memory and so some time.
    if not calls:
        return _as_steps(program, None, roofline), None, 0.0
    runs = [_kernel(eqn, device) for eqn in program.eqns]
    measured = [_timed(program, runs, buffers) for _ in range(calls)]
    seconds = [min(times) for times in zip(*measured, strict=True)]
    run = device.backend.compile(traced, (False,) * len(buffers), PIPELINE).run
    call = min(samples(lambda: run(False, *buffers)))
    return _as_steps(program, seconds, roofline), call, 0.0


def _kernel(eqn: Equation, device: Device) -> Callable[..., Sequence[Any]]:
    run = device.backend.kernel(eqn.primitive, tuple([v.aval for v in eqn.invars]), eqn.params, PIPELINE)
    return run if eqn.primitive.multiple_results else lambda *buffers: (run(*buffers),)


def _timed(program: ClosedJaxpr, runs: Sequence[Callable[..., Sequence[Any]]], buffers: Sequence[Any]) -> list[float]:
    """Run the equations one by one, and return the seconds of each."""
    remaining, seconds = iter(runs), []

    def step(_: Equation, operands: list[Any]) -> Sequence[Any]:
        run, start = next(remaining), time.perf_counter()
        results = run(*operands)
        seconds.append(time.perf_counter() - start)
        return results

    interpret_jaxpr(program, buffers, step, host_buffer)
    return seconds


def _as_steps(program: ClosedJaxpr, seconds: Sequence[float] | None, roofline: Roofline | None) -> list[Step]:
    producers: dict[Var, int] = {}
    steps = []
    for number, eqn in enumerate(program.eqns, 1):
        variables = [v for v in (*eqn.invars, *eqn.outvars) if isinstance(v, Var)]
        flops, moved = flops_of([eqn]), sum(v.aval.nbytes for v in dict.fromkeys(variables))
        taken = None if seconds is None else seconds[number - 1]
        operands, results = (" ".join(str(v.aval) for v in some) for some in (eqn.invars, eqn.outvars))
        steps.append(
            Step(
                number=number,
                name=eqn.primitive.name,
                kind="control flow" if eqn.primitive.holds_programs else "kernel",
                shapes=f"{operands} → {results}",
                flops=flops,
                bytes=moved,
                runs=1,
                seconds=taken,
                fraction=roofline.seconds(flops, moved) / taken if taken and roofline is not None else None,
                user_lines=tuple(locations_of([eqn])),
                equations=(eqn.primitive.name,),
                text=f"{eqn.primitive.name} {operands} -> {results}",
                code="",
                after=tuple(sorted({producers[v] for v in eqn.invars if isinstance(v, Var) and v in producers})),
                depth=0,
            )
        )
        producers.update(dict.fromkeys(eqn.outvars, number))
    return steps


# The time of each item of a program, over several runs.

#: A time: the numbers of the items, begin and end in nanoseconds.
Span = tuple[tuple[int, ...], int, int]

#: On a busy machine a single fastest call says little: calls are repeated until the fastest three agree up to this fraction, up to so many
#: times the number that is asked for.
_NEAR, _MOST = 0.03, 10


class Measured(NamedTuple):
    """The times of a program's items.

    Attributes:
        items: the program and the item of each number; None for number 0, the gaps between items.
        seconds: the fastest call of the program as it always runs.
        spans: of the fastest timed call: items, begin and end.
        program: the timed program.
        outside: the seconds of that call before its first span and after its last, as far as the host's clock tells.
    """

    items: list[tuple[LoweredProgram, Item] | None]
    seconds: float
    spans: list[Span]
    program: Any
    outside: float

    def totals(self) -> dict[int, tuple[float, int]]:
        """Return seconds and runs by an item's number; items of one dispatch share it."""
        totals: dict[int, tuple[float, int]] = {}
        before: tuple[int, ...] = ()
        for numbers, begin, end in self.spans:
            for number in numbers:
                seconds, runs = totals.get(number, (0.0, 0))
                totals[number] = seconds + (end - begin) / 1e9 / len(numbers), runs + (numbers != before)
            before = numbers
        return totals


def measure(closed: ClosedJaxpr, donated: Sequence[bool], device: Device, buffers: Sequence[Any], calls: int) -> Measured | None:
    """Measure a program on the buffers of its arguments, which stay as they are.

    None where NumPy runs programs.
    """
    timed = device.backend.timed(closed, donated, PIPELINE)
    if timed is None:
        return None
    run = device.backend.compile(closed, donated, PIPELINE).run

    def call() -> None:
        run(False, *buffers)
        device.backend.synchronize(None)

    def timed_call() -> _TimedCall:
        start = time.perf_counter()
        timed(False, *buffers)
        seconds = time.perf_counter() - start
        spans = timed.times()
        inside = sum(end - begin for _, begin, end in spans) / 1e9
        # The clock of a GPU is another one, and its commands run after the call that writes them.
        return _TimedCall(inside if timed.device == "gpu" else seconds, inside, spans)

    call()
    timed_call()
    timed.settle()
    timed_call()
    seconds: list[float] = []
    timed_calls: list[_TimedCall] = []

    def plain() -> None:
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)

    # In alternation, so that both see the same load of the machine, and in either order, since threads that waited are scheduled first.
    order: list[Callable[[], None]] = [plain, lambda: timed_calls.append(timed_call())]

    def is_noisy() -> bool:
        return not (_repeats(seconds) and _repeats([c.seconds for c in timed_calls]))

    while len(timed_calls) < calls or (is_noisy() and len(timed_calls) < _MOST * calls):
        for measure_once in order:
            measure_once()
        order.reverse()
    fastest = min(timed_calls, key=lambda c: c.seconds)
    return Measured(timed.items, min(seconds), fastest.spans, timed, fastest.seconds - fastest.inside)


class _TimedCall(NamedTuple):
    """A call's seconds, those of its spans together, and the spans."""

    seconds: float
    inside: float
    spans: list[Span]


def _repeats(seconds: Sequence[float]) -> bool:
    """Return True if the three fastest calls took about the same time."""
    return len(seconds) > 2 and sorted(seconds)[2] <= (1 + _NEAR) * min(seconds)


# Traces of a profiler: events of the host and of devices.
#
# While a trace is recorded, jitted functions are traced again and run as programs that note the time of each kernel; at its end those are
# dropped. So programs that are not profiled run as they always do.


class Event(NamedTuple):
    """An activity of the host or of a device, from `begin` to `end` in nanoseconds.

    `kind` is "annotation", "step", "program", "kernel" or "compile"; `thread` is the host's thread, or the device's name.
    """

    name: str
    kind: str
    begin: int
    end: int
    thread: str
    details: dict[str, Any]

    @property
    def seconds(self) -> float:
        """Its duration."""
        return (self.end - self.begin) / 1e9


#: Events of a trace, at most; later ones are counted only.
_MOST_EVENTS = 1_000_000


class Recording:
    """The events of a trace; `str` gives a table of where the time went."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: Calls of programs: their begin, and a function that returns the spans of their kernels.
        self.kernels: list[tuple[_ObservedProgram, int, Callable[[], Sequence[Span]]]] = []
        self.lost = 0
        self._events: list[Event] = []
        self.begin = time.perf_counter_ns()

    @property
    def events(self) -> list[Event]:
        """All events so far: those of the host, then the kernels."""
        return [*self._events, *[event for program, begin, spans in self.kernels for event in program.events(begin, spans())]]

    def add(self, name: str, kind: str, begin: int, end: int, details: dict[str, Any] | None = None, thread: str = "") -> None:
        """Add an event; without a thread, of the host's thread that calls."""
        if len(self._events) >= _MOST_EVENTS:
            self.lost += 1
            return
        self._events.append(Event(name, kind, begin, end, thread or threading.current_thread().name, details or {}))

    def totals(self) -> list[tuple[str, str, int, float]]:
        """Return kind, name, number and seconds of events of one name, longest first."""
        totals: dict[tuple[str, str], tuple[int, float]] = {}
        for event in self.events:
            count, seconds = totals.get((event.kind, event.name), (0, 0.0))
            totals[event.kind, event.name] = count + 1, seconds + event.seconds
        rows = [(kind, name, count, seconds) for (kind, name), (count, seconds) in totals.items()]
        return sorted(rows, key=lambda row: -row[3])

    def __str__(self) -> str:
        rows = [(kind, name[:60], f"{count:,}", duration(seconds)) for kind, name, count, seconds in self.totals()[:40]]
        lost = [f"{self.lost:,} more events were not kept"] if self.lost else []
        return "\n".join([*aligned([("kind", "name", "calls", "time"), *rows], right=(2, 3)), *lost])

    __repr__ = __str__

    def write(self) -> Path:
        """Write the events as JSON for Perfetto and Chrome, and return the file's path."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path, events = self.folder / "volta_fn.trace.json", self.events
        threads = {name: number for number, name in enumerate(dict.fromkeys([e.thread for e in events]))}
        named = [
            {"ph": "M", "name": "thread_name", "pid": _process(name), "tid": number, "args": {"name": name}}
            for name, number in threads.items()
        ]
        processes = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}} for pid, name in ((0, "host"), (1, "devices"))]
        entries = [
            {
                "ph": "X", "name": e.name, "cat": e.kind, "pid": _process(e.thread), "tid": threads[e.thread],
                "ts": (e.begin - self.begin) / 1e3, "dur": (e.end - e.begin) / 1e3,
                "args": {key: str(value) for key, value in e.details.items()},
            }
            for e in events
        ]  # fmt: skip
        path.write_text(json.dumps({"traceEvents": [*processes, *named, *entries], "displayTimeUnit": "ns"}), encoding="utf-8")
        return path


def _process(thread: str) -> int:
    return 1 if thread.startswith(_DEVICE) else 0


_DEVICE = "device "
_lock = threading.Lock()
_current: Recording | None = None


def current() -> Recording | None:
    """Return the trace that is being recorded, or None."""
    return _current


def start(folder: Path) -> Recording:
    """Begin a trace; raise `ArgumentError` if there is one."""
    global _current
    with _lock:
        if _current is not None:
            raise ArgumentError("profiler.start_trace: a trace is being recorded already; stop_trace ends it")
        _current = Recording(folder)
        compilation.set_compile_hook(_ObservedProgram)
    clear_caches()  # so that calls find the observed programs
    return _current


def stop() -> Recording | None:
    """End the trace and return it; None if there is none."""
    global _current
    with _lock:
        recording, _current = _current, None
        compilation.set_compile_hook(None)
    clear_caches()
    return recording


class _ObservedProgram:
    """A program that records when it and each of its kernels run."""

    def __init__(self, traced: TracedProgram, device: Device) -> None:
        self.name, self.device = traced.name or "a program", f"{_DEVICE}{device!r}"
        begin = time.perf_counter_ns()
        self._timed = _timed_event(traced, device)
        self._run: Callable[..., Any] = self._timed or device.backend.compile(traced.jaxpr, traced.donated, PIPELINE).run
        if (recording := current()) is not None:
            recording.add(f"compile {self.name}", "compile", begin, time.perf_counter_ns())
        self._lock = threading.Lock()
        self._names: list[tuple[str, str]] = []

    def __call__(self, donate: bool, *buffers: Any) -> Any:
        recording = current()
        if recording is None:
            return self._run(donate, *buffers)
        with self._lock:  # the log is one for all calls
            begin = time.perf_counter_ns()
            results = self._run(donate, *buffers)
            spans = None if self._timed is None else self._timed.noted()
            end = time.perf_counter_ns()
        recording.add(self.name, "program", begin, end, {"device": self.device})
        if spans is not None:
            recording.kernels.append((self, begin, spans))
        return results

    def events(self, begin: int, spans: Sequence[Span]) -> list[Event]:
        """Return the events of a call's kernels, which began at `begin`."""
        if not spans or self._timed is None:
            return []
        if not self._names:
            attributions: dict[int, Attribution] = {}
            names = [("", "")]
            for program, item in filter(None, self._timed.items):
                attribution = attributions.setdefault(id(program), Attribution(program))
                equations = attribution.equations(item)
                names.append((describe(item, equations), ", ".join(map(str, locations_of(equations)[:4]))))
            self._names = names
        offset = begin if self._timed.device == "gpu" else 0  # its clock is another one
        return [
            Event(self._title(numbers), "kernel", offset + a, offset + b, self.device, {"lines": self._names[numbers[0]][1]})
            for numbers, a, b in spans
            if numbers != (0,)
        ]

    def _title(self, numbers: Sequence[int]) -> str:
        return " | ".join([self._names[n][0] for n in numbers])


def _timed_event(traced: TracedProgram, device: Device) -> Any:
    try:
        return device.backend.timed(traced.jaxpr, traced.donated, PIPELINE)
    except DeviceError:  # a GPU without timestamp queries
        return None
